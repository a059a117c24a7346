"""Call `raysafl` as a user does, in a process of its own or, faster, in this one."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from helpers.patience import PATIENCE
from raysafl.cli import app as cli

# What the installed command runs.
RAYSAFL = [sys.executable, "-c", "from raysafl.cli.start import main; main()"]
# An experiment file of a user's.
EXPERIMENT = """
from raysafl import *
BASE = Run(
    data=Federation(partition=ClassesPerClient(p=1), server=IidServer(n0=50)),
    model=Logistic(),
    algorithm=FedAvg(),
    participation=Absent(s=4, m=3),
    local=LocalTraining(lr=0.1, batch_size=32, epochs=1),
    rounds=20,
)
SWEEP = Sweep(
    name="mine",
    runs={("FedAvg",): BASE, ("SAFARI",): BASE.replace(algorithm=SAFARI(client_prob=0.5))},
    axes=("method",),
)
"""


def checked_output(command: Sequence[str | Path], **options: Any) -> str:
    """Return what a command prints, which must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def call(
    folder: Path, *arguments: str, env: Mapping[str, str] = os.environ
) -> tuple[int, str]:
    """Return the exit code of `raysafl ARGUMENTS` in a folder, and all it printed, as one line."""
    done = subprocess.run(
        [*RAYSAFL, *arguments],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
    )
    return done.returncode, " ".join(done.stdout.split())


def call_here(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    """Return the exit code of `raysafl ARGUMENTS` in this process, and all it printed."""
    monkeypatch.setattr(sys, "argv", ["raysafl", *arguments])
    with cli.console.capture() as said, cli.errors.capture() as wrong:
        result = CliRunner().invoke(cli.app, list(arguments))
        code = result.exit_code
        if result.exception is not None and not isinstance(
            result.exception, SystemExit
        ):
            with monkeypatch.context() as patch:
                patch.setattr(
                    cli, "app", lambda: (_ for _ in ()).throw(result.exception)
                )
                with pytest.raises(SystemExit) as end:
                    cli.main()
            code = int(end.value.code or 0)
    return code, result.output + said.get() + wrong.get()
