"""A process that is killed at any change of a file: the same command goes on to the same rows."""

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.chaos import rows, sweep
from helpers.crashes import crashes
from helpers.folders import apart, rows_file

from raysafl import Hardware, PerClient, Runner, Sweep
from raysafl.report import write
from raysafl.storage.merge import merge
from raysafl.storage.store import Store
from raysafl.storage.verify import repair, verify

# A run with each kind of state, of so many rounds.
ROUNDS = {"momentum": 1, "memory": 3, "safari": 2, "adaptive": 3}
# What the attempts before the crash and after it put together.
BEFORE, AFTER = Hardware(pack=2), Hardware(pack=3)


@pytest.fixture(autouse=True)
def _no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page and its figures are not drawn, which takes longer than all the rest."""
    monkeypatch.setattr(write, "write_report", lambda store: None)


def small(seed: int = 0, seeds: int = 1, more: int = 0) -> Sweep:
    """Runs that end at different times, with all that a run may write."""
    runs = {
        (name,): run.replace(
            rounds=ROUNDS[name] + more,
            seed=seed,
            replicates=seeds,
            eval_every=1,
            keep="last" if name == "memory" else None,
            eval_clients=PerClient(every=1) if name == "safari" else None,
        )
        for (name,), run in sweep(0).runs.items()
    }
    return Sweep("small", runs, axes=["what"])


def go(out: Path, hardware: Hardware = AFTER, **extent: int) -> Store:
    """Give the command in this process; every round is written."""
    options: dict[str, Any] = {"quiet": True, "track": "none", "flush_seconds": 0.0}
    options |= {"executor": "here", "keep_states": True}
    assert Runner(small(**extent), out, hardware, **options).run().ok
    return Store(out)


def check(store: Store, expected: Store) -> None:
    """The results are those of an undisturbed sweep, and the folder is in order."""
    pd.testing.assert_frame_equal(rows(store), rows(expected))
    pd.testing.assert_frame_equal(store.clients(), expected.clients())
    mine, due = store.ledger(), expected.ledger()
    assert {cell: mine[cell].kept for cell in due} == {
        c: e.kept for c, e in due.items()
    }
    assert verify(store) == [] and not store.files("open")
    assert not list(store.path.rglob("*.part"))


def test_a_sweep_that_is_killed_goes_on_to_the_same_rows(tmp_path: Path) -> None:
    """The next attempt packs the runs differently."""
    expected = go(tmp_path / "whole")
    found = set()
    for number in crashes(lambda number: go(tmp_path / str(number), BEFORE)):
        store = Store(tmp_path / str(number))
        found.add((len(store.going_on().cells), len(store.ledger())))
        check(go(store.path), expected)
    # Crashes before, between and after all that is written.
    assert {(0, 0), (2, 0), (2, 2), (1, 3), (0, 4)} <= found, found


def test_a_sweep_that_is_killed_while_it_is_given_more_goes_on_to_the_same_rows(
    tmp_path: Path,
) -> None:
    """It gets more rounds, which begin where its seeds ended, and a seed that begins anew."""
    more = {"seeds": 2, "more": 2}
    expected, before = go(tmp_path / "whole", **more), go(tmp_path / "before")
    for number in crashes(lambda k: go(copied(before, tmp_path / str(k)), **more)):
        check(go(tmp_path / str(number), **more), expected)


def copied(store: Store, path: Path) -> Path:
    return shutil.copytree(store.path, path)


def test_a_repair_that_is_killed_can_be_given_again(tmp_path: Path) -> None:
    expected, before = go(tmp_path / "whole"), go(tmp_path / "before")
    apart(before)
    ids = [entry.run_id for entry in before.manifest().entries]
    part = rows_file(before, ids[0])
    part.write_bytes(part.read_bytes()[:-1])
    shutil.copy(rows_file(before, ids[1]), part.with_stem("0" * 24))
    ledger = before.file("ledger.jsonl")
    ledger.write_bytes(ledger.read_bytes().replace(ids[2].encode(), b"another", 1))

    def mend(path: Path) -> Store:
        repair(store := Store(path), verify(Store(path)))
        return store

    for number in crashes(lambda k: mend(copied(before, tmp_path / str(k)))):
        store = mend(tmp_path / str(number))
        assert verify(store) == [] and len(store.ledger()) == 2
        check(go(store.path), expected)


def test_a_merge_that_is_killed_can_be_given_again(tmp_path: Path) -> None:
    expected = go(tmp_path / "whole", seeds=2)
    stores = [go(tmp_path / name, seed=seed) for seed, name in enumerate("ab")]
    for number in crashes(lambda k: merge(stores, Store(tmp_path / str(k)))):
        store = Store(tmp_path / str(number))
        if not store.file("manifest.json").is_file():
            merge(stores, store)
        check(store, expected)
