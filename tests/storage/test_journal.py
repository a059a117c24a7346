"""The journal: results taken, saved, forgotten and rewritten; killed and damaged at random."""

import errno
import hashlib
import itertools
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from helpers import made
from helpers.crashes import Faults, died, lost_power
from helpers.folders import contents
from helpers.scripts import BLOCK
from hypothesis import given, settings
from hypothesis import strategies as st

from raysafl.quickstart import BASE
from raysafl.storage import journal
from raysafl.storage.journal import Journal
from raysafl.storage.ledger import CellEnd, Checkpoint, Status
from raysafl.storage.paths import StorageError
from raysafl.storage.rows import CLIENTS, ORDER, joined, of_cells
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.store import Store
from raysafl.storage.verify import repair, verify
from raysafl.sweep.definition import Sweep

DOC = (Path(__file__).parents[2] / "docs" / "sweep_folder.md").read_text()
RUNS = [BASE.replace(seed=10 * i, rounds=3, replicates=2) for i in range(3)]
# The two cells of each run, as runs of one seed.
RUN_OF = {cell.id: cell for run in RUNS for cell in run.split()}
CELLS = list(RUN_OF)
FINISHED, FAILED = Status.FINISHED, Status.FAILED
Facts = list[dict[str, object]]
pytestmark = pytest.mark.filterwarnings("ignore:.*left out:UserWarning")


def new(path: Path) -> Store:
    store = Store(path)
    store.create()
    runs = {(run.seed,): run for run in RUNS}
    store.write_manifest(Sweep("sweep", runs, axes=("seed",)).manifest())
    return store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new(tmp_path / "sweep")


def rows_of(cell: str, draw: int = 0, through: int = 3) -> pa.Table:
    return made.rows_of(RUN_OF[cell], draw, through)


def clients_of(cell: str, draw: int = 0) -> pa.Table:
    return made.clients_of(RUN_OF[cell], draw)


@dataclass(frozen=True)
class Held:
    """What is known of a cell: how it has ended, if it has, and which rows it has."""

    status: Status = FINISHED
    draw: int = 0
    through: int = 3


def take(store: Journal, cells: Sequence[str], held: Held = Held()) -> None:
    """Let cells end; those that finish keep a model."""
    ends: list[CellEnd] = []
    models = {}
    for cell in cells:
        content = f"{cell} {held.draw}".encode() if held.status is FINISHED else b""
        models |= {cell: content} if content else {}
        kept = hashlib.sha256(content).hexdigest() if content else ""
        ends += made.ends_of(RUN_OF[cell], held.status, kept=kept)
    rows = joined(rows_of(cell, held.draw, held.through) for cell in cells)
    clients = [clients_of(cell, held.draw) for cell in models]
    store.take(ends, rows, joined(clients, "clients"), models)


def begin(store: Journal, pack: str, cells: Sequence[str], held: Held) -> None:
    """Save what a pack saves that goes on."""
    saved = [made.checkpoint_of(RUN_OF[c], held.draw, held.through) for c in cells]
    far = {cell: own for one in saved for cell, own in one.cells.items()}
    rows = joined(one.rows for one in saved)
    store.save(pack, Checkpoint(far, rows, CLIENTS.empty_table(), b"x").to_bytes())


def facts(table: pa.Table, folder: str = "rounds") -> Facts:
    """Rows in the order of their keys, as plain Python."""
    found: Facts = table.sort_by(
        [(name, "ascending") for name in ORDER[folder]]
    ).to_pylist()
    return found


def shown(store: Journal, unended: bool = True) -> tuple[object, Facts, Facts]:
    """How cells have ended, and all rows."""
    found = store.results(unended=unended)
    assert not found.faults
    ends = {cell: end.status for cell, end in found.ends.items()}
    return ends, facts(found.rows), facts(found.clients, "clients")


def due(
    held: Mapping[str, Held], going_on: Mapping[str, Held] | None = None
) -> tuple[object, Facts, Facts]:
    """What `shown` is to return."""
    every = {**(going_on or {}), **held}
    rows = joined(rows_of(cell, own.draw, own.through) for cell, own in every.items())
    over = [
        clients_of(c, own.draw) for c, own in held.items() if own.status is FINISHED
    ]
    ends = {cell: own.status for cell, own in held.items()}
    return ends, facts(rows), facts(joined(over, "clients"), "clients")


def by_others(store: Store) -> Facts:
    """All rows as pandas reads them."""
    return facts(pa.Table.from_pandas(pd.read_parquet(store.path / "rounds")))


def parts(store: Store) -> list[str]:
    """The folders of all files that hold results, in order."""
    return sorted(f.parent.name for k in journal.PLACES for f in store.files(k))


def test_cells_that_end_count_with_their_rows_and_go_on_no_more(store: Store) -> None:
    begin(store, "a", CELLS[:3], Held(draw=4, through=2))
    take(store, CELLS[:2])
    ended = dict.fromkeys(CELLS[:2], Held())
    assert shown(store) == due(ended, {CELLS[2]: Held(draw=4, through=2)})
    assert list(store.results().going_on.cells) == CELLS[2:3]
    assert [f.what for f in verify(store)] == []
    # Read as runs, a cell that has ended is one of its run's.
    first, second, third = store.read().runs.values()
    assert [end.status for end in first.cells] == [FINISHED, FINISHED]
    assert [end.status for end in second.cells] == ["waiting", "waiting"]
    assert second.cells[0].reason == "after 2 of 3 rounds" and not third.has_begun
    rows = store.read(RUNS[0].id).rows
    keys = [(row["run_id"], row["replicate"], row["seed"]) for row in rows.to_pylist()]
    assert sorted(set(keys)) == [(RUNS[0].id, 0, 0), (RUNS[0].id, 1, 1)]


def test_the_newest_line_of_a_cell_counts_before_and_after_a_rewrite(
    store: Store,
) -> None:
    take(store, CELLS[:1], Held(FAILED, draw=5, through=1))
    take(store, CELLS[:2], Held(draw=3))
    take(store, CELLS[1:3], Held(draw=2))
    held = {CELLS[0]: Held(draw=3)} | dict.fromkeys(CELLS[1:3], Held(draw=2))
    assert shown(store) == due(held)
    store.rewrite()
    assert shown(store) == due(held)
    assert parts(store) == ["clients", *3 * ["models"], "rounds"]
    before = contents(store.path)
    store.rewrite()
    assert contents(store.path) == before
    assert by_others(store) == due(held)[1]


def test_a_failed_cell_has_its_rows_and_goes_on_from_its_checkpoint_again(
    store: Store,
) -> None:
    begin(store, "a", CELLS[:1], Held(through=1))
    take(store, CELLS[:1], Held(FAILED, through=2))
    store.tidy()
    assert shown(store) == due({CELLS[0]: Held(FAILED, through=2)})
    store.rewrite({CELLS[0]})
    assert shown(store) == due({}, {CELLS[0]: Held(through=1)})


def test_of_a_cell_in_two_checkpoints_the_farther_one_counts(store: Store) -> None:
    begin(store, "a", CELLS[:2], Held(draw=1, through=1))
    begin(store, "b", CELLS[1:3], Held(draw=2, through=2))
    far = {cell: Held(draw=2, through=2) for cell in CELLS[1:3]}
    assert shown(store) == due({}, {CELLS[0]: Held(draw=1, through=1), **far})
    store.file("open", "b.ckpt").write_bytes(b"torn")
    with pytest.warns(UserWarning, match=r"b\.ckpt cannot be read and is left out"):
        assert shown(store) == due(
            {}, dict.fromkeys(CELLS[:2], Held(draw=1, through=1))
        )


def test_pandas_reads_a_row_for_each_cell_and_round_whatever_was_done(
    store: Store,
) -> None:
    take(store, CELLS[:1])
    take(store, CELLS[1:2], Held(FAILED, through=1))
    begin(store, "a", CELLS[1:2], Held(through=1))
    # As an attempt begins with failed cells, and goes on with more seeds.
    store.rewrite({CELLS[1]})
    take(store, CELLS[1:4])
    assert by_others(store) == due(dict.fromkeys(CELLS[:4], Held()))[1]
    store.forget({CELLS[2]})
    held = dict.fromkeys([*CELLS[:2], CELLS[3]], Held())
    assert by_others(store) == due(held)[1] == shown(store)[1]
    assert parts(store).count("models") == 3 and verify(store) == []
    store.forget(None)
    assert parts(store) == [] and shown(store) == due({})


@pytest.mark.parametrize(("large", "most"), [(64_000_000, 1), (200_000, 12)])
def test_many_parts_become_few_and_none_of_these_is_too_large(
    store: Store, large: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "LARGE_PART", large)
    for draw in range(130):
        # Of one cell in each part a later one counts.
        cells = ["again", *(f"{draw}-{k}" for k in range(9))]
        rows = pa.concat_tables([rows_of(CELLS[0], draw)] * len(cells))
        rows = rows.set_column(0, "cell", pa.array(np.repeat(cells, 3)))
        ends = [CellEnd(cell=cell, status=FAILED) for cell in cells]
        store.take(ends, rows, CLIENTS.empty_table())
        assert len(store.files("rounds")) <= journal.MOST_SMALL_PARTS
    store.rewrite()
    sizes = [file.stat().st_size for file in store.files("rounds")]
    assert len(sizes) <= most and max(sizes) <= large
    assert len(store.results().rows) == 3 * (130 * 9 + 1) == len(by_others(store))


def test_a_part_that_is_lost_does_not_keep_others_from_being_put_together(
    store: Store,
) -> None:
    for cell in CELLS[:4]:
        take(store, [cell])
    first = store.part("rounds", store.ledger()[CELLS[0]].rounds)
    first.unlink()
    store.rewrite()
    assert len(store.files("rounds")) == 1
    assert store.results().faults == {CELLS[0]: f"rounds/{first.name} is missing"}
    assert store.read().runs[RUNS[0].id].cells[0].reason.startswith("damaged: rounds/")


def mixed(store: Store) -> tuple[dict[str, Held], dict[str, Held]]:
    """Three cells that have ended, one of them twice, one failed, and two that go on."""
    take(store, CELLS[:2], Held(FAILED, draw=4, through=2))
    take(store, CELLS[:3])
    begin(store, "a", CELLS[3:5], Held(through=1))
    take(store, CELLS[3:4], Held(FAILED, through=2))
    begin(store, "b", CELLS[5:], Held(draw=1, through=2))
    held = {**dict.fromkeys(CELLS[:3], Held()), CELLS[3]: Held(FAILED, through=2)}
    return held, {CELLS[4]: Held(through=1), CELLS[5]: Held(draw=1, through=2)}


def without(held: Mapping[str, Held], *cells: str) -> dict[str, Held]:
    return {cell: own for cell, own in held.items() if cell not in cells}


class Act(NamedTuple):
    """Something that is done in a folder.

    Args:
        before: the folder, of which others are copies.
        now: such a copy.
        do: does it in this one.
        states: what the folder shows before and afterwards.
    """

    before: Store
    now: Store
    do: Callable[[], None]
    states: tuple[object, object]

    def renew(self) -> None:
        """Make the copy anew."""
        shutil.rmtree(self.now.path, ignore_errors=True)
        shutil.copytree(self.before.path, self.now.path)

    def has_left(self, *states: object) -> bool:
        """Say whether the copy shows one of some states, and can be mended by doing it again."""
        is_known = shown(self.now, unended=False) in states
        self.do()
        return is_known and shown(self.now, unended=False) == self.states[1]


@pytest.fixture(
    params=["the first take", "take", "rewrite", "rewrite without", "forget"]
)
def act(request: pytest.FixtureRequest, tmp_path: Path) -> Act:
    before, now = new(tmp_path / "before"), Store(tmp_path / "now")
    held = {} if request.param == "the first take" else mixed(before)[0]
    more = held | dict.fromkeys(CELLS[3:5], Held())
    acts: dict[str, tuple[Callable[[], None], dict[str, Held]]] = {
        "the first take": (lambda: take(now, CELLS[3:5]), more),
        "take": (lambda: take(now, CELLS[3:5]), more),
        "rewrite": (now.rewrite, held),
        "rewrite without": (lambda: now.rewrite({CELLS[3]}), without(held, CELLS[3])),
        "forget": (lambda: now.forget({CELLS[0], CELLS[4]}), without(held, CELLS[0])),
    }
    do, after = acts[request.param]
    made = Act(before, now, do, (due(held), due(after)))
    made.renew()
    return made


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_after_a_crash_or_a_power_cut_the_folder_is_as_before_or_after_the_act(
    act: Act, seed: int | None
) -> None:
    """Writes that were not synced are lost or torn, and renames may be undone."""
    number, failed = 0, True
    while failed:
        number += 1
        if seed is None:
            failed = died(act.do, number)
        else:
            ledger = act.now.path / "ledger.jsonl"
            failed = lost_power(act.do, number, seed, ledger)
        assert act.has_left(*act.states[not failed :])
        act.now.tidy()
        assert not [finding for finding in verify(act.now) if finding.cell]
        act.renew()
    assert number > 8


@pytest.mark.parametrize(
    ("code", "text"), [(errno.EIO, "Input/output error"), (errno.ENOSPC, "is full")]
)
def test_an_error_at_any_operation_is_told_and_leaves_the_folder_before_or_after_it(
    act: Act, code: int, text: str
) -> None:
    ledger = act.now.path / "ledger.jsonl"
    for number in itertools.count(1):
        error = OSError(code, os.strerror(code), str(act.now.path))
        before = ledger.read_bytes() if ledger.exists() else b""
        try:
            with Faults(number, error).happen():
                act.do()
            break
        except StorageError as told:
            assert text in str(told) or "cannot delete" in str(told)
        after = ledger.read_bytes() if ledger.exists() else b""
        assert after == before or shown(act.now, unended=False) == act.states[1]
        assert act.has_left(*act.states)
        act.renew()
    assert number > 8


def test_a_torn_last_line_counts_not_and_the_next_one_takes_its_place(
    store: Store,
) -> None:
    take(store, CELLS[:2])
    take(store, CELLS[2:3])
    ledger = store.path / "ledger.jsonl"
    whole = ledger.read_bytes()
    begin_of_last = whole[:-1].rindex(b"\n") + 1
    for end in (begin_of_last + 1, len(whole) - 30, len(whole) - 1):
        ledger.write_bytes(whole[:end])
        assert shown(store) == due(dict.fromkeys(CELLS[:2], Held()))
        assert any("no cell of the ledger names it" in f.what for f in verify(store))
        take(store, CELLS[2:3])
        assert ledger.read_bytes() == whole and verify(store) == []
    # Of a long line more than one block is read.
    ledger.write_bytes(whole + b"x" * 200_000)
    take(store, CELLS[3:4])
    assert shown(store) == due(dict.fromkeys(CELLS[:4], Held()))


chosen = st.sets(st.sampled_from(CELLS), min_size=1).map(sorted)
steps = st.tuples(
    st.sampled_from(
        ["take", "take", "fail", "save", "rewrite", "again", "forget", "tidy"]
    ),
    chosen,
    st.integers(1, 25),
)


@dataclass(frozen=True)
class Model:
    """What a folder should hold: cells that have ended, and the checkpoint of each pack."""

    held: Mapping[str, Held]
    packs: Mapping[str, tuple[Sequence[str], Held]]

    def shown(self) -> tuple[object, Facts, Facts]:
        """What the folder is to show: of a cell in two packs the first farthest one."""
        going_on: dict[str, Held] = {}
        for _, (cells, own) in sorted(self.packs.items()):
            for cell in cells:
                if cell not in going_on or own.through > going_on[cell].through:
                    going_on[cell] = own
        return due(self.held, going_on)

    def without(self, cells: Sequence[str]) -> "Model":
        """Return the model when these cells have been forgotten."""
        packs = {
            p: ([c for c in m if c not in cells], own)
            for p, (m, own) in self.packs.items()
        }
        held = {cell: own for cell, own in self.held.items() if cell not in cells}
        return Model(held, {p: own for p, own in packs.items() if own[0]})

    def tidied(self) -> "Model":
        """Return the model without packs all of whose cells are decided."""
        over = {cell for cell, own in self.held.items() if own.status.decided}
        return replace(
            self, packs={p: o for p, o in self.packs.items() if {*o[0]} - over}
        )


def assert_like_a_model(
    tmp_path_factory: pytest.TempPathFactory, done: list[tuple[str, list[str], int]]
) -> None:
    store = new(tmp_path_factory.mktemp("model") / "sweep")
    model = Model({}, {})
    for draw, (step, cells, number) in enumerate(done):
        decided = {c for c, own in model.held.items() if own.status.decided}
        left = [cell for cell in cells if cell not in decided]
        own = Held(
            FINISHED if step == "take" else FAILED,
            draw,
            3 if step == "take" else draw % 3,
        )
        act: Callable[[], object] = store.tidy
        after = model
        if step in ("take", "fail"):
            act = lambda c=left, o=own: take(store, c, o)  # type: ignore[misc]  # noqa: E731
            after = replace(model, held={**model.held, **dict.fromkeys(left, own)})
        elif step == "save":
            act = lambda c=cells, o=own: begin(store, c[0], c, o)  # type: ignore[misc]  # noqa: E731
            after = replace(model, packs={**model.packs, cells[0]: (cells, own)})
        elif step in ("rewrite", "again"):
            gone = set(left) if step == "again" else set()
            act = lambda g=gone: store.rewrite(g)  # type: ignore[misc]  # noqa: E731
            held = {c: o for c, o in model.held.items() if c not in gone}
            after = replace(model, held=held).tidied()
        elif step == "forget":
            act = lambda c=cells: store.forget(set(c))  # type: ignore[misc]  # noqa: E731
            after = model.without(cells)
        is_dead = died(act, number)
        if is_dead and step == "forget":
            others = set(CELLS) - set(cells)
            assert facts(of_cells(store.results().rows, others)) == after.shown()[1]
            act()
        if is_dead and shown(store) == model.shown() != after.shown():
            after = model
        model = after
        assert shown(store) == model.shown()
    store.rewrite()
    assert shown(store) == model.tidied().shown()
    assert not [finding for finding in verify(store) if finding.cell or finding.is_line]
    repair(store, verify(store))
    assert verify(store) == [] and shown(store) == model.tidied().shown()


acts = given(st.lists(steps, max_size=10))
test_whatever_is_done_and_wherever_it_is_killed_the_folder_reads_as_it_should = (
    settings(max_examples=25)(acts(assert_like_a_model))
)
test_so_it_does_after_many_more_acts = pytest.mark.acceptance(
    settings(max_examples=200)(acts(assert_like_a_model))
)


@pytest.mark.parametrize("meanwhile", ["rewrite", "take"])
def test_a_reader_misses_nothing_while_results_are_written(
    store: Store, meanwhile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts are replaced, or a cell ends, after the checkpoints or the ledger were read."""
    take(store, CELLS[:2])
    take(store, CELLS[2:4])
    begin(store, "a", CELLS[4:5], Held())
    done = []
    name = "ledger" if meanwhile == "rewrite" else "going_on"
    original = getattr(Journal, name)

    def reading(self: Journal, *arguments: Any) -> object:
        found = original(self, *arguments)
        if not done:
            done.append(True)
            store.rewrite() if meanwhile == "rewrite" else take(store, CELLS[4:5])
        return found

    monkeypatch.setattr(Journal, name, reading)
    assert shown(store)[1] == due(dict.fromkeys(CELLS[:5], Held()))[1] and done


def test_names_and_links_that_lead_out_of_the_folder_are_refused(
    store: Store, tmp_path: Path
) -> None:
    for name in ("../x", "a/b", "..", ""):
        with pytest.raises(ValueError, match="cannot be the name of a file"):
            store.file("open", name)
    (tmp_path / "secret.ckpt").write_bytes(b"x")
    (store.path / "open").mkdir()
    (store.path / "open" / "a.ckpt").symlink_to(tmp_path / "secret.ckpt")
    with pytest.raises(ValueError, match="is a link out of"):
        store.results()


def test_the_queries_of_the_documentation_name_the_runs_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new(tmp_path / "results" / "quickstart")
    runs = {("FedAvg", run.seed): run for run in RUNS}
    store.write_manifest(Sweep("sweep", runs, axes=("algorithm", "s")).manifest())
    mixed(store)
    store.rewrite()
    write_runs_table(store)
    monkeypatch.chdir(tmp_path)
    section = DOC.split("## What counts", 1)[1].split("\n## ", 1)[0]
    blocks = {kind: code for reason, kind, code in BLOCK.findall(section) if not reason}
    names: dict[str, pd.DataFrame] = {}
    exec(blocks["python"], names)
    keys = ["label.algorithm", "label.s", "replicate"]
    last = names["answer"].groupby(keys)["round"].max()
    by_sql = duckdb.sql(blocks["sql"]).df().set_index(keys)["last_round"]
    pd.testing.assert_series_equal(by_sql, last, check_names=False, check_dtype=False)
    assert last.tolist() == [2, 2, 2, 1]
