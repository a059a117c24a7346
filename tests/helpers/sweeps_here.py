"""Sweeps that tests carry out in their own process."""

import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from ray.tune.search import Searcher
from rich.console import Console

from raysafl import Hardware, Runner, Sweep
from raysafl.sweep.here import Here
from raysafl.sweep.new_runs import Datasets
from raysafl.sweep.on_ray.sampler import Sampler
from raysafl.sweep.outcome import Outcome
from raysafl.sweep.packs import PACK_KEY, Pack
from raysafl.sweep.watch import Watch


def go(sweep: Sweep, out: Path, **options: Any) -> tuple[Outcome, str]:
    """What a runner did with a sweep in this process, and what it said."""
    text = io.StringIO()
    # To try a round takes a process of its own.
    options = {"executor": "here", "track": "none", "try_first": False, **options}
    console = Console(file=text, width=200)
    return Runner(sweep, out, console=console, **options).run(), text.getvalue()


def rows_of(outcome: Outcome) -> pd.DataFrame:
    return outcome.store.rounds().drop(columns="seconds")


class Halving(Searcher):
    """Suggests half of the learning rate before, and remembers what it was told."""

    def __init__(self, lr: float = 0.4) -> None:
        super().__init__()
        self.lr = lr
        self.by: str | None = None
        self.better: str | None = None
        # For each suggestion, of how many it had been told before.
        self.told_before: list[int] = []
        self.told: dict[str, float] = {}
        self.failed: list[str] = []
        self.space: dict[str, Any] = {}

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **_: Any
    ) -> bool:
        self.by = metric
        self.better = mode
        self.space = config
        return True

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.told_before.append(len(self.told) + len(self.failed))
        self.lr /= 2
        return {"local.lr": self.lr}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        if error:
            self.failed.append(trial_id)
            return
        assert result is not None and self.by
        self.told[trial_id] = result[self.by]

    def save(self, checkpoint_path: str) -> None:
        """Tune asks for it; nothing is kept."""

    def restore(self, checkpoint_path: str) -> None:
        """Tune asks for it; nothing is kept."""


class TuneHere(Here):
    """Carries out what needs Tune as Tune does, one trial after the other, without Ray.

    It asks search algorithms, and heeds no rule to stop.
    """

    def carry_out(
        self, packs: Sequence[Pack], datasets: Datasets, watch: Watch
    ) -> None:
        if packs:
            super().carry_out(packs, datasets, watch)
            return
        known = dict(datasets)
        sampler = Sampler(watch, known, self.room(), lambda pack, _: pack)
        for number in itertools.count():
            config = sampler.suggest(str(number))
            if not isinstance(config, dict):
                return
            super().carry_out([config[PACK_KEY]], known, watch)
            sampler.on_trial_complete(str(number))


def search(sweep: Sweep, out: Path, **options: Any) -> tuple[Outcome, str]:
    """Like `go`, of a sweep for which a `Runner` takes Ray."""
    executor = TuneHere(Hardware())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raysafl.sweep.new_runs.choose_executor", lambda *_: executor)
        return go(sweep, out, executor="ray", **options)
