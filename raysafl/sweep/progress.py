"""What a person sees of a sweep while it runs: done, running, failed, time left."""

import time
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from raysafl.storage.ledger import Status


class Display(Protocol):
    """Shows a sweep's progress."""

    def start(self, total: int, skipped: int) -> None:
        """The sweep begins: runs to do, and runs that were done before."""

    def update(self, running: int) -> None:
        """The number of running trials changed."""

    def ended(self, label: str, status: Status, reason: str, accuracy: float) -> None:
        """A run ended."""

    def stop(self) -> None:
        """The sweep is over."""


class Quiet:
    """Shows nothing."""

    def start(self, total: int, skipped: int) -> None:
        """Nothing."""

    def update(self, running: int) -> None:
        """Nothing."""

    def ended(self, label: str, status: Status, reason: str, accuracy: float) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""


class Lines(Quiet):
    """One line per ended run, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.console, self.total, self.done, self.failed = console, 0, 0, 0
        self.since = time.monotonic()

    def start(self, total: int, skipped: int) -> None:
        """Say how much there is to do."""
        self.total = total
        before = f", {skipped} finished before" if skipped else ""
        self.console.print(f"{total} runs to do{before}", highlight=False)

    def ended(self, label: str, status: Status, reason: str, accuracy: float) -> None:
        """Number, label, end, accuracy, and the time left at this pace."""
        self.done += 1
        self.failed += status.bad
        spent = time.monotonic() - self.since
        left = spent / self.done * (self.total - self.done)
        said = reason or f"test accuracy {accuracy:.2%}"
        self.console.print(
            f"[{self.done}/{self.total}] {label}: {status}, {said} "
            f"({self.failed} failed, {left:.0f} s left)",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


class Bar(Quiet):
    """A live bar on a terminal; runs that fail are printed above it."""

    def __init__(self, console: Console) -> None:
        self.failed = 0
        self.progress = Progress(
            TextColumn("{task.completed:.0f}/{task.total:.0f} runs"),
            BarColumn(),
            TextColumn("{task.fields[running]} running, {task.fields[failed]} failed, time left"),
            TimeRemainingColumn(),
            console=console,
        )
        self.task: TaskID | None = None

    def start(self, total: int, skipped: int) -> None:
        """Show the bar."""
        self.progress.start()
        self.task = self.progress.add_task("", total=total, running=0, failed=0)
        if skipped:
            self.progress.console.print(f"{skipped} runs finished before")

    def update(self, running: int) -> None:
        """Show how many run."""
        if self.task is not None:
            self.progress.update(self.task, running=running)

    def ended(self, label: str, status: Status, reason: str, accuracy: float) -> None:
        """Advance the bar; say why if the run did not end well."""
        self.failed += status.bad
        if status.bad:
            self.progress.console.print(f"{label}: {status}, {reason}", markup=False)
        if self.task is not None:
            self.progress.update(self.task, advance=1, failed=self.failed)

    def stop(self) -> None:
        """Take the bar away."""
        self.progress.stop()


def display(console: Console, quiet: bool) -> Display:
    """A bar on a terminal, lines elsewhere, nothing if quiet."""
    if quiet:
        return Quiet()
    return Bar(console) if console.is_terminal else Lines(console)
