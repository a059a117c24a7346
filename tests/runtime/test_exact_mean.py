"""Exact sums: the mean of updates whoever sums which, and whatever they are."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np
import pytest
import torch
from helpers.tasks import Task, columns, training
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from raysafl import LocalTraining, Run
from raysafl.algorithms import SERVER
from raysafl.core import means
from raysafl.core.algorithm import MeanUpdate, Update
from raysafl.core.means import mean_of_rows, relative_weights
from raysafl.core.work import Tasks, Training
from raysafl.kernels import sums
from raysafl.kernels.sums import UNITS, add_rows
from raysafl.runtime import exact_mean
from raysafl.runtime.exact_mean import Reduction, ShareResult, combine_shares
from raysafl.runtime.in_process import Worker

numbers = st.floats(-8, 8, width=32)


def exact_sum(rows_MP: torch.Tensor) -> torch.Tensor:
    """The sum of float32 rows in units of 2^-40."""
    sum_P = np.zeros(rows_MP.shape[1])
    add_rows(sum_P[None], rows_MP.numpy(), np.zeros(len(rows_MP), np.int64))
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
    w = [worker.init(cell) for cell in range(3)]
    local = LocalTraining(lr=0.1, batch_size=32, epochs=2)
    return [Task(r, i, w[r], local, r, 0, 1, None, 0.0) for r, i in who]


def requests(asked: list[Task], averaged: Iterable[int] = ()) -> list[Training]:
    """A request for each cell of the tasks; the means of some are asked for."""
    some = set(averaged)
    cells = groupby(asked, lambda task: task.cell)
    return [training(list(own), averaged=cell in some) for cell, own in cells]


def by_cell(
    asked: list[Training], answers: list[Update | MeanUpdate]
) -> dict[int, Update | MeanUpdate]:
    """The answer of each cell, without the axis of cells."""
    return {
        int(one.cells_R[0]): type(own)(*(column[0] for column in own))
        for one, own in zip(asked, answers, strict=True)
    }


def trained(
    worker: Worker, asked: list[Task], averaged: Iterable[int] = ()
) -> dict[int, Update | MeanUpdate]:
    """What becomes of tasks on one worker."""
    of_cells = requests(asked, averaged)
    return by_cell(of_cells, worker.train(of_cells))


def weighed(asked: list[Task]) -> list[Task]:
    """The same tasks with different weights."""
    return [task._replace(weight=0.3 + 0.2 * i) for i, task in enumerate(asked)]


@pytest.fixture
def worker(tiny: Run) -> Worker:
    cells = tiny.replace(replicates=3).cells
    return Worker(cells, tiny.data.load(), tiny.model)


def test_the_mean_of_a_cells_updates_is_that_of_their_rows(worker: Worker) -> None:
    asked = tasks(worker)
    rows = worker.trainer.train(columns(asked))
    found = trained(worker, asked, AVERAGED)
    assert list(found) == [0, 1, 2]
    assert isinstance(found[1], Update)
    assert all(map(torch.equal, found[1], Update(*(part[7:8] for part in rows))))
    for cell, of in ((0, slice(0, 7)), (2, slice(8, 10))):
        mean = found[cell]
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
    of_cells = requests(asked, averaged)
    whole = Tasks.of(of_cells)
    results = [worker.train_share(whole[share].alone()) for share in shares]
    mine = by_cell(of_cells, combine_shares(of_cells, whole, shares, results))
    theirs = trained(worker, asked, averaged)
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
    rows_MP = worker.trainer.train(columns(asked)).delta_MP
    for weight_M in (None, counts_M, torch.full((7,), 3)):
        weights = (
            [1.0] * 7
            if weight_M is None
            else relative_weights(weight_M[None])[0].tolist()
        )
        weighted = [
            task._replace(weight=weight)
            for task, weight in zip(asked, weights, strict=True)
        ]
        mean_P = trained(worker, weighted, [0])[0][0]
        assert torch.equal(mean_P, mean_of_rows(rows_MP, weight_M))
    assert torch.equal(mean_P, mean_of_rows(rows_MP))  # equal weights are 1 each
    assert UNITS == means.UNITS


def test_an_update_that_is_not_finite_makes_a_mean_that_is_not(worker: Worker) -> None:
    asked = tasks(worker)
    asked[3] = asked[3]._replace(w_P=torch.full((650,), math.nan))
    bad, row, good = (update[0] for update in trained(worker, asked, AVERAGED).values())
    assert bad.isnan().all() and row.isfinite().all() and good.isfinite().all()


def test_vectors_that_an_algorithm_keeps_do_not_keep_those_of_other_cells(
    worker: Worker,
) -> None:
    for averaged in (AVERAGED, ()):
        for delta, *_ in trained(worker, tasks(worker), averaged).values():
            assert delta.untyped_storage().nbytes() == delta.nbytes


# Also what a diverging run may send: sums beyond 2^53 units, infinity and NaN.
any_number = st.floats(width=32) | numbers
weights = st.floats(0, 4) | st.just(1.0)


Share = tuple[Tasks, Sequence[tuple[NDArray[np.int64], Update]]]


@st.composite
def shares(draw: st.DrawFn) -> Share:
    """A share of one to twelve tasks of four cells, of which some are averaged.

    Of some cells, further tasks are on other actors.

    Returns:
        The tasks; and the updates in stacks, whose tasks are in any order.
    """
    cells = sorted(draw(st.lists(st.integers(0, 3), min_size=1, max_size=12)))
    local = LocalTraining(lr=0.1, batch_size=8, epochs=1)
    w_P = torch.zeros(3)
    asked = [
        Task(cell, i, w_P, local, 0, 0, 1, None, 0.0, draw(weights))
        for i, cell in enumerate(cells)
    ]
    whole = columns(asked, draw(st.sets(st.integers(0, 3))))
    elsewhere = np.array(draw(st.lists(st.integers(0, 2), min_size=4, max_size=4)))
    count_T = whole.columns["averaged"]
    count_T += np.where(count_T > 0, elsewhere[cells], 0).astype(np.int32)
    vectors = st.lists(any_number, min_size=3, max_size=3)
    order = draw(st.permutations(range(len(asked))))
    cuts = sorted(draw(st.sets(st.integers(1, 11), max_size=3)))
    stacks = []
    for part in np.split(np.array(order), [cut for cut in cuts if cut < len(order)]):
        delta_TP = torch.tensor([draw(vectors) for _ in part])
        row_T = torch.from_numpy(part)
        update = Update(delta_TP, row_T, row_T / 3, row_T * 8, row_T / 7, row_T / 9)
        stacks.append((part, update))
    return whole, stacks


def reduced(share: Share) -> ShareResult:
    asked, stacks = share
    reduction = Reduction(asked)
    with np.errstate(over="ignore", invalid="ignore"):
        for positions, update in stacks:
            reduction.add(positions, update)
        return reduction.result()


def add_as_a_gpu_does(
    sums_CP: NDArray[np.float64], row_TP: NDArray[np.float32], index: NDArray[np.int64]
) -> None:
    """In place of the compiled loop."""
    exact_mean.add_by_operators(*map(torch.from_numpy, (sums_CP, row_TP, index)))


@settings(deadline=None)
@given(share=shares(), part=st.integers(1, 100))
def test_a_gpus_operators_give_the_bits_of_the_compiled_loop(
    share: Share, part: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # rows of float64 are made in parts of one to four
        patch.setattr(exact_mean, "ADDED_BYTES", part)
        patch.setattr(sums, "add_rows", add_as_a_gpu_does)
        mine = reduced(share)
    theirs = reduced(share)
    np.testing.assert_array_equal(mine.sums_CP, theirs.sums_CP, strict=True)
