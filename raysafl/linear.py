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

from raysafl.compiled import compiled
from raysafl.core import SGD, Task
from raysafl.engines import STACK, Gradients
from raysafl.models import FlatModel

CLASSES, SAMPLES = 10, 4  # C and B are multiples of these, for the blocks below
SCORED = 64  # samples evaluated at once
F = np.float32
Stored = tuple[NDArray[Any], NDArray[np.int64], np.float32, np.float32]  # x_ND, y_N, scale, shift


class Tally(NamedTuple):
    """Of each task the sum of its losses, how many samples were right, and how many it saw."""

    loss_T: NDArray[np.float64]
    correct_T: NDArray[np.int64]
    samples_T: NDArray[np.int64]


# sums may be reordered, so that they become vectors: by the shape alone, not by the values
FAST = frozenset({"reassoc", "contract", "nsz"})


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
    def covers(sgd: SGD) -> bool:
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


@compiled(FAST, part=True)
def _unpack(w_CD, b_C, w_P):  # type: ignore[no-untyped-def] # pragma: no cover
    """Weights, with rows of zeros up to a whole block, and biases from one row of parameters."""
    classes, inputs = len(b_C), w_CD.shape[1]
    for c in range(classes):
        for d in range(inputs):
            w_CD[c, d] = w_P[c * inputs + d]
        b_C[c] = w_P[classes * inputs + c]
    w_CD[classes:] = 0


@compiled(FAST, part=True)
def _gather(x_BD, x_ND, rows, scale, shift):  # type: ignore[no-untyped-def] # pragma: no cover
    """X = scale * stored + shift."""
    for i in range(len(rows)):
        row = rows[i]
        for d in range(x_BD.shape[1]):
            x_BD[i, d] = F(x_ND[row, d]) * scale + shift
    for i in range(len(rows), len(x_BD)):
        for d in range(x_BD.shape[1]):
            x_BD[i, d] = 0


@compiled(FAST, part=True)
def _touch(x_ND, rows):  # type: ignore[no-untyped-def] # pragma: no cover
    """One number of each cache line of these samples, summed: so they are fetched side by side,
    where `_gather` would wait for one after the other.
    """
    total, line = F(0), 64 // x_ND.itemsize
    for row in rows:
        for d in range(0, x_ND.shape[1], line):
            total += F(x_ND[row, d])
    return total


@compiled(FAST, part=True)
def _logits(w_CD, x_BD, z_BC):  # type: ignore[no-untyped-def] # pragma: no cover
    """Z = X W', five classes and two samples at a time."""
    for c in range(0, len(w_CD), 5):
        for i in range(0, len(x_BD), 2):
            s0 = s1 = s2 = s3 = s4 = t0 = t1 = t2 = t3 = t4 = F(0)
            for d in range(x_BD.shape[1]):
                s, t = x_BD[i, d], x_BD[i + 1, d]
                w0, w1, w2 = w_CD[c, d], w_CD[c + 1, d], w_CD[c + 2, d]
                w3, w4 = w_CD[c + 3, d], w_CD[c + 4, d]
                s0, s1, s2, s3, s4 = s0 + w0 * s, s1 + w1 * s, s2 + w2 * s, s3 + w3 * s, s4 + w4 * s
                t0, t1, t2, t3, t4 = t0 + w0 * t, t1 + w1 * t, t2 + w2 * t, t3 + w3 * t, t4 + w4 * t
            for j, (s, t) in enumerate(((s0, t0), (s1, t1), (s2, t2), (s3, t3), (s4, t4))):
                z_BC[i, c + j], z_BC[i + 1, c + j] = s, t


@compiled(FAST, part=True)
def _errors(z_BC, b_C, y_N, rows, scale):  # type: ignore[no-untyped-def] # pragma: no cover
    """Z becomes scale * (softmax(Z + b) - onehot(y)); the losses' sum, and how many are right."""
    loss, correct = 0.0, 0
    for i in range(len(rows)):
        top, most, total, own = 0, F(-np.inf), F(0), y_N[rows[i]]
        for c in range(len(b_C)):
            z_BC[i, c] += b_C[c]
            if z_BC[i, c] > most:
                top, most = c, z_BC[i, c]
        correct += top == own
        loss += most - z_BC[i, own]
        for c in range(len(b_C)):
            z_BC[i, c] = np.exp(z_BC[i, c] - most)
            total += z_BC[i, c]
        loss += np.log(total)
        for c in range(len(b_C)):
            z_BC[i, c] *= scale / total
        z_BC[i, own] -= scale
    return loss, correct


@compiled(FAST, part=True)
def _subtract(w_CD, e_BC, x_BD):  # type: ignore[no-untyped-def] # pragma: no cover
    """W -= E' X, two classes and four samples at a time."""
    for i in range(0, len(x_BD), 4):
        for c in range(0, len(w_CD), 2):
            s0, s1, s2, s3 = e_BC[i, c], e_BC[i + 1, c], e_BC[i + 2, c], e_BC[i + 3, c]
            t0, t1, t2, t3 = (
                e_BC[i, c + 1],
                e_BC[i + 1, c + 1],
                e_BC[i + 2, c + 1],
                e_BC[i + 3, c + 1],
            )
            for d in range(x_BD.shape[1]):
                x0, x1, x2, x3 = x_BD[i, d], x_BD[i + 1, d], x_BD[i + 2, d], x_BD[i + 3, d]
                w_CD[c, d] -= s0 * x0 + s1 * x1 + s2 * x2 + s3 * x3
                w_CD[c + 1, d] -= t0 * x0 + t1 * x1 + t2 * x2 + t3 * x3


@compiled(FAST, part=True)
def _pull(w_CD, b_C, pull_CD, pull_C, shrink, lr):  # type: ignore[no-untyped-def] # pragma: no cover
    """W -= lr (shrink W + pull), and b likewise."""
    for c in range(len(b_C)):
        for d in range(w_CD.shape[1]):
            w_CD[c, d] -= lr * (shrink * w_CD[c, d] + pull_CD[c, d])
        b_C[c] -= lr * (shrink * b_C[c] + pull_C[c])


@compiled(FAST)
def _descend(  # type: ignore[no-untyped-def] # pragma: no cover
    w_TP, classes, lr_T, terms, plan, samples, room, tally
):
    """All local steps of every task; its row of parameters becomes start minus end."""
    (w_CD, x_BD, z_BC), (plan_NB, steps_T) = room, plan
    pulled_T, shrink_T, pull_TCD, pull_TC = terms
    (x_ND, y_N, scale, shift), (loss_T, correct_T, samples_T) = samples, tally
    b_C, inputs, stop = np.empty(classes, F), w_CD.shape[1], 0
    for t in range(len(w_TP)):
        _unpack(w_CD, b_C, w_TP[t])
        start, stop = stop, stop + steps_T[t]
        for k in range(start, stop):
            size = 0
            while size < plan_NB.shape[1] and plan_NB[k, size] >= 0:
                size += 1
            rows = plan_NB[k, :size]
            z_BC[0, 0] = _touch(x_ND, rows)  # kept, or it would be optimised away
            _gather(x_BD, x_ND, rows, scale, shift)
            _logits(w_CD, x_BD, z_BC)
            loss, correct = _errors(z_BC, b_C, y_N, rows, lr_T[t] / F(size))
            if pulled_T[t]:
                _pull(w_CD, b_C, pull_TCD[t], pull_TC[t], shrink_T[t], lr_T[t])
            _subtract(w_CD, z_BC, x_BD)
            for i in range(size):
                for c in range(classes):
                    b_C[c] -= z_BC[i, c]
            loss_T[t] += loss
            correct_T[t] += correct
            samples_T[t] += size
        for c in range(classes):
            for d in range(inputs):
                w_TP[t, c * inputs + d] -= w_CD[c, d]
            w_TP[t, classes * inputs + c] -= b_C[c]


@compiled(FAST)
def _score(w_P, classes, samples, room):  # type: ignore[no-untyped-def] # pragma: no cover
    """How many samples are right, and the losses' sum."""
    (w_CD, x_BD, z_BC), (x_ND, y_N, scale, shift) = room, samples
    b_C = np.empty(classes, F)
    _unpack(w_CD, b_C, w_P)
    loss, correct, all_N = 0.0, 0, np.arange(len(y_N))
    for start in range(0, len(y_N), SCORED):
        rows = all_N[start : start + SCORED]
        _gather(x_BD, x_ND, rows, scale, shift)
        _logits(w_CD, x_BD, z_BC)
        more, right = _errors(z_BC, b_C, y_N, rows, F(1))
        loss, correct = loss + more, correct + right
    return correct, loss
