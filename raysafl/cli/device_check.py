"""Whether a device trains as the CPU does: one local step of small models, by each engine."""

import numpy as np
import torch
from torch import Tensor

from raysafl.core.algorithm import LocalTraining
from raysafl.core.problem import Dataset, Model, Samples
from raysafl.core.text import format_bytes
from raysafl.core.work import Tasks, Training
from raysafl.models import CNN, FlatModel, Logistic
from raysafl.objectives import PLAIN
from raysafl.training.inputs import Held
from raysafl.training.trainer import LocalTrainer

# How far an entry of an update may be from the CPU's, as a fraction of the largest entry.
# Float32's rounding is about 1e-6; factors that are rounded to TF32 give 1e-3 and more.
TOLERANCE = 1e-4
# A convolutional network and logistic regression, and the engines that train each. The
# first engine is the reference.
STEPS: tuple[tuple[Model, tuple[str, ...]], ...] = (
    (CNN(channels=[4], hidden=8), ("loop", "vmap", "graph")),
    (Logistic(), ("linear",)),
)
CLIENTS = 2
SAMPLES = 8


def check_training(device: str, precision: str = "float32") -> float:
    """Compare a training step of small models on a device with that on the CPU.

    Two clients take one step of plain SGD each, by every engine that may be chosen for
    the device. The CPU computes in float32.

    Args:
        device: the torch device, "cpu" or "cuda".
        precision: the precision of the models on the device.

    Returns:
        The largest difference of an update's entry from the CPU's, as a fraction of the
        CPU's largest entry.

    Raises:
        ValueError: a difference is larger than `TOLERANCE`, or an engine failed.
    """
    largest = 0.0
    for model, engines in STEPS:
        expected_MP = _step(model, "cpu", engines[0])
        there = model.replace(precision=precision)
        for engine in engines:
            delta_MP = _step(there, device, engine)
            off = (delta_MP - expected_MP).abs().max() / expected_MP.abs().max()
            # NaN is no agreement either.
            if not off <= TOLERANCE:
                raise ValueError(
                    f"a training step of {there!r} by the engine {engine} differs from "
                    f"the CPU's by {off:.1e} of the largest entry; float32's rounding "
                    f"explains at most {TOLERANCE:g}"
                )
            largest = max(largest, float(off))
    return largest


def check_gpu(index: int) -> str:
    """Say what a GPU is, and how well it trains.

    Args:
        index: the GPU's number among those that torch sees.

    Raises:
        ValueError: it does not run what it should, or trains otherwise than the CPU.
    """
    properties = torch.cuda.get_device_properties(index)
    what = (
        f"{properties.name}, {format_bytes(properties.total_memory)}, compute "
        f"capability {properties.major}.{properties.minor}"
    )
    try:
        with torch.cuda.device(index):
            off = check_training("cuda")
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"{what}, has no memory left: other processes use it, see `nvidia-smi`"
        ) from error
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{what}: {str(error).partition(chr(10))[0]}") from error
    return (
        f"{what}; a training step equals the CPU's to {off:.0e} of the largest entry "
        f"({TOLERANCE:g} is allowed)"
    )


def _step(model: Model, device: str, engine: str) -> Tensor:
    """Return the updates [M, P] of clients that take one local step each."""
    rng = np.random.default_rng(0)
    count = CLIENTS * SAMPLES
    images = rng.normal(size=(count, 1, 4, 4)).astype(np.float32)
    samples = Samples(images, rng.integers(0, 3, count))
    dataset = Dataset("noise", samples, samples, 3)
    flat = FlatModel.on(model, dataset, PLAIN)
    held = np.arange(count).reshape(CLIENTS, SAMPLES)
    trainer = LocalTrainer(
        flat,
        dataset,
        lambda tasks: Held.of(held[tasks.columns["client"]]),
        device,
        engine,
    )
    w_P = 0.1 * torch.from_numpy(rng.normal(size=flat.num_parameters)).float()
    local = LocalTraining(lr=0.1, batch_size=SAMPLES, steps=1)
    asked = Training(
        cells_R=np.array([0]),
        seeds_R=np.array([0], np.uint64),
        round=0,
        call=1,
        clients_RM=np.arange(CLIENTS)[None],
        w=w_P[None],
        locals=[local],
    )
    return trainer.train(Tasks.of([asked])).delta_MP
