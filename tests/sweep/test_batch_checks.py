"""Mistakes in an objective of the user's own are found on a few samples, before a run."""

import re

import numpy as np
import pytest
import torch
from torch import Tensor

from raysafl import Logistic, Objective
from raysafl.data import Dataset, Samples
from raysafl.models import FlatModel
from raysafl.objectives import Metric, Regression, mean_of
from raysafl.sweep.batch_checks import try_objective

X = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
DATASET = Dataset("numbers", *(Samples(X, X[:, 0] * 2 + 1),) * 2, num_classes=0)


class Base(Objective):
    """The squared error, right in every respect."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().mean(1)


class Detached(Base):
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().losses(outputs.detach(), targets)


class Infinite(Base):
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().losses(outputs, targets) / (outputs[:, 0] * 0)


class Steep(Base):
    """The root has no finite slope at zero, where the model starts."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.abs().sqrt().mean(1)


@pytest.mark.parametrize(
    ("objective", "text"),
    [
        (Detached(), "of which torch can take a finite gradient, and for ["),
        (Infinite(), "one finite loss per sample, for outputs [8, 1]"),
        (Steep(), "at the model's initial parameters, it cannot (.detach()"),
    ],
)
def test_wrong_losses_name_the_class_and_the_line(
    objective: Objective, text: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(text)) as error:
        try_objective(objective, FlatModel.on(Logistic(), DATASET, objective), DATASET)
    start = rf"{type(objective).__name__}.losses \(test_batch_checks.py:\d+\) (must|computes) "
    assert re.match(start, str(error.value))


class Measured(Base):
    """Has one metric, which the test gives it."""

    def measures(self, num_outputs: int) -> dict[str, Metric]:
        return {"right": mean_of("size", lambda o, t: t.abs().mean(1)), **METRICS}


METRICS: dict[str, Metric] = {}


def error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().sum(0)


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        (
            Metric("m", lambda o, t: (o - t)[:, 0], lambda s, n: float(s[0])),
            "as many for each batch, and compute the rest in `value`",
        ),
        (
            Metric("m", lambda o, t: (o - t).sum(), lambda s, n: float(s)),
            "must give its sums over a batch as a tensor of shape [n]; it gave a Tensor "
            "of shape []",
        ),
        (Metric("m", error, lambda s, n: s / n), "a list of such with is_list=True"),
    ],
)
def test_a_metric_that_does_not_add_up_is_named(
    metric: Metric, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METRICS, "wrong", metric)
    name = r"the metric 'wrong' of Measured.measures \(test_batch_checks.py:\d+\) "
    with pytest.raises(ValueError, match=f"{name}.*{re.escape(text)}"):
        try_objective(Measured(), FlatModel.on(Logistic(), DATASET, Base()), DATASET)


@pytest.mark.parametrize("objective", [Base(), Measured(), Regression()], ids=repr)
@pytest.mark.parametrize("samples", [1, 2, 30])
def test_a_right_objective_passes_and_leaves_torchs_generator(
    objective: Objective, samples: int
) -> None:
    part = Samples(X[:samples], X[:samples, 0])
    dataset = Dataset("numbers", part, part, 0)
    state = torch.random.get_rng_state()
    try_objective(objective, FlatModel.on(Logistic(), dataset, objective), dataset)
    assert torch.equal(torch.random.get_rng_state(), state)
