"""One local step of stacked tasks as a program on fixed tensors, for GPUs.

A GPU is fast if it is started seldom and never waited for. So a step, from gathering
the samples to the new parameters and the tally, works on tensors that stay where they
are, and reads nothing from Python: it takes its samples by a counter on the device.
Such a program can be recorded as one CUDA graph, and a step is one replay of it.

Shapes do not depend on the step. Tasks that have taken all their steps stay in the
stack and do not change.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.work import Tasks
from raysafl.training.device import (
    first_line,
    is_out_of_memory,
    record,
    upload,
    upload_into,
)
from raysafl.training.engines import Engine
from raysafl.training.inputs import Batch, Inputs
from raysafl.training.optimizer import (
    StackedOptimizer,
    StepKind,
    step_numbers,
)
from raysafl.training.resident import Starts

# The number of steps whose samples are on the device at a time. It bounds memory, and
# lets trainings of any length share one recorded step.
STEPS = 64


class LocalStep:
    """The tensors of a stack of tasks, and the program that takes one step of them all.

    Args:
        kind: which equations of the optimizer are computed.
        tasks: the number T of tasks.
        width: the number B of samples in a batch, absent ones included.
        num_parameters: the number P of parameters.
        device: where the tensors are.
        counts_there: whether steps are counted on the device, as a recorded program
            must; otherwise Python counts, which saves operators.
        nbytes: the bytes that it is estimated to need on the device, those that a step
            needs on the way included: a recorded program keeps them for itself.

    Attributes:
        graph: the recorded program; None until it is recorded.
    """

    def __init__(
        self,
        kind: StepKind,
        tasks: int,
        width: int,
        num_parameters: int,
        device: torch.device,
        counts_there: bool,
        nbytes: int,
    ) -> None:
        self.nbytes = nbytes
        shape = (tasks, num_parameters)
        plan = (STEPS, tasks, width)
        # The samples of the next steps, and what each weighs in its batch: an absent
        # one nothing. A task without any sample in a step is finished.
        self.index_KTB = torch.zeros(plan, dtype=torch.int64, device=device)
        self.weight_KTB = torch.zeros(plan, device=device)
        self.seed_KT = torch.zeros((STEPS, tasks), dtype=torch.int64, device=device)

        self.numbers_5T = torch.zeros((5, tasks), device=device)
        self.start_TP = torch.zeros(shape, device=device)
        self.offset_TP = torch.zeros(shape, device=device) if kind.has_offset else None
        self.w_TP = torch.zeros(shape, device=device)
        self.optimizer = StackedOptimizer(
            kind, self.numbers_5T, self.start_TP, self.offset_TP
        )
        if counts_there:
            # It is float64 because Adam computes powers with it.
            self.optimizer.steps_taken = torch.zeros(
                (), dtype=torch.float64, device=device
            )
        # Of each task: the sum of its samples' losses, and the number of hits, which is
        # NaN if the objective has no accuracy.
        self.tally_2T = torch.zeros((2, tasks), dtype=torch.float64, device=device)
        self.graph: Any = None
        self._reads: tuple[Any, ...] = ()

    def take(self, engine: Engine, inputs: Inputs) -> None:
        """Take the next step of every task that is not finished.

        This is what is recorded, so it must neither wait for the device nor depend on
        a value of Python that differs from step to step.

        Args:
            engine: computes the gradients.
            inputs: the training samples.
        """
        index_TB, weight_TB, seed_T = self._of_this_step()
        x_TB, y_TB = inputs.at(index_TB, seed_T)
        batch = Batch(self.w_TP, x_TB, y_TB, weight_TB, seed_T)
        g_TP, loss_TB, correct_TB = engine.gradients(batch)
        absent_TB = weight_TB == 0
        # The first sample of a batch is absent only if all are.
        self.optimizer.step(self.w_TP, g_TP, finished_T1=absent_TB[:, :1])

        if correct_TB is None:
            correct_TB = torch.full_like(loss_TB, torch.nan)
        seen_2TB = torch.stack([loss_TB, correct_TB.to(loss_TB.dtype)])
        # What is absent is left out, not multiplied by 0, which would keep a NaN.
        seen_2TB.masked_fill_(absent_TB, 0)
        self.tally_2T += seen_2TB.sum(2, dtype=torch.float64)

    def _of_this_step(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return this step's samples, their weights, and the tasks' seeds."""
        taken = self.optimizer.steps_taken
        plan = (self.index_KTB, self.weight_KTB, self.seed_KT)
        if isinstance(taken, int):
            index_TB, weight_TB, seed_T = (part[taken % STEPS] for part in plan)
        else:
            k_1 = (taken % STEPS).long().view(1)
            index_TB, weight_TB, seed_T = (
                part.index_select(0, k_1).squeeze(0) for part in plan
            )
        return index_TB, weight_TB, seed_T

    def record(self, engine: Engine, inputs: Inputs, reads: Any, pool: Any) -> None:
        """Record `take` as a CUDA graph.

        Args:
            engine: computes the gradients. Neither the graph nor this object holds it.
            inputs: the training samples.
            reads: whatever else the graph may read from: it is held as long as the
                graph, since memory that is freed is used for other things.
            pool: see `raysafl.training.device.record`.

        Raises:
            ValueError: the model does what a CUDA graph does not allow.
        """
        try:
            self.graph = record(lambda: self.take(engine, inputs), pool)
        except (RuntimeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            raise ValueError(
                "a local step of this model cannot be recorded as a CUDA graph, so it "
                "must be given engine='vmap', 'loop' or 'auto' (torch "
                f"says: {first_line(error)})"
            ) from error
        self._reads = (inputs, reads)

    def begin(self, tasks: Tasks, starts: Starts) -> None:
        """Put some tasks at their starts, in place of those that were here before."""
        device = self.w_TP.device
        row_T = upload(torch.from_numpy(starts.row_T), device)
        torch.index_select(starts.w_VP, 0, row_T, out=self.start_TP)
        if self.offset_TP is not None:
            upload_into(self.offset_TP, tasks.stacked("offset"))
        self.w_TP.copy_(self.start_TP)

        upload_into(self.numbers_5T, step_numbers(tasks))
        self.optimizer.restart(tasks)
        self.tally_2T.zero_()

    def take_all(
        self,
        plan_KTB: NDArray[np.int32],
        seed_KT: NDArray[np.int64] | None,
        take_one: Callable[[], Any],
    ) -> None:
        """Take all steps of the tasks that have begun.

        Args:
            plan_KTB: the samples of each step, absent ones included.
            seed_KT: the `step_seeds`; None if nothing is drawn by them.
            take_one: takes one step: it calls `take`, or replays the graph.
        """
        for first in range(0, len(plan_KTB), STEPS):
            some = slice(first, first + STEPS)
            self._load(plan_KTB[some])
            steps = len(plan_KTB[some])
            if seed_KT is not None:
                upload_into(self.seed_KT[:steps], torch.from_numpy(seed_KT[some]))
            for _ in range(steps):
                take_one()

    def _load(self, plan_KTB: NDArray[np.int32]) -> None:
        """Put the samples of the next steps, at most STEPS, onto the device."""
        steps = len(plan_KTB)
        plan = upload(torch.from_numpy(plan_KTB), self.w_TP.device)
        valid_KTB = plan >= 0
        # The weights of the samples that are there add up to 1.
        counts_KT1 = valid_KTB.sum(2, keepdim=True).clamp_min_(1)
        torch.div(valid_KTB, counts_KT1, out=self.weight_KTB[:steps])
        self.index_KTB[:steps].copy_(plan.clamp_min(0))

    def results(self, samples_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return start minus end, mean loss and accuracy of the tasks.

        They are new tensors on the device, which the next stack does not change.

        Args:
            samples_T: the number of samples that each task has seen.
        """
        delta_TP = self.start_TP - self.w_TP
        seen_T = upload(samples_T, self.w_TP.device)
        loss_T, accuracy_T = self.tally_2T / seen_T
        return delta_TP, loss_T, accuracy_T
