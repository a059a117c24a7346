"""Who carries out a sweep: this process, or trials on Ray."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

from raysafl.core.needs import is_installed, need
from raysafl.runtime.hardware import Hardware
from raysafl.sweep.definition import Sweep
from raysafl.sweep.executor_name import ExecutorName

# The seconds that Ray and the processes of the first trial take to start and to end on
# two cores.
STARTING_RAY_SECONDS = 8.0


@dataclass(frozen=True)
class Asked:
    """What was asked for, on which the choice depends.

    Args:
        name: the executor that was asked for.
        sweep: the sweep.
        hardware: what a trial runs on.
        address: the address of a Ray cluster, if one was given.
    """

    name: ExecutorName
    sweep: Sweep
    hardware: Hardware
    address: str | None

    def check(self) -> None:
        """Refuse what this process cannot do, if it is to carry out the sweep.

        Raises:
            ValueError: it is, and something is asked for that only Ray has; or Ray is
                needed, and not installed.
        """
        needs = self._only_ray
        if self.name is ExecutorName.HERE and needs:
            raise ValueError(
                f"executor 'here' carries out a sweep in this process, but {needs}; leave "
                "that out, or take executor 'ray'"
            )
        if self.name is ExecutorName.RAY:
            need("ray", "executor 'ray'")
        elif needs:
            need("ray", f"this sweep ({needs})")

    def choose(self, seconds: Callable[[], float]) -> tuple[ExecutorName, str]:
        """Return who carries out the sweep, and why.

        Args:
            seconds: returns about how long the work takes on one core. It is called only
                if the choice depends on it.
        """
        if self.name is not ExecutorName.AUTO:
            return self.name, "it was asked for"
        if not is_installed("ray"):
            return ExecutorName.HERE, "Ray is not installed"
        if why := self._only_ray or self._better_on_ray:
            return ExecutorName.RAY, why
        needed = seconds()
        about = f"about {needed:.0f} s" if needed >= 1 else "less than 1 s"
        if needed < STARTING_RAY_SECONDS:
            return ExecutorName.HERE, f"{about} of work, and Ray takes longer to start"
        return ExecutorName.RAY, f"{about} of work on one core"

    @property
    def _only_ray(self) -> str:
        """Say what is asked for that only Ray has; empty if nothing is."""
        if self.address is not None:
            return f"the address '{self.address}' of a cluster is given"
        if self.hardware.actors > 1:
            return f"{self.hardware.actors} client actors are asked for"
        if self.hardware.autoscale:
            return "a cluster that adds nodes is asked for"
        if self.sweep.scheduler is not None:
            return "the scheduler of Tune's compares trials that run at the same time"
        return ""

    @property
    def _better_on_ray(self) -> str:
        """Say what is asked for that Ray is meant for; empty if nothing is."""
        if self.hardware.gpus:
            return "GPUs are asked for"
        if (self.hardware.trials or 1) > 1:
            return f"{self.hardware.trials} trials at once are asked for"
        if "ray" in sys.modules and sys.modules["ray"].is_initialized():
            return "this program has started Ray"
        return ""
