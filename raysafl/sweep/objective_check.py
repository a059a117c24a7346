"""Trials of the user's own objectives and models on a few samples, before anything runs."""

from collections.abc import Callable
from copy import copy
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from raysafl.core.objective import Metric, Objective, measures_of
from raysafl.core.problem import Dataset, Model
from raysafl.core.randomness import Key
from raysafl.core.text import in_brief
from raysafl.core.users_parts import method_name, users_parts
from raysafl.models import FlatModel
from raysafl.training.evaluation import metric_sums
from raysafl.training.inputs import Inputs

# They are tried on so many samples, which are cut into two halves.
SAMPLES = 8
# How far the sums over a batch may be from those over its halves together, as a
# fraction: more than float32's rounding is no rounding.
TOLERANCE = 1e-4
# The same for the outputs of a model, which may be deep, as a fraction of the largest.
OF_OUTPUTS = 1e-3
# Parameters are moved by so much (standard deviation), as a model that starts at zero
# has equal outputs for all samples, which would hide what does not add up.
MOVED = 0.1
# The same for models alone: large layers far from where they start enlarge rounding.
NUDGED = 0.01


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
    _try_gradient(objective, model, model.init(Key(0)), x_B, y_B)

    w_P = _moved(model, MOVED)
    with torch.no_grad():
        out_B = model.logits(w_P, x_B)
        _try_losses(objective, out_B, y_B)
        for name, metric in measures_of(objective, model.num_outputs).items():
            if name != "loss":
                _try_metric(objective, name, metric, out_B, y_B)


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
    if not users_parts(recipe, Model):
        return
    name = method_name(recipe, Model, "build")
    x_B, y_B = _some_samples(dataset)
    w_P = _moved(model, NUDGED)
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
    whole_B = model.logits(w_P, x_B)
    halves_B = torch.cat(_on_halves(lambda x, _: model.logits(w_P, x), x_B, y_B))
    if _differ(whole_B, halves_B):
        raise ValueError(
            f"{name} makes a module whose output for a sample depends on the other samples "
            "of its batch, so that its accuracy would depend on how samples are batched: "
            "BatchNorm with statistics of the batch, a mean over the batch? Normalise "
            "within a sample, as GroupNorm and LayerNorm do"
        )


def _differ(one_B: Tensor, other_B: Tensor) -> bool:
    return bool((one_B - other_B).abs().max() > OF_OUTPUTS * one_B.abs().max())


def _some_samples(dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Return a few training samples. The first ones may all be of one class."""
    picked = np.linspace(0, len(dataset.train) - 1, SAMPLES).astype(np.int64)
    inputs = Inputs(dataset.train, torch.device("cpu"))
    return inputs.at(torch.from_numpy(np.unique(picked)))


def _moved(model: FlatModel, std: float) -> Tensor:
    """Return initial parameters [P] that were moved at random."""
    w_P = model.init(Key(0))
    generator = torch.Generator().manual_seed(0)
    return w_P + std * torch.randn(w_P.shape, generator=generator)


def _try_gradient(
    objective: Objective, model: FlatModel, w_P: Tensor, x_B: Tensor, y_B: Tensor
) -> None:
    """Compute the gradient of the mean loss at the initial parameters."""
    w_P = w_P.clone().requires_grad_()
    with torch.enable_grad():
        out_B = model.logits(w_P, x_B)
        loss_B = _tried_losses(objective, out_B, y_B)
        if not loss_B.requires_grad:
            _refuse(
                objective,
                "they do not depend on the outputs in a way that torch "
                "can differentiate (.detach(), .numpy(), argmax?)",
            )
        (g_P,) = torch.autograd.grad(loss_B.mean(), w_P, materialize_grads=True)
    if not g_P.isfinite().all():
        _refuse(
            objective,
            "their gradient at the model's initial parameters is not finite; the losses "
            f"there are {in_brief(loss_B.tolist())}",
        )


def _try_losses(objective: Objective, out_B: Tensor, y_B: Tensor) -> None:
    """Compare the losses of a batch with those of its halves."""
    whole_B = _tried_losses(objective, out_B, y_B)
    halves_B = torch.cat(
        _on_halves(lambda out, y: _tried_losses(objective, out, y), out_B, y_B)
    )
    if not _close(whole_B, halves_B):
        _refuse(
            objective,
            "a loss depends on the other samples of its batch (a mean or a sum over the "
            f"batch?): {in_brief(whole_B.tolist())} for a whole batch, "
            f"{in_brief(halves_B.tolist())} for its two halves",
        )


def _try_metric(
    objective: Objective, name: str, metric: Metric, out_B: Tensor, y_B: Tensor
) -> None:
    """Compare a metric's sums over a batch with those over its halves, and its value."""
    where = f"the metric {name!r} of {method_name(objective, Objective, 'measures')}"

    def sums(out: Tensor, y: Tensor) -> Tensor:
        return metric_sums(objective, name, metric, out, y)

    whole_n = sums(out_B, y_B)
    first_n, second_n = _on_halves(sums, out_B, y_B)
    if not (whole_n.shape == first_n.shape == second_n.shape):
        raise ValueError(
            f"{where} gives {len(whole_n)} sums over a batch, but {len(first_n)} and "
            f"{len(second_n)} over its two halves; their number must not depend on the "
            "batch"
        )
    if not _close(whole_n, first_n + second_n):
        raise ValueError(
            f"{where} does not add up: its sums over a batch are "
            f"{in_brief(whole_n.tolist())}, but those over the two halves are together "
            f"{in_brief((first_n + second_n).tolist())}; return sums over the samples "
            "(not means, maxima or roots), and compute the rest in `value`"
        )
    _check_value(where, metric, metric.value(whole_n.numpy(), len(y_B)))


def _check_value(where: str, metric: Metric, value: Any) -> None:
    kind = "a list of numbers" if metric.is_list else "a number"
    numbers = value if metric.is_list else [value]
    if not isinstance(numbers, list) or not all(
        isinstance(number, int | float) for number in numbers
    ):
        raise ValueError(
            f"the value of {where} must be {kind} (is_list={metric.is_list}), of "
            f"Python's float, and is {in_brief(value)}; write float(...) or .tolist()"
        )


def _tried_losses(objective: Objective, out_B: Tensor, y_B: Tensor) -> Tensor:
    """Return the losses, which must be one finite number per sample."""
    loss_B = objective.losses(out_B, y_B)
    shape = out_B.shape[:1]
    if not isinstance(loss_B, Tensor) or loss_B.shape != shape:
        _refuse(
            objective,
            f"for outputs {list(out_B.shape)} and targets {list(y_B.shape)} they must "
            f"be a tensor of shape {list(shape)}, and are {in_brief(loss_B)}",
        )
    if not loss_B.isfinite().all():
        _refuse(objective, f"they are not finite: {in_brief(loss_B.tolist())}")
    return loss_B


def _on_halves(
    compute: Callable[[Tensor, Tensor], Tensor], out_B: Tensor, y_B: Tensor
) -> list[Tensor]:
    middle = (len(y_B) + 1) // 2
    parts = (slice(0, middle), slice(middle, None))
    return [compute(out_B[part], y_B[part]) for part in parts]


def _close(one: Tensor, other: Tensor) -> bool:
    absolute = TOLERANCE * max(1.0, float(one.abs().max()))
    return torch.allclose(
        one.double(), other.double(), TOLERANCE, absolute, equal_nan=True
    )


def _refuse(objective: Objective, what: str) -> NoReturn:
    raise ValueError(
        f"{method_name(objective, Objective, 'losses')} must return one finite loss per "
        f"sample, of which a gradient can be taken; {what}"
    )
