"""Several tags per sample: the loss by its formula, the recall by ranks and by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raysafl.core.objective import check_targets
from raysafl.data import Dataset, Samples
from raysafl.objectives import MultiLabel

RNG = np.random.default_rng(0)
OUTPUTS = RNG.normal(size=(40, 9)).astype(np.float32)
TARGETS = (RNG.random((40, 9)) < 0.3).astype(np.float32)


def values(outputs: Any, targets: Any) -> Any:
    o, t = torch.as_tensor(outputs), torch.as_tensor(targets)
    measures = MultiLabel().measures(o.shape[1])
    return {n: m.value(m.sums(o, t).numpy(), len(t)) for n, m in measures.items()}


def dataset(y: Any, classes: int = 0) -> Dataset:
    part = Samples(np.zeros((len(y), 2), np.float32), y)
    return Dataset("posts", part, part, classes)


def test_a_loss_is_the_mean_of_the_binary_cross_entropies() -> None:
    losses = MultiLabel().losses(torch.tensor(OUTPUTS), torch.tensor(TARGETS))
    p = 1 / (1 + np.exp(-OUTPUTS.astype(np.float64)))
    expected = -np.where(TARGETS == 1, np.log(p), np.log(1 - p)).mean(1)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_a_loss_is_finite_for_outputs_of_any_size() -> None:
    losses = MultiLabel().losses(torch.tensor([[1e4, -1e4]]), torch.tensor([[0.0, 1]]))
    assert losses.tolist() == [1e4]


def test_recall_counts_the_tags_among_the_five_largest_outputs() -> None:
    outputs = np.array([[7.0, 6, 5, 4, 3, 2, 1], [-1, -2, -3, -4, -5, -6, -7]])
    # 2 of 3 tags, and 1 of 1: 3 of 4, and not the mean of 2/3 and 1
    targets = np.array([[1.0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 0, 0, 0]])
    assert values(outputs, targets)["recall_at_5"] == 0.75


@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(2, 12))
@settings(max_examples=25)
def test_the_recall_is_the_share_of_tags_of_rank_five_or_less(
    seed: int, n: int, k: int
) -> None:
    rng = np.random.default_rng(seed)
    outputs = rng.normal(size=(n, k))
    targets = (rng.random((n, k)) < 0.3).astype(float)
    targets[0, 0] = 1
    rank = (-outputs).argsort(1).argsort(1)
    recall = targets[rank < 5].sum() / targets.sum()
    assert values(outputs, targets) == pytest.approx({"recall_at_5": recall})


def test_samples_without_tags_leave_the_recall_as_it_is() -> None:
    more = np.concatenate([TARGETS, np.zeros((5, 9), np.float32)])
    outputs = np.concatenate([OUTPUTS, OUTPUTS[:5]])
    recall = values(OUTPUTS, TARGETS)["recall_at_5"]
    assert values(outputs, more)["recall_at_5"] == recall
    assert np.isnan(values(OUTPUTS, 0 * TARGETS)["recall_at_5"])


@pytest.mark.parametrize(
    "wrong",
    [dataset(2 * TARGETS), dataset(np.arange(9), classes=9), dataset(TARGETS[:, :5])],
    ids=["0 and 2", "classes", "five tags"],
)
def test_targets_other_than_six_of_zero_and_one_are_refused(wrong: Dataset) -> None:
    check_targets(MultiLabel(), dataset(TARGETS[:, :6]))
    with pytest.raises(
        ValueError, match="needs 6 tags or more, each 0 or 1, and 'posts'"
    ):
        check_targets(MultiLabel(), wrong)
