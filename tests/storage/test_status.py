"""`raysafl status`: how far a sweep is, from its folder alone."""

import datetime
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from helpers.commands import call_here
from helpers.sweeps_here import go

from raysafl import FedAvg, Hardware, LocalTraining, Run, Sweep
from raysafl.algorithms import Key, Round, State
from raysafl.storage.ledger import LedgerEntry, Status
from raysafl.storage.manifest import Entry, Manifest, Table
from raysafl.storage.rows import CLIENTS, ROUNDS
from raysafl.storage.sealed import OpenState
from raysafl.storage.status import SweepStatus, status_of
from raysafl.storage.store import Store


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
    assert second.rate and second.left
    least, most = second.left
    assert 0 <= least <= most


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
    assert status_of(Store(Looking.folder)).runs == {"failed": 3}


CONFIG = {"rounds": 100, "replicates": 3}
PACK = 75


def of_300_runs(path: Path) -> tuple[Store, list[str]]:
    """A folder of a sweep of 300 runs that have not begun, and their ids."""
    ids = [f"run{number}" for number in range(4 * PACK)]
    entries = [Entry(run_id=i, labels={"x": n}) for n, i in enumerate(ids)]
    store = Store(path)
    store.create()
    table = Table(rows=["x"])
    store.write_manifest(Manifest(name="s", axes=["x"], entries=entries, table=table))
    return store, ids


def save(store: Store, ids: Sequence[str], rounds: int, now: float) -> None:
    """Save runs of which so many rounds are over, all replicates together."""
    about = {"config": CONFIG, "rounds_over": rounds, "over_before": 0, "rows": 0}
    nothing = ROUNDS.empty_table(), CLIENTS.empty_table()
    for run_id in ids:
        store.flush(run_id, OpenState(about, *nothing, b""))
        os.utime(store.open_file(run_id), (now, now))


def end(store: Store, ids: Sequence[str], now: float) -> None:
    """Let runs end together."""
    ended = datetime.datetime.fromtimestamp(now, datetime.UTC).isoformat()
    entry = LedgerEntry(status=Status.FINISHED, config=CONFIG, ended=ended)
    store.commit(ROUNDS.empty_table(), dict.fromkeys(ids, entry))


# How long each of four packs takes, in seconds.
@pytest.mark.parametrize("seconds", [[50] * 4, [40, 60, 50, 70], [16] * 4])
def test_after_a_third_of_300_runs_the_time_left_is_never_off_by_more_than_two(
    seconds: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open runs are saved every 30 seconds, and a look is taken every three.

    The range is never wider than times four. Where the packs are equally fast, both of
    its ends are that near until the last seconds; where they are not, one of them is,
    until less is left than the time since a save.
    """
    store, ids = of_300_runs(tmp_path / "s")
    now = began = 1_800_000_000.0
    whole = sum(seconds)
    is_steady = len(set(seconds)) == 1
    enough = 5 if is_steady else 30
    looks = 0
    monkeypatch.setattr(time, "time", lambda: now)
    with store.lock():
        os.utime(tmp_path / "s" / ".lock", (began, began))
        for number, own in enumerate(seconds):
            pack = ids[number * PACK : (number + 1) * PACK]
            for second in range(own):
                if second and second % 30 == 0:
                    save(store, pack, 300 * second // own, now)
                left = began + whole - now
                if (
                    (number + second / own) / 4 > 1 / 3
                    and second % 3 == 0
                    and left > enough
                ):
                    looks += 1
                    least, most = status_of(store).left or (0.0, 0.0)
                    assert 0 < least <= most <= 4 * least
                    assert least / 2 <= left <= most * 2
                    if is_steady:
                        # The ledger has whole seconds.
                        assert left / 2 - 1 <= least <= most <= left * 2 + 1
                now += 1
            end(store, pack, now)
    assert looks > 10
    assert status_of(store).left is None


def test_what_is_known_at_one_moment_alone_tells_the_time_left_to_a_factor_of_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ids = of_300_runs(tmp_path / "s")
    monkeypatch.setattr(time, "time", lambda: 1_800_000_060.0)
    with store.lock():
        os.utime(tmp_path / "s" / ".lock", (1_800_000_000.0, 1_800_000_000.0))
        assert "known when runs have been saved" in status_of(store).lines()[-1]
        end(store, ids[:PACK], 1_800_000_060.0)
        assert status_of(store).left == (90.0, 360.0)
        end(store, ids[PACK:], 1_800_000_060.0)
        assert "all of these have ended" in status_of(store).lines()[-1]


def test_a_folder_without_a_sweep_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = call_here(monkeypatch, "status", str(tmp_path))
    assert code == 2 and "holds no sweep" in said
