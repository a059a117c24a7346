"""Exact sums: the mean of updates whoever sums which, and whatever they are."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raysafl import SERVER, LocalTraining, Run
from raysafl.core.work import Task
from raysafl.kernels.sums import UNITS
from raysafl.runtime import Worker
from raysafl.runtime.exact_mean import averaged, combine, exact_sum

numbers = st.floats(-8, 8, width=32)


@given(
    rows=st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=2, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=3),
    seed=st.integers(0, 9),
)
def test_a_sum_is_bitwise_the_same_in_any_order_and_over_any_shares(
    rows: list[list[float]], cuts: list[int], seed: int
) -> None:
    rows_MP = torch.tensor(rows)
    mixed_MP = rows_MP[torch.from_numpy(np.random.default_rng(seed).permutation(len(rows)))]
    shares = torch.tensor_split(mixed_MP, sorted(min(cut, len(rows)) for cut in cuts))
    parts = [exact_sum(share) for share in reversed(shares)]
    assert torch.equal(torch.stack(parts).sum(0), exact_sum(rows_MP))


@given(rows=st.lists(numbers, min_size=1, max_size=40))
def test_a_sum_is_that_of_whole_numbers_of_units(rows: list[float]) -> None:
    expected = sum(round(x * 2**40) for x in rows)  # Python's integers, without limit
    assert exact_sum(torch.tensor(rows)[:, None]).tolist() == [float(expected)]


def test_numbers_that_are_not_finite_come_through() -> None:
    rows_MP = torch.tensor([[1.0, math.inf, 1.0, math.inf], [math.nan, 1.0, 3e38, -math.inf]])
    nan, infinite, large, undefined = (exact_sum(rows_MP) / UNITS).tolist()
    assert math.isnan(nan) and math.isnan(undefined)
    assert math.isinf(infinite) and large == pytest.approx(3e38)


def tasks(worker: Worker, mean: bool) -> list[Task]:
    """Seven clients of replicate 0, the server of replicate 1, two clients of replicate 2."""
    who = [*((0, i) for i in range(7)), (1, SERVER), (2, 1), (2, 4)]
    w, sgd = worker.init(), LocalTraining(lr=0.1, batch_size=32, epochs=2)
    return [Task(r, i, w[r], sgd, r, 0, 1, None, 0.0, mean and i != SERVER) for r, i in who]


@pytest.fixture
def worker(tiny: Run) -> Worker:
    return Worker(tiny.data, tiny.data.load(), tiny.model, [0, 1, 2])


def test_the_mean_of_updates_is_that_of_their_rows_and_stands_in_their_place(
    worker: Worker,
) -> None:
    rows, means = worker.train(tasks(worker, False)), worker.train(tasks(worker, True))
    expected = [rows.delta_MP[:7].mean(0), rows.delta_MP[7], rows.delta_MP[8:].mean(0)]
    torch.testing.assert_close(means.delta_MP, torch.stack(expected), rtol=0, atol=1e-6)
    assert torch.equal(means.delta_MP[1], rows.delta_MP[7])
    for mine, theirs in zip(means[1:], rows[1:], strict=True):
        assert torch.equal(mine, theirs) and mine.dtype == theirs.dtype


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize(
    "shares", [[[0, 2, 4, 6, 9], [1, 3, 5, 7, 8]], [[7], [9, 8], [*range(7)]]], ids=["2", "3"]
)
def test_an_update_does_not_depend_on_the_shares_bitwise(
    worker: Worker, mean: bool, shares: list[list[int]]
) -> None:
    asked = tasks(worker, mean)
    counts = averaged(asked)
    replies = [worker.reply([asked[i] for i in share], counts) for share in shares]
    for mine, theirs in zip(combine(asked, shares, replies), worker.train(asked), strict=True):
        assert torch.equal(mine, theirs)


def test_an_update_that_is_not_finite_makes_a_mean_that_is_not(worker: Worker) -> None:
    asked = tasks(worker, True)
    asked[3] = asked[3]._replace(w_P=torch.full((650,), math.nan))
    update = worker.train(asked)
    assert update.delta_MP[0].isnan().all() and update.delta_MP[1:].isfinite().all()
