"""`raysafl archive`, `run ARCHIVE --check` and `report --checklist`, on a real small sweep."""

import hashlib
import math
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from helpers.commands import call_here
from helpers.pictures import without_pictures

import raysafl as fl
from raysafl.core.problem import Column, Dataset, Samples
from raysafl.data import Source
from raysafl.quickstart import BASE
from raysafl.storage.ledger import LedgerEntry, Status
from raysafl.storage.store import Store
from raysafl.sweep.archive import _digests_of_data, _unlike_columns

RATES = "RATE = 0.5\n"
MINE = """
import raysafl as fl
from raysafl.quickstart import BASE
from rates_of_archive import RATE


class OfArchive(fl.Algorithm):
    \"\"\"The server goes a part of the way.\"\"\"

    rate: float = RATE

    def round(self, state, ids, key):
        update = yield fl.TrainMean(state.w_P, ids)
        if self.rate > 1:
            raise RuntimeError("too fast")
        from dataclasses import replace
        return replace(state, w_P=state.w_P - self.rate * update.delta_P)


base = BASE.replace(rounds=3, replicates=2, algorithm=OfArchive())
SWEEP = fl.Sweep("mine", axes=["rate"], runs={
    (rate,): base.replace({"algorithm.rate": rate}) for rate in (0.5, 1.0, 2.0)
})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an experiment file, its own module, and its results in `out`."""
    folder = tmp_path_factory.mktemp("archived")
    (folder / "rates_of_archive.py").write_text(RATES)
    (folder / "mine.py").write_text(MINE)
    with pytest.MonkeyPatch.context() as patch, without_pictures():
        patch.chdir(folder)
        options = ["--executor", "here", "--track", "none", "--no-try", "-q"]
        code, said = call_here(patch, "run", "mine.py", "--out", "out", *options)
        assert code == 1 and "too fast" in said  # one of its runs fails
    return folder


@pytest.fixture(scope="module")
def made(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of the sweep."""
    file = tmp_path_factory.mktemp("made") / "out.zip"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        options = ["--to", str(file), "--file", "mine.py"]
        code, said = call_here(patch, "archive", "out", *options)
    assert code == 0, said
    return file


@pytest.fixture
def archive(
    made: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A copy of the archive, beside the folder of its experiment file."""
    monkeypatch.chdir(folder)
    return Path(shutil.copy(made, tmp_path / "out.zip"))


def check(patch: pytest.MonkeyPatch, archive: Path, number: int) -> tuple[int, str]:
    """Compute runs of the archive again, in this process."""
    options = ["--check", str(number), "--executor", "here", "--trials", "1"]
    return call_here(patch, "run", str(archive), *options)


def rewritten(archive: Path, name: str, new: bytes | None, sums: bool) -> None:
    """Exchange or remove a file of an archive, and its checksum too if that is wanted."""
    with zipfile.ZipFile(archive) as old:
        content = {name: old.read(name) for name in old.namelist()}
    lines = content["SHA256SUMS"].decode().splitlines(keepends=True)
    kept = [line for line in lines if not line.endswith(f"  {name}\n")]
    content.pop(name, None)
    if new is not None:
        kept.append(f"{hashlib.sha256(new).hexdigest()}  {name}\n")
        content[name] = new
    if sums:
        content["SHA256SUMS"] = "".join(kept).encode()
    with zipfile.ZipFile(archive, "w") as made:
        for own, data in content.items():
            made.writestr(own, data)


def test_an_archive_holds_results_sources_versions_and_the_sums_of_all(
    archive: Path, folder: Path
) -> None:
    with zipfile.ZipFile(archive) as made:
        content = {name: made.read(name) for name in made.namelist()}
    sums = content.pop("SHA256SUMS").decode()
    expected = {f"{hashlib.sha256(v).hexdigest()}  {k}" for k, v in content.items()}
    assert set(sums.splitlines()) == expected
    assert content["source/mine.py"].decode() == MINE
    assert content["source/rates_of_archive.py"].decode() == RATES
    assert b"\nnumpy==" in content["requirements.txt"]
    rows = next((folder / "out" / "rounds").iterdir())
    assert content[f"results/rounds/{rows.name}"] == rows.read_bytes()


def test_equal_results_make_archives_of_equal_bytes(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = tmp_path / "again.zip"
    call_here(monkeypatch, "archive", "out", "--to", str(again), "--file", "mine.py")
    assert again.read_bytes() == archive.read_bytes()


def test_finished_runs_of_an_archive_are_computed_again_with_equal_bits(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = check(monkeypatch, archive, 5)
    assert code == 0, said
    told = sorted(said.splitlines())
    assert told == ["rate=0.5: equal, bit by bit", "rate=1: equal, bit by bit"]


def test_runs_that_the_sweep_no_longer_has_are_not_computed_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    store = Store(Path("out"))
    manifest = store.manifest()
    store.write_manifest(manifest.replace(entries=manifest.entries[:1]))
    code, said = call_here(monkeypatch, "archive", "out", "--file", "mine.py")
    assert code == 0 and "out.zip: 1 run, " in said
    _, said = check(monkeypatch, Path("out.zip"), 5)
    assert said.splitlines() == ["rate=0.5: equal, bit by bit"]


def test_rows_that_the_code_does_not_give_are_told_with_their_columns(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "source/mine.py"
    slower = MINE.replace("state.w_P - self.rate", "state.w_P - 0.1 * self.rate")
    rewritten(archive, name, slower.encode(), sums=True)
    code, said = check(monkeypatch, archive, 2)
    assert code == 1
    assert "rate=1: other test_accuracy by up to 0." in said and "test_loss" in said


def test_an_archive_that_was_changed_is_refused_with_the_file(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewritten(archive, "data.json", b"{}", sums=False)
    code, said = check(monkeypatch, archive, 1)
    assert code == 2 and "was changed: data.json is not what SHA256SUMS says" in said


@pytest.mark.parametrize(
    "name", ["source/numpy.py", "../out_of_it.txt", "/out_of_it.txt"]
)
@pytest.mark.parametrize("sums", [False, True])
def test_a_file_that_was_added_is_refused_and_none_is_written_elsewhere(
    archive: Path, name: str, sums: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = archive.parent / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    rewritten(archive, name, b"raise SystemExit", sums)
    code, said = check(monkeypatch, archive, 1)
    if name[0] == "s" and sums:
        # What has its sum belongs to it, and is executed if something imports it.
        assert code == 0, said
    else:
        assert code == 2 and "is not in it, or not in SHA256SUMS" in said
    assert {path.name for path in archive.parent.iterdir()} == {"out.zip", "temporary"}
    assert not list(temporary.iterdir()) and not Path("/out_of_it.txt").exists()


@pytest.mark.parametrize("name", ["data.json", "results/manifest.json"])
def test_an_archive_that_lacks_what_is_needed_is_refused_with_the_file(
    archive: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewritten(archive, name, None, sums=True)
    code, said = check(monkeypatch, archive, 1)
    assert code == 2 and f"was changed: {name} is not in it" in said


@pytest.mark.parametrize("name", ["/etc/hostname", "../mine.py", "source/other.py"])
def test_only_an_experiment_file_of_the_archive_is_executed(
    archive: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewritten(archive, "experiment.txt", name.encode(), sums=True)
    code, said = check(monkeypatch, archive, 1)
    assert code == 2 and f"holds no file {name}" in said


@pytest.mark.parametrize("at", [40, 400, -200])
def test_a_damaged_archive_is_refused(
    archive: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytearray(archive.read_bytes())
    content[at : at + 40] = bytes(40)
    archive.write_bytes(content)
    code, said = check(monkeypatch, archive, 1)
    assert code == 2 and "is no archive of a sweep" in said


def test_a_missing_folder_is_not_made_and_one_for_the_archive_is(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    code, said = call_here(monkeypatch, "archive", str(tmp_path / "none"))
    assert code == 2 and "holds no sweep" in said
    assert not list(tmp_path.iterdir())
    file = tmp_path / "a" / "b.zip"
    options = ["--to", str(file), "--file", "mine.py"]
    code, said = call_here(monkeypatch, "archive", "out", *options)
    assert code == 0, said
    assert zipfile.is_zipfile(file) and [*file.parent.iterdir()] == [file]


def test_numbers_that_are_none_and_columns_that_are_new_are_told() -> None:
    before = pa.table({"a": [1.0, math.nan], "b": [math.nan, 1.0], "old": [1, 2]})
    again = pa.table({"a": [1.0, 2.0], "b": [math.nan, 3.0], "new": [1, 2]})
    assert _unlike_columns(before, again) == "other new, old, a, b by up to 2"
    infinite = pa.table({"a": [math.inf, 1.0]})
    assert _unlike_columns(infinite, infinite) == ""


def test_other_data_are_told(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(archive) as made:
        data = made.read("data.json").replace(b'}": "', b'}": "0')
    rewritten(archive, "data.json", data, sums=True)
    _, said = check(monkeypatch, archive, 1)
    assert 'the data {"kind":"Digits"' in said and "are others: SHA-256" in said


def test_a_file_that_is_no_archive_and_an_archive_that_is_run_are_refused(
    archive: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = call_here(monkeypatch, "run", "mine.py", "--check", "1")
    assert code == 2 and "mine.py is no archive of a sweep" in said
    code, said = call_here(monkeypatch, "run", str(archive))
    assert code == 2 and "computed again with --check" in said
    code, said = call_here(monkeypatch, "archive", "out", "--to", str(archive))
    assert code == 2 and "is there already" in said


def test_the_checklist_counts_seeds_and_the_time_of_failed_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    call_here(monkeypatch, "report", "out", "--checklist", "--file", "mine.py")
    text = (folder / "out" / "checklist.md").read_text()
    assert "- seeds 0 to 1: 3 runs" in text
    assert "- finished runs: 2, " in text and "- failed runs: 1, " in text
    assert "all of a run share one partition" in text
    ledger = Store(folder / "out").read().ledger.values()
    assert f"- all runs: 3, {sum(e.seconds or 0 for e in ledger):.1f} s" in text
    assert "0 of 3 runs hold validation samples back" in text


def test_a_digest_of_data_changes_with_each_part_of_them() -> None:
    codes = np.zeros(2, np.int64)
    train = Samples(np.ones((2, 3), np.uint8), np.zeros(2, np.int64))
    test = Samples(np.zeros((1, 3), np.uint8), np.zeros(1, np.int64))
    plain = Dataset("d", train, test, 2)
    others = [
        Dataset("d", test, train, 2),
        Dataset("d", train.take([0]), test, 2),
        Dataset("d", Samples(train.x.astype(np.float32), train.y), test, 2),
        Dataset("d", Samples(train.x, train.y + 1), test, 2),
        Dataset("d", Samples(train.x, train.y, scale=2.0), test, 2),
        Dataset("d", Samples(train.x, train.y, users=codes), test, 2),
        Dataset(
            "d",
            Samples(train.x, train.y, columns={"c": Column(codes, ("a",))}),
            test,
            2,
        ),
        Dataset(
            "d",
            Samples(train.x, train.y, columns={"c": Column(codes, ("b",))}),
            test,
            2,
        ),
    ]
    assert len({plain.sha256(), *(other.sha256() for other in others)}) == 9
    assert Dataset("other name", train, test, 2).sha256() == plain.sha256()


def test_data_of_runs_whose_algorithm_is_not_defined_here_have_their_digest() -> None:
    config = BASE.model_dump(mode="json")
    config["algorithm"] = {"kind": "OfSomebodyElse"}
    entry = LedgerEntry(status=Status.FINISHED, config=config)
    (digest,) = _digests_of_data({"0" * 12: entry}).values()
    assert digest == BASE.data.load().sha256()


class Unloadable(Source):
    """Data of the user's own whose code is wrong."""

    def load(self) -> Dataset:
        raise KeyError("no such column")


def test_data_whose_own_code_fails_are_listed_with_the_reason() -> None:
    run = BASE.replace({"data.dataset": Unloadable()})
    entry = LedgerEntry(status=Status.FINISHED, config=run.model_dump(mode="json"))
    (said,) = _digests_of_data({"0" * 12: entry}).values()
    assert said == "not known, as it cannot be loaded here: 'no such column'"


def test_digests_do_not_depend_on_which_run_comes_first() -> None:
    server = fl.data.OtherDatasetServer(dataset=fl.Digits(), n0=5, classes=[*range(10)])
    runs = [BASE, BASE.replace(data=BASE.data.replace(server=server))]
    entries = [
        LedgerEntry(status=Status.FINISHED, config=run.model_dump(mode="json"))
        for run in runs
    ]
    found = _digests_of_data({"a": entries[0], "b": entries[1]})
    assert len({*found.values()}) == 2
    assert _digests_of_data({"b": entries[1], "a": entries[0]}) == found
