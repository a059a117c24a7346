"""How long the rest of a sweep takes, from the work that was done by when."""

import math
from collections.abc import Sequence

# How much faster or slower the rest may be in any case, as the load of a machine changes.
SPARE = 1.25


class TimeLeft:
    """Estimates how long the rest of a sweep takes, as a range.

    W is the work left, m what the longest pack has left, and each of k packs at a time does
    v work a second. Whichever packs come first, the rest takes T seconds (Graham 1966):

        max(W / k, m) / v <= T <= (W + (k - 1) m) / (k v).

    The last stretches of time, a quarter of all time or a little more each, have speeds of
    which the fastest is v on the left. On the right that is the slowest, or a quarter of
    the mean speed if that is more. The range is never narrower than `SPARE` to both sides
    of its middle, or than two if there is a single stretch.
    """

    def __init__(self) -> None:
        # Seconds that packs were at work, all packs together, and what they had done.
        self._seen: list[tuple[float, float]] = []
        self._now = 0.0
        self._at_work = self._most_at_work = 1
        self._range: tuple[float, float] | None = None

    def see(
        self,
        now: float,
        finished: float,
        planned: float,
        packs: Sequence[tuple[float, float]],
    ) -> None:
        """Take note of the work of ended packs, of all, and of each at work with its share done."""
        worked = finished + sum(work * share for work, share in packs)
        if not self._seen:
            self._seen.append((0.0, worked))
            self._now = now
            self._at_work = max(1, len(packs))
        spent, before = self._seen[-1]
        spent += self._at_work * (now - self._now)
        if worked < before:
            # A process was lost, or a pack is tried in halves: that was never done.
            self._seen = [(at, own - before + worked) for at, own in self._seen]
        elif worked > before and now > self._now:
            # Points that lie a 16th of the time apart tell as much as all.
            if len(self._seen) > 1 and spent - self._seen[-2][0] < spent / 16:
                self._seen.pop()
            self._seen.append((spent, worked))
            self._now = now
            self._at_work = max(1, len(packs))
        self._most_at_work = k = max(self._most_at_work, len(packs))
        rest = [work * (1 - share) for work, share in packs]
        waiting = max(planned - finished - sum(work for work, _ in packs), 0.0)
        left = waiting + sum(rest)
        # Packs with more work come first.
        next_one = min(waiting, max((work for work, _ in packs), default=left))
        if speeds := self._speeds():
            least = max([left / k, *rest]) / max(speeds)
            most = (left + (k - 1) * max([next_one, *rest])) / k / min(speeds)
            middle = math.sqrt(least * most)
            spare = SPARE if len(speeds) > 1 else 2.0
            self._range = min(least, middle / spare), max(most, middle * spare)

    def _speeds(self) -> list[float]:
        """Return the work a second of one pack in each stretch, the last stretch first."""
        speeds: list[float] = []
        last = self._seen[-1]
        end = last
        for point in reversed(self._seen[:-1]):
            if end[0] - point[0] >= last[0] / 4:
                # A pack that starts stands still, but not for long.
                least = (last[1] - self._seen[0][1]) / last[0] / 4
                speeds.append(max((end[1] - point[1]) / (end[0] - point[0]), least))
                end = point
        return speeds

    def range(self, now: float) -> tuple[float, float] | None:
        """Return the least and the most seconds that are left; None if that is not known.

        Between none and all that can be done since the work was seen is over.
        """
        found = self._range
        return found and (max(found[0] - (now - self._now), 0.0), found[1])
