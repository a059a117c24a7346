"""A compacted folder reads, goes on and is cleaned up like one with a file for each run."""

import json
import shutil
import sys
import warnings
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest
from helpers.crashes import crashes
from helpers.folders import apart, rows_file
from helpers.here import run_in_process
from helpers.servers import s3
from typer.testing import CliRunner

from raysafl import Run
from raysafl.cli import app as cli
from raysafl.quickstart import BASE
from raysafl.report.write import write_report
from raysafl.runtime.in_process import Worker
from raysafl.storage import locks
from raysafl.storage.compaction import (
    compact,
    put_together,
    put_together_if_undamaged,
)
from raysafl.storage.ledger import LedgerEntry, Status
from raysafl.storage.paths import Remote, SweepBusyError, parse_location
from raysafl.storage.runs_table import make_runs_table, write_runs_table
from raysafl.storage.store import Store
from raysafl.sweep.definition import Sweep
from raysafl.sweep.session import Session

DOC = (Path(__file__).parents[2] / "docs" / "results.md").read_text()


def worker(run: Run) -> Worker:
    return Worker(run.cells, run.data.load(), run.model)


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    run = BASE.replace(rounds=4, replicates=2)
    return [run.replace(seed=10 * i) for i in range(4)]


@pytest.fixture(scope="module")
def original(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Four runs: two finished in two parts each, one failed after two rounds, one not ended."""
    store = Store(tmp_path_factory.mktemp("results") / "sweep")
    store.create()
    store.write_manifest(
        Sweep("sweep", {(r.seed,): r for r in runs}, axes=("seed",)).manifest()
    )
    for run in runs[:2]:
        run_in_process(run, store, worker(run))
    apart(store, 0, 2)
    cut_off(runs[2], store)
    store.checkpoint(runs[2].id).unlink()
    config = runs[2].model_dump(mode="json")
    store.write_ledger(runs[2].id, LedgerEntry.now(config, Status.FAILED, "a mistake"))
    cut_off(runs[3], store)
    return store


def cut_off(run: Run, store: Store) -> None:
    """Run until rows and a checkpoint are written, and no further."""
    session = Session([run], store, worker(run), {}, flush_seconds=0.0)
    session.advance(0.0)
    session.flush()


@pytest.fixture
def copy(original: Store, tmp_path: Path) -> Store:
    return Store(Path(shutil.copytree(original.path, tmp_path / "sweep")))


def assert_reads_the_same(store: Store, expected: Store) -> None:
    """Rows, ledger, begun runs and `runs.parquet`, of the whole and run by run."""
    pd.testing.assert_frame_equal(store.rounds(), expected.rounds(), check_exact=True)
    assert store.ledger() == expected.ledger()
    assert store.begun() == expected.begun()
    tables = [make_runs_table(one).drop(columns="sweep") for one in (store, expected)]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    for entry in expected.manifest().entries:
        one = store.rounds(entry.run_id)
        pd.testing.assert_frame_equal(
            one, expected.rounds(entry.run_id), check_exact=True
        )
        assert store.ledger_entry(entry.run_id) == expected.ledger_entry(entry.run_id)


def files(store: Store) -> list[str]:
    found = [*store.path.glob("rounds/*"), *store.path.glob("ledger/*")]
    return sorted(f"{file.parent.name}/{file.name}" for file in found)


def test_ended_runs_are_put_together_and_others_keep_their_files(
    copy: Store, original: Store, runs: list[Run]
) -> None:
    done = compact(copy)
    assert (done.compacted, set(done.left)) == (2, {runs[2].id, runs[3].id})
    assert files(copy) == sorted(
        [
            "ledger/ledger.jsonl",
            f"ledger/{runs[2].id}.json",
            "rounds/rounds.parquet",
            *(
                f"rounds/{part.name}"
                for run in runs[2:]
                for part in original.parts(run.id)
            ),
        ]
    )
    assert_reads_the_same(copy, original)
    assert "2 runs are compacted" in str(done) and "2 runs keep their own files" in str(
        done
    )


def test_a_damaged_compacted_file_is_a_warning_at_the_end_of_a_sweep(
    copy: Store,
) -> None:
    compact(copy)
    put_together_if_undamaged(copy)
    ledger = copy.compacted.ledger_file
    ledger.write_bytes(ledger.read_bytes()[:-20])
    before = {file: file.read_bytes() for file in copy.path.glob("*/*")}
    with pytest.warns(UserWarning) as told:
        put_together_if_undamaged(copy)
    said = [str(one.message) for one in told]
    assert any("the results are not compacted: line 2 of" in text for text in said)
    assert any(f"`raysafl verify {copy.path} --repair`" in text for text in said)
    assert {file: file.read_bytes() for file in copy.path.glob("*/*")} == before


def test_compacting_again_changes_nothing(copy: Store, original: Store) -> None:
    compact(copy)
    before = {file: file.stat().st_mtime_ns for file in copy.path.glob("*/*")}
    assert compact(copy).compacted == 2
    assert {file: file.stat().st_mtime_ns for file in copy.path.glob("*/*")} == before
    assert_reads_the_same(copy, original)


def test_the_report_of_a_compacted_folder_is_that_of_the_original(
    copy: Store, original: Store, tmp_path: Path
) -> None:
    other = Store(Path(shutil.copytree(original.path, tmp_path / "other" / "sweep")))
    compact(copy)
    for store in (copy, other):
        write_runs_table(store)
        write_report(store)
    for name in ("table.md", "report.html", "curves.png"):
        assert copy.file(name).read_bytes() == other.file(name).read_bytes()


def test_a_compacted_sweep_goes_on_and_is_compacted_again(
    copy: Store, original: Store, runs: list[Run], tmp_path: Path
) -> None:
    """The cut-off run goes on from its checkpoint; the failed one starts again."""
    compact(copy)
    reference = Store(tmp_path / "reference")
    reference.create()
    for run in runs:
        run_in_process(run, reference, worker(run))
    for run in runs[2:]:
        run_in_process(run, copy, worker(run))
    for _ in range(2):  # first a mixture of both forms, then all compacted
        facts = copy.rounds().drop(columns="seconds")
        pd.testing.assert_frame_equal(facts, reference.rounds().drop(columns="seconds"))
        assert {entry.status for entry in copy.ledger().values()} == {Status.FINISHED}
        compact(copy)
    assert files(copy) == ["ledger/ledger.jsonl", "rounds/rounds.parquet"]


def test_a_crash_at_any_operation_loses_and_doubles_nothing(
    original: Store, runs: list[Run], tmp_path: Path
) -> None:
    store = Store(tmp_path / "sweep")

    def renewed() -> None:
        shutil.rmtree(store.path, ignore_errors=True)
        shutil.copytree(original.path, store.path)

    def first() -> None:
        compact(store)

    renewed()
    for done in crashes(first):
        assert_reads_the_same(store, original)
        compact(store)
        pd.testing.assert_frame_equal(
            store.rounds(), original.rounds(), check_exact=True
        )
        assert store.ledger() == original.ledger()
        assert "rounds/rounds.parquet" in files(store) and len(store.parts()) == 2
        if not done:
            renewed()


def test_a_crash_while_a_folder_is_compacted_again_loses_nothing(
    original: Store, runs: list[Run], tmp_path: Path
) -> None:
    before, expected = Store(tmp_path / "before"), Store(tmp_path / "expected")
    for store in (before, expected):
        shutil.copytree(original.path, store.path)
    compact(before)
    for store in (before, expected):
        store.checkpoint(runs[3].id).unlink()
        config = runs[3].model_dump(mode="json")
        ended = LedgerEntry(
            status=Status.STOPPED, config=config, ended="2026-11-23T00:00:00"
        )
        store.write_ledger(runs[3].id, ended)
    now = Store(tmp_path / "now")
    shutil.copytree(before.path, now.path)
    for _ in crashes(lambda: compact(now)):
        assert_reads_the_same(now, expected)
        shutil.rmtree(now.path)
        shutil.copytree(before.path, now.path)


def test_a_crash_while_a_compacted_run_is_forgotten_leaves_the_others_as_they_were(
    original: Store, runs: list[Run], tmp_path: Path
) -> None:
    before, expected = Store(tmp_path / "before"), Store(tmp_path / "expected")
    for store in (before, expected):
        shutil.copytree(original.path, store.path)
    compact(before)
    forgotten = [runs[0].id, runs[3].id]
    expected.forget(forgotten)
    now = Store(tmp_path / "now")
    shutil.copytree(before.path, now.path)
    for done in crashes(lambda: now.forget(forgotten)):
        for run in runs[1:3]:
            pd.testing.assert_frame_equal(now.rounds(run.id), expected.rounds(run.id))
            assert now.ledger_entry(run.id) == expected.ledger_entry(run.id)
        if done:
            assert_reads_the_same(now, expected)
            assert not now.checkpoint(runs[3].id).is_file()
        shutil.rmtree(now.path)
        shutil.copytree(before.path, now.path)


def test_all_runs_of_a_compacted_folder_are_forgotten(copy: Store) -> None:
    compact(copy)
    copy.forget(None)
    assert (
        copy.rounds().empty
        and not copy.ledger()
        and not copy.begun()
        and not files(copy)
    )


def test_a_compacted_run_is_run_again_once_it_is_forgotten_and_not_before(
    copy: Store, original: Store, runs: list[Run]
) -> None:
    """Only the driver changes a bundle: trials could do it at the same time."""
    compact(copy)
    run_in_process(runs[0], copy, worker(runs[0]))
    assert_reads_the_same(copy, original)
    copy.forget([runs[0].id])
    assert copy.compacted.run_ids() == {runs[1].id}
    assert not len(copy.table(runs[0].id)) and copy.ledger_entry(runs[0].id) is None
    run_in_process(runs[0], copy, worker(runs[0]))
    assert rows_file(copy, runs[0].id).name.startswith("pack-")
    now, before = copy.rounds(), original.rounds()
    pd.testing.assert_frame_equal(
        now.drop(columns="seconds"), before.drop(columns="seconds")
    )


def test_the_rows_of_a_run_are_dropped_from_a_round_on_within_a_part_too(
    copy: Store, original: Store, runs: list[Run]
) -> None:
    rows = original.rounds()
    for from_round, firsts in ((3, [0, 2]), (2, [0]), (1, [0]), (0, [])):
        copy.drop_parts(runs[0].id, from_round)
        kept = (rows["run_id"] != runs[0].id) | (rows["round"] < from_round)
        pd.testing.assert_frame_equal(
            copy.rounds(), rows[kept].reset_index(drop=True), check_exact=True
        )
        names = [f"{runs[0].id}-{first:06d}.parquet" for first in firsts]
        assert [part.name for part in copy.parts(runs[0].id)] == names


def test_a_run_with_a_damaged_part_keeps_its_files(
    copy: Store, runs: list[Run]
) -> None:
    part = copy.parts(runs[0].id)[0]
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.warns(UserWarning, match=f"{part.name} cannot be read and is left out"):
        done = compact(copy)
    assert done.compacted == 1 and runs[0].id in done.left and part.is_file()
    assert copy.ledger()[runs[0].id].status is Status.FINISHED


def test_damaged_compacted_files_are_named_and_never_written_again(
    copy: Store, runs: list[Run]
) -> None:
    compact(copy)
    rows, ledger = copy.compacted.rows_file, copy.compacted.ledger_file
    good = rows.read_bytes()
    rows.write_bytes(good[:200] + bytes([good[200] ^ 255]) + good[201:])
    with pytest.warns(
        UserWarning, match=r"rounds\.parquet cannot be read: .*; it is left out"
    ):
        assert set(copy.rounds()["run_id"]) == {runs[2].id, runs[3].id}
    rows.write_bytes(good[:-9])
    with pytest.raises(ValueError, match=r"rounds\.parquet cannot be read"):
        compact(copy)
    rows.write_bytes(good)

    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"{}\n" + lines[1])
    with pytest.warns(UserWarning, match=r"line 1 of .*ledger\.jsonl cannot be read"):
        assert len(copy.ledger()) == 2
    with pytest.raises(ValueError, match=r"line 1 of .*ledger\.jsonl cannot be read"):
        compact(copy)
    copy.forget([runs[2].id])
    assert rows.read_bytes() == good and ledger.read_bytes() == b"{}\n" + lines[1]


def test_a_folder_that_is_written_to_is_compacted_by_its_writer_alone(
    copy: Store, tmp_path: Path
) -> None:
    with copy.lock(), pytest.raises(SweepBusyError):
        compact(Store(copy.path))
    with copy.lock():
        assert put_together(copy).compacted == 2
    with pytest.raises(ValueError, match="holds no sweep"):
        compact(Store(tmp_path / "nothing"))


def test_the_command_compacts_each_sweep_of_a_folder(
    copy: Store, original: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["compact", str(copy.path.parent)]
    monkeypatch.setattr(sys, "argv", ["raysafl", *arguments])
    with cli.console.capture() as said:
        result = CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
    assert result.exit_code == 0 and "2 runs are compacted" in said.get()
    assert_reads_the_same(copy, original)


@pytest.mark.acceptance
def test_a_folder_in_an_object_store_is_compacted_and_survives_crashes(
    original: Store, runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    for name, value in {**keys, "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(locks, "RACE_SECONDS", 0.05)
    with s3() as url:
        root = parse_location(f"s3://bucket/results?endpoint_override={url}")
        store = Store(root / "sweep")

        def upload() -> None:
            for pattern in ("*/*", "*"):
                for old in store.path.glob(pattern):
                    old.unlink()
            for name in contents:
                (store.path / name).write_bytes(contents[name])

        contents = {
            str(file.relative_to(original.path)): file.read_bytes()
            for file in Path(str(original.path)).rglob("*")
            if file.is_file() and file.name != ".lock"
        }
        upload()
        for done in crashes(lambda: compact(store), Remote):
            assert_reads_the_same(store, original)
            if not done:
                upload()
        assert len(list(store.path.glob("rounds/*"))) == 3
        run_in_process(runs[3], store, worker(runs[3]))
        store.forget([runs[0].id])
        compact(store)
        assert set(store.ledger()) == store.begun() == {run.id for run in runs[1:]}


@pytest.mark.parametrize("form", ["single files", "a mixture", "packs", "compacted"])
def test_the_queries_of_the_documentation_read_each_form(
    form: str,
    copy: Store,
    original: Store,
    runs: list[Run],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if form == "compacted":
        copy.forget([run.id for run in runs[2:]])
    if form in ("a mixture", "compacted"):
        compact(copy)
    for i, run in enumerate(runs[:2] if form == "packs" else []):
        entries = copy.ledger(run.id)
        copy.write_bundle(f"{i:012x}", copy.table(run.id), entries)
    expected = copy.ledger()
    (copy.path.parent / "results").mkdir()
    shutil.move(copy.path, copy.path.parent / "results" / "quickstart")
    monkeypatch.chdir(copy.path.parent)
    section = DOC.split("## Two forms", 1)[1].split("\n## ", 1)[0]
    sql, python = (
        section.split(f"```{kind}\n", 1)[1].split("```", 1)[0]
        for kind in ("sql", "python")
    )
    names: dict[str, pd.DataFrame] = {}
    exec(python, names)
    pd.testing.assert_frame_equal(
        duckdb.sql(sql).df(), names["answer"], check_dtype=False
    )
    assert dict(
        zip(names["answer"]["run_id"], names["answer"]["status"], strict=True)
    ) == {run_id: entry.status.value for run_id, entry in expected.items()}


def test_a_line_of_the_compacted_ledger_is_the_entry_with_the_run_s_id(
    copy: Store, original: Store, runs: list[Run]
) -> None:
    compact(copy)
    lines = [
        json.loads(line) for line in copy.compacted.ledger_file.read_text().splitlines()
    ]
    assert [line["run_id"] for line in lines] == sorted(run.id for run in runs[:2])
    for line in lines:
        single = json.loads(
            original.file("ledger", f"{line['run_id']}.json").read_text()
        )
        assert line == {"run_id": line["run_id"], **single}


def test_a_flipped_bit_in_the_compacted_rows_is_noticed_or_changes_nothing(
    copy: Store, original: Store
) -> None:
    compact(copy)
    file = copy.compacted.rows_file
    good = file.read_bytes()
    others = {part.stem.rpartition("-")[0] for part in copy.parts()}
    draw = np.random.default_rng(0)
    for position in draw.integers(len(good), size=60):
        bad = bytearray(good)
        bad[position] ^= 1 << int(draw.integers(8))
        file.write_bytes(bytes(bad))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            rows = copy.rounds()
        if any("cannot be read" in str(warning.message) for warning in said):
            assert set(rows["run_id"]) == others
        else:
            pd.testing.assert_frame_equal(rows, original.rounds(), check_exact=True)
