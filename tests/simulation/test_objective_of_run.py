"""The objective of a run: its id, its columns, its records, and who may go by accuracy."""

import numpy as np
import pytest
from helpers.objectives import REGRESSION, Slope
from helpers.packs import play

import raysafl as fl
from raysafl.core.component import Component
from raysafl.data import FromClients, Overlapping, Shards, StratifiedServer, Subset
from raysafl.objectives import Classification


def test_a_run_declares_its_columns(tiny: fl.Run) -> None:
    assert list(tiny.columns()) == ["test_accuracy", "test_loss"]
    run = tiny.replace(objective=Classification(metrics=["per_class_accuracy"]))
    assert "test_accuracy_of_9" in run.columns(10)
    assert "test_accuracy_of_2" not in run.columns()


def test_records_hold_every_declared_column() -> None:
    run = REGRESSION
    for record in play(run)[1]:
        assert record.test_accuracy is None and record.train_accuracy is None
        assert record.test_loss == pytest.approx(record.metrics["test_rmse"] ** 2)
        assert record.train_loss is not None and np.isfinite(record.train_loss)
        named = {"test_loss", *record.metrics}
        assert named == set(run.columns(1))


def test_further_metrics_change_no_training(tiny: fl.Run) -> None:
    more = tiny.replace(objective=Classification(metrics=["f1"]))
    for one, other in zip(play(tiny)[1], play(more)[1], strict=True):
        assert one.train_loss == other.train_loss
        assert one.test_accuracy == other.test_accuracy
        assert one.test_loss == pytest.approx(other.test_loss, rel=1e-6)
        assert one.metrics == {} and list(other.metrics) == ["test_f1"]


@pytest.mark.parametrize("accuracy", ["local", "cohort", "clients"])
def test_a_policy_that_adapts_to_accuracy_needs_one(accuracy: str) -> None:
    policy = fl.Snapshot(
        base=fl.Uniform(m=3), uniform=fl.Uniform(m=4), adapt=1.0, accuracy=accuracy
    )
    with pytest.raises(ValueError, match="goes by the training accuracy, but Regress"):
        REGRESSION.replace(participation=policy)
    regular = fl.Snapshot(base=fl.Uniform(m=3), uniform=fl.Uniform(m=4), every=2)
    assert len(play(REGRESSION.replace(participation=regular))[1]) == 12


@pytest.mark.parametrize(
    "changes",
    [
        {"data.partition": fl.ClassesPerClient(p=1)},
        {"data.partition": Shards(p=2)},
        {"data.partition": fl.Dirichlet(alpha=1)},
        {"data.partition": fl.Dirichlet(alpha=1, balanced=False)},
        {"data.server": StratifiedServer(n0=10)},
    ],
)
def test_rules_that_go_by_class_refuse_numbers(changes: dict[str, Component]) -> None:
    with pytest.raises(ValueError, match=r"take (Iid|IidServer)\("):
        play(REGRESSION.replace(changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"data.partition": Overlapping(samples=20)},
        {"data.server": fl.IidServer(n0=10)},
        {"data.server": FromClients(c=2, per_client=3)},
    ],
)
def test_rules_that_need_no_class_take_numbers(changes: dict[str, Component]) -> None:
    run = REGRESSION.replace({**changes, "replicates": 1})
    losses = [record.test_loss for record in play(run)[1]]
    assert losses[-1] < losses[0]


def test_a_subset_of_numbers_is_drawn_without_classes() -> None:
    run = REGRESSION.replace(
        {"data.dataset": Subset(dataset=Slope(), train=50, test=10)}
    )
    dataset = run.data.load()
    assert (len(dataset.train), len(dataset.test), dataset.num_classes) == (50, 10, 0)
    assert set(dataset.train.y) < set(Slope().load().train.y)
    with pytest.raises(ValueError, match="classes=2 needs one class for each sample"):
        Subset(dataset=Slope(), classes=2).load()
