"""Checks of the user's own objectives and models on a batch and on its two halves.

What is computed of a sample must not depend on the others of its batch, and what is
summed over a batch must be the sum of its halves.
"""

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysafl.core.objective import Metric, Objective, measures_of
from raysafl.core.problem import Dataset, Model
from raysafl.core.randomness import Key
from raysafl.core.text import in_brief
from raysafl.core.users_parts import method_name
from raysafl.models import FlatModel
from raysafl.training.evaluation import metric_sums
from raysafl.training.inputs import Inputs

# The number of samples of the batch.
SAMPLES = 8
# How far numbers that are to be equal may be apart, as a fraction of the largest, and
# for sums, which may be near zero: more than float32's rounding in a deep model.
TOLERANCE = 1e-3
OF_SUMS = 1e-4
# Parameters are moved by so much (standard deviation), as a model that starts at zero
# has equal outputs for all samples, which would hide what depends on the others.
# Large layers far from where they start enlarge rounding.
MOVED = 0.01


def try_objective(objective: Objective, model: FlatModel, dataset: Dataset) -> None:
    """Compute losses, a gradient and metrics of a few training samples.

    Args:
        objective: the objective.
        model: a model that was made for it, on the CPU.
        dataset: the training and test samples.

    Raises:
        ValueError: there is not one finite loss per sample; a loss depends on other
            samples; a gradient is missing or not finite; or a metric's sums over a
            batch are not the sum of those over its two halves, or its value is no
            number. The message names the method, its file and its line.
    """
    x_B, y_B = _some_samples(dataset)
    w_P = model.init(Key(0)).requires_grad_()
    with torch.enable_grad():
        loss_B = _losses(objective, model.logits(w_P, x_B), y_B)
        g_P = torch.zeros(())
        if loss_B.requires_grad:
            (g_P,) = torch.autograd.grad(loss_B.mean(), w_P, materialize_grads=True)
    if not (loss_B.requires_grad and g_P.isfinite().all()):
        raise ValueError(
            f"{method_name(objective, Objective, 'losses')} must return losses of which torch "
            f"can take a finite gradient, and for {in_brief(loss_B.tolist())}, at the model's "
            "initial parameters, it cannot (.detach(), .numpy(), argmax, a root of 0?)"
        )
    with torch.no_grad():
        out_B = model.logits(_moved(model), x_B)
        name = method_name(objective, Objective, "losses")
        _compare(name, partial(_losses, objective), out_B, y_B)
        for key, metric in measures_of(objective, model.num_outputs).items():
            if key != "loss":
                _try_metric(objective, key, metric, out_B, y_B)


@torch.no_grad()
def try_model(recipe: Model, model: FlatModel, dataset: Dataset) -> None:
    """Compute outputs of a user's own model for a few samples, together and in halves.

    Args:
        recipe: the model.
        model: what was made of it, on the CPU.
        dataset: the training and test samples.

    Raises:
        ValueError: an output depends on the other samples, or on random numbers that are
            no dropout. The message names the method, its file and its line.
    """
    name = method_name(recipe, Model, "build")
    x_B, y_B = _some_samples(dataset)
    w_P = _moved(model)
    # In bfloat16, rounding would hide what depends little on other samples.
    model = copy(model)
    model.is_bfloat16 = False
    one_B, other_B = (model.logits(w_P, x_B, torch.tensor(0)) for _ in range(2))
    if _differ(one_B, other_B):
        raise ValueError(
            f"{name} makes a module that computes other outputs each time while it trains, "
            "so that runs could not be repeated; let it draw by nn.Dropout layers alone, "
            "which raysafl seeds"
        )
    _compare(
        f"{name} makes a module that", lambda x_B, _: model.logits(w_P, x_B), x_B, y_B
    )


def _try_metric(
    objective: Objective, key: str, metric: Metric, out_B: Tensor, y_B: Tensor
) -> None:
    """Compare a metric's sums over a batch with those over its halves, and its value."""
    name = f"the metric {key!r} of {method_name(objective, Objective, 'measures')}"
    sums = partial(metric_sums, objective, key, metric)
    whole_n = _compare(name, sums, out_B, y_B, are_sums=True)
    value: Any = metric.value(whole_n.numpy(), len(y_B))
    numbers = value if metric.is_list else [value]
    if not isinstance(numbers, list) or not all(
        isinstance(number, int | float) for number in numbers
    ):
        kind = "a list of numbers" if metric.is_list else "a number"
        raise ValueError(
            f"the value of {name} must be {kind} (is_list={metric.is_list}), of "
            f"Python's float, and is {in_brief(value)}; write float(...) or .tolist()"
        )


def _losses(objective: Objective, out_B: Tensor, y_B: Tensor) -> Tensor:
    """Return the losses, which must be one finite number per sample."""
    loss_B = objective.losses(out_B, y_B)
    is_one_each = isinstance(loss_B, Tensor) and loss_B.shape == out_B.shape[:1]
    if not is_one_each or not loss_B.isfinite().all():
        raise ValueError(
            f"{method_name(objective, Objective, 'losses')} must return one finite loss per "
            f"sample, for outputs {list(out_B.shape)} and targets {list(y_B.shape)} a tensor "
            f"of shape {list(out_B.shape[:1])}; it returned "
            f"{in_brief(loss_B.tolist() if is_one_each else loss_B)}"
        )
    return loss_B


def _compare(
    name: str,
    compute: Callable[[Tensor, Tensor], Tensor],
    one_B: Tensor,
    other_B: Tensor,
    are_sums: bool = False,
) -> Tensor:
    """Return what is computed of a batch, which must be what its two halves give.

    Args:
        name: Who computes.
        compute: Computes sums over the samples, or a row for each sample.
        one_B: What `compute` takes first.
        other_B: What it takes second.
        are_sums: Whether it computes sums.
    """
    middle = (len(one_B) + 1) // 2
    parts = (slice(None), slice(middle), slice(middle, None))
    whole, *halves = (compute(one_B[part], other_B[part]) for part in parts)
    same = not are_sums or len({len(result) for result in (whole, *halves)}) == 1
    both = torch.stack(halves).sum(0) if are_sums and same else torch.cat(halves)
    if not same or _differ(whole, both, OF_SUMS * are_sums):
        raise ValueError(
            f"{name} computes {in_brief(whole.tolist())} for a batch, and for its two halves "
            f"{in_brief([half.tolist() for half in halves])}; "
            + (
                "this does not add up: return sums over the samples (not means, maxima or "
                "roots), as many for each batch, and compute the rest in `value`"
                if are_sums
                else "so the result for a sample depends on the other samples of its batch "
                "(a mean or a sum over it, BatchNorm with its statistics?). Normalise within "
                "a sample, as GroupNorm and LayerNorm do"
            )
        )
    return whole


def _some_samples(dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Return a few training samples. The first ones may all be of one class."""
    picked = np.linspace(0, len(dataset.train) - 1, SAMPLES).astype(np.int64)
    inputs = Inputs(dataset.train, torch.device("cpu"))
    return inputs.at(torch.from_numpy(np.unique(picked)))


def _moved(model: FlatModel) -> Tensor:
    """Return initial parameters [P] that were moved at random."""
    w_P = model.init(Key(0))
    generator = torch.Generator().manual_seed(0)
    return w_P + MOVED * torch.randn(w_P.shape, generator=generator)


def _differ(one: Tensor, other: Tensor, least: float = 0.0) -> bool:
    """Return whether results differ by more than rounding or `least`. A NaN equals a NaN."""
    allowed = max(least, TOLERANCE * float(one.abs().max()))
    return not torch.allclose(one.double(), other.double(), 0, allowed, equal_nan=True)
