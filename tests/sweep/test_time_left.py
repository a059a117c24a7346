"""The estimate of the time left, against sweeps whose packs have known speeds."""

import heapq
import math
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysafl.sweep.time_left import SPARE, TimeLeft

SPEEDS = st.floats(1.0, 2.0)
WORKS = st.lists(st.floats(20.0, 60.0), min_size=1, max_size=12)


@given(speeds=st.lists(SPEEDS, min_size=12, max_size=80), packs=st.integers(1, 9))
def test_the_middle_is_right_to_a_factor_of_two_where_the_speed_never_varies_by_more(
    speeds: list[float], packs: int
) -> None:
    """One pack at a time, and news every two seconds, between which the speed is any."""
    left = TimeLeft()
    planned = 2 * sum(speeds)
    own = planned / packs
    worked = 0.0
    for number, speed in enumerate(speeds):
        now = 2.0 * number
        whole = min(int(worked / own), packs - 1)
        left.see(now, whole * own, planned, [(own, worked / own - whole)])
        if worked > planned / 3:
            least, most = left.range(now) or (0.0, 0.0)
            truth = 2.0 * len(speeds) - now
            assert 0.499 * truth <= math.sqrt(least * most) <= 2.001 * truth
            assert 1.56 <= most / least <= 2.001
        worked += 2 * speed


def carried_out(
    works: Sequence[float], most: int
) -> Iterator[tuple[float, list[float], list[tuple[float, float]]]]:
    """Carry out packs, so many at a time and each at a speed of 1; yields on all news.

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
            heapq.heappush(running, (now + waiting[0], waiting.pop(0)))
        yield now, ended, [(own, 1 - (stop - now) / own) for stop, own in running]
        now = min(running[0][0], now + 2.0)
        while running and running[0][0] <= now:
            ended.append(heapq.heappop(running)[1])
    yield now, ended, []


@given(works=WORKS, most=st.integers(1, 6))
def test_the_truth_is_in_the_range_however_many_packs_are_carried_out_at_once(
    works: list[float], most: int
) -> None:
    left = TimeLeft()
    works = sorted(works, reverse=True)
    *_, (whole, _, _) = carried_out(works, most)
    for now, ended, running in carried_out(works, most):
        left.see(now, sum(ended), sum(works), running)
        done = sum(ended) + sum(own * share for own, share in running)
        if done > sum(works) / 3:
            least, most_left = left.range(now) or (0.0, 0.0)
            assert least - 1e-6 <= whole - now <= most_left + 1e-6


def test_the_range_spans_the_speeds_of_all_stretches_of_time() -> None:
    left = TimeLeft()
    assert left.range(0.0) is None
    for second in range(81):
        # Four a second for half of the time, then one.
        done = 4.0 * min(second, 40) + max(second - 40, 0)
        left.see(float(second), 0.0, 300.0, [(300.0, done / 300)])
    assert left.range(80.0) == pytest.approx((100 / 4, 100 / 1))


def test_packs_that_stand_still_for_a_quarter_of_the_time_count_as_a_quarter_as_fast() -> (
    None
):
    left = TimeLeft()
    for second in range(81):
        done = min(second, 60) + 1e-6 * max(second - 60, 0)
        left.see(float(second), 0.0, 100.0, [(100.0, done / 100)])
    least, most = left.range(80.0) or (0.0, 0.0)
    assert least == pytest.approx(40, abs=0.01)
    assert most == pytest.approx(40 / (60 / 80 / 4), rel=1e-5)


def test_of_two_moments_half_and_twice_are_told_and_then_anything_may_be_over() -> None:
    left = TimeLeft()
    left.see(0.0, 0.0, 4.0, [(4.0, 0.0)])
    left.see(10.0, 0.0, 4.0, [(4.0, 0.25)])
    assert left.range(10.0) == (15.0, 60.0)
    assert left.range(20.0) == (5.0, 60.0)
    assert left.range(30.0) == (0.0, 60.0)


def test_work_that_is_lost_is_left_again() -> None:
    """A pack of ten of which nine are done is tried in halves."""
    left = TimeLeft()
    for second in range(10):
        left.see(float(second), 0.0, 10.0, [(10.0, second / 10)])
    assert left.range(9.0) == pytest.approx((1 / SPARE, 1 * SPARE))
    for second in range(10, 13):
        left.see(float(second), 0.0, 10.0, [(5.0, (second - 10) / 5)])
    least, most = left.range(12.0) or (0.0, 0.0)
    assert 8 / 2 < least <= 8 <= most < 8 * 2


def test_a_week_of_news_is_remembered_by_less_than_300_moments() -> None:
    left = TimeLeft()
    for number in range(0, 300_000, 70):
        left.see(2.0 * number, 0.0, 4e5, [(4e5, number / 4e5)])
    assert len(left._seen) < 300
    rest = 2.0 * (4e5 - number)
    assert left.range(2.0 * number) == pytest.approx((rest / SPARE, rest * SPARE))
