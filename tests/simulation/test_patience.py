"""Runs that stop early: when, each replicate by itself, after kills, and in the folder."""

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
from helpers.packs import play

from raysafl import Devices, LocalTraining, Patience, Run, Runner, Sweep
from raysafl.storage.ledger import Status
from raysafl.storage.verify import verify


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
    whole = play(patient.replace(patience=None))[1]
    run = patient.replace(patience=stop)
    sim, records = play(run)
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


@pytest.mark.parametrize(
    "metric", ["test_acuracy", "bytes_up", "val_loss", "virtual_seconds"]
)
def test_a_metric_that_the_run_does_not_measure_is_refused(
    metric: str, tiny: Run
) -> None:
    timed = tiny.replace(devices=Devices(step_seconds=1.0))
    with pytest.raises(ValueError, match=f"measures no single number '{metric}'"):
        timed.replace(patience=Patience(metric=metric))


def test_a_run_that_stopped_leaves_its_pack_and_is_finished_with_its_reason(
    patient: Run, tmp_path: Path
) -> None:
    runs = {"patient": patient, "plain": patient.replace(patience=None, rounds=10)}
    sweep = Sweep("patience", runs=runs, axes=("which",))
    runner = Runner(sweep, tmp_path, executor="here", track="none", quiet=True)
    table = runner.run().runs
    store = runner.store
    alone = [(r.replicate, r.round, r.test_loss) for r in play(patient)[1]]
    rounds = store.rounds(patient.id)
    found = rounds[["replicate", "round", "test_loss"]]
    assert sorted(map(tuple, found.to_numpy().tolist())) == sorted(alone)
    for cell in patient.cell_ids:
        end = store.ledger()[cell]
        assert end.status.decided and end.reason.startswith("stopped after")
        assert "test_accuracy has not improved since round" in end.reason
    assert {end.status for end in store.ledger().values()} == {Status.FINISHED}
    assert verify(store) == []
    mine = table[table["run_id"] == patient.id]
    assert len(mine) == 3
    for row in mine.itertuples():
        own = rounds[rounds.replicate == row.replicate]
        assert row.rounds == own["round"].max() + 1
        assert row.final == own.sort_values("round").test_accuracy.iloc[-1]
