"""Clients of very unequal size, from a column of a table, are evaluated one by one."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose

import raysafl as fl
from raysafl import MLP, Federation, LocalTraining, PerClient, Regression, Run, Sweep
from raysafl.sweep.outcome import Outcome

# 24 counties, of which the smallest has one row.
SIZES = [1, 2, 3, 5, 8, *range(10, 105, 5)]


class Rmse(Regression):
    """Regression whose models are judged by the root of the mean squared error."""

    metric: ClassVar[str] = "rmse"


def rents() -> pd.DataFrame:
    """Rents of flats by size and age, each county at another level."""
    rng = np.random.default_rng(0)
    number = np.repeat(np.arange(len(SIZES)), SIZES)
    size, age = rng.normal(size=(2, len(number)))
    rent = 2 * size - age + 0.1 * number
    names = [f"county {i:02d}" for i in number]
    return pd.DataFrame({"county": names, "size": size, "age": age, "rent": rent})


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Outcome]:
    """A run over all counties that have training rows, in a folder."""
    source = fl.from_pandas(rents(), label="rent", client="county", test_share=0.3)
    column = source.load().train.columns["county"]
    run = Run(
        data=Federation(
            dataset=source,
            clients=len(np.unique(column.codes)),
            partition=fl.ByColumn(column="county"),
        ),
        model=MLP(hidden=[4]),
        algorithm=fl.FedAvg(),
        participation=fl.Uniform(m=4),
        local=LocalTraining(lr=0.05, batch_size=8, epochs=1),
        rounds=4,
        objective=Rmse(),
        eval_clients=PerClient(every=4, on="own", personal_steps=2),
        keep="last",
    )
    sweep = Sweep("counties", {("FedAvg",): run}, axes=("algorithm",))
    folder = tmp_path_factory.mktemp("counties")
    outcome = fl.Runner(sweep, folder, executor="here", track="none").run()
    assert outcome.ok
    return run, outcome


def test_the_rmse_of_each_county_is_numpy_s(done: tuple[Run, Outcome]) -> None:
    run, outcome = done
    model = fl.load_model(outcome.store.path, run)
    dataset = run.data.load()
    test = dataset.test
    with torch.no_grad():
        output = model(torch.from_numpy(test.x * test.scale + test.shift)).numpy()
    squared = ((output - test.y.reshape(output.shape)) ** 2).mean(1)
    names = run.data.client_names(dataset, run.data.split(dataset, run.seed))
    column = test.columns["county"]
    own = np.array(column.values)[column.codes]

    table = outcome.store.clients().set_index("client")
    assert len(table) == len(names) >= 20
    for client, name in enumerate(names):
        row = table.loc[client]
        assert row["test_samples"] == (own == name).sum()
        if row["test_samples"]:
            expected = np.sqrt(squared[own == name].mean())
            assert_allclose(row["quality"], expected, rtol=1e-5)


def test_a_county_without_test_rows_has_empty_entries_and_is_left_out_of_statistics(
    done: tuple[Run, Outcome],
) -> None:
    _, outcome = done
    table = outcome.store.clients()
    empty = table["test_samples"] == 0
    assert 1 <= empty.sum() < 10
    for name in ("quality", "loss", "personal_quality"):
        assert (table[name].isna() == empty).all()
    (last,) = outcome.store.rounds().query("round == 3").to_dict("records")
    judged = table[~empty]
    assert_allclose(last["clients_mean_rmse"], judged["quality"].mean())
    worst = judged["quality"].nlargest(-(-len(judged) // 10)).mean()
    assert_allclose(last["clients_worst10_rmse"], worst)


def test_the_figure_of_who_is_served_is_drawn(done: tuple[Run, Outcome]) -> None:
    _, outcome = done
    assert (Path(str(outcome.store.path)) / "served.png").exists()


def test_a_test_set_without_rows_of_any_client_is_refused(
    done: tuple[Run, Outcome],
) -> None:
    run, _ = done
    frame = rents()
    frame["split"] = np.where(frame["county"] == "county 23", "test", "train")
    source = fl.from_pandas(frame, label="rent", client="county", split="split")
    data = run.data.replace(dataset=source, clients=len(SIZES) - 1)
    with pytest.raises(ValueError, match="finds no test samples for any client"):
        fl.simulate(run.replace(data=data, keep=None))
