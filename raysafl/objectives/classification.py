"""Classes, tags and tokens: cross-entropies, and metrics of predictions."""

import functools
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from raysafl.core.objective import Metric, Objective, Sums, hits_of, mean_of
from raysafl.core.problem import Dataset

TOP = 5


class Classification(Objective):
    """Each sample belongs to one class; the loss is the cross-entropy.

    With p = softmax(outputs), class weights w (1 unless they are given) and label
    smoothing e, the loss of a sample of class y among C is

        (1 - e) w_y (-log p_y) + e / C sum_c w_c (-log p_c),

    which is `torch.nn.functional.cross_entropy` with `reduction="none"`. The samples of
    a mini-batch count alike: its loss is the mean of these losses, also with class
    weights. (torch's `reduction="mean"` divides by the sum of the batch's class weights
    instead, so that a batch of rare classes would count no more than others.) Losses in
    the results are means of the same losses.

    The metric is the accuracy, the share of samples whose largest output is that of
    their class. `metrics` adds others, as scikit-learn defines them:

    - "f1": the mean over classes of F1 = 2 TP / (2 TP + FP + FN). Classes that occur
      neither among the targets nor among the predictions are left out.
    - "balanced_accuracy": the mean over the classes of the samples of the share that
      is classified correctly.
    - "top5_accuracy": the share of samples whose class has one of the five largest
      outputs.
    - "per_class_accuracy": for each class c a metric `accuracy_of_<c>`, the share of its
      samples that are classified correctly; NaN if it has none.
    - "confusion": a list with the number of samples of each class (row) that were
      taken for each class (column), row by row.

    A model may have more outputs than there are classes (`CharLSTM`).
    A sample whose largest output is of no class is classified wrongly, and is a
    prediction of no class.

    Example:
        >>> import torch
        >>> rare = Classification(class_weights=[1, 4], metrics=["f1"])
        >>> outputs = torch.zeros(2, 2)
        >>> rare.losses(outputs, torch.tensor([0, 1])) / outputs.exp().sum(1).log()
        tensor([1., 4.])
        >>> list(rare.measures(num_outputs=2))
        ['accuracy', 'f1']
    """

    metric: ClassVar[str] = "accuracy"
    class_weights: list[NonNegativeFloat] | None = Field(
        default=None,
        description="The factor of the loss of each class; None: 1 for all.",
    )
    label_smoothing: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="The share e of the target that is spread evenly over all classes.",
    )
    metrics: list[
        Literal[
            "f1",
            "balanced_accuracy",
            "top5_accuracy",
            "per_class_accuracy",
            "confusion",
        ]
    ] = Field(default=[], description="Further metrics, by name.")

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropies [B] of outputs [B, C] and classes [B]."""
        weight = None
        if self.class_weights is not None:
            weight = _on_device(tuple(self.class_weights), outputs.device)
        return F.cross_entropy(
            outputs,
            targets,
            weight=weight,
            reduction="none",
            label_smoothing=self.label_smoothing,
        )

    def measures(self, num_outputs: int) -> dict[str, Metric]:
        """Return the accuracy and the further metrics."""
        found = {
            "accuracy": mean_of(
                "share of samples classified correctly", is_hit, is_fraction=True
            )
        }
        for name in self.metrics:
            found |= _further_metrics(name, num_outputs)
        return found

    def check(self, dataset: Dataset) -> None:
        """Check that each sample has one class, and each class its weight.

        Raises:
            ValueError: The dataset has no classes, or they do not fit.
        """
        check_has_classes(self, dataset)
        if dataset.train.y.ndim != 1:
            raise ValueError(
                f"Classification is for one class per sample; '{dataset.name}' has "
                f"targets of shape {list(dataset.train.y.shape[1:])} for each. Give "
                "objective=NextToken() for sequences of tokens"
            )
        weights = self.class_weights
        if weights is not None and (
            len(weights) != dataset.num_classes or not any(weights)
        ):
            raise ValueError(
                f"class_weights has {len(weights)} weights, but '{dataset.name}' has "
                f"{dataset.num_classes} classes; give one weight for each, not all of them 0"
            )
        if "top5_accuracy" in self.metrics and dataset.num_classes <= TOP:
            raise ValueError(
                f"top5_accuracy is always 1 for the {dataset.num_classes} classes of "
                f"'{dataset.name}'; leave it out"
            )


class MultiLabel(Objective):
    """Each sample has any of K tags; the loss is the mean of K binary cross-entropies.

    With targets y [K] of 0 and 1, and p = sigmoid(outputs), the loss of a sample is
    -1 / K sum_k (y_k log p_k + (1 - y_k) log(1 - p_k)). The metric is the recall at 5: the
    share of the tags of all samples that are among the 5 largest outputs of their sample.

    Source: FedOpt's program (docs/papers.md#fedopt). It adds up the losses of a batch of
    B samples, and here is their mean, so its learning rate is 1 / B of that here.
    """

    metric: ClassVar[str] = "recall_at_5"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the losses [B] of outputs and targets [B, K]."""
        loss_BK = F.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
        return loss_BK.mean(1)

    def measures(self, num_outputs: int) -> dict[str, Metric]:
        """Return the recall at 5."""
        meaning = "share of the tags among the 5 largest outputs of their sample"
        return {"recall_at_5": Metric(meaning, _found, _share, is_fraction=True)}

    def check(self, dataset: Dataset) -> None:
        """Refuse targets other than 0 and 1, and fewer than 6, whose recall is always 1."""
        parts = (dataset.train.y, dataset.test.y)
        is_binary = all(((y == 0) | (y == 1)).all() for y in parts)
        if dataset.num_classes or self.num_outputs(dataset) <= TOP or not is_binary:
            raise ValueError(
                f"MultiLabel needs 6 tags or more, each 0 or 1, and '{dataset.name}' has other "
                'targets; give text such as "a|b" and target="tags", or another objective'
            )


def _found(outputs: Tensor, targets: Tensor) -> Tensor:
    """Count the tags among the largest outputs of each sample, and all tags, [2]."""
    found_B5 = targets.gather(1, outputs.topk(min(TOP, outputs.shape[1])).indices)
    return torch.stack([found_B5.sum(), targets.sum()])


def _share(sums: Sums, count: int) -> float:
    return float(sums[0] / sums[1]) if sums[1] else float("nan")


class NextToken(Objective):
    """Each sample has one token to predict, or one after each of its L positions.

    A model returns outputs [B, V] for targets [B], or [B, L, V] for targets [B, L],
    where V is the number of different tokens. The loss of a sample is the mean over its
    targets of the cross-entropy -log p, p being the probability (softmax) that the
    outputs give the target.

    The metrics are the accuracy, which is the share of targets with the largest output,
    and the perplexity exp(mean loss).

    Example:
        >>> import torch
        >>> losses = NextToken().losses(torch.zeros(1, 2, 4), torch.tensor([[3, 0]]))
        >>> losses.exp()
        tensor([4.])
    """

    metric: ClassVar[str] = "accuracy"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the losses [B] of outputs [B, V] or [B, L, V]."""
        loss = F.cross_entropy(
            outputs.flatten(0, -2), targets.flatten(), reduction="none"
        )
        return loss if targets.ndim == 1 else loss.view(targets.shape).mean(1)

    def measures(self, num_outputs: int) -> dict[str, Metric]:
        """Return accuracy and perplexity."""
        cross_entropy = mean_of("mean cross-entropy", self.losses)

        def perplexity(sums: Sums, count: int) -> float:
            # A model that diverges has an infinite perplexity.
            with np.errstate(over="ignore"):
                return float(np.exp(sums[0] / count)) if count else float("nan")

        return {
            "accuracy": mean_of(
                "share of tokens predicted correctly", _hits, is_fraction=True
            ),
            "perplexity": Metric(
                "perplexity", cross_entropy.sums, perplexity, higher_is_better=False
            ),
        }

    def check(self, dataset: Dataset) -> None:
        """Check that the targets are tokens.

        Raises:
            ValueError: They are numbers, or have more than one axis per sample.
        """
        check_has_classes(self, dataset)
        if dataset.train.y.ndim > 2:
            raise ValueError(
                f"NextToken is for targets [n] or [n, L]; those of '{dataset.name}' are "
                f"{list(dataset.train.y.shape)}"
            )


def _hits(outputs: Tensor, targets: Tensor) -> Tensor:
    hit = outputs.argmax(-1) == targets
    return hit if hit.ndim == 1 else hit.float().mean(1)


def check_has_classes(objective: Objective, dataset: Dataset) -> None:
    """Refuse a dataset whose targets are numbers.

    Raises:
        ValueError: The dataset has no classes.
    """
    if not dataset.num_classes:
        raise ValueError(
            f"{type(objective).__name__} is for classes, but the targets of "
            f"'{dataset.name}' are numbers (num_classes=0); give the run "
            "objective=Regression(), MultiLabel() for tags, or an objective of your own"
        )


def is_hit(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return whether the largest output of each sample is that of its class, [B]."""
    return outputs.argmax(-1) == targets


# What a run is trained for unless it says otherwise.
PLAIN = Classification()


def has_plain_losses(objective: Objective, num_outputs: int) -> bool:
    """Return whether losses are plain cross-entropies, and hits those of one class.

    Then the gradient has the closed form that the linear engines compute.
    """
    return (
        isinstance(objective, Classification)
        and type(objective).losses is Classification.losses
        and objective.class_weights is None
        and objective.label_smoothing == 0
        and hits_of(objective, num_outputs) is is_hit
    )


def is_plain(objective: Objective, num_outputs: int) -> bool:
    """Return whether nothing is measured but the accuracy and the plain loss."""
    return has_plain_losses(objective, num_outputs) and [
        *objective.measures(num_outputs)
    ] == ["accuracy"]


@functools.cache
def _on_device(weights: tuple[float, ...], device: torch.device) -> Tensor:
    """Return class weights as a tensor, made once: a CUDA graph cannot record that."""
    return torch.tensor(weights, dtype=torch.float32, device=device)


def _further_metrics(name: str, classes: int) -> dict[str, Metric]:
    """Return the metrics that a name in `Classification.metrics` stands for."""
    if name == "per_class_accuracy":
        return {f"accuracy_of_{c}": _accuracy_of(c) for c in range(classes)}
    counts = functools.partial(_class_counts, classes=classes)
    mean = "mean over classes of the share classified correctly"
    top = "share of samples whose class has one of the 5 largest outputs"
    table = "samples of each class (row) taken for each class (column), row by row"
    known = {
        "f1": Metric("macro F1 score", counts, _f1, is_fraction=True),
        "balanced_accuracy": Metric(mean, counts, _balanced, is_fraction=True),
        "top5_accuracy": mean_of(top, _in_top, is_fraction=True),
        "confusion": Metric(
            table,
            functools.partial(_confusion, classes=classes),
            lambda sums, count: sums.tolist(),
            is_list=True,
        ),
    }
    return {name: known[name]}


def _accuracy_of(c: int) -> Metric:
    """Return the share of the samples of class c that are classified correctly."""

    def sums(outputs: Tensor, targets: Tensor) -> Tensor:
        of_class_B = targets == c
        hit_B = of_class_B & is_hit(outputs, targets)
        return torch.stack([hit_B.sum(), of_class_B.sum()])

    meaning = f"share of the samples of class {c} classified correctly"
    return Metric(meaning, sums, _share, is_fraction=True)


def _in_top(outputs: Tensor, targets: Tensor) -> Tensor:
    most = min(TOP, outputs.shape[-1])
    top_B5 = outputs.topk(most, dim=-1).indices
    return (top_B5 == targets.unsqueeze(-1)).any(-1)


def _confusion(outputs: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Count the samples of each class that are taken for each class, [C * C]."""
    predicted_B = outputs.argmax(-1)
    cell_B = (targets * classes + predicted_B)[predicted_B < classes]
    return torch.bincount(cell_B, minlength=classes * classes)


def _class_counts(outputs: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Count per class the hits, the predictions and the samples, [3 * C]."""
    predicted_B = outputs.argmax(-1)
    hit_B = predicted_B == targets
    parts = (targets[hit_B], predicted_B[predicted_B < classes], targets)
    return torch.cat([torch.bincount(part, minlength=classes) for part in parts])


def _f1(sums: Sums, count: int) -> float:
    hits_C, predicted_C, samples_C = sums.reshape(3, -1)
    occurs_C = predicted_C + samples_C > 0
    if not occurs_C.any():
        return float("nan")
    f1_C = 2 * hits_C[occurs_C] / (predicted_C + samples_C)[occurs_C]
    return float(f1_C.mean(dtype=np.float64))


def _balanced(sums: Sums, count: int) -> float:
    hits_C, _, samples_C = sums.reshape(3, -1)
    occurs_C = samples_C > 0
    if not occurs_C.any():
        return float("nan")
    return float((hits_C[occurs_C] / samples_C[occurs_C]).mean())
