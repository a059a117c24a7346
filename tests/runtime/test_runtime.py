"""Client actors against the in-process reference, on a real local Ray."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import ray
import torch
from helpers.actors import kill_actor
from hypothesis import given
from hypothesis import strategies as st

from raysafl import (
    CNN,
    MLP,
    SAFARI,
    FedAvg,
    Hardware,
    LocalTraining,
    Run,
    Snapshot,
    Uniform,
)
from raysafl.algorithms import AFL, SCAFFOLD, Compressed, Quantised
from raysafl.cluster.actors import Actors
from raysafl.core.algorithm import Round, State, Train
from raysafl.core.problem import EVERYONE
from raysafl.core.randomness import Key
from raysafl.core.work import Evaluation, Rows
from raysafl.runtime.client_actor import LARGE, PackSetup
from raysafl.runtime.in_process import Worker
from raysafl.runtime.on_actors import (
    OnActors,
    assign_cells,
    assign_longest_first,
    host_pack,
    start_actors,
)
from raysafl.simulation.simulation import Simulation

CPU = {"CPU": 2.0}
# a mean and a server's row; rows and offsets; rows and a start of each client's own
# and means of weighted, of clipped and of compressed updates
ALGORITHMS = (
    SAFARI(client_prob=0.6),
    SCAFFOLD(),
    AFL(max_delay=2),
    FedAvg(weighted=True),
    Compressed(compression=Quantised(bits=4)),
)

ACCEPTANCE = pytest.mark.acceptance


class Doubled(FedAvg):
    """FedAvg in double precision, which comes of weighing by the losses, say."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Parameters and offsets in float64."""
        w_P = state.w_P.double()
        offset_MP = 0.01 * torch.ones(len(ids), w_P.numel(), dtype=torch.float64)
        update = yield Train(w_P, ids, offset_MP=offset_MP)
        return State(w_P - update.delta_MP.double().mean(0))


@contextmanager
def started(actors: int) -> Iterator[Actors]:
    """So many client actors."""
    pool = start_actors(Hardware(actors=actors, cpus=0.25))
    try:
        yield pool
    finally:
        pool.kill()


@pytest.fixture(scope="module")
def two(ray_local: None) -> Iterator[Actors]:
    """Two client actors, which have one run after the other, as those of a trial."""
    with started(2) as pool:
        yield pool


def host(actors: Actors, run: Run) -> OnActors:
    """Give a run to client actors."""
    ref = ray.put(run.data.load())
    return host_pack(actors, PackSetup(run.cells, ref, run.model, "auto"))[0]


def play(run: Run, work: OnActors | Worker) -> tuple[list[float], list[torch.Tensor]]:
    sim, records = Simulation(run, work), []
    while not sim.done:
        records += sim.step()
    return [record.test_accuracy for record in records], [
        rep.state.w_P for rep in sim.replicates
    ]


class InPlace(FedAvg):
    """FedAvg that changes its parameters in place once they were sent."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """The same tensor in every round."""
        update = yield Train(state.w_P, ids)
        state.w_P.sub_(update.delta_MP.mean(0))
        return state


@pytest.mark.acceptance
@pytest.mark.usefixtures("ray_local")
@pytest.mark.parametrize("actors", [1, 3])
def test_any_number_of_actors_gives_the_result_of_one_process_bitwise(
    tiny: Run, actors: int
) -> None:
    run = tiny.replace(replicates=5)
    reference = Worker(run.cells, run.data.load(), run.model)
    with started(actors) as pool:
        work = host(pool, run)
        for algorithm in (*ALGORITHMS, Doubled(), InPlace()):
            accuracies, w = play(run.replace(algorithm=algorithm), work)
            expected, w_expected = play(run.replace(algorithm=algorithm), reference)
            assert accuracies == expected
            assert all(torch.equal(a, b) for a, b in zip(w, w_expected, strict=True))


@pytest.mark.acceptance
def test_rounds_that_are_lost_with_their_actors_are_made_again(
    tiny: Run, two: Actors
) -> None:
    run = tiny.replace(rounds=3, algorithm=InPlace())
    expected, _ = play(run, Worker(run.cells, run.data.load(), run.model))
    sim, records = Simulation(run, host(two, run)), []
    while not sim.done:
        for actor in two.handles if sim.round == 2 else ():
            kill_actor(actor)
        records += sim.step()
    assert [record.test_accuracy for record in records] == expected


@pytest.mark.acceptance
def test_large_parameters_go_to_two_actors_and_back_unchanged(
    tiny: Run, two: Actors
) -> None:
    run = tiny.replace(
        model=MLP(hidden=[512]), algorithm=FedAvg(), replicates=1, rounds=2
    )
    reference = Worker(run.cells, run.data.load(), run.model)
    assert reference.init(0).nbytes > LARGE
    accuracies, (w_P,) = play(run, host(two, run))
    expected, (w_expected_P,) = play(run, reference)
    assert accuracies == expected
    assert torch.equal(w_P, w_expected_P)


@pytest.mark.acceptance
def test_convolutions_on_two_actors_equal_one_process(tiny: Run, two: Actors) -> None:
    small = {"rounds": 2, "local": LocalTraining(lr=0.1, batch_size=32, steps=2)}
    run = tiny.replace(model=CNN(channels=[4], hidden=8), **small)
    reference = Worker(run.cells, run.data.load(), run.model)
    accuracies, w = play(run, host(two, run))
    expected, w_expected = play(run, reference)
    assert accuracies == expected
    assert all(map(torch.equal, w, w_expected))


@pytest.mark.acceptance
def test_two_actors_count_the_training_accuracy_of_one_process(
    tiny: Run, two: Actors
) -> None:
    run = tiny.replace(
        participation=Snapshot(base=Uniform(m=3), uniform=Uniform(m=3), adapt=3.0)
    )
    reference = Worker(run.cells, run.data.load(), run.model)
    ids = {0: (EVERYONE,), 1: (2, 7)}
    w = {cell: reference.init(cell) for cell in ids}
    work = host(two, run)
    over = [[Rows("train", clients)] for clients in ids.values()]
    asked = [Evaluation(np.array(list(ids)), torch.stack(list(w.values())), over)]
    (theirs,) = reference.sums(asked)
    (ours,) = work.sums(asked)
    for mine, expected in zip(ours, theirs, strict=True):
        for rows, (size_G, sums_Gn) in mine.items():
            assert size_G == expected[rows].size_G
            assert (sums_Gn == expected[rows].sums_Gn).all()
    for accuracy in ("cohort", "clients"):
        measured = run.replace({"participation.accuracy": accuracy})
        assert play(measured, work)[0] == play(measured, reference)[0]


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
    assert assign_cells([0, 1, 2, 3] * 2, [5] * 8, 2) == [
        [0, 2, 4, 6],
        [1, 3, 5, 7],
    ]


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
    with pytest.raises(
        ValueError, match=r"2 client actor\(s\) of 1 CPU and 1 GPU .* 0 GPU; lower"
    ):
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
