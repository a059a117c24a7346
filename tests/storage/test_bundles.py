"""Runs that ended in a pack: written as one bundle, read, verified, forgotten, compacted."""

import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from helpers.crashes import crashed, crashes
from helpers.made import ended, entry_of, rows_of
from helpers.servers import s3
from hypothesis import given, settings
from hypothesis import strategies as st

from raysafl import Run
from raysafl.quickstart import BASE
from raysafl.simulation.checkpoint import progress
from raysafl.storage import locks
from raysafl.storage.bundle import Bundle
from raysafl.storage.checked import read_checked
from raysafl.storage.compaction import compact
from raysafl.storage.ledger import LedgerEntry, Status
from raysafl.storage.paths import Remote, parse_location
from raysafl.storage.rows import sorted_rows, table_of
from raysafl.storage.store import Store
from raysafl.storage.verify import repair, verify
from raysafl.sweep.definition import Sweep

RUNS = [BASE.replace(seed=10 * i, rounds=3, replicates=2) for i in range(6)]
PACK, OTHER = "0123456789ab", "fedcba987654"


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
    """What the folder holds of runs."""
    folders = ("rounds", "ledger", "checkpoints", "damaged")
    found = [f for folder in folders for f in store.path.glob(f"{folder}/*")]
    return sorted(f"{file.parent.name}/{file.name}" for file in found)


def begin(store: Store, run: Run, draw: int = 0, through: int | None = None) -> None:
    """Leave what a run in flight leaves: its rows so far, and a checkpoint."""
    rows = rows_of(run, draw, through).drop_columns("run_id").to_pylist()
    store.write_part(run.id, 0, table_of(run.id, rows))
    store.checkpoint(run.id).parent.mkdir(exist_ok=True)
    store.checkpoint(run.id).write_bytes(b"where it goes on")


def fail(store: Store, run: Run) -> None:
    entry = LedgerEntry(status=Status.FAILED, config=run.model_dump(mode="json"))
    store.write_ledger(run.id, entry)


def facts(rows: pa.Table) -> list[dict[str, object]]:
    """Rows in the order of their keys, as plain Python."""
    found: list[dict[str, object]] = sorted_rows(rows).to_pylist()
    return found


def assert_holds(store: Store, runs: list[Run], draw: int = 0) -> None:
    """The folder reads as exactly these finished runs, as a whole and run by run."""
    rows, entries = ended(runs, draw) if runs else (rows_of(RUNS[0])[:0], {})
    checked = read_checked(store)
    assert (checked.ledger, checked.faults) == (dict(sorted(entries.items())), {})
    assert facts(checked.rows) == facts(store.table()) == facts(rows)
    assert store.begun() == entries.keys()
    for run in runs:
        assert facts(store.table(run.id)) == facts(rows_of(run, draw))
        assert store.ledger_entry(run.id) == entries[run.id]
    some = [run.id for run in runs[::2]]
    assert store.ledger(some) == {i: entries[i] for i in sorted(some)}
    assert set(store.table(some)["run_id"].to_pylist()) == set(some)


def test_runs_that_ended_in_a_pack_are_two_files_and_nothing_else_is_left_of_them(
    store: Store,
) -> None:
    for run in RUNS[:3]:
        begin(store, run, through=2)
    fail(store, RUNS[1])
    store.write_bundle(PACK, *ended(RUNS[:2]))
    assert files(store) == [
        f"checkpoints/{RUNS[2].id}.safetensors",
        f"ledger/pack-{PACK}.0.jsonl",
        f"rounds/{RUNS[2].id}-000000.parquet",
        f"rounds/pack-{PACK}.0.parquet",
    ]
    store.forget([RUNS[2].id])
    assert_holds(store, RUNS[:2])


def test_each_bundle_of_a_pack_has_the_next_number_and_a_restarted_trial_knows_them(
    store: Store,
) -> None:
    for k, pack in enumerate((PACK, PACK, OTHER, PACK)):
        store.write_bundle(pack, *ended([RUNS[k]]))
    names = [bundle.rows_file.name for bundle in store.bundles()]
    assert names == [
        "rounds.parquet",
        *(f"pack-{PACK}.{k}.parquet" for k in range(3)),
        f"pack-{OTHER}.0.parquet",
    ]
    of_pack = [RUNS[0], RUNS[1], RUNS[3]]
    assert store.ended_in(PACK) == ended(of_pack)[1]
    assert store.ended_in("0" * 12) == {}
    assert_holds(store, RUNS[:4])


def test_the_bundle_after_one_without_a_ledger_has_a_number_of_its_own(
    store: Store,
) -> None:
    store.write_bundle(PACK, *ended(RUNS[:1]))
    store.file("ledger", f"pack-{PACK}.0.jsonl").unlink()
    store.write_bundle(PACK, *ended(RUNS[1:2]))
    assert_holds(store, RUNS[1:2])
    assert f"rounds/pack-{PACK}.1.parquet" in files(store)


def test_runs_without_rows_are_a_bundle_without_a_file_of_rows(store: Store) -> None:
    nothing = rows_of(RUNS[0], through=0)
    entry = entry_of(RUNS[0], nothing, Status.DIVERGED)
    store.write_bundle(PACK, nothing, {RUNS[0].id: entry})
    assert files(store) == [f"ledger/pack-{PACK}.0.jsonl"]
    assert store.ledger() == {RUNS[0].id: entry} and len(store.table()) == 0


@pytest.mark.parametrize("name", ["", "0123456789a", "../123456789", "ABCDEFABCDEF"])
def test_what_is_no_id_of_a_pack_is_refused(store: Store, name: str) -> None:
    with pytest.raises(ValueError, match="is no id of a pack"):
        store.write_bundle(name, *ended(RUNS[:1]))
    assert files(store) == []


def test_a_bundle_takes_decided_runs_only_and_no_rows_of_others(store: Store) -> None:
    rows, entries = ended(RUNS[:2])
    with pytest.raises(ValueError, match=f"rows of another run, '{RUNS[1].id}'"):
        store.write_bundle(PACK, rows, {RUNS[0].id: entries[RUNS[0].id]})
    entries[RUNS[1].id] = LedgerEntry(status=Status.FAILED)
    with pytest.raises(ValueError, match=f"run {RUNS[1].id} is failed"):
        store.write_bundle(PACK, rows, entries)
    assert files(store) == []


def test_an_entry_in_a_bundle_outranks_the_failure_of_an_earlier_attempt(
    store: Store,
) -> None:
    store.write_bundle(PACK, *ended(RUNS[:1]))
    fail(store, RUNS[0])
    begin(store, RUNS[0], draw=9, through=1)
    assert_holds(store, RUNS[:1])
    # Whoever computes it again does not touch the bundle.
    store.drop_parts(RUNS[0].id)
    assert_holds(store, RUNS[:1])


def test_the_compacted_bundle_outranks_packs_and_of_these_the_first_name_wins(
    store: Store,
) -> None:
    store.write_bundle(OTHER, *ended(RUNS[:2], draw=3))
    store.write_bundle(PACK, *ended(RUNS[:2], draw=2))
    assert_holds(store, RUNS[:2], draw=2)
    rows, entries = ended(RUNS[:2], draw=1)
    store.compacted.write_rows([sorted_rows(rows)], rows.schema)
    # Rows without an entry are those of a compaction that is not complete.
    assert_holds(store, RUNS[:2], draw=2)
    store.compacted.write_entries(entries)
    assert_holds(store, RUNS[:2], draw=1)


def test_parts_of_a_run_whose_entry_alone_is_in_a_bundle_are_its_rows(
    store: Store,
) -> None:
    """As in results/measured, where files must be small."""
    entries = ended(RUNS[:3])[1]
    for run in RUNS[:3]:
        begin(store, run)
        store.checkpoint(run.id).unlink()
        store.write_ledger(run.id, entries[run.id])
    compact(store, rows_of={RUNS[0].id})
    assert len(store.parts()) == 2 and store.ledger_files() == []
    assert_holds(store, RUNS[:3])
    store.tidy()
    assert_holds(store, RUNS[:3])
    assert verify(store, progress) == []


def test_each_bundle_is_read_once_however_many_runs_are_asked_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k in range(3):
        store.write_bundle(f"{k:012x}", *ended(RUNS[2 * k : 2 * k + 2]))
    asked: list[str] = []
    original = Bundle.rows
    monkeypatch.setattr(
        Bundle,
        "rows",
        lambda self, ids: (asked.append(self.rows_file.name), original(self, ids))[1],
    )
    read_checked(store, [run.id for run in RUNS[:4]])
    assert sorted(asked) == [f"pack-{k:012x}.0.parquet" for k in range(2)]


def in_flight(store: Store) -> None:
    """Two runs that are about to end, and one that goes on."""
    for run in RUNS[:3]:
        begin(store, run, through=2)
    fail(store, RUNS[1])


def test_a_crash_at_any_operation_of_writing_a_bundle_loses_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    """Before the ledger is written all is as before, and afterwards the runs have ended."""
    before = new(tmp_path / "before")
    in_flight(before)
    rows, entries = ended(RUNS[:2])
    seen = set()

    def write() -> None:
        now.write_bundle(PACK, rows, entries)

    now = Store(tmp_path / "now")
    shutil.copytree(before.path, now.path)
    for _ in crashes(write):
        written = RUNS[0].id in now.ledger()
        seen.add(written)
        if written:
            assert now.ledger() == dict(sorted(entries.items()))
            assert facts(now.table(list(entries))) == facts(rows)
        else:
            assert now.ledger() == before.ledger()
            assert facts(now.table()) == facts(before.table())
            assert all(now.checkpoint(run.id).is_file() for run in RUNS[:3])
        assert facts(now.table(RUNS[2].id)) == facts(before.table(RUNS[2].id))

        # The next attempt goes on.
        now.drop_unfinished_bundles()
        if not now.ended_in(PACK):
            write()
        compact(now)
        now.forget([RUNS[2].id])
        assert_holds(now, RUNS[:2])
        assert files(now) == ["ledger/ledger.jsonl", "rounds/rounds.parquet"]
        shutil.rmtree(now.path)
        shutil.copytree(before.path, now.path)
    assert seen == {True, False}


def mixed(store: Store) -> None:
    """Four runs that have ended, in every form and one twice, one failed, one in flight."""
    store.write_bundle(PACK, *ended(RUNS[:1]))
    compact(store)
    store.write_bundle(OTHER, *ended(RUNS[1:3]))
    store.write_bundle(PACK, *ended(RUNS[2:3]))
    entries = ended(RUNS[3:4])[1]
    begin(store, RUNS[3])
    store.checkpoint(RUNS[3].id).unlink()
    store.write_ledger(RUNS[3].id, entries[RUNS[3].id])
    begin(store, RUNS[4], through=1)
    fail(store, RUNS[4])
    begin(store, RUNS[5], through=2)


def assert_mixed(store: Store) -> None:
    decided = {i: e for i, e in store.ledger().items() if e.status.decided}
    rows, entries = ended(RUNS[:4])
    assert decided == dict(sorted(entries.items()))
    assert facts(store.table(list(entries))) == facts(rows)
    assert store.ledger_entry(RUNS[4].id).status is Status.FAILED  # type: ignore[union-attr]
    others = [(RUNS[4], 1), (RUNS[5], 2)]
    for run, through in others:
        assert facts(store.table(run.id)) == facts(rows_of(run, through=through))
        assert store.checkpoint(run.id).is_file()
    rest = pa.concat_tables([rows_of(run, through=n) for run, n in others])
    assert facts(store.table()) == facts(pa.concat_tables([rows, rest]))


def test_a_crash_while_packs_are_compacted_loses_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    before, now = new(tmp_path / "before"), Store(tmp_path / "now")
    mixed(before)
    assert_mixed(before)
    shutil.copytree(before.path, now.path)
    for _ in crashes(lambda: compact(now)):
        assert_mixed(now)
        assert compact(now).compacted == 4
        assert_mixed(now)
        assert [file for file in files(now) if "/pack-" in file] == []
        assert len(files(now)) == 2 + 2 + 2 + 1
        shutil.rmtree(now.path)
        shutil.copytree(before.path, now.path)


def test_a_crash_while_runs_of_bundles_are_forgotten_leaves_the_others(
    tmp_path: Path,
) -> None:
    before, now = new(tmp_path / "before"), Store(tmp_path / "now")
    mixed(before)
    gone = [RUNS[0].id, RUNS[2].id, RUNS[5].id]
    shutil.copytree(before.path, now.path)
    for _ in crashes(lambda: now.forget(gone)):
        checked = read_checked(now)
        assert not checked.faults
        rows, entries = ended([RUNS[1], RUNS[3]])
        assert entries.items() <= checked.ledger.items()
        assert facts(now.table(list(entries))) == facts(rows)
        now.forget(gone)
        assert now.ledger().keys() == now.begun() == {*entries, RUNS[4].id}
        assert facts(now.table(list(entries))) == facts(rows)
        assert verify_quietly(now) == []
        shutil.rmtree(now.path)
        shutil.copytree(before.path, now.path)


def verify_quietly(store: Store) -> list[str]:
    """What is wrong, but for checkpoints: those of these tests are none."""
    found = map(str, verify(store, progress))
    return [text for text in found if not text.startswith("checkpoints/")]


def test_rows_of_a_bundle_without_a_ledger_are_ignored_named_and_deleted(
    store: Store,
) -> None:
    store.write_bundle(PACK, *ended(RUNS[:2]))
    store.write_bundle(OTHER, *ended(RUNS[2:3]))
    store.file("ledger", f"pack-{PACK}.0.jsonl").unlink()
    assert_holds(store, RUNS[2:3])
    (finding,) = verify(store, progress)
    assert str(finding).startswith(f"rounds/pack-{PACK}.0.parquet: it has no ledger")
    copy = Store(Path(shutil.copytree(store.path, f"{store.path}-copy")))
    store.drop_unfinished_bundles()
    repair(copy, verify(copy, progress))
    for one in (store, copy):
        assert verify(one, progress) == []
        assert_holds(one, RUNS[2:3])
        assert len(files(one)) == 2


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def damage_rows(store: Store, bundle: Bundle) -> set[str]:
    cut(Path(str(bundle.rows_file)))
    return bundle.ended()


def delete_rows(store: Store, bundle: Bundle) -> set[str]:
    bundle.rows_file.unlink()
    return bundle.ended()


def edit_a_row(store: Store, bundle: Bundle) -> set[str]:
    frame = bundle.rows().to_pandas()
    frame.loc[0, "test_accuracy"] += 0.5
    schema = bundle.rows().schema
    rows = pa.Table.from_pandas(frame, schema, preserve_index=False)
    bundle.write_rows([rows], schema)
    return {str(frame.loc[0, "run_id"])}


def damage_a_line(store: Store, bundle: Bundle) -> set[str]:
    one, *others = bundle.ledger_file.read_bytes().splitlines(keepends=True)
    bundle.ledger_file.write_bytes(b"".join([one[:-9] + b"\n", *others]))
    return {min(bundle.run_ids())}


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize(
    "damage", [damage_rows, delete_rows, edit_a_row, damage_a_line]
)
@pytest.mark.filterwarnings("ignore:.*left out:UserWarning")
def test_damage_of_a_bundle_is_that_of_its_runs_alone_and_they_are_forgotten(
    damage: Callable[[Store, Bundle], set[str]], compacted: bool, store: Store
) -> None:
    store.write_bundle(PACK, *ended(RUNS[:2]))
    if compacted:
        compact(store)
    store.write_bundle(OTHER, *ended(RUNS[2:4]))
    harmed = damage(store, store.bundles()[0 if compacted else 1])
    whole = [run for run in RUNS[:4] if run.id not in harmed]
    checked = read_checked(store)
    good = {i for i, e in checked.ledger.items() if e.status is Status.FINISHED}
    assert good == {run.id for run in whole}
    assert facts(checked.rows) == facts(ended(whole)[0])
    found = verify(store, progress)
    assert found and not {f.run_id for f in found} - harmed - {""}
    repair(store, found)
    assert verify(store, progress) == []
    assert_holds(store, whole)
    again = [run for run in RUNS[:4] if run.id in harmed]
    store.write_bundle(PACK, *ended(again))
    assert compact(store).left == []
    assert_holds(store, RUNS[:4])


@pytest.mark.filterwarnings("ignore:.*left out:UserWarning")
def test_what_a_damaged_pack_holds_is_not_compacted_and_all_else_is(
    store: Store,
) -> None:
    for k in range(3):
        store.write_bundle(f"{k:012x}", *ended(RUNS[2 * k : 2 * k + 2]))
    _, one, other, _ = store.bundles()
    damage_rows(store, one)
    damage_a_line(store, other)
    kept = [one.rows_file.read_bytes(), one.ledger_file.read_bytes()]
    lines = other.ledger_file.read_bytes().splitlines()
    done = compact(store)
    assert (done.compacted, set(done.left)) == (3, one.ended())
    assert [one.rows_file.read_bytes(), one.ledger_file.read_bytes()] == kept
    # The rows of the run whose line is damaged are kept with that line.
    assert other.ledger_file.read_bytes() == lines[0] + b"\n"
    assert len(other.run_ids()) == 1
    repair(store, verify(store, progress))
    assert verify(store, progress) == [] and len(store.ledger()) == 3
    assert "rounds/rounds.parquet" in files(store) and len(files(store)) == 3


def test_runs_that_are_there_twice_are_named_and_deleted_once(store: Store) -> None:
    store.write_bundle(PACK, *ended(RUNS[:2]))
    store.write_bundle(OTHER, *ended(RUNS[1:3]))
    begin(store, RUNS[0])
    store.write_ledger(RUNS[0].id, ended(RUNS[:1])[1][RUNS[0].id])
    assert_holds(store, RUNS[:3])
    places = [text.partition(":")[0] for text in verify_quietly(store)]
    assert places == [
        f"rounds/pack-{OTHER}.0.parquet",
        f"rounds/{RUNS[0].id}-000000.parquet",
        f"ledger/{RUNS[0].id}.json",
    ]
    repair(store, verify(store, progress))
    assert verify(store, progress) == [] and len(files(store)) == 4
    assert_holds(store, RUNS[:3])


def test_all_runs_are_forgotten_and_no_file_is_left(store: Store) -> None:
    mixed(store)
    store.write_bundle("0" * 12, *ended(RUNS[:1]))
    store.file("ledger", f"pack-{'0' * 12}.0.jsonl").unlink()
    store.forget(None)
    assert files(store) == []


@dataclass
class Model:
    """What a folder should hold: the draw of each run that has ended, and who has not."""

    ended: dict[str, int] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    # The draw and the number of rounds of the rows of each run in flight.
    begun: dict[str, tuple[int, int]] = field(default_factory=dict)


BY_ID = {run.id: run for run in RUNS}


def assert_model(store: Store, model: Model) -> None:
    ledger = read_checked(store)
    assert not ledger.faults
    decided = {i for i, e in ledger.ledger.items() if e.status.decided}
    assert decided == model.ended.keys()
    assert ledger.ledger.keys() - decided == model.failed
    tables = [rows_of(BY_ID[i], draw) for i, draw in model.ended.items()]
    tables += [rows_of(BY_ID[i], d, n) for i, (d, n) in model.begun.items()]
    tables.append(rows_of(RUNS[0], through=0))
    assert facts(store.table()) == facts(pa.concat_tables(tables))


ids = st.sets(st.sampled_from(sorted(BY_ID)), min_size=1)
steps = st.tuples(
    st.sampled_from(["bundle", "bundle", "begin", "fail", "compact", "forget", "tidy"]),
    ids,
    st.integers(0, 12),
)


@settings(max_examples=60)
@given(st.lists(steps, max_size=8))
def test_whatever_is_done_and_wherever_it_is_killed_the_folder_reads_as_it_should(
    tmp_path_factory: pytest.TempPathFactory, done: list[tuple[str, set[str], int]]
) -> None:
    """Runs begin, fail, end, and are compacted and forgotten, compared with a model."""
    store = new(tmp_path_factory.mktemp("model") / "sweep")
    model = Model()
    for draw, (step, chosen, number) in enumerate(done):
        open_runs = sorted(chosen - model.ended.keys())
        if step == "forget":
            crashed(lambda c=chosen: store.forget(c), number)  # type: ignore[misc]
            store.forget(chosen)
            model.failed -= chosen
            for run_id in chosen:
                model.ended.pop(run_id, None)
                model.begun.pop(run_id, None)
        elif step in ("compact", "tidy"):
            act = store.tidy if step == "tidy" else (lambda: compact(store))
            crashed(act, number)
        elif step == "bundle" and open_runs:
            rows, entries = ended([BY_ID[i] for i in open_runs], draw)
            pack = f"{random.Random(draw).getrandbits(48):012x}"
            crashed(
                lambda p=pack, r=rows, e=entries: store.write_bundle(p, r, e), number
            )  # type: ignore[misc]
            if store.ended_in(pack):
                model.ended |= dict.fromkeys(open_runs, draw)
                model.failed -= chosen
                model.begun = {i: x for i, x in model.begun.items() if i not in chosen}
        else:
            for run_id in open_runs:
                through = number % 3
                store.drop_parts(run_id)
                begin(store, BY_ID[run_id], draw, through)
                model.begun[run_id] = (draw, through)
                if step == "fail":
                    fail(store, BY_ID[run_id])
                    model.failed.add(run_id)
        assert_model(store, model)
    store.drop_unfinished_bundles()
    compact(store)
    assert_model(store, model)
    assert verify_quietly(store) == []


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3() as url:
        yield url


@pytest.mark.acceptance
def test_bundles_in_an_object_store_survive_crashes_as_those_in_a_folder(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    for name, value in {**keys, "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(locks, "RACE_SECONDS", 0.05)
    root = parse_location(f"s3://bucket/{tmp_path.name}?endpoint_override={server}")
    for k, act in enumerate((lambda store: compact(store), write_again)):
        store = new(root / f"{k}")
        mixed(store)
        for _ in crashes(lambda s=store, a=act: a(s), Remote):  # type: ignore[misc]
            assert_mixed(store)
            store.drop_unfinished_bundles()
            store.forget(None)
            mixed(store)
        compact(store)
        assert_mixed(store)
        assert len(files(store)) == 7


def write_again(store: Store) -> None:
    """A pack writes what another one has written as well."""
    store.write_bundle("0" * 12, *ended(RUNS[1:4]))


def test_rows_are_as_they_were_written_whatever_programs_read_them(
    store: Store,
) -> None:
    store.write_bundle(PACK, *ended(RUNS[:2]))
    store.write_bundle(OTHER, *ended(RUNS[2:4]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = pd.read_parquet(store.path / "rounds")
    read = read.sort_values(["run_id", "replicate", "round"], ignore_index=True)
    pd.testing.assert_frame_equal(read, store.rounds(), check_exact=True)
