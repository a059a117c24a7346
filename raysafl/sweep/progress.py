"""Shows a person how far a sweep is: runs done, running and failed, and the time left."""

import time
from collections.abc import Mapping
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from raysafl.storage.ledger import Status


def run_name(labels: Mapping[str, Any], run_id: str) -> str:
    """Name a run by its labels, as `method=SAFARI, s=2`, or by its id if it has none."""
    return ", ".join(f"{axis}={value}" for axis, value in labels.items()) or run_id


class Display(Protocol):
    """Shows the progress of a sweep."""

    def start(self, total: int, skipped: int) -> None:
        """Begin to show a sweep.

        Args:
            total: the number of runs to do.
            skipped: the number of runs that had ended before.
        """

    def update(self, running: int) -> None:
        """Show a new number of running trials."""

    def add_run(
        self, label_text: str, status: Status, reason: str, accuracy: float
    ) -> None:
        """Show that a run has ended.

        Args:
            label_text: the run's labels as text.
            status: how it ended.
            reason: why, if it did not finish.
            accuracy: its last test accuracy, a fraction in [0, 1].
        """

    def stop(self) -> None:
        """Stop showing, as the sweep has ended."""


class QuietDisplay:
    """Shows nothing. It is also the base of the displays that show some of the events."""

    def start(self, total: int, skipped: int) -> None:
        """Show nothing when the sweep starts."""

    def update(self, running: int) -> None:
        """Show nothing when the number of running trials changes."""

    def add_run(
        self, label_text: str, status: Status, reason: str, accuracy: float
    ) -> None:
        """Show nothing when a run ends."""

    def stop(self) -> None:
        """Show nothing when the sweep ends."""


class LineDisplay(QuietDisplay):
    """Prints one line for each run that ends. It is meant for log files and pipes.

    Args:
        console: what it prints to.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.total = 0
        self.done = 0
        self.failed = 0
        self.started = time.monotonic()

    def start(self, total: int, skipped: int) -> None:
        """Print how many runs there are to do, and how many are done."""
        self.total = total
        before = f", {skipped} finished before" if skipped else ""
        self.console.print(f"{total} runs to do{before}", highlight=False)

    def add_run(
        self, label_text: str, status: Status, reason: str, accuracy: float
    ) -> None:
        """Print a run's number, labels, status and accuracy, and the time left.

        The estimate assumes that the other runs take as long as those that have ended.
        """
        self.done += 1
        self.failed += status.bad
        spent = time.monotonic() - self.started
        # Trials run side by side, so this is already the time per run of all of them.
        left = spent / self.done * (self.total - self.done)
        result = reason or f"test accuracy {accuracy:.2%}"
        self.console.print(
            f"[{self.done}/{self.total}] {label_text}: {status}, {result} "
            f"({self.failed} failed, {left:.0f} s left)",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


class BarDisplay(QuietDisplay):
    """Draws a progress bar on a terminal, with a line above it for each run that fails.

    Args:
        console: the terminal.
    """

    def __init__(self, console: Console) -> None:
        self.failed = 0
        self.progress = Progress(
            TextColumn("{task.completed:.0f}/{task.total:.0f} runs"),
            BarColumn(),
            TextColumn(
                "{task.fields[running]} running, {task.fields[failed]} failed, time left"
            ),
            TimeRemainingColumn(),
            console=console,
        )
        self.task: TaskID | None = None

    def start(self, total: int, skipped: int) -> None:
        """Draw the bar, and print how many runs had ended before."""
        self.progress.start()
        self.task = self.progress.add_task("", total=total, running=0, failed=0)
        if skipped:
            self.progress.console.print(f"{skipped} runs finished before")

    def update(self, running: int) -> None:
        """Show how many trials run now."""
        if self.task is not None:
            self.progress.update(self.task, running=running)

    def add_run(
        self, label_text: str, status: Status, reason: str, accuracy: float
    ) -> None:
        """Advance the bar, and print the reason if the run failed or diverged."""
        self.failed += status.bad
        if status.bad:
            self.progress.console.print(
                f"{label_text}: {status}, {reason}", markup=False
            )
        if self.task is not None:
            self.progress.update(self.task, advance=1, failed=self.failed)

    def stop(self) -> None:
        """Remove the bar from the terminal."""
        self.progress.stop()


def choose_display(console: Console, quiet: bool) -> Display:
    """Return a bar for a terminal, else lines; with `quiet`, what shows nothing."""
    if quiet:
        return QuietDisplay()
    return BarDisplay(console) if console.is_terminal else LineDisplay(console)
