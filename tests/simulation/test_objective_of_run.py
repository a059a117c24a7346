"""The objective of a run: its id, its columns, its records, and who may go by accuracy."""

import numpy as np
import pytest
from helpers.packs import play

from raysafl import (
    MLP,
    ClassesPerClient,
    Dirichlet,
    FedAvg,
    Federation,
    Iid,
    IidServer,
    LocalTraining,
    Run,
    Snapshot,
    Uniform,
)
from raysafl.core.component import Component
from raysafl.core.problem import Dataset
from raysafl.data import (
    ByUser,
    FromClients,
    Overlapping,
    Partition,
    Samples,
    ServerData,
    Shards,
    Source,
    StratifiedServer,
    Subset,
)
from raysafl.objectives import Classification, Regression


class Line(Source):
    """Numbers to predict, each made by one of five users."""

    def load(self) -> Dataset:
        x = np.random.default_rng(0).normal(size=(120, 2)).astype(np.float32)
        y = x @ np.array([2, -1], np.float32)
        train = Samples(x[:100], y[:100], users=np.arange(100) % 5)
        return Dataset("line", train, Samples(x[100:], y[100:]), 0)


def line(partition: Partition | None = None, server: ServerData | None = None) -> Run:
    return Run(
        data=Federation(
            dataset=Line(), clients=5, partition=partition or Iid(), server=server
        ),
        model=MLP(hidden=[4]),
        objective=Regression(),
        algorithm=FedAvg(),
        participation=Uniform(m=3),
        local=LocalTraining(lr=0.1, batch_size=8, epochs=1),
        rounds=3,
    )


def test_the_objective_is_a_part_of_a_runs_json(tiny: Run) -> None:
    assert tiny.objective == Classification()
    assert tiny.flat()["objective"] == "Classification"
    assert tiny.replace(objective=Classification()).id == tiny.id
    other = tiny.replace(objective=Classification(label_smoothing=0.1))
    assert other.id != tiny.id and Run.from_json(other.to_json()) == other


def test_a_run_declares_its_columns(tiny: Run) -> None:
    assert list(tiny.columns()) == ["test_accuracy", "test_loss"]
    run = tiny.replace(objective=Classification(metrics=["per_class_accuracy"]))
    assert "test_accuracy_of_9" in run.columns(10)
    assert "test_accuracy_of_2" not in run.columns()


def test_records_hold_every_declared_column() -> None:
    run = line()
    for record in play(run)[1]:
        assert record.test_accuracy is None and record.train_accuracy is None
        assert record.test_loss == pytest.approx(record.metrics["test_rmse"] ** 2)
        assert record.train_loss is not None and np.isfinite(record.train_loss)
        named = {"test_loss", *record.metrics}
        assert named == set(run.columns(1))


def test_further_metrics_change_no_training(tiny: Run) -> None:
    more = tiny.replace(objective=Classification(metrics=["f1"]))
    for one, other in zip(play(tiny)[1], play(more)[1], strict=True):
        assert one.train_loss == other.train_loss
        assert one.test_accuracy == other.test_accuracy
        assert one.test_loss == pytest.approx(other.test_loss, rel=1e-6)
        assert one.metrics == {} and list(other.metrics) == ["test_f1"]


@pytest.mark.parametrize("accuracy", ["local", "cohort", "clients"])
def test_a_policy_that_adapts_to_accuracy_needs_one(accuracy: str) -> None:
    policy = Snapshot(
        base=Uniform(m=3), uniform=Uniform(m=4), adapt=1.0, accuracy=accuracy
    )
    with pytest.raises(
        ValueError, match="Snapshot goes by the training accuracy, but Regression meas"
    ):
        line().replace(participation=policy)
    regular = Snapshot(base=Uniform(m=3), uniform=Uniform(m=4), every=2)
    assert len(play(line().replace(participation=regular))[1]) == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"partition": ClassesPerClient(p=1)},
        {"partition": Shards(p=2)},
        {"partition": Dirichlet(alpha=1)},
        {"partition": Dirichlet(alpha=1, balanced=False)},
        {"server": StratifiedServer(n0=10)},
    ],
)
def test_rules_that_go_by_class_refuse_numbers(changes: dict[str, Component]) -> None:
    with pytest.raises(
        ValueError,
        match=r"goes by the class of a sample, but the targets of 'line' are numbers or tags; "
        r"take (Iid|IidServer)\(",
    ):
        play(line(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"partition": ByUser()},
        {"partition": Overlapping(samples=20)},
        {"server": IidServer(n0=10)},
        {"server": FromClients(c=2, per_client=3)},
    ],
)
def test_rules_that_need_no_class_take_numbers(changes: dict[str, Component]) -> None:
    losses = [record.test_loss for record in play(line(**changes))[1]]
    assert losses[-1] < losses[0]


def test_a_subset_of_numbers_is_drawn_without_classes() -> None:
    run = line().replace({"data.dataset": Subset(dataset=Line(), train=50, test=10)})
    dataset = run.data.load()
    assert (len(dataset.train), len(dataset.test), dataset.num_classes) == (50, 10, 0)
    assert set(dataset.train.y) < set(Line().load().train.y)
    with pytest.raises(ValueError, match="classes=2 needs one class for each sample"):
        Subset(dataset=Line(), classes=2).load()
