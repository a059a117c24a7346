"""A request about many cells is answered as if each of them had asked alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from raysafl import FedAvg, Federation, IidServer, LocalTraining, Logistic, Run, Uniform
from raysafl.core.algorithm import MeanUpdate, Update
from raysafl.core.work import CLASSES, TEST, Evaluation, Rows, Training
from raysafl.data import Overlapping
from raysafl.runtime.in_process import Worker
from raysafl.training import ContinuedTraining

SGD = LocalTraining(lr=0.1, batch_size=32, epochs=1)
DECAYING = LocalTraining(lr=0.05, batch_size=10, steps=9, weight_decay=0.01)
KEPT = ContinuedTraining(lr=0.01, batch_size=16, steps=2, optimizer="adam")
R = 4
Answer = Update | MeanUpdate


@pytest.fixture(scope="module")
def worker() -> Worker:
    """Cells of stored splits, and one whose clients' samples are computed."""
    run = Run(
        data=Federation(server=IidServer(n0=50)),
        model=Logistic(),
        algorithm=FedAvg(),
        participation=Uniform(m=3),
        local=SGD,
        rounds=1,
        replicates=R - 1,
    )
    many = run.data.replace(partition=Overlapping(samples=40), clients=30, server=None)
    cells = [*run.cells, *run.replace(data=many, replicates=1).cells]
    return Worker(cells, run.data.load(), run.model)


def request(worker: Worker, clients: int, **changes: Any) -> Training:
    """A request about all cells."""
    rng = np.random.default_rng(0)
    ids = [np.sort(rng.choice(10, clients, replace=False)) for _ in range(R)]
    plain = Training(
        cells_R=np.arange(R),
        seeds_R=np.arange(5, 5 + R).astype(np.uint64),
        round=3,
        call=1,
        clients_RM=np.stack(ids),
        w=torch.stack([worker.init(cell) for cell in range(R)]) + 0.01,
        locals=[SGD],
    )
    return plain._replace(**changes)


def alone(asked: Training) -> list[Training]:
    """The same request, from each cell by itself."""
    of_all = ("round", "call", "averaged", "locals")
    columns: dict[str, Any] = {
        name: value
        for name, value in asked._asdict().items()
        if name not in of_all and value is not None
    }
    return [
        asked._replace(**{name: own[r : r + 1] for name, own in columns.items()})
        for r in range(R)
    ]


def assert_same(whole: Answer, parts: Sequence[Answer]) -> None:
    for name, column in zip(whole._fields, whole, strict=True):
        others = torch.cat([getattr(part, name) for part in parts])
        assert column.dtype == others.dtype and torch.equal(column, others), name


def some(*shape: int) -> torch.Tensor:
    """Small vectors of as many numbers as the model has."""
    rng = torch.Generator().manual_seed(1)
    return 0.01 * torch.randn(*shape, 650, generator=rng)


REQUESTS: dict[str, tuple[int, dict[str, Any]]] = {
    "rows": (3, {}),
    "mean": (5, {"averaged": True}),
    "mean of one": (1, {"averaged": True}),
    "starts": (2, {"w": some(R, 2)}),
    "terms": (3, {"offset_RMP": some(R, 3), "prox_R": np.array([0.3, 0.0, 0.1, 1.0])}),
    "weights": (2, {"averaged": True, "weight_RM": np.array([[0.5, 1.5]] * R)}),
    "locals": (
        4,
        {
            "averaged": True,
            "locals": [SGD, DECAYING],
            "local_R": np.array([0, 1, 0, 1]),
        },
    ),
    "kept": (
        2,
        {
            "locals": [KEPT],
            "before_RM": np.arange(2 * R).reshape(R, 2),
            "moments_RMVP": some(R, 2, 2).abs(),
        },
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_cells_that_ask_together_get_what_each_gets_alone_bitwise(
    worker: Worker, name: str
) -> None:
    clients, changes = REQUESTS[name]
    asked = request(worker, clients, **changes)
    (whole,) = worker.train([asked])
    parts = [answer for one in alone(asked) for answer in worker.train([one])]
    assert_same(whole, parts)
    assert_same(whole, worker.train(alone(asked)))


def test_what_an_algorithm_does_to_its_answer_changes_no_other(worker: Worker) -> None:
    for averaged in (False, True):
        asked = alone(request(worker, 3, averaged=averaged))
        expected = worker.train(asked)
        first, *others = worker.train(asked)
        for column in first:
            column.fill_(7)
        for mine, theirs in zip(others, expected[1:], strict=True):
            assert_same(mine, [theirs])


def test_models_that_are_evaluated_together_have_the_sums_of_each_alone(
    worker: Worker,
) -> None:
    shared = [TEST, CLASSES, Rows("train", (1, 3))]
    own = [[TEST, Rows("train", (r,))] for r in range(R)]
    w_RP = some(R)
    asked = [Evaluation(np.arange(R), w_RP, over) for over in ([shared] * R, own)]
    for one, sums_R in zip(asked, worker.sums(asked), strict=True):
        for r, sums in enumerate(sums_R):
            model = slice(r, r + 1)
            single = Evaluation(one.cells_R[model], w_RP[model], one.over[model])
            ((expected,),) = worker.sums([single])
            assert list(sums) == list(expected) == list(one.over[r])
            for rows in sums:
                for mine, theirs in zip(sums[rows], expected[rows], strict=True):
                    np.testing.assert_array_equal(mine, theirs)


def test_a_client_of_a_group_without_samples_is_named(worker: Worker) -> None:
    asked = request(worker, 2)
    asked.clients_RM[R - 1] = (-1, 4)
    with pytest.raises(ValueError, match="the server holds none"):
        worker.train([asked])
