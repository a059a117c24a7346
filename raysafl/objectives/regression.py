"""Regression: squared or Huber loss, and the metrics of predicted numbers."""

from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from raysafl.core.objective import Metric, Objective, Sums, mean_of
from raysafl.core.problem import Dataset

# Targets whose variance is below so much of their mean square are taken for equal.
EQUAL = 1e-12


class Regression(Objective):
    """Each sample has K numbers to predict; the loss is the squared error, or Huber's.

    The loss of a sample is the mean over its K targets of l(e), where e is the output
    minus the target:

        "mse":    l(e) = e^2,
        "huber":  l(e) = e^2 / 2 if |e| <= delta, else delta (|e| - delta / 2).

    The metrics, of all samples and targets:

    - `mae`: the mean of |e|;
    - `rmse`: the square root of the mean of e^2;
    - `r2`: 1 - sum e^2 / sum (y - mean of y)^2, the mean over the K targets, as
      scikit-learn's `r2_score` has it; NaN if the samples have equal targets.

    Source of "huber": P. J. Huber 1964 (docs/papers.md#huber).

    Raises:
        ValueError: `delta` is given for the squared loss, which has none.

    Example:
        >>> import torch
        >>> outputs = torch.tensor([[0.0], [3.0]])
        >>> Regression().losses(outputs, torch.zeros(2, 1))
        tensor([0., 9.])
        >>> Regression(loss="huber").losses(outputs, torch.zeros(2, 1))
        tensor([0.0000, 2.5000])
    """

    metric: ClassVar[str] = "mae"
    loss: Literal["mse", "huber"] = Field(
        default="mse", description="The loss: the squared error, or Huber's."
    )
    delta: float = Field(
        default=1.0,
        gt=0,
        description="Size of an error above which Huber's loss grows linearly.",
    )

    @model_validator(mode="after")
    def _fits(self) -> "Regression":
        if self.loss == "mse" and self.delta != 1:
            raise ValueError(
                f'delta={self.delta} has no meaning for loss="mse"; leave it out, or '
                'take loss="huber"'
            )
        return self

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the losses [B] of outputs and targets [B, K]."""
        if self.loss == "huber":
            loss_BK = F.huber_loss(outputs, targets, reduction="none", delta=self.delta)
        else:
            loss_BK = F.mse_loss(outputs, targets, reduction="none")
        return loss_BK.mean(1)

    def measures(self, num_outputs: int) -> dict[str, Metric]:
        """Return mean absolute error, root mean square error and R^2."""
        return {
            "mae": mean_of("mean absolute error", _absolute, higher_is_better=False),
            "rmse": Metric(
                "root mean square error", _squares, _root, higher_is_better=False
            ),
            "r2": Metric("coefficient of determination R^2", _moments, _r2),
        }

    def check(self, dataset: Dataset) -> None:
        """Check that the targets are numbers.

        Raises:
            ValueError: They are classes.
        """
        if dataset.num_classes:
            raise ValueError(
                f"Regression is for numbers, but the targets of '{dataset.name}' are "
                f"{dataset.num_classes} classes; give the dataset y as float32 and "
                "num_classes=0, or the run objective=Classification()"
            )


def _absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().mean(1)


def _squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of squared errors of each target, [K]."""
    return (outputs - targets).double().square().sum(0)


def _root(sums: Sums, count: int) -> float:
    return float(np.sqrt(sums.mean() / count)) if count else float("nan")


def _moments(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return per target the sums of e^2, y and y^2, [3 * K]."""
    y_BK = targets.double()
    return torch.cat([_squares(outputs, targets), y_BK.sum(0), y_BK.square().sum(0)])


def _r2(sums: Sums, count: int) -> float:
    errors_K, sum_K, squares_K = sums.reshape(3, -1)
    if not count:
        return float("nan")
    spread_K = squares_K - sum_K**2 / count
    if (spread_K <= EQUAL * squares_K).any():
        return float("nan")
    return float((1 - errors_K / spread_K).mean())
