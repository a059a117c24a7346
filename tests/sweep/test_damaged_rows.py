"""A run whose rows are lost or damaged is run again; until then it counts nowhere."""

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from helpers import folders
from helpers.folders import apart, rows_file
from helpers.sweeps_here import go

from raysafl import Run, Sweep
from raysafl.storage.sealed import unsealed
from raysafl.storage.store import Store

pytestmark = pytest.mark.filterwarnings("ignore:.*left out:UserWarning")


@pytest.fixture
def sweep(tiny: Run) -> Sweep:
    runs = {(s,): tiny.replace({"participation.s": s}) for s in (0, 2)}
    return Sweep("tiny", runs, axes=("s",))


@pytest.fixture
def finished(sweep: Sweep, tmp_path: Path) -> Store:
    """A folder in which both runs have finished, computed in this process."""
    return folders.finished(sweep, tmp_path / "s")


def delete(file: Path) -> None:
    file.unlink()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


@pytest.mark.parametrize("is_apart", [True, False])
@pytest.mark.parametrize("damage", [delete, cut], ids=lambda d: d.__name__)
def test_a_finished_run_whose_rows_are_gone_is_named_and_run_again(
    damage: Callable[[Path], None], is_apart: bool, sweep: Sweep, finished: Store
) -> None:
    before = finished.rounds().drop(columns="seconds")
    first = sweep.labelled()[(0,)].id
    if is_apart:
        apart(finished)
    damage(rows_file(finished, first))
    assert (
        finished.read().runs[first].reason.startswith("2 of 2 seeds: damaged: rounds/")
    )
    outcome, said = go(sweep, finished.path)
    assert outcome.ok and outcome.skipped == (1 if is_apart else 0)
    assert "s=0 is run again: rounds/" in said
    pd.testing.assert_frame_equal(finished.rounds().drop(columns="seconds"), before)
    assert set(outcome.runs["status"]) == {"finished"}


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
