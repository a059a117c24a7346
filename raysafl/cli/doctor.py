"""`raysafl doctor`: check what works on this machine, and say how to mend what does not."""

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from raysafl.cli.device_check import check_gpu
from raysafl.cluster.gpus import in_words, num_gpus, why_unseen
from raysafl.cluster.hardware import usable_cores
from raysafl.core.needs import OPTIONAL, is_installed
from raysafl.core.text import count
from raysafl.data import data_root
from raysafl.storage.paths import Location
from raysafl.storage.redaction import redacted
from raysafl.tracking.client import default_uri, ping

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
    "stl10_binary/train_X.bin": "fl.data.Stl10()",
    "shakespeare/input.txt": "fl.data.Shakespeare()",
}


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        name: what was checked.
        passed: whether it works.
        message: what was found, or what is wrong and how to mend it.
    """

    name: str
    passed: bool
    message: str


def check_torch() -> str:
    """Check that torch and torchvision can be imported together."""
    import torch
    import torchvision

    return f"torch {torch.__version__}, torchvision {torchvision.__version__}"


def check_devices() -> str:
    """Name the CPU cores and GPUs of this machine, and what torch needs of a driver.

    Raises:
        ValueError: the machine has GPUs, and torch sees none.
    """
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(num_gpus())]
    cores = usable_cores()
    whole = f" of {os.cpu_count()}" if cores != os.cpu_count() else ""
    has = f"{cores}{whole} CPU cores, {in_words(len(gpus))} {', '.join(gpus)}".strip()
    cuda = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    built = f"torch is built {cuda}"
    drivers, complaint = driver_versions()
    if gpus:
        return f"{has}; driver {drivers[0] if drivers else 'unknown'}, {built}"
    hidden = os.environ.get(VISIBLE)
    if drivers and hidden is None:
        raise ValueError(
            f"nvidia-smi finds {in_words(len(drivers))} with driver {drivers[0]}, but torch "
            f"sees none ({why_unseen()}): the driver and torch do not fit; {built}"
        )
    notes = [f"{VISIBLE} is {hidden!r}"] if hidden is not None else []
    notes += [f"nvidia-smi finds none either: {complaint}"] if complaint else []
    return "; ".join([has, f"torch sees no GPU, {built}", *notes])


def driver_versions() -> tuple[list[str], str]:
    """Return the driver's version for each GPU that nvidia-smi finds, and its complaint.

    Both are empty where there is no nvidia-smi, which comes with the driver.
    """
    command = shutil.which("nvidia-smi")
    if command is None:
        return [], ""
    query = [command, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            query, capture_output=True, text=True, timeout=SMI_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], str(error)
    lines = (done.stdout + done.stderr).strip().splitlines()
    if done.returncode:
        return [], lines[0] if lines else f"exit code {done.returncode}"
    return lines, ""


def check_data() -> str:
    """Name what loads the datasets that are found.

    Raises:
        ValueError: RAYSAFL_DATA names no folder.
    """
    root = data_root()
    if "RAYSAFL_DATA" in os.environ and not root.is_dir():
        raise ValueError(f"RAYSAFL_DATA names {root}, which is no folder")
    found = ["fl.Digits() (embedded)"]
    found += [load for file, load in DATASETS.items() if (root / file).is_file()]
    folders = sorted(file.parent.name for file in root.glob("*/train.parquet"))
    found += [f'fl.from_parquet("{name}")' for name in folders]
    return f"{', '.join(found)}; looked in {root} (RAYSAFL_DATA)"


def check_results(root: Location) -> str:
    """Check that the folder of the results can be written, and make it if there is none."""
    root.mkdir(parents=True, exist_ok=True)
    # Writing is tried, because permissions alone do not tell for object stores.
    probe = root / f".writable.{os.getpid()}"
    probe.write_bytes(b"")
    probe.unlink()
    return f"{root.resolve()} can be written"


def check_mlflow(root: Location) -> str:
    """Check that MLflow's database or server answers, if MLflow is installed."""
    if not is_installed("mlflow"):
        return absence("mlflow", "sweeps are not logged (`--track none`)")
    uri = default_uri(root.resolve())
    return f"{uri} answers, {ping(uri)} experiments"


def check_ray(address: str | None) -> str:
    """Check that Ray starts and stops here, if it is installed, or that a cluster answers."""
    if not is_installed("ray"):
        return absence("ray", "sweeps run in this process only (`--executor here`)")
    # Imported here, because Ray may be missing.
    import ray

    from raysafl.cluster.ray_session import ray_session, resources_of_nodes

    with ray_session(address):
        nodes = resources_of_nodes()
        cpus, gpus = (
            sum(node.get(name, 0) for node in nodes) for name in ("CPU", "GPU")
        )
        where = f"starts on {ray.util.get_node_ip_address()}"
        if address:
            where = f"answers at '{address}', {count(len(nodes), 'node')}"
        return f"Ray {ray.__version__} {where}: {cpus:g} CPUs, {gpus:g} GPUs"


def absence(package: str, consequence: str) -> str:
    """Say that an optional package is not installed, and what that means."""
    _, command = OPTIONAL[package]
    return f"not installed: {consequence}. To install it: {command}"


def checks(
    root: Location, address: str | None = None
) -> dict[str, tuple[Callable[[], str], str]]:
    """Return all checks by name, each with what to do if it fails; see `examine`."""
    return {
        "torch": (
            check_torch,
            "reinstall both at once: pip install --force-reinstall torch torchvision",
        ),
        "devices": (
            check_devices,
            "install the driver that this torch needs, or the torch that fits this "
            f"driver, see docs/cluster.md; {VISIBLE}='' hides the GPUs",
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
        "results": (
            lambda: check_results(root),
            "choose a folder that can be written with --root",
        ),
        "mlflow": (
            lambda: check_mlflow(root),
            "start the server that MLFLOW_TRACKING_URI names, or unset that and choose a folder "
            "that can be written with --root; results in Parquet need no MLflow",
        ),
        "ray": (
            partial(check_ray, address),
            "if no reason is named, free memory or /dev/shm, and see the logs in "
            "/tmp/ray/session_latest/logs",
        ),
    }


def examine(root: Location, address: str | None = None) -> list[CheckResult]:
    """Run every check, whatever the others give.

    Args:
        root: the folder of the results.
        address: the address of a Ray cluster; None starts a Ray here.
    """
    report = []
    for name, (check, cure) in checks(root, address).items():
        try:
            report.append(CheckResult(name, True, check()))
        except Exception as error:
            # Whatever a check raises, the other checks must run.
            message = (
                f"{type(error).__name__}: {redacted(str(error))}. To mend it: {cure}"
            )
            report.append(CheckResult(name, False, message))
    return report
