"""How long the rest of a sweep takes, from the shares of its work that were done by when."""

# How many shares of the work are remembered.
MOST_SEEN = 512


class TimeLeft:
    """Estimates how long the rest of a sweep takes, from the share of its work that is done."""

    def __init__(self) -> None:
        # When which share was done, in seconds.
        self._seen: list[tuple[float, float]] = []

    def see(self, now: float, share: float) -> None:
        """Take note of the share of the work, from 0 to 1, that is done."""
        if not self._seen or share > self._seen[-1][1]:
            self._seen.append((now, share))
            # Every second of them tells as much, and there are never many.
            if len(self._seen) > MOST_SEEN:
                self._seen = [self._seen[0], *self._seen[1:-1:2], self._seen[-1]]

    def range(self, now: float) -> tuple[float, float] | None:
        """Return the least and the most seconds that are left; None if that is not known.

        They follow from the rate since the beginning, and from that in the second half of
        the time. If nothing is known of the first half, half and twice the time are told.
        """
        # Another thread may see more meanwhile.
        seen = self._seen
        if len(seen) < 2:
            return None
        began, at_first = seen[0]
        last, share = seen[-1]
        middle = (began + last) / 2
        at = max(i for i, (when, _) in enumerate(seen) if when <= middle)
        since, before = seen[at]
        rates = ((share - at_first) / (last - began), (share - before) / (last - since))
        seconds = [max((1 - share) / rate - (now - last), 0.0) for rate in rates]
        if at == 0:
            return seconds[0] / 2, seconds[0] * 2
        return min(seconds), max(seconds)
