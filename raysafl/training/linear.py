"""Engines for logistic regression: batched products, or compiled loops over tasks.

Matrices here may have more rows than there are classes (C) or samples (B): the compiled
loops work on whole blocks, and the extra rows hold zeros. See `raysafl.kernels.linear`.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.algorithm import LocalTraining
from raysafl.core.objective import Objective
from raysafl.core.work import Floats, Tasks
from raysafl.models import FlatModel
from raysafl.objectives import PLAIN, has_plain_losses
from raysafl.training.inputs import STACK, Batch, Gradients, Inputs, Plan, Stored

# The numbers that the compiled loops compute with.
F = np.float32


class Linear:
    """The engine "linear": two batched matrix products per step, and no autograd.

    With P = softmax(X W' + b) and E = (P - onehot(y)) * weight, the gradient of the
    weighted cross-entropy is

        g_W = E' X,    g_b = sum_B E.

    Args:
        model: a float32 model of one linear layer (`FlatModel.linear_shape` is not
            None).
        objective: one with plain cross-entropies (`has_plain_losses`).
    """

    is_stacked: ClassVar[bool] = True
    can_record: ClassVar[bool] = True

    def __init__(self, model: FlatModel, objective: Objective = PLAIN) -> None:
        assert model.linear_shape is not None
        assert has_plain_losses(objective, model.num_outputs)
        self.model = model
        self.objective = objective
        self.classes, self.inputs = model.linear_shape

    def max_stack(self, width: int) -> int:
        """Return STACK for any width: more tasks in one call gain nothing."""
        return STACK

    def gradients(self, batch: Batch) -> Gradients:
        """Compute all tasks' gradients by the closed form above."""
        w_TP, x_TB, y_TB, weight_TB, _ = batch
        w_TCD, b_TC = self._weights_and_biases(w_TP)
        x_TBD = x_TB.flatten(2)
        y_T1B = y_TB.unsqueeze(1)
        if self.inputs == 1:
            # Products over one column, as with one column, are rounded differently for one
            # task and for several. A second column of zeros changes no sum.
            w_TCD, x_TBD = (
                torch.nn.functional.pad(own, (0, 1)) for own in (w_TCD, x_TBD)
            )

        # Classes before samples: the products take half the time of the other order.
        # And max takes a tenth of argmax's time.
        x_TDB = _not_alone(x_TBD).mT
        z_TCB = torch.baddbmm(b_TC.unsqueeze(2), w_TCD, x_TDB)[:, :, : x_TBD.shape[1]]
        log_TCB = z_TCB.log_softmax(1)
        correct_TB = log_TCB.max(1).indices == y_TB
        loss_TB = -log_TCB.gather(1, y_T1B).squeeze(1)

        error_TCB = log_TCB.exp_()
        # A comparison, since scatter_add_ has no deterministic form on a GPU.
        class_C1 = torch.arange(self.classes, device=y_TB.device).unsqueeze(1)
        error_TCB -= (class_C1 == y_T1B).to(error_TCB.dtype)
        error_TCB *= weight_TB.unsqueeze(1)

        g_TP = torch.empty_like(w_TP)
        g_TCD, g_TC = self._weights_and_biases(g_TP)
        if self.inputs == 1:
            g_TCD.copy_(torch.bmm(error_TCB, x_TBD)[:, :, :1])
        else:
            torch.bmm(error_TCB, x_TBD, out=g_TCD)
        torch.sum(error_TCB, 2, out=g_TC)
        return Gradients(g_TP, loss_TB, correct_TB)

    def logits(self, w_RP: Tensor, x_B: Tensor) -> Tensor:
        """Compute [R, B, C] logits of several models on one batch.

        There is one product per model: the rounding of one product for all of them
        would depend on how many they are.
        """
        w_RCD, b_RC = self._weights_and_biases(w_RP)
        x_RDB = _not_alone(x_B.flatten(1)[None]).mT.expand(len(w_RP), -1, -1)
        z_RCB = torch.bmm(w_RCD, x_RDB).add_(b_RC.unsqueeze(2))
        return z_RCB[:, :, : len(x_B)].transpose(1, 2)

    def _weights_and_biases(self, w_TP: Tensor) -> tuple[Tensor, Tensor]:
        """Return flat parameters as views: weights [T, C, D] and biases [T, C]."""
        cut = self.classes * self.inputs
        return w_TP[:, :cut].view(len(w_TP), self.classes, self.inputs), w_TP[:, cut:]


class Fused(Linear):
    """The engine "fused": whole tasks of plain SGD in one compiled call, on a CPU.

    A task's weights stay in the core's nearest cache from its first step to its last,
    and samples are read as they are stored. Whatever it does not cover is done as by
    `Linear`.
    """

    @staticmethod
    def covers(local: LocalTraining) -> bool:
        """Return whether tasks with this local training can be trained by `train`.

        Their steps must be w <- w - lr (gradient + terms), without the buffers of
        momentum or Adam, and without a limit on the gradient's norm, which is known
        only after a whole pass over the gradient.
        """
        return (
            local.optimizer == "sgd" and local.momentum == 0 and local.clip_norm is None
        )

    def train(self, tasks: Tasks, plan: Plan, data: Stored) -> tuple[Tensor, Floats]:
        """Train every task on its plan; none depends on another.

        If torch has one thread, one call trains all tasks; otherwise as many threads
        train a task each at a time. The results are the same to the last bit.

        Args:
            tasks: tasks that this engine `covers`.
            plan: their mini-batches.
            data: the training set.

        Returns:
            [T, P] start minus end of each task; and [T, 3] of the samples that it has seen
            the sum of their cross-entropies, how many were classified correctly, and how
            many they are.
        """
        delta_TP = tasks.stacked("start")
        w_TP = delta_TP.numpy()
        tally_T3 = np.zeros((len(tasks), 3))
        threads = torch.get_num_threads()
        if threads == 1:
            self._train(tasks, plan, w_TP, data, tally_T3)
            return delta_TP, tally_T3

        stops = np.cumsum(plan.steps_T).tolist()

        def train_one(t: int) -> None:
            own = slice(t, t + 1)
            rows = plan.index_NB[stops[t] - plan.steps_T[t] : stops[t]]
            own_plan = Plan(rows, plan.steps_T[own])
            self._train(tasks[own], own_plan, w_TP[own], data, tally_T3[own])

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(train_one, range(len(tasks))))
        return delta_TP, tally_T3

    def score(self, w_RP: Tensor, data: Stored) -> Tensor:
        """Count correct classifications and sum the cross-entropies of each model.

        Args:
            w_RP: [R, P] parameters.
            data: the samples to evaluate.

        Returns:
            [2, R] float64: the counts, and the sums.
        """
        # Imported here, because numba takes some tenths of a second to import.
        from raysafl.kernels.linear import SCORED, score

        sums_2R = np.empty((2, len(w_RP)))
        score(w_RP.numpy(), self.classes, data, self._buffers(SCORED), sums_2R)
        return torch.from_numpy(sums_2R)

    def _train(
        self,
        tasks: Tasks,
        plan: Plan,
        w_TP: NDArray[np.float32],
        data: Stored,
        tally_T3: Floats,
    ) -> None:
        """Train some tasks from their rows of w_TP, which become start minus end."""
        from raysafl.kernels.linear import descend

        lr_T = tasks.columns["rate"].astype(F)
        terms = _shrink_and_pulls(tasks, w_TP)
        buffers = self._buffers(plan.index_NB.shape[1])
        descend(w_TP, self.classes, lr_T, terms, tuple(plan), data, buffers, tally_T3)

    def _buffers(self, batch: int) -> tuple[NDArray[np.float32], ...]:
        """Return memory, in whole blocks, for weights, a batch and its logits."""
        from raysafl.kernels.linear import CLASS_BLOCK, SAMPLE_BLOCK

        rows = -(-batch // SAMPLE_BLOCK) * SAMPLE_BLOCK
        classes = -(-self.classes // CLASS_BLOCK) * CLASS_BLOCK
        return (
            np.empty((classes, self.inputs), F),
            np.empty((rows, self.inputs), F),
            np.empty((rows, classes), F),
        )


def as_fused(engine: object, inputs: Inputs) -> Fused | None:
    """Return the engine if it can train and score whole tasks on these samples.

    Returns:
        None if it is another engine, if the samples are on a GPU, if they are tokens, or
        if they are images that are augmented.
    """
    readable = inputs.x.device.type == "cpu" and inputs.x.dtype != torch.int64
    readable = readable and inputs.augment is None
    return engine if isinstance(engine, Fused) and readable else None


def _not_alone(x_TBD: Tensor) -> Tensor:
    """Return batches; where they are of one sample, with a second one of zeros.

    A product with one column is rounded differently for one task and for several.
    """
    if x_TBD.shape[1] > 1:
        return x_TBD
    return torch.nn.functional.pad(x_TBD, (0, 0, 0, 1))


def _shrink_and_pulls(
    tasks: Tasks, start_TP: NDArray[np.float32]
) -> tuple[NDArray[Any], ...]:
    """Express what a step adds to the loss's gradient in the form shrink * w + pull.

    That is prox (w - w_start) + offset + weight_decay w, so that
    shrink = prox + weight_decay and pull = offset - prox w_start.

    Returns:
        has_terms_T, whether a task has any; shrink_T; and pull_TP, without rows if no
        task has terms.
    """
    column = tasks.columns
    shrink_T = column["prox"] + tasks.by_local(lambda local: local.weight_decay)
    has_offset_T = column["offset"] >= 0
    has_terms_T = has_offset_T | (shrink_T != 0)
    pull_TP = start_TP[:0]
    if has_terms_T.any():
        pull_TP = start_TP * -column["prox"].astype(F)[:, None]
        (some,) = np.nonzero(has_offset_T)
        if len(some):
            pull_TP[some] += tasks[some].stacked("offset").numpy()
    return has_terms_T, shrink_T.astype(F), pull_TP
