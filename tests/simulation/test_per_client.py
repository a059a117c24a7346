"""Who is served: scores and statistics of single clients, against values by hand."""

import re
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from helpers.four_clients import FOUR, HELD, TESTS, FourUsers
from helpers.packs import play
from helpers.tasks import Task, columns

import raysafl as fl
from raysafl.data import Dataset, Overlapping, Samples, Synthetic
from raysafl.objectives import NextToken, Regression
from raysafl.runtime.in_process import Worker
from raysafl.simulation import judging
from raysafl.simulation.per_client import served
from raysafl.simulation.simulation import Simulation
from raysafl.storage.rows import of_owners
from raysafl.sweep.open_cell import client_rows as rows_of_cell
from raysafl.sweep.prepare import prepare


def hits(w_P: Any, dataset: Dataset) -> Any:
    """Whether logistic regression classifies each test sample correctly, by hand."""
    w = np.asarray(w_P, np.float64)
    scores = dataset.test.x @ w[:16].reshape(4, 4).T + w[16:]
    return scores.argmax(1) == dataset.test.y


def client_rows(own: Simulation) -> pa.Table:
    """The rows of all replicates in the table of clients."""
    cells = zip(own.run.cell_ids, own.replicates, strict=True)
    table = pa.concat_tables(rows_of_cell(cell, replicate) for cell, replicate in cells)
    return of_owners(table, {own.run.id: own.run.cell_ids})


def last(run: fl.Run) -> tuple[Any, dict[str, float], Any]:
    """Of replicate 0: its last rows of clients/, its last metrics, its parameters."""
    own, records = play(run)
    table = client_rows(own).to_pandas()
    table = table[(table["replicate"] == 0) & (table["round"] == run.rounds - 1)]
    metrics = [record.metrics for record in records if record.replicate == 0][-1]
    return table, dict(metrics), own.replicates[0].state.w_P


def test_statistics_of_four_clients_equal_those_by_hand() -> None:
    came = np.array([4, 2, 0, 0])
    quality = np.array([0.9, 0.5, 0.3, 0.1])
    found = served(came, quality, personal_N=np.array([1.0, 0.6, 0.8, 0.4]), absent=0.2)
    assert found == pytest.approx(
        {
            "mean": 0.45,
            # The squares of 0.45, 0.05, -0.15 and -0.35 have the mean 0.0875.
            "std": 0.0875**0.5,
            "weighted": (4 * 0.9 + 2 * 0.5) / 6,
            "never": 0.2,
            # The two that never came share the one place.
            "rarest10": 0.2,
            "worst10": 0.1,
            "absent_classes": 0.2,
            "mean_personal": 0.7,
            "never_personal": 0.6,
        }
    )


def test_the_worst_the_rarest_and_what_does_not_exist() -> None:
    found = served(np.array([1, 0]), np.array([3.0, 2.0]), higher_is_better=False)
    assert found["worst10"] == 3.0 and found["never"] == 2.0
    # Of 20 clients, the tenth are two: the one that came once, and one of three.
    came = np.array([1, 2, 2, 2, *[5] * 16])
    quality = np.array([0.8, 0.0, 0.3, 0.6, *[1.0] * 16])
    assert served(came, quality)["rarest10"] == pytest.approx((0.8 + 0.3) / 2)
    nobody = served(np.zeros(4, int), np.full(4, 0.5))
    assert "weighted" not in nobody and nobody["never"] == 0.5
    everybody = served(np.ones(4, int), np.full(4, 0.5))
    assert "never" not in everybody and "absent_classes" not in everybody


def test_a_client_takes_part_in_the_rounds_in_which_it_trains_and_not_in_the_servers(
    tiny: fl.Run,
) -> None:
    run = tiny.replace(algorithm=fl.SAFARI(client_prob=0.5), rounds=8, eval_every=1)
    own, records = play(run.replace(eval_clients=fl.PerClient(every=8)))
    table = client_rows(own).to_pandas().set_index(["replicate", "client"])
    for replicate in range(2):
        rows = [record for record in records if record.replicate == replicate]
        assert {row.kind for row in rows if row.cohorts[-1]} == {"client", "server"}
        trained = Counter(i for r in rows if r.kind == "client" for i in r.cohorts[-1])
        found = table.loc[replicate, "participations"].to_dict()
        assert found == {i: trained[i] for i in range(10)}


class TwoUsers(FourUsers):
    """The first three users as one, and no test samples of class 1."""

    def load(self) -> Dataset:
        whole = super().load()
        train, test = whole.train, whole.test
        users = np.where(train.users < 3, 0, train.users)
        tested = test.y != 1
        part = Samples(test.x[tested], test.y[tested])
        return Dataset("two", Samples(train.x, train.y, users=users), part, 4)


def test_a_class_without_test_samples_counts_for_no_client() -> None:
    changes = {"data.dataset": TwoUsers(), "data.clients": 2}
    table, _, w_P = last(FOUR.replace(changes))
    dataset = TwoUsers().load()
    hit = hits(w_P, dataset)
    of_0, of_2, of_3 = (hit[dataset.test.y == c].mean() for c in (0, 2, 3))
    # The first holds 5 samples of class 0, 3 of class 1 and 2 of class 2.
    expected = [(5 * of_0 + 2 * of_2) / 7, of_3]
    assert table["quality"].tolist() == pytest.approx(expected)


def test_by_labels_a_client_is_served_as_the_classes_that_it_holds() -> None:
    table, metrics, w_P = last(FOUR)
    dataset = FourUsers().load()
    hit = hits(w_P, dataset)
    of_class = np.array([hit[dataset.test.y == c].mean() for c in range(4)])
    share = HELD / HELD.sum(1, keepdims=True)
    quality = share @ of_class
    assert table["quality"].tolist() == pytest.approx(quality.tolist())
    assert table["participations"].tolist() == [4, 2, 0, 0]
    assert table["samples"].tolist() == HELD.sum(1).tolist()
    tests = [TESTS.sum(0)[HELD[i] > 0].sum() for i in range(4)]
    assert table["test_samples"].tolist() == tests
    assert table["personal_quality"].isna().all()
    # Classes 2 and 3 are held by clients that never came, class 0 by client 0 too.
    absent = hit[np.isin(dataset.test.y, [2, 3])].mean()
    assert metrics["clients_absent_classes_accuracy"] == pytest.approx(absent)
    assert metrics["clients_never_accuracy"] == pytest.approx(quality[2:].mean())
    assert metrics["clients_worst10_accuracy"] == pytest.approx(quality.min())
    assert metrics["clients_weighted_accuracy"] == pytest.approx(
        (4 * quality[0] + 2 * quality[1]) / 6
    )
    # Nobody who holds class 3 has trained, and the model never names it.
    assert quality[3] == 0 < quality[2] < quality[1] < quality[0]
    scores = torch.from_numpy(dataset.test.x) @ w_P[:16].view(4, 4).T + w_P[16:]
    targets = torch.from_numpy(dataset.test.y)
    losses = torch.nn.functional.cross_entropy(scores, targets, reduction="none")
    loss_of_class = np.array([losses[targets == c].mean().item() for c in range(4)])
    assert table["loss"].tolist() == pytest.approx((share @ loss_of_class).tolist())


def test_test_samples_that_users_hold_are_their_clients_own() -> None:
    table, metrics, w_P = last(
        FOUR.replace(eval_clients=fl.PerClient(every=2, on="own"))
    )
    dataset = FourUsers().load()
    hit = hits(w_P, dataset)
    quality = [hit[dataset.test.users == user].mean() for user in range(4)]
    assert table["quality"].tolist() == pytest.approx(quality)
    assert table["test_samples"].tolist() == TESTS.sum(1).tolist()
    absent = hit[np.isin(dataset.test.y, [2, 3])].mean()
    assert metrics["clients_absent_classes_accuracy"] == pytest.approx(absent)


def test_clients_are_the_users_that_were_taken_also_if_some_were_not() -> None:
    run = FOUR.replace(
        {
            "data": fl.Federation(dataset=Synthetic(users=9), clients=5).replace(
                partition=FOUR.data.partition
            )
        },
        eval_clients=fl.PerClient(every=4, on="own"),
    )
    worker = Worker(run.cells, run.data.load(), run.model)
    dataset = run.data.load()
    assert dataset.train.users is not None and dataset.test.users is not None
    split = worker.population.splits[0]
    for i, tests in enumerate(worker.client_tests(0, "own").tests_N):
        (user,) = np.unique(dataset.train.users[split.clients[i]])
        assert tests == (dataset.test.users == user).sum()


def test_own_tests_are_held_out_of_a_clients_samples_and_of_training() -> None:
    run = FOUR.replace(
        {"data.own_tests": 0.5}, eval_clients=fl.PerClient(every=4, on="own")
    )
    before = FOUR.data.split(FourUsers().load(), 0)
    split = run.data.split(FourUsers().load(), 0)
    assert split.tests is not None
    for i in range(4):
        own, kept = split.tests[i], split.clients[i]
        assert len(own) == HELD.sum(1)[i] // 2
        assert sorted([*own, *kept]) == sorted(before.clients[i])
    table, _, w_P = last(run)
    dataset = FourUsers().load()
    hit = hits(w_P, replace(dataset, test=dataset.train))
    quality = [hit[split.tests[i]].mean() for i in range(4)]
    assert table["quality"].tolist() == pytest.approx(quality)


def test_a_personal_model_is_the_global_one_after_k_local_steps() -> None:
    run = FOUR.replace(eval_clients=fl.PerClient(every=4, personal_steps=3))
    table, metrics, w_P = last(run)
    dataset = FourUsers().load()
    # The same local steps as training of a run whose local training they are, in the
    # same round and with the same batches.
    few = fl.LocalTraining(lr=0.5, batch_size=2, steps=3)
    worker = Worker(run.cells, dataset, run.model)
    asked = [Task(0, i, w_P.float(), few, seed=0, round=3, call=0) for i in range(4)]
    deltas = worker.trainer.train(columns(asked)).delta_MP
    for i in range(4):
        hit = hits(w_P - deltas[i], dataset)
        of_class = np.array([hit[dataset.test.y == c].mean() for c in range(4)])
        quality = HELD[i] / HELD[i].sum() @ of_class
        assert table["personal_quality"].iloc[i] == pytest.approx(quality)
    assert metrics["clients_never_personal_accuracy"] == pytest.approx(
        table["personal_quality"].iloc[2:].mean()
    )
    # Client 3 holds one class, which its own model knows better than the global one.
    assert table["personal_quality"].iloc[3] > table["quality"].iloc[3]


def test_personal_models_do_not_depend_on_how_many_are_in_memory_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = FOUR.replace(eval_clients=fl.PerClient(every=2, personal_steps=3))
    whole, _, w_P = last(run)
    monkeypatch.setattr(judging, "MOST_NUMBERS", 3 * len(w_P))
    parts, _, _ = last(run)
    assert parts.equals(whole)


@pytest.mark.parametrize("on", ["labels", "own"])
def test_nothing_else_changes_by_a_bit_where_clients_are_evaluated(on: Any) -> None:
    asked = FOUR.replace(eval_clients=fl.PerClient(every=2, on=on, personal_steps=2))
    with_clients, records = play(asked)
    without, plain = play(FOUR.replace(eval_clients=None))
    for one, other in zip(records, plain, strict=True):
        same = {name: getattr(one, name) for name in asdict(other)}
        assert {**same, "metrics": {}, "seconds": 0} == {
            **asdict(other),
            "metrics": {},
            "seconds": 0,
        }
        due = one.round % 2 == 1
        assert bool(one.metrics) == due
        assert one.metrics.keys() <= asked.columns().keys()
    for one_r, other_r in zip(with_clients.replicates, without.replicates, strict=True):
        assert torch.equal(one_r.state.w_P, other_r.state.w_P)


def test_the_columns_are_declared_with_the_objectives_metric() -> None:
    columns = FOUR.columns()
    assert columns["clients_never_accuracy"].is_fraction
    assert columns["clients_mean_accuracy"].higher_is_better
    assert not columns["clients_std_accuracy"].higher_is_better
    assert "clients_mean_personal_accuracy" not in columns
    personal = FOUR.replace(eval_clients=fl.PerClient(personal_steps=1)).columns()
    assert "clients_never_personal_accuracy" in personal


class LastIsEmpty(fl.Iid):
    """The last client holds nothing."""

    def spread(self, *arguments: Any) -> Any:
        """Take from the last client what it holds."""
        *parts, last = super().spread(*arguments)
        return [*parts, last[:0]]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another rhythm": (
        {"eval_every": 3, "rounds": 9, "eval_clients": fl.PerClient(every=4)},
        "eval_clients.every=4 is no multiple of eval_every=3, and only evaluated rounds "
        "have a row; give every=3",
    ),
    "too many rows": (
        {"rounds": 1_000_000, "eval_clients": fl.PerClient(every=1)},
        "a table with 8,000,000 rows (4 clients, 2 replicates, 1,000,000 rounds); at most "
        "2,000,000 are allowed",
    ),
    "no users": (
        {
            "data": fl.Federation(clients=10),
            "participation": {"kind": "Full"},
            "eval_clients": fl.PerClient(on="own"),
        },
        "does not say whose its samples are",
    ),
    "users at several clients": (
        {"data.partition": fl.Iid(), "eval_clients": fl.PerClient(on="own")},
        "both hold samples of user",
    ),
    "an empty client": ({"data.partition": LastIsEmpty()}, "test samples for client 3"),
    "overlapping clients": (
        {"data.partition": Overlapping(samples=8), "data.own_tests": 0.5},
        "under this partition two clients hold the same one",
    ),
    "too few to hold out": (
        {"data": fl.Federation(clients=1200, own_tests=0.2)},
        "no test sample beside one to train on: it holds 1 samples, and needs 2",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused_before_anything_runs(name: str) -> None:
    changes, message = REFUSED[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        prepare([FOUR.replace(changes)])


class Numbers(FourUsers):
    """Four users, and a number to predict for each sample."""

    def load(self) -> Dataset:
        """The class as a number."""
        full = super().load()
        parts = (replace(p, y=p.y.astype(np.float32)) for p in (full.train, full.test))
        return Dataset(full.name, *parts, 0)


def test_clients_of_a_regression_are_compared_by_its_metric() -> None:
    run = FOUR.replace(
        {"data.dataset": Numbers()},
        objective=Regression(),
        local=fl.LocalTraining(lr=0.05, batch_size=2, epochs=1),
        eval_clients=fl.PerClient(every=2, on="own"),
    )
    own, records = play(run)
    table = client_rows(own).to_pandas()
    table = table[(table["replicate"] == 0) & (table["round"] == 3)]
    dataset = run.data.load()
    w = own.replicates[0].state.w_P.double().numpy()
    outputs = dataset.test.x @ w[:4] + w[4]
    gaps = np.abs(outputs - dataset.test.y)
    name = run.objective.metric
    assert name == "mae"
    mae = [gaps[dataset.test.users == user].mean() for user in range(4)]
    assert table["quality"].tolist() == pytest.approx(mae, rel=1e-5)
    metrics = [r.metrics for r in records if r.replicate == 0][-1]
    assert metrics["clients_worst10_mae"] == pytest.approx(max(mae), rel=1e-5)
    with pytest.raises(ValueError, match="on='labels' needs samples with one class"):
        prepare([run.replace(eval_clients=fl.PerClient())])
    assert NextToken().metric == "accuracy"


def test_the_code_of_the_page_on_who_is_served_measures_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "who_is_served.md").read_text()
    first, rents, table = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"__name__": "__main__", "__file__": "page.py"}
    exec(first, names)
    columns = {name for name in names["run"].columns() if name.startswith("clients_")}
    assert columns == set(re.findall(r"`(clients_\w+_accuracy)`", page))
    exec(compile(rents, "page.py", "exec"), names)
    of_clients = names["Rents"]().client_statistics()
    rmse = np.arange(20.0)
    found = {name: own.value(rmse) for name, own in of_clients.items()}
    assert found == {"worst_rmse": 19, "tenth_rmse": 18.5}
    run = names["run"].replace(rounds=10, replicates=1)
    fl.Runner(fl.Sweep("mine", [run]), executor="here", track="none", quiet=True).run()
    exec(table, names)
    # In ten rounds, five of twenty clients come each time.
    rows = [(row.participations, row.quality) for row in names["last"].itertuples()]
    assert len(rows) == 20 and sum(came for came, _ in rows) == 10 * 5
    by_hand = {
        came: pytest.approx(np.mean([own for other, own in rows if other == came]))
        for came, _ in rows
    }
    assert names["by_participation"].to_dict() == by_hand
