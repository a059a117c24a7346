"""`raysafl doctor`: check what works on this machine, and say how to mend what does not."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import ray

from raysafl.core.text import redacted
from raysafl.data import data_root
from raysafl.runtime.ray_session import ray_session
from raysafl.storage.paths import Location
from raysafl.tracking import default_uri, ping


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
    """Name the CPU cores and GPUs of this machine."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"{os.cpu_count()} CPU cores, {len(gpus)} GPUs {', '.join(gpus)}".strip()


def check_data() -> str:
    """Name the datasets that are found."""
    mnist = (data_root() / "MNIST" / "raw" / "train-images-idx3-ubyte").is_file()
    folders = sorted(file.parent.name for file in data_root().glob("*/train.parquet"))
    found = ["digits (embedded)", *(["mnist"] if mnist else []), *folders]
    return f"{', '.join(found)}; looked in {data_root()} (RAYSAFL_DATA)"


def check_results(root: Location) -> str:
    """Check that the folder of the results can be written."""
    root.mkdir(parents=True, exist_ok=True)
    # Writing is tried, because permissions alone do not tell for object stores.
    probe = root / f".writable.{os.getpid()}"
    probe.write_bytes(b"")
    probe.unlink()
    return f"{root.resolve()} can be written"


def check_mlflow(root: Location) -> str:
    """Check that MLflow's database or server answers."""
    uri = default_uri(root.resolve())
    return f"{redacted(uri)} answers, {ping(uri)} experiments"


def check_ray() -> str:
    """Check that Ray starts and stops."""
    with ray_session(None):
        has = ray.cluster_resources()
        cpus = has.get("CPU", 0)
        gpus = has.get("GPU", 0)
        where = ray.util.get_node_ip_address()
        return f"Ray {ray.__version__} starts on {where}: {cpus:g} CPUs, {gpus:g} GPUs"


def checks(root: Location) -> dict[str, tuple[Callable[[], str], str]]:
    """Return all checks by name, each with what to do if it fails."""
    return {
        "torch": (
            check_torch,
            "reinstall both at once: pip install --force-reinstall torch torchvision",
        ),
        "devices": (check_devices, "reinstall torch for this machine"),
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
