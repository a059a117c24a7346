"""A time budget, of which each part of a measurement has a share."""

import time
from collections.abc import Callable


class Budget:
    """Seconds that begin to run when the object is made.

    Args:
        seconds: how many there are.
        clock: gives the time in seconds.

    Example:
        >>> now = [0.0]
        >>> budget = Budget(540, clock=lambda: now[0])
        >>> now[0] = 500.0
        >>> budget.left(), budget.share(60).left()
        (40.0, 40.0)
    """

    def __init__(
        self, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = seconds
        self._clock = clock
        self._ends = clock() + seconds

    def left(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self._ends - self._clock())

    def share(self, seconds: float) -> "Budget":
        """Return a budget of so many seconds, or of what is left if that is less."""
        return Budget(min(seconds, self.left()), self._clock)

    def lacks(self, seconds: float) -> str:
        """Say in words that fewer seconds are left than are needed; empty if not."""
        left = self.left()
        if left >= seconds:
            return ""
        return (
            f"needs {seconds:.0f} s, of the {self.seconds:.0f} s of the whole command "
            f"{left:.0f} s were left"
        )
