"""Objectives: what their names, columns and targets must be, and that sums add up."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from raysafl import Objective
from raysafl.core.objective import Measures, check_targets, measures_of, metric_columns
from raysafl.data import Dataset, Samples
from raysafl.objectives import Classification, Metric, NextToken, Regression, mean_of

MANY = Classification(
    metrics="f1 balanced_accuracy top5_accuracy per_class_accuracy confusion".split()
)
CLASSES = 7


class Plain(Objective):
    """The squared error, without a metric."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().mean(1)


class Named(Plain):
    """A metric with a name that the test chooses."""

    name: str = "mae"

    def measures(self, num_outputs: int) -> dict[str, Metric]:
        return {self.name: mean_of("zero", lambda outputs, targets: targets[:, 0] * 0)}


def batch(objective: Objective, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random outputs and targets that fit an objective."""
    rng = torch.Generator().manual_seed(seed)
    if isinstance(objective, Regression):
        return torch.randn(n, 3, generator=rng), torch.randn(n, 3, generator=rng)
    shape = (n, 4) if isinstance(objective, NextToken) else (n,)
    outputs = torch.randn(*shape, CLASSES, generator=rng)
    return outputs, torch.randint(CLASSES, shape, generator=rng)


@pytest.mark.parametrize("objective", [MANY, Regression(), NextToken()], ids=repr)
@given(data=st.data())
def test_the_sums_of_every_metric_add_up_over_any_parts(
    objective: Objective, data: st.DataObject
) -> None:
    n = data.draw(st.integers(1, 30))
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=3)))
    outputs, targets = batch(objective, n, data.draw(st.integers(0, 99)))
    for name, metric in measures_of(objective, CLASSES).items():
        whole = metric.sums(outputs, targets).double()
        parts = zip([0, *cuts], [*cuts, n], strict=True)
        together = sum(
            metric.sums(outputs[a:b], targets[a:b]).double() for a, b in parts
        )
        torch.testing.assert_close(whole, together, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("objective", [MANY, Regression(), NextToken()], ids=repr)
def test_without_samples_no_metric_has_a_value(objective: Objective) -> None:
    outputs, targets = batch(objective, 0)
    for name, metric in measures_of(objective, CLASSES).items():
        value = metric.value(metric.sums(outputs, targets).double().numpy(), 0)
        assert np.isnan(value).all() or name == "confusion"


@pytest.mark.parametrize("name", ["loss", "Mae", "a b", "", "1st"])
def test_a_metric_whose_name_is_no_column_is_refused(name: str) -> None:
    with pytest.raises(
        ValueError, match=rf"Named.measures \(test_objective.py:\d+\) .* {name!r}"
    ):
        measures_of(Named(name=name), 1)


def test_the_metric_of_quality_must_be_measured() -> None:
    class Wrong(Named):
        metric = "mea"

    with pytest.raises(ValueError, match=r"Wrong\.metric is 'mea', but .* returns mae"):
        measures_of(Wrong(), 1)


def test_every_measure_is_declared_as_a_column() -> None:
    columns = metric_columns(Regression(), 1)
    assert list(columns) == ["test_mae", "test_rmse", "test_r2", "test_loss"]
    assert columns["test_mae"].meaning.startswith("mean absolute error")
    assert [c.higher_is_better for c in columns.values()] == [False, False, True, False]
    columns = metric_columns(MANY, 3, "val", "the validation set")
    assert "val_accuracy_of_2" in columns and not columns["val_confusion"].is_scalar
    assert columns["val_f1"].is_fraction and not columns["val_loss"].is_fraction
    assert columns["val_f1"].meaning.endswith("the validation set")
    assert "test_accuracy_of_1" in metric_columns(MANY)


def dataset(y: np.ndarray, num_classes: int, test: np.ndarray | None = None) -> Dataset:
    x = np.zeros((len(y), 2), np.float32)
    test = y if test is None else test
    return Dataset("d", Samples(x, y), Samples(x[: len(test)], test), num_classes)


FLOATS = np.ones(4, np.float32)


@pytest.mark.parametrize(
    ("objective", "data", "text"),
    [
        (Classification(), dataset(FLOATS, 0), r"objective=Regression\(\)"),
        (NextToken(), dataset(FLOATS, 0), "NextToken is for classes"),
        (NextToken(), dataset(np.zeros((4, 2, 3), np.int64), 5), r"are \[4, 2, 3\]"),
        (Regression(), dataset(np.arange(4), 4), "targets of 'd' are 4 classes"),
        (Regression(), dataset(FLOATS.astype(np.float64), 0), r"is float64 \[4\]"),
        (Regression(), dataset(np.arange(4), 0), r'give y.astype\("float32"\)'),
        (
            Regression(),
            dataset(FLOATS, 0, np.array([1, np.nan], np.float32)),
            "'d' has targets that are not finite: test sample 1 is the first",
        ),
        (Classification(), dataset(FLOATS, 2), "must be whole numbers .* are float32"),
        (Classification(), dataset(np.arange(4), 3), "must be 0 to 2, not 0 to 3"),
        (Classification(), dataset(np.zeros((4, 2), np.int64), 3), r"NextToken\(\)"),
        (
            Classification(class_weights=[1, 2]),
            dataset(np.arange(4), 4),
            "class_weights has 2 weights, but 'd' has 4 classes",
        ),
        (
            Classification(class_weights=[0, 0]),
            dataset(np.array([0, 1]), 2),
            "not all of them 0",
        ),
        (
            Classification(metrics=["top5_accuracy"]),
            dataset(np.arange(4), 4),
            "top5_accuracy is always 1 for the 4 classes",
        ),
    ],
)
def test_targets_that_do_not_fit_are_refused(
    objective: Objective, data: Dataset, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        check_targets(objective, data)


@pytest.mark.parametrize(
    ("objective", "data", "outputs", "shape"),
    [
        (Regression(), dataset(FLOATS, 0), 1, (1,)),
        (Regression(), dataset(np.ones((4, 3), np.float32), 0), 3, (3,)),
        (Classification(), dataset(np.arange(4), 5), 5, (5,)),
        (NextToken(), dataset(np.arange(4), 5), 5, (5,)),
        (NextToken(), dataset(np.zeros((4, 6), np.int64), 5), 5, (6, 5)),
        (Plain(), dataset(np.ones((4, 2), np.float32), 0), 2, (2,)),
    ],
)
def test_the_outputs_of_a_model_follow_from_the_targets(
    objective: Objective, data: Dataset, outputs: int, shape: tuple[int, ...]
) -> None:
    check_targets(objective, data)
    assert objective.num_outputs(data) == outputs
    assert objective.output_shape(data) == shape


def test_a_metric_that_is_a_whole_number_is_measured_as_a_number() -> None:
    """Means over replicates and the choice of a model take floats alone."""
    hits = Metric("hits", lambda out, y: (out == y).sum(0), lambda s, n: int(s[0]))
    listed = Metric("all", lambda out, y: out.sum(0), lambda s, n: [1, 2], is_list=True)
    measures = Measures({"hits": hits, "all": listed}, {"hits": 1, "all": 1})
    found = measures.values(np.array([3.0, 0.0]), 4)
    assert found == {"hits": 3.0, "all": [1, 2]} and type(found["hits"]) is float
