"""`runs.parquet`: which runs and replicates it has, and where their numbers come from."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.summaries import summarise

from raysafl.storage.ledger import LedgerEntry, Status
from raysafl.storage.manifest import Entry, Manifest, Table
from raysafl.storage.rows import table_of
from raysafl.storage.runs_table import make_runs_table, write_runs_table
from raysafl.storage.statistics import STATISTICS
from raysafl.storage.store import Store

SHOWN = ("a", "b", "c")


def config(run_id: str, replicates: int) -> dict[str, Any]:
    """A configuration written by hand."""
    own = {"b": {"algorithm": {"kind": "SAFARI", "client_prob": 0.5}}}.get(run_id, {})
    return {"replicates": replicates, "seed": 7, "rounds": 9, "mu": None} | own


def write(store: Store, run_id: str, lengths: list[int], status: Status) -> None:
    """Write a run's rows, the last replicate first, and how it ended."""
    rows = [
        {"replicate": r, "seed": 7 + r, "round": t, "kind": "client"}
        | {"cohorts": [[0]], "enforced": [False], "trained": [True]}
        | {"test_accuracy": (0.1 * (r + 1) * t) % 1, "test_loss": 1.0 / (1 + t)}
        | {"snapshots": 0, "server_rounds": 0, "steps": 3}
        | {"bytes_down": 4, "bytes_up": 2, "seconds": 0.1}
        for r, length in reversed(list(enumerate(lengths)))
        for t in reversed(range(length))
    ]
    table = table_of(run_id, rows)
    ends = [
        {"replicate": r, "status": Status.FINISHED if length == 9 else Status.DIVERGED}
        | {"reason": "" if length == 9 else f"round {length}"}
        for r, length in enumerate(lengths)
    ]
    entry = LedgerEntry(
        status=status,
        reason="of the run",
        config=config(run_id, len(lengths)),
        replicates=ends if status is not Status.FAILED else [],
        seconds=2.5,
        host="box",
        ended="2026-01-01T00:00:00",
    )
    store.commit(table, {run_id: entry})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "sweep")
    found.create()
    entries = [
        Entry(run_id=i, labels={"x": n}) for n, i in enumerate((*SHOWN, "later"))
    ]
    found.write_manifest(
        Manifest(name="s", axes=["x"], entries=entries, table=Table(rows=["x"]))
    )
    write(found, "c", [9, 9], Status.FAILED)
    write(found, "a", [9, 4, 0], Status.DIVERGED)
    write(found, "b", [9], Status.FINISHED)
    write(found, "stranger", [9, 9], Status.FINISHED)
    return found


def test_each_replicate_of_each_ended_run_of_the_manifest_has_a_row(
    store: Store,
) -> None:
    table = make_runs_table(store)
    pairs = [*zip(table["run_id"], table["replicate"], table["seed"], strict=True)]
    first = [("a", 0, 7), ("a", 1, 8), ("a", 2, 9)]
    assert pairs == [*first, ("b", 0, 7), ("c", 0, 7), ("c", 1, 8)]
    assert table["label.x"].tolist() == [0, 0, 0, 1, 2, 2]


def test_the_statistics_of_a_replicate_are_those_of_its_rows(store: Store) -> None:
    table = make_runs_table(store)
    rounds = store.rounds()
    assert table.columns.tolist().index("rounds") < table.columns.tolist().index(
        "chance"
    )
    for _, row in table.iterrows():
        own = rounds["run_id"].eq(row["run_id"]) & rounds["replicate"].eq(
            row["replicate"]
        )
        expected = pd.Series(summarise(rounds[own]), dtype=float)
        found = row[list(STATISTICS)].astype(float)
        pd.testing.assert_series_equal(found, expected, check_names=False)
    assert table["rounds"].tolist() == [9, 4, 0, 9, 9, 9]
    assert table["total_steps"].tolist() == [27, 12, 0, 27, 27, 27]


def test_a_replicate_has_its_own_end_or_that_of_its_run(store: Store) -> None:
    table = make_runs_table(store)
    status = ["finished", "diverged", "diverged", "finished", "failed", "failed"]
    assert table["status"].tolist() == status
    reasons = ["", "round 4", "round 0", "", "of the run", "of the run"]
    assert table["reason"].tolist() == reasons


def test_settings_that_only_some_runs_have_are_empty_in_the_others(
    store: Store,
) -> None:
    table = write_runs_table(store)
    assert table["config.algorithm.client_prob"].tolist()[3] == "0.5"
    assert (
        table["config.algorithm.client_prob"].isna().tolist()
        == [True] * 3 + [False] + [True] * 2
    )
    assert table["config.mu"].isna().all()
    assert store.runs()["seconds"].tolist() == [2.5] * 6


def test_a_sweep_of_which_nothing_has_ended_has_an_empty_table(store: Store) -> None:
    store.forget([*SHOWN])
    table = make_runs_table(store)
    assert table.empty and {"run_id", "status", "reason"} <= set(table)
