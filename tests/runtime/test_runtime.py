"""Which actor does what, and what hardware can be asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysafl import Hardware
from raysafl.runtime.on_actors import assign_cells, assign_longest_first

CPU = {"CPU": 2.0}


@given(costs=st.lists(st.integers(1, 100), max_size=30), actors=st.integers(1, 5))
def test_placement_gives_every_task_once_and_balances(
    costs: list[int], actors: int
) -> None:
    shares = assign_longest_first(costs, actors)
    assert sorted(i for share in shares for i in share) == list(range(len(costs)))
    loads = [sum(costs[i] for i in share) for share in shares]
    assert len(loads) == actors
    assert max(loads) - min(loads) <= max([0, *costs])  # longest first guarantees that


@given(
    tasks=st.lists(
        st.tuples(st.integers(0, 4), st.integers(1, 100)), min_size=1, max_size=30
    ),
    actors=st.integers(1, 4),
)
def test_cells_stay_together_where_that_is_about_as_even(
    tasks: list[tuple[int, int]], actors: int
) -> None:
    cells, costs = [cell for cell, _ in tasks], [cost for _, cost in tasks]
    shares = assign_cells(cells, costs, actors)
    assert sorted(i for share in shares for i in share) == list(range(len(tasks)))
    evenest = assign_longest_first(costs, actors)
    longest = [
        max(sum(costs[i] for i in share) for share in s) for s in (shares, evenest)
    ]
    assert longest[0] <= 1.1 * longest[1]
    where = [{cells[i] for i in share} for share in shares]
    assert shares == evenest or sum(map(len, where)) == len(set(cells))


def test_equal_cells_are_not_torn_apart() -> None:
    assert assign_cells([0, 1, 2, 3] * 2, [5] * 8, 2) == [[0, 2, 4, 6], [1, 3, 5, 7]]


@pytest.mark.parametrize("gpus", [0.3, 0.7])
def test_gpu_shares_that_do_not_pack_are_refused(gpus: float) -> None:
    with pytest.raises(ValueError, match="1/n"):
        Hardware(gpus=gpus)


@pytest.mark.parametrize(("gpus", "count"), [(2, 2), (1.5, 2), (8, 8)])
def test_an_actor_of_several_gpus_is_refused_and_told_how_to_use_them(
    gpus: float, count: int
) -> None:
    advice = f"give actors={count} and gpus=1, and for {count} trials at once"
    with pytest.raises(ValueError, match=f"trains on one GPU; .* {advice}"):
        Hardware(gpus=gpus)
    each = Hardware(actors=count, gpus=1)
    each.check([{"CPU": float(count), "GPU": float(count)}])
    assert each.bundle() == {"CPU": 1.0, "GPU": 1.0}


def test_more_gpus_than_exist_are_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match=r"1 CPU and 1 GPU .* 0 GPU; lower"):
        Hardware(actors=2, gpus=1).check([CPU])


@pytest.mark.parametrize(
    ("hardware", "nodes", "fits"),
    [
        (Hardware(actors=2), [CPU], True),
        (Hardware(actors=3), [CPU], False),
        (Hardware(actors=4), [CPU, CPU], True),
        (Hardware(actors=2, cpus=1.5), [CPU], False),  # one node's rest is no use
        (Hardware(actors=4, cpus=0.5, gpus=0.5), [{"CPU": 2.0, "GPU": 2.0}], True),
        (Hardware(actors=5, cpus=0.1, gpus=0.5), [{"CPU": 2.0, "GPU": 2.0}], False),
        (Hardware(actors=5, gpus=1, autoscale=True), [CPU], True),
    ],
)
def test_feasibility_packs_actors_onto_nodes(
    hardware: Hardware, nodes: list[dict[str, float]], fits: bool
) -> None:
    if fits:
        hardware.check(nodes)
    else:
        with pytest.raises(ValueError, match="lower actors, cpus or gpus"):
            hardware.check(nodes)
    assert nodes[0]["CPU"] == 2.0  # the check takes nothing
