"""When a run stops early, and when a sweep ends before its runs do."""

import logging
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeAlias

from raysafl.core.text import nearest
from raysafl.sweep.watch import Watch

# The numbers by which `stop={...}` may stop a run, besides what it measures. The last three
# are Tune's: the reports, the rounds, and the seconds of this attempt.
COUNTS = ("round", "training_iteration", "timesteps_total", "time_total_s")
log = logging.getLogger(__name__)


# Says after a report whether a run stops. Tune's stoppers have `stop_all` besides.
StopRule: TypeAlias = Callable[[str, dict[str, Any]], bool]


def rules_of(stop: Any, measured: Sequence[str] | None = None) -> list[StopRule]:
    """Return the rules that `Runner(stop=)` stands for.

    Args:
        stop: a mapping from the name of a number to the value at which a run stops; a
            function of (trial id, result) that returns whether it stops; a stopper of
            Tune's, or a list of them; or None.
        measured: the columns that the runs report; None if they are not known.

    Raises:
        ValueError: it is something else, or names a number that no run reports.
    """
    if stop is None:
        return []
    if isinstance(stop, Mapping):
        for name, value in stop.items():
            numbers = [*(measured or []), *COUNTS]
            if measured is not None and name not in numbers:
                raise ValueError(
                    f"stop names '{name}', which no run reports: {nearest(name, numbers)}"
                )
            if not isinstance(value, Real):
                raise ValueError(f"stop['{name}'] is {value!r}; give a number")
        limits = dict(stop)

        def has_reached(trial_id: str, result: Mapping[str, Any]) -> bool:
            return any(result.get(name, 0) >= own for name, own in limits.items())

        return [has_reached] if limits else []
    if isinstance(stop, list | tuple):
        return [rule for one in stop for rule in rules_of(one, measured)]
    if isinstance(stop, type) or not callable(stop):
        raise ValueError(
            f"stop is {stop!r}; give a mapping such as {{'test_accuracy': 0.9}}, a function "
            "of (trial id, result), or an object of a class of ray.tune.stopper"
        )
    return [stop]


class Halt:
    """Ends the sweep when it cannot go on or is not to, and runs when the rules say so.

    Args:
        watch: learns that the sweep cannot go on.
        rules: the user's. Where one of them ends the whole sweep, the runs that have
            begun save where they are, as after Ctrl-C, and none counts as stopped.
    """

    def __init__(self, watch: Watch, rules: Sequence[StopRule] = ()) -> None:
        self.watch = watch
        self.rules = rules
        self.told = False

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Whether one of the user's rules stops this run."""
        # Each is asked, as a rule may count the reports.
        return any([rule(trial_id, result) for rule in self.rules])

    def stop_all(self) -> bool:
        """Whether the sweep is to end before its runs do."""
        rules = [rule for rule in self.rules if hasattr(rule, "stop_all")]
        if not self.watch.ends_early and any(rule.stop_all() for rule in rules):
            log.warning("`stop` ends the sweep: each run writes where it is")
            self.told = True
            self.watch.interrupt()
        if self.watch.interrupted and not self.told:
            self.told = True
            log.warning(
                "stopping: each run writes where it is; a second signal ends it at once"
            )
        return self.watch.ends_early
