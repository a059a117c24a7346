"""`runs.parquet`: which runs and replicates it has, and where their numbers come from."""

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from helpers.summaries import summarise

from raysafl.storage.ledger import CellEnd, Status
from raysafl.storage.manifest import Entry, Manifest, Table
from raysafl.storage.rows import CLIENTS, ROUNDS
from raysafl.storage.runs_table import make_runs_table, write_runs_table
from raysafl.storage.statistics import BY_NAME, STATISTICS
from raysafl.storage.store import Store


def config(run_id: str, replicates: int) -> dict[str, Any]:
    """A configuration written by hand."""
    own = {"b": {"algorithm": {"kind": "SAFARI", "client_prob": 0.5}}}.get(run_id, {})
    fixed = {"replicates": replicates, "seed": 7, "rounds": 9, "mu": None}
    return {**fixed, **own, "note": run_id}


def write(store: Store, run_id: str, lengths: list[int], status: Status) -> None:
    """Write a run's rows, the last cell first, and how each of its cells ended."""
    (entry,) = (e for e in store.manifest().entries if e.run_id == run_id)
    fixed = {"kind": "client", "cohorts": [[0]], "enforced": [False], "steps": 3}
    fixed |= {"snapshots": 0, "server_rounds": 0, "bytes_down": 4, "bytes_up": 2}
    cells = [*zip(entry.cells, entry.seeds, lengths, strict=True)]
    rows = [
        {"cell": cell, "seed": seed, "round": t, "trained": [True], "seconds": 0.1}
        | {"test_accuracy": (0.1 * (seed - 6) * t) % 1, "test_loss": 1.0 / (1 + t)}
        | fixed
        for cell, seed, length in reversed(cells)
        for t in reversed(range(length))
    ]
    ends = [
        CellEnd(
            cell=cell,
            seed=seed,
            status=Status.FINISHED if length == 9 else status,
            reason="" if length == 9 else f"round {length}",
            seconds=2.5,
            host="box",
            ended="2026-01-01T00:00:00",
        )
        for cell, seed, length in cells
    ]
    store.take(ends, pa.Table.from_pylist(rows, ROUNDS), CLIENTS.empty_table())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "sweep")
    found.create()
    runs = {"a": 3, "b": 1, "c": 2, "later": 1, "stranger": 2}
    entries = [
        Entry(run_id=i, labels={"x": n}, config=config(i, k))
        for n, (i, k) in enumerate(runs.items())
    ]
    manifest = Manifest(name="s", axes=["x"], entries=entries, table=Table(rows=["x"]))
    found.write_manifest(manifest)
    write(found, "stranger", [9, 9], Status.FINISHED)
    found.write_manifest(manifest.replace(entries=entries[:-1]))
    write(found, "c", [9, 8], Status.FAILED)
    write(found, "a", [9, 4, 0], Status.DIVERGED)
    write(found, "b", [9], Status.FINISHED)
    return found


def test_each_replicate_of_each_ended_run_has_a_row_with_the_end_of_its_cell(
    store: Store,
) -> None:
    table = make_runs_table(store)
    pairs = [*zip(table["run_id"], table["replicate"], table["seed"], strict=True)]
    first = [("a", 0, 7), ("a", 1, 8), ("a", 2, 9)]
    assert pairs == [*first, ("b", 0, 7), ("c", 0, 7), ("c", 1, 8)]
    assert table["label.x"].tolist() == [0, 0, 0, 1, 2, 2]
    status = ["finished", "diverged", "diverged", "finished", "finished", "failed"]
    assert table["status"].tolist() == status
    assert table["reason"].tolist() == ["", "round 4", "round 0", "", "", "round 8"]
    cells = [cell for entry in store.manifest().entries[:3] for cell in entry.cells]
    assert table["cell"].tolist() == cells


def test_the_statistics_of_a_replicate_are_those_of_its_rows(store: Store) -> None:
    table = make_runs_table(store, named=BY_NAME)
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
    assert table["rounds"].tolist() == [9, 4, 0, 9, 9, 8]
    assert table["total_steps"].tolist() == [27, 12, 0, 27, 27, 24]


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
    assert store.runs()["seconds"].tolist() == [7.5] * 3 + [2.5] + [5.0] * 2


def test_a_sweep_of_which_nothing_has_ended_has_an_empty_table(store: Store) -> None:
    store.forget(None)
    table = make_runs_table(store)
    assert table.empty and {"run_id", "status", "reason"} <= set(table)
