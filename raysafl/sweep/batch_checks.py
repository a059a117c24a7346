"""Tries the user's own models and objectives on a few samples and their two halves.

What is computed of a sample must not depend on the others of its batch, and what is
summed over a batch must be the sum of its halves: batches differ from machine to machine.
"""

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from raysafl.core.component import method_name
from raysafl.core.objective import Objective, measures_of
from raysafl.core.problem import FROZEN_SEED, Dataset, Model
from raysafl.core.randomness import Key
from raysafl.core.text import in_brief
from raysafl.models import FlatModel
from raysafl.training.evaluation import metric_sums
from raysafl.training.inputs import Inputs

# The number of samples of the batch.
SAMPLES = 8
# How far numbers that are to be equal may be apart, as a fraction of the largest, and for
# sums, which may be near zero: more than float32's rounding in a deep model.
TOLERANCE = 1e-3
OF_SUMS = 1e-4
# Numbers are moved by so much (standard deviation), as a model that starts at zero has
# equal outputs for all samples, which would hide what depends on the others.
MOVED = 0.01


@torch.no_grad()
def try_model(recipe: Model, model: FlatModel, dataset: Dataset) -> None:
    """Compute outputs of a user's own model for a few samples, together and in halves.

    Args:
        recipe: the model.
        model: what was made of it, on the CPU.
        dataset: the training and test samples.

    Raises:
        ValueError: an output depends on the other samples, or outputs and gradients are not
            those of the module by itself. The message names the method, its file and its line.
    """
    # In bfloat16, rounding would hide what depends little on other samples.
    model = copy(model)
    model.is_bfloat16 = False
    w_P = _moved(model.init(Key(0)))
    x_B, _ = _some_samples(dataset)
    whole_B = model.logits(w_P, x_B)
    halves = [model.logits(w_P, half_B) for half_B in x_B.chunk(2)]
    if _differ(whole_B, torch.cat(halves)):
        raise ValueError(
            f"{method_name(recipe, Model, 'build')} makes a module in which the result for a "
            "sample depends on the other samples of its batch (a mean or a sum over it, "
            "BatchNorm with its statistics?) or on what was computed before (an attribute, or "
            "inputs, that forward changes?). Normalise within a sample, as GroupNorm and "
            "LayerNorm do"
        )
    _try_gradient(recipe, model, w_P, x_B)


@torch.enable_grad()
def _try_gradient(recipe: Model, model: FlatModel, w_P: Tensor, x_B: Tensor) -> None:
    """Compare a gradient with that of the module as it is, which is built anew."""

    def gradient(leaves: Sequence[Tensor], out_of: Callable[[], Tensor]) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(FROZEN_SEED)
            loss = out_of().float().square().mean()
            parts = torch.autograd.grad(loss, leaves, materialize_grads=True)
        return torch.cat([part.flatten() for part in parts])

    # Dropout would draw other masks; a module without it is tried as it is in training.
    seed = None if model.has_dropout else torch.tensor(0)
    leaf_P = w_P.detach().requires_grad_()
    named = model.named_parameters(leaf_P)
    g_P = gradient([leaf_P], lambda: model.forward(named, x_B, seed))
    module = model.build(FROZEN_SEED).train(seed is not None)
    trained = [p for p in module.parameters() if p.requires_grad]
    # `build` may return a module that it keeps.
    before = [p.data for p in trained]
    nn.utils.vector_to_parameters(w_P, trained)
    exact_P = gradient(trained, lambda: module(x_B))
    for p, data in zip(trained, before, strict=True):
        p.data = data
    if _differ(g_P, exact_P):
        raise ValueError(
            f"{method_name(recipe, Model, 'build')} makes a module that, built anew and with "
            "the same parameters, has other outputs or another gradient. Draw random numbers "
            "with torch alone, which raysafl seeds; keep parameters as attributes alone (not "
            "in a list or a dictionary, too); scale gradients in `forward`, not by a hook of "
            "a parameter; and have nothing computed again for the gradient "
            "(torch.utils.checkpoint)"
        )


def try_objective(objective: Objective, model: FlatModel, dataset: Dataset) -> None:
    """Compute losses, a gradient and metrics of a few training samples.

    Args:
        objective: the objective.
        model: a model that was made for it, on the CPU.
        dataset: the training and test samples.

    Raises:
        ValueError: there is not one finite loss per sample; a gradient is missing or not
            finite; or a metric's sums over a batch are not the sum of those over its two
            halves, or its value is no number. The message names the method, its file and
            its line.
    """
    x_B, y_B = _some_samples(dataset)
    w_P = model.init(Key(0)).requires_grad_()
    with torch.enable_grad():
        out_B = model.logits(w_P, x_B)
        _try_losses(objective, out_B, y_B, w_P)
    with torch.no_grad():
        _try_metrics(objective, _moved(out_B), y_B, model.num_outputs)


def _try_losses(objective: Objective, out_B: Tensor, y_B: Tensor, w_P: Tensor) -> None:
    """Refuse losses that are not one finite number per sample, with a finite gradient."""
    name = method_name(objective, Objective, "losses")
    loss_B = objective.losses(out_B, y_B)
    is_one_each = isinstance(loss_B, Tensor) and loss_B.shape == out_B.shape[:1]
    if not is_one_each or not loss_B.isfinite().all():
        raise ValueError(
            f"{name} must return one finite loss per sample, for outputs "
            f"{list(out_B.shape)} and targets {list(y_B.shape)} a tensor of shape "
            f"{list(out_B.shape[:1])}; it returned "
            f"{in_brief(loss_B.tolist() if is_one_each else loss_B)}"
        )
    g_P = torch.tensor(torch.nan)
    if loss_B.requires_grad:
        (g_P,) = torch.autograd.grad(loss_B.mean(), w_P, materialize_grads=True)
    if not g_P.isfinite().all():
        raise ValueError(
            f"{name} must return losses of which torch can take a finite gradient, and for "
            f"{in_brief(loss_B.tolist())}, at the model's initial parameters, it cannot "
            "(.detach(), .numpy(), argmax, a root of 0?)"
        )


def _try_metrics(
    objective: Objective, out_B: Tensor, y_B: Tensor, num_outputs: int
) -> None:
    """Refuse metrics whose sums do not add up, or whose value is no number."""
    for key, metric in measures_of(objective, num_outputs).items():
        if key == "loss":
            continue
        name = f"the metric {key!r} of {method_name(objective, Objective, 'measures')}"
        sums = partial(metric_sums, objective, key, metric)
        whole_n = sums(out_B, y_B)
        halves = list(map(sums, out_B.chunk(2), y_B.chunk(2)))
        as_many = {len(half_n) for half_n in halves} == {len(whole_n)}
        if not as_many or _differ(whole_n, torch.stack(halves).sum(0), OF_SUMS):
            raise ValueError(
                f"{name} computes {in_brief(whole_n.tolist())} for a batch, and for its two "
                f"halves {in_brief([half_n.tolist() for half_n in halves])}; this does not "
                "add up: return sums over the samples (not means, maxima or roots), as many "
                "for each batch, and compute the rest in `value`"
            )
        value = metric.value(whole_n.numpy(), len(y_B))
        numbers = value if metric.is_list else [value]
        if not isinstance(numbers, list) or not all(
            isinstance(number, int | float) for number in numbers
        ):
            raise ValueError(
                f"the value of {name} must be a number of Python's, or a list of such with "
                f"is_list=True, and is {in_brief(value)}; write float(...) or .tolist()"
            )


def _some_samples(dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Return a few training samples. The first ones may all be of one class."""
    picked = np.linspace(0, len(dataset.train) - 1, SAMPLES).astype(np.int64)
    inputs = Inputs(dataset.train, torch.device("cpu"))
    return inputs.at(torch.from_numpy(np.unique(picked)))


def _moved(numbers: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return numbers + MOVED * torch.randn(numbers.shape, generator=generator)


def _differ(one: Tensor, other: Tensor, least: float = 0.0) -> bool:
    """Return whether results differ by more than rounding or `least`. A NaN equals a NaN."""
    allowed = max(least, TOLERANCE * float(one.abs().max()))
    return not torch.allclose(one.double(), other.double(), 0, allowed, equal_nan=True)
