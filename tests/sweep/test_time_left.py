"""The estimate of the time left, against sweeps whose packs have known speeds."""

import heapq
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysafl.sweep.progress import TimeLeft


def carried_out(
    works: Sequence[float], most: int, speed: float = 1.0
) -> Iterator[tuple[float, list[float], list[tuple[float, float]]]]:
    """Carry out packs, so many at a time; yields on all news, which come every two seconds.

    Yields:
        The time, the work of packs that have ended, and that of those at work with the
        share that is done.
    """
    waiting = list(works)
    running: list[tuple[float, float]] = []
    ended: list[float] = []
    now = 0.0
    while waiting or running:
        while waiting and len(running) < most:
            heapq.heappush(running, (now + waiting[0] / speed, waiting.pop(0)))
        yield (
            now,
            ended,
            [(own, 1 - (stop - now) * speed / own) for stop, own in running],
        )
        now = min(running[0][0], now + 2.0)
        while running and running[0][0] <= now:
            ended.append(heapq.heappop(running)[1])
    yield now, ended, []


@given(
    works=st.lists(st.floats(20.0, 60.0), min_size=1, max_size=12),
    most=st.integers(1, 6),
    speed=st.floats(0.1, 3.0),
)
def test_from_the_second_report_on_it_is_right_but_for_how_packs_follow_each_other(
    works: list[float], most: int, speed: float
) -> None:
    left = TimeLeft()
    works = sorted(works, reverse=True)
    *_, (whole, _, _) = carried_out(works, most, speed)
    for number, (now, ended, running) in enumerate(carried_out(works, most, speed)):
        left.see(now, sum(ended), sum(works), running)
        told = left.seconds(now)
        if told is None:
            assert number < 2 or not running
            continue
        longest = max((own for own, _ in running), default=0.0)
        late = longest / speed if len(works) > most else 0.0
        assert told - 1e-6 <= whole - now <= told + late + 1e-6


def test_what_comes_before_the_first_report_does_not_count() -> None:
    """A process that starts for a minute is then as fast as it is: 1 a second."""
    left = TimeLeft()
    left.see(0.0, 0.0, 50.0, [(50.0, 0.0)])
    left.see(60.0, 0.0, 50.0, [(50.0, 0.04)])
    assert left.seconds(60.0) is None
    left.see(62.0, 0.0, 50.0, [(50.0, 0.08)])
    assert left.seconds(62.0) == pytest.approx(46.0)
    assert left.seconds(72.0) == pytest.approx(36.0)
    assert left.seconds(200.0) == 0.0


def test_packs_that_report_for_the_first_time_one_after_the_other_count_once_all_have() -> (
    None
):
    """Two at a time: the second has done much by its first report, in no time of its own."""
    left = TimeLeft()
    left.see(30.0, 0.0, 100.0, [(50.0, 0.1), (50.0, 0.0)])
    left.see(30.1, 0.0, 100.0, [(50.0, 0.1), (50.0, 0.1)])
    assert left.seconds(30.1) is None
    left.see(32.1, 0.0, 100.0, [(50.0, 0.14), (50.0, 0.1)])
    left.see(32.2, 0.0, 100.0, [(50.0, 0.14), (50.0, 0.14)])
    assert left.seconds(32.2) == pytest.approx(43, rel=0.06)


def test_work_that_is_lost_is_left_again() -> None:
    """A pack of ten of which nine are done is tried in halves."""
    left = TimeLeft()
    for second in range(10):
        left.see(float(second), 0.0, 10.0, [(10.0, second / 10)])
    assert left.seconds(9.0) == pytest.approx(1.0)
    for second in range(10, 13):
        left.see(float(second), 0.0, 10.0, [(5.0, (second - 10) / 5)])
    assert left.seconds(12.0) == pytest.approx(8.0, rel=0.3)
