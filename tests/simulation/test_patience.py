"""Runs that stop early: when, each replicate by itself, after kills, and in the folder."""

import math
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest
import torch
from helpers.checkpoints import dump, restore
from helpers.here import run_in_process, session_of, write

from raysafl import Devices, LocalTraining, Patience, Run
from raysafl.core.record import Record
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Simulation
from raysafl.storage.ledger import Status
from raysafl.storage.runs_table import make_runs_table
from raysafl.storage.store import Store
from raysafl.storage.verify import verify
from raysafl.sweep.definition import Sweep
from raysafl.sweep.open_pack import OpenPack


@pytest.fixture
def patient(tiny: Run) -> Run:
    """A run whose three replicates stop in different rounds, long before round 40."""
    return tiny.replace(
        rounds=40,
        replicates=3,
        eval_every=2,
        local=LocalTraining(lr=0.5, batch_size=32, epochs=1),
        patience=Patience(metric="test_accuracy", rounds=6, min_delta=0.02),
    )


def work(run: Run) -> Worker:
    return Worker(run.cells, run.data.load(), run.model)


def finish(sim: Simulation) -> list[Record]:
    records = []
    while not sim.done:
        records += sim.step()
    return records


def last_round(values: Mapping[int, float], patience: Patience, sign: int) -> int:
    """The round after which a replicate stops, by the definition."""
    best, since = -math.inf, -1
    for t, value in values.items():
        if sign * value > best + patience.min_delta:
            best, since = sign * value, t
        elif t - since >= patience.rounds:
            return t
    return max(values)


@pytest.mark.parametrize(
    ("stop", "sign"),
    [
        (Patience(metric="test_accuracy", rounds=4, min_delta=0.02), 1),
        (Patience(metric="test_loss", rounds=3), -1),
        (Patience(metric="train_loss", rounds=1), -1),
        (Patience(metric="train_accuracy", rounds=5, min_delta=0.01), 1),
    ],
    ids=str,
)
def test_each_replicate_stops_after_the_rounds_that_the_definition_says(
    stop: Patience, sign: int, patient: Run
) -> None:
    whole = finish(Simulation(patient.replace(patience=None), work(patient)))
    run = patient.replace(patience=stop)
    sim = Simulation(run, work(run))
    records = finish(sim)
    ends = set()
    for r in range(3):
        all_of_it = [record for record in whole if record.replicate == r]
        mine = [record for record in records if record.replicate == r]
        values = {record.round: getattr(record, stop.metric) for record in all_of_it}
        end = last_round(values, stop, sign)
        assert mine[-1].round == end
        # up to there, nothing is different
        assert [m.test_loss for m in mine] == [
            w.test_loss for w in all_of_it if w.round <= end
        ]
        stopped = sim.replicates[r].stopped
        assert stopped.startswith(f"stopped after round {end}: {stop.metric} has not")
        ends.add(end)
    assert sim.round == max(ends) + 1 < 40


def test_replicates_stop_by_themselves(patient: Run) -> None:
    records = finish(Simulation(patient, work(patient)))
    ends = {
        r: max(rec.round for rec in records if rec.replicate == r) for r in (0, 1, 2)
    }
    assert len(set(ends.values())) > 1
    alone = patient.replace(replicates=1, seed=1)
    assert finish(Simulation(alone, work(alone)))[-1].round == ends[1]


def test_a_run_that_is_interrupted_after_any_round_equals_the_undisturbed_one(
    patient: Run,
) -> None:
    machine = work(patient)
    whole = Simulation(patient, machine)
    expected = finish(whole)
    sim = Simulation(patient, machine)
    records = []
    while not sim.done:
        records += sim.step()
        content = dump(sim)
        sim = Simulation(patient, machine)
        restore(sim, content)
    assert [(r.replicate, r.round, r.test_loss) for r in records] == [
        (r.replicate, r.round, r.test_loss) for r in expected
    ]
    for a, b in zip(sim.replicates, whole.replicates, strict=True):
        assert torch.equal(a.state.w_P, b.state.w_P)
        assert (a.stopped, a.best, a.best_round) == (b.stopped, b.best, b.best_round)


def test_a_run_with_patience_goes_to_json_and_back(patient: Run) -> None:
    assert Run.from_json(patient.to_json()) == patient


@pytest.mark.parametrize(
    ("value", "best", "higher", "expected"),
    [
        (0.5, None, True, True),
        (math.nan, None, True, False),
        (math.nan, 0.5, False, False),
        (0.6, 0.5, True, False),
        (0.61, 0.5, True, True),
        (0.4, 0.5, False, False),
        (0.39, 0.5, False, True),
        (math.inf, 0.5, False, False),
    ],
)
def test_an_improvement_is_more_than_min_delta(
    value: float, best: float | None, higher: bool, expected: bool
) -> None:
    patience = Patience(min_delta=0.1 + 1e-9)
    assert patience.improves(value, best, higher) == expected


@pytest.mark.parametrize("metric", ["test_acuracy", "bytes_up", "val_loss"])
def test_a_metric_that_the_run_does_not_measure_is_refused(
    metric: str, tiny: Run
) -> None:
    with pytest.raises(ValueError, match=f"measures no single number '{metric}'"):
        tiny.replace(patience=Patience(metric=metric))


def test_a_run_does_not_wait_for_time_to_improve(tiny: Run) -> None:
    timed = tiny.replace(devices=Devices(step_seconds=1.0))
    with pytest.raises(ValueError, match="no single number 'virtual_seconds'"):
        timed.replace(patience=Patience(metric="virtual_seconds"))


@pytest.fixture
def sweep(patient: Run) -> Sweep:
    """The patient run beside one that goes through all of its rounds."""
    runs = {"patient": patient, "plain": patient.replace(patience=None, rounds=10)}
    return Sweep("patience", runs=runs, axes=("which",))


def folder(path: Path, sweep: Sweep) -> Store:
    store = Store(path)
    store.create()
    store.write_manifest(sweep.manifest())
    return store


def session(sweep: Sweep, store: Store) -> tuple[OpenPack, list[Run]]:
    """What is still to be done, by cells, and these."""
    ended = store.ledger()
    cells = [cell for run in sweep.labelled().values() for cell in run.split()]
    left = [cell for cell in cells if cell.id not in ended]
    data = left[0].data.load()
    work = Worker([c for run in left for c in run.cells], data, left[0].model)
    return session_of(left, work, store), left


def complete(sweep: Sweep, store: Store) -> None:
    going, cells = session(sweep, store)
    going.advance(math.inf)
    write(going.news(), store, cells)


def assert_same_cells(one: Store, other: Store, run: Run) -> None:
    """Check that rows and ends of a run are equal but for the wall time."""
    first, second = (
        store.rounds(run.id).drop(columns="seconds") for store in (one, other)
    )
    pd.testing.assert_frame_equal(first, second)
    for cell in run.cell_ids:
        a, b = one.ledger()[cell], other.ledger()[cell]
        assert (a.status, a.reason, a.metrics) == (b.status, b.reason, b.metrics)


def test_a_run_that_stopped_leaves_its_pack_and_is_finished_with_its_reason(
    sweep: Sweep, patient: Run, tmp_path: Path
) -> None:
    store = folder(tmp_path / "pack", sweep)
    complete(sweep, store)
    alone = folder(tmp_path / "alone", sweep)
    run_in_process(patient, alone, work(patient))
    assert_same_cells(store, alone, patient)
    for cell in patient.cell_ids:
        end = store.ledger()[cell]
        assert end.status is Status.FINISHED and end.status.decided
        assert end.reason.startswith("stopped after")
        assert "test_accuracy has not improved since round" in end.reason
    assert verify(store) == [] and verify(alone) == []
    assert {end.status for end in store.ledger().values()} == {Status.FINISHED}

    table = make_runs_table(store)
    mine = table[table["run_id"] == patient.id]
    rounds = store.rounds(patient.id)
    for row in mine.itertuples():
        own = rounds[rounds.replicate == row.replicate]
        assert row.rounds == own["round"].max() + 1
        assert row.final == own.sort_values("round").test_accuracy.iloc[-1]


def test_kills_change_neither_rows_nor_the_ledger(
    sweep: Sweep, patient: Run, tmp_path: Path
) -> None:
    undisturbed = folder(tmp_path / "undisturbed", sweep)
    complete(sweep, undisturbed)
    store = folder(tmp_path / "killed", sweep)
    while not store.ledger().keys() >= set(patient.cell_ids):
        going, cells = session(sweep, store)
        going.advance(0.0)  # up to the next evaluated round
        write(going.news(at_once=True), store, cells)
    assert_same_cells(store, undisturbed, patient)
