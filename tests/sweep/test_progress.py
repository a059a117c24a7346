"""The displays of progress: they speak of runs, whichever trials carry them out."""

import io
import math
import re
from collections.abc import Callable

import pytest
from rich.console import Console

from raysafl.storage.ledger import Status
from raysafl.sweep import progress
from raysafl.sweep.progress import (
    BarDisplay,
    Display,
    LineDisplay,
    NotebookDisplay,
    State,
    choose_display,
)


def lines(total: int, ends: int, failed: int | None = None) -> list[str]:
    """What a display for log files prints when runs end, one of which may fail."""
    text = io.StringIO()
    display = LineDisplay(Console(file=text, width=200))
    display.start(total, skipped=0)
    display.update(running=3, quality="test accuracy 25.0%")
    for number in range(ends):
        bad = number == failed
        status = Status.FAILED if bad else Status.FINISHED
        reason, result = ("a mistake", "") if bad else ("", "test accuracy 50.00%")
        display.add_run(f"run {number}", status, reason, result)
    return text.getvalue().splitlines()


def test_each_run_of_a_small_sweep_has_a_line_with_its_accuracy() -> None:
    first, *rest = lines(total=3, ends=3)
    assert first == "3 runs to do"
    assert [line.split(" (")[0] for line in rest] == [
        f"[{n + 1}/3] run {n}: finished, test accuracy 50.00%" for n in range(3)
    ]


def test_runs_of_a_large_sweep_that_end_together_share_a_line() -> None:
    _, *rest = lines(total=1000, ends=900)
    assert len(rest) == 1
    assert rest[0].startswith("1/1000 runs, 3 running at test accuracy 25.0%, 0 failed")
    assert lines(total=1000, ends=1000)[-1].startswith("1000/1000 runs")


def test_a_run_of_a_large_sweep_that_fails_has_a_line_of_its_own() -> None:
    assert "[700/1000] run 699: failed, a mistake (1 failed" in "\n".join(
        lines(total=1000, ends=900, failed=699)
    )


def test_large_sweeps_print_a_line_whenever_enough_time_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "SECONDS_A_LINE", -1.0)
    assert len(lines(total=1000, ends=20)) == 1 + 20


def test_a_notebook_shows_one_line_that_changes_and_failures_besides() -> None:
    shown: list[str] = []

    def show(text: str) -> Callable[[str], None]:
        shown.append(text)
        place = len(shown) - 1

        def change(text: str) -> None:
            shown[place] = text

        return change

    display = NotebookDisplay(show)
    display.start(4, skipped=0)
    assert shown == ["0/4 runs, 0 running, 0 failed"]
    display.update(running=2, quality="test accuracy 50.0%")
    display.add_run("s=2", Status.FINISHED, "", "test accuracy 90.00%")
    display.add_run("s=4", Status.FAILED, "a mistake", "")
    line, failure = shown
    assert line.startswith("2/4 runs, 2 running at test accuracy 50.0%, 1 failed, ")
    assert failure == "s=4: failed, a mistake"


def test_the_time_left_assumes_that_the_other_runs_take_as_long() -> None:
    state = State(total=10, done=4, started=0.0)
    spent = progress.time.monotonic()
    assert state.seconds_left == pytest.approx(spent / 4 * 6, rel=0.01)
    assert math.isnan(State(total=10).seconds_left)


def test_a_terminal_gets_a_bar_a_file_lines_and_quiet_nothing() -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True)
    notebook = Console(file=io.StringIO(), force_jupyter=True)
    file = Console(file=io.StringIO())
    assert isinstance(choose_display(terminal, quiet=False), BarDisplay)
    assert isinstance(choose_display(notebook, quiet=False), NotebookDisplay)
    assert isinstance(choose_display(file, quiet=False), LineDisplay)
    assert type(choose_display(terminal, quiet=True)) is Display


def test_a_bar_shows_runs_done_running_and_failed_and_their_accuracy() -> None:
    text = io.StringIO()
    display = BarDisplay(Console(file=text, force_terminal=True, width=120))
    display.start(8, skipped=2)
    display.update(running=5, quality="test accuracy 75.0%")
    display.add_run("s=2", Status.DIVERGED, "too large a rate", "")
    display.progress.refresh()
    display.stop()
    shown = re.sub(r"\x1b\[[\d;?]*\w", "", text.getvalue())
    assert "2 runs finished before" in shown
    assert "s=2: diverged, too large a rate" in shown
    assert "1/8 runs" in shown
    assert "5 running at test accuracy 75.0%, 1 failed" in shown
