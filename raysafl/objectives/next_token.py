"""Language modelling: predict the next token of a text."""

from typing import ClassVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from raysafl.core.objective import Metric, Objective, Sums, mean_of
from raysafl.core.problem import Dataset
from raysafl.objectives.classification import check_has_classes


class NextToken(Objective):
    """Each sample has one token to predict, or one after each of its L positions.

    A model returns outputs [B, V] for targets [B], or [B, L, V] for targets [B, L],
    where V is the number of different tokens. The loss of a sample is the mean over its
    targets of the cross-entropy -log p, p being the probability (softmax) that the
    outputs give the target.

    The metrics are the accuracy, which is the share of targets with the largest output,
    and the perplexity exp(mean loss).

    Example:
        >>> import torch
        >>> losses = NextToken().losses(torch.zeros(1, 2, 4), torch.tensor([[3, 0]]))
        >>> losses.exp()
        tensor([4.])
    """

    metric: ClassVar[str] = "accuracy"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the losses [B] of outputs [B, V] or [B, L, V]."""
        loss = F.cross_entropy(
            outputs.flatten(0, -2), targets.flatten(), reduction="none"
        )
        return loss if targets.ndim == 1 else loss.view(targets.shape).mean(1)

    def measures(self, num_outputs: int) -> dict[str, Metric]:
        """Return accuracy and perplexity."""
        cross_entropy = mean_of("mean cross-entropy", self.losses)

        def perplexity(sums: Sums, count: int) -> float:
            # A model that diverges has an infinite perplexity.
            with np.errstate(over="ignore"):
                return float(np.exp(sums[0] / count)) if count else float("nan")

        return {
            "accuracy": mean_of(
                "share of tokens predicted correctly", _hits, is_fraction=True
            ),
            "perplexity": Metric(
                "perplexity", cross_entropy.sums, perplexity, higher_is_better=False
            ),
        }

    def check(self, dataset: Dataset) -> None:
        """Check that the targets are tokens.

        Raises:
            ValueError: They are numbers, or have more than one axis per sample.
        """
        check_has_classes(self, dataset)
        if dataset.train.y.ndim > 2:
            raise ValueError(
                f"NextToken is for targets [n] or [n, L]; those of '{dataset.name}' are "
                f"{list(dataset.train.y.shape)}"
            )


def _hits(outputs: Tensor, targets: Tensor) -> Tensor:
    hit = outputs.argmax(-1) == targets
    return hit if hit.ndim == 1 else hit.float().mean(1)
