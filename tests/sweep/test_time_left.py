"""The estimate of the time left, against sweeps whose packs have known speeds."""

import pytest

from raysafl.sweep.progress import TimeLeft


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_packs_of_one_size_that_follow_each_other_are_foretold_to_the_second(
    at_once: int,
) -> None:
    """Six packs of 20 s, of which each at work reports every two seconds."""
    left = TimeLeft()
    end = 6 * 20 // at_once
    for now in range(0, end, 2):
        ended = now // 20 * at_once
        left.see(float(now), 20.0 * ended + now % 20 * at_once, 120.0)
        expected = None if now < 4 else pytest.approx(end - now)
        assert left.seconds(float(now)) == expected


def test_work_that_is_lost_is_left_again() -> None:
    """A pack of ten of which nine are done is tried in halves."""
    left = TimeLeft()
    for second in range(10):
        left.see(float(second), float(second), 10.0)
    assert left.seconds(9.0) == pytest.approx(1.0)
    left.see(10.0, 0.0, 10.0)
    assert left.seconds(10.0) is None
    left.see(11.0, 1.0, 10.0)
    left.see(12.0, 2.0, 10.0)
    assert left.seconds(12.0) == pytest.approx(8.0)
