"""Shows a person how far a sweep is: runs done, running and failed, and the time left."""

import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from raysafl.core.text import about, count, printable

# Between two looks at the clock.
TICK_SECONDS = 1.0
# In a log file: until the first line, and from one line to the next.
FIRST_LINE_SECONDS = 0.9
SECONDS_A_LINE = 10.0
# Columns of a log file, for which rich would assume 80.
WIDTH_OF_FILE = 120


class Ending(NamedTuple):
    """How a run has ended.

    Args:
        text: its labels, how it ended and how good it is.
        is_bad: whether it failed or diverged.
    """

    text: str
    is_bad: bool


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


def short(path: Path) -> str:
    """Return a path as the user would type it from the working directory."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


class TimeLeft:
    """Estimates how long the rest of a sweep takes, by the rate at which its work is done.

    The rate is known from the second report on: until the first one, a process has also
    started, read data and compiled. So what was done before is left out.
    """

    def __init__(self) -> None:
        # When the rate began to be measured, and the work that was done then; the same of the
        # last report; and the work that was left.
        self._first = self._last = (0.0, 0.0)
        self._left = 0.0

    def see(self, now: float, done: float, planned: float) -> None:
        """Take note of how much has been done.

        Args:
            now: the time in seconds.
            done: the work that is done.
            planned: the work of all packs.
        """
        before = self._last[1]
        if done == before:
            return
        self._last = now, done
        # If a process was lost, less has been done than before.
        if not before or done < before:
            self._first = self._last
        self._left = planned - done

    def seconds(self, now: float) -> float | None:
        """Return how many seconds are left; None as long as that is not known."""
        began, before = self._first
        ended, done = self._last
        if done == before or ended == began:
            return None
        return max(self._left * (ended - began) / (done - before) - (now - ended), 0.0)


class Display:
    """Takes note of how far a sweep is, and shows nothing: the base of all displays.

    Attributes:
        most_told: the largest number of runs that end at the same time of which each has a
            line; those that fail have one in any case.
        phase: what is being done, such as `loading data`; empty while runs go on.
        total: the number of runs to do.
        done: how many have ended.
        failed: how many of these failed or diverged.
        running: how many have begun and not ended.
        at: where these are, such as `round 31 of 60 at test accuracy 81.3%`; empty if no
            round is evaluated.
        is_cut: whether the sweep ends before its runs do.
        planned: the work of the runs to do, in any unit.
        finished: the part of this work that was done by packs that have ended.
    """

    most_told: ClassVar[int] = 0

    def __init__(self) -> None:
        self.phase = ""
        self.total = self.done = self.failed = self.running = 0
        self.at = ""
        self.is_cut = False
        self.planned = self.finished = 0.0
        self.left = TimeLeft()
        self._ended = threading.Event()
        self._ticking: threading.Thread | None = None

    def enter(self, phase: str) -> None:
        """Show what is being done from now on.

        Args:
            phase: what, such as `starting Ray`; empty while runs go on.
        """
        self.phase = phase
        if self._ticking is None:
            self._ticking = threading.Thread(target=self._keep_ticking, daemon=True)
            self._ticking.start()
        self._draw()

    def start(self, total: int, skipped: int, phase: str = "") -> None:
        """Begin to show runs.

        Args:
            total: the number of runs to do.
            skipped: the number of runs that had ended before.
            phase: what is done until the first of them begins.
        """
        self.total = total
        self.enter(phase)
        before = f", {skipped} finished before" if skipped else ""
        self._say(f"{count(total, 'run')} to do{before}")

    def update(
        self, running: int, at: str, packs: Sequence[tuple[float, float]]
    ) -> None:
        """Show what runs now.

        Args:
            running: how many runs have begun and not ended.
            at: in which round they are, and how good in the mean.
            packs: the work of each pack at work, and the share of it that is done.
        """
        self.running = running
        self.at = at
        if packs:
            self.phase = ""
        if self.planned:
            done = self.finished + sum(work * share for work, share in packs)
            self.left.see(time.monotonic(), done, self.planned)
        self._draw()

    def add_runs(self, ends: Sequence[Ending]) -> None:
        """Show that runs have ended, at the same time."""
        self.done += len(ends)
        self.failed += sum(end.is_bad for end in ends)
        told = [end for end in ends if end.is_bad or len(ends) <= self.most_told]
        for number, end in enumerate(told, start=self.done - len(told) + 1):
            self._say(f"[{number}/{self.total}] {end.text}")
        if self.most_told and len(told) < len(ends):
            others = len(ends) - len(told)
            self._say(f"[{self.done}/{self.total}] {others} runs have ended together")
        self._draw()

    def close(self) -> None:
        """Stop showing; what is shown stays as it is."""
        self._ended.set()
        if self._ticking is not None:
            self._ticking.join()

    def _keep_ticking(self) -> None:
        while not self._ended.wait(TICK_SECONDS):
            self._draw()

    def _say(self, line: str) -> None:
        """Print a line that stays."""

    def _draw(self) -> None:
        """Show how far the sweep is, as something has changed, or a second has passed."""

    @property
    def time_left(self) -> str:
        """The estimate as text; empty if there is none yet."""
        found = self.left.seconds(time.monotonic())
        if found is None or self.done == self.total:
            return ""
        return f"{about(found)} left"

    @property
    def present(self) -> str:
        """What runs now, and how many runs have failed."""
        at = f" in {self.at}" if self.at else ""
        return f"{self.running} running{at}, {self.failed} failed"

    @property
    def line(self) -> str:
        """All of it as one line of text."""
        runs = f"{self.done}/{self.total} runs, {self.present}"
        if self.phase:
            return f"{runs}, {self.phase}" if self.done else self.phase
        return ", ".join(filter(None, [runs, self.time_left]))


class LineDisplay(Display):
    """Prints lines that stay. It is meant for log files, pipes and notebooks.

    There is a line for each run that ends, or one for all runs that end at the same time
    if they are more than `most_told`, and where nothing has been printed for
    `SECONDS_A_LINE` seconds, one that says how far the sweep is. What is done before the
    runs begin has one line each.

    Args:
        console: what it prints to.
    """

    most_told: ClassVar[int] = 4

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        self._printed = ""
        # When a line is due: the first one soon.
        self._due = time.monotonic() + FIRST_LINE_SECONDS

    def _say(self, line: str) -> None:
        self._printed = line
        self._due = time.monotonic() + SECONDS_A_LINE
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _draw(self) -> None:
        is_said = self.phase and self._printed == self.line
        if time.monotonic() > self._due and not is_said:
            self._say(self.line)


class BarDisplay(Display):
    """Draws a progress bar on a terminal, with a line above it for each run that fails.

    Args:
        console: the terminal.
    """

    def __init__(self, console: Console) -> None:
        super().__init__()
        # Imported here, because most commands draw no bar.
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[runs]}"),
            BarColumn(),
            TextColumn("{task.description}"),
            console=console,
        )
        self._task = self.progress.add_task("", total=None, visible=False, runs="")

    def enter(self, phase: str) -> None:
        """Show what is being done from now on; see `Display`."""
        self.progress.start()
        super().enter(phase)

    def _say(self, line: str) -> None:
        self.progress.console.print(line, markup=False)

    def _draw(self) -> None:
        told = self.phase or ", ".join(filter(None, [self.present, self.time_left]))
        runs = f"{self.done}/{self.total} runs" if self.total else ""
        self.progress.update(
            self._task,
            total=self.total or None,
            completed=self.done,
            description=told,
            visible=True,
            runs=runs,
        )

    def close(self) -> None:
        """Remove the bar from the terminal."""
        super().close()
        self.progress.stop()


def choose_display(console: Console, quiet: bool) -> Display:
    """Return a bar for a terminal, and lines for a file or a notebook.

    With `quiet`, the display shows nothing.
    """
    if quiet:
        return Display()
    is_bar = console.is_terminal and not console.is_jupyter
    return BarDisplay(console) if is_bar else LineDisplay(console)
