"""`raysafl doctor`: what works on this machine, and how to mend what does not."""

import os
from collections.abc import Callable

import ray

from raysafl.core.text import redacted
from raysafl.data import data_root
from raysafl.runtime.ray_session import ray_session
from raysafl.storage.paths import Location
from raysafl.tracking import default_uri, ping

Check = Callable[[], str]


def torch_pair() -> str:
    """torch and torchvision import together."""
    import torch
    import torchvision

    return f"torch {torch.__version__}, torchvision {torchvision.__version__}"


def devices() -> str:
    """CPU cores, GPUs."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"{os.cpu_count()} CPU cores, {len(gpus)} GPUs {', '.join(gpus)}".strip()


def data() -> str:
    """Which datasets are found."""
    mnist = (data_root() / "MNIST" / "raw" / "train-images-idx3-ubyte").is_file()
    folders = sorted(file.parent.name for file in data_root().glob("*/train.parquet"))
    found = ["digits (embedded)", *(["mnist"] if mnist else []), *folders]
    return f"{', '.join(found)}; looked in {data_root()} (RAYSAFL_DATA)"


def results(root: Location) -> str:
    """The results folder can be written."""
    root.mkdir(parents=True, exist_ok=True)
    probe = root / f".writable.{os.getpid()}"
    probe.write_bytes(b"")
    probe.unlink()
    return f"{root.resolve()} can be written"


def mlflow_store(root: Location) -> str:
    """The tracking store answers."""
    uri = default_uri(root.resolve())
    return f"{redacted(uri)} answers, {ping(uri)} experiments"


def ray_starts() -> str:
    """Ray starts and stops."""
    with ray_session(None):
        has = ray.cluster_resources()
        cpus, gpus = has.get("CPU", 0), has.get("GPU", 0)
        where = ray.util.get_node_ip_address()
        return f"Ray {ray.__version__} starts on {where}: {cpus:g} CPUs, {gpus:g} GPUs"


def checks(root: Location) -> dict[str, tuple[Check, str]]:
    """Name to check and cure."""
    return {
        "torch": (
            torch_pair,
            "reinstall both at once: pip install --force-reinstall torch torchvision",
        ),
        "devices": (devices, "reinstall torch for this machine"),
        "data": (data, "set RAYSAFL_DATA to the folder that holds the datasets"),
        "results": (lambda: results(root), "choose a folder that can be written with --root"),
        "mlflow": (
            lambda: mlflow_store(root),
            "unset MLFLOW_TRACKING_URI or start that server; results in Parquet need neither",
        ),
        "ray": (
            ray_starts,
            "free memory or /dev/shm; see the logs in /tmp/ray/session_latest/logs",
        ),
    }


def examine(root: Location) -> list[tuple[str, bool, str]]:
    """Every check: its name, whether it passed, and what it found or how to mend it."""
    report = []
    for name, (check, cure) in checks(root).items():
        try:
            report.append((name, True, check()))
        except Exception as error:  # a diagnosis must come to its end
            report.append((name, False, f"{type(error).__name__}: {error}. To mend it: {cure}"))
    return report
