"""Parts of a run that know nothing of each other work together."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from ray import tune

import raysafl as fl
from raysafl.sweep.definition import smoke
from raysafl.sweep.on_ray.run_trainable import RunTrainable
from raysafl.sweep.open_run import metrics_of

RUN = fl.Run(
    data=fl.Federation(clients=6, validation=fl.Validation(server=0.1)),
    model=fl.Logistic(),
    algorithm=fl.FedAvg(),
    participation=fl.Uniform(m=3),
    local=fl.LocalTraining(lr=0.1, batch_size=32, epochs=1),
    rounds=12,
    replicates=3,
)


class Classwise(fl.Objective):
    """Judges a model by a list."""

    metric = "hits"

    def losses(self, outputs, targets):  # type: ignore[no-untyped-def]
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

    def measures(self, num_outputs: int) -> dict[str, fl.objectives.Metric]:
        def sums(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            hit = outputs.argmax(-1) == targets
            return torch.bincount(targets[hit], minlength=num_outputs)

        metric = fl.objectives.Metric(
            "hits", sums, lambda own, count: own.tolist(), is_list=True
        )
        return {"hits": metric}


def test_a_report_before_the_first_evaluation_has_every_metric_that_a_search_may_go_by() -> (
    None
):
    sweep = fl.Sweep(
        "a", space={"local.lr": tune.uniform(0.1, 0.2)}, base=RUN, search_alg=None
    )
    goal, _ = sweep.manifest().goal or ("", "")
    assert goal == "val_accuracy"
    assert math.isnan(metrics_of(RUN, [])[goal])
    assert list(metrics_of(RUN, []))[1] == "test_accuracy"


def test_a_smoke_run_keeps_the_test_samples_by_which_clients_are_judged() -> None:
    judged = RUN.replace(eval_clients=fl.PerClient(every=12))
    assert smoke(judged).data == judged.data
    assert smoke(RUN).data != RUN.data


def test_a_model_is_not_chosen_by_a_list() -> None:
    run = RUN.replace(objective=Classwise())
    with pytest.raises(ValueError, match="keep='best' chooses by a number"):
        run.replace(keep="best")
    assert run.replace(keep="last").keep == "last"


def test_a_trainable_of_which_all_replicates_diverge_ends_with_a_report_of_nan() -> (
    None
):
    class Trial(RunTrainable):
        def setup(self, config: dict[str, Any]) -> None:  # type: ignore[override]
            super().setup(config, RUN, RUN.data.load())

    result = Trial({"local.lr": 1e38}).train()
    assert result["done"]
    assert all(math.isnan(result[name]) for name in ("test_accuracy", "test_loss"))


def test_a_trainable_reports_the_means_over_all_replicates_also_of_those_that_stopped(
    tmp_path: Path,
) -> None:
    run = RUN.replace(patience=fl.Patience(rounds=1, metric="test_accuracy"))
    rows = fl.simulate(run)
    assert rows.groupby("replicate")["round"].max().nunique() > 1
    expected = (
        rows.pivot(index="round", columns="replicate", values="test_accuracy")
        .ffill()
        .mean(axis=1)
    )

    class Trial(RunTrainable):
        def setup(self, config: dict[str, Any]) -> None:  # type: ignore[override]
            super().setup(config, run, run.data.load())

    trial = Trial()
    found = []
    done = False
    while not done:
        result = trial.train()
        done = result["done"]
        found.append(result["test_accuracy"])
        if len(found) == 2:
            trial.save_checkpoint(str(tmp_path))
            trial.load_checkpoint(str(tmp_path))
    pd.testing.assert_series_equal(
        pd.Series(found), expected.reset_index(drop=True), check_names=False
    )
