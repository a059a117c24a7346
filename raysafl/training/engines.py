"""Engines: several ways to compute the same gradients of many models at once.

Every engine maps (w_TP, x_TB, y_TB, weight_TB, seed_T) to the gradients of T tasks,
each of which has its own parameters, samples and seed:

    g_t = gradient at w_t of  sum_b weight_tb * loss(model(w_t, x_tb), y_tb),

where the run's objective says what the loss is, by default the cross-entropy.

The dropout masks of a task depend on nothing but its seed, an int64.

Engines agree to float32's tolerance only. So which one `auto` stands for is a rule, and
never a measurement: it depends on the model, the objective, the samples' shape and the
kind of device alone, and a configuration gives the same numbers whatever else the machine
does.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from raysafl.core.component import is_users_class, method_name
from raysafl.core.objective import Objective, PerSample, hits_of
from raysafl.core.text import in_brief, nearest
from raysafl.models import FlatModel
from raysafl.objectives import PLAIN, has_plain_losses
from raysafl.training.device import first_line, is_out_of_memory
from raysafl.training.inputs import STACK, Batch, Gradients
from raysafl.training.linear import Fused, Linear

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

# On a CPU, convolutions of many clients in one call are faster than one after the other
# only on images of at most so many pixels.
SMALL_IMAGE = 8 * 8
# How far the gradient of stacked tasks may be from the loop's, as a fraction of its norm.
# Layers may compute in TF32 (10 bits) or bfloat16 (7 bits), and engines round differently.
ALLOWED = {"float32": 1e-3, "tf32": 0.03, "bfloat16": 0.1}


class Loop:
    """The engine "loop", the reference: one task after the other, through autograd.

    Images are given in the memory format channels_last if the model may have them so.
    On a CPU, small convolutional networks then take 15 % less time to train on colour
    images, and up to a third less to evaluate.

    Args:
        model: the model whose gradients are computed.
        objective: what gives each sample its loss.

    Attributes:
        is_stacked: whether several tasks are faster than one after the other.
        can_record: whether its local steps are recorded as CUDA graphs on a GPU, which
            then starts a step's kernels one after the other without Python between.
    """

    is_stacked: ClassVar[bool] = False
    can_record: ClassVar[bool] = False

    def __init__(self, model: FlatModel, objective: Objective = PLAIN) -> None:
        self.model = model
        self.objective = objective
        self._losses = _checked_losses(objective)
        self._hits = hits_of(objective, model.num_outputs)

    def max_stack(self, width: int) -> int:
        """Return how many tasks take their steps together on a CPU at most.

        It depends neither on the machine nor on the other tasks, so that results do not.
        Here it is 1, so that a task's parameters stay in the core's cache from its first
        step to its last. (On a GPU, stacks are sized by `raysafl.training.gpu_training`.)

        Args:
            width: the number of samples in a task's batch, absent ones included.
        """
        return 1

    def gradients(self, batch: Batch) -> Gradients:
        """Compute each task's gradient of its weighted loss, by a backward pass each."""
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
        return Gradients(g_TP, *seen_TB)

    def logits(self, w_RP: Tensor, x_B: Tensor) -> Tensor:
        """Compute [R, B, ...] outputs without dropout, by one forward pass per model."""
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
        """Compute all tasks' gradients in one vectorised backward pass.

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
        return Gradients(g_TP[:tasks], *(part[:tasks] for part in seen_TB))

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


# A way to compute gradients of many tasks, and outputs for evaluation.
Engine: TypeAlias = Loop | Linear
ENGINES: dict[str, type[Engine]] = {
    "loop": Loop,
    "vmap": Vmap,
    "linear": Linear,
    "fused": Fused,
    "graph": Graph,
}


def make_engine(name: str, model: FlatModel, objective: Objective = PLAIN) -> Engine:
    """Make the engine of this name for a model.

    Args:
        name: a key of ENGINES.
        model: the model whose gradients the engine computes.
        objective: what gives each sample its loss.

    Raises:
        ValueError: there is no engine of this name, or it is for plain cross-entropies
            of one linear layer and this is not that.

    Example:
        >>> import raysafl as fl
        >>> from raysafl.models import FlatModel
        >>> model = FlatModel(fl.MLP(hidden=[8]), input_shape=(1, 4, 4), num_classes=3)
        >>> make_engine("loop", model).max_stack(32)
        1
    """
    if name not in ENGINES:
        raise ValueError(
            f"there is no engine {name!r}; {nearest(name, ['auto', *ENGINES])}"
        )
    is_plain = has_plain_losses(objective, model.num_outputs)
    if issubclass(ENGINES[name], Linear) and not (model.linear_shape and is_plain):
        raise ValueError(
            f"engine {name!r} is for float32 models of one linear layer (Logistic) without "
            "frozen parameters, under the plain cross-entropy of Classification() without "
            f"class_weights and label_smoothing, not for {model.name} under "
            f"{objective!r}; give engine='auto'"
        )
    return ENGINES[name](model, objective)


def choose_engine(
    model: FlatModel, x_TB: Tensor, y_TB: Tensor, objective: Objective = PLAIN
) -> str:
    """Return the name of the engine that is used for a model by default.

    Models of one linear layer under plain cross-entropy have their own engines, and
    recurrent layers cannot be stacked. Of other models a GPU takes the recorded steps of
    stacked tasks, and a CPU stacks tasks unless the model convolves images of more than
    8 x 8 pixels. A model that cannot be stacked, or whose gradients are then others than
    the loop's, is trained by the loop.

    Args:
        model: the model to train.
        x_TB: inputs of a few small batches, on the device of the training.
        y_TB: their targets.
        objective: what gives each sample its loss.
    """
    is_plain = has_plain_losses(objective, model.num_outputs)
    if model.linear_shape is not None and is_plain:
        return "linear" if x_TB.is_cuda else "fused"
    is_large = math.prod(x_TB.shape[-2:]) > SMALL_IMAGE and not x_TB.is_cuda
    if model.is_recurrent or (model.has_convolutions and is_large):
        return "loop"
    if not _stacks_right(model, x_TB, y_TB, objective):
        return "loop"
    return "graph" if x_TB.is_cuda else "vmap"


def _stacks_right(
    model: FlatModel, x_TB: Tensor, y_TB: Tensor, objective: Objective
) -> bool:
    """Whether a model's gradients for stacked tasks are those of the loop."""
    parts = [model.module.get_parameter(name).detach() for name in model.shapes]
    w_TP = torch.cat([part.flatten() for part in parts]).repeat(len(x_TB), 1)
    weight_TB = w_TP.new_full(y_TB.shape[:2], 1 / y_TB.shape[1])
    # A task's number is its dropout seed.
    seed_T = torch.arange(len(x_TB), device=w_TP.device)
    batch = Batch(w_TP, x_TB, y_TB, weight_TB, seed_T)
    exact_TP = Loop(model, objective).gradients(batch).g_TP
    try:
        g_TP = ENGINES["vmap"](model, objective).gradients(batch).g_TP
    except (ValueError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        return False
    # Norms, since a single entry may be far off where an input of a ReLU is about 0.
    # What is no number is not equal either.
    distance = (g_TP - exact_TP).norm()
    return bool(distance <= ALLOWED[model.precision] * exact_TP.norm())
