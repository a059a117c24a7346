"""Local training on a GPU: stacks sized by its memory, trained by recorded steps."""

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from raysafl.core.algorithm import LocalTraining, Update
from raysafl.core.objective import Objective
from raysafl.core.work import Task
from raysafl.models import FlatModel
from raysafl.training.device import first_line, is_out_of_memory, with_room
from raysafl.training.engines import Engine
from raysafl.training.inputs import Inputs, batch_width
from raysafl.training.local_step import LocalStep
from raysafl.training.memory import GpuMemory, power_of_two
from raysafl.training.optimizer import StepKind, plain_steps, step_numbers
from raysafl.training.resident import Resident
from raysafl.training.stacks import dropout_seeds, plan_of, stacks_of

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
        model: the model, on the device of the samples.
        inputs: the training samples.
        objective: what gives each sample its loss.
        resident: keeps the recorded steps.
        memory: what stacks are sized by.
    """

    def __init__(
        self,
        engine: Engine,
        model: FlatModel,
        inputs: Inputs,
        objective: Objective,
        resident: Resident,
        memory: GpuMemory,
    ) -> None:
        self.engine = engine
        self.model = model
        self.inputs = inputs
        self.objective = objective
        self.resident = resident
        self.memory = memory
        # The maximum number of samples in a step, once memory has run out.
        self._most_samples: int | None = None
        self._most_convolved = MOST_CONVOLVED if model.has_convolutions else None
        self._last: tuple[Hashable, LocalStep] | None = None
        self._is_recorded = engine.can_record and inputs.x.is_cuda

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

    def train_stacks(
        self, tasks: Sequence[Task], held: Sequence[NDArray[np.int64]]
    ) -> Iterator[tuple[Sequence[int], Update]]:
        """Train tasks, one stack after the other.

        Args:
            tasks: tasks of any clients and cells.
            held: for each the samples that its client holds.

        Yields:
            The positions of a stack's tasks, and what `train` returns for them.

        Raises:
            MemoryError: one task alone needs more memory than the GPU has.
        """
        counts = [len(indices) for indices in held]
        widths = [
            program_width(batch_width(count, task.local), task.local)
            for task, count in zip(tasks, counts, strict=True)
        ]
        left = stacks_of(tasks, counts, widths, self.stack_size)[::-1]
        while left:
            stack = left.pop()
            # It is smaller than it was if memory has run out meanwhile.
            size = self.stack_size(widths[stack[0]], len(stack))
            if size < len(stack):
                left += [stack[i : i + size] for i in range(0, len(stack), size)][::-1]
                continue
            own = [tasks[i] for i in stack]
            plans = [plan_of(tasks[i], held[i]) for i in stack]
            update = self._train_if_memory_allows(own, plans)
            if update is None:
                left.append(stack)
            else:
                yield stack, update

    def train(
        self, tasks: Sequence[Task], plans: Sequence[NDArray[np.int64]]
    ) -> Update:
        """Train one stack, without waiting for the device.

        Args:
            tasks: tasks of one optimizer whose `program_width` is the same, the longest
                first.
            plans: for each its samples [K, B], padded with -1.

        Returns:
            One row per task. `delta_MP`, `loss_M` and `accuracy_M` are on the device,
            which may not have computed them yet. They are new tensors, to which nobody
            writes again. The other columns are on the CPU.
        """
        num_tasks = len(tasks)
        width = program_width(plans[0].shape[1], tasks[0].local)
        kind = StepKind.of(tasks)
        plan_KTB = np.full((len(plans[0]), num_tasks, width), -1, np.int32)
        for t, plan in enumerate(plans):
            plan_KTB[: len(plan), t, : plan.shape[1]] = plan
        seed_KT = None
        if self.model.has_dropout:
            seed_KT = dropout_seeds(tasks, plans)

        step = self._step(kind, num_tasks, width)
        step.begin(tasks)
        step.take_all(plan_KTB, seed_KT, self._taking(step))

        steps_T = torch.tensor([len(plan) for plan in plans])
        samples_T = torch.tensor([int((plan >= 0).sum()) for plan in plans])
        rate_T = step_numbers(tasks)[0] * plain_steps(tasks, steps_T)
        delta_TP, loss_T, accuracy_T = step.results(samples_T)
        return Update(delta_TP, steps_T, rate_T, samples_T, loss_T, accuracy_T)

    def _train_if_memory_allows(
        self, tasks: Sequence[Task], plans: Sequence[NDArray[np.int64]]
    ) -> Update | None:
        """Train one stack; return None if the GPU's memory is too small for several.

        Raises:
            MemoryError: it is too small for one task.
        """
        try:
            return with_room(lambda: self.train(tasks, plans), self._forget)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            reason = first_line(error)
        # The memory is freed after the `except` block: within it, the error still refers to
        # the tensors that were computed.
        self._forget()
        torch.cuda.empty_cache()
        width = plans[0].shape[1]
        if len(tasks) == 1:
            raise MemoryError(
                "out of memory: the local training of one client, with mini-batches of "
                f"{width} samples and {self.model.num_parameters} parameters, does not "
                f"fit into {torch.cuda.get_device_name(self.inputs.x.device)}; give a "
                "smaller batch_size, fewer processes for one GPU, or a GPU with more "
                f"memory (torch says: {reason})"
            )
        self._most_samples = width * (len(tasks) // 2)
        LOG.warning(
            "out of memory with %d clients stacked; at most %d samples are trained "
            "together from now on",
            len(tasks),
            self._most_samples,
        )
        return None

    def _forget(self) -> None:
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
                counts_there=self._is_recorded,
                nbytes=num_tasks * self.memory.bytes_of_task(width),
            )
            if self._is_recorded:
                reads = (self.model.module, self.objective)
                step.record(self.engine, self.inputs, reads, pool)
            return step

        shape = (kind, num_tasks, width)
        if not self._is_recorded:
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


def program_width(width: int, local: LocalTraining) -> int:
    """Return to which width the batches of a client are padded in a program.

    Batches that are narrower than the batch size, those of small clients, are padded to
    a power of two, so that few shapes occur.

    Args:
        width: the client's `batch_width`.
        local: its local training.
    """
    return min(local.batch_size, power_of_two(width))
