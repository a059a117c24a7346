"""`raysafl status`: how far a sweep is, from its folder alone."""

import datetime
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest
from helpers.commands import call_here
from helpers.sweeps_here import go

from raysafl import FedAvg, Hardware, LocalTraining, Run, Sweep
from raysafl.algorithms import Key, Round, State
from raysafl.storage.ledger import LedgerEntry, Status
from raysafl.storage.manifest import Entry, Manifest, Table
from raysafl.storage.rows import ROUNDS
from raysafl.storage.status import SweepStatus, status_of, tell_left
from raysafl.storage.store import Store
from raysafl.sweep.open_pack import News
from raysafl.sweep.packs import Pack
from raysafl.sweep.progress import Display
from raysafl.sweep.watch import Watch


class Looking(FedAvg):
    """FedAvg that looks at the folder in some of its rounds, or is interrupted."""

    folder: ClassVar[Path]
    at: ClassVar[Sequence[int]] = ()
    raises: ClassVar[bool] = False
    error: ClassVar[type[BaseException]] = KeyboardInterrupt
    seen: ClassVar[list[SweepStatus]] = []

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        # The size of a pack is estimated from a model of few parameters.
        if key.round in self.at and len(state.w_P) > 100:
            self.seen.append(status_of(Store(self.folder)))
            if self.raises:
                raise self.error
        return super().round(state, ids, key)


@pytest.fixture
def sweep(tiny: Run, tmp_path: Path) -> Iterator[Sweep]:
    Looking.folder = tmp_path / "s"
    Looking.at = (2,)
    Looking.raises = False
    Looking.seen.clear()
    runs = [tiny.replace(algorithm=Looking(), seed=10 * k) for k in range(3)]
    yield Sweep("watched", {(k,): run for k, run in enumerate(runs)}, axes=("number",))


ALONE = {"try_first": False, "flush_seconds": 0.0, "hardware": Hardware(pack=1)}


def test_a_sweep_that_runs_is_told_by_runs_replicates_and_rounds(sweep: Sweep) -> None:
    go(sweep, Looking.folder, **ALONE)
    # The second of its two replicates looks in the same round.
    first, _, second, *_ = Looking.seen
    assert first.is_running and first.at_work == 1
    assert first.runs == {"waiting": 2, "running": 1}
    assert first.replicates == {"running": 2}
    assert (first.rounds, first.rounds_left, first.rows) == (4, 20, 4)
    assert second.runs == {"waiting": 1, "running": 1, "finished": 1}
    assert second.replicates == {"running": 2, "finished": 2}
    assert (second.rounds, second.rounds_left, second.rows) == (12, 12, 12)
    assert second.rate


def test_an_interrupted_sweep_and_one_that_has_ended_are_told_from_one_that_runs(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    Looking.raises = True
    with pytest.raises(KeyboardInterrupt):
        go(sweep, Looking.folder, **ALONE)
    code, said = call_here(monkeypatch, "status", str(Looking.folder))
    assert code == 0
    assert "no process is writing to it" in said
    assert "runs: 2 waiting, 1 interrupted" in said
    assert "`raysafl run` goes on with it" in said
    Looking.raises = False
    go(sweep, Looking.folder, stale="keep", **ALONE)
    ended = status_of(Store(Looking.folder))
    assert not ended.is_running
    assert ended.runs == {"finished": 3} and ended.rounds_left == 0
    assert ended.lines()[1:3] == ["runs: 3 finished", "replicates: 6 finished"]
    assert ended.lines()[3].startswith("rounds over, of all replicates: 24")
    assert "(counted, not checked: `raysafl verify` does)" in ended.lines()[3]
    before = [entry.over_before for entry in Store(Looking.folder).ledger().values()]
    # Two replicates had two rounds each.
    assert sorted(before) == [0, 0, 4]


def test_runs_that_failed_or_diverged_are_named_with_the_reason(
    tiny: Run, tmp_path: Path
) -> None:
    wild = tiny.replace(local=LocalTraining(lr=3e38, batch_size=4, steps=3))
    go(Sweep("wild", {("high",): wild}, axes=("rate",)), tmp_path / "s")
    found = status_of(Store(tmp_path / "s"))
    assert found.runs == {"diverged": 1} and found.replicates == {"diverged": 2}
    (error,) = found.errors
    assert error.startswith(
        "rate=high: diverged, 2 of 2 replicates: round 0: parameters are not finite"
    )


def test_a_run_that_failed_is_not_told_as_one_that_goes_on(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Looking, "error", ValueError)
    Looking.raises = True
    go(sweep, Looking.folder, **ALONE)
    found = status_of(Store(Looking.folder))
    assert found.runs == {"failed": 3}
    assert "`raysafl run` goes on with it" in found.lines()


CONFIG = {"rounds": 100, "replicates": 3}
PACK = 3


def of_twelve_runs(path: Path) -> tuple[Store, list[str]]:
    """A folder of a sweep of twelve runs that have not begun, and their ids."""
    ids = [f"run{number}" for number in range(4 * PACK)]
    entries = [Entry(run_id=i, labels={"x": n}) for n, i in enumerate(ids)]
    store = Store(path)
    store.create()
    table = Table(rows=["x"])
    store.write_manifest(Manifest(name="s", axes=["x"], entries=entries, table=table))
    return store, ids


def end(store: Store, ids: Sequence[str], now: float, over_before: int = 0) -> None:
    """Let runs end together."""
    ended = datetime.datetime.fromtimestamp(now, datetime.UTC).isoformat()
    entry = LedgerEntry(
        status=Status.FINISHED, config=CONFIG, ended=ended, over_before=over_before
    )
    store.commit(ROUNDS.empty_table(), dict.fromkeys(ids, entry))


BEGAN = 3_000_000_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which stands still until a test moves it."""
    now = [BEGAN]
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@contextmanager
def writing(store: Store) -> Iterator[None]:
    """Be the driver of a sweep that has just begun."""
    with store.lock():
        os.utime(store.path / ".lock", (BEGAN, BEGAN))
        yield


# Seconds that each of 40 tenths of a pack takes: of the same speed; slower packs among
# others; half and twice the speed from the middle on, and from shortly before the end on.
@pytest.mark.parametrize(
    "tenths",
    [
        [5] * 40,
        [4] * 10 + [7] * 10 + [5] * 20,
        [4] * 20 + [8] * 20,
        [8] * 20 + [4] * 20,
        [4] * 36 + [8] * 4,
        [8] * 36 + [4] * 4,
        [1] * 40,
    ],
)
def test_after_a_third_of_the_rounds_the_time_left_is_never_off_by_more_than_two(
    tenths: list[int], tiny: Run, tmp_path: Path, clock: list[float]
) -> None:
    """News come every two seconds, and nothing is saved before a pack ends."""
    store, ids = of_twelve_runs(tmp_path / "s")
    packs = [Pack((tiny.replace(seed=10 * k),)) for k in range(4)]
    watch = Watch(store, Display(), None, {}, lambda run: {})
    watch.display.planned = 4.0
    told = tmp_path / "s" / "tune" / "left.json"
    written = 0.0
    whole = sum(tenths)
    done = [n + k / own for n, own in enumerate(tenths) for k in range(own)]
    with writing(store):
        for second, at in enumerate(done):
            number, share = int(at // 10), at % 10 / 10
            if share == 0 and number:
                watch.complete(News(), packs[number - 1])
                watch.show([])
                end(store, ids[(number - 1) * PACK : number * PACK], clock[0])
            if second % 2 == 0:
                watch.show([(packs[number], News(share=share))])
            if told.is_file() and told.stat().st_mtime != written:
                written = clock[0]
                os.utime(told, (written, written))
            left = whole - second
            if at > 40 / 3 and (second % 7 == 0 or left < 20):
                estimate = status_of(store).left or 0.0
                # It is told every five seconds or a little more.
                assert (left - 7) / 2.2 <= estimate <= 2.2 * left + 7
            clock[0] += 1
        end(store, ids[3 * PACK :], clock[0])
        assert status_of(store).left is None


def test_the_time_left_is_what_this_attempt_told_and_less_is_left_as_time_passes(
    tmp_path: Path, clock: list[float]
) -> None:
    store, ids = of_twelve_runs(tmp_path / "s")
    tell_left(store, 90.0)
    file = tmp_path / "s" / "tune" / "left.json"
    assert status_of(store).left is None
    with writing(store):
        os.utime(file, (BEGAN - 10, BEGAN - 10))
        assert status_of(store).lines()[-1] == "time left: not known yet"
        os.utime(file, (BEGAN, BEGAN))
        assert status_of(store).left == 90.0
        clock[0] += 60
        assert status_of(store).lines()[-1] == "time left: about 30 s"
        clock[0] += 60
        assert status_of(store).left == 0.0
        end(store, ids, clock[0])
        assert "all of these have ended" in status_of(store).lines()[-1]


@pytest.mark.parametrize("text", ["", "-5", "[1, 2]", "NaN", "Infinity", '"5 s"', "{}"])
def test_a_damaged_estimate_is_not_told(text: str, tmp_path: Path) -> None:
    store, _ = of_twelve_runs(tmp_path / "s")
    with store.lock():
        tell_left(store, 100.0)
        assert status_of(store).left is not None
        (tmp_path / "s" / "tune" / "left.json").write_text(text)
        assert status_of(store).left is None


def test_a_folder_without_a_sweep_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = call_here(monkeypatch, "status", str(tmp_path))
    assert code == 2 and "holds no sweep" in said


def test_the_rate_counts_the_rounds_of_the_present_attempt_alone(
    tmp_path: Path, clock: list[float]
) -> None:
    store, ids = of_twelve_runs(tmp_path / "s")
    with writing(store):
        # Of its 300 rounds, 240 were over before.
        end(store, ids[:1], BEGAN + 10, over_before=240)
        assert status_of(store).rate == 6.0
        assert status_of(store).rounds == 300


def test_a_sweep_of_which_nothing_has_begun_can_go_on(tmp_path: Path) -> None:
    store, _ = of_twelve_runs(tmp_path / "s")
    assert status_of(store).lines()[-1] == "`raysafl run` goes on with it"
