"""`raysafl doctor`: check what works on this machine, and say how to fix what does not."""

import os
import subprocess
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from rich.table import Table
from torch import Tensor

from raysafl.cluster.gpus import (
    DOCTOR_SECONDS,
    Machine,
    ask_nodes,
    in_words,
    num_gpus,
    problems_of,
    why_unseen,
)
from raysafl.cluster.hardware import usable_cores
from raysafl.cluster.provenance import provenance
from raysafl.core.algorithm import LocalTraining
from raysafl.core.needs import OPTIONAL, is_installed
from raysafl.core.problem import Model
from raysafl.core.text import format_bytes
from raysafl.data import data_root
from raysafl.models import CNN, Logistic
from raysafl.quickstart import BASE
from raysafl.simulation.simulation import Simulation
from raysafl.storage.redaction import redacted
from raysafl.sweep.simulate import worker_of

# The variable that chooses the GPUs which programs see.
VISIBLE = "CUDA_VISIBLE_DEVICES"
# How long nvidia-smi has to answer; it takes seconds if the driver has to be loaded.
SMI_SECONDS = 30
# A file of each dataset that may be there, and what loads it.
DATASETS = {
    "MNIST/raw/train-images-idx3-ubyte": "fl.data.Mnist()",
    "FashionMNIST/raw/train-images-idx3-ubyte": "fl.data.FashionMnist()",
    "EMNIST/raw/emnist-balanced-train-images-idx3-ubyte": "fl.data.Emnist()",
    "cifar-10-batches-py/data_batch_1": "fl.data.Cifar10()",
    "cifar-100-python/train": "fl.data.Cifar100()",
    "SVHN/train_32x32.mat": "fl.data.Svhn()",
    "stl10_binary/train_X.bin": "fl.data.Stl10()",
    "shakespeare/input.txt": "fl.data.Shakespeare()",
}

# How far an entry of an update may be from the CPU's, as a fraction of the largest entry.
# Float32's rounding is about 1e-6; factors that are rounded to TF32 give 1e-3 and more.
TOLERANCE = 1e-4
# A convolutional network and logistic regression, and the engines that train each. The
# first engine is the reference.
STEPS: tuple[tuple[Model, tuple[str, ...]], ...] = (
    (CNN(channels=[4], hidden=8), ("loop", "vmap", "graph")),
    (Logistic(), ("linear",)),
)


class CheckResult(NamedTuple):
    """The result of one check.

    Attributes:
        name: what was checked.
        passed: whether it works.
        message: what was found, or what is wrong and how to fix it.
    """

    name: str
    passed: bool
    message: str


def check_versions() -> str:
    """Name the versions that rows depend on, and which optional packages are missing."""
    versions = provenance()
    del versions["host"]
    missing = [
        f"{package} is not installed ({command})"
        for package, (_, command) in OPTIONAL.items()
        if not is_installed(package)
    ]
    return ", ".join([*map(" ".join, versions.items()), *missing])


def check_devices() -> str:
    """Name the CPU cores and GPUs of this machine, and what torch needs of a driver.

    Raises:
        ValueError: the machine has GPUs, and torch sees none.
    """
    gpus = [torch.cuda.get_device_name(i) for i in range(num_gpus())]
    cores = usable_cores()
    whole = f" of {os.cpu_count()}" if cores != os.cpu_count() else ""
    has = f"{cores}{whole} CPU cores, {in_words(len(gpus))} {', '.join(gpus)}".strip()
    cuda = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    built = f"torch is built {cuda}"
    driver = driver_version()
    if gpus:
        return f"{has}; driver {driver or 'unknown'}, {built}"
    hidden = os.environ.get(VISIBLE)
    if driver and hidden is None:
        raise ValueError(
            f"nvidia-smi finds a GPU with driver {driver}, but torch sees none "
            f"({why_unseen()}): the driver and torch do not fit; {built}"
        )
    note = "" if hidden is None else f"; {VISIBLE} is {hidden!r}"
    return f"{has}; torch sees no GPU, {built}{note}"


def driver_version() -> str:
    """Return the version of the GPUs' driver; empty where nvidia-smi finds no GPU."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            query, capture_output=True, text=True, timeout=SMI_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.partition("\n")[0]


def check_data() -> str:
    """Name what loads the datasets that are found.

    Raises:
        ValueError: RAYSAFL_DATA names no folder.
    """
    root = data_root()
    if "RAYSAFL_DATA" in os.environ and not root.is_dir():
        raise ValueError(f"RAYSAFL_DATA names {root}, which is no folder")
    loaders = ["fl.Digits() (bundled)"]
    loaders += [load for file, load in DATASETS.items() if (root / file).is_file()]
    folders = sorted(file.parent.name for file in root.glob("*/train.parquet"))
    loaders += [f'fl.from_parquet("{name}")' for name in folders]
    return f"{', '.join(loaders)}; looked in {root} (RAYSAFL_DATA)"


def check_ray() -> str:
    """Check that Ray starts and stops here, if it is installed."""
    if not is_installed("ray"):
        return "not installed: sweeps run in this process only (`--executor here`)"
    # Imported here, because Ray may be missing.
    import ray

    from raysafl.cluster.ray_session import ray_session, resources_of_nodes

    with ray_session(None):
        (node,) = resources_of_nodes()
        address = ray.util.get_node_ip_address()
        return f"starts on {address} with {node['CPU']:g} CPUs, {node.get('GPU', 0):g} GPUs"


def check_training(device: str, precision: str = "float32") -> float:
    """Compare a training step of small models on a device with that on the CPU.

    The clients of a round take one step of plain SGD each, by every engine that may be chosen
    for the device. The CPU computes in float32.

    Args:
        device: the torch device, "cpu" or "cuda".
        precision: the precision of the models on the device.

    Returns:
        The largest difference of an entry of their mean update from the CPU's, as a fraction
        of the CPU's largest entry.

    Raises:
        ValueError: a difference is larger than `TOLERANCE`, or an engine failed.
    """
    largest = 0.0
    for model, engines in STEPS:
        expected_P = _step(model, "cpu", engines[0])
        there = model.replace(precision=precision)
        for engine in engines:
            delta_P = _step(there, device, engine)
            off = (delta_P - expected_P).abs().max() / expected_P.abs().max()
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
    """Return the mean update [P] of a round in which each client takes one local step."""
    local = LocalTraining(lr=0.1, batch_size=8, steps=1)
    run = BASE.replace(model=model, local=local, replicates=1)
    simulation = Simulation(run, worker_of([run], run.data.load(), engine, device))
    (replicate,) = simulation.replicates
    before_P = replicate.state.w_P
    simulation.step()
    return replicate.state.w_P.cpu() - before_P.cpu()


def checks() -> dict[str, tuple[Callable[[], str], str]]:
    """Return all checks by name, each with what to do if it fails."""
    return {
        "versions": (check_versions, "see `pip check`"),
        "devices": (
            check_devices,
            "install the driver that this torch needs, or the torch that fits this "
            f"driver, see docs/one_server.md; {VISIBLE}='' hides the GPUs",
        ),
        **{
            f"GPU {index}": (
                partial(check_gpu, index),
                "update the driver, and see that this torch has kernels for this "
                f"compute capability; or leave it out with {VISIBLE}",
            )
            for index in range(num_gpus())
        },
        "data": (check_data, "set RAYSAFL_DATA to the folder that holds the datasets"),
        "ray": (
            check_ray,
            "if no reason is named, free memory or /dev/shm, and see the logs in "
            "/tmp/ray/session_latest/logs",
        ),
    }


def examine() -> list[CheckResult]:
    """Run every check, whatever the others give."""
    report = []
    for name, (check, cure) in checks().items():
        try:
            report.append(CheckResult(name, True, check()))
        except Exception as error:
            # Whatever a check raises, the other checks must run.
            message = (
                f"{type(error).__name__}: {redacted(str(error))}. To fix it: {cure}"
            )
            report.append(CheckResult(name, False, message))
    return report


def examine_nodes(address: str) -> tuple[Table, list[str]]:
    """Look at every node of a Ray cluster.

    Args:
        address: the cluster's address, such as "auto" or "host:port".

    Returns:
        A table with a row for each node, and what is wrong, each with the node's address.

    Raises:
        ValueError: no cluster answers at the address.
    """
    # Imported here, because Ray may be missing.
    import ray

    from raysafl.cluster.ray_session import ray_session

    table = Table("node", "cores", "GPUs", "torch sees", "memory", "raysafl", "state")
    wrong: list[str] = []
    with ray_session(address):
        alive = [node for node in ray.nodes() if node["Alive"]]
        for node, answer in ask_nodes(alive, DOCTOR_SECONDS):
            host = node["NodeManagerAddress"]
            resources = node["Resources"]
            problems = problems_of(answer)
            wrong += [f"{host}: {problem}" for problem in problems]
            said = ["", "", ""]
            if isinstance(answer, Machine):
                names = ", ".join(answer.gpus) or "no GPU"
                said = [names, format_bytes(answer.memory), answer.version]
            counted = [f"{resources.get(kind, 0):g}" for kind in ("CPU", "GPU")]
            table.add_row(host, *counted, *said, "see below" if problems else "ok")
    return table, wrong
