"""Engines: several ways to compute the same gradients of many models at once.

Every engine maps (w_TP, x_TB, y_TB, weight_TB, seed_T) to the gradients of T tasks,
each of which has its own parameters, samples and seed:

    g_t = gradient at w_t of  sum_b weight_tb * loss(model(w_t, x_tb), y_tb),

where the run's objective says what the loss is, by default the cross-entropy.

The dropout masks of a task depend on nothing but its seed, an int64.
"""

import functools
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from raysafl.core.component import is_users_class, method_name
from raysafl.core.objective import Objective, PerSample, hits_of
from raysafl.core.text import in_brief
from raysafl.models import FlatModel
from raysafl.objectives import PLAIN
from raysafl.training.device import first_line, is_out_of_memory

# The maximum number of tasks that are stacked.
STACK = 32

# The minimum number of stacked tasks on a CPU, unless the model is dense and torch has one
# thread. For fewer convolutions at once, or fewer products than threads, torch takes other
# kernels, so that a task's last bits would depend on how many others are in its stack.
LEAST = 4

# The maximum number of samples in a step of stacked tasks, unless one task has more. A
# small convolutional network takes some 3 GB for them.
STEP = 4096
# The largest number of parameters of a stack. With more, a stack is no faster than its
# tasks one by one: each of their matrices is larger than the core's cache.
STACKED = 2**20


class Batch(NamedTuple):
    """What an engine computes the gradients of T tasks from, of B samples each.

    Args:
        w_TP: [T, P] parameters, one task a row.
        x_TB: [T, B, ...] inputs.
        y_TB: [T, B, ...] targets.
        weight_TB: [T, B] weights of the samples, 0 for absent ones.
        seed_T: [T] int64 seeds for dropout; None computes without dropout.
    """

    w_TP: Tensor
    x_TB: Tensor
    y_TB: Tensor
    weight_TB: Tensor
    seed_T: Tensor | None


class Gradients(NamedTuple):
    """What an engine returns for T tasks of B samples each."""

    # Gradients of the weighted losses.
    g_TP: Tensor
    # Each sample's loss, without its weight.
    loss_TB: Tensor
    # Whether each sample was classified correctly, or which share of its tokens was;
    # None if the objective has no accuracy.
    correct_TB: Tensor | None


class Engine(Protocol):
    """A way to compute gradients of many tasks, and outputs for evaluation.

    Attributes:
        model: the model.
        objective: what gives each sample its loss.
        is_stacked: whether several tasks are faster than one after the other.
        can_record: whether its local steps are recorded as CUDA graphs on a GPU, which
            then starts a step's kernels one after the other without Python between.
    """

    is_stacked: ClassVar[bool]
    can_record: ClassVar[bool]
    model: FlatModel
    objective: Objective

    def max_stack(self, width: int) -> int:
        """Return the maximum number of tasks that take their steps together on a CPU.

        It depends neither on the machine nor on the other tasks, so that results do
        not. (On a GPU, stacks are sized by `raysafl.training.memory`.)

        Args:
            width: the number of samples in a task's batch, absent ones included.
        """

    def gradients(self, batch: Batch) -> Gradients:
        """Compute each task's gradient of its weighted loss."""

    def logits(self, w_RP: Tensor, x_B: Tensor) -> Tensor:
        """Compute [R, B, ...] outputs of several models on one batch, without dropout."""


class Loop:
    """The engine "loop", the reference: one task after the other, through autograd.

    Images are given in the memory format channels_last if the model may have them so.
    On a CPU, small convolutional networks then take 15 % less time to train on colour
    images, and up to a third less to evaluate.

    Args:
        model: the model whose gradients are computed.
        objective: what gives each sample its loss.
    """

    is_stacked: ClassVar[bool] = False
    can_record: ClassVar[bool] = False

    def __init__(self, model: FlatModel, objective: Objective = PLAIN) -> None:
        self.model = model
        self.objective = objective
        self._losses = _checked_losses(objective)
        self._hits = hits_of(objective, model.num_outputs)

    def max_stack(self, width: int) -> int:
        """Return 1: a task takes all its steps before the next one begins.

        So its parameters stay in the core's cache.
        """
        return 1

    def gradients(self, batch: Batch) -> Gradients:
        """Compute each task's gradient by a backward pass of its own; see `Engine`."""
        rows = []
        *columns, seed_T = batch
        seeds = [None] * len(batch.w_TP) if seed_T is None else seed_T
        for w_P, x_B, y_B, weight_B, seed in zip(*columns, seeds, strict=True):
            leaves = {
                name: w.detach().requires_grad_()
                for name, w in self.model.named_parameters(w_P).items()
            }
            with torch.enable_grad():
                out_B = self.model.forward(leaves, self._in_format(x_B), seed)
                loss_B = self._losses(out_B, y_B)
                loss = (loss_B * weight_B).sum()
                # materialize_grads: a parameter that the loss does not depend on has
                # zeros
                parts = torch.autograd.grad(
                    loss, list(leaves.values()), materialize_grads=True
                )
            g_P = torch.cat([part.reshape(-1) for part in parts])
            seen = () if self._hits is None else (self._hits(out_B, y_B),)
            rows.append((g_P, loss_B.detach(), *seen))
        g_TP, *seen_TB = (_stack_rows(column) for column in zip(*rows, strict=True))
        return _as_gradients(g_TP, seen_TB)

    def logits(self, w_RP: Tensor, x_B: Tensor) -> Tensor:
        """Compute [R, B, ...] outputs by one forward pass per model."""
        x_B = self._in_format(x_B)
        return torch.stack([self.model.logits(w_P, x_B) for w_P in w_RP])

    def _in_format(self, x_B: Tensor) -> Tensor:
        """Return a batch in the memory format that is used for this model."""
        if x_B.ndim != 4 or not self.model.is_channels_last:
            return x_B
        return x_B.contiguous(memory_format=torch.channels_last)


def _checked_losses(objective: Objective) -> PerSample:
    """Return the losses of an objective; those of the user's own are checked."""
    if not is_users_class(type(objective)):
        return objective.losses

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        loss_B = objective.losses(outputs, targets)
        if not isinstance(loss_B, Tensor) or loss_B.shape != outputs.shape[:1]:
            raise ValueError(
                f"{method_name(objective, Objective, 'losses')} must return one loss "
                f"per sample, for this batch a tensor of shape [{len(outputs)}]; it "
                f"returned {in_brief(loss_B)} (outputs are {list(outputs.shape)}, "
                f"targets {list(targets.shape)})"
            )
        return loss_B

    return losses


def _as_gradients(g_TP: Tensor, seen_TB: Sequence[Tensor]) -> Gradients:
    """Return gradients with what else was computed: losses, and perhaps hits."""
    loss_TB, *hit_TB = seen_TB
    return Gradients(g_TP, loss_TB, hit_TB[0] if hit_TB else None)


def _stack_rows(rows: Sequence[Tensor]) -> Tensor:
    """Stack rows; a single row becomes a view instead of a copy."""
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(list(rows))


def _stacked_gradients(
    model: FlatModel, losses: PerSample, hits: PerSample | None
) -> Callable[..., tuple[Tensor, tuple[Tensor, ...]]]:
    """Return the function that computes the gradients of many tasks in one pass.

    It does not hold the engine, which would otherwise hold itself, and keep its memory
    until Python looks for such circles.
    """

    def loss(
        w_P: Tensor, x_B: Tensor, y_B: Tensor, weight_B: Tensor, seed: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        out_B = model.logits(w_P, x_B, seed, stacked=True)
        loss_B = losses(out_B, y_B)
        hit_B = () if hits is None else (hits(out_B, y_B),)
        return (loss_B * weight_B).sum(), (loss_B, *hit_B)

    return torch.func.vmap(torch.func.grad(loss, has_aux=True))


class Vmap(Loop):
    """The engine "vmap": all tasks in one call of `torch.func.vmap`.

    It is faster than the loop on small models and on GPUs. On a CPU, a task's results are
    the same to the last bit whatever it is stacked with.
    """

    is_stacked = True

    def __init__(self, model: FlatModel, objective: Objective = PLAIN) -> None:
        super().__init__(model, objective)
        self._stacked_gradients = _stacked_gradients(model, self._losses, self._hits)
        is_plain = model.is_dense and torch.get_num_threads() == 1
        self._least = 1 if is_plain else LEAST

    def max_stack(self, width: int) -> int:
        """Return how many tasks have STEP samples and STACKED parameters together.

        Both bound memory. There are no fewer than kernels need to repeat their bits.
        """
        most = max(1, min(STACK, STEP // width))
        return min(most, max(self._least, STACKED // self.model.num_parameters))

    def gradients(self, batch: Batch) -> Gradients:
        """Compute all tasks' gradients in one vectorised backward pass; see `Engine`.

        Raises:
            ValueError: the module or the objective does what vmap does not allow (it
                branches on data, calls `.item()`, or draws random numbers).
        """
        if batch.seed_T is None:
            return super().gradients(batch)
        tasks = len(batch.w_TP)
        # Stacks of one width never have more tasks than `max_stack`.
        least = min(self._least, self.max_stack(batch.x_TB.shape[1]))
        if tasks < least and not batch.w_TP.is_cuda:
            # The last task is computed several times.
            row_T = torch.arange(least).clamp_max_(tasks - 1)
            batch = Batch(*(part[row_T] for part in batch if part is not None))
        try:
            g_TP, seen_TB = self._stacked_gradients(*batch)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            raise ValueError(
                "the model or the objective does not run under the engine vmap, which "
                "trains many clients as one program; give engine='loop', which shows an "
                f"error of the code itself as it is (torch says: {first_line(error)})"
            ) from error
        return _as_gradients(g_TP[:tasks], [part[:tasks] for part in seen_TB])

    def logits(self, w_RP: Tensor, x_B: Tensor) -> Tensor:
        """Compute [R, B, ...] outputs; on a GPU, of all models in one pass."""
        if not w_RP.is_cuda:
            return super().logits(w_RP, x_B)
        one_model = functools.partial(self.model.logits, stacked=True)
        out: Tensor = torch.func.vmap(one_model, (0, None))(w_RP, x_B)
        return out


class Graph(Vmap):
    """The engine "graph": vmap, of which a GPU replays recorded local steps.

    See `raysafl.training.local_step`. On a CPU it is the engine "vmap".
    """

    can_record = True
