"""Local training on a GPU: stacks sized by its memory, trained by recorded steps."""

import logging
from collections.abc import Callable, Hashable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch

from raysafl.core.algorithm import Update
from raysafl.core.work import Ints, Tasks, TooLargeError
from raysafl.training.device import device_name, within_memory
from raysafl.training.engines import Engine
from raysafl.training.inputs import (
    Held,
    Inputs,
    Plan,
    StepCounts,
    draw_plan,
    step_seeds,
)
from raysafl.training.local_step import LocalStep
from raysafl.training.memory import GpuMemory, power_of_two
from raysafl.training.optimizer import StepKind, plain_steps, step_numbers
from raysafl.training.resident import Parameters, Resident, Starts

LOG = logging.getLogger(__name__)

# The maximum number of samples in a step of stacked convolutions. On an H200, 40 tasks of
# 50 samples take 2.6 ms each for ten steps, 10 take 3.3 ms, 160 take 3.8 ms, and 640 take
# 4.3 ms.
MOST_CONVOLVED = 2048


class GpuTraining:
    """Trains tasks on a GPU, in stacks that fit into its memory.

    The steps of engines that allow it are recorded at the first use of a shape, and
    replayed from then on, also by later trainers with an equal model.

    Args:
        engine: computes the gradients.
        inputs: the training samples, on the device of the engine's model.
        resident: keeps the recorded steps.
        memory: what stacks are sized by.
        parameters: those that are on the device already.
    """

    def __init__(
        self,
        engine: Engine,
        inputs: Inputs,
        resident: Resident,
        memory: GpuMemory,
        parameters: Parameters,
    ) -> None:
        self.engine = engine
        self.model = engine.model
        self.inputs = inputs
        self.objective = engine.objective
        self.resident = resident
        self.memory = memory
        self.parameters = parameters
        # The maximum number of samples in a step, once memory has run out.
        self._most_samples: int | None = None
        self._most_convolved = MOST_CONVOLVED if self.model.has_convolutions else None
        self._last: tuple[Hashable, LocalStep] | None = None
        self.is_recorded = engine.can_record and inputs.x.is_cuda

    def stack_size(self, width: int, count: int) -> int:
        """Return how many tasks take their steps together.

        Tasks are divided evenly, so that their stacks have one shape or two.

        Args:
            width: the number of samples in a task's batch, absent ones included.
            count: the number of tasks.
        """
        if not self.engine.is_stacked:
            return 1
        most = self.memory.most_tasks(width)
        for samples in (self._most_samples, self._most_convolved):
            if samples is not None:
                most = max(1, min(most, samples // width))
        return -(-count // -(-count // most))

    def train_stacks(self, tasks: Tasks, held: Held) -> Iterator[tuple[Ints, Update]]:
        """Train tasks, one stack after the other.

        Args:
            tasks: tasks of any clients and cells.
            held: the samples that their clients hold.

        Yields:
            The positions of a stack's tasks, and what `train` returns for them.

        Raises:
            TooLargeError: one task alone needs more memory than the GPU has.
            MemoryError: the starts of several tasks together need more.
        """
        steps = StepCounts.of(tasks, held.samples_T)
        batch_T = tasks.by_local(lambda local: local.batch_size).tolist()
        widths = list(map(program_width, steps.width_T.tolist(), batch_T))
        steps = steps._replace(width_T=np.array(widths))
        w_VP, row_T = self.starts(tasks)

        def cut(stack: Ints) -> list[Ints]:
            size = self.stack_size(widths[stack[0]], len(stack))
            return [stack[i : i + size] for i in range(0, len(stack), size)]

        def train(stack: Ints) -> Update:
            plan = draw_plan(tasks[stack], held.part(stack), steps.part(stack))
            return self.train(tasks[stack], plan, Starts(w_VP, row_T[stack]))

        return within_memory(
            train,
            steps.stacks(tasks, self.stack_size),
            cut,
            lambda stack, reason: self._lower(len(stack), widths[stack[0]], reason),
            self.forget,
        )

    def train(self, tasks: Tasks, plan: Plan, starts: Starts) -> Update:
        """Train one stack, without waiting for the device.

        Args:
            tasks: tasks of one optimizer whose `program_width` is the same, the longest
                first.
            plan: their mini-batches, of this width.
            starts: the parameters that they start from.

        Returns:
            One row per task. `delta_MP`, `loss_M`, `accuracy_M` and `moments_MVP` are on
            the device, which may not have computed them yet. They are new tensors, to which nobody
            writes again. The other columns are on the CPU.
        """
        num_tasks = len(tasks)
        width = plan.index_NB.shape[1]
        kind = StepKind.of(tasks)
        seed_KT = None
        if self.model.has_dropout or self.inputs.augment is not None:
            seed_KT = step_seeds(tasks, plan.steps_T)

        step = self._step(kind, num_tasks, width)
        step.begin(tasks, starts)
        plan_KTB = plan.stacked().astype(np.int32)
        step.take_all(plan_KTB, seed_KT, self._taking(step))

        steps_T = torch.from_numpy(plan.steps_T)
        samples_T = torch.from_numpy(plan.samples_T())
        rate_T = step_numbers(tasks)[0] * plain_steps(tasks, plan.steps_T)
        delta_TP, loss_T, accuracy_T = step.results(samples_T)
        columns = (steps_T, rate_T, samples_T, loss_T, accuracy_T)
        return Update(delta_TP, *columns, step.optimizer.kept())

    def starts(self, tasks: Tasks) -> Starts:
        """Return from where tasks start, on the device.

        Raises:
            TooLargeError: the one vector from which all tasks start does not fit.
            MemoryError: the several vectors do not fit together.
        """

        def refuse(tasks: Tasks, reason: str) -> None:
            vectors = sum(map(len, tasks.starts))
            kind = TooLargeError if vectors == 1 else MemoryError
            raise kind(
                "out of memory: the parameters from which clients start their training, "
                f"{vectors} times {self.model.num_parameters} numbers, do not fit into the "
                f"memory of {device_name(self.inputs.x.device)}; give fewer clients a round, "
                "fewer processes for one GPU, or a GPU with more memory (torch says: "
                f"{reason})"
            )

        found = within_memory(
            self.parameters.starts, [tasks], lambda one: [one], refuse, self.forget
        )
        return next(found)[1]

    def _lower(self, num_tasks: int, width: int, reason: str) -> None:
        """Stack at most half as many tasks from now on.

        Args:
            num_tasks: the number of tasks that did not fit together.
            width: the number of samples in a task's batch.
            reason: what torch says.

        Raises:
            TooLargeError: one task alone needs more memory than there is.
        """
        if num_tasks == 1:
            raise TooLargeError(
                "out of memory: the local training of one client, with mini-batches of "
                f"{width} samples and {self.model.num_parameters} parameters, does not "
                f"fit into the memory of {device_name(self.inputs.x.device)}; give a smaller "
                "batch_size, fewer processes for one GPU, or a GPU with more memory (torch "
                f"says: {reason})"
            )
        self._most_samples = width * (num_tasks // 2)
        LOG.warning(
            "out of memory with %d clients stacked; at most %d samples are trained "
            "together from now on",
            num_tasks,
            self._most_samples,
        )

    def forget(self) -> None:
        """Let go of the steps that are kept, with their memory."""
        self._last = None
        self.resident.forget_steps()

    def _taking(self, step: LocalStep) -> Callable[[], Any]:
        """Return what takes one step: a replay, or the program itself."""
        if step.graph is not None:
            replay: Callable[[], Any] = step.graph.replay
            return replay
        return lambda: step.take(self.engine, self.inputs)

    def _step(self, kind: StepKind, num_tasks: int, width: int) -> LocalStep:
        """Return the step for these shapes: a recorded one, or a new one."""

        def make(pool: Any = None) -> LocalStep:
            step = LocalStep(
                kind,
                num_tasks,
                width,
                self.model.num_parameters,
                self.inputs.x.device,
                counts_there=self.is_recorded,
                nbytes=num_tasks * self.memory.bytes_of_task(width),
            )
            if self.is_recorded:
                reads = (self.model.module, self.objective)
                step.record(self.engine, self.inputs, reads, pool)
            return step

        shape = (kind, num_tasks, width)
        if not self.is_recorded:
            # The tensors of the last stack serve the next one of the same shape.
            if self._last is None or self._last[0] != shape:
                self._last = None
                self._last = (shape, make())
            return self._last[1]
        key = (*self._key, *shape)
        recorded: LocalStep = self.resident.step(key, make)
        return recorded

    @cached_property
    def _key(self) -> tuple[Hashable, ...]:
        """What a recorded step depends on, beside its shapes and the optimizer.

        The id of the samples names them while a recorded step holds them.
        """
        return (
            type(self.engine),
            self.model.key,
            type(self.objective),
            self.objective.digest(),
            id(self.inputs),
        )


def program_width(width: int, batch_size: int) -> int:
    """Return to which width the batches of a client are padded in a program.

    Batches that are narrower than the batch size, those of small clients, are padded to
    a power of two, so that few shapes occur.

    Args:
        width: the client's `batch_width`.
        batch_size: the batch size of its local training.
    """
    return min(batch_size, power_of_two(width))
