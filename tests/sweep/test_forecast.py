"""`raysafl run --dry-run`: what would be done, without doing it."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.counted import Counted, interrupted
from helpers.sweeps_here import go

from raysafl import SAFARI, FedAvg, Hardware, Run, Runner, Sweep
from raysafl.algorithms import FedAvgM, Key, Round, State
from raysafl.core.work import Evaluation, Summed
from raysafl.runtime.in_process import Worker
from raysafl.storage.store import Store
from raysafl.sweep import forecast as room
from raysafl.sweep.forecast import Forecast


def forecast(out: Path, *runs: Run, **options: object) -> Forecast:
    sweep = Sweep("s", {(k,): run for k, run in enumerate(runs)}, axes=("k",))
    options = {"executor": "here", "track": "none", "try_first": False, **options}
    return Runner(sweep, out, **options).forecast()  # type: ignore[arg-type]


def test_it_tells_how_many_packs_of_which_sizes_there_are_and_writes_nothing(
    tiny: Run, tmp_path: Path
) -> None:
    runs = [tiny.replace(seed=10 * k) for k in range(5)]
    found = forecast(tmp_path / "s", *runs, hardware=Hardware(pack=2))
    first, executor, packs, *_, last = str(found).splitlines()
    assert first == "5 runs to do"
    assert executor == "Runs in this process: it was asked for"
    assert packs == "3 packs of 2 to 4 seeds, 1 at a time"
    assert last == "No run was started, and nothing was written."
    assert not (tmp_path / "s").exists()


def test_it_tells_what_has_ended_and_what_would_be_taken_over(
    tiny: Run, tmp_path: Path
) -> None:
    old = [tiny, tiny.replace(algorithm=FedAvgM(momentum=0.5))]
    sweep = Sweep("s", {(k,): run for k, run in enumerate(old)}, axes=("k",))
    go(sweep, tmp_path / "s")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    grown = old[1].replace(replicates=5)
    found = forecast(tmp_path / "s", tiny, grown, tiny.replace(algorithm=SAFARI()))
    first, there, _, packs, *_ = str(found).splitlines()
    assert there == "2 of their 7 seeds are there"
    assert first == "2 runs to do, 1 finished before"
    assert packs == "1 pack of 5 seeds, 1 at a time"
    after = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert after == before


def test_rounds_that_a_checkpoint_or_a_shorter_run_holds_take_no_time(
    tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_timed", lambda *_: (100.0, []))
    begun = tiny.replace(algorithm=Counted())
    short = tiny.replace(rounds=2)
    out = tmp_path / "s"
    go(Sweep("s", [short]), out, keep_states=True)
    both = Sweep("s", {(0,): short, (1,): begun}, axes=("k",))
    interrupted(3, out, both)
    # Two of four rounds of one run's seeds, and three of four of the other's.
    found = forecast(out, tiny, begun)
    assert "2 runs to do, 2 seeds from a checkpoint" in str(found)
    assert "2 seeds continued from where shorter runs ended" in str(found)
    assert found.seconds == pytest.approx(100 * (1 - (2 * 2 + 2 * 3) / (4 * 4)))
    store = Store(out)
    (file,) = store.files("open")
    saved = store.checkpoint(file)
    assert saved is not None
    code = {"Counted": "of other code"}
    other = {c: far.model_copy(update={"code": code}) for c, far in saved.cells.items()}
    store.save(file.stem, replace(saved, cells=other).to_bytes())
    for options in ({"stale": "rerun"}, {"resume": False}):
        anew = forecast(out, begun, **options)
        assert "from a checkpoint" not in str(anew)
        assert anew.seconds == pytest.approx(100)


@pytest.mark.parametrize("eval_every", [1, 5])
def test_evaluations_count_as_often_as_they_take_place(
    tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eval_every: int
) -> None:
    """By this clock, training takes 0.1 s in each round, and an evaluation 1 s."""
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    class Slow(FedAvg):
        def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
            clock[0] += 0.1
            return super().round(state, ids, key)

    sums = Worker.sums

    def slow_sums(own: Worker, asked: Sequence[Evaluation]) -> list[list[Summed]]:
        clock[0] += 1
        return sums(own, asked)

    monkeypatch.setattr(Worker, "sums", slow_sums)
    run = tiny.replace(
        algorithm=Slow(), replicates=1, rounds=100, eval_every=eval_every
    )
    expected = 100 * (0.1 + 1 / eval_every)
    assert forecast(tmp_path / "s", run).seconds == pytest.approx(expected)


def test_what_is_compiled_in_a_later_round_takes_no_time(
    tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By this clock a round takes 0.1 s, and 60 s more when the third one first happens."""
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    compiling = [60.0]

    class Compiles(FedAvg):
        def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
            clock[0] += 0.1
            if key.round == 2 and compiling:
                clock[0] += compiling.pop()
            return super().round(state, ids, key)

    run = tiny.replace(algorithm=Compiles(), replicates=1, rounds=100)
    assert forecast(tmp_path / "s", run).seconds == pytest.approx(10)
