"""Folders of one sweep put together: `raysafl merge`."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.commands import call_here
from helpers.pictures import without_pictures
from helpers.sweeps_here import go

from raysafl import PerClient, Sweep, load_model
from raysafl.quickstart import BASE
from raysafl.storage import merge as storage_merge
from raysafl.storage.ledger import LedgerEntry, Status
from raysafl.storage.store import Store
from raysafl.storage.verify import verify


def halves() -> Sweep:
    """Four runs, of three rounds of two seeds."""
    run = BASE.replace(
        rounds=3,
        replicates=2,
        keep="last",
        eval_clients=PerClient(on="labels", every=2),
    )
    runs = {(seed,): run.replace(seed=10 * seed) for seed in range(4)}
    return Sweep("halves", runs, axes=("seed",))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of two halves that share a run, and of the whole."""
    folder = tmp_path_factory.mktemp("halves")
    with without_pictures():
        for name, seeds in (("a", "0,1,2"), ("b", "2,3")):
            go(halves(), folder / name, only={"seed": seeds}, keep_states=True)
        go(halves(), folder / "whole")
    return folder


@pytest.fixture
def folders(made: Path, tmp_path: Path) -> tuple[Path, Path, Path]:
    """Copies of these folders, which a test may change."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "a", tmp_path / "b", tmp_path / "whole"


Command = Callable[..., tuple[int, str]]


@pytest.fixture
def raysafl(monkeypatch: pytest.MonkeyPatch) -> Command:
    """Returns the exit code of a command, and what it printed as one line."""

    def call(*arguments: object) -> tuple[int, str]:
        code, said = call_here(monkeypatch, *map(str, arguments))
        return code, " ".join(said.split())

    return call


def merged(raysafl: Command, *folders: Path) -> tuple[int, str, Store]:
    out = folders[0].parent / "merged"
    return *raysafl("merge", *folders, "--out", out), Store(out)


@pytest.mark.usefixtures("reports")
def test_two_halves_are_the_whole(
    folders: tuple[Path, Path, Path], raysafl: Command
) -> None:
    a, b, whole = folders
    code, said, both = merged(raysafl, a, b)
    assert code == 0
    assert "4 runs; 1 in several folders, with equal rows" in said
    due = Store(whole)
    for own, other in (
        (both.rounds(), due.rounds()),
        (both.clients(), due.clients()),
        (both.runs(), due.runs()),
    ):
        unlike = ["seconds", "started", "ended", "sweep"]
        pd.testing.assert_frame_equal(
            own.drop(columns=unlike, errors="ignore"),
            other.drop(columns=unlike, errors="ignore"),
        )
    assert verify(both) == []
    for run_id in both.ledger():
        load_model(both.path, run_id)
        assert both.kept_state(run_id)
    assert (both.path / "report.html").is_file()


def test_the_merged_folder_goes_on_as_a_sweep(
    folders: tuple[Path, Path, Path], raysafl: Command
) -> None:
    a, b, _ = folders
    _, _, both = merged(raysafl, a, b)
    outcome, _ = go(halves(), Path(str(both.path)))
    assert outcome.ok and outcome.skipped == 4


def test_a_run_with_other_rows_in_one_of_the_folders_is_refused_and_nothing_written(
    folders: tuple[Path, Path, Path], raysafl: Command
) -> None:
    a, b, _ = folders
    store = Store(b)
    (run_id,) = set(Store(a).ledger()) & set(store.ledger())
    entry = store.ledger()[run_id]
    rows = store.read(run_id).rows
    place = rows.schema.get_field_index("test_loss")
    changed = rows.set_column(place, "test_loss", rows["train_loss"])
    store.commit(changed, {run_id: entry}, store.read(run_id).clients)
    code, said, both = merged(raysafl, a, b)
    assert code == 2
    assert f"run {run_id} has other rows in {a} than in {b}" in said
    assert not both.path.exists()


def test_folders_of_different_sweeps_and_a_new_folder_that_holds_one_are_refused(
    folders: tuple[Path, Path, Path], raysafl: Command
) -> None:
    a, b, whole = folders
    go(Sweep("other", [BASE.replace(rounds=2, replicates=1)]), a.parent / "other")
    code, said, _ = merged(raysafl, a, a.parent / "other")
    assert code == 2 and "hold different sweeps: the name is 'halves' in one" in said
    code, said = raysafl("merge", a, b, "--out", whole)
    assert code == 2 and "holds a sweep already" in said


def test_a_run_that_is_damaged_in_one_folder_is_taken_from_the_other(
    folders: tuple[Path, Path, Path], raysafl: Command
) -> None:
    a, b, _ = folders
    (run_id,) = set(Store(a).ledger()) & set(Store(b).ledger())
    Store(a).model(run_id).unlink()
    code, said, both = merged(raysafl, a, b)
    assert code == 0 and said.rstrip().endswith("4 runs")
    assert both.read().faults == {}


def test_a_run_that_failed_in_one_folder_is_taken_from_where_it_finished(
    folders: tuple[Path, Path, Path], raysafl: Command
) -> None:
    a, b, _ = folders
    (run_id,) = set(Store(a).ledger()) & set(Store(b).ledger())
    due = Store(b).ledger()[run_id]
    Store(a).commit_end(run_id, LedgerEntry.now(due.config, Status.FAILED, "no memory"))
    for name, order in (("m", (a, b)), ("n", (b, a))):
        code, _ = raysafl("merge", *order, "--out", a.parent / name)
        assert code == 0
        assert Store(a.parent / name).ledger()[run_id] == due
        assert verify(Store(a.parent / name)) == []


@pytest.mark.parametrize("first", ["has none", "has a damaged one"])
def test_a_state_that_only_a_later_folder_has_kept_whole_is_kept(
    folders: tuple[Path, Path, Path], raysafl: Command, first: str
) -> None:
    a, b, _ = folders
    (run_id,) = set(Store(a).ledger()) & set(Store(b).ledger())
    due = Store(b).kept_state(run_id)
    state = Store(a).state_file(run_id)
    assert isinstance(state, Path)
    content = state.read_bytes()
    state.unlink()
    if first == "has a damaged one":
        state.write_bytes(content[:-1])
    code, _, both = merged(raysafl, a, b)
    assert code == 0
    assert both.kept_state(run_id) == due is not None
    assert verify(both) == []


def test_a_merge_that_is_killed_leaves_no_sweep_and_can_be_given_again(
    folders: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = [Store(folder) for folder in folders[:2]]
    into = Store(folders[0].parent / "merged")
    copied = []

    def killed(*arguments: Any) -> None:
        if copied:
            raise KeyboardInterrupt
        copied.append(1)
        real(*arguments)

    real = storage_merge._copy
    with monkeypatch.context() as patch:
        patch.setattr(storage_merge, "_copy", killed)
        with pytest.raises(KeyboardInterrupt):
            storage_merge.merge(stores, into)
    with pytest.raises(ValueError, match="holds no sweep"):
        into.manifest()
    assert storage_merge.merge(stores, into).startswith("4 runs")
    assert verify(into) == []


def test_a_folder_that_is_written_to_is_not_merged(
    folders: tuple[Path, Path, Path], raysafl: Command
) -> None:
    store, out = Store(folders[0]), folders[0].parent / "merged"
    before = store.every_commit()
    with store.lock():
        code, said = raysafl("merge", store.path, folders[1], "--out", out)
    assert code == 2 and "another raysafl process is writing to" in said
    assert store.every_commit() == before and not Store(out).ledger()


def test_a_folder_and_what_it_has_grown_into_are_refused_as_tables_cannot_show_both(
    tmp_path: Path, raysafl: Command
) -> None:
    few = BASE.replace(rounds=2, replicates=1)
    for name, run in (("few", few), ("more", few.replace(replicates=2))):
        go(Sweep("grows", {("one",): run}, axes=("what",)), tmp_path / name)
    code, said, both = merged(raysafl, tmp_path / "few", tmp_path / "more")
    assert code == 2 and "different runs for one" in said
    assert "merge the grown ones alone" in said
    assert not both.path.exists()
