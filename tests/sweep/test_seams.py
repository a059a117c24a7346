"""Parts of a run that know nothing of each other work together."""

from pathlib import Path
from typing import Any

import pandas as pd

import raysafl as fl
from raysafl.sweep.definition import smoke
from raysafl.sweep.on_ray.run_trainable import RunTrainable

RUN = fl.Run(
    data=fl.Federation(clients=6, validation=fl.Validation(server=0.1)),
    model=fl.Logistic(),
    algorithm=fl.FedAvg(),
    participation=fl.Uniform(m=3),
    local=fl.LocalTraining(lr=0.1, batch_size=32, epochs=1),
    rounds=12,
    replicates=3,
)


def test_a_smoke_run_keeps_the_test_samples_by_which_clients_are_judged() -> None:
    judged = RUN.replace(eval_clients=fl.PerClient(every=12))
    assert smoke(judged).data == judged.data
    assert smoke(RUN).data != RUN.data


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
