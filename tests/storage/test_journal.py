"""The journal: results taken, saved, forgotten and rewritten; killed and damaged at random."""

import errno
import hashlib
import io
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.crashes import Crash, Disk, power_cut
from hypothesis import given, settings
from hypothesis import strategies as st

from raysafl.quickstart import BASE
from raysafl.storage import files, journal
from raysafl.storage.checkpoint import Checkpoint, OpenCell
from raysafl.storage.files import read_parquet
from raysafl.storage.journal import Journal
from raysafl.storage.ledger import CellEnd, Status
from raysafl.storage.paths import StorageError
from raysafl.storage.rows import CLIENTS, ORDER, ROUNDS, joined, of_cells
from raysafl.storage.store import Store
from raysafl.storage.verify import repair, verify
from raysafl.sweep.definition import Sweep

DOC = (Path(__file__).parents[2] / "docs" / "results.md").read_text()
RUNS = [BASE.replace(seed=10 * i, rounds=3, replicates=2) for i in range(3)]
# Two cells of each run, with their seeds.
SEEDS = dict(
    (cell, run.seed + r) for run in RUNS for r, cell in enumerate(run.cell_ids)
)
CELLS = list(SEEDS)
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
    """The rows of a cell up to a round; another `draw` gives other numbers."""
    rng = np.random.default_rng([SEEDS[cell], draw])
    fixed = {"cell": cell, "seed": SEEDS[cell], "kind": "client", "trained": [True]}
    rows: list[dict[str, Any]] = [
        {
            **fixed,
            "round": i,
            "cohorts": [rng.integers(0, 9, 3).tolist()],
            "test_accuracy": float(rng.random()),
        }
        for i in range(3)
    ]
    return pa.Table.from_pylist(rows[:through], schema=ROUNDS)


def clients_of(cell: str, draw: int = 0) -> pa.Table:
    """How a cell serves its clients; another `draw` gives other numbers."""
    values = np.random.default_rng([SEEDS[cell], draw, 1]).random(3).tolist()
    fixed = {"cell": cell, "seed": SEEDS[cell], "round": 2, "samples": 7}
    rows = [{**fixed, "client": i, "quality": v} for i, v in enumerate(values)]
    return pa.Table.from_pylist(rows, schema=CLIENTS)


@dataclass(frozen=True)
class Held:
    """What is known of a cell: how it has ended, if it has, and which rows it has."""

    status: Status = FINISHED
    draw: int = 0
    through: int = 3


def take(store: Journal, cells: Sequence[str], held: Held = Held()) -> None:
    """Let cells end; those that finish keep a model."""
    is_over = held.status is FINISHED
    models = {c: f"{c} {held.draw}".encode() for c in cells if is_over}
    ends = []
    for cell in cells:
        digest = hashlib.sha256(models[cell]).hexdigest() if is_over else ""
        ends.append(
            CellEnd(cell=cell, seed=SEEDS[cell], status=held.status, kept=digest)
        )
    rows = joined(rows_of(cell, held.draw, held.through) for cell in cells)
    clients = [clients_of(cell, held.draw) for cell in cells if is_over]
    store.take(ends, rows, joined(clients, "clients"), models)


def begin(store: Journal, pack: str, cells: Sequence[str], held: Held) -> None:
    """Save what a pack saves that goes on."""
    far = {"round": held.through, "rounds": 3, "started": "2026-01-01", "seconds": 1.0}
    known = {cell: OpenCell(seed=SEEDS[cell], **far) for cell in cells}  # type: ignore[arg-type]
    rows = joined(rows_of(cell, held.draw, held.through) for cell in cells)
    state = Checkpoint(known, rows, CLIENTS.empty_table(), b"state")
    store.save(pack, state.to_bytes())


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
    assert shown(store) == due(held) and parts(store) == [
        "clients",
        *3 * ["models"],
        "rounds",
    ]
    before = {
        file: file.read_bytes() for file in store.path.glob("**/*") if file.is_file()
    }
    store.rewrite()
    assert before == {f: f.read_bytes() for f in store.path.glob("**/*") if f.is_file()}
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


def test_a_cell_without_rows_has_a_line_alone(store: Store) -> None:
    take(store, CELLS[:1], Held(FAILED, through=0))
    assert parts(store) == [] and shown(store) == due(
        {CELLS[0]: Held(FAILED, through=0)}
    )


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


@pytest.mark.parametrize("large", [64_000_000, 40_000])
def test_many_parts_become_few_and_none_of_these_is_too_large(
    store: Store, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "LARGE_PART", large)
    for draw in range(130):
        take(store, [CELLS[draw % 3]], Held(draw=draw))
        cells = [f"{draw}-{k}" for k in range(3)]
        rows = joined([rows_of(CELLS[0], draw)] * 3)
        rows = rows.set_column(0, "cell", pa.array(np.repeat(cells, 3)))
        store.take(
            [CellEnd(cell=c, status=FAILED) for c in cells], rows, CLIENTS.empty_table()
        )
        assert len(store.files("rounds")) <= journal.MOST_SMALL_PARTS
    store.rewrite()
    sizes = [file.stat().st_size for file in store.files("rounds")]
    assert len(sizes) <= (1 if large > 1_000_000 else 12) and max(sizes) <= large
    assert len(store.results().rows) == 3 * (3 + 3 * 130)
    assert len([f for f in store.path.glob("[!m]*/*")] + sizes) < 26


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


# Operations on files that fail, are killed, or lose their power.


class Appended(FileIO):
    """The ledger, opened to append lines; it says how much of it is on the disk."""

    tick: ClassVar[Callable[[], None]]
    # The number of bytes that were synced of the ledger, and all of them.
    synced: ClassVar[int] = 0

    def truncate(self, size: int | None = None) -> int:
        self.tick()
        return super().truncate(size)

    def write(self, lines: Any) -> int:
        Appended.synced = os.fstat(self.fileno()).st_size
        try:
            self.tick()
        except BaseException:
            super().write(lines[: len(lines) // 2])
            raise
        return super().write(lines)


@contextmanager
def failing(number: int, error: BaseException) -> Iterator[None]:
    """Let the operation with this number that changes a file raise an error, once.

    It leaves half of what it was writing.
    """
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1
        if count == number:
            raise error

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        def operation(subject: Any, *args: Any, **named: Any) -> Any:
            if isinstance(subject, int):  # fsync
                tick()
                Appended.synced = os.fstat(subject).st_size
            elif ".lock" not in str(subject):
                try:
                    tick()
                except BaseException:
                    if original is write_bytes:
                        original(subject, args[0][: len(args[0]) // 2])
                    raise
            return original(subject, *args, **named)

        return operation

    write_bytes, opened = Path.write_bytes, Path.open

    def opening(path: Path, mode: str = "r", *args: Any, **named: Any) -> Any:
        if mode != "a+b":
            return opened(path, mode, *args, **named)
        disk = getattr(files._sync, "__self__", None)
        if isinstance(disk, Disk) and not path.exists():
            disk.note(path)
        return Appended(path, mode)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Appended, "tick", staticmethod(tick), raising=False)
        for name in ("write_bytes", "replace", "unlink"):
            patch.setattr(Path, name, wrapped(getattr(Path, name)))
        patch.setattr(Path, "open", opening)
        patch.setattr(os, "fsync", wrapped(os.fsync))
        yield


def died(act: Callable[[], object], number: int) -> bool:
    """Do something, and die at the operation with this number, if there is one."""
    try:
        with failing(number, Crash()):
            act()
    except Crash:
        return True
    return False


def torn(
    act: Callable[[], object], number: int, rng: random.Random, ledger: Path
) -> bool:
    """Do something until the power fails; what was not synced is lost, torn or zero."""

    def dying() -> None:
        with failing(number, Crash()):
            act()
            # The power fails when all is done, too.
            raise Crash

    Appended.synced = ledger.stat().st_size if ledger.exists() else 0
    inode = ledger.stat().st_ino if ledger.exists() else 0
    power_cut(dying, 10**6, rng)
    if ledger.exists() and ledger.stat().st_ino == inode:
        content = ledger.read_bytes()
        lost = content[Appended.synced :]
        kept = rng.randrange(len(lost) + 1)
        rest = lost[:kept] if rng.random() < 0.5 else bytes(kept)
        ledger.write_bytes(content[: Appended.synced] + rest)
    return number < 0


def renewed(before: Store, now: Store) -> None:
    shutil.rmtree(now.path, ignore_errors=True)
    shutil.copytree(before.path, now.path)


def mixed(store: Store) -> tuple[dict[str, Held], dict[str, Held]]:
    """Three cells that have ended, one of them twice, one failed, and two that go on."""
    take(store, CELLS[:2], Held(FAILED, draw=4, through=2))
    take(store, CELLS[:3])
    begin(store, "a", CELLS[3:5], Held(through=1))
    take(store, CELLS[3:4], Held(FAILED, through=2))
    begin(store, "b", CELLS[5:], Held(draw=1, through=2))
    held = {**dict.fromkeys(CELLS[:3], Held()), CELLS[3]: Held(FAILED, through=2)}
    return held, {CELLS[4]: Held(through=1), CELLS[5]: Held(draw=1, through=2)}


Act = Callable[[Store], None]
# What is done to the folder of `mixed`, and the cells that have ended afterwards.
ACTS: dict[str, tuple[Act, Callable[[dict[str, Held]], dict[str, Held]]]] = {
    "take": (
        lambda s: take(s, CELLS[3:5]),
        lambda h: h | dict.fromkeys(CELLS[3:5], Held()),
    ),
    "rewrite": (Store.rewrite, lambda h: h),
    "rewrite without": (
        lambda s: s.rewrite({CELLS[3]}),
        lambda h: {c: own for c, own in h.items() if c != CELLS[3]},
    ),
    "forget": (
        lambda s: s.forget({CELLS[0], CELLS[4]}),
        lambda h: {c: own for c, own in h.items() if c != CELLS[0]},
    ),
}


@pytest.fixture(params=ACTS)
def disturbed(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Store, Store, Act, dict[str, Held], dict[str, Held]]]:
    """A folder and a copy of it; what is done to this one; ended cells before and after."""
    before, now = new(tmp_path / "before"), Store(tmp_path / "now")
    held, _ = mixed(before)
    renewed(before, now)
    act, after = ACTS[request.param]
    yield before, now, act, held, after(held)


def test_a_crash_at_any_operation_leaves_the_folder_before_or_after_it(
    disturbed: tuple[Store, Store, Act, dict[str, Held], dict[str, Held]],
) -> None:
    before, now, act, held, after = disturbed
    number, seen = 1, []
    while died(lambda: act(now), number):
        seen.append(shown(now, unended=False))
        assert seen[-1] in (due(held), due(after))
        act(now)
        now.tidy()
        assert shown(now, unended=False) == due(after)
        assert [f for f in verify(now) if f.cell or f.is_line] == []
        renewed(before, now)
        number += 1
    assert number > 8 and seen[0] == due(held) and seen[-1] == due(after)


def test_an_error_at_any_operation_is_told_and_leaves_the_folder_before_or_after_it(
    disturbed: tuple[Store, Store, Act, dict[str, Held], dict[str, Held]],
) -> None:
    before, now, act, held, after = disturbed
    for code, text in ((errno.EIO, "Input/output error"), (errno.ENOSPC, "full")):
        number, failed = 0, True
        while failed:
            number += 1
            try:
                with failing(number, OSError(code, os.strerror(code), str(now.path))):
                    act(now)
                failed = False
            except StorageError as error:
                assert text in str(error) or "cannot delete" in str(error)
            assert shown(now, unended=False) in (due(held), due(after))
            act(now)
            assert shown(now, unended=False) == due(after)
            renewed(before, now)
        assert number > 8


@pytest.mark.parametrize("seed", range(3))
def test_after_a_power_cut_the_folder_is_as_before_or_after_the_act(
    disturbed: tuple[Store, Store, Act, dict[str, Held], dict[str, Held]], seed: int
) -> None:
    """Writes that were not synced are lost or torn, and renames may be undone."""
    before, now, act, held, after = disturbed
    rng, number, is_over = random.Random(seed), 0, False
    while not is_over:
        number += 1
        is_over = not died(lambda: act(now), number)
        renewed(before, now)
        torn(lambda: act(now), number, rng, now.path / "ledger.jsonl")
        states = (due(after),) if is_over else (due(held), due(after))
        assert shown(now, unended=False) in states
        act(now)
        assert shown(now, unended=False) == due(after)
        renewed(before, now)
    assert number > 8


def test_the_first_line_of_a_ledger_survives_a_power_cut(tmp_path: Path) -> None:
    for seed in range(8):
        store = new(tmp_path / f"{seed}")
        ledger = store.path / "ledger.jsonl"
        torn(lambda s=store: take(s, CELLS[:1]), 99, random.Random(seed), ledger)  # type: ignore[misc]
        assert shown(store) == due({CELLS[0]: Held()})


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
        assert any(f.is_line and "has no end" in f.what for f in verify(store))
        take(store, CELLS[2:3])
        assert ledger.read_bytes() == whole and verify(store) == []
    # Of a long line more than one block is read.
    ledger.write_bytes(whole + b"x" * 200_000)
    take(store, CELLS[3:4])
    assert shown(store) == due(dict.fromkeys(CELLS[:4], Held()))


def test_lines_that_do_not_fit_on_the_disk_leave_the_ledger_as_it_was(
    store: Store,
) -> None:
    take(store, CELLS[:1])
    ledger = store.path / "ledger.jsonl"
    before = ledger.read_bytes()
    full = OSError(errno.ENOSPC, "No space left on device", str(ledger))
    for number in range(1, 30):
        if ledger.read_bytes() != before:
            break
        with (
            failing(number, full),
            pytest.raises(StorageError, match="is full") as error,
        ):
            take(store, CELLS[1:2])
            raise StorageError("is full of what was taken")
        assert (ledger.read_bytes() == before) is ("taken" not in str(error.value))
    assert number > 8 and shown(store) == due(dict.fromkeys(CELLS[:2], Held()))


chosen = st.sets(st.sampled_from(CELLS), min_size=1).map(sorted)
steps = st.tuples(
    st.sampled_from(
        ["take", "take", "fail", "save", "rewrite", "again", "forget", "tidy"]
    ),
    chosen,
    st.integers(1, 25),
)


@settings(max_examples=25)
@given(st.lists(steps, max_size=8))
def test_whatever_is_done_and_wherever_it_is_killed_the_folder_reads_as_it_should(
    tmp_path_factory: pytest.TempPathFactory, done: list[tuple[str, list[str], int]]
) -> None:
    """Cells begin, fail, end, and are rewritten and forgotten, compared with a model."""
    assert_like_a_model(tmp_path_factory, done)


@pytest.mark.acceptance
@settings(max_examples=200)
@given(st.lists(steps, max_size=12))
def test_so_it_does_after_many_more_acts(
    tmp_path_factory: pytest.TempPathFactory, done: list[tuple[str, list[str], int]]
) -> None:
    assert_like_a_model(tmp_path_factory, done)


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


# Damage.

KINDS = ["delete", "cut", "flip", "swap", "foreign", "double", "edit", "drop", "repeat"]


def spoil(folder: Path, other: Path, rng: random.Random) -> str:
    """Do one kind of damage to one file; return which."""
    found = sorted(f for f in folder.glob("**/*") if f.is_file() and f.name != ".lock")
    file, kind = rng.choice(found), rng.choice(KINDS)
    content = bytearray(file.read_bytes())
    beside = sorted(f for f in file.parent.iterdir() if f.is_file())
    if kind == "delete" and file.name != "manifest.json":
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
        theirs = sorted((other / file.relative_to(folder)).parent.iterdir())
        file.write_bytes(rng.choice([f for f in theirs if f.is_file()]).read_bytes())
    elif kind == "double":
        file.with_name(f"{'0' * 24}{file.suffix}").write_bytes(content)
    elif file.suffix == ".parquet":
        edit(file, kind, rng)
    return f"{kind} {file.name}"


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
    """A folder of five cells that have ended and one that goes on, and one of other draws."""
    made = []
    for draw in (0, 1):
        one = new(tmp_path_factory.mktemp("undamaged") / "sweep")
        for cells in (CELLS[:2], CELLS[2:4], CELLS[4:5]):
            take(one, cells, Held(draw=draw))
        begin(one, "a", CELLS[5:], Held(draw=draw, through=2))
        made.append(one)
    return made


@pytest.mark.parametrize(
    "seed",
    [
        seed if seed < 16 else pytest.param(seed, marks=pytest.mark.acceptance)
        for seed in range(100)
    ],
)
def test_no_damage_is_shown_as_a_right_number_and_the_way_back_loses_nothing(
    seed: int, undamaged: list[Store], tmp_path: Path
) -> None:
    rng = random.Random(seed)
    store, (before, other) = Store(tmp_path / "sweep"), undamaged
    renewed(before, store)
    if seed % 3 == 0:
        store.rewrite()
    done = [spoil(store.path, other.path, rng) for _ in range(seed % 2 + 1)]
    right = facts(joined(rows_of(cell) for cell in CELLS))
    clients = facts(joined((clients_of(cell) for cell in CELLS), "clients"), "clients")
    found = store.results()
    of_ended = facts(of_cells(found.rows, found.ends))
    assert of_ended == [row for row in right if row["cell"] in found.ends], done
    assert facts(found.clients, "clients") == [
        row for row in clients if row["cell"] in found.ends
    ], done
    assert all(row in right for row in facts(found.rows)) or "foreign" in str(done)
    is_named = bool(verify(store))
    assert is_named or shown(store) == shown(before) or "double" in str(done), done

    # The way back: what is damaged is forgotten, and computed again.
    repair(store, verify(store))
    renewed_manifest = before.path / "manifest.json"
    shutil.copy(renewed_manifest, store.path)
    for stray in [f for f in store.path.glob("*/*") if f.stem == "0" * 24]:
        stray.unlink(missing_ok=True)
    assert [f for f in verify(store) if "no file of raysafl's" not in f.what] == [], (
        done
    )
    take(store, [cell for cell in CELLS if cell not in store.ledger()])
    store.tidy()
    assert shown(store) == due(dict.fromkeys(CELLS, Held()))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.EIO, "Input/output error"), StorageError),
        (pa.ArrowMemoryError("malloc of 64 bytes failed"), MemoryError),
        (OSError("no magic bytes"), ValueError),
    ],
)
def test_a_disk_that_fails_and_too_little_memory_are_no_damage(
    error: Exception, told: type[Exception]
) -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise error

    with pytest.raises(told):
        read_parquet(Failing(b"PAR1" * 9))


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


def test_the_queries_of_the_documentation_read_a_folder_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new(tmp_path / "results" / "quickstart")
    mixed(store)
    store.rewrite()
    monkeypatch.chdir(tmp_path)
    blocks = {
        kind: next(
            block
            for block in (
                own.split("```", 1)[0] for own in DOC.split(f"```{kind}\n")[1:]
            )
            if "ledger.jsonl" in block
        )
        for kind in ("sql", "python")
    }
    names: dict[str, pd.DataFrame] = {}
    exec(blocks["python"], names)
    answer = names["answer"]
    by_sql = duckdb.sql(blocks["sql"]).df()
    pd.testing.assert_frame_equal(by_sql, answer, check_dtype=False)
    expected = {cell: end.status.value for cell, end in store.ledger().items()}
    assert dict(zip(answer["cell"], answer["status"], strict=True)) == expected
