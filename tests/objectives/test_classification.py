"""Classes, tags and tokens: losses against their closed form, metrics against scikit-learn."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.own_objective import blocks
from helpers.sweeps_here import go
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from raysafl import Objective, Run, Sweep, load
from raysafl.core.objective import Metric, check_targets
from raysafl.data import Dataset, Samples
from raysafl.objectives import (
    Classification,
    MultiLabel,
    NextToken,
    has_plain_losses,
    is_plain,
    mean_of,
)

CLASSES = 8
OUTPUTS = torch.randn(40, CLASSES, generator=torch.Generator().manual_seed(0))
TARGETS = torch.randint(CLASSES, (40,), generator=torch.Generator().manual_seed(1))
LOGITS = torch.randn(6, 5, 9, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randint(9, (6, 5), generator=torch.Generator().manual_seed(1))
TAGGED = np.random.default_rng(0).normal(size=(40, 9)).astype(np.float32)
TAGS = (np.random.default_rng(1).random((40, 9)) < 0.3).astype(np.float32)


def value(
    objective: Objective, name: str, outputs: torch.Tensor, targets: torch.Tensor
) -> float | list[float]:
    metric: Metric = objective.measures(outputs.shape[1])[name]
    sums = metric.sums(outputs, targets).double().numpy()
    return metric.value(sums, len(targets))


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 0.0, 0.5, 1.0, 3.0, 1.0, 1.0]])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_losses_are_those_of_the_docstring(
    weights: list[float] | None, smoothing: float
) -> None:
    objective = Classification(class_weights=weights, label_smoothing=smoothing)
    w_C = torch.tensor(weights or [1.0] * CLASSES)
    log_p = OUTPUTS.log_softmax(1)
    own = (1 - smoothing) * w_C[TARGETS] * -log_p[torch.arange(40), TARGETS]
    spread = smoothing / CLASSES * (w_C * -log_p).sum(1)
    torch.testing.assert_close(objective.losses(OUTPUTS, TARGETS), own + spread)


def test_plain_losses_are_torchs_to_the_bit() -> None:
    expected = F.cross_entropy(OUTPUTS, TARGETS, reduction="none")
    assert torch.equal(Classification().losses(OUTPUTS, TARGETS), expected)


@given(
    classes=st.integers(6, 9),
    n=st.integers(1, 40),
    used=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_the_metrics_are_those_of_scikit_learn(
    classes: int, n: int, used: int, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    outputs = torch.randn(n, classes, generator=rng)
    targets = torch.randint(min(used, classes), (n,), generator=rng)
    y, predicted, labels = targets.numpy(), outputs.argmax(1).numpy(), range(classes)
    objective = Classification(
        metrics=["f1", "balanced_accuracy", "top5_accuracy", "confusion"]
    )

    def ours(name: str) -> float | list[float]:
        return value(objective, name, outputs, targets)

    assert ours("accuracy") == sk.accuracy_score(y, predicted)
    expected = sk.f1_score(y, predicted, average="macro", zero_division=0)
    assert ours("f1") == pytest.approx(expected)
    with warnings.catch_warnings():
        # It warns of predictions of classes that have no sample.
        warnings.simplefilter("ignore")
        expected = sk.balanced_accuracy_score(y, predicted)
    assert ours("balanced_accuracy") == pytest.approx(expected)
    expected = sk.top_k_accuracy_score(y, outputs.numpy(), k=5, labels=labels)
    assert ours("top5_accuracy") == pytest.approx(expected)
    table = sk.confusion_matrix(y, predicted, labels=labels)
    assert ours("confusion") == table.flatten().tolist()


def test_the_accuracy_of_a_class_is_the_recall_of_its_samples() -> None:
    objective = Classification(metrics=["per_class_accuracy"])
    targets = TARGETS.clamp_max(CLASSES - 2)
    names = [f"accuracy_of_{c}" for c in range(CLASSES)]
    assert list(objective.measures(CLASSES)) == ["accuracy", *names]
    found = [value(objective, name, OUTPUTS, targets) for name in names]
    recall = sk.recall_score(
        *(targets, OUTPUTS.argmax(1)),
        labels=range(CLASSES - 1),
        average=None,
        zero_division=0,
    )
    assert found[:-1] == pytest.approx(recall.tolist())
    assert np.isnan(found[-1])


class WithMore(Classification):
    """A metric of the user's own, beside the accuracy."""

    def measures(self, num_outputs: int) -> dict[str, Metric]:
        more = mean_of("mean output", lambda outputs, targets: outputs.mean(1))
        return {**super().measures(num_outputs), "mean_output": more}


class OwnLoss(Classification):
    """Twice the cross-entropy."""

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return 2 * super().losses(outputs, targets)


class OwnAccuracy(Classification):
    """Another accuracy."""

    def measures(self, num_outputs: int) -> dict[str, Metric]:
        return {"accuracy": mean_of("zero", lambda outputs, targets: targets * 0)}


@pytest.mark.parametrize(
    ("objective", "plain_losses", "plain"),
    [
        (Classification(), True, True),
        (Classification(metrics=["f1"]), True, False),
        (Classification(class_weights=[1, 1]), False, False),
        (Classification(label_smoothing=0.1), False, False),
        (WithMore(), True, False),
        (OwnLoss(), False, False),
        (OwnAccuracy(), False, False),
    ],
)
def test_only_plain_cross_entropies_are_taken_for_such(
    objective: Objective, plain_losses: bool, plain: bool
) -> None:
    assert has_plain_losses(objective, 2) is plain_losses
    assert is_plain(objective, 2) is plain


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"class_weights": [1, -1]}, "greater than or equal to 0"),
        ({"label_smoothing": 1.5}, "less than or equal to 1"),
        ({"metrics": ["f2"]}, "'f1', 'balanced_accuracy'"),
    ],
)
def test_fields_that_have_no_meaning_are_refused(fields: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Classification(**fields)


def test_a_subclass_that_names_another_metric_is_judged_by_it(
    tiny: Run, tmp_path: Path
) -> None:
    space: dict[str, Any] = {}
    exec(blocks()[0], space)
    run = tiny.replace(objective=space["objective"])
    outcome, _ = go(Sweep("rare", runs=[run]), tmp_path / "rare")
    assert outcome.manifest.quality == "test_f1"
    best = outcome.best
    last = load(outcome).rounds.query(f"round == {run.rounds - 1}")
    assert best.metric == "test_f1"
    assert best.value == pytest.approx(last["test_f1"].mean())


def test_the_loss_of_a_sample_is_the_mean_over_its_positions() -> None:
    losses = NextToken().losses(LOGITS, TOKENS)
    for loss, out_LV, y_L in zip(losses, LOGITS, TOKENS, strict=True):
        assert loss == pytest.approx(F.cross_entropy(out_LV, y_L).item(), rel=1e-6)


def test_one_token_per_sample_is_a_class() -> None:
    outputs, targets = LOGITS[:, 0], TOKENS[:, 0]
    expected = F.cross_entropy(outputs, targets, reduction="none")
    assert torch.equal(NextToken().losses(outputs, targets), expected)
    hits = (outputs.argmax(1) == targets).double().mean().item()
    assert value(NextToken(), "accuracy", outputs, targets) == pytest.approx(hits)


def test_accuracy_and_perplexity_are_over_all_tokens() -> None:
    hits = (LOGITS.argmax(-1) == TOKENS).double().mean().item()
    found = value(NextToken(), "accuracy", LOGITS, TOKENS)
    assert found == pytest.approx(hits)
    mean = F.cross_entropy(LOGITS.flatten(0, 1), TOKENS.flatten()).item()
    found = value(NextToken(), "perplexity", LOGITS, TOKENS)
    assert found == pytest.approx(np.exp(mean), rel=1e-5)


def recall(outputs: Any, targets: Any) -> Any:
    pair = torch.as_tensor(outputs), torch.as_tensor(targets)
    return value(MultiLabel(), "recall_at_5", *pair)


def dataset(y: Any, classes: int = 0) -> Dataset:
    part = Samples(np.zeros((len(y), 2), np.float32), y)
    return Dataset("posts", part, part, classes)


def test_a_loss_is_the_mean_of_the_binary_cross_entropies() -> None:
    losses = MultiLabel().losses(torch.tensor(TAGGED), torch.tensor(TAGS))
    p = 1 / (1 + np.exp(-TAGGED.astype(np.float64)))
    expected = -np.where(TAGS == 1, np.log(p), np.log(1 - p)).mean(1)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_a_loss_is_finite_for_outputs_of_any_size() -> None:
    losses = MultiLabel().losses(torch.tensor([[1e4, -1e4]]), torch.tensor([[0.0, 1]]))
    assert losses.tolist() == [1e4]


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
    expected = targets[rank < 5].sum() / targets.sum()
    assert recall(outputs, targets) == pytest.approx(expected)


def test_samples_without_tags_leave_the_recall_as_it_is() -> None:
    more = np.concatenate([TAGS, np.zeros((5, 9), np.float32)])
    outputs = np.concatenate([TAGGED, TAGGED[:5]])
    assert recall(outputs, more) == recall(TAGGED, TAGS)
    assert np.isnan(recall(TAGGED, 0 * TAGS))


@pytest.mark.parametrize(
    "wrong",
    [dataset(2 * TAGS), dataset(np.arange(9), classes=9), dataset(TAGS[:, :5])],
    ids=["0 and 2", "classes", "five tags"],
)
def test_targets_other_than_six_of_zero_and_one_are_refused(wrong: Dataset) -> None:
    check_targets(MultiLabel(), dataset(TAGS[:, :6]))
    with pytest.raises(ValueError, match="6 tags or more, each 0 or 1, and 'posts'"):
        check_targets(MultiLabel(), wrong)
