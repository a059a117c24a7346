"""Evaluation of models on the test set, and on clients' training samples.

The test set is evaluated in spans of fixed length. Whichever actor evaluates a span,
its sums are the same to the last bit, and they are added in the order of the spans. So
accuracies and losses do not depend on how many actors there are.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.training.engines import Engine
from raysafl.training.inputs import Inputs
from raysafl.training.linear import as_fused

# Test samples in a span. It is the same on every machine, since sums over spans of
# another length would be rounded differently.
SPAN = 2500

# Samples in one forward pass: few enough for a core's cache, or enough to fill a GPU.
EVAL_BATCH = {"cpu": 250, "cuda": 2500}


def span_starts(num_samples: int) -> list[int]:
    """Return the position in the test set at which each span begins."""
    return list(range(0, num_samples, SPAN))


def scores_of_sums(sums_S2R: Sequence[Tensor], num_samples: int) -> Tensor:
    """Compute accuracies and mean losses from the sums over all spans.

    Args:
        sums_S2R: for each span, in order, what `Evaluator.span_sums` returned, [2, R].
        num_samples: the number of samples in the test set.

    Returns:
        [2, R] float64: test accuracies in [0, 1], and mean cross-entropies in nats.
    """
    total_2R = torch.zeros_like(sums_S2R[0])
    for sums_2R in sums_S2R:
        total_2R += sums_2R
    return total_2R / num_samples


class Evaluator:
    """Evaluates models with one engine on one device.

    Args:
        engine: computes the logits.
        train: the training samples of all clients.
        test: the test set.
    """

    def __init__(self, engine: Engine, train: Inputs, test: Inputs) -> None:
        self.engine = engine
        self.train = train
        self.test = test
        self.device = test.x.device
        self._fused = as_fused(engine, train)

    def evaluate(self, w_RP: Tensor) -> tuple[Tensor, Tensor]:
        """Compute each model's accuracy and mean loss on the whole test set.

        Args:
            w_RP: [R, P] parameters, one model a row.

        Returns:
            Accuracies in [0, 1] and mean cross-entropies in nats, each [R] float64.
        """
        num_samples = len(self.test.y)
        sums_S2R = [self.span_sums(w_RP, start) for start in span_starts(num_samples)]
        accuracy_R, loss_R = scores_of_sums(sums_S2R, num_samples)
        return accuracy_R, loss_R

    @torch.no_grad()
    def span_sums(self, w_RP: Tensor, start: int) -> Tensor:
        """Count correct classifications and sum the losses over a span of the test set.

        Args:
            w_RP: [R, P] parameters, one model a row.
            start: where the span begins, one of `span_starts`.

        Returns:
            [2, R] float64 on the CPU: numbers of samples classified correctly, and sums
            of cross-entropies.
        """
        stop = min(start + SPAN, len(self.test.y))
        if self._fused:
            return self._fused.score(w_RP, self.test.stored(start, stop))

        w_RP = w_RP.to(self.device)
        sums_2R = torch.zeros(2, len(w_RP), dtype=torch.float64, device=self.device)
        batch_size = EVAL_BATCH[self.device.type]
        # The memory that is needed must not grow with the number of models.
        stack = self.engine.max_stack(batch_size)
        for at in range(start, stop, batch_size):
            x_B, y_B = self.test.span(at, min(at + batch_size, stop))
            for first in range(0, len(w_RP), stack):
                some = slice(first, first + stack)
                sums_2R[:, some] += self._sums(w_RP[some], x_B, y_B)
        return sums_2R.cpu()

    def _sums(self, w_RP: Tensor, x_B: Tensor, y_B: Tensor) -> Tensor:
        """Compute what `span_sums` returns for one batch and a few models, [2, R]."""
        logits_RBC = self.engine.logits(w_RP, x_B)
        correct_R = (logits_RBC.max(-1).indices == y_B).sum(-1)

        # cross-entropy = logsumexp(logits) - the logit of the sample's own class
        y_RB1 = y_B.expand(len(w_RP), -1).unsqueeze(-1)
        own_RB = logits_RBC.gather(-1, y_RB1).squeeze(-1)
        loss_RB = logits_RBC.logsumexp(-1) - own_RB
        return torch.stack([correct_R, loss_RB.sum(-1, dtype=torch.float64)])

    @torch.no_grad()
    def count_correct(self, w_P: Tensor, indices: NDArray[np.int64]) -> int:
        """Count the training samples (by index) that a model classifies correctly."""
        w_RP = w_P[None].to(self.device)
        batches = torch.from_numpy(indices).to(self.device)
        correct = 0
        for index_B in batches.split(EVAL_BATCH[self.device.type]):
            x_B, y_B = self.train.at(index_B)
            prediction_B = self.engine.logits(w_RP, x_B)[0].argmax(-1)
            correct += int((prediction_B == y_B).sum())
        return correct
