"""The rules by which the user lets runs stop early."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from raysafl.core.text import nearest

# The numbers by which `stop={...}` may stop a run, besides what it measures. The last three
# are Tune's: the reports, the rounds, and the seconds of this attempt.
COUNTS = ("round", "training_iteration", "timesteps_total", "time_total_s")


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
        numbers = [*(measured or stop), *COUNTS]
        for name in stop:
            if name not in numbers:
                raise ValueError(
                    f"stop names '{name}', which no run reports: {nearest(name, numbers)}"
                )
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
