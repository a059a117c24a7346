"""Sweeps that tests carry out in their own process."""

import io
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from raysafl import Runner, Sweep
from raysafl.sweep.outcome import Outcome


def go(sweep: Sweep, out: Path, **options: Any) -> tuple[Outcome, str]:
    """What a runner did with a sweep in this process, and what it said."""
    text = io.StringIO()
    # To try a round takes a process of its own.
    options = {"executor": "here", "track": "none", "try_first": False, **options}
    console = Console(file=text, width=200)
    return Runner(sweep, out, console=console, **options).run(), text.getvalue()


def rows_of(outcome: Outcome) -> pd.DataFrame:
    return outcome.store.rounds().drop(columns="seconds")
