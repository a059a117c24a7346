"""A run whose rows are lost or damaged is run again; until then it counts nowhere."""

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from helpers import folders
from helpers.folders import apart, rows_file
from helpers.sweeps_here import go

from raysafl import PerClient, Run, Sweep
from raysafl.report.query import results
from raysafl.storage.paths import unsealed
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.store import Store
from raysafl.storage.verify import verify

pytestmark = pytest.mark.filterwarnings("ignore:.*left out:UserWarning")


@pytest.fixture
def sweep(tiny: Run) -> Sweep:
    judged = tiny.replace(eval_clients=PerClient(on="labels", every=2))
    runs = {(s,): judged.replace({"participation.s": s}) for s in (0, 2)}
    return Sweep("tiny", runs, axes=("s",))


@pytest.fixture
def finished(sweep: Sweep, tmp_path: Path) -> Store:
    """A folder in which both runs have finished, computed in this process."""
    return folders.finished(sweep, tmp_path / "s")


def delete(file: Path) -> None:
    file.unlink()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def edit(file: Path) -> None:
    """Leave one row out."""
    pq.write_table(pq.read_table(file).slice(1), file)


# By default the damages have the two forms of a folder in turn.
@pytest.mark.parametrize(
    ("damage", "folder", "is_apart"),
    [
        pytest.param(
            *(damage, folder, is_apart),
            marks=[pytest.mark.acceptance] if (i + k + is_apart) % 2 else [],
        )
        for i, damage in enumerate((delete, cut, edit))
        for k, folder in enumerate(("rounds", "clients"))
        for is_apart in (True, False)
    ],
)
def test_a_finished_run_whose_rows_are_gone_is_named_and_run_again(
    damage: Callable[[Path], None],
    folder: str,
    is_apart: bool,
    sweep: Sweep,
    finished: Store,
) -> None:
    before = finished.rounds().drop(columns="seconds"), finished.clients()
    ids = [run.id for run in sweep.labelled().values()]
    if is_apart:
        apart(finished)
    damage(rows_file(finished, ids[0], folder))
    wrong = set(ids[:1] if is_apart else ids)
    # Until it is run again, it counts nowhere.
    for table in (finished.rounds(), finished.clients()):
        assert not wrong & set(table["run_id"])
    assert any(f"{folder}/" in str(finding) for finding in verify(finished))
    found = finished.read().runs
    reason = f"2 of 2 seeds: damaged: {folder}/"
    assert {i for i in ids if found[i].reason.startswith(reason)} == wrong
    for table in (write_runs_table(finished), results([finished.path])):
        assert not wrong & set(table[table["status"] == "finished"]["run_id"])

    outcome, said = go(sweep, finished.path)
    assert outcome.ok and outcome.skipped == (1 if is_apart else 0)
    assert f"s=0 is run again: {folder}/" in said
    after = finished.rounds().drop(columns="seconds"), finished.clients()
    for own, due in zip(after, before, strict=True):
        pd.testing.assert_frame_equal(own, due)
    assert set(outcome.runs["status"]) == {"finished"}
    write_runs_table(finished)
    assert verify(finished) == []


def exchange_ids(manifest: Path) -> None:
    content = manifest.read_bytes()
    one, other = re.findall(rb'"run_id": "(\w+)"', content)
    swap = {one: other, other: one}
    manifest.write_bytes(re.sub(one + b"|" + other, lambda m: swap[m[0]], content))


def drop_seal(manifest: Path) -> None:
    """Leave what was a manifest before it had a seal."""
    manifest.write_bytes(unsealed(manifest.read_bytes()))


@pytest.mark.parametrize("damage", [cut, exchange_ids, drop_seal])
def test_a_damaged_manifest_is_named_and_written_anew(
    damage: Callable[[Path], None], sweep: Sweep, finished: Store
) -> None:
    before = finished.manifest()
    damage(finished.file("manifest.json"))
    with pytest.raises(ValueError, match="`raysafl run FILE` writes it anew from the"):
        finished.manifest()
    outcome, said = go(sweep, finished.path)
    assert outcome.ok and outcome.skipped == 2
    assert "manifest.json cannot be read" in said and "and does so now" in said
    assert finished.manifest() == before
