"""`raysafl status`: how far a sweep is, from its folder alone."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from helpers.commands import call_here
from helpers.sweeps_here import go

from raysafl import FedAvg, Hardware, LocalTraining, Run, Sweep
from raysafl.algorithms import Key, Round, State
from raysafl.storage import status
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


def test_the_time_left_follows_from_the_rounds_that_have_been_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """300 equal runs in packs of 20, a pack a minute: known to a third after a third."""
    monkeypatch.setattr(time, "time", lambda: 300.0)
    ends = [(60.0 * (k // 20 + 1), 50) for k in range(100)]
    least, most = status._left(200 * 50, ends, 0.0, 300.0, 100 * 50) or (0.0, 0.0)
    assert least <= 600 * 1.01 and 600 <= most * 1.01
    assert most / 600 < 1.5 and least / 600 > 0.6


def test_with_few_ended_runs_the_time_left_is_told_to_a_factor_of_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "time", lambda: 10.0)
    assert status._left(100, [], 0.0, 10.0, 100) == (5.0, 20.0)


def test_a_folder_without_a_sweep_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = call_here(monkeypatch, "status", str(tmp_path))
    assert code == 2 and "holds no sweep" in said
