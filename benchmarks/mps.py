"""NVIDIA's multi-process service (MPS), by which processes share a GPU at the same time.

Without it, processes on one GPU take turns.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DAEMON = "nvidia-cuda-mps-control"
SECONDS = 20


@contextmanager
def mps() -> Iterator[dict[str, str]]:
    """Run a service of our own while the block runs, with its files in a temporary folder.

    Yields:
        The environment variables of its clients.

    Raises:
        ValueError: there is no service here, or it may not be started.
    """
    daemon = shutil.which(DAEMON)
    if daemon is None:
        raise ValueError(f"no MPS here: {DAEMON} is not on the PATH")
    with tempfile.TemporaryDirectory(prefix="mps") as folder:
        pipes = Path(folder) / "pipe"
        logs = Path(folder) / "log"
        pipes.mkdir()
        logs.mkdir()
        ours = {
            "CUDA_MPS_PIPE_DIRECTORY": str(pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(logs),
        }
        _control([daemon, "-d"], ours)
        try:
            # A daemon that cannot start a server would fail each of its clients.
            _control([daemon], ours, "get_server_list\n")
            yield ours
        finally:
            _control([daemon], ours, "quit\n")


def _control(command: list[str], environment: dict[str, str], say: str = "") -> None:
    """Give the service a command.

    Raises:
        ValueError: it did not accept the command.
    """
    # A file and no pipe, which a daemon that stays would keep open.
    with tempfile.TemporaryFile("w+") as printed:
        try:
            done = subprocess.run(
                command,
                input=say,
                env={**os.environ, **environment},
                stdout=printed,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ValueError(f"no MPS here: {error}") from None
        printed.seek(0)
        if done.returncode:
            raise ValueError(
                f"no MPS here: {' '.join([DAEMON, *command[1:]])} ended with "
                f"{done.returncode}: {printed.read().strip()[:300]}"
            )
