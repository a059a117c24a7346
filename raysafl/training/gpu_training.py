"""Local training on a GPU: stacks sized by its memory, trained by recorded steps.

How many tasks are trained together, and how many models are evaluated together, follows
from the model and from the GPU's whole memory. The memory that is free at the moment would
be the wrong measure: it depends on other processes and on what ran before, and with the
number of stacked tasks a GPU may choose other kernels, so that a run could not be repeated
to the bit on the same kind of GPU.
"""

import logging
import sys
from collections.abc import Callable, Hashable, Iterator
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from raysafl.core.algorithm import Update
from raysafl.core.objective import Objective
from raysafl.core.work import Ints, Tasks, TooLargeError
from raysafl.models import FlatModel
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
from raysafl.training.local_step import STEPS, LocalStep
from raysafl.training.optimizer import StepKind, plain_steps, step_numbers
from raysafl.training.resident import Parameters, Resident, Starts

LOG = logging.getLogger(__name__)

# The maximum number of samples in a step of stacked convolutions. On an H200, 40 tasks of
# 50 samples take 2.6 ms each for ten steps, 10 take 3.3 ms, 160 take 3.8 ms, and 640 take
# 4.3 ms.
MOST_CONVOLVED = 2048

# Shares of the GPU's memory. What they leave is for the samples, for the outputs of
# libraries and for CUDA itself, which takes half a gigabyte a process. A round has stacks of
# one or two shapes, so two of the largest recorded steps are kept.
STEP_SHARE = 0.25
EVALUATION_SHARE = 0.125
PARAMETERS_SHARE = 0.0625
RECORDED_SHARE = 0.5

# The maximum number of tasks, or of models, that are stacked. At this number a GPU is
# busy even with small models.
MOST_STACKED = 1024

# While gradients are computed, memory is needed for what autograd saves, and about as
# much again for the gradients of the activations and for the work space of libraries.
BACKWARD = 2

# Vectors [P] of a task: its parameters, start, gradient, offset, two moments, and what
# is computed from them on the way. Adam needs most.
VECTORS = 10

FLOAT_BYTES = 4
# Bytes of a sample in the plan of a stack's steps: its position and its weight, and on the
# way there its position once more, whether it is there, and a number for each batch.
PLAN_BYTES = 24


class GpuMemory(NamedTuple):
    """What stacks are sized by.

    Args:
        total: the bytes of the GPU that this process may use.
        sample_bytes: the bytes that autograd saves for a sample.
        num_parameters: the number P of parameters.
    """

    total: int
    sample_bytes: int
    num_parameters: int

    @classmethod
    def of(
        cls,
        model: FlatModel,
        objective: Objective,
        inputs: Inputs,
        device_share: float = 1.0,
    ) -> Self:
        """Return the memory of the GPU that holds some samples.

        Args:
            model: the model that is trained, on the GPU.
            objective: what gives each sample its loss.
            inputs: the training samples, on the GPU.
            device_share: the process's share of the GPU, above 0 and at most 1.
        """
        properties = torch.cuda.get_device_properties(inputs.x.device)
        total = int(properties.total_memory * device_share)
        one = bytes_per_sample(model, objective, inputs)
        return cls(total, one, model.num_parameters)

    def most_tasks(self, width: int) -> int:
        """Return how many tasks take their steps together at most, a power of two.

        Args:
            width: the number of samples in a task's batch.
        """
        return _stack_of(self.total * STEP_SHARE, self.bytes_of_task(width))

    def bytes_of_task(self, width: int) -> int:
        """Return the bytes that a task needs while it takes its steps.

        Args:
            width: the number of samples in its batch.
        """
        vectors = VECTORS * FLOAT_BYTES * self.num_parameters
        plan = STEPS * PLAN_BYTES * width
        return BACKWARD * width * self.sample_bytes + plan + vectors

    def most_models(self, samples: int) -> int:
        """Return how many models are evaluated together, a power of two.

        Without gradients, less is in memory at a time than autograd would save.

        Args:
            samples: the number of samples in one forward pass.
        """
        one = samples * self.sample_bytes + FLOAT_BYTES * self.num_parameters
        return _stack_of(self.total * EVALUATION_SHARE, one)


def bytes_per_sample(model: FlatModel, objective: Objective, inputs: Inputs) -> int:
    """Return how many bytes autograd saves for a sample, from two small batches.

    A larger batch needs more memory by its further samples only, not by the parameters,
    which are saved as well.

    Args:
        model: the model, on the device of the samples.
        objective: what gives each sample its loss.
        inputs: at least one sample.
    """
    one, two = (_saved_bytes(model, objective, inputs, size) for size in (1, 2))
    return max(two - one, FLOAT_BYTES)


def _saved_bytes(
    model: FlatModel, objective: Objective, inputs: Inputs, size: int
) -> int:
    """Return how many bytes autograd saves for a batch of copies of the first sample."""
    device = inputs.x.device
    x_B, y_B = inputs.at(torch.zeros(size, dtype=torch.int64, device=device))
    leaves = {
        name: torch.zeros(shape, device=device, requires_grad=True)
        for name, shape in model.shapes.items()
    }
    seed = torch.zeros((), dtype=torch.int64, device=device)
    saved = [x_B.nbytes]

    # It returns None, so that autograd keeps no tensor. An output that is saved for its
    # own gradient would otherwise refer to itself, and never be freed. No gradient is
    # computed here.
    def note(tensor: Tensor) -> None:
        saved.append(tensor.nbytes)

    with (
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(note, lambda nothing: nothing),
    ):
        objective.losses(model.forward(leaves, x_B, seed, stacked=True), y_B)
    return sum(saved)


def _stack_of(budget: float, one: int) -> int:
    """Return the largest power of two, from 1 on, that fits and is not above the limit."""
    most = min(MOST_STACKED, max(1, int(budget / one)))
    return 1 << (most.bit_length() - 1)


class GpuTraining:
    """Trains tasks on a GPU, in stacks that fit into its memory.

    The steps of engines that allow it are recorded at the first use of a shape, and
    replayed from then on, also by later trainers with an equal model.

    Args:
        engine: computes the gradients.
        inputs: the training samples, on the device of the engine's model.
        resident: keeps the recorded steps.
        memory: what stacks are sized by.

    Attributes:
        parameters: those that are on the device between an evaluation and the next round.
    """

    def __init__(
        self,
        engine: Engine,
        inputs: Inputs,
        resident: Resident,
        memory: GpuMemory,
    ) -> None:
        self.engine = engine
        self.model = engine.model
        self.inputs = inputs
        self.objective = engine.objective
        self.resident = resident
        self.memory = memory
        resident.most_bytes = int(memory.total * RECORDED_SHARE)
        most_bytes = int(memory.total * PARAMETERS_SHARE)
        self.parameters = Parameters(inputs.x.device, most_bytes)
        # The maximum number of samples in a step, which is lowered when memory runs out.
        self._most_samples = (
            MOST_CONVOLVED if self.model.has_convolutions else sys.maxsize
        )
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
        most = max(1, min(self.memory.most_tasks(width), self._most_samples // width))
        return -(-count // -(-count // most))

    @torch.no_grad()
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
        take_one: Callable[[], Any] = partial(step.take, self.engine, self.inputs)
        if step.graph is not None:
            take_one = step.graph.replay
        step.take_all(plan.stacked().astype(np.int32), seed_KT, take_one)

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
    def _key(self) -> tuple[object, ...]:
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
    return min(batch_size, 1 << (width - 1).bit_length())
