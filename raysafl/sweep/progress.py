"""Shows a person how far a sweep is: runs done, running and failed, and the time left."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from raysafl.core.text import printable

if TYPE_CHECKING:
    from rich.progress import TaskID

    from raysafl.storage.ledger import Status
    from raysafl.storage.paths import Location


# The largest number of runs of which each has a line in a log file.
MOST_LINES = 100
# The time between two lines of a sweep of more runs.
SECONDS_A_LINE = 5.0
# Columns of a log file, for which rich would assume 80.
WIDTH_OF_FILE = 120


class _PlainConsole(Console):
    """A console that prints no control characters but rich's own."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render an object, as rich does."""
        for part in super().render(renderable, options):
            yield part if part.control else part._replace(text=printable(part.text))


def plain_console(stderr: bool = False) -> Console:
    """Return a console on which names and labels are text: `[red]q` is no instruction."""
    console = _PlainConsole(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal and not console.is_jupyter:
        console.width = WIDTH_OF_FILE
    return console


def short(path: "Location") -> str:
    """Return a path as the user would type it from the working directory."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def run_name(labels: Mapping[str, Any], run_id: str) -> str:
    """Name a run by its labels, as `method=SAFARI, s=2`, or by its id if it has none."""
    return ", ".join(f"{axis}={value}" for axis, value in labels.items()) or run_id


@dataclass
class State:
    """How far a sweep is.

    Args:
        total: the number of runs to do.
        done: how many have ended.
        failed: how many of these failed or diverged.
        running: how many have begun and not ended.
        quality: how good the running ones are in the mean, as text; empty if none is
            evaluated.
        started: the time of the start, in seconds of `time.monotonic`.
    """

    total: int = 0
    done: int = 0
    failed: int = 0
    running: int = 0
    quality: str = ""
    started: float = field(default_factory=time.monotonic)

    def add(self, status: "Status") -> None:
        """Count a run that has ended."""
        self.done += 1
        self.failed += status.bad

    @property
    def seconds_left(self) -> float:
        """An estimate: the other runs take as long as those that have ended."""
        spent = time.monotonic() - self.started
        # Runs go on side by side, so this is already the time per run of all of them.
        return spent / self.done * (self.total - self.done) if self.done else math.nan

    def line(self) -> str:
        """Return all of it as one line of text."""
        left = "" if not self.done else f", {self.seconds_left:.0f} s left"
        return (
            f"{self.done}/{self.total} runs, {self.running} running"
            f"{_short_quality(self.quality)}, {self.failed} failed{left}"
        )


def _short_quality(quality: str) -> str:
    return f" at {quality}" if quality else ""


class Display:
    """Takes note of how far a sweep is, and shows nothing: the base of all displays."""

    def __init__(self) -> None:
        self.state = State()

    def start(self, total: int, skipped: int) -> None:
        """Begin to show a sweep.

        Args:
            total: the number of runs to do.
            skipped: the number of runs that had ended before.
        """
        self.state = State(total)

    def update(self, running: int, quality: str) -> None:
        """Show what runs now.

        Args:
            running: how many runs have begun and not ended.
            quality: how good they are in the mean, such as `test accuracy 81.3%`;
                empty if none is evaluated.
        """
        self.state.running = running
        self.state.quality = quality

    def add_run(
        self, label_text: str, status: "Status", reason: str, result: str
    ) -> None:
        """Show that a run has ended.

        Args:
            label_text: the run's labels as text.
            status: how it ended.
            reason: why, if it did not finish.
            result: how good it was at last, such as `test accuracy 81.30%`; empty if
                that is not known.
        """
        self.state.add(status)

    def stop(self) -> None:
        """Stop showing, as the sweep has ended."""


class LineDisplay(Display):
    """Prints one line for each run that ends. It is meant for log files and pipes.

    In a sweep of more than `MOST_LINES` runs, the runs that finish within
    `SECONDS_A_LINE` seconds share one line.

    Args:
        console: what it prints to.
    """

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        # The time of the last line.
        self.told = -math.inf

    def start(self, total: int, skipped: int) -> None:
        """Print how many runs there are to do, and how many are done."""
        super().start(total, skipped)
        before = f", {skipped} finished before" if skipped else ""
        self.console.print(f"{total} runs to do{before}", highlight=False)

    def add_run(
        self, label_text: str, status: "Status", reason: str, result: str
    ) -> None:
        """Print a run's number, labels, status and result, and the time left."""
        super().add_run(label_text, status, reason, result)
        state = self.state
        if state.total <= MOST_LINES or status.bad:
            told = ", ".join(
                filter(None, [status.value, reason, "" if status.bad else result])
            )
            self._print(
                f"[{state.done}/{state.total}] {label_text}: {told} "
                f"({state.failed} failed, {state.seconds_left:.0f} s left)"
            )
            return
        now = time.monotonic()
        if now - self.told > SECONDS_A_LINE or state.done == state.total:
            self.told = now
            self._print(state.line())

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


class BarDisplay(Display):
    """Draws a progress bar on a terminal, with a line above it for each run that fails.

    Args:
        console: the terminal.
    """

    def __init__(self, console: Console) -> None:
        super().__init__()
        # Imported here, because most commands draw no bar.
        from rich.progress import (
            BarColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self.progress = Progress(
            TextColumn("{task.completed:.0f}/{task.total:.0f} runs"),
            BarColumn(),
            TextColumn(
                "{task.fields[running]} running{task.fields[quality]}, "
                "{task.fields[failed]} failed, time left"
            ),
            TimeRemainingColumn(),
            console=console,
        )
        self.task: TaskID | None = None

    def start(self, total: int, skipped: int) -> None:
        """Draw the bar, and print how many runs had ended before."""
        super().start(total, skipped)
        self.progress.start()
        self.task = self.progress.add_task(
            "", total=total, running=0, quality="", failed=0
        )
        if skipped:
            self.progress.console.print(f"{skipped} runs finished before")

    def update(self, running: int, quality: str) -> None:
        """Show how many runs go on, and how good they are in the mean."""
        if self.task is not None:
            self.progress.update(
                self.task, running=running, quality=_short_quality(quality)
            )

    def add_run(
        self, label_text: str, status: "Status", reason: str, result: str
    ) -> None:
        """Advance the bar, and print the reason if the run failed or diverged."""
        super().add_run(label_text, status, reason, result)
        if status.bad:
            self.progress.console.print(
                f"{label_text}: {status}, {reason}", markup=False
            )
        if self.task is not None:
            self.progress.update(self.task, advance=1, failed=self.state.failed)

    def stop(self) -> None:
        """Remove the bar from the terminal."""
        self.progress.stop()


class NotebookDisplay(Display):
    """Shows the same numbers in a notebook, as one line that is updated.

    Runs that failed or diverged are printed below it.

    Args:
        show: shows a text in the notebook, and returns what changes this text.
    """

    def __init__(self, show: Callable[[str], Callable[[str], None]]) -> None:
        super().__init__()
        self._show = show
        self._change: Callable[[str], None] | None = None

    def start(self, total: int, skipped: int) -> None:
        """Show the line."""
        super().start(total, skipped)
        self._change = self._show(self.state.line())

    def update(self, running: int, quality: str) -> None:
        """Change the line to what runs now."""
        super().update(running, quality)
        self._draw()

    def add_run(
        self, label_text: str, status: "Status", reason: str, result: str
    ) -> None:
        """Count the run in the line, and show why it failed or diverged."""
        super().add_run(label_text, status, reason, result)
        if status.bad:
            self._show(f"{label_text}: {status}, {reason}")
        self._draw()

    def _draw(self) -> None:
        if self._change is not None:
            self._change(self.state.line())


def _show_in_notebook(text: str) -> Callable[[str], None]:
    """Show a text in the notebook, and return a function that changes it."""
    # A notebook has IPython; other programs need not.
    from IPython.display import display  # type: ignore[import-not-found]

    def plain(text: str) -> dict[str, str]:
        return {"text/plain": text}

    handle = display(plain(text), raw=True, display_id=True)
    return lambda changed: handle.update(plain(changed), raw=True)


def choose_display(console: Console, quiet: bool) -> Display:
    """Return a bar for a terminal, a line for a notebook, else lines for a file.

    With `quiet`, the display shows nothing.
    """
    if quiet:
        return Display()
    if console.is_jupyter:
        return NotebookDisplay(_show_in_notebook)
    return BarDisplay(console) if console.is_terminal else LineDisplay(console)
