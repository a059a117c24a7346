"""How long the rest of a sweep takes, from how fast its packs were so far."""

from collections.abc import Sequence


class TimeLeft:
    """Estimates how long the rest of a sweep takes, by the rate of its packs.

    The rate is the work that a pack does in a second. It is known from the second report on:
    until the first one, a process has also started, read data and compiled. That is left
    out, and so is what other packs do before each pack of the first ones has reported.
    """

    def __init__(self) -> None:
        self._now = self._worked = self._left = 0.0
        # How many packs have reported at the same time, at most.
        self._most = 0
        # How many are at work, and what packs have done in how many seconds, summed.
        self._at_work = 0
        self._done = self._seconds = 0.0

    def see(
        self,
        now: float,
        finished: float,
        planned: float,
        packs: Sequence[tuple[float, float]],
    ) -> None:
        """Take note of the work of ended packs, of all, and of each at work with its share done."""
        rest = [work * (1 - share) for work, share in packs]
        waiting = max(planned - finished - sum(work for work, _ in packs), 0.0)
        worked = planned - waiting - sum(rest)
        reported = sum(share > 0 for _, share in packs)
        if reported > self._most:
            self._most = reported
            self._done = self._seconds = 0.0
        # If a process was lost, less has been done than before.
        elif self._most and worked != self._worked:
            self._done += max(worked - self._worked, 0.0)
            self._seconds += self._at_work * (now - self._now)
        else:
            return
        self._now = now
        self._worked = worked
        self._at_work = len(packs)
        side_by_side = self._most if waiting else max(1, len(packs))
        self._left = max([(waiting + sum(rest)) / side_by_side, *rest])

    def seconds(self, now: float) -> float | None:
        """Return how many seconds are left; None as long as that is not known."""
        if not self._done or not self._seconds:
            return None
        left = self._left * self._seconds / self._done
        return max(left - (now - self._now), 0.0)
