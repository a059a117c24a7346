"""How many tasks a GPU trains together, and how many models it evaluates together.

The numbers follow from the model and from the GPU's whole memory. The memory that is
free at the moment would be the wrong measure: it depends on other processes and on
what ran before, and with the number of stacked tasks a GPU may choose other kernels,
so that a run could not be repeated to the bit on the same kind of GPU.
"""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from raysafl.core.objective import Objective
from raysafl.models import FlatModel
from raysafl.training.inputs import Inputs

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

# The number of steps whose samples are on the device at a time. It bounds memory, and
# lets trainings of any length share one recorded step.
STEPS = 64
# Bytes of a sample in such a plan: its position and its weight, and on the way there
# its position once more, whether it is there, and a number for each batch.
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
        return cls(
            total, bytes_per_sample(model, objective, inputs), model.num_parameters
        )

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

    @property
    def most_parameters(self) -> int:
        """The maximum number of bytes of the parameters that stay between rounds."""
        return int(self.total * PARAMETERS_SHARE)

    @property
    def most_recorded(self) -> int:
        """The maximum number of bytes that recorded steps hold together."""
        return int(self.total * RECORDED_SHARE)


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


def power_of_two(number: int) -> int:
    """Return the least power of two that is not below a positive number."""
    return 1 << (number - 1).bit_length()
