"""Data that exist in the driver's memory only reach the trials and actors of a sweep."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from ray import tune
from ray.tune.schedulers import FIFOScheduler

import raysafl as fl


def base() -> fl.Run:
    rng = np.random.default_rng(0)
    df = pd.DataFrame(rng.normal(size=(120, 3)), columns=list("abc"))
    df["above"] = np.where(df.a > df.b, "yes", "no")
    df["town"] = rng.choice(["Bern", "Genf", "Basel", "Chur"], 120)
    source = fl.from_pandas(df, label="above", client="town", test_share=0.25)
    return fl.Run(
        data=fl.Federation(
            dataset=source, clients=4, partition=fl.ByColumn(column="town")
        ),
        model=fl.Logistic(),
        algorithm=fl.FedAvg(),
        participation=fl.Uniform(m=2),
        local=fl.LocalTraining(lr=0.1, batch_size=8, epochs=1),
        rounds=3,
    )


@pytest.mark.acceptance
@pytest.mark.usefixtures("ray_local")
def test_a_grid_and_sampled_runs_give_the_numbers_of_one_process(
    tmp_path: Path,
) -> None:
    run = base()
    runs = {(lr,): run.replace({"local.lr": lr}) for lr in (0.05, 0.2)}
    grid = fl.Sweep("grid", runs=runs, axes=["lr"])
    # A scheduler makes each trial load the data of the run that it makes.
    sampled = fl.Sweep(
        "sampled",
        space={"local.lr": tune.choice([0.05, 0.2]), "data.seed": tune.randint(0, 9)},
        base=run,
        num_samples=2,
        scheduler=FIFOScheduler(),
    )
    hardware = fl.Hardware(cpus=0.5, trials=1)
    for sweep in (grid, sampled):
        out = tmp_path / sweep.name
        outcome = fl.Runner(sweep, out, hardware, track="none", quiet=True).run()
        assert outcome.ok, outcome.runs.get("reason")
        assert len(outcome.runs) == 2
    measured = fl.Runner(grid, tmp_path / "grid").store.runs().set_index("run_id").final
    for expected in runs.values():
        last = fl.simulate(expected)["test_accuracy"].iloc[-1]
        assert measured[expected.id] == pytest.approx(last)
