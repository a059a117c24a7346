"""Evaluation of models: sums over samples of everything that an objective measures."""

import logging
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.component import method_name
from raysafl.core.objective import Measures, Metric, Objective, measures_of
from raysafl.core.text import in_brief
from raysafl.core.work import TooLargeError
from raysafl.models import FlatModel
from raysafl.objectives import is_plain
from raysafl.training.device import device_name, upload, within_memory
from raysafl.training.engines import Engine
from raysafl.training.inputs import Inputs, as_tensor
from raysafl.training.linear import as_fused

LOG = logging.getLogger(__name__)

# Samples in one forward pass: few enough for a core's cache, or enough to fill a GPU.
EVAL_BATCH = {"cpu": 250, "cuda": 2500}


def measures_on(objective: Objective, model: FlatModel, samples: Inputs) -> Measures:
    """Find out how many sums an objective needs, from a model's first output.

    Args:
        objective: the objective.
        model: a model that was made for it.
        samples: at least one sample, on the model's device.
    """
    metrics = measures_of(objective, model.num_outputs)
    if is_plain(objective, model.num_outputs):
        return Measures(metrics, dict.fromkeys(metrics, 1))
    with torch.no_grad():
        x_B, y_B = samples.span(0, 1)
        out_B = model.forward(dict(model.module.named_parameters()), x_B)
        sizes = {
            name: len(metric_sums(objective, name, metric, out_B, y_B))
            for name, metric in metrics.items()
        }
    return Measures(metrics, sizes)


def metric_sums(
    objective: Objective, name: str, metric: Metric, out_B: Tensor, y_B: Tensor
) -> Tensor:
    """Return the sums [n] of a metric over a batch, as float64.

    Raises:
        ValueError: the metric gives no vector of sums.
    """
    sums_n = metric.sums(out_B, y_B)
    if not isinstance(sums_n, Tensor) or sums_n.ndim != 1 or not len(sums_n):
        raise ValueError(
            f"the metric {name!r} of {method_name(objective, Objective, 'measures')} "
            "must give its sums over a batch as a tensor of shape [n]; it gave "
            f"{in_brief(sums_n)}"
        )
    return sums_n.double()


class Evaluator:
    """Evaluates models with one engine on one device.

    Args:
        engine: computes the outputs.
        train: the training samples of all clients.
        test: the test set.
        most_models: the maximum number of models in one forward pass; None: as many as
            the engine stacks. If memory runs out, it becomes half the number that did
            not fit.
        make_room: lets go of what else is on the device and can be made again.
    """

    def __init__(
        self,
        engine: Engine,
        train: Inputs,
        test: Inputs,
        most_models: int | None = None,
        make_room: Callable[[], None] = lambda: None,
    ) -> None:
        self.engine = engine
        self._make_room = make_room
        self.train = train
        self.test = test
        self.device = test.x.device
        self.objective = engine.objective
        self.most_models = most_models or engine.max_stack(EVAL_BATCH["cpu"])
        self.measures = measures_on(self.objective, engine.model, test)
        self._is_plain = is_plain(self.objective, engine.model.num_outputs)
        self._fused = as_fused(engine, train) if self._is_plain else None

    @torch.no_grad()
    def sums_on(
        self, w_RP: Tensor, samples: Inputs, rows: slice | NDArray[np.int64]
    ) -> Tensor:
        """Sum whatever is measured over any samples.

        The sums depend on the samples and their order, and not on the other models.

        Args:
            w_RP: [R, P] parameters, one model a row.
            samples: the training samples or the test set.
            rows: which of the samples: a slice with start and stop, or positions; the
                sums over none are 0.

        Returns:
            [N, R] float64 on the device, not waited for: for each of `measures` its
            sums, in order.
        """
        if not isinstance(rows, slice) and not len(rows):
            rows = slice(0, 0)
        if self._fused:
            some = rows if isinstance(rows, slice) else as_tensor(rows)
            return self._fused.score(w_RP, samples.stored(some))

        # The memory that is needed must not grow with the number of models.
        done = within_memory(
            lambda w_rP: self._sums_of_few(upload(w_rP, self.device), samples, rows),
            [w_RP],
            lambda w_rP: w_rP.split(self.most_models),
            self._lower_most_models,
            self._make_room,
        )
        return torch.cat([sums_Nr for _, sums_Nr in done], 1)

    def _sums_of_few(
        self, w_RP: Tensor, samples: Inputs, rows: slice | NDArray[np.int64]
    ) -> Tensor:
        """Compute the `sums_on` of models that are together in one forward pass."""
        num_sums = sum(self.measures.sizes.values())
        sums_NR = torch.zeros(
            num_sums, len(w_RP), dtype=torch.float64, device=self.device
        )
        for x_B, y_B in self._batches(samples, rows):
            sums_NR += self._sums(self.engine.logits(w_RP, x_B), y_B)
        return sums_NR

    def _lower_most_models(self, w_RP: Tensor, reason: str) -> None:
        """Evaluate at most half as many models together from now on.

        Raises:
            TooLargeError: one model alone needs more memory than there is.
        """
        half = len(w_RP) // 2
        if not half:
            raise TooLargeError(
                "out of memory: the outputs of one model do not fit into the memory of "
                f"{device_name(self.device)}; give it fewer processes, or take a GPU with "
                f"more memory (torch says: {reason})"
            )
        self.most_models = half
        LOG.warning("out of memory: at most %d models are evaluated together", half)

    def _batches(
        self, samples: Inputs, rows: slice | NDArray[np.int64]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets of some samples, a batch at a time."""
        batch_size = EVAL_BATCH[self.device.type]
        if isinstance(rows, slice):
            for at in range(rows.start, rows.stop, batch_size):
                yield samples.span(at, min(at + batch_size, rows.stop))
        else:
            for index_B in upload(as_tensor(rows), self.device).split(batch_size):
                yield samples.at(index_B)

    def _sums(self, outputs_RB: Tensor, y_B: Tensor) -> Tensor:
        """Compute what `sums_on` returns for one batch and a few models, [N, R]."""
        if self._is_plain:
            return _plain_sums(outputs_RB, y_B)

        # Model by model, so that the rounding does not depend on how many they are.
        def sums_of(out_B: Tensor) -> Tensor:
            known = self.measures.metrics.items()
            return torch.cat(
                [metric_sums(self.objective, *one, out_B, y_B) for one in known]
            )

        return torch.stack([sums_of(out_B) for out_B in outputs_RB], 1)


def _plain_sums(logits_RBC: Tensor, y_B: Tensor) -> Tensor:
    """Count correct classifications and sum the cross-entropies of each model, [2, R]."""
    correct_R = (logits_RBC.max(-1).indices == y_B).sum(-1)

    # cross-entropy = logsumexp(logits) - the logit of the sample's own class
    y_RB1 = y_B.expand(len(logits_RBC), -1).unsqueeze(-1)
    own_RB = logits_RBC.gather(-1, y_RB1).squeeze(-1)
    loss_RB = logits_RBC.logsumexp(-1) - own_RB
    return torch.stack([correct_R, loss_RB.sum(-1, dtype=torch.float64)])
