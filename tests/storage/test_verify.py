"""Rows that are lost, doubled, exchanged or edited never count, and are computed again."""

import hashlib
import json
import re
import shutil
import struct
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.folders import apart
from helpers.here import run_in_process
from helpers.servers import s3
from typer.testing import CliRunner

from raysafl import Run
from raysafl.cli import app as cli
from raysafl.quickstart import BASE
from raysafl.report.query import results
from raysafl.report.write import write_report
from raysafl.runtime.in_process import Worker
from raysafl.simulation.checkpoint import progress
from raysafl.storage import locks
from raysafl.storage.bundle import Bundle
from raysafl.storage.checked import read_checked
from raysafl.storage.compaction import compact
from raysafl.storage.files import write_parquet
from raysafl.storage.integrity import RowSum, faults, row_hashes, row_sums
from raysafl.storage.ledger import LedgerEntry, Status
from raysafl.storage.paths import SweepBusyError, parse_location
from raysafl.storage.rows import ROUNDS, table_of
from raysafl.storage.runs_table import make_runs_table, write_runs_table
from raysafl.storage.store import Store
from raysafl.storage.verify import repair, verify
from raysafl.sweep.definition import Sweep
from raysafl.sweep.session import Session

RUNS = [
    BASE.replace(rounds=5, eval_every=2, replicates=2, seed=seed) for seed in (0, 10)
]
FORMS = ["parts", "pack", "compacted"]


def worker(run: Run) -> Worker:
    return Worker(run.cells, run.data.load(), run.model)


def computed(path: Path) -> Store:
    """A folder with two finished runs in two parts each, and their report."""
    store = Store(path)
    store.create()
    runs = {(run.seed,): run for run in RUNS}
    store.write_manifest(Sweep("sweep", runs, axes=("seed",)).manifest())
    for run in RUNS:
        run_in_process(run, store, worker(run))
    apart(store, 0, 2)
    write_runs_table(store)
    write_report(store)
    return store


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return computed(tmp_path_factory.mktemp("results") / "sweep")


@pytest.fixture
def copy(original: Store, tmp_path: Path) -> Store:
    return Store(Path(shutil.copytree(original.path, tmp_path / "sweep")))


@pytest.fixture(params=FORMS)
def formed(request: pytest.FixtureRequest, copy: Store) -> Store:
    """The folder in each form."""
    if request.param == "compacted":
        compact(copy)
    if request.param == "pack":
        copy.write_bundle("0123456789ab", copy.table(), copy.ledger())
    return copy


def bundle_of(store: Store) -> Bundle | None:
    """The bundle that holds the runs, if the folder has that form."""
    return next((b for b in store.bundles() if b.rows_file.is_file()), None)


def rewrite(store: Store, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    """Change the rows of a folder in the form that it has; the files stay readable."""
    rows = change(store.rounds())
    if bundle := bundle_of(store):
        table = pa.Table.from_pandas(rows, schema=ROUNDS, preserve_index=False)
        bundle.write_rows([table], table.schema)
        return
    for part in store.parts():
        run_id, _, first = part.stem.rpartition("-")
        inside = rows["round"] >= 2 if int(first) else rows["round"] < 2
        own = rows[inside & (rows["run_id"] == run_id)]
        write_parquet(
            pa.Table.from_pandas(own, schema=ROUNDS, preserve_index=False), part
        )


def of_first(rows: pd.DataFrame) -> "pd.Series[bool]":
    return rows["run_id"] == RUNS[0].id


def drop_rows(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[~of_first(rows) | (rows["round"] < 4)]


def drop_replicate(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[~of_first(rows) | (rows["replicate"] == 0)]


def double_rows(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([rows, rows[of_first(rows)].tail(1)])


def swap_runs(rows: pd.DataFrame) -> pd.DataFrame:
    one, other = (run.id for run in RUNS)
    return rows.assign(run_id=rows["run_id"].map({one: other, other: one}))


def edit_number(rows: pd.DataFrame) -> pd.DataFrame:
    rows.loc[rows.index[of_first(rows)][-1], "test_accuracy"] = 0.99
    return rows


def edit_cohort(rows: pd.DataFrame) -> pd.DataFrame:
    where = rows.index[of_first(rows)][0]
    rows.at[where, "cohorts"] = [rows.at[where, "cohorts"][0][::-1].copy()]
    return rows


CHANGES = [drop_rows, drop_replicate, double_rows, swap_runs, edit_number, edit_cohort]


def delete_rows(store: Store) -> None:
    [*_, last] = store.parts(RUNS[0].id) or [store.bundles()[-1].rows_file]
    last.unlink()


def cut_file(store: Store) -> None:
    [*_, last] = store.parts(RUNS[0].id) or [store.bundles()[-1].rows_file]
    last.write_bytes(last.read_bytes()[:-20])


def exchange_files(store: Store) -> None:
    if bundle_of(store):
        return rewrite(store, swap_runs)
    one, other = (store.parts(run.id)[0] for run in RUNS)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return None


def changing(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[..., None]:
    def damage(store: Store) -> None:
        rewrite(store, change)

    damage.__name__ = change.__name__
    return damage


DAMAGES = [delete_rows, cut_file, exchange_files, *map(changing, CHANGES)]
pytestmark = pytest.mark.filterwarnings("ignore:.*left out:UserWarning")


def assert_never_finished(store: Store) -> None:
    """The first run is in no mean, on no page, and nowhere called finished."""
    runs = write_runs_table(store).set_index("run_id")
    assert set(runs.loc[RUNS[0].id, "status"]) == {"damaged"}
    assert runs.loc[RUNS[0].id, "final"].isna().all()
    assert runs.loc[RUNS[0].id, "reason"].str.contains("counts nowhere until").all()
    write_report(store)
    for name in ("table.md", "report.html"):
        assert "2 replicates damaged: " in store.file(name).read_text()
    found = results([store.path])
    found = found[found["run_id"] == RUNS[0].id]
    assert found["status"].tolist() == ["damaged"] and found["final"].isna().all()
    assert "counts nowhere" in found["reason"].iloc[0]


def assert_like_undisturbed(store: Store, original: Store) -> None:
    expected = original.rounds().drop(columns="seconds")
    pd.testing.assert_frame_equal(store.rounds().drop(columns="seconds"), expected)
    assert {entry.status for entry in read_checked(store).ledger.values()} == {
        Status.FINISHED
    }
    write_runs_table(store)
    assert verify(store, progress) == []


def run_missing(store: Store) -> None:
    """Compute what has no entry, as `raysafl run` does."""
    for run in RUNS:
        if run.id not in store.ledger():
            run_in_process(run, store, worker(run))


def test_an_undisturbed_folder_is_clean_in_either_form(formed: Store) -> None:
    assert verify(formed, progress) == []


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
def test_a_run_with_damaged_rows_counts_nowhere_and_is_computed_again_after_a_repair(
    damage: Callable[[Store], None], formed: Store, original: Store
) -> None:
    damage(formed)
    assert_never_finished(formed)
    found = verify(formed, progress)
    assert any("seed=0: it is damaged: " in str(finding) for finding in found)
    repaired = repair(formed, found)
    assert {f.run_id for f in repaired} >= {RUNS[0].id}
    assert RUNS[0].id not in formed.ledger()
    run_missing(formed)
    assert_like_undisturbed(formed, original)


def test_the_damage_of_one_run_leaves_the_other_as_it_was(
    formed: Store, original: Store
) -> None:
    before = make_runs_table(formed)
    changing(drop_rows)(formed)
    after = make_runs_table(formed)
    pd.testing.assert_frame_equal(
        after[after["run_id"] == RUNS[1].id], before[before["run_id"] == RUNS[1].id]
    )
    assert list(read_checked(formed).faults.values()) == [
        "replicate 0 has 2 rows instead of 3"
    ]


def test_a_damaged_run_is_not_compacted(copy: Store) -> None:
    changing(drop_rows)(copy)
    assert compact(copy).left == [RUNS[0].id] and len(copy.parts(RUNS[0].id)) == 2


def test_the_digest_is_that_of_the_rows_in_any_order_and_form(formed: Store) -> None:
    rows = formed.table()
    order = np.random.default_rng(0).permutation(len(rows))
    sums = row_sums(rows)
    assert row_sums(rows.take(order)) == sums
    for run_id, entry in formed.ledger().items():
        written = [RowSum(end.rows or 0, end.digest) for end in entry.replicates]
        assert written == [sums[run_id][r] for r in range(2)]


def test_digests_of_intervals_add_up(original: Store) -> None:
    rows = original.table(RUNS[0].id)
    whole = row_sums(rows)[RUNS[0].id]
    first, rest = row_sums(rows[:4])[RUNS[0].id], row_sums(rows[4:])[RUNS[0].id]
    for replicate, total in whole.items():
        parts = [part.get(replicate, RowSum()) for part in (first, rest)]
        assert parts[0] + parts[1] == total


# What makes a list longer.
MORE = {"cohorts": [], "enforced": False, "trained": False}


def test_every_column_of_a_row_counts(original: Store) -> None:
    rows = original.rounds()
    table = pa.Table.from_pandas(rows, schema=ROUNDS, preserve_index=False)
    before = row_hashes(table)
    assert len(set(before.tolist())) == len(before)
    for name in ROUNDS.names:
        old = rows.at[0, name]
        new = rows.copy()
        new.at[0, name] = (
            [*old, MORE[name]]
            if name in MORE
            else f"{old}x"
            if isinstance(old, str)
            else 7
        )
        after = row_hashes(
            pa.Table.from_pandas(new, schema=ROUNDS, preserve_index=False)
        )
        assert (after != before).tolist() == [True] + [False] * (len(rows) - 1), name


def test_a_new_column_leaves_the_digests_of_earlier_rows_as_they_are(
    original: Store,
) -> None:
    table = original.table()
    empty = pa.nulls(len(table), pa.float64())
    more = table.append_column("new", empty)
    assert (row_hashes(more) == row_hashes(table)).all()


def test_the_digest_never_changes() -> None:
    """Digests that folders hold must stay valid."""
    fields = {name: None for name in ROUNDS.names}
    row = {**fields, "run_id": "a", "replicate": 1, "round": 2, "cohorts": [[], [3, 1]]}
    row |= {"enforced": [False, True], "test_accuracy": 0.5, "kind": "client"}
    table = pa.Table.from_pylist([row], schema=ROUNDS)
    expected = {"rows": 1, "digest": "4b8783b1d2cdce42"}
    assert asdict(row_sums(table)["a"][1]) == expected


def test_the_hash_of_a_row_is_that_of_its_definition_in_plain_python(
    original: Store,
) -> None:
    rows = original.table(RUNS[0].id)
    expected = [plain_hash(row) for row in rows.to_pylist()]
    assert row_hashes(rows).tolist() == expected


def plain_hash(row: dict[str, object]) -> int:
    """The hash of a row, computed with Python's own numbers."""

    def text(value: str) -> int:
        return int.from_bytes(hashlib.sha256(value.encode()).digest()[:8], "big")

    def mixed(bits: int) -> int:
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
        return bits ^ bits >> 31

    def bits(value: object) -> int:
        if isinstance(value, str):
            return text(value)
        if isinstance(value, float):
            return int(struct.unpack("<Q", struct.pack("<d", value))[0])
        if isinstance(value, list):
            step = 0x9E3779B97F4A7C15
            own = [mixed(bits(v) ^ i * step % 2**64) for i, v in enumerate(value)]
            return (sum(own) + len(value)) % 2**64
        assert isinstance(value, int)
        return value % 2**64

    # NaN is not equal to itself, and counts as missing.
    there = {n: v for n, v in row.items() if v is not None and v == v}
    return mixed(sum(mixed(bits(v) ^ text(n)) for n, v in there.items()) % 2**64)


def test_a_run_that_goes_on_from_a_checkpoint_begins_anew_if_its_rows_are_damaged(
    tmp_path: Path, original: Store
) -> None:
    run = RUNS[0]
    store = Store(tmp_path / "begun")
    store.create()
    runs = {(run.seed,): run for run in RUNS}
    store.write_manifest(Sweep("sweep", runs, axes=("seed",)).manifest())
    session = Session([run], store, worker(run), {}, flush_seconds=0.0)
    session.advance(0.0)
    session.flush()
    assert verify(store, progress) == []
    part = store.parts(run.id)[0]
    content = part.read_bytes()
    part.unlink()
    assert verify(store, progress)
    again = Session([run], store, worker(run), {})
    assert re.search("are damaged .* so the run begins anew", again.begun_anew)
    assert again.open[run.id].simulation.round == 0
    part.write_bytes(content)
    again = Session([run], store, worker(run), {})
    assert again.open[run.id].simulation.round == 2
    again.advance(np.inf)
    run_missing(store)
    assert_like_undisturbed(store, original)


def orphan(store: Store) -> None:
    part = store.parts(RUNS[0].id)[0]
    rows = store.rounds(RUNS[0].id).drop(columns="run_id").to_dict("records")
    store.write_part("abcabcabcabc", 0, table_of("abcabcabcabc", rows))
    assert part.is_file()


def forget_entry_of_stranger(store: Store) -> None:
    store.checkpoint("abcabcabcabc").parent.mkdir(exist_ok=True)
    store.checkpoint("abcabcabcabc").write_bytes(b"nothing")


def damage_entry(store: Store) -> None:
    store.ledger_files()[0].write_bytes(b'{"status": "finish')


def exchange_entries(store: Store) -> None:
    one, other = store.ledger_files()
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def damage_manifest(store: Store) -> None:
    store.file("manifest.json").write_text("{")


def edit_table(store: Store) -> None:
    runs = store.runs()
    runs.loc[0, "final"] = 0.99
    store.write_runs(runs)


OTHERS = {
    orphan: "run abcabcabcabc: it has rows, a checkpoint or models, but is neither in",
    forget_entry_of_stranger: "checkpoints/abcabcabcabc.safetensors: the checkpoint",
    damage_entry: "ledger/.*json: the entry of seed=.* cannot be read",
    exchange_entries: "seed=0: it is damaged: its ledger entry has the configuration of",
    damage_manifest: "manifest.json: .* cannot be read",
    edit_table: "runs.parquet: its numbers are not those of the rows",
}


@pytest.mark.parametrize("damage", OTHERS, ids=lambda d: d.__name__)
def test_whatever_else_is_wrong_is_named_and_mended(
    damage: Callable[[Store], None], copy: Store, original: Store
) -> None:
    damage(copy)
    code, said = command("verify", str(copy.path))
    assert code == 1
    pattern = OTHERS[damage]
    assert pd.Series(said.splitlines()).str.contains(pattern).any(), said
    code, said = command("verify", str(copy.path), "--repair")
    assert "forgot " in said
    if damage is damage_manifest:
        shutil.copy(original.path / "manifest.json", copy.path)
    run_missing(copy)
    assert_like_undisturbed(copy, original)


def test_damaged_lines_of_the_compacted_ledger_are_named_and_forgotten(
    copy: Store, original: Store
) -> None:
    compact(copy)
    file = copy.compacted.ledger_file
    one, other = file.read_bytes().splitlines()
    file.write_bytes(one[:-5] + b"\n" + other + b"\n")
    (finding,) = verify(copy, progress)
    assert "ledger.jsonl, line 1: it cannot be read" in str(finding)
    repair(copy, [finding])
    assert file.read_bytes() == other + b"\n"
    run_missing(copy)
    assert_like_undisturbed(copy, original)


def test_compacted_rows_that_cannot_be_read_are_kept_aside(copy: Store) -> None:
    compact(copy)
    cut_file(copy)
    damaged = copy.compacted.rows_file.read_bytes()
    repair(copy, verify(copy, progress))
    assert not copy.compacted.rows_file.is_file() and not copy.ledger()
    assert copy.file("damaged", "rounds.parquet").read_bytes() == damaged


def test_files_that_raysafl_has_not_written_are_named_and_left_alone(
    copy: Store,
) -> None:
    strange = copy.file("rounds", "mine.parquet")
    strange.write_bytes(b"x")
    code, said = command("verify", str(copy.path), "--repair")
    assert code == 1 and "rounds/mine.parquet: it is no file of raysafl's" in said
    assert strange.is_file()


def command(*arguments: str) -> tuple[int, str]:
    """Run a command; return its exit code and what it prints."""
    with cli.console.capture() as said, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CliRunner().invoke(cli.app, list(arguments), catch_exceptions=False)
    return result.exit_code, said.get()


def test_verify_and_report_end_with_1_as_long_as_a_run_is_damaged(
    formed: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(formed.path)
    monkeypatch.setattr(sys, "argv", ["raysafl", "verify", path])
    assert command("verify", path) == (0, f"{path}: clean\n")
    changing(drop_rows)(formed)
    code, said = command("report", path)
    assert code == 1 and "1 runs are damaged" in said and "damaged" in said
    code, said = command("verify", path)
    assert code == 1 and "seed=0: it is damaged: replicate 0 has 2 rows" in said
    code, said = command("verify", path, "--repair")
    assert code == 0 and "forgot seed=0" in said and said.endswith("clean\n")
    assert "damaged" not in formed.file("table.md").read_text()
    assert command("report", path)[0] == 0


def test_an_unreadable_part_of_a_run_that_is_whole_is_deleted_alone(
    copy: Store, original: Store
) -> None:
    extra = copy.file("rounds", f"{RUNS[0].id}-000099.parquet")
    extra.write_bytes(b"no Parquet")
    (finding,) = verify(copy, progress)
    assert "the run is whole without it" in str(finding)
    repair(copy, [finding])
    assert not extra.is_file() and verify(copy, progress) == []
    assert_like_undisturbed(copy, original)


def test_a_folder_that_has_lost_its_manifest_is_verified(copy: Store) -> None:
    copy.file("manifest.json").unlink()
    code, said = command("verify", str(copy.path))
    assert code == 1 and "it has no file manifest.json" in said


def test_a_folder_that_is_written_to_is_repaired_by_its_writer_alone(
    copy: Store,
) -> None:
    with copy.lock(), pytest.raises(SweepBusyError):
        repair(Store(copy.path), [])


@pytest.mark.acceptance
@pytest.mark.parametrize("form", FORMS)
def test_a_folder_in_an_object_store_is_verified_and_repaired(
    form: str, original: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    for name, value in {**keys, "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(locks, "RACE_SECONDS", 0.05)
    with s3() as url:
        root = parse_location(f"s3://bucket/results?endpoint_override={url}")
        store = Store(root / "sweep")
        for file in Path(str(original.path)).rglob("*"):
            if file.is_file() and file.name != ".lock":
                name = str(file.relative_to(original.path))
                (store.path / name).write_bytes(file.read_bytes())
        for damage in (delete_rows, cut_file, changing(edit_number)):
            if form == "compacted":
                compact(store)
            if form == "pack":
                put_into_one_bundle(store)
            assert verify(store, progress) == []
            damage(store)
            assert_never_finished(store)
            repair(store, verify(store, progress))
            run_missing(store)
            assert_like_undisturbed(store, original)


def put_into_one_bundle(store: Store) -> None:
    rows = store.table()
    ledger = store.ledger()
    store.forget(None)
    store.write_bundle("0123456789ab", rows, ledger)


def test_the_rows_of_an_entry_without_digests_are_read_and_not_checked(
    original: Store,
) -> None:
    run = RUNS[0]
    fields = {"status": "finished", "config": run.model_dump(mode="json")}
    entry = LedgerEntry.from_json(json.dumps(fields))
    assert faults({run.id: entry}, original.table(run.id)[1:]) == {}


class Crash(BaseException):
    """The process is killed."""


@pytest.mark.acceptance
def test_a_crash_while_a_damaged_run_is_forgotten_hurts_nothing(
    formed: Store, original: Store, tmp_path: Path
) -> None:
    """Killed before each change of a file in turn; then the command is given again."""
    cut_file(formed)
    begun = Store(tmp_path / "begun")
    crashed = 0
    for number in range(20):
        shutil.rmtree(begun.path, ignore_errors=True)
        shutil.copytree(formed.path, begun.path)
        changes = 0

        def before(change: Callable[..., Path]) -> Callable[..., Path]:
            def crash_or_change(self: Path, *args: object, **options: object) -> Path:
                nonlocal changes
                changes += 1
                if changes > number:  # noqa: B023 (called within the same turn)
                    raise Crash
                return change(self, *args, **options)

            return crash_or_change

        with pytest.MonkeyPatch.context() as patch:
            for name in ("unlink", "replace"):
                patch.setattr(Path, name, before(getattr(Path, name)))
            try:
                begun.forget(read_checked(begun).faults)
            except Crash:
                crashed += 1
        begun.forget(read_checked(begun).faults)
        run_missing(begun)
        assert_like_undisturbed(begun, original)
    assert 3 <= crashed < 20


def test_rows_of_a_bundle_that_cannot_be_read_are_set_aside_beside_damaged_lines(
    copy: Store,
) -> None:
    """The column of the runs can be read, so the damage shows in other columns alone."""
    compact(copy)
    bundle = copy.compacted
    columns = pq.read_metadata(bundle.rows_file).row_group(0)
    names = [columns.column(k).path_in_schema for k in range(columns.num_columns)]
    place = columns.column(names.index("test_loss")).data_page_offset + 40
    content = bytearray(bundle.rows_file.read_bytes())
    content[place] ^= 1
    bundle.rows_file.write_bytes(content)
    assert bundle.run_ids() == {run.id for run in RUNS}
    bundle.ledger_file.write_bytes(b"{\n{\n")
    repair(copy, verify(copy, progress))
    assert verify(copy, progress) == []
    assert bundle.aside.read_bytes() == content and not bundle.rows_file.exists()
