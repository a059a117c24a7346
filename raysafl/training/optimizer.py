"""What a local step does with a gradient, for stacked tasks.

The terms and the optimizers are those of `raysafl.core.algorithm.LocalTraining`.
"""

from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from raysafl.core.work import Ints, Tasks, chosen_rows
from raysafl.training.device import upload_into

# Adam's constants: the decay rates of its two moments, and what keeps it from dividing
# by zero. They are the defaults of Kingma & Ba (ICLR 2015) and of torch.
BETA1 = 0.9
BETA2 = 0.999
EPSILON = 1e-8
# What keeps a gradient of zero from being divided by its norm when it is clipped.
CLIP_EPSILON = 1e-6


class StepKind(NamedTuple):
    """Which of the equations of `StackedOptimizer` the steps of a stack need.

    Args:
        is_adam: whether the optimizer is Adam.
        has_momentum: whether any task has momentum.
        has_clip: whether gradients are clipped, which they are for all tasks or none.
        has_prox: whether any task is pulled towards its start.
        has_decay: whether any task has weight decay.
        has_offset: whether any task has an offset.
        goes_on: whether the tasks begin with the moments that their clients have kept.
    """

    is_adam: bool
    has_momentum: bool
    has_clip: bool
    has_prox: bool
    has_decay: bool
    has_offset: bool
    goes_on: bool

    @classmethod
    def of(cls, tasks: Tasks) -> Self:
        """Return what tasks with the same optimizer need."""
        column = tasks.columns
        first = tasks.locals[column["local"][0]]
        return cls(
            is_adam=first.optimizer == "adam",
            has_momentum=bool(tasks.by_local(lambda own: own.momentum).any()),
            has_clip=first.clip_norm is not None,
            has_prox=bool(column["prox"].any()),
            has_decay=bool(tasks.by_local(lambda own: own.weight_decay).any()),
            has_offset=bool((column["offset"] >= 0).any()),
            goes_on=bool(column["moments"][0] >= 0),
        )


def step_numbers(tasks: Tasks) -> Tensor:
    """Return the numbers that a step needs of each task, [5, T] float32 on the CPU.

    They are, row by row: learning rate, `prox`, weight decay, momentum, and the limit
    of the gradient's norm, infinity without one.
    """
    numbers_5T = [
        tasks.columns["rate"],
        tasks.columns["prox"],
        tasks.by_local(lambda local: local.weight_decay),
        tasks.by_local(lambda local: local.momentum),
        tasks.by_local(lambda local: local.clip_norm or torch.inf),
    ]
    return torch.from_numpy(np.stack(numbers_5T).astype(np.float32))


class StackedOptimizer:
    """Takes the local steps of stacked tasks, each with its own rate and terms.

    With the gradient g of a task's loss at w, a step first scales it down, if it is
    longer than the task's `clip_norm` c, and adds the task's terms:

        g <- g min(1, c / (|g| + 1e-6))
        g <- g + prox (w - w_start) + offset + weight_decay w

    and then moves, with "sgd",

        v <- momentum v + g,    w <- w - lr v

    or with "adam" (Kingma & Ba, ICLR 2015, algorithm 1), in step k = 1, 2, ...

        m <- beta1 m + (1 - beta1) g,    s <- beta2 s + (1 - beta2) g^2
        w <- w - lr (m / (1 - beta1^k)) / (sqrt(s / (1 - beta2^k)) + epsilon).

    v, m and s begin at zero, or where the client's last training has left them; then k
    counts on, too.

    Terms that no task has are not computed. `step` can be given the first tasks of the
    stack alone: on a CPU these are the ones that are still active, as the tasks are
    sorted by their numbers of steps, the longest first.

    Args:
        kind: which equations are computed.
        numbers_5T: what `step_numbers` returns of the tasks, on their device.
        start_TP: [T, P] the parameters they start from, which must not change
            meanwhile.
        offset_TP: [T, P] the tasks' offsets, if any task has one.

    Attributes:
        steps_taken: how many steps were taken: an int, or on a GPU a float64 tensor
            without dimensions, so that a recorded step can count.
    """

    def __init__(
        self,
        kind: StepKind,
        numbers_5T: Tensor,
        start_TP: Tensor,
        offset_TP: Tensor | None,
    ) -> None:
        self.kind = kind
        self.lr_T1, self.prox_T1, self.decay_T1, self.momentum_T1, self.clip_T1 = (
            numbers_5T.unsqueeze(2)
        )
        self.start_TP = start_TP
        self.offset_TP = offset_TP
        self.steps_taken: int | Tensor = 0
        # The steps that were taken before, of optimizers that go on. They are float64
        # because Adam computes powers with them.
        self.before_T1: Tensor | None = None
        if kind.goes_on:
            self.before_T1 = torch.zeros_like(self.lr_T1, dtype=torch.float64)
        if kind.is_adam or kind.has_momentum:
            self.first_moment_TP = torch.zeros_like(start_TP)
        if kind.is_adam:
            self.second_moment_TP = torch.zeros_like(start_TP)

    @classmethod
    def of(cls, tasks: Tasks, start_TP: Tensor) -> Self:
        """Return the optimizer of some tasks, on the device of their parameters.

        Args:
            tasks: tasks with the same optimizer, all with a `clip_norm` or all without,
                all with moments or all without, the longest first.
            start_TP: [T, P] the parameters they start from.
        """
        numbers_5T = step_numbers(tasks).to(start_TP.device)
        kind = StepKind.of(tasks)
        offset_TP = None
        if kind.has_offset:
            offset_TP = tasks.stacked("offset").to(start_TP.device)
        optimizer = cls(kind, numbers_5T, start_TP, offset_TP)
        if optimizer.before_T1 is not None:
            optimizer.restart(tasks)
        return optimizer

    @property
    def moments(self) -> list[Tensor]:
        """The buffers [T, P] that are kept from one step to the next."""
        if self.kind.is_adam:
            return [self.first_moment_TP, self.second_moment_TP]
        return [self.first_moment_TP] if self.kind.has_momentum else []

    def kept(self) -> Tensor:
        """Return a copy of what clients keep of their optimizers, [T, V, P]."""
        if self.before_T1 is None:
            return self.start_TP.new_empty(len(self.start_TP), 0, 0)
        return torch.stack(self.moments, 1)

    def restart(self, tasks: Tasks) -> None:
        """Begin new tasks, in place: with the moments that they bring, or with zeros."""
        self.steps_taken *= 0
        if self.before_T1 is None:
            for moment_TP in self.moments:
                moment_TP.zero_()
            return
        before_T = tasks.columns["before"].astype(np.float64)
        upload_into(self.before_T1, torch.from_numpy(before_T).unsqueeze(1))
        for v, moment_TP in enumerate(self.moments):
            kept_TP = chosen_rows(tasks.moments, tasks.columns["moments"] + v)
            upload_into(moment_TP, kept_TP)

    def step(
        self, w_TP: Tensor, g_TP: Tensor, finished_T1: Tensor | None = None
    ) -> None:
        """Take one step of the first tasks, in place.

        Args:
            w_TP: [active tasks, P] their parameters, which are changed.
            g_TP: the loss's gradients there, which are overwritten.
            finished_T1: which of the tasks have taken all their steps, and stay where
                they are. (Their moments change, but nothing depends on them any more.)
                None: none of them.
        """
        self.steps_taken += 1
        active = len(w_TP)
        if self.kind.has_clip:
            g_TP *= _clip_factors(g_TP, self.clip_T1[:active, 0])
        if self.kind.has_prox:
            g_TP += self.prox_T1[:active] * (w_TP - self.start_TP[:active])
        if self.offset_TP is not None:
            g_TP += self.offset_TP[:active]
        if self.kind.has_decay:
            g_TP += self.decay_T1[:active] * w_TP

        if self.kind.is_adam:
            g_TP = self._adam_direction(g_TP)
        elif self.kind.has_momentum:
            self.first_moment_TP[:active] *= self.momentum_T1[:active]
            g_TP = self.first_moment_TP[:active].add_(g_TP).clone()
        if finished_T1 is not None:
            g_TP = g_TP.masked_fill_(finished_T1, 0.0)
        w_TP.addcmul_(g_TP, self.lr_T1[:active], value=-1)

    def _adam_direction(self, g_TP: Tensor) -> Tensor:
        """Update both moments, and return the direction of Adam's next step."""
        first_TP = self.first_moment_TP[: len(g_TP)]
        second_TP = self.second_moment_TP[: len(g_TP)]
        first_TP.lerp_(g_TP, 1 - BETA1)
        second_TP.mul_(BETA2).addcmul_(g_TP, g_TP, value=1 - BETA2)
        one, two = (self._weight_so_far(beta, len(g_TP)) for beta in (BETA1, BETA2))
        root_TP = (second_TP / two).sqrt_()
        return first_TP / one / root_TP.add_(EPSILON)

    def _weight_so_far(self, beta: float, active: int) -> float | Tensor:
        """Return 1 - beta^k after k steps; [active, 1] if the tasks differ in k."""
        if self.before_T1 is None:
            return 1 - beta**self.steps_taken
        return (1 - beta ** (self.before_T1[:active] + self.steps_taken)).float()


def _clip_factors(g_TP: Tensor, clip_T: Tensor) -> Tensor:
    """Return by what each gradient is multiplied so that its norm is at most `clip_T`.

    The norms are computed row by row on a CPU, where torch sums one row and several
    ones in different orders: so a task's step does not depend on the others. The small
    number is that of `torch.nn.utils.clip_grad_norm_`.

    Returns:
        [T, 1].
    """
    if g_TP.is_cuda:
        norm_T = torch.linalg.vector_norm(g_TP, dim=1)
    else:
        norm_T = torch.stack([torch.linalg.vector_norm(g_P) for g_P in g_TP])
    factor_T: Tensor = (clip_T / (norm_T + CLIP_EPSILON)).clamp_max_(1.0)
    return factor_T.unsqueeze(1)


def plain_steps(tasks: Tasks, steps_T: Ints) -> Tensor:
    """Compute how many plain steps each task's steps amount to on a constant gradient.

    Without momentum that is the number K of steps. With momentum m the buffer after k
    steps holds (1 - m^k) / (1 - m) gradients, so that all steps together amount to

        sum_{k=1}^{K} (1 - m^k) / (1 - m) = (K - m (1 - m^K) / (1 - m)) / (1 - m).

    If a buffer was kept that b steps have filled, k counts from b + 1 on, and the second
    term is multiplied by m^b.

    Args:
        tasks: the tasks.
        steps_T: [T] how many steps K each of them takes.

    Returns:
        [T] float32.
    """
    taken_T = torch.from_numpy(steps_T)
    m_T = torch.from_numpy(tasks.by_local(lambda local: local.momentum))
    if not m_T.any():
        return taken_T.float()
    column = tasks.columns
    before_T = torch.from_numpy(np.where(column["moments"] < 0, 0, column["before"]))
    lacking_T = m_T ** (1 + before_T) * (1 - m_T**taken_T) / (1 - m_T)
    plain_T = (taken_T - lacking_T) / (1 - m_T)
    return plain_T.float()
