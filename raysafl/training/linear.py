"""Logistic regression by hand, and clients' whole local training as one compiled loop.

A step of a linear model is less work than carrying its operands to and fro. Here the weights of a
task stay in the core's nearest cache from its first step to its last, and samples are read as
they are stored. numba compiles the loop when it is first used, and keeps it on disk.

Suffixes: _T tasks, _P flat parameters, _K local steps, _B batch, _C classes, _D inputs, _N samples.
B and C are rounded up to whole blocks here; what is too many is zero.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.algorithm import LocalTraining
from raysafl.core.work import Task
from raysafl.kernels.linear import CLASSES, SAMPLES, SCORED, F, _descend, _score
from raysafl.models import FlatModel
from raysafl.training.engines import STACK, Gradients

Stored = tuple[NDArray[Any], NDArray[np.int64], np.float32, np.float32]  # x_ND, y_N, scale, shift


class Tally(NamedTuple):
    """Of each task the sum of its losses, how many samples were right, and how many it saw."""

    loss_T: NDArray[np.float64]
    correct_T: NDArray[np.int64]
    samples_T: NDArray[np.int64]


class Linear:
    """Logistic regression by hand: two batched matrix products per step and no autograd.

    With P = softmax(X W' + b) and E = (P - onehot(y)) * weight:  gW = E' X,  gb = sum_B E.
    """

    def __init__(self, model: FlatModel) -> None:
        assert model.linear is not None
        self.classes, self.inputs = model.linear

    def stack(self, width: int) -> int:
        """As many as are worth a call."""
        return STACK

    def _parts(self, w_TP: Tensor) -> tuple[Tensor, Tensor]:
        cut = self.classes * self.inputs
        return w_TP[:, :cut].view(len(w_TP), self.classes, self.inputs), w_TP[:, cut:]

    def gradients(
        self, w_TP: Tensor, x_TB: Tensor, y_TB: Tensor, weight_TB: Tensor, seed_T: Tensor | None
    ) -> Gradients:
        """The closed form above."""
        w_TCD, b_TC = self._parts(w_TP)
        x_TBD, y_T1B = x_TB.flatten(2), y_TB.unsqueeze(1)
        # classes before samples: the products are twice as fast as the other way round
        log_TCB = torch.baddbmm(b_TC.unsqueeze(2), w_TCD, x_TBD.transpose(1, 2)).log_softmax(1)
        correct_TB = log_TCB.max(1).indices == y_TB  # ten times as fast as argmax
        loss_TB = -log_TCB.gather(1, y_T1B).squeeze(1)
        error_TCB = log_TCB.exp_()
        error_TCB.scatter_add_(1, y_T1B, torch.full_like(y_T1B, -1, dtype=error_TCB.dtype))
        error_TCB *= weight_TB.unsqueeze(1)
        g_TP = torch.empty_like(w_TP)
        g_TCD, g_TC = self._parts(g_TP)
        torch.bmm(error_TCB, x_TBD, out=g_TCD)
        torch.sum(error_TCB, 2, out=g_TC)
        return Gradients(g_TP, loss_TB, correct_TB)

    def logits(self, w_RP: Tensor, x_B: Tensor) -> Tensor:
        """One product per model: as one for all, its rounding would depend on their number."""
        w_RCD, b_RC = self._parts(w_RP)
        x_RDB = x_B.flatten(1).T.expand(len(w_RP), -1, -1)
        return torch.bmm(w_RCD, x_RDB).add_(b_RC.unsqueeze(2)).transpose(1, 2)


class Fused(Linear):
    """`Linear`, with local SGD compiled; on a CPU."""

    @staticmethod
    def covers(sgd: LocalTraining) -> bool:
        """Whether steps are w -= lr (gradient + terms), without buffers: no momentum, no Adam."""
        return sgd.optimizer == "sgd" and sgd.momentum == 0

    def descend(
        self, tasks: Sequence[Task], plans: Sequence[NDArray[np.int64]], data: Stored
    ) -> tuple[Tensor, Tally]:
        """Train every task on its plan [K, B] of samples, padded with -1; all have the same B.

        Returns start minus end per task, [T, P], and the tasks' tally. One thread takes them all in
        one call; several take one after the other. None depends on another.
        """
        delta_TP, threads = torch.stack([task.w_P for task in tasks]), torch.get_num_threads()
        size = len(tasks) if threads == 1 else 1
        shares = [slice(i, i + size) for i in range(0, len(tasks), size)]

        def share(some: slice) -> Tally:
            return self._train(tasks[some], plans[some], delta_TP[some].numpy(), data)

        with ThreadPoolExecutor(threads) if threads > 1 else nullcontext() as pool:
            found = list(pool.map(share, shares) if pool else map(share, shares))
        return delta_TP, Tally(*map(np.concatenate, zip(*found, strict=True)))

    def _train(
        self,
        tasks: Sequence[Task],
        plans: Sequence[NDArray[np.int64]],
        w_TP: NDArray[np.float32],
        data: Stored,
    ) -> Tally:
        """Train some tasks from their rows of parameters, which become start minus end."""
        tally = Tally(*(np.zeros(len(tasks), kind) for kind in (float, int, int)))
        lr_T = np.array([task.sgd.rate(task.round) for task in tasks], F)
        plan = np.concatenate(plans), np.array([len(plan) for plan in plans])
        room = self._room(plans[0].shape[1])
        terms = _terms(tasks, (self.classes, self.inputs))
        _descend(w_TP, self.classes, lr_T, terms, plan, data, room, tuple(tally))
        return tally

    def score(self, w_RP: Tensor, data: Stored) -> Tensor:
        """How many samples each model has right, and the sum of its losses: [2, R] float64."""
        room = self._room(SCORED)
        found = [_score(w_P, self.classes, data, room) for w_P in w_RP.numpy()]
        return torch.tensor(found, dtype=torch.float64).T

    def _room(self, batch: int) -> tuple[NDArray[np.float32], ...]:
        """Where the weights, a batch's samples and its logits are kept."""
        rows, classes = _blocks(batch, SAMPLES), _blocks(self.classes, CLASSES)
        shapes = (classes, self.inputs), (rows, self.inputs), (rows, classes)
        return tuple(np.empty(shape, F) for shape in shapes)


def _blocks(size: int, block: int) -> int:
    return -(-size // block) * block


def _terms(tasks: Sequence[Task], shape: tuple[int, int]) -> tuple[NDArray[Any], ...]:
    """What steps add to the loss's gradient (see core.SGD) as `shrink * w + pull`.

    It is prox (w - start) + offset + decay w. First whether a task has any; no pulls if none has:
    those of its weights, shaped (C, D), and of its biases.
    """
    shrink_T = np.array([task.prox + task.sgd.weight_decay for task in tasks])
    pulled_T = np.array([task.offset_P is not None for task in tasks]) | (shrink_T != 0)
    rows, (classes, inputs) = len(tasks) if pulled_T.any() else 0, shape
    pull_TCD, pull_TC = np.empty((rows, classes, inputs), F), np.empty((rows, classes), F)
    for t, task in enumerate(tasks):
        if pulled_T[t]:
            pull = -task.prox * task.w_P
            pull_P = (pull if task.offset_P is None else pull + task.offset_P).numpy()
            pull_TCD[t] = pull_P[: classes * inputs].reshape(shape)
            pull_TC[t] = pull_P[classes * inputs :]
    return pulled_T, shrink_T.astype(F), pull_TCD, pull_TC
