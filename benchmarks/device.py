"""The device that is measured: its name, its clock and its memory."""

import shutil
import subprocess
from typing import Any

import torch

MB = 1e6


def device_of(dry: bool) -> str:
    """Return the torch device on which `python -m benchmarks gpu` computes.

    Args:
        dry: whether the command is only tried, on the CPU.

    Raises:
        ValueError: torch sees no GPU.
    """
    if dry:
        return "cpu"
    if not torch.cuda.is_available():
        raise ValueError(
            f"torch {torch.__version__} sees no GPU here; run this on a machine with a "
            "GPU and a torch that fits its driver, or give --dry to try the command on "
            "this CPU, with small sizes"
        )
    return "cuda"


def name_of(device: str) -> str:
    """Return the name of a GPU's model; of a CPU, "cpu"."""
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


def wait_for(device: str) -> None:
    """Wait until a device has done what it was told."""
    if device == "cuda":
        torch.cuda.synchronize()


def peak_device_mb(device: str) -> float | None:
    """Return the most memory in MB that torch has held on a GPU; None on a CPU."""
    return torch.cuda.max_memory_reserved() / MB if device == "cuda" else None


def describe_device(device: str) -> dict[str, Any]:
    """Describe a device: its name, memory, compute capability, driver and libraries.

    On a CPU only the name is known.
    """
    if device != "cuda":
        return {"name": "cpu"}
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "memory_mb": properties.total_memory / MB,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "driver": _driver(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def _driver() -> str | None:
    """Return the version of NVIDIA's driver; None if `nvidia-smi` does not tell."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    query = [command, "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(
            query, capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
