"""One run without a sweep: its rows in this process, and the trainable for a plain `tune.Tuner`."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import ray
from helpers.here import run_in_process
from ray import tune
from ray.tune.schedulers import ASHAScheduler

import raysafl as fl
from raysafl.algorithms import Key
from raysafl.core.algorithm import Algorithm, Round, State
from raysafl.objectives import Classification
from raysafl.runtime.in_process import Worker
from raysafl.storage.store import Store
from raysafl.sweep.definition import smoke
from raysafl.sweep.on_ray.run_trainable import RunTrainable


def test_a_smoke_run_keeps_the_test_samples_by_which_clients_are_judged(
    tiny: fl.Run,
) -> None:
    full = tiny.replace({"data.validation": fl.Validation(server=0.1), "rounds": 12})
    judged = full.replace(eval_clients=fl.PerClient(every=12))
    assert smoke(judged).data == judged.data
    assert smoke(full).data != full.data


class Talking(Algorithm):
    """FedAvg that prints the number of its round, and fails in the third."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        print(f"round {key.round}")
        if key.round == 2:
            raise RuntimeError("a user's mistake")
        return (yield from fl.FedAvg().round(state, ids, key))


class Exploding(Algorithm):
    """Makes parameters that are not finite in its second round."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        new = yield from fl.FedAvg().round(state, ids, key)
        return State(new.w_P * float("inf")) if key.round == 1 else new


@pytest.mark.parametrize(
    "change",
    [{}, {"eval_every": 3}, {"objective": Classification(label_smoothing=0.2)}],
    ids=["plain", "every third round", "another objective"],
)
def test_the_rows_are_those_that_a_sweep_writes(
    change: dict[str, Any],
    tiny: fl.Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = tiny.replace(change)
    store = Store(tmp_path / "s")
    store.create()
    data = run.data.load()
    work = Worker(run.cells, data, run.model, objective=run.objective)
    run_in_process(run, store, work)

    def no_ray(*_: object, **__: object) -> None:
        raise AssertionError("Ray is not to be started")

    monkeypatch.setattr(ray, "init", no_ray)
    rounds = fl.simulate(run)
    written = store.rounds().sort_values(["replicate", "round"], ignore_index=True)
    expected = written.drop(columns=["run_id", "seconds"])
    pd.testing.assert_frame_equal(rounds.drop(columns="seconds"), expected)
    assert list(rounds.columns) == [c for c in written.columns if c != "run_id"]
    assert rounds["seconds"].gt(0).all()


def test_what_the_user_s_code_prints_and_raises_is_seen_where_it_happens(
    tiny: fl.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeError, match="a user's mistake") as raised:
        fl.simulate(tiny.replace(algorithm=Talking(), replicates=1))
    assert raised.traceback[-1].path == Path(__file__)
    assert capsys.readouterr().out.splitlines() == ["round 0", "round 1", "round 2"]


def test_a_replicate_that_diverges_is_named_and_keeps_its_rows_before(
    tiny: fl.Run,
) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        rounds = fl.simulate(tiny.replace(algorithm=Exploding()))
    said = [str(warning.message).partition(":")[0] for warning in warned]
    assert said == ["replicate 0 diverged", "replicate 1 diverged"]
    assert warned[0].filename == __file__
    assert rounds["round"].tolist() == [0, 0]


class Reports(tune.Callback):
    """Collects what the trials report."""

    def __init__(self) -> None:
        self.rounds: list[tuple[float, int, float]] = []

    def on_trial_result(self, iteration, trials, trial, result, **info) -> None:  # type: ignore[no-untyped-def]
        lr = trial.config["local.lr"]
        self.rounds.append((lr, result["round"], result["test_accuracy"]))


@pytest.mark.acceptance
@pytest.mark.usefixtures("ray_local")
def test_a_plain_tuner_stops_the_worse_run_early(tiny: fl.Run, tmp_path: Path) -> None:
    base = tiny.replace(rounds=8)
    reports = Reports()
    rates = [0.1, 1e-9]
    tuner = tune.Tuner(
        tune.with_resources(fl.trainable(base), {"cpu": 0.5}),
        param_space={"local.lr": tune.grid_search(rates)},
        tune_config=tune.TuneConfig(
            metric="test_accuracy",
            mode="max",
            max_concurrent_trials=1,
            reuse_actors=True,
            scheduler=ASHAScheduler(
                time_attr="round", grace_period=4, reduction_factor=2, max_t=8
            ),
        ),
        run_config=tune.RunConfig(
            storage_path=str(tmp_path), callbacks=[reports], verbose=0
        ),
    )
    results = tuner.fit()
    assert not results.errors
    ended = {r.config["local.lr"]: r.metrics["round"] for r in results}
    assert ended == {0.1: 8, 1e-9: 4}
    best = results.get_best_result()
    run = base.replace(best.config)
    accuracy = fl.simulate(run).groupby("round").test_accuracy.mean()
    # Every evaluated round is reported, with the numbers of a simulation.
    own = [(t, a) for lr, t, a in reports.rounds if lr == 0.1]
    assert own == [(t + 1, pytest.approx(a)) for t, a in accuracy.items()]


def here(run: fl.Run) -> type[RunTrainable]:
    """The trainable of a run, in this process."""

    class Here(RunTrainable):
        def setup(self, config, **_) -> None:  # type: ignore[no-untyped-def]
            super().setup(config, base=run, dataset=run.data.load())

    return Here


def test_a_trial_goes_on_from_its_checkpoint_with_the_means_over_all_seeds(
    tiny: fl.Run, tmp_path: Path
) -> None:
    """Also over those that have stopped before the others."""
    patience = fl.Patience(rounds=1, metric="test_accuracy")
    run = tiny.replace({"data.partition": fl.Iid(), "patience": patience})
    run = run.replace(rounds=12, replicates=3)
    rows = fl.simulate(run.replace(seed=3))
    assert rows.groupby("replicate")["round"].max().nunique() > 1
    table = rows.pivot(index="round", columns="replicate", values="test_accuracy")
    trials = [here(run)({"seed": 3}) for _ in range(2)]
    # By then one of them has stopped.
    found = [trials[0].train() for _ in range(4)]
    trials[0].save_checkpoint(str(tmp_path))
    trials[1].load_checkpoint(str(tmp_path))
    while not found[-1]["done"]:
        found.append(trials[1].train())
    accuracies = [result["test_accuracy"] for result in found]
    assert accuracies == pytest.approx(table.ffill().mean(axis=1).to_list())
    assert found[-1]["round"] == found[-1]["timesteps_total"] == len(table)
    # Another configuration is another run.
    other = here(run)({"seed": 4})
    with pytest.raises(ValueError, match="cannot be used: it belongs to another"):
        other.load_checkpoint(str(tmp_path))
    assert other.reset_config({"seed": 3})
    for trial in (*trials, other):
        trial.stop()


def test_mistakes_are_told_with_what_to_change(tiny: fl.Run) -> None:
    with pytest.raises(ValueError, match=r"trainable is 3.*give a Run"):
        fl.trainable(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"call fl\.trainable\(run\)"):
        RunTrainable({})
    with pytest.raises(ValueError, match="unknown field 'rl': did you mean 'lr'"):
        here(tiny)({"local.rl": 0.1})
