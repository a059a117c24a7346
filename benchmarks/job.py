"""What a process of the benchmarks is told to measure."""

from typing import Literal

from pydantic import Field

# A job's JSON names models, and those of FSL are known once this is imported.
import experiments.fsl.networks  # noqa: F401
from benchmarks.rounds import copies_of
from raysafl.core.component import Component
from raysafl.simulation.run import Run

What = Literal[
    "plain", "ours", "actors", "at_once", "sweep", "trials", "reports", "bare",
    "start", "device", "agreement", "bits", "engines", "memory", "packs", "convolutions",
]  # fmt: skip


class Job(Component):
    """What a process measures: one of

    - plain: the plain loop of the first run, as process `part` of `parts`;
    - ours: raysafl in this process, without Ray, files or logging;
    - actors: raysafl on `actors` Ray actors, without trials, files or logging;
    - at_once: `parts` packs that share a Ray, each with a coordinator and an actor;
    - sweep: the runs as a sweep on Ray with logging, as `raysafl run` does, `trials` at a
      time; trials: the same with raysafl's own number of trials, then MLflow once more
      from its files; reports: without MLflow, reporting every round to Tune;
    - bare: the runs one after another in this process, without Ray or logging;
    - start: the command `raysafl run` for the first run, in a fresh folder;
    - device, agreement, bits, engines, memory, packs: see `benchmarks.gpu_jobs`;
      convolutions: see `benchmarks.convolutions`. Their results come in pieces.

    Several runs of `ours` and `actors` advance in lock-step, as one pack. In place of
    each run, `copies` runs are measured that differ from it in their seeds.

    The jobs `plain` and `ours` run on `device`. In each of `turns` they wait for a
    signal, and time as many rounds as the first run has, each turn after the one before.
    With `seconds`, rounds are timed for so long instead; `engines`, `memory` and `packs`
    do less where it would take longer. `sizes` are the numbers of runs in these packs, or
    of the tasks that `convolutions` computes together.
    `small` asks for small matrices in the job `device`, as on a CPU.
    """

    what: What
    runs: list[Run] = Field(min_length=1)
    copies: int = Field(default=1, gt=0)
    env: dict[str, str] = Field(default_factory=dict)
    part: int = 0
    parts: int = 1
    actors: int = Field(default=1, gt=0)
    trials: int = Field(default=1, gt=0)
    engine: str = "auto"
    device: str = "cpu"
    turns: int = Field(default=1, gt=0)
    sizes: list[int] = Field(default_factory=list)
    seconds: float | None = Field(default=None, gt=0)
    small: bool = False

    def all_runs(self) -> list[Run]:
        """Return the runs with their copies."""
        return [one for run in self.runs for one in copies_of(run, self.copies)]
