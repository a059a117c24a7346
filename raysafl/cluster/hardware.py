"""What a trial runs on; no part of a `Run`, as results do not depend on it."""

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator

from raysafl.core.component import Component

# How many trials a cluster that adds nodes is taken to run at the same time.
AUTOSCALED_TRIALS = 64
# Where Linux says how much processor time a container may have: `max`, or a number.
QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores(quota: Path = QUOTA) -> int:
    """Return how many cores this process may use, which may be fewer than the machine has.

    A batch system such as Slurm gives a job some of them, and a container may have a limit.

    Args:
        quota: a file with two numbers of microseconds: the processor time that may be used
            in each period, and the length of a period.
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        share, period = quota.read_text().split()
        cores = min(cores, max(1, int(share) // int(period)))
    return cores


class Hardware(Component):
    """The resources of one trial, which are those of its client actors.

    The trial's coordinator needs no core of its own, since it mostly waits for actors.

    Raises:
        ValueError: `gpus` is neither `auto` nor 0 nor 1 nor a share 1/n of one GPU.

    Example:
        >>> Hardware(actors=2, cpus=1, gpus=0.5).describe()
        '2 client actor(s) of 1 CPU and 0.5 GPU each'
    """

    actors: int = Field(
        default=1, gt=0, description="number of client actors of a trial"
    )
    cpus: float = Field(default=1.0, gt=0, description="CPU cores of one client actor")
    gpus: Literal["auto"] | float = Field(
        default="auto",
        description="GPU of one client actor: 0, 1, or a share 1/n of one GPU and "
        "of its memory; auto uses all GPUs that there are",
    )
    trials: int | None = Field(
        default=None,
        gt=0,
        description="maximum number of trials at once; by default as many as fit",
    )
    pack: Literal["auto"] | int = Field(
        default="auto",
        description="maximum number of runs that a trial carries out together; auto "
        "chooses by their work and memory. It changes no result",
    )
    autoscale: bool = Field(
        default=False,
        description="whether the cluster adds nodes on demand, so that a trial need "
        "not fit the nodes that it has now",
    )

    @field_validator("gpus", mode="before")
    @classmethod
    def _auto_or_share(cls, given: Any) -> Any:
        if given == "auto":
            return given
        try:
            gpus = float(given)
        except (TypeError, ValueError):
            gpus = -1.0
        if not 0 <= gpus < math.inf:
            raise ValueError("give auto, 0, 1, or a share of a GPU such as 0.25")
        if gpus > 1:
            count = math.ceil(gpus)
            raise ValueError(
                "a client actor trains on one GPU; for one trial on "
                f"{count} GPUs give actors={count} and gpus=1, and for {count} trials "
                "at once, on a GPU each, gpus=1"
            )
        # 0.33 is meant as 1/3, hence the tolerance.
        if 0 < gpus < 1 and abs(round(1 / gpus) * gpus - 1) > 0.02:
            raise ValueError("a GPU is shared as 1/n: 0.5, 0.33, 0.25, ...")
        return gpus

    @field_validator("pack", mode="before")
    @classmethod
    def _auto_or_number(cls, pack: Any) -> Any:
        if pack != "auto" and not (isinstance(pack, int) and pack > 0):
            raise ValueError("give auto, or a number of runs of at least 1")
        return pack

    @property
    def gpu_share(self) -> float:
        """The GPU of one client actor; 0 for `auto`, as long as no GPU is known."""
        return 0.0 if isinstance(self.gpus, str) else self.gpus

    def where_there_are(self, gpus: float) -> Self:
        """Return this with a number in place of `auto`, where there are so many GPUs.

        Each client actor has one, or an equal share of one if a trial has more actors
        than there are GPUs.
        """
        if self.gpus != "auto":
            return self
        return self.replace(gpus=1 / math.ceil(self.actors / gpus) if gpus else 0.0)

    def bundle(self) -> dict[str, float]:
        """Return the resources of one client actor, by Ray's names."""
        return {"CPU": self.cpus} | ({"GPU": self.gpu_share} if self.gpu_share else {})

    def describe(self) -> str:
        """Return in words what one trial needs."""
        each = f"{self.cpus:g} CPU and {self.gpu_share:g} GPU"
        return f"{self.actors} client actor(s) of {each} each"

    def check(self, nodes: Sequence[Mapping[str, float]]) -> None:
        """Check that one trial fits the nodes; otherwise Ray would wait forever.

        Args:
            nodes: The resources of each node by Ray's names.

        Raises:
            ValueError: The actors do not fit, and `autoscale` is off.
        """
        needs = self.bundle()
        # Sums of shares such as 0.33 may exceed a whole GPU by rounding.
        room = sum(
            min(int(node.get(name, 0) / need + 1e-6) for name, need in needs.items())
            for node in nodes
        )
        if room < self.actors and not self.autoscale:
            has = {
                name: sum(node.get(name, 0) for node in nodes)
                for name in ("CPU", "GPU")
            }
            where = "this machine"
            if len(nodes) > 1:
                where = f"the cluster's {len(nodes)} nodes"
            raise ValueError(
                f"a trial needs {self.describe()}, but {where} offer(s) {has['CPU']:g} CPU "
                f"and {has['GPU']:g} GPU; lower actors, cpus or gpus"
            )

    def trials_at_once(self, nodes: Sequence[Mapping[str, float]]) -> int:
        """Return how many trials run at the same time on these nodes, at least one.

        A cluster that adds nodes is taken to grow to `trials` trials, or to
        `AUTOSCALED_TRIALS` if that is not given.

        Args:
            nodes: The resources of each node by Ray's names.
        """
        if self.autoscale:
            return self.trials or AUTOSCALED_TRIALS
        fitting = [
            int(sum(node.get(name, 0) for node in nodes) / (need * self.actors) + 1e-6)
            for name, need in self.bundle().items()
        ]
        return max(1, min([*fitting, *([self.trials] if self.trials else [])]))

    def memory_of_trial(self, nodes: Sequence[Mapping[str, float]]) -> float:
        """Return the bytes of memory that each trial has if the nodes are full of trials.

        A trial has the share of a node's memory that it takes of the node's cores, or of
        its GPUs if that is more.

        Args:
            nodes: The resources of each node by Ray's names.
        """
        needs = {name: need * self.actors for name, need in self.bundle().items()}
        shares = [
            node.get("memory", 0)
            * min(1.0, max(need / node[name] for name, need in needs.items()))
            for node in nodes
            if all(node.get(name) for name in needs)
        ]
        if shares:
            return min(shares)
        # A cluster may add its nodes with GPUs, or with cores, only when trials ask for them.
        with_cores = [node for node in nodes if node.get("CPU")] or nodes
        of_core = min(node.get("memory", 0) / node.get("CPU", 1) for node in with_cores)
        return of_core * needs["CPU"]
