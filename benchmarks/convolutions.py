"""Ways to compute the gradients of several tasks' convolutions, of which a GPU shows the best.

Each way maps a batch of tasks to their gradients [T, P], as the engines of
`raysafl.training.engines` do, and equals the engine `loop` but for rounding. None of
them but the first is part of raysafl: what has not been measured to gain is not built in.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.floors import seconds_of, step_cost
from benchmarks.job import Job
from benchmarks.shared_data import load
from raysafl.core.problem import Dataset
from raysafl.core.randomness import Key
from raysafl.models import FlatModel
from raysafl.simulation.run import Run
from raysafl.training.device import prepare_device, record
from raysafl.training.engines import Graph, Loop
from raysafl.training.inputs import Batch

# The number of streams on which tasks are computed at the same time.
BRANCHES = 8
# Tensor cores read so many channels at a time, by the precision.
CHANNELS = {"float32": 4, "tf32": 4, "bfloat16": 8}
STEPS = 10

Way = Callable[[FlatModel, Batch], Tensor]


def grouped(model: FlatModel, batch: Batch) -> Tensor:
    """Compute all tasks in one pass, as raysafl does: their convolutions are one with groups."""
    return Graph(model).gradients(batch).g_TP


def without_groups(
    model: FlatModel, batch: Batch, branches: int = 1, channels_last: bool = False
) -> Tensor:
    """Compute each task by itself, so that its convolutions have no groups.

    Args:
        model: the model.
        batch: the tasks, with their seeds.
        branches: the number of streams of a GPU that share the tasks. In a recorded step
            they are parallel branches.
        channels_last: whether inputs and kernels are in the memory format channels_last,
            with the channels of the input padded by zeros.
    """
    tasks = [_part(batch, slice(t, t + 1)) for t in range(len(batch.w_TP))]
    one = partial(_one_task, model, channels_last=channels_last)
    return torch.stack(_on_streams([partial(one, task) for task in tasks], branches))


def _part(batch: Batch, tasks: slice) -> Batch:
    """Return some of the tasks of a batch, which has seeds."""
    return Batch(*(column[tasks] for column in batch if column is not None))


def _one_task(model: FlatModel, task: Batch, channels_last: bool) -> Tensor:
    """Return the gradient [P] of the only task of a batch."""
    leaves = {
        name: w.detach().requires_grad_()
        for name, w in model.named_parameters(task.w_TP[0]).items()
    }
    x_B = task.x_TB[0]
    assert task.seed_T is not None
    with torch.enable_grad():
        used: Mapping[str, Tensor] = leaves
        if channels_last:
            used, x_B = in_channels_last(leaves, x_B, CHANNELS[model.precision])
        loss_B = F.cross_entropy(
            model.forward(used, x_B, task.seed_T[0]), task.y_TB[0], reduction="none"
        )
        parts = torch.autograd.grad(
            (loss_B * task.weight_TB[0]).sum(), list(leaves.values())
        )
    return torch.cat([part.reshape(-1) for part in parts])


def in_channels_last(
    parameters: Mapping[str, Tensor], x_B: Tensor, multiple: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Return kernels and images in channels_last, the input padded to a multiple of channels.

    A channel that is added holds zeros in the images and in the first kernel, so that it
    changes neither outputs nor gradients.
    """
    added = -x_B.shape[1] % multiple
    laid_out = dict(parameters)
    kernels = [name for name, w in parameters.items() if w.ndim == 4]
    for name in kernels:
        kernel = parameters[name]
        if name == kernels[0]:
            kernel = F.pad(kernel, (0, 0, 0, 0, 0, added))
        laid_out[name] = kernel.contiguous(memory_format=torch.channels_last)
    padded_B = F.pad(x_B, (0, 0, 0, 0, 0, added))
    return laid_out, padded_B.contiguous(memory_format=torch.channels_last)


def _on_streams(works: Sequence[Callable[[], Tensor]], count: int) -> list[Tensor]:
    """Do pieces of work on several streams of a GPU in turn; on a CPU one after the other."""
    if count == 1 or not torch.cuda.is_available():
        return [work() for work in works]
    caller = torch.cuda.current_stream()
    streams = _streams(count)
    for stream in streams:
        stream.wait_stream(caller)
    done = []
    for number, work in enumerate(works):
        with torch.cuda.stream(streams[number % count]):
            done.append(work())
    for stream in streams:
        caller.wait_stream(stream)
    return done


@cache
def _streams(count: int) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream() for _ in range(count)]


# Each way has one thing more than the one before it, so that it shows what this gains.
WAYS: Mapping[str, Way] = {
    "one pass with groups": grouped,
    "one task after the other": without_groups,
    "tasks as parallel branches": partial(without_groups, branches=BRANCHES),
    "branches in channels_last, padded": partial(
        without_groups, branches=BRANCHES, channels_last=True
    ),
}


def first_batches(run: Run, dataset: Dataset, tasks: int, device: str) -> Batch:
    """Return the first mini-batch of so many tasks, whose parameters differ.

    Args:
        run: gives the model, its precision, and the batch size.
        dataset: the samples. Task t has those after the ones of task t - 1, from the
            beginning again where they end.
        tasks: the number of tasks.
        device: where the batch is.
    """
    model = FlatModel.on(run.model, dataset, run.objective)
    size = run.local.batch_size
    positions = torch.arange(tasks * size) % len(dataset.train)
    some = dataset.train.take(positions.numpy())
    x_TB = torch.from_numpy(some.x).float() * some.scale + some.shift
    batch = Batch(
        torch.stack([model.init(Key(run.seed + t)) for t in range(tasks)]),
        x_TB.view(tasks, size, *x_TB.shape[1:]),
        torch.from_numpy(some.y).view(tasks, size),
        torch.full((tasks, size), 1 / size),
        torch.arange(1, tasks + 1),
    )
    return Batch(*(column.to(device) for column in batch if column is not None))


def convolutions(job: Job) -> Iterator[dict[str, Any]]:
    """Time one local step by each way, precision and number of tasks.

    Each finding has the milliseconds of a step, the largest difference of a gradient from
    that of the engine `loop` in float32 over the largest gradient, and whether a task's
    bits are the same alone and among others.
    """
    run = job.runs[0]
    dataset = load(run)
    yield {"step": step_cost(run.model, dataset, run.local.batch_size)}
    for tasks in job.sizes:
        batch = first_batches(run, dataset, tasks, job.device)
        right_TP = _right_gradients(run, dataset, batch, job.device)
        for precision in CHANNELS:
            prepare_device(job.device, precision)
            recipe = run.model.replace(precision=precision)
            model = FlatModel.on(recipe, dataset, run.objective)
            model.module.to(job.device)
            for name, way in WAYS.items():
                try:
                    found = _measured(way, model, batch, right_TP, job.device)
                except Exception as error:
                    # Whatever breaks in one way, the others must still be measured.
                    found = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
                yield {"ways": {str(tasks): {precision: {name: found}}}}


def _right_gradients(run: Run, dataset: Dataset, batch: Batch, device: str) -> Tensor:
    """Return the gradients of the engine `loop` in float32."""
    prepare_device(device, "float32")
    model = FlatModel.on(run.model, dataset, run.objective)
    model.module.to(device)
    return Loop(model).gradients(batch).g_TP


def _measured(
    way: Way, model: FlatModel, batch: Batch, right_TP: Tensor, device: str
) -> dict[str, Any]:
    """Compare a way's gradients with the right ones, then time steps of it."""
    g_TP = way(model, batch)
    first = _part(batch, slice(1))
    difference = float((g_TP - right_TP).abs().max() / right_TP.abs().max())
    same_bits = torch.equal(way(model, first)[0], g_TP[0])
    # Steps are taken from here on, and the batch is needed again.
    own = batch._replace(w_TP=batch.w_TP.clone())

    def step() -> None:
        own.w_TP.sub_(way(model, own), alpha=1e-3)

    take = record(step).replay if device == "cuda" else step
    steps = STEPS if device == "cuda" else 1

    def take_steps() -> None:
        for _ in range(steps):
            take()

    return {
        "step_ms": 1e3 * seconds_of(take_steps, device) / steps,
        "difference": difference,
        "same_bits_in_a_pack": same_bits,
    }
