"""The journal: committed, flushed, forgotten, compacted; killed and damaged at random."""

import errno
import io
import json
import random
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.crashes import crashed, crashes, power_cut
from helpers.made import clients_of, ended, entry_of, rows_of
from helpers.servers import s3
from hypothesis import given, settings
from hypothesis import strategies as st

from raysafl import Run
from raysafl.quickstart import BASE
from raysafl.storage import locks
from raysafl.storage.journal import Journal
from raysafl.storage.ledger import Status
from raysafl.storage.paths import Remote, StorageError, parse_location
from raysafl.storage.rows import encoded, read_rows, sorted_rows
from raysafl.storage.sealed import OpenState, sealed, unsealed
from raysafl.storage.store import Store
from raysafl.storage.verify import repair, verify
from raysafl.sweep.definition import Sweep

DOC = (Path(__file__).parents[2] / "docs" / "results.md").read_text()
RUNS = [BASE.replace(seed=10 * i, rounds=3, replicates=2) for i in range(6)]
BY_ID = {run.id: run for run in RUNS}
Facts = list[dict[str, object]]
pytestmark = pytest.mark.filterwarnings("ignore:.*left out:UserWarning")


def new(path: Path | Remote) -> Store:
    store = Store(path)
    store.create()
    runs = {(run.seed,): run for run in RUNS}
    store.write_manifest(Sweep("sweep", runs, axes=("seed",)).manifest())
    return store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new(tmp_path / "sweep")


def files(store: Store) -> list[str]:
    """The folders of all files that hold results, in order."""
    folders = ("rounds", "clients", "ledger", "open", "damaged")
    return sorted(f.parent.name for k in folders for f in store.path.glob(f"{k}/*"))


ONE_COMMIT = ["clients", "ledger", "rounds"]


def begin(store: Journal, run: Run, draw: int = 0, through: int | None = None) -> None:
    """Save what a run in flight saves."""
    rows = rows_of(run, draw, through)
    about = {"code": {"Mine": f"{draw}"}, "raysafl": "0"}
    store.flush(run.id, OpenState(about, rows, clients_of(run, draw)[:0], b"state"))


def fail(store: Journal, run: Run, draw: int = 0, through: int | None = None) -> None:
    store.commit(rows_of(run, draw, through), {run.id: entry_of(run, Status.FAILED)})


def facts(table: pa.Table, folder: str = "rounds") -> Facts:
    """Rows in the order of their keys, as plain Python."""
    found: Facts = sorted_rows(table, folder).to_pylist()
    return found


def assert_holds(store: Store, runs: list[Run], draw: int = 0) -> None:
    """The folder reads as exactly these finished runs, as a whole and run by run."""
    rows, entries, clients = ended(runs, draw)
    checked = store.read()
    assert not checked.faults and list(checked.ledger) == sorted(entries)
    assert all(e.status is Status.FINISHED for e in checked.ledger.values())
    assert facts(checked.rows) == facts(rows)
    assert facts(checked.clients, "clients") == facts(clients, "clients")
    assert store.begun() == entries.keys()
    for run in runs:
        one = store.read(run.id)
        assert facts(one.rows) == facts(rows_of(run, draw)) and not one.faults
        assert list(one.ledger) == [run.id]


def by_others(store: Store) -> Facts:
    """All rows as pandas reads them."""
    return facts(pa.Table.from_pandas(pd.read_parquet(store.path / "rounds")))


def test_runs_that_ended_together_are_one_commit_and_are_open_no_more(
    store: Store,
) -> None:
    for run in RUNS[:3]:
        begin(store, run, through=2)
    store.commit(*ended(RUNS[:2]))
    assert files(store) == [*ONE_COMMIT[:2], "open", "rounds"]
    assert store.open_runs() == [RUNS[2].id]
    store.forget([RUNS[2].id])
    assert_holds(store, RUNS[:2])
    assert verify(store) == []


def test_a_run_goes_on_from_what_it_has_saved(store: Store) -> None:
    assert store.resume(RUNS[0].id) is None
    begin(store, RUNS[0], through=1)
    begin(store, RUNS[0], draw=1, through=2)
    found = store.resume(RUNS[0].id)
    assert found is not None and found.state == b"state"
    assert facts(found.rows) == facts(rows_of(RUNS[0], 1, 2))
    assert facts(store.read().rows) == facts(rows_of(RUNS[0], 1, 2))
    assert store.about(RUNS[0].id)["code"] == {"Mine": "1"}
    assert store.ledger() == {} and store.begun() == {RUNS[0].id}


def test_of_a_run_in_two_commits_the_later_one_counts_in_both_tables(
    store: Store,
) -> None:
    fail(store, RUNS[0], draw=5, through=1)
    store.commit(*ended(RUNS[:2], draw=3))
    store.commit(*ended(RUNS[:2], draw=2))
    assert_holds(store, RUNS[:2], draw=2)
    store.compact()
    assert files(store) == ONE_COMMIT
    assert_holds(store, RUNS[:2], draw=2)


def test_a_later_commit_counts_although_the_clock_went_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.commit(*ended(RUNS[:1], draw=1))
    monkeypatch.setattr("time.time_ns", lambda: 0)
    store.commit(*ended(RUNS[:1], draw=2))
    assert_holds(store, RUNS[:1], draw=2)


def test_a_failed_run_has_its_rows_and_goes_on_where_it_was(store: Store) -> None:
    begin(store, RUNS[0], through=1)
    fail(store, RUNS[0], through=2)
    checked = store.read()
    assert checked.ledger[RUNS[0].id].status is Status.FAILED and not checked.faults
    assert facts(checked.rows) == facts(rows_of(RUNS[0], through=2))
    assert store.resume(RUNS[0].id) is not None


def test_an_open_run_that_is_stopped_ends_with_the_rows_that_it_has_saved(
    store: Store,
) -> None:
    begin(store, RUNS[0], through=2)
    store.commit_end(RUNS[0].id, entry_of(RUNS[0], Status.STOPPED))
    assert facts(store.read().rows) == facts(rows_of(RUNS[0], through=2))
    assert not store.open_runs() and not store.read().faults


def test_rows_without_an_entry_are_refused(store: Store) -> None:
    rows, entries, _ = ended(RUNS[:2])
    with pytest.raises(ValueError, match=f"rows of another run, '{RUNS[1].id}'"):
        store.commit(rows, {RUNS[0].id: entries[RUNS[0].id]})
    assert files(store) == []


def test_a_run_without_rows_has_an_entry_alone(store: Store) -> None:
    store.commit(rows_of(RUNS[0], through=0), {RUNS[0].id: entry_of(RUNS[0])})
    assert files(store) == ["ledger"]
    assert list(store.read().ledger) == [RUNS[0].id] and not store.read().faults


def test_compacting_leaves_one_commit_and_compacting_again_changes_nothing(
    store: Store,
) -> None:
    mixed(store)
    done = store.compact()
    assert (done.compacted, done.left) == (5, [RUNS[5].id])
    assert "5 runs are compacted" in str(done) and "1 runs keep their own" in str(done)
    assert files(store) == sorted([*ONE_COMMIT, "open", "open"])
    before = {file: file.stat().st_mtime_ns for file in store.path.glob("*/*")}
    assert store.compact().compacted == 5
    assert {file: file.stat().st_mtime_ns for file in store.path.glob("*/*")} == before
    assert_mixed(store)


@pytest.mark.filterwarnings("ignore:.* cannot be read and is left out")
def test_runs_of_a_single_commit_that_is_damaged_do_not_count_as_compacted(
    store: Store,
) -> None:
    store.commit(*ended(RUNS[:2]))
    (file,) = store.rounds_path.iterdir()
    file.write_bytes(file.read_bytes()[:50])
    done = store.compact()
    assert done.compacted == 0 and done.left == sorted(run.id for run in RUNS[:2])


def test_pandas_reads_each_row_once_after_compacting_and_after_forgetting(
    store: Store,
) -> None:
    fail(store, RUNS[0], through=1)
    store.commit(*ended(RUNS[:2]))
    store.commit(*ended(RUNS[2:4]))
    store.forget([RUNS[3].id])
    store.compact()
    assert by_others(store) == facts(ended(RUNS[:3])[0])
    store.forget([RUNS[1].id])
    assert by_others(store) == facts(ended([RUNS[0], RUNS[2]])[0])
    assert_holds(store, [RUNS[0], RUNS[2]])


def test_all_runs_are_forgotten_and_no_file_is_left(store: Store) -> None:
    mixed(store)
    store.forget(None)
    assert files(store) == [] and store.read().ledger == {}


def mixed(store: Store) -> None:
    """Four runs that have ended, one of them twice, one failed, and one in flight."""
    store.commit(*ended(RUNS[:1]))
    store.commit(*ended(RUNS[1:3], draw=4))
    store.commit(*ended(RUNS[1:4]))
    begin(store, RUNS[4], through=1)
    fail(store, RUNS[4], through=1)
    begin(store, RUNS[5], through=2)


def assert_mixed(store: Store) -> None:
    checked = store.read()
    rows, entries, clients = ended(RUNS[:4])
    ends = {i: e.status for i, e in checked.ledger.items()}
    due = dict.fromkeys(entries, Status.FINISHED) | {RUNS[4].id: Status.FAILED}
    assert ends == due and not checked.faults
    rest = [rows_of(RUNS[4], through=1), rows_of(RUNS[5], through=2)]
    assert facts(checked.rows) == facts(pa.concat_tables([rows, *rest]))
    assert facts(checked.clients, "clients") == facts(clients, "clients")
    assert store.open_runs() == sorted([RUNS[4].id, RUNS[5].id])


def renewed(before: Store, now: Store) -> None:
    shutil.rmtree(now.path, ignore_errors=True)
    shutil.copytree(before.path, now.path)


def test_a_crash_at_any_operation_of_a_commit_leaves_the_folder_before_or_after_it(
    tmp_path: Path,
) -> None:
    before, now = new(tmp_path / "before"), Store(tmp_path / "now")
    for run in RUNS[:3]:
        begin(before, run, through=2)
    fail(before, RUNS[1], through=2)
    renewed(before, now)
    seen = set()
    for _ in crashes(lambda: now.commit(*ended(RUNS[:2]))):
        written = RUNS[0].id in now.ledger()
        seen.add(written)
        if written:
            assert facts(now.read(BY_ID.keys() - {RUNS[2].id}).rows) == facts(
                ended(RUNS[:2])[0]
            )
        else:
            assert facts(now.read().rows) == facts(before.read().rows)
            assert now.open_runs() == before.open_runs()
            now.commit(*ended(RUNS[:2]))
        now.compact()
        now.forget([RUNS[2].id])
        assert_holds(now, RUNS[:2])
        assert files(now) == ONE_COMMIT
        renewed(before, now)
    assert seen == {True, False}


@pytest.mark.acceptance
def test_a_crash_while_a_folder_is_compacted_changes_no_result(tmp_path: Path) -> None:
    before, now = new(tmp_path / "before"), Store(tmp_path / "now")
    mixed(before)
    assert_mixed(before)
    renewed(before, now)
    for _ in crashes(now.compact):
        assert_mixed(now)
        assert now.compact().compacted == 5
        assert_mixed(now)
        assert files(now) == sorted([*ONE_COMMIT, "open", "open"])
        renewed(before, now)


def test_a_crash_while_runs_are_forgotten_leaves_the_others(tmp_path: Path) -> None:
    before, now = new(tmp_path / "before"), Store(tmp_path / "now")
    mixed(before)
    gone = [RUNS[0].id, RUNS[2].id, RUNS[5].id]
    renewed(before, now)
    for _ in crashes(lambda: now.forget(gone)):
        checked = now.read([RUNS[1].id, RUNS[3].id])
        assert not checked.faults
        assert facts(checked.rows) == facts(ended([RUNS[1], RUNS[3]])[0])
        now.forget(gone)
        assert now.begun() == {RUNS[1].id, RUNS[3].id, RUNS[4].id}
        assert verify(now) == []
        renewed(before, now)


# By default one seed of each act.
@pytest.mark.parametrize(
    "seed",
    [
        seed if seed in (0, 1, 5) else pytest.param(seed, marks=pytest.mark.acceptance)
        for seed in range(12)
    ],
)
def test_after_a_power_cut_the_folder_is_as_before_or_after_the_act(
    seed: int, tmp_path: Path
) -> None:
    """Writes that were not synced are lost or torn, and renames may be undone."""
    rng, store, number = random.Random(seed), new(tmp_path / "sweep"), 0
    store.commit(*ended(RUNS[:2]))
    store.commit(*ended(RUNS[2:4]))
    acts: list[tuple[Callable[[], object], list[Run]]] = [
        (lambda: store.commit(*ended(RUNS[4:])), RUNS),
        (store.compact, RUNS[:4]),
        (lambda: store.forget([RUNS[0].id]), RUNS[1:4]),
    ]
    act, after = rng.choice(acts)
    kept = Store(tmp_path / "kept")
    renewed(store, kept)
    died = True
    while died:
        number += 1
        died = power_cut(act, number, rng)
        there = after if {r.id for r in after} == store.ledger().keys() else RUNS[:4]
        assert died or there == after
        assert_holds(store, there)
        renewed(kept, store)


@dataclass
class Model:
    """What a folder should hold: the draw of each run that has ended, and who has not."""

    ended: dict[str, int] = field(default_factory=dict)
    # The draw and the number of rounds of the rows of failed runs, and of open ones.
    failed: dict[str, tuple[int, int]] = field(default_factory=dict)
    begun: dict[str, tuple[int, int]] = field(default_factory=dict)

    def drop(self, run_ids: Collection[str]) -> None:
        """Forget what was known of some runs."""
        for held in (self.ended, self.failed, self.begun):
            for run_id in held.keys() & set(run_ids):
                del held[run_id]


def assert_model(store: Store, model: Model) -> None:
    checked = store.read()
    assert not checked.faults
    decided = {i for i, e in checked.ledger.items() if e.status.decided}
    assert decided == model.ended.keys()
    assert checked.ledger.keys() - decided == model.failed.keys()
    tables = [rows_of(BY_ID[i], draw) for i, draw in model.ended.items()]
    shown = model.begun | model.failed
    tables += [rows_of(BY_ID[i], d, n) for i, (d, n) in shown.items()]
    tables.append(rows_of(RUNS[0], through=0))
    assert facts(checked.rows) == facts(pa.concat_tables(tables))


ids = st.sets(st.sampled_from(sorted(BY_ID)), min_size=1)
steps = st.tuples(
    st.sampled_from(["commit", "commit", "begin", "fail", "compact", "forget", "tidy"]),
    ids,
    st.integers(0, 12),
)


@settings(max_examples=15)
@given(st.lists(steps, max_size=8))
def test_whatever_is_done_and_wherever_it_is_killed_the_folder_reads_as_it_should(
    tmp_path_factory: pytest.TempPathFactory, done: list[tuple[str, set[str], int]]
) -> None:
    """Runs begin, fail, end, and are compacted and forgotten, compared with a model."""
    assert_like_a_model(tmp_path_factory, done)


@pytest.mark.acceptance
@settings(max_examples=100)
@given(st.lists(steps, max_size=8))
def test_so_it_does_after_many_more_acts(
    tmp_path_factory: pytest.TempPathFactory, done: list[tuple[str, set[str], int]]
) -> None:
    assert_like_a_model(tmp_path_factory, done)


def assert_like_a_model(
    tmp_path_factory: pytest.TempPathFactory, done: list[tuple[str, set[str], int]]
) -> None:
    store = new(tmp_path_factory.mktemp("model") / "sweep")
    model = Model()
    for draw, (step, chosen, number) in enumerate(done):
        if step == "forget":
            crashed(lambda c=chosen: store.forget(c), number)  # type: ignore[misc]
            store.forget(chosen)
            model.drop(chosen)
        elif step in ("compact", "tidy"):
            crashed(store.tidy if step == "tidy" else store.compact, number)
        elif open_runs := sorted(chosen - model.ended.keys()):
            carry_on(store, model, step, open_runs, draw, number)
        assert_model(store, model)
    store.compact()
    assert_model(store, model)
    assert verify(store) == []


def carry_on(
    store: Store, model: Model, step: str, run_ids: list[str], draw: int, number: int
) -> None:
    """Let runs go on, fail, or end in a commit that may be killed."""
    if step == "commit":
        crashed(lambda: store.commit(*ended([BY_ID[i] for i in run_ids], draw)), number)
        if any(entry.status.decided for entry in store.ledger(run_ids).values()):
            model.drop(run_ids)
            model.ended |= dict.fromkeys(run_ids, draw)
        return
    for run_id in run_ids:
        begin(store, BY_ID[run_id], draw, number % 3)
        model.begun[run_id] = (draw, number % 3)
        if step == "fail":
            fail(store, BY_ID[run_id], draw, number % 3)
            model.failed[run_id] = (draw, number % 3)


def spoil(folder: Path, other: Path, rng: random.Random) -> str:
    """Do one kind of damage to one file; return which."""
    found = sorted(f for f in folder.glob("*/*") if f.suffix != ".lock")
    file, kind = rng.choice(found), rng.choice(KINDS)
    content = bytearray(file.read_bytes())
    beside = sorted(file.parent.iterdir())
    if kind == "delete":
        file.unlink()
    elif kind == "cut":
        file.write_bytes(content[: rng.randrange(len(content))])
    elif kind == "flip":
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(content)
    elif kind == "swap":
        second = rng.choice(beside)
        file.write_bytes(second.read_bytes())
        second.write_bytes(content)
    elif kind == "foreign":
        theirs = sorted((other / file.parent.name).iterdir())
        file.write_bytes(rng.choice(theirs).read_bytes())
    elif kind == "double":
        later = f"{int(file.stem[:13]) + 1:013d}" if file.parent.name != "open" else "x"
        file.with_name(f"{later}{file.name[len(later) :]}").write_bytes(content)
    elif file.suffix == ".parquet":
        edit(file, kind, rng)
    return f"{kind} {file.name}"


KINDS = ["delete", "cut", "flip", "swap", "foreign", "double", "edit", "drop", "repeat"]


def edit(file: Path, kind: str, rng: random.Random) -> None:
    """Change a number, or drop or repeat a row, in a file that stays readable."""
    table = pq.read_table(file)
    k = rng.randrange(len(table))
    if kind == "drop":
        table = pa.concat_tables([table[:k], table[k + 1 :]])
    elif kind == "repeat":
        table = pa.concat_tables([table, table[k : k + 1]])
    else:
        name = "quality" if file.parent.name == "clients" else "test_accuracy"
        values = table[name].to_pylist()
        values[k] = (values[k] or 0) + 1e-9
        place = table.column_names.index(name)
        table = table.set_column(place, name, pa.array(values, pa.float64()))
    pq.write_table(table, file)


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory: pytest.TempPathFactory) -> list[Store]:
    """A folder of five runs that have ended and one in flight, and one of other draws."""
    made = []
    for draw in (0, 1):
        one = new(tmp_path_factory.mktemp("undamaged") / "sweep")
        one.commit(*ended(RUNS[:2], draw))
        one.commit(*ended(RUNS[2:4], draw))
        one.commit(*ended(RUNS[4:5], draw))
        begin(one, RUNS[5], draw)
        made.append(one)
    return made


@pytest.mark.parametrize(
    "seed",
    [
        seed if seed < 12 else pytest.param(seed, marks=pytest.mark.acceptance)
        for seed in range(36)
    ],
)
def test_no_damage_is_shown_as_a_right_number_and_the_way_back_loses_nothing(
    seed: int, undamaged: list[Store], tmp_path: Path
) -> None:
    rng = random.Random(seed)
    store, (before, other) = Store(tmp_path / "sweep"), undamaged
    renewed(before, store)
    if seed % 3 == 0:
        store.compact()
    done = [
        spoil(Path(str(store.path)), Path(str(other.path)), rng)
        for _ in range(seed % 2 + 1)
    ]
    checked = store.read()
    right = {i: facts(rows_of(run)) for i, run in BY_ID.items()}
    clients = {i: facts(clients_of(run), "clients") for i, run in BY_ID.items()}
    for run_id, entry in checked.ledger.items():
        if entry.status is Status.FINISHED:
            assert facts(store.read(run_id).rows) == right[run_id], done
            assert facts(store.read(run_id).clients, "clients") == clients[run_id], done
    ours = {run.id for run in RUNS[:5]}
    shown = {row["run_id"] for row in checked.rows.to_pylist()} - {RUNS[5].id}
    assert shown == ours & checked.ledger.keys() - checked.faults.keys(), done

    # The way back: what is damaged is forgotten, and computed again if it has no entry.
    found = verify(store)
    if rng.random() < 0.5:
        repair(store, found)
    store.forget([*store.read().faults, RUNS[5].id])
    again = [run for run in RUNS[:5] if run.id not in store.ledger()]
    if again:
        store.commit(*ended(again))
    repair(store, verify(store))
    assert_holds(store, RUNS[:5])
    assert verify(store) == [], done


def test_a_damaged_line_of_the_ledger_costs_the_run_of_this_line_alone(
    store: Store,
) -> None:
    store.commit(*ended(RUNS[:3]))
    (file,) = store.path.glob("ledger/*")
    head, one, *rest = file.read_bytes().splitlines()
    file.write_bytes(b"\n".join([head, one[:-9], *rest]))
    lost = min(run.id for run in RUNS[:3])
    whole = [run for run in RUNS[:3] if run.id != lost]
    assert list(store.read().ledger) == sorted(run.id for run in whole)
    (finding,) = verify(store)
    assert "line 2: it cannot be read" in str(finding)
    assert store.compact().compacted == 0 and file.is_file()
    repair(store, [finding])
    assert verify(store) == []
    assert_holds(store, whole)


def test_rows_of_clients_that_cannot_be_read_are_kept_aside_too(store: Store) -> None:
    store.commit(*ended(RUNS[:2]))
    contents = set()
    for file in store.path.glob("[cr]*/*.parquet"):
        file.write_bytes(file.read_bytes()[:-20])
        contents.add(file.read_bytes())
    repair(store, verify(store))
    aside = {file.name: file.read_bytes() for file in store.path.glob("damaged/*")}
    assert set(aside.values()) == contents and len(contents) == 2
    assert {name.partition("-")[0] for name in aside} == {"rounds", "clients"}


def test_an_entry_of_a_newer_version_is_named_and_outlives_compaction_and_repair(
    store: Store,
) -> None:
    for k in (0, 1, 2):
        store.commit(*ended(RUNS[k : k + 1]))
    file = max(store.path.glob("ledger/*"))
    head, line = file.read_bytes().splitlines()
    entry = {**json.loads(unsealed(line)), "status": "paused"}
    content = head + b"\n" + sealed(entry) + b"\n"
    file.write_bytes(content)
    rows = (store.rounds_path / f"{file.stem}.parquet").read_bytes()
    assert store.compact().left == [RUNS[2].id]
    # As if an earlier manifest had not had it.
    runs = {(run.seed,): run for run in RUNS[:2]}
    store.write_manifest(Sweep("sweep", runs, axes=("seed",)).manifest())
    for _ in range(2):
        (finding,) = verify(store)
        assert "this version does not understand the entry of run" in str(finding)
        assert repair(store, [finding]) == []
    assert file.read_bytes() == content
    assert (store.rounds_path / f"{file.stem}.parquet").read_bytes() == rows
    store.forget([RUNS[2].id])
    assert verify(store) == []
    assert_holds(store, RUNS[:2])


def test_a_sealed_line_that_is_no_open_run_is_named_and_ends_no_reader(
    store: Store,
) -> None:
    begin(store, RUNS[0])
    store.commit(*ended(RUNS[1:2]))
    (ledger,) = store.path.glob("ledger/*")
    store.open_file(RUNS[0].id).write_bytes(ledger.read_bytes())
    assert store.about(RUNS[0].id) == {}
    assert list(store.read().ledger) == [RUNS[1].id]
    (finding,) = verify(store)
    assert "it is no file of an open run" in str(finding)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (OSError(errno.EIO, "Input/output error"), StorageError),
        (pa.ArrowMemoryError("malloc of 64 bytes failed"), MemoryError),
        (OSError("no magic bytes"), ValueError),
    ],
)
def test_a_disk_that_fails_and_too_little_memory_are_no_damage(
    error: Exception, shown: type[Exception]
) -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise error

    with pytest.raises(shown):
        read_rows("rounds", Failing(encoded(ended(RUNS[:1])[0])))


def test_what_a_killed_writer_leaves_is_named_and_deleted(store: Store) -> None:
    store.commit(*ended(RUNS[:1]))
    store.commit(*ended(RUNS[1:2]))
    max(store.path.glob("ledger/*")).unlink()
    assert_holds(store, RUNS[:1])
    texts = [str(finding) for finding in verify(store)]
    assert len(texts) == 2 and all("it has no ledger, as its" in text for text in texts)
    store.tidy()
    assert verify(store) == [] and files(store) == ONE_COMMIT


def test_a_reader_during_a_compaction_misses_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commits are replaced after their entries were read, and before their rows."""
    store.commit(*ended(RUNS[:2]))
    store.commit(*ended(RUNS[2:4]))
    original, compacted = Journal.owners, []

    def owners(self: Journal, ids: object = None) -> object:
        found = original(self, ids)  # type: ignore[arg-type]
        if not compacted:
            compacted.append(True)
            store.compact()
        return found

    monkeypatch.setattr(Journal, "owners", owners)
    assert_holds(store, RUNS[:4])


def test_a_name_that_leads_out_of_the_folder_is_refused(store: Store) -> None:
    for name in ("../x", "a/b", "..", ""):
        with pytest.raises(ValueError, match="cannot be the name of a file"):
            store.file("open", name)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3() as url:
        yield url


@pytest.mark.acceptance
def test_a_journal_in_an_object_store_survives_crashes_as_one_in_a_folder(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    for name, value in {**keys, "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(locks, "RACE_SECONDS", 0.05)
    root = parse_location(f"s3://bucket/{tmp_path.name}?endpoint_override={server}")
    acts: list[Callable[[Store], object]] = [
        Store.compact,
        lambda store: store.commit(*ended(RUNS[1:4])),
    ]
    for k, act in enumerate(acts):
        store = new(root / f"{k}")
        mixed(store)
        for _ in crashes(lambda s=store, a=act: a(s), Remote):  # type: ignore[misc]
            assert_mixed(store)
            store.forget(None)
            mixed(store)
        store.compact()
        assert_mixed(store)
        assert verify(store) == []


def test_the_queries_of_the_documentation_read_a_compacted_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new(tmp_path / "results" / "quickstart")
    mixed(store)
    store.forget([RUNS[5].id])
    store.compact()
    monkeypatch.chdir(tmp_path)
    section = DOC.split("## Commits", 1)[1].split("\n## ", 1)[0]
    sql, python = (
        section.split(f"```{kind}\n", 1)[1].split("```", 1)[0]
        for kind in ("sql", "python")
    )
    names: dict[str, pd.DataFrame] = {}
    exec(python, names)
    answer = names["answer"]
    pd.testing.assert_frame_equal(duckdb.sql(sql).df(), answer, check_dtype=False)
    expected = {i: entry.status.value for i, entry in store.ledger().items()}
    assert dict(zip(answer["run_id"], answer["status"], strict=True)) == expected
    assert len(expected) == 5
