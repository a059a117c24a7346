"""Local training and evaluation for objectives other than plain classification."""

import functools

import numpy as np
import pytest
import torch
from helpers.evaluation import evaluated
from helpers.tasks import Task, Trainer
from helpers.torch_loop import by_torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raysafl import MLP, LocalTraining, Logistic, Model, Objective
from raysafl.algorithms import Key
from raysafl.data import Dataset, Samples
from raysafl.models import BagOfWords, FlatModel
from raysafl.objectives import (
    Classification,
    Metric,
    MultiLabel,
    NextToken,
    Regression,
    mean_of,
)
from raysafl.training import evaluation
from raysafl.training.engines import choose_engine, make_engine
from raysafl.training.trainer import LocalTrainer

# ragged: several batches, a short one, less than one
SIZES = {0: 40, 1: 23, 2: 7}
HELD = dict(zip(SIZES, np.split(np.arange(70), [40, 63]), strict=True))
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}  # float32, a few dozen steps
EXACT = {"rtol": 0, "atol": 0, "equal_nan": True}
LOCAL = LocalTraining(lr=0.05, batch_size=16, epochs=2, momentum=0.5)


class PerPosition(Model):
    """The logits of the next token after each of L positions."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Embedding(num_classes, 4), nn.Linear(4, num_classes))


class Pinball(Objective):
    """The quantile loss, as a user would write it, with a metric that needs no accuracy."""

    metric = "covered"
    tau: float = 0.8

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        gap = targets - outputs
        return torch.maximum(self.tau * gap, (self.tau - 1) * gap).mean(1)

    def measures(self, num_outputs: int) -> dict[str, Metric]:
        def covered(outputs: Tensor, targets: Tensor) -> Tensor:
            return (targets <= outputs).float().mean(1)

        return {"covered": mean_of("share covered", covered, is_fraction=True)}


WEIGHTED = Classification(class_weights=[1, 3, 0, 0.5], metrics=["f1", "confusion"])
SMOOTH = Classification(label_smoothing=0.2)
ROWS = np.array([3, 1, 20, 31])


def dataset_of(objective: Objective) -> Dataset:
    """Data whose targets fit an objective."""
    rng = np.random.default_rng(0)
    if isinstance(objective, NextToken):
        x = rng.integers(0, 5, (70, 6))
        part = Samples(x, (x + 1) % 5)
        return Dataset("tokens", part, part, 5)
    if isinstance(objective, MultiLabel):
        y = (rng.random((70, 7)) < 0.3).astype(np.float32)
        part = Samples(rng.integers(-1, 13, (70, 9)), y)
        return Dataset("tags", part, part, 0)
    x = rng.normal(size=(70, 3)).astype(np.float32)
    if isinstance(objective, Classification):
        part = Samples(x, rng.integers(0, 4, 70))
        return Dataset("classes", part, part, 4)
    y = (x @ rng.normal(size=(3, 2))).astype(np.float32)
    # one number per sample as [n], two as [n, 2]
    y = y if isinstance(objective, Pinball) else y[:, 0]
    return Dataset("numbers", Samples(x, y), Samples(x[:33], y[:33]), 0)


def recipe_for(objective: Objective) -> Model | None:
    """The model for an objective whose inputs are tokens."""
    words = BagOfWords(words=12)
    known = {NextToken: PerPosition(), MultiLabel: words}
    return known.get(type(objective))


def trainer(objective: Objective, engine: str) -> LocalTrainer:
    dataset = dataset_of(objective)
    recipe = recipe_for(objective) or MLP(hidden=[8])
    return Trainer(
        FlatModel.on(recipe, dataset, objective),
        dataset,
        lambda cell, client: HELD[client],
        engine=engine,
        objective=objective,
    )


def tasks(model: FlatModel) -> list[Task]:
    return [
        Task(r, client, model.init(Key(r)), LOCAL, r, 3, 1, None, 0.0)
        for r in (0, 1)
        for client in SIZES
    ]


OBJECTIVES = [
    Regression(),
    Regression(loss="huber", delta=0.3),
    WEIGHTED,
    SMOOTH,
    NextToken(),
    Pinball(),
    MultiLabel(),
]
every_objective = pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)


def plain_loss(objective: Objective, outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean loss of a batch, by torch's own loss modules where there is one."""
    if objective == WEIGHTED:
        # torch divides by the sum of the weights; ours by the number of samples
        weights = torch.tensor(WEIGHTED.class_weights)
        total = nn.CrossEntropyLoss(weights, reduction="sum")(outputs, targets)
        return total / len(targets)
    if isinstance(objective, Pinball):
        return objective.losses(outputs, targets).mean()
    module: nn.Module = nn.CrossEntropyLoss()
    if objective == SMOOTH:
        module = nn.CrossEntropyLoss(label_smoothing=0.2)
    if isinstance(objective, MultiLabel):
        module = nn.BCEWithLogitsLoss()
    if isinstance(objective, Regression):
        module = nn.MSELoss()
        if objective.loss == "huber":
            module = nn.HuberLoss(delta=objective.delta)
        outputs = outputs[:, 0]
    elif isinstance(objective, NextToken):
        outputs, targets = outputs.flatten(0, 1), targets.flatten()
    found: Tensor = module(outputs, targets)
    return found


@every_objective
@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_local_training_equals_torch_optim_whatever_else_is_in_the_stack(
    objective: Objective, engine: str
) -> None:
    local = trainer(objective, engine)
    asked = tasks(local.model)
    update = local.train(asked)
    loss = functools.partial(plain_loss, objective)
    samples = dataset_of(objective).train
    for i, task in enumerate(asked):
        held = HELD[task.client]
        delta_P, mean = by_torch(local.model, task, samples, held, loss)
        torch.testing.assert_close(update.delta_MP[i], delta_P, **TOLERANCE)
        assert update.loss_M[i] == pytest.approx(mean, rel=1e-4)
        for alone, column in zip(local.train([task]), update, strict=True):
            torch.testing.assert_close(alone[0], column[i], **EXACT)


@every_objective
@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_training_accuracy_is_the_share_of_hits_or_unknown(
    objective: Objective, engine: str
) -> None:
    local = trainer(objective, engine)
    asked = [
        task._replace(local=LocalTraining(lr=1e-9, batch_size=64, epochs=1))
        for task in tasks(local.model)[:3]
    ]
    accuracy_M = local.train(asked).accuracy_M
    for accuracy, task in zip(accuracy_M, asked, strict=True):
        if "accuracy" not in objective.measures(4):
            assert accuracy.isnan()
            continue
        x_B, y_B = local.inputs.at(torch.from_numpy(HELD[task.client]))
        hits = local.model.logits(task.w_P, x_B).argmax(-1) == y_B
        assert accuracy == pytest.approx(hits.double().mean().item(), rel=1e-6)


@every_objective
@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_evaluation_equals_the_metrics_of_one_batch(
    objective: Objective, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(evaluation.EVAL_BATCH, "cpu", 7)
    local = trainer(objective, engine)
    w_RP = torch.stack([local.model.init(Key(r)) for r in range(3)])
    measured = evaluated(local.evaluator, w_RP)
    n = len(local.test.y)
    x_B, y_B = local.test.at(torch.arange(n))
    for r in range(3):
        outputs = local.model.logits(w_RP[r], x_B)
        for name, metric in local.evaluator.measures.metrics.items():
            expected = metric.value(metric.sums(outputs, y_B).double().numpy(), n)
            assert measured[r][name] == pytest.approx(expected, rel=1e-5, abs=1e-6)
        # the other models of the call change nothing
        assert evaluated(local.evaluator, w_RP[r : r + 1]) == [measured[r]]


@every_objective
def test_sums_on_any_samples_are_those_of_the_samples(objective: Objective) -> None:
    local = trainer(objective, "loop")
    w_RP = local.model.init(Key(0))[None]
    sums_on = local.evaluator.sums_on
    some = sums_on(w_RP, local.inputs, ROWS)
    ones = [sums_on(w_RP, local.inputs, slice(i, i + 1)) for i in ROWS.tolist()]
    torch.testing.assert_close(some, torch.stack(ones).sum(0))
    none = sums_on(w_RP, local.inputs, ROWS[:0])
    assert none.shape == some.shape and not none.any()
    assert some.shape == (sum(local.evaluator.measures.sizes.values()), 1)


def test_sums_of_the_compiled_engine_are_those_of_the_loop() -> None:
    model = FlatModel(Logistic(zero_init=False), (3,), 4)
    w_RP = model.init(Key(0))[None]
    loop, fused = (
        Trainer(model, dataset_of(SMOOTH), lambda *_: ROWS, engine=engine)
        for engine in ("loop", "fused")
    )
    for rows in (ROWS, ROWS[:0]):
        expected = loop.evaluator.sums_on(w_RP, loop.inputs, rows)
        found = fused.evaluator.sums_on(w_RP, fused.inputs, rows)
        torch.testing.assert_close(found, expected)


@every_objective
@pytest.mark.parametrize("engine", ["linear", "fused"])
def test_engines_for_plain_cross_entropy_refuse_another_loss(
    objective: Objective, engine: str
) -> None:
    dataset = dataset_of(objective)
    model = FlatModel.on(Logistic(), dataset, objective)
    with pytest.raises(
        ValueError,
        match=rf"engine '{engine}' is for .* under the plain cross-entropy .*not for "
        rf"Logistic under {type(objective).__name__}\(.*give engine='auto'",
    ):
        make_engine(engine, model, objective)


@every_objective
def test_auto_takes_no_engine_for_plain_cross_entropy(objective: Objective) -> None:
    dataset = dataset_of(objective)
    recipe = recipe_for(objective) or Logistic()
    model = FlatModel.on(recipe, dataset, objective)
    local = Trainer(model, dataset, lambda *_: HELD[0], objective=objective)
    assert local.engine_name == "vmap"


def test_metrics_alone_leave_the_compiled_engine() -> None:
    dataset = dataset_of(SMOOTH)
    objective = Classification(metrics=["f1"])
    model = FlatModel.on(Logistic(), dataset, objective)
    x_1B, y_1B = torch.zeros(1, 2, 3), torch.zeros(1, 2, dtype=torch.int64)
    assert choose_engine(model, x_1B, y_1B, objective) == "fused"
    local = Trainer(
        model, dataset, lambda *_: np.arange(70), engine="fused", objective=objective
    )
    (measured,) = evaluated(local.evaluator, model.init(Key(0))[None])
    assert list(measured) == ["accuracy", "f1", "loss"]


def test_sums_of_hits_are_exact_however_they_are_shared() -> None:
    local = trainer(NextToken(), "loop")
    w_1P = local.model.init(Key(1))[None]
    at = list(local.evaluator.measures.metrics).index("accuracy")

    def hits(rows: NDArray[np.int64]) -> float:
        return float(local.evaluator.sums_on(w_1P, local.inputs, rows)[at, 0])

    whole = hits(np.arange(70))
    for parts in (2, 3, 7):
        assert sum(hits(np.arange(i, 70, parts)) for i in range(parts)) == whole
    right = local.model.logits(w_1P[0], local.inputs.x).argmax(-1) == local.inputs.y
    assert whole == pytest.approx(int(right.sum()) / 6)
