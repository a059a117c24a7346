"""`raysafl doctor`: check what works on this machine, and say how to mend what does not."""

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from raysafl.cli.device_check import check_gpu
from raysafl.cluster.gpus import in_words, why_unseen
from raysafl.core.needs import OPTIONAL, is_installed
from raysafl.data import data_root
from raysafl.storage.paths import Location
from raysafl.storage.redaction import redacted
from raysafl.tracking.client import default_uri, ping

# The variable that chooses the GPUs which programs see.
VISIBLE = "CUDA_VISIBLE_DEVICES"
# How long nvidia-smi has to answer; it takes seconds if the driver has to be loaded.
SMI_SECONDS = 30


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
    has = f"{os.cpu_count()} CPU cores, {in_words(len(gpus))} {', '.join(gpus)}".strip()
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


def num_gpus() -> int:
    """Return how many GPUs torch sees, and can reach."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


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
    """Name the datasets that are found."""
    mnist = (data_root() / "MNIST" / "raw" / "train-images-idx3-ubyte").is_file()
    folders = sorted(file.parent.name for file in data_root().glob("*/train.parquet"))
    found = ["digits (embedded)", *(["mnist"] if mnist else []), *folders]
    return f"{', '.join(found)}; looked in {data_root()} (RAYSAFL_DATA)"


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
    return f"{redacted(uri)} answers, {ping(uri)} experiments"


def check_ray() -> str:
    """Check that Ray starts and stops, if it is installed."""
    if not is_installed("ray"):
        return absence("ray", "sweeps run in this process only (`--executor here`)")
    # Imported here, because Ray may be missing.
    import ray

    from raysafl.cluster.ray_session import ray_session

    with ray_session(None):
        has = ray.cluster_resources()
        cpus = has.get("CPU", 0)
        gpus = has.get("GPU", 0)
        where = ray.util.get_node_ip_address()
        return f"Ray {ray.__version__} starts on {where}: {cpus:g} CPUs, {gpus:g} GPUs"


def absence(package: str, consequence: str) -> str:
    """Say that an optional package is not installed, and what that means."""
    _, command = OPTIONAL[package]
    return f"not installed: {consequence}. To install it: {command}"


def checks(root: Location) -> dict[str, tuple[Callable[[], str], str]]:
    """Return all checks by name, each with what to do if it fails."""
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
            "unset MLFLOW_TRACKING_URI or start that server; results in Parquet need neither",
        ),
        "ray": (
            check_ray,
            "free memory or /dev/shm; see the logs in /tmp/ray/session_latest/logs",
        ),
    }


def examine(root: Location) -> list[CheckResult]:
    """Run every check, whatever the others give.

    Args:
        root: the folder of the results.
    """
    report = []
    for name, (check, cure) in checks(root).items():
        try:
            report.append(CheckResult(name, True, check()))
        except Exception as error:
            # Whatever a check raises, the other checks must run.
            message = (
                f"{type(error).__name__}: {redacted(str(error))}. To mend it: {cure}"
            )
            report.append(CheckResult(name, False, message))
    return report
