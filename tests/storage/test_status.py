"""`raysafl status`: how far a sweep is, from its folder alone."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from helpers.commands import call_here
from helpers.sweeps_here import go

from raysafl import FedAvg, Hardware, LocalTraining, Run, Sweep
from raysafl.algorithms import Key, Round, State
from raysafl.storage.manifest import Entry, Manifest, Table
from raysafl.storage.status import SweepStatus, status_of, write_heartbeat
from raysafl.storage.store import Store


class Looking(FedAvg):
    """FedAvg that looks at the folder in one of its rounds, or is interrupted."""

    folder: ClassVar[Path]
    raises: ClassVar[type[BaseException] | None] = None
    seen: ClassVar[list[SweepStatus]] = []

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        # The size of a pack is estimated from a model of few parameters.
        if key.round == 2 and len(state.w_P) > 100:
            self.seen.append(status_of(Store(self.folder)))
            if self.raises is not None:
                raise self.raises
        return super().round(state, ids, key)


@pytest.fixture
def sweep(
    tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Sweep]:
    monkeypatch.setattr(Looking, "folder", tmp_path / "s", raising=False)
    monkeypatch.setattr(Looking, "seen", [])
    runs = [tiny.replace(algorithm=Looking(), seed=10 * k) for k in range(3)]
    yield Sweep("watched", {(k,): run for k, run in enumerate(runs)}, axes=("number",))


ALONE = {"try_first": False, "flush_seconds": 0.0, "hardware": Hardware(pack=1)}


def test_runs_are_counted_while_a_sweep_goes_on_and_afterwards(sweep: Sweep) -> None:
    go(sweep, Looking.folder, **ALONE)
    # Its two replicates take their rounds together.
    first, second, _ = Looking.seen
    assert first.is_running and first.runs == {"waiting": 2, "running": 1}
    assert second.runs == {"waiting": 1, "running": 1, "finished": 1}
    ended = status_of(Store(Looking.folder))
    assert not ended.is_running and not ended.heartbeat
    assert ended.runs == {"finished": 3}


def test_an_interrupted_sweep_is_told_with_what_to_do(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Looking, "raises", KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        go(sweep, Looking.folder, **ALONE)
    code, said = call_here(monkeypatch, "status", str(Looking.folder))
    assert code == 0 and "no process is writing to it" in said
    assert "runs: 3 waiting" in said
    assert "`raysafl run` goes on with it" in said


def test_runs_that_failed_or_diverged_are_named_with_the_reason(
    sweep: Sweep, tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wild = tiny.replace(local=LocalTraining(lr=3e38, batch_size=4, steps=3))
    go(Sweep("wild", {("high",): wild}, axes=("rate",)), tmp_path / "wild")
    told = status_of(Store(tmp_path / "wild"))
    assert told.runs == {"diverged": 1}
    assert told.errors[0].startswith(
        "rate=high: diverged, 2 of 2 seeds: round 0: parameters are not finite"
    )
    monkeypatch.setattr(Looking, "raises", ValueError)
    go(sweep, Looking.folder, **ALONE)
    assert status_of(Store(Looking.folder)).runs == {"failed": 3}


def test_the_drivers_last_line_is_told_with_its_age_while_it_runs(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "s")
    store.create()
    entries = [Entry(run_id="aaaa", labels={"x": 1})]
    table = Table(rows=["x"])
    store.write_manifest(Manifest(name="s", axes=["x"], entries=entries, table=table))
    assert status_of(store).lines()[-1] == "`raysafl run` goes on with it"
    with store.lock():
        assert not status_of(store).heartbeat
        write_heartbeat(store, "1/2 runs, 1 running, 0 failed")
        file = tmp_path / "s" / "tune" / "heartbeat.txt"
        before = file.stat().st_mtime - 60
        os.utime(file, (before, before))
        told = status_of(store).heartbeat
        assert told.startswith("1/2 runs, 1 running, 0 failed (6") and "s ago" in told
        # The folder may hold anything.
        file.write_bytes(b"\xff\x1b[31m")
        assert "\x1b" not in status_of(store).heartbeat
