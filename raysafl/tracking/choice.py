"""How much of a sweep is logged to MLflow, and the rule by which curves are thinned."""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from raysafl.core.text import nearest

# A sweep of more runs is logged without curves, unless they are asked for.
MOST_RUNS_WITH_CURVES = 200
# The largest number of points of a curve.
POINTS = 100

CURVES_NOTE = (
    f"A curve in MLflow has at most {POINTS} points: of n evaluated rounds, one of "
    f"ceil(n/{POINTS}), and the last. All rounds are in `rounds/`."
)
SUMMARY_NOTE = (
    "MLflow has the parameters and the final statistics of each run, but no curves: "
    f"`--track curves` logs them for more than {MOST_RUNS_WITH_CURVES} runs, too. All "
    "rounds are in `rounds/`."
)


class Tracking(StrEnum):
    """How much of a sweep is logged to MLflow."""

    # Nothing is logged.
    NONE = "none"
    # Parameters, tags and final statistics of each run.
    SUMMARY = "summary"
    # Also curves, of at most `POINTS` points a metric, and a run's files.
    CURVES = "curves"
    # Curves of up to `MOST_RUNS_WITH_CURVES` runs, otherwise summaries.
    AUTO = "auto"

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise ValueError(
            f"track='{value}' is none of the choices: {nearest(str(value), cls)}"
        )

    def resolved(self, runs: int) -> "Tracking":
        """Return what `auto` stands for in a sweep of some number of runs.

        Example:
            >>> Tracking.AUTO.resolved(200).value, Tracking.AUTO.resolved(201).value
            ('curves', 'summary')
            >>> Tracking.CURVES.resolved(10_000).value
            'curves'
        """
        if self is not Tracking.AUTO:
            return self
        few = runs <= MOST_RUNS_WITH_CURVES
        return Tracking.CURVES if few else Tracking.SUMMARY

    @property
    def note(self) -> str:
        """What a sweep's description in MLflow says of this choice."""
        return SUMMARY_NOTE if self is Tracking.SUMMARY else CURVES_NOTE


def stride(config: Mapping[str, Any]) -> int:
    """Return k such that a run's curve has every k-th of its evaluated rounds.

    It follows from the configuration alone, so it does not change while the run goes on.

    Example:
        >>> stride({"rounds": 100}), stride({"rounds": 1_000, "eval_every": 5})
        (1, 2)

    Args:
        config: the run's configuration as JSON values; empty if it is not known.
    """
    rounds, every = (int(config.get(name, 1)) for name in ("rounds", "eval_every"))
    return math.ceil(math.ceil(rounds / every) / POINTS)
