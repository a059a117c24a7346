"""What a local step does with a gradient: the terms and buffers of core.SGD, for stacked tasks.

Suffixes: _T tasks, _P flat parameters.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from raysafl.core.work import Task

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's, as in torch


class Descent:
    """The steps of stacked tasks, each with its own rate, terms and buffers (see core.SGD).

    Terms that no task has are not computed. Tasks that have taken their steps are at the end
    of the stack: `step` is given the first ones, which are still active.
    """

    def __init__(self, tasks: Sequence[Task], start_TP: Tensor) -> None:
        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, device=start_TP.device).unsqueeze(1)

        self.start_TP, self.steps = start_TP, 0
        self.lr_T1 = column([task.sgd.rate(task.round) for task in tasks])
        prox, decay, momentum = zip(
            *((task.prox, task.sgd.weight_decay, task.sgd.momentum) for task in tasks), strict=True
        )
        self.prox_T1 = column(list(prox)) if any(prox) else None
        self.decay_T1 = column(list(decay)) if any(decay) else None
        self.momentum_T1 = column(list(momentum)) if any(momentum) else None
        self.offset_TP = _offsets(tasks, start_TP)
        self.adam = tasks[0].sgd.optimizer == "adam"
        if self.adam or any(momentum):
            self.first_TP = torch.zeros_like(start_TP)
        if self.adam:
            self.second_TP = torch.zeros_like(start_TP)

    def step(self, w_TP: Tensor, g_TP: Tensor) -> None:
        """Change w_TP in place by one step on the loss's gradient g_TP, which is overwritten."""
        a = len(w_TP)
        if self.prox_T1 is not None:
            g_TP += self.prox_T1[:a] * (w_TP - self.start_TP[:a])
        if self.offset_TP is not None:
            g_TP += self.offset_TP[:a]
        if self.decay_T1 is not None:
            g_TP += self.decay_T1[:a] * w_TP
        if self.adam:
            g_TP = self._adam(g_TP)
        elif self.momentum_T1 is not None:
            self.first_TP[:a] *= self.momentum_T1[:a]
            g_TP = self.first_TP[:a].add_(g_TP).clone()
        w_TP.addcmul_(g_TP, self.lr_T1[:a], value=-1)

    def _adam(self, g_TP: Tensor) -> Tensor:
        """The direction of Adam's next step, in units of the rate."""
        self.steps += 1
        first_TP, second_TP = self.first_TP[: len(g_TP)], self.second_TP[: len(g_TP)]
        first_TP.lerp_(g_TP, 1 - BETA1)
        second_TP.mul_(BETA2).addcmul_(g_TP, g_TP, value=1 - BETA2)
        root_TP = (second_TP / (1 - BETA2**self.steps)).sqrt_()
        return first_TP / (1 - BETA1**self.steps) / root_TP.add_(EPSILON)


def _offsets(tasks: Sequence[Task], like_TP: Tensor) -> Tensor | None:
    """The tasks' offsets stacked (absent ones zero), or None if no task has one."""
    if all(task.offset_P is None for task in tasks):
        return None
    zero_P = torch.zeros_like(like_TP[0], device="cpu")
    rows = [zero_P if task.offset_P is None else task.offset_P for task in tasks]
    return torch.stack(rows).to(like_TP.device)


def reach(tasks: Sequence[Task], steps_T: Tensor) -> Tensor:
    """How many plain steps K steps of a constant gradient amount to; K without momentum.

    With momentum m the buffer adds up: the sum over k <= K of (1 - m^k) / (1 - m) is
    (K - m (1 - m^K) / (1 - m)) / (1 - m).
    """
    if not any(task.sgd.momentum for task in tasks):
        return steps_T.to(torch.float32)
    m_T = torch.tensor([task.sgd.momentum for task in tasks], dtype=torch.float64)
    reach_T = (steps_T - m_T * (1 - m_T**steps_T) / (1 - m_T)) / (1 - m_T)
    return reach_T.to(torch.float32)
