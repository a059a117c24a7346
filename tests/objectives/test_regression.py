"""Regression: its losses against their closed form, its metrics against scikit-learn."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk
from torch import Tensor

from raysafl.objectives import Regression


def value(name: str, outputs: Tensor, targets: Tensor) -> float:
    metric = Regression().measures(outputs.shape[1])[name]
    found = metric.value(metric.sums(outputs, targets).double().numpy(), len(targets))
    assert isinstance(found, float)
    return found


@pytest.mark.parametrize("delta", [0.5, 1.0, 4.0])
def test_the_losses_are_those_of_the_docstring(delta: float) -> None:
    errors = np.linspace(-3, 3, 26).reshape(13, 2)
    outputs, targets = torch.tensor(errors + 1), torch.ones(13, 2)
    squares = Regression().losses(outputs, targets)
    np.testing.assert_allclose(squares, (errors**2).mean(1))
    huber = np.where(
        abs(errors) <= delta, errors**2 / 2, delta * (abs(errors) - delta / 2)
    )
    losses = Regression(loss="huber", delta=delta).losses(outputs, targets)
    np.testing.assert_allclose(losses, huber.mean(1))


@given(
    n=st.integers(2, 40),
    k=st.integers(1, 3),
    mean=st.sampled_from([0, -3, 2000]),
    seed=st.integers(0, 99),
)
def test_the_metrics_are_those_of_scikit_learn(
    n: int, k: int, mean: float, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    outputs = mean + torch.randn(n, k, generator=rng)
    targets = mean + torch.randn(n, k, generator=rng)
    pair = targets.double().numpy(), outputs.double().numpy()
    assert value("mae", outputs, targets) == pytest.approx(
        sk.mean_absolute_error(*pair), rel=1e-5
    )
    assert value("rmse", outputs, targets) == pytest.approx(
        sk.mean_squared_error(*pair) ** 0.5, rel=1e-4
    )
    assert value("r2", outputs, targets) == pytest.approx(
        sk.r2_score(*pair), rel=1e-4, abs=1e-4
    )


def test_equal_targets_have_no_coefficient_of_determination() -> None:
    assert np.isnan(value("r2", torch.zeros(3, 1), torch.full((3, 1), 0.1)))


def test_a_delta_without_hubers_loss_is_refused() -> None:
    with pytest.raises(ValueError, match=r'delta=2.0 has no meaning for loss="mse"'):
        Regression(delta=2)
