"""A sweep in a process of its own, which its algorithm kills once."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from helpers.patience import PATIENCE
from raysafl import FedAvg, Runner, Sweep
from raysafl.algorithms import Key, Round, State
from raysafl.quickstart import BASE

# What names the round in which the process is killed.
ROUND = "ROUND_OF_DEATH"


class Killed(FedAvg):
    """FedAvg in one of whose rounds the process is killed, if it is told so."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        if os.environ.get(ROUND) == str(key.round):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().round(state, ids, key)


def sweep() -> Sweep:
    """A short run and a longer one, of two seeds each."""
    base = BASE.replace(algorithm=Killed(), replicates=2)
    runs = {rounds: base.replace(rounds=rounds) for rounds in (3, 8)}
    return Sweep("killed", runs, axes=("rounds",))


def carry_out(out: Path) -> None:
    """Carry out the sweep in this process, and save each round."""
    options = {"executor": "here", "track": "none", "try_first": False, "quiet": True}
    Runner(sweep(), out, flush_seconds=0.0, **options).run()  # type: ignore[arg-type]


def killed_in_round(number: int, out: Path) -> int:
    """Carry it out in a process that is killed; return how this ended."""
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]);"
        "from helpers.killed import carry_out; carry_out(Path(sys.argv[2]))"
    )
    tests = str(Path(__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", code, tests, str(out)],
        env={**os.environ, ROUND: str(number)},
        timeout=PATIENCE,
    ).returncode
