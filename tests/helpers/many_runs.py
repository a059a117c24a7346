"""Sweeps of many small runs, here or in a process of their own."""

import sys
from collections.abc import Sequence
from pathlib import Path

from raysafl import Run, Sweep
from raysafl.quickstart import SWEEP as QUICKSTART

DRIVER = """
import sys
sys.path.insert(0, sys.argv[1])
from helpers.many_runs import many
from raysafl import Hardware, Runner
outcome = Runner(
    many(int(sys.argv[2])), out=sys.argv[3],
    hardware=Hardware(trials=2, pack=int(sys.argv[4])), quiet=True, track="none",
    flush_seconds=1.0,
).run()
sys.exit(0 if outcome.ok else 1)
"""


def sweep_of(runs: Sequence[Run], name: str = "packs") -> Sweep:
    return Sweep(name, {(k,): run for k, run in enumerate(runs)}, axes=["number"])


def many(count: int) -> Sweep:
    """A sweep of small runs of 20 rounds, on digits."""
    base = next(iter(QUICKSTART.labelled().values()))
    base = base.replace(rounds=20, replicates=1)
    return sweep_of([base.replace(seed=seed) for seed in range(count)], "many")


def command(count: int, out: Path, pack: int) -> list[str]:
    """The command of a process that runs `many`, two trials at a time."""
    tests = str(Path(__file__).parents[1])
    return [sys.executable, "-c", DRIVER, tests, str(count), str(out), str(pack)]
