"""The displays of progress, and the estimate of the time left for packs of known speeds."""

import io
import re
from collections.abc import Sequence

import pytest
from rich.console import Console

from raysafl.sweep import progress
from raysafl.sweep.progress import (
    BarDisplay,
    Display,
    Ending,
    LineDisplay,
    TimeLeft,
    choose_display,
)

FINISHED = "finished, test accuracy 50.00%"
AT = "round 31 of 60 at test accuracy 25.0%"


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Displays go by this clock, and their threads do not look at it by themselves."""
    found = Clock()
    monkeypatch.setattr(progress.time, "monotonic", found)
    monkeypatch.setattr(progress, "TICK_SECONDS", 1e6)
    return found


def ends(numbers: Sequence[int], failed: int | None = None) -> list[Ending]:
    texts = {k: "failed, a mistake" if k == failed else FINISHED for k in numbers}
    return [Ending(f"run {k}: {text}", k == failed) for k, text in texts.items()]


class Log:
    """A display for log files, and what it has printed."""

    def __init__(self) -> None:
        self.text = io.StringIO()
        self.display = LineDisplay(Console(file=self.text, width=200))

    @property
    def lines(self) -> list[str]:
        return self.text.getvalue().splitlines()

    def wait(self, clock: Clock, seconds: float) -> None:
        clock.now += seconds
        self.display._draw()


def test_runs_that_end_one_by_one_have_a_line_each_with_their_accuracy(
    clock: Clock,
) -> None:
    log = Log()
    log.display.start(3, skipped=1)
    for k in range(3):
        log.display.add_runs(ends([k]))
    log.display.close()
    assert log.lines == [
        "3 runs to do, 1 finished before",
        *(f"[{k + 1}/3] run {k}: finished, test accuracy 50.00%" for k in range(3)),
    ]


def test_a_log_file_says_within_a_second_and_then_every_ten_what_is_done(
    clock: Clock,
) -> None:
    log = Log()
    log.display.enter("loading data")
    assert log.lines == []
    log.wait(clock, 1.0)
    assert log.lines == ["loading data"]
    log.display.enter("starting Ray")
    for _ in range(12):
        log.wait(clock, 1.0)
    assert log.lines == ["loading data", "starting Ray"]
    log.display.start(8, 0, "starting Ray's processes")
    log.wait(clock, 11.0)
    assert log.lines[-1] == "starting Ray's processes"
    log.display.update(5, AT, [(1.0, 0.0)])
    log.wait(clock, 11.0)
    assert log.lines[-1] == f"0/8 runs, 5 running in {AT}, 0 failed"
    log.display.close()


def test_a_terminal_gets_a_bar_a_file_and_a_notebook_lines_and_quiet_nothing() -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True)
    notebook = Console(file=io.StringIO(), force_jupyter=True)
    file = Console(file=io.StringIO())
    assert isinstance(choose_display(terminal, quiet=False), BarDisplay)
    assert isinstance(choose_display(notebook, quiet=False), LineDisplay)
    assert isinstance(choose_display(file, quiet=False), LineDisplay)
    assert type(choose_display(terminal, quiet=True)) is Display


def test_a_bar_shows_the_phase_the_runs_by_state_and_their_accuracy() -> None:
    text = io.StringIO()
    display = BarDisplay(Console(file=text, force_terminal=True, width=140))
    display.enter("loading data")
    display.progress.refresh()
    display.start(8, skipped=2)
    display.update(running=5, at=AT, packs=[])
    display.add_runs([Ending("s=2: diverged, too large a rate", True)])
    display.progress.refresh()
    display.close()
    shown = re.sub(r"\x1b\[[\d;?]*\w", "", text.getvalue())
    assert "loading data" in shown
    assert "8 runs to do, 2 finished before" in shown
    assert "s=2: diverged, too large a rate" in shown
    assert "1/8 runs" in shown
    assert f"5 running in {AT}, 1 failed" in shown


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
