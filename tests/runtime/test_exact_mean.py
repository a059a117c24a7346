"""Exact sums: the mean of updates whoever sums which, and whatever they are."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raysafl import SERVER, LocalTraining, Run
from raysafl.core import means
from raysafl.core.algorithm import MeanUpdate, Update
from raysafl.core.means import mean_of_rows, relative_weights
from raysafl.core.work import Task
from raysafl.kernels.sums import UNITS, add_row
from raysafl.runtime import exact_mean
from raysafl.runtime.exact_mean import (
    ReducedOnCpu,
    ReducedOnGpu,
    ShareResult,
    combine_shares,
    count_averaged,
)
from raysafl.runtime.in_process import Worker

numbers = st.floats(-8, 8, width=32)


def exact_sum(rows_MP: torch.Tensor) -> torch.Tensor:
    """The sum of float32 rows in units of 2^-40."""
    sum_P = np.zeros(rows_MP.shape[1])
    for row_P in rows_MP.numpy():
        add_row(sum_P, row_P)
    return torch.from_numpy(sum_P)


@given(
    rows=st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=2, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=3),
    seed=st.integers(0, 9),
)
def test_a_sum_is_bitwise_the_same_in_any_order_and_over_any_shares(
    rows: list[list[float]], cuts: list[int], seed: int
) -> None:
    rows_MP = torch.tensor(rows)
    mixed_MP = rows_MP[
        torch.from_numpy(np.random.default_rng(seed).permutation(len(rows)))
    ]
    shares = torch.tensor_split(mixed_MP, sorted(min(cut, len(rows)) for cut in cuts))
    parts = [exact_sum(share) for share in reversed(shares)]
    assert torch.equal(torch.stack(parts).sum(0), exact_sum(rows_MP))


@given(rows=st.lists(numbers, min_size=1, max_size=40))
def test_a_sum_is_that_of_whole_numbers_of_units(rows: list[float]) -> None:
    expected = sum(round(x * 2**40) for x in rows)  # Python's integers, without limit
    assert exact_sum(torch.tensor(rows)[:, None]).tolist() == [float(expected)]


def test_numbers_that_are_not_finite_come_through() -> None:
    rows_MP = torch.tensor(
        [[1.0, math.inf, 1.0, math.inf], [math.nan, 1.0, 3e38, -math.inf]]
    )
    nan, infinite, large, undefined = (exact_sum(rows_MP) / UNITS).tolist()
    assert math.isnan(nan) and math.isnan(undefined)
    assert math.isinf(infinite) and large == pytest.approx(3e38)


AVERAGED = (0, 2)


def tasks(worker: Worker) -> list[Task]:
    """Seven clients of cell 0, the server of cell 1, two clients of cell 2."""
    who = [*((0, i) for i in range(7)), (1, SERVER), (2, 1), (2, 4)]
    w, local = (
        [worker.init(cell) for cell in range(3)],
        LocalTraining(lr=0.1, batch_size=32, epochs=2),
    )
    return [Task(r, i, w[r], local, r, 0, 1, None, 0.0) for r, i in who]


def weighed(asked: list[Task]) -> list[Task]:
    """The same tasks with different weights, and with limits on the updates' norms."""
    changes = [(0.3 + 0.2 * i, (0.5, None)[i % 2]) for i in range(len(asked))]
    return [
        task._replace(weight=weight, max_norm=max_norm)
        for task, (weight, max_norm) in zip(asked, changes, strict=True)
    ]


@pytest.fixture
def worker(tiny: Run) -> Worker:
    cells = tiny.replace(replicates=3).cells
    return Worker(cells, tiny.data.load(), tiny.model)


def test_the_mean_of_a_cells_updates_is_that_of_their_rows(worker: Worker) -> None:
    asked = tasks(worker)
    rows = worker.trainer.train(asked)
    trained = worker.train(asked, AVERAGED)
    assert list(trained) == [0, 1, 2]
    assert isinstance(trained[1], Update)
    assert all(map(torch.equal, trained[1], Update(*(part[7:8] for part in rows))))
    for cell, of in ((0, slice(0, 7)), (2, slice(8, 10))):
        mean = trained[cell]
        assert isinstance(mean, MeanUpdate)
        torch.testing.assert_close(
            mean.delta_P, rows.delta_MP[of].mean(0), rtol=0, atol=1e-6
        )
        for mine, theirs in zip(mean[1:], rows[1:], strict=True):
            assert torch.equal(mine, theirs[of]) and mine.dtype == theirs.dtype


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("averaged", [AVERAGED, ()])
@pytest.mark.parametrize(
    "shares",
    [[[0, 2, 4, 6, 9], [1, 3, 5, 7, 8]], [[7], [8, 9], [*range(7)]]],
    ids=["2", "3"],
)
def test_an_update_does_not_depend_on_the_shares_bitwise(
    worker: Worker, averaged: tuple[int, ...], shares: list[list[int]], weighted: bool
) -> None:
    asked = weighed(tasks(worker)) if weighted else tasks(worker)
    counts = count_averaged(asked, averaged)
    results = [
        worker.train_share([asked[i] for i in share], counts) for share in shares
    ]
    mine, theirs = (
        combine_shares(asked, counts, shares, results),
        worker.train(asked, averaged),
    )
    assert mine.keys() == theirs.keys() == {0, 1, 2}
    for cell, update in mine.items():
        assert type(update) is type(theirs[cell])
        assert isinstance(update, MeanUpdate) == (cell in averaged)
        assert all(map(torch.equal, update, theirs[cell]))


def test_a_mean_that_an_algorithm_computes_has_the_bits_of_the_machines(
    worker: Worker,
) -> None:
    asked = tasks(worker)[:7]
    counts_M = torch.tensor([10, 20, 30, 40, 50, 60, 71])
    rows_MP = worker.trainer.train(asked).delta_MP
    for weight_M in (None, counts_M, torch.full((7,), 3)):
        weights = [1.0] * 7 if weight_M is None else relative_weights(weight_M)
        weighted = [
            task._replace(weight=weight)
            for task, weight in zip(asked, weights, strict=True)
        ]
        mean_P = worker.train(weighted, [0])[0][0]
        assert torch.equal(mean_P, mean_of_rows(rows_MP, weight_M))
    assert torch.equal(mean_P, mean_of_rows(rows_MP))  # equal weights are 1 each
    assert UNITS == means.UNITS


def test_an_update_is_scaled_down_to_its_largest_norm_and_not_up(
    worker: Worker,
) -> None:
    asked = tasks(worker)[:7]
    rows_MP = worker.trainer.train(asked).delta_MP
    norm_M = rows_MP.norm(dim=1)
    limit = float(norm_M.median())
    limited = [task._replace(max_norm=limit) for task in asked]
    clipped_MP = worker.train(limited)[0][0]
    expected_MP = rows_MP * (limit / norm_M).clamp_max(1)[:, None]
    torch.testing.assert_close(clipped_MP, expected_MP)
    short = norm_M < limit
    assert short.any() and torch.equal(clipped_MP[short], rows_MP[short])
    mean_P = worker.train(limited, [0])[0][0]
    torch.testing.assert_close(mean_P, expected_MP.mean(0))


def test_an_update_that_is_not_finite_makes_a_mean_that_is_not(worker: Worker) -> None:
    asked = tasks(worker)
    asked[3] = asked[3]._replace(w_P=torch.full((650,), math.nan))
    bad, row, good = (update[0] for update in worker.train(asked, AVERAGED).values())
    assert bad.isnan().all() and row.isfinite().all() and good.isfinite().all()


def test_vectors_that_an_algorithm_keeps_do_not_keep_those_of_other_cells(
    worker: Worker,
) -> None:
    for averaged in (AVERAGED, ()):
        for delta, *_ in worker.train(tasks(worker), averaged).values():
            assert delta.untyped_storage().nbytes() == delta.nbytes


# Also what a diverging run may send: sums beyond 2^53 units, infinity and NaN.
any_number = st.floats(width=32) | numbers
weights = st.floats(0, 4) | st.just(1.0)


@st.composite
def shares(
    draw: st.DrawFn, limits: st.SearchStrategy[float | None]
) -> tuple[list[Task], list[tuple[list[int], Update]], dict[int, int]]:
    """A share of one to twelve tasks of four cells, of which some are averaged.

    Returns:
        The tasks; the updates in stacks, whose tasks are in any order; and the number
        of tasks of each averaged cell on all actors.
    """
    cells = sorted(draw(st.lists(st.integers(0, 3), min_size=1, max_size=12)))
    local = LocalTraining(lr=0.1, batch_size=8, epochs=1)
    w_P = torch.zeros(3)
    asked = [
        Task(cell, i, w_P, local, 0, 0, 1, None, 0.0, draw(weights), draw(limits))
        for i, cell in enumerate(cells)
    ]
    averaged = draw(st.sets(st.integers(0, 3)))
    counts = {
        cell: count + draw(st.integers(0, 2))
        for cell, count in count_averaged(asked, averaged).items()
    }
    vectors = st.lists(any_number, min_size=3, max_size=3)
    order = draw(st.permutations(range(len(asked))))
    cuts = sorted(draw(st.sets(st.integers(1, 11), max_size=3)))
    stacks = []
    for part in np.split(np.array(order), [cut for cut in cuts if cut < len(order)]):
        delta_TP = torch.tensor([draw(vectors) for _ in part])
        row_T = torch.from_numpy(part)
        update = Update(delta_TP, row_T, row_T / 3, row_T * 8, row_T / 7, row_T / 9)
        stacks.append((part.tolist(), update))
    return asked, stacks, counts


def reduced(
    kind: type[ReducedOnCpu] | type[ReducedOnGpu],
    share: tuple[
        Sequence[Task], Sequence[tuple[Sequence[int], Update]], dict[int, int]
    ],
) -> ShareResult:
    """The result of a share by one of the two ways to compute it."""
    asked, stacks, counts = share
    reducer = kind(asked, counts)
    with np.errstate(over="ignore", invalid="ignore"):
        for positions, update in stacks:
            reducer.add(positions, update)
        return reducer.result()


@given(share=shares(limits=st.none()), part=st.integers(1, 100))
def test_a_gpus_operators_give_the_bits_of_the_compiled_loop(
    share: tuple[list[Task], list[tuple[list[int], Update]], dict[int, int]], part: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # rows of float64 are made in parts of one to four
        patch.setattr(exact_mean, "ADDED_BYTES", part)
        mine = reduced(ReducedOnGpu, share)
    theirs = reduced(ReducedOnCpu, share)
    np.testing.assert_array_equal(mine.columns_5T, theirs.columns_5T, strict=True)
    assert len(mine.rows) == len(theirs.rows)
    for own, other in zip(mine.rows, theirs.rows, strict=True):
        np.testing.assert_array_equal(own, other, strict=True)
    for of_cells, expected in ((mine.means, theirs.means), (mine.sums, theirs.sums)):
        assert list(of_cells) == list(expected)
        for cell, vector in of_cells.items():
            np.testing.assert_array_equal(vector, expected[cell], strict=True)


@given(share=shares(limits=st.none() | st.floats(0.1, 8)))
def test_a_gpus_operators_scale_updates_down_to_their_largest_norms(
    share: tuple[list[Task], list[tuple[list[int], Update]], dict[int, int]],
) -> None:
    """The norm is summed in another order, so the last digit may differ."""
    asked, stacks, counts = share
    tame = [
        (part, u._replace(delta_MP=u.delta_MP.nan_to_num().clamp(-8, 8)))
        for part, u in stacks
    ]
    mine = reduced(ReducedOnGpu, (asked, tame, counts))
    theirs = reduced(ReducedOnCpu, (asked, tame, counts))
    for own, other in zip(mine.rows, theirs.rows, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-6)
    for of_cells, expected in ((mine.means, theirs.means), (mine.sums, theirs.sums)):
        for cell, vector in of_cells.items():
            # relative to the largest term, as terms may cancel
            scale = 1.0 if of_cells is mine.means else UNITS
            np.testing.assert_allclose(vector, expected[cell], atol=1e-5 * scale)


def test_a_gpus_operators_give_the_bits_of_the_compiled_loop_on_real_updates(
    worker: Worker,
) -> None:
    asked = tasks(worker)
    counts = count_averaged(asked, AVERAGED)
    stacks = list(worker.trainer.train_stacks(asked))
    mine = reduced(ReducedOnGpu, (asked, stacks, counts))
    theirs = worker.train_share(asked, counts)
    for own, other in zip(mine.means.values(), theirs.means.values(), strict=True):
        np.testing.assert_array_equal(own, other, strict=True)
    np.testing.assert_array_equal(mine.rows, theirs.rows, strict=True)
    np.testing.assert_array_equal(mine.columns_5T, theirs.columns_5T, strict=True)
