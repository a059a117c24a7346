"""When a replicate stops before its last round, because it has ceased to improve."""

import math

from pydantic import Field

from raysafl.core.component import Component


class Patience(Component):
    """A replicate stops when a metric has not improved for some rounds.

    With v(t) the metric after evaluated round t and b the best value so far, round t is
    an improvement if v(t) < b - min_delta (for a metric that should be high,
    v(t) > b + min_delta). A replicate stops after the first evaluated round that is at
    least `rounds` rounds after the last improvement. The first value is an improvement,
    and NaN is none. For a column `clients_*`, the evaluated rounds are those in which
    clients are evaluated (`PerClient.every`).

    Each replicate stops by itself; the run is finished when all have stopped. The
    ledger names the reason. Parameters stay as they were in the last round.

    Prechelt 1998 compares this and other criteria (docs/papers.md#early-stopping).

    Example:
        >>> patience = Patience(metric="test_loss", rounds=2)
        >>> patience.improves(0.5, best=0.6, higher_is_better=False)
        True
    """

    metric: str = Field(
        default="test_loss",
        description="the column of `rounds/` that should improve, such as test_loss",
    )
    rounds: int = Field(
        default=10, gt=0, description="rounds without improvement until the end"
    )
    min_delta: float = Field(
        default=0.0, ge=0, description="a smaller change is no improvement"
    )

    @property
    def is_of_clients(self) -> bool:
        """Whether the metric is measured only in rounds in which clients are evaluated."""
        return self.metric.startswith("clients_")

    def improves(
        self, value: float, best: float | None, higher_is_better: bool
    ) -> bool:
        """Return whether a value is an improvement over the best one so far.

        Args:
            value: The new value.
            best: The best one; None before the first.
            higher_is_better: Whether the metric should be high.
        """
        if math.isnan(value):
            return False
        if best is None:
            return True
        gain = value - best if higher_is_better else best - value
        return gain > self.min_delta
