"""A sweep that is killed at any change of a file: the same command goes on to the same rows."""

from pathlib import Path

import pandas as pd
import pytest
from helpers.chaos import CLOCK, KEY, sweep
from helpers.crashes import crashes

from raysafl import Hardware, PerClient, Runner, Sweep
from raysafl.report import write
from raysafl.storage.store import Store
from raysafl.storage.verify import verify
from raysafl.sweep.outcome import Outcome

# A run with each kind of state, of so many rounds.
ROUNDS = {"momentum": 1, "memory": 3, "safari": 2, "adaptive": 3}
# What the attempts before the crash and after it put together.
BEFORE, AFTER = Hardware(pack=2), Hardware(pack=3)


def small() -> Sweep:
    """Two packs, of which one has a run that ends earlier, and all that a run may write."""
    runs = {
        (name,): run.replace(
            rounds=ROUNDS[name],
            replicates=1,
            eval_every=1,
            keep="last" if name == "memory" else None,
            eval_clients=PerClient(every=1) if name == "safari" else None,
        )
        for (name,), run in sweep(0).runs.items()
    }
    return Sweep("small", runs, axes=["what"])


def go(out: Path, hardware: Hardware) -> Outcome:
    """Give the command in this process; every round is written."""
    options = {"quiet": True, "track": "none", "flush_seconds": 0.0}
    return Runner(small(), out, hardware, executor="here", **options).run()


def tables(store: Store) -> list[pd.DataFrame]:
    """All rows, and those of the clients, in order."""
    rows = store.rounds().drop(columns=CLOCK).sort_values(KEY, ignore_index=True)
    return [rows, store.clients()]


def test_a_sweep_that_is_killed_at_any_change_of_a_file_goes_on_to_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt packs the runs differently.

    The page and its figures are not drawn: it takes longer than all the rest.
    """
    monkeypatch.setattr(write, "write_report", lambda store: None)
    whole = go(tmp_path / "whole", AFTER)
    assert whole.ok and len(whole.store.ledger()) == len(ROUNDS)
    expected = tables(whole.store)
    models = {i: entry.kept for i, entry in whole.store.ledger().items()}
    attempts = 0

    def attempt() -> None:
        nonlocal attempts
        attempts += 1
        go(tmp_path / str(attempts), BEFORE)

    found = set()
    for _ in crashes(attempt):
        store = Store(tmp_path / str(attempts))
        found.add((len(store.open_runs()), len(store.ledger())))
        assert go(store.path, AFTER).ok
        for mine, due in zip(tables(store), expected, strict=True):
            pd.testing.assert_frame_equal(mine, due)
        ledger = store.ledger()
        assert {i: entry.kept for i, entry in ledger.items()} == models
        # Where all runs had ended, the attempt after the crash puts nothing together.
        store.compact()
        assert verify(store) == [] and not store.open_runs()
    # Checkpoints and ended runs: crashes before, between and after all that is written.
    assert {(0, 0), (1, 0), (2, 0), (2, 2), (1, 4), (0, 4)} <= found
