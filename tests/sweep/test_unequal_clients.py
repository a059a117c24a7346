"""Clients of very unequal size, from a column of a table, are evaluated one by one."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.pictures import without_pictures
from helpers.sweeps_here import Halving, search
from numpy.testing import assert_allclose
from ray import tune

import raysafl as fl
from raysafl.objectives import ClientStatistic, Regression
from raysafl.storage.store import Store
from raysafl.sweep.outcome import Outcome

# 24 counties, of which the smallest has one row.
SIZES = [1, 2, 3, 5, 8, *range(10, 105, 5)]


class Rmse(Regression):
    """Regression whose models are judged by the root of the mean squared error."""

    metric: ClassVar[str] = "rmse"

    def client_statistics(self) -> dict[str, ClientStatistic]:
        """The county for which it is worst, and how far the counties are apart."""
        return {
            "worst_rmse": ClientStatistic(
                "RMSE of the worst county", np.max, higher_is_better=False
            ),
            "gap": ClientStatistic(
                "RMSE of the worst county minus that of the best",
                lambda rmse_N: rmse_N.max() - rmse_N.min(),
                False,
                False,
            ),
        }


def rents() -> pd.DataFrame:
    """Rents of flats by size and age, each county at another level."""
    rng = np.random.default_rng(0)
    number = np.repeat(np.arange(len(SIZES)), SIZES)
    size, age = rng.normal(size=(2, len(number)))
    rent = 2 * size - age + 0.1 * number
    names = [f"county {i:02d}" for i in number]
    return pd.DataFrame({"county": names, "size": size, "age": age, "rent": rent})


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[fl.Run, Outcome]:
    """A run over all counties that have training rows, in a folder."""
    source = fl.from_pandas(rents(), label="rent", client="county", test_share=0.3)
    column = source.load().train.columns["county"]
    run = fl.Run(
        data=fl.Federation(
            dataset=source,
            clients=len(np.unique(column.codes)),
            partition=fl.ByColumn(column="county"),
        ),
        model=fl.MLP(hidden=[4]),
        algorithm=fl.FedAvg(),
        participation=fl.Uniform(m=4),
        local=fl.LocalTraining(lr=0.05, batch_size=8, epochs=1),
        rounds=4,
        objective=Rmse(),
        eval_clients=fl.PerClient(every=4, on="own", personal_steps=2),
        keep="last",
    )
    sweep = fl.Sweep("counties", {("FedAvg",): run}, axes=("algorithm",))
    folder = tmp_path_factory.mktemp("counties")
    with without_pictures():
        outcome = fl.Runner(sweep, folder, executor="here", track="none").run()
    assert outcome.ok
    return run, outcome


def test_the_rmse_of_each_county_is_numpy_s(done: tuple[fl.Run, Outcome]) -> None:
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
    rmse = []
    for client, name in enumerate(names):
        row = table.loc[client]
        assert row["test_samples"] == (own == name).sum()
        if row["test_samples"]:
            rmse.append(np.sqrt(squared[own == name].mean()))
            assert_allclose(row["quality"], rmse[-1], rtol=1e-5)
    (last,) = outcome.store.rounds().query("round == 3").to_dict("records")
    assert_allclose(last["clients_worst_rmse"], np.max(rmse), rtol=1e-5)
    assert_allclose(last["clients_gap"], np.max(rmse) - np.min(rmse), rtol=1e-5)
    (summary,) = outcome.runs.to_dict("records")
    assert summary["final_clients_worst_rmse"] == last["clients_worst_rmse"]


def test_a_county_without_test_rows_has_empty_entries_and_is_left_out_of_statistics(
    done: tuple[fl.Run, Outcome],
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


def test_a_search_goes_by_the_worst_client(
    done: tuple[fl.Run, Outcome], tmp_path: Path
) -> None:
    run, _ = done
    searcher = Halving(0.1)
    sweep = fl.Sweep(
        "worst",
        space={"local.lr": tune.uniform(0.001, 0.05)},
        base=run.replace(eval_clients=fl.PerClient(every=4, on="own")),
        search_alg=searcher,
        metric="clients_worst_rmse",
        num_samples=2,
    )
    assert search(sweep, tmp_path)[0].ok
    assert (searcher.by, searcher.better) == ("clients_worst_rmse", "min")
    rows = Store(tmp_path).rounds().query("round == 3")
    told = searcher.told.values()
    assert set(told) == set(rows["clients_worst_rmse"]) and len(told) == 2


def test_a_replicate_stops_where_the_worst_client_has_not_improved(
    done: tuple[fl.Run, Outcome],
) -> None:
    run, _ = done
    run = run.replace(
        rounds=40, keep=None, eval_clients=fl.PerClient(every=2, on="own"), replicates=2
    )
    whole = fl.simulate(run)
    patience = fl.Patience(metric="clients_worst_rmse", rounds=4, min_delta=0.05)
    stopped = fl.simulate(run.replace(patience=patience))
    for replicate, rows in whole.groupby("replicate"):
        worst = rows.dropna(subset="clients_worst_rmse")
        best, since, end = np.inf, -1, 39
        for round, value in zip(
            worst["round"], worst["clients_worst_rmse"], strict=True
        ):
            if value < best - 0.05:
                best, since = value, round
            elif round - since >= 4:
                end = round
                break
        mine = stopped[stopped["replicate"] == replicate]
        assert mine["round"].max() == end < 39
        assert mine["clients_worst_rmse"].count() == (end + 1) // 2


class Failing(Rmse):
    """A statistic over clients that fails, or is none, in several ways."""

    how: str

    def client_statistics(self) -> dict[str, ClientStatistic]:
        """One statistic."""
        wrong: dict[str, Any] = {
            "an error": ("worst", ClientStatistic("worst", lambda rmse_N: rmse_N["x"])),
            "an array": ("worst", ClientStatistic("worst", lambda rmse_N: rmse_N[:2])),
            "a function": ("worst", np.max),
            "a name": ("Worst", ClientStatistic("worst", np.max)),
            "our name": ("mean_rmse", ClientStatistic("mean", np.mean)),
        }
        return dict([wrong[self.how]])


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("an error", r"<lambda> \(test_unequal_clients.py:\d+\): IndexError: only int"),
        ("an array", r"'clients_worst' of Failing.client_statistics \(test_.*must"),
        ("a function", r"Failing.client_statistics \(test_.*gives 'worst': <function"),
        ("a name", r"Failing.client_statistics \(test_.*gives 'Worst'"),
        ("our name", "would fill the column 'clients_mean_rmse', which every run"),
    ],
)
def test_a_wrong_statistic_over_clients_is_refused_with_its_line_before_anything_runs(
    done: tuple[fl.Run, Outcome], how: str, told: str
) -> None:
    run, _ = done
    with pytest.raises(ValueError, match=told):
        fl.simulate(run.replace(objective=Failing(how=how)))
