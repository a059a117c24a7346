"""Evaluation of models: everything that an objective measures, from sums over samples.

The test set is evaluated in spans of fixed length. Whichever actor evaluates a span,
its sums are the same to the last bit, and they are added in the order of the spans. So
metrics and losses do not depend on how many actors there are.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.objective import Metric, Objective, Value, hits_of, measures_of
from raysafl.core.users_parts import in_brief, method_name
from raysafl.models import FlatModel
from raysafl.objectives import PLAIN, is_plain
from raysafl.training.device import first_line, is_out_of_memory, upload, with_room
from raysafl.training.engines import Engine
from raysafl.training.inputs import Inputs, as_tensor
from raysafl.training.linear import as_fused

LOG = logging.getLogger(__name__)

# Test samples in a span. It is the same on every machine, since sums over spans of
# another length would be rounded differently.
SPAN = 2500

# Samples in one forward pass: few enough for a core's cache, or enough to fill a GPU.
EVAL_BATCH = {"cpu": 250, "cuda": 2500}

# Units in which shares of a sample's tokens are counted. Up to 2^23 samples, float64 adds
# such numbers without rounding.
UNITS = 2.0**30


def span_starts(num_samples: int) -> list[int]:
    """Return the position in the test set at which each span begins."""
    return list(range(0, num_samples, SPAN))


@dataclass(frozen=True)
class Measures:
    """Everything that is measured of a model, and how many sums each needs.

    Args:
        metrics: the objective's metrics by name, then the mean loss as `loss`.
        sizes: the number of sums of each.
    """

    metrics: Mapping[str, Metric]
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, objective: Objective, model: FlatModel, samples: Inputs) -> "Measures":
        """Find out how many sums an objective needs, from a model's first output.

        Args:
            objective: the objective.
            model: a model that was made for it.
            samples: at least one sample, on the model's device.
        """
        metrics = measures_of(objective, model.num_outputs)
        if is_plain(objective, model.num_outputs):
            return cls(metrics, dict.fromkeys(metrics, 1))
        with torch.no_grad():
            x_B, y_B = samples.span(0, 1)
            out_B = model.forward(dict(model.module.named_parameters()), x_B)
            sums = {
                name: metric_sums(objective, name, metric, out_B, y_B)
                for name, metric in metrics.items()
            }
        return cls(metrics, {name: len(sums_n) for name, sums_n in sums.items()})

    def values(self, sums_NR: Tensor, num_samples: int) -> list[dict[str, Value]]:
        """Compute the values of each model from its sums.

        Args:
            sums_NR: [N, R] float64 sums over the samples, one model a column, as
                `Evaluator.sums_on` returns them.
            num_samples: the number of samples.
        """
        stops = np.cumsum(list(self.sizes.values()))
        return [
            {
                name: metric.value(sums_N[stop - size : stop], num_samples)
                for (name, metric), size, stop in zip(
                    self.metrics.items(), self.sizes.values(), stops, strict=True
                )
            }
            for sums_N in sums_NR.cpu().numpy().T
        ]


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


def sum_of_spans(sums_SNR: Sequence[Tensor]) -> Tensor:
    """Add the sums over all spans, in the order of the spans.

    Args:
        sums_SNR: for each span, in order, what `Evaluator.span_sums` returned, [N, R].
    """
    total_NR = torch.zeros_like(sums_SNR[0])
    for sums_NR in sums_SNR:
        total_NR += sums_NR
    return total_NR


class Evaluator:
    """Evaluates models with one engine on one device.

    Args:
        engine: computes the outputs.
        model: the model.
        train: the training samples of all clients.
        test: the test set.
        objective: what is measured.
        most_models: the maximum number of models in one forward pass; None: as many as
            the engine stacks. It is halved if memory runs out.
        make_room: lets go of what else is on the device and can be made again.
    """

    def __init__(
        self,
        engine: Engine,
        model: FlatModel,
        train: Inputs,
        test: Inputs,
        objective: Objective = PLAIN,
        most_models: int | None = None,
        make_room: Callable[[], None] = lambda: None,
    ) -> None:
        self.engine = engine
        self._make_room = make_room
        self.train = train
        self.test = test
        self.device = test.x.device
        self.objective = objective
        self.most_models = most_models or engine.max_stack(EVAL_BATCH["cpu"])
        self.measures = Measures.of(objective, model, test)
        self._hits = hits_of(objective, model.num_outputs)
        self._is_plain = is_plain(objective, model.num_outputs)
        self._fused = as_fused(engine, train) if self._is_plain else None

    def evaluate(self, w_RP: Tensor) -> list[dict[str, Value]]:
        """Compute what is measured of each model on the whole test set.

        Args:
            w_RP: [R, P] parameters, one model a row.

        Returns:
            For each model the value of each metric, and the mean loss as `loss`.
        """
        num_samples = len(self.test.y)
        spans = [self.span_sums(w_RP, start) for start in span_starts(num_samples)]
        return self.measures.values(sum_of_spans(spans), num_samples)

    def span_sums(self, w_RP: Tensor, start: int) -> Tensor:
        """Return the `sums_on` a span of the test set.

        Args:
            w_RP: [R, P] parameters, one model a row.
            start: where the span begins, one of `span_starts`.
        """
        stop = min(start + SPAN, len(self.test.y))
        return self.sums_on(w_RP, self.test, slice(start, stop))

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
            num_sums = sum(self.measures.sizes.values())
            return torch.zeros(
                num_sums, len(w_RP), dtype=torch.float64, device=self.device
            )
        if self._fused:
            some = rows if isinstance(rows, slice) else as_tensor(rows)
            return self._fused.score(w_RP, samples.stored(some))

        # The memory that is needed must not grow with the number of models.
        return torch.cat(
            [
                self._sums_of_few(upload(w_rP, self.device), samples, rows)
                for w_rP in w_RP.split(self.most_models)
            ],
            1,
        )

    def _sums_of_few(
        self, w_RP: Tensor, samples: Inputs, rows: slice | NDArray[np.int64]
    ) -> Tensor:
        """Compute the `sums_on` of models that are together in one forward pass."""
        num_sums = sum(self.measures.sizes.values())
        sums_NR = torch.zeros(
            num_sums, len(w_RP), dtype=torch.float64, device=self.device
        )
        for x_B, y_B in self._batches(samples, rows):
            sums_NR += self._sums_in_memory(w_RP, x_B, y_B)
        return sums_NR

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

    def _sums_in_memory(self, w_RP: Tensor, x_B: Tensor, y_B: Tensor) -> Tensor:
        """Compute the sums [N, R] of a few models over one batch.

        If a GPU's memory runs out, one half of the models is computed after the other.

        Raises:
            MemoryError: one model alone needs more memory than the GPU has.
        """
        try:
            return with_room(
                lambda: self._sums(self.engine.logits(w_RP, x_B), y_B), self._make_room
            )
        except RuntimeError as error:
            if not (x_B.is_cuda and is_out_of_memory(error)):
                raise
            reason = first_line(error)
        # The memory is freed after the `except` block: within it, the error still refers to
        # the tensors that were computed.
        torch.cuda.empty_cache()
        half = len(w_RP) // 2
        if not half:
            raise MemoryError(
                f"out of memory: the outputs of one model for {len(y_B)} samples do not "
                f"fit into {torch.cuda.get_device_name(self.device)}; give it fewer "
                f"processes, or take a GPU with more memory (torch says: {reason})"
            )
        self.most_models = half
        LOG.warning("out of memory: at most %d models are evaluated together", half)
        halves = (w_RP[:half], w_RP[half:])
        return torch.cat([self._sums_in_memory(w, x_B, y_B) for w in halves], 1)

    def _sums(self, outputs_RB: Tensor, y_B: Tensor) -> Tensor:
        """Compute what `sums_on` returns for one batch and a few models, [N, R]."""
        if self._is_plain:
            return _plain_sums(outputs_RB, y_B)
        # Model by model, so that the rounding does not depend on how many they are.
        columns = [
            torch.cat(
                [
                    metric_sums(self.objective, name, metric, out_B, y_B)
                    for name, metric in self.measures.metrics.items()
                ]
            )
            for out_B in outputs_RB
        ]
        return torch.stack(columns, 1)

    @torch.no_grad()
    def count_correct(self, w_P: Tensor, indices: NDArray[np.int64]) -> float:
        """Count the training samples (by index) that a model classifies correctly.

        Of a sample with several tokens, the share that is predicted correctly counts.
        It is rounded to a multiple of 2^-30, so that counts add up exactly.

        Raises:
            ValueError: the objective has no accuracy.
        """
        if self._hits is None:
            raise ValueError(
                f"{type(self.objective).__name__} has no accuracy, which the policy of "
                "this run asks for; take a policy that does not go by it"
            )
        w_RP = upload(w_P[None], self.device)
        units = torch.zeros((), dtype=torch.float64, device=self.device)
        for x_B, y_B in self._batches(self.train, indices):
            hit_B = self._hits(self.engine.logits(w_RP, x_B)[0], y_B)
            units += (hit_B.double() * UNITS).round().sum()
        return float(units) / UNITS


def _plain_sums(logits_RBC: Tensor, y_B: Tensor) -> Tensor:
    """Count correct classifications and sum the cross-entropies of each model, [2, R]."""
    correct_R = (logits_RBC.max(-1).indices == y_B).sum(-1)

    # cross-entropy = logsumexp(logits) - the logit of the sample's own class
    y_RB1 = y_B.expand(len(logits_RBC), -1).unsqueeze(-1)
    own_RB = logits_RBC.gather(-1, y_RB1).squeeze(-1)
    loss_RB = logits_RBC.logsumexp(-1) - own_RB
    return torch.stack([correct_R, loss_RB.sum(-1, dtype=torch.float64)])
