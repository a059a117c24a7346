"""Rows that are lost, doubled, exchanged or edited never count, and are computed again."""

import hashlib
import json
import re
import shutil
import struct
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.commands import call
from helpers.folders import finished, rows_file
from helpers.here import run_in_process
from helpers.made import save
from helpers.pictures import without_pictures
from helpers.servers import s3
from typer.testing import CliRunner

from raysafl import Run
from raysafl.cli import app as cli
from raysafl.quickstart import BASE
from raysafl.report.query import results
from raysafl.report.write import write_report
from raysafl.runtime.in_process import Worker
from raysafl.storage import locks
from raysafl.storage.files import atomic_write
from raysafl.storage.integrity import row_hashes, row_sums
from raysafl.storage.ledger import Status
from raysafl.storage.paths import SweepBusyError, parse_location
from raysafl.storage.rows import CLIENTS, ROUNDS, encoded
from raysafl.storage.runs_table import make_runs_table, write_runs_table
from raysafl.storage.sealed import OpenState
from raysafl.storage.store import Store
from raysafl.storage.verify import repair, verify
from raysafl.sweep.definition import Sweep

RUNS = [
    BASE.replace(rounds=5, eval_every=2, replicates=2, seed=seed) for seed in (0, 10)
]
FORMS = ["apart", "compacted"]


def worker(run: Run) -> Worker:
    return Worker(run.cells, run.data.load(), run.model)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A folder with two finished runs in a commit each, and their report."""
    sweep = Sweep("sweep", {(run.seed,): run for run in RUNS}, axes=("seed",))
    with without_pictures():
        return finished(sweep, tmp_path_factory.mktemp("results") / "sweep", True)


@pytest.fixture
def copy(original: Store, tmp_path: Path) -> Store:
    return Store(Path(shutil.copytree(original.path, tmp_path / "sweep")))


@pytest.fixture(params=FORMS)
def formed(request: pytest.FixtureRequest, copy: Store) -> Store:
    """The folder in each form."""
    if request.param == "compacted":
        copy.compact()
    return copy


def rewrite(store: Store, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    """Change the rows of a folder in the form that it has; the files stay readable."""
    rows = change(store.rounds())
    for file in {rows_file(store, run.id) for run in RUNS}:
        own = [run.id for run in RUNS if rows_file(store, run.id) == file]
        table = pa.Table.from_pandas(
            rows[rows["run_id"].isin(own)], schema=ROUNDS, preserve_index=False
        )
        file.write_bytes(encoded(table))


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
    rows_file(store, RUNS[0].id).unlink()


def cut_file(store: Store) -> None:
    file = rows_file(store, RUNS[0].id)
    file.write_bytes(file.read_bytes()[:-20])


def exchange_files(store: Store) -> None:
    one, other = (rows_file(store, run.id) for run in RUNS)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    if one == other:
        rewrite(store, swap_runs)


def changing(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[..., None]:
    def damage(store: Store) -> None:
        rewrite(store, change)

    damage.__name__ = change.__name__
    return damage


DAMAGES = [delete_rows, cut_file, exchange_files, *map(changing, CHANGES)]
pytestmark = pytest.mark.filterwarnings("ignore:.*left out:UserWarning")


def assert_never_finished(store: Store, is_reported: bool) -> None:
    """The first run is in no mean, on no page, and nowhere called finished.

    A report is made of what `write_runs_table` and `store.read` return, whatever the
    damage.
    """
    runs = write_runs_table(store).set_index("run_id")
    assert set(runs.loc[RUNS[0].id, "status"]) == {"damaged"}
    assert runs.loc[RUNS[0].id, "final"].isna().all()
    assert runs.loc[RUNS[0].id, "reason"].str.contains("counts nowhere until").all()
    assert RUNS[0].id not in store.read().rows["run_id"].to_pylist()
    if is_reported:
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
    assert {entry.status for entry in store.read().ledger.values()} == {Status.FINISHED}
    write_runs_table(store)
    assert verify(store) == []


def run_missing(store: Store) -> None:
    """Compute what has no entry, as `raysafl run` does."""
    for run in RUNS:
        if run.id not in store.ledger():
            run_in_process(run, store, worker(run))


def test_an_undisturbed_folder_is_clean_in_either_form(formed: Store) -> None:
    assert verify(formed) == []


# By default the damages have the two forms of a folder in turn.
@pytest.mark.parametrize(
    ("damage", "formed"),
    [
        pytest.param(
            *(damage, form),
            marks=[pytest.mark.acceptance] if (i + k) % 2 else [],
            id=f"{damage.__name__}-{form}",
        )
        for i, damage in enumerate(DAMAGES)
        for k, form in enumerate(FORMS)
    ],
    indirect=["formed"],
)
def test_a_run_with_damaged_rows_counts_nowhere_and_is_computed_again_after_a_repair(
    damage: Callable[[Store], None], formed: Store, original: Store
) -> None:
    damage(formed)
    # Of rows that cannot be read, and of rows that can.
    assert_never_finished(formed, damage in (cut_file, DAMAGES[-1]))
    found = verify(formed)
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
    assert list(formed.read().faults.values()) == [
        "replicate 0 has 2 rows instead of 3"
    ]


def test_the_digest_is_that_of_the_rows_in_any_order_and_form(formed: Store) -> None:
    rows = formed.read().rows
    order = np.random.default_rng(0).permutation(len(rows))
    sums = row_sums(rows)
    assert row_sums(rows.take(order)) == sums
    for run_id, entry in formed.ledger().items():
        assert entry.sums["rounds"] == sums[run_id]


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
    table = original.read().rows
    empty = pa.nulls(len(table), pa.float64())
    more = table.append_column("new", empty)
    assert (row_hashes(more) == row_hashes(table)).all()


def test_the_digest_never_changes() -> None:
    """Digests that folders hold must stay valid."""
    fields = {name: None for name in ROUNDS.names}
    row = {**fields, "run_id": "a", "replicate": 1, "round": 2, "cohorts": [[], [3, 1]]}
    row |= {"enforced": [False, True], "test_accuracy": 0.5, "kind": "client"}
    table = pa.Table.from_pylist([row], schema=ROUNDS)
    assert row_sums(table)["a"][1] == (1, "4b8783b1d2cdce42")


def test_the_hash_of_a_row_is_that_of_its_definition_in_plain_python(
    original: Store,
) -> None:
    rows = original.read(RUNS[0].id).rows
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


def orphan(store: Store) -> None:
    table = store.read(RUNS[0].id).rows
    store.commit(table, {RUNS[0].id: store.ledger()[RUNS[0].id]})
    save(store, "abcabcabcabc", [])


def forget_entry_of_stranger(store: Store) -> None:
    file = store.open_file("abcabcabcabc")
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"nothing")


def ledger_file(store: Store) -> Path:
    name, _ = store.owners()[RUNS[0].id]
    return Path(str(store.file("ledger", f"{name}.jsonl")))


def damage_entry(store: Store) -> None:
    file = ledger_file(store)
    file.write_bytes(file.read_bytes().replace(b'"finished"', b'"failed"', 1))


def exchange_entries(store: Store) -> None:
    one, other = sorted(Path(str(store.path)).glob("ledger/*"))
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def exchange_ids(store: Store) -> None:
    file = store.file("manifest.json")
    one, other = (run.id for run in RUNS)
    swap = {one: other, other: one}
    found = re.sub(f"{one}|{other}", lambda m: swap[m[0]], file.read_text())
    file.write_text(found)


def drop_entry(store: Store) -> None:
    file = store.file("manifest.json")
    manifest = json.loads(file.read_text())
    del manifest["entries"][0]
    file.write_text(json.dumps(manifest))


def flip_bit(store: Store) -> None:
    """Make the label 10 of the second run 00, or the like."""
    file = store.file("manifest.json")
    content = bytearray(file.read_bytes())
    content[content.index(b'"seed": 10') + len(b'"seed": ')] ^= 1
    file.write_bytes(content)


MANIFEST = [exchange_ids, drop_entry, flip_bit]


def edit_table(store: Store) -> None:
    runs = store.runs()
    runs.loc[0, "final"] = 0.99
    store.write_runs(runs)


def rename_column(store: Store) -> None:
    store.write_runs(store.runs().rename(columns={"final": "fioal"}))


def edit_text(store: Store) -> None:
    runs = store.runs()
    runs.loc[0, "config.local.lr"] = "0.2"
    store.write_runs(runs)


def damage_notes_of_pandas(store: Store) -> None:
    """Damage what makes a column of whole numbers with gaps, which no checksum covers."""
    file = store.file("runs.parquet")
    table = pq.read_table(file)
    notes = table.schema.metadata[b"pandas"].replace(b'"Int64"', b'"Ijt64"')
    pq.write_table(table.replace_schema_metadata({"pandas": notes}), file)


def damage_state(store: Store) -> None:
    atomic_write(store.state_file(RUNS[0].id), b"x")


def orphan_state(store: Store) -> None:
    nothing = ROUNDS.empty_table(), CLIENTS.empty_table()
    store.keep_state("abcabcabcabc", OpenState({}, *nothing, b"state"))


ORPHAN = (
    "run abcabcabcabc: it has rows, a checkpoint, models or a state, but is neither"
)
OTHERS = {
    orphan: ORPHAN,
    orphan_state: ORPHAN,
    damage_state: "states/.*ckpt: it cannot be used: it begins with no SHA-256",
    forget_entry_of_stranger: "open/abcabcabcabc.ckpt: the checkpoint cannot be used",
    damage_entry: "ledger/.*jsonl, line 2: it cannot be read",
    exchange_entries: "ledger/.*jsonl, line 1: it cannot be read .it is a copy of",
    **dict.fromkeys(
        MANIFEST, "sweep: manifest.json: it cannot be read: its SHA-256 does not fit"
    ),
    edit_table: "runs.parquet: its numbers are not those of the rows, first final of",
    edit_text: "runs.parquet: its numbers are not those .* first config.local.lr of",
    rename_column: "runs.parquet: it has a column 'fioal', which this raysafl does not make",
    damage_notes_of_pandas: "runs.parquet: pandas cannot read it",
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
    if damage in MANIFEST:
        shutil.copy(original.path / "manifest.json", copy.path)
    run_missing(copy)
    assert_like_undisturbed(copy, original)


@pytest.mark.parametrize("damage", MANIFEST)
def test_of_a_damaged_manifest_verify_names_it_first_and_results_shows_nothing(
    damage: Callable[[Store], None], copy: Store
) -> None:
    damage(copy)
    assert verify(copy)[0].where == "manifest.json"
    with pytest.raises(ValueError, match=r"manifest\.json cannot be read: its SHA-256"):
        results([copy.path])


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


@pytest.mark.usefixtures("reports")
def test_verify_and_report_end_with_1_as_long_as_a_run_is_damaged(
    formed: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(formed.path)
    monkeypatch.setattr(sys, "argv", ["raysafl", "verify", path])
    assert command("verify", path) == (0, f"{path}: clean\n")
    changing(drop_rows)(formed)
    code, said = command("report", path)
    assert code == 1 and "1 damaged run in no table" in said and "damaged" in said
    code, said = command("verify", path)
    assert code == 1 and "seed=0: it is damaged: replicate 0 has 2 rows" in said
    code, said = command("verify", path, "--repair")
    assert code == 0 and "forgot seed=0" in said and said.endswith("clean\n")
    assert "damaged" not in formed.file("table.md").read_text()
    assert command("report", path)[0] == 0


@pytest.mark.usefixtures("reports")
def test_a_line_of_the_ledger_that_cannot_be_read_counts_as_a_damaged_run(
    copy: Store,
) -> None:
    path = str(copy.path)
    damage_entry(copy)
    assert command("results", "", path)[0] == 1
    code, said = command("report", path)
    assert code == 1 and "1 damaged run in no table" in said
    for name in ("table.md", "report.html"):
        assert "1 line of the ledger cannot be read" in copy.file(name).read_text()
    repair(copy, verify(copy))
    run_missing(copy)
    assert command("results", "", path)[0] == 0
    assert command("report", path)[0] == 0
    assert "of the ledger" not in copy.file("table.md").read_text()


def test_a_warning_on_the_command_line_is_one_sentence_that_is_said_once(
    copy: Store,
) -> None:
    damage_entry(copy)
    code, said = call(Path(str(copy.path)), "report", ".")
    assert code == 1 and said.count("cannot be read and is left out: ") == 1
    assert said.startswith("line 2 of ") and "UserWarning" not in said


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
                store.compact()
            assert verify(store) == []
            damage(store)
            assert_never_finished(store, is_reported=damage is cut_file)
            repair(store, verify(store))
            run_missing(store)
            assert_like_undisturbed(store, original)
