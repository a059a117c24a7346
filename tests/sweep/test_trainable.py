"""The trainable for a plain `tune.Tuner`, with Tune's own schedulers and callbacks."""

from pathlib import Path

import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler

from raysafl import Iid, Patience, Run, simulate, trainable
from raysafl.sweep.on_ray.run_trainable import RunTrainable


class Reports(tune.Callback):
    """Collects what the trials report."""

    def __init__(self) -> None:
        self.rounds: list[tuple[float, int, float]] = []

    def on_trial_result(self, iteration, trials, trial, result, **info) -> None:  # type: ignore[no-untyped-def]
        lr = trial.config["local.lr"]
        self.rounds.append((lr, result["round"], result["test_accuracy"]))


@pytest.mark.acceptance
@pytest.mark.usefixtures("ray_local")
def test_a_plain_tuner_stops_the_worse_run_early(tiny: Run, tmp_path: Path) -> None:
    base = tiny.replace(rounds=8)
    reports = Reports()
    rates = [0.1, 1e-9]
    tuner = tune.Tuner(
        tune.with_resources(trainable(base), {"cpu": 0.5}),
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
    accuracy = simulate(run).groupby("round").test_accuracy.mean()
    # Every evaluated round is reported, with the numbers of a simulation.
    own = [(t, a) for lr, t, a in reports.rounds if lr == 0.1]
    assert own == [(t + 1, pytest.approx(a)) for t, a in accuracy.items()]


def here(run: Run) -> type[RunTrainable]:
    """The trainable of a run, in this process."""

    class Here(RunTrainable):
        def setup(self, config, **_) -> None:  # type: ignore[no-untyped-def]
            super().setup(config, base=run, dataset=run.data.load())

    return Here


def test_a_trial_goes_on_from_its_checkpoint_with_the_means_over_all_seeds(
    tiny: Run, tmp_path: Path
) -> None:
    """Also over those that have stopped before the others."""
    patience = Patience(rounds=1, metric="test_accuracy")
    run = tiny.replace({"data.partition": Iid(), "patience": patience})
    run = run.replace(rounds=12, replicates=3)
    rows = simulate(run.replace(seed=3))
    assert rows.groupby("replicate")["round"].max().nunique() > 1
    table = rows.pivot(index="round", columns="replicate", values="test_accuracy")
    trials = [here(run)({"seed": 3}) for _ in range(2)]
    found = [trials[0].train() for _ in range(2)]
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


def test_mistakes_are_told_with_what_to_change(tiny: Run) -> None:
    with pytest.raises(ValueError, match=r"trainable is 3.*give a Run"):
        trainable(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"call fl\.trainable\(run\)"):
        RunTrainable({})
    with pytest.raises(ValueError, match="unknown field 'rl': did you mean 'lr'"):
        here(tiny)({"local.rl": 0.1})
