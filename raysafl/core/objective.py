"""What a model is trained for, and the numbers by which it is judged.

An objective gives each sample a loss, from the model's outputs and the sample's target.
Local training minimises the mean loss of a mini-batch. On the test set, the mean loss
and the objective's metrics are measured.

A metric is computed from sums over samples, for example the number of hits, or the
true positives of each class. Sums add up: over batches, over parts of the test set on
several client actors, and over clients. So a metric has the same value wherever it is
computed. The built-in objectives are in `raysafl.objectives`.
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.component import Component, method_name
from raysafl.core.problem import Dataset
from raysafl.core.record import ColumnDescription, further_column
from raysafl.core.text import in_brief

Value: TypeAlias = float | list[float]
"""The value of a metric: a number, or a list of them."""

Sums: TypeAlias = NDArray[np.float64]
"""The sums [n] of a metric over samples."""

PerSample: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Maps outputs [B, ...] and targets [B, ...] to one number per sample, [B]."""

# What a metric may be called, since columns of the results are called after it.
METRIC_NAME = re.compile(r"[a-z][a-z0-9_]*")
# Where the number of outputs is not known yet, the columns are those of so many.
UNKNOWN_OUTPUTS = 2


@dataclass(frozen=True)
class Metric:
    """A number by which a model is judged on a set of samples, from sums that add up.

    Args:
        meaning: What the value is, as one phrase for tables and documents.
        sums: Maps outputs [B, ...] and targets [B, ...] of any batch to sums [n] over
            its samples. The sums over two batches together must be the sum of theirs.
        value: Maps the sums [n] over all samples, and the number of samples, to the
            value: a number, or a list of numbers if `is_list`.
        is_fraction: Whether the value is a fraction, which tables show in per cent.
        higher_is_better: Whether a higher value is better.
        is_list: Whether the value is a list of numbers.
        per_sample: If the value is a mean over the samples, what it is the mean of. The
            metric `accuracy` needs it to be measured in training, too.

    Example:
        >>> import torch
        >>> largest = Metric(
        ...     "root mean square error",
        ...     sums=lambda outputs, targets: (outputs - targets).square().sum(0),
        ...     value=lambda sums, count: float((sums / count).mean() ** 0.5),
        ...     higher_is_better=False,
        ... )
        >>> sums = largest.sums(torch.tensor([[1.0], [5.0]]), torch.zeros(2, 1))
        >>> round(largest.value(sums.numpy(), 2), 4)
        3.6056
    """

    meaning: str
    sums: Callable[[Tensor, Tensor], Tensor]
    value: Callable[[Sums, int], Value]
    is_fraction: bool = False
    higher_is_better: bool = True
    is_list: bool = False
    per_sample: PerSample | None = None


def mean_of(
    meaning: str,
    per_sample: PerSample,
    *,
    is_fraction: bool = False,
    higher_is_better: bool = True,
) -> Metric:
    """Return the metric that is the mean of one number per sample.

    Args:
        meaning: What the value is, as one phrase.
        per_sample: Maps outputs [B, ...] and targets [B, ...] to numbers [B], which may
            be booleans.
        is_fraction: Whether the value is a fraction, which tables show in per cent.
        higher_is_better: Whether a higher value is better.

    Example:
        >>> import torch
        >>> metric = mean_of("share of positive outputs", lambda o, t: o[:, 0] > 0)
        >>> sums = metric.sums(torch.tensor([[1.0], [-1.0]]), torch.zeros(2, 1))
        >>> metric.value(sums.numpy(), 2)
        0.5
    """

    def sums(outputs: Tensor, targets: Tensor) -> Tensor:
        return per_sample(outputs, targets).sum(0, dtype=torch.float64).reshape(-1)

    def value(sums: Sums, count: int) -> float:
        return float(sums[0]) / count if count else float("nan")

    return Metric(
        meaning,
        sums,
        value,
        is_fraction=is_fraction,
        higher_is_better=higher_is_better,
        per_sample=per_sample,
    )


@dataclass(frozen=True)
class ClientStatistic:
    """A number by which a model is judged, from a metric's values for single clients.

    Args:
        meaning: What the value is, as one phrase for tables and documents.
        value: Maps the values of the objective's `metric` on each client's test samples
            to the statistic. They are an array [clients], in the order of the clients,
            without those that no test sample judges.
        is_fraction: Whether the value is a fraction, which tables show in per cent.
        higher_is_better: Whether a higher value is better.

    Example:
        >>> import numpy as np
        >>> worst = ClientStatistic("error of the worst client", np.max, higher_is_better=False)
        >>> float(worst.value(np.array([0.5, 2.0, 1.0])))
        2.0
    """

    meaning: str
    value: Callable[[NDArray[np.float64]], float]
    is_fraction: bool = False
    higher_is_better: bool = True


class Objective(Component):
    """What a model is trained for; to bring your own, define a subclass with `losses`.

    Targets are the `Samples.y` of a dataset. Classes reach the objective as int64
    [B], or [B, L] for L of them per sample. Numbers reach it as float32 [B, K], also
    where the dataset has one number per sample (K = 1), so that outputs [B, K] minus
    targets is what it looks like.

    The functions of an objective must treat each sample by itself: a loss or a sum must
    not depend on the other samples of the batch.

    Attributes:
        metric: The metric that stands for a model's quality, or "loss".

    Example:
        >>> import torch
        >>> class Quantile(Objective):
        ...     metric = "covered"
        ...     tau: float = 0.9
        ...
        ...     def losses(self, outputs, targets):
        ...         gap = targets - outputs
        ...         return torch.maximum(self.tau * gap, (self.tau - 1) * gap).mean(1)
        ...
        ...     def measures(self, num_outputs):
        ...         def covered(outputs, targets):
        ...             return (targets <= outputs).float().mean(1)
        ...         return {"covered": mean_of("share below the quantile", covered)}
        >>> Quantile().losses(torch.tensor([[1.0]]), torch.tensor([[3.0]]))
        tensor([1.8000])
    """

    abstract: ClassVar[bool] = True
    metric: ClassVar[str] = "loss"

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample, [B], of which the gradient is taken.

        Args:
            outputs: What the model returned, float32: [B, C] or [B, L, C] for classes,
                [B, K] for numbers.
            targets: The samples' targets, see the class.
        """

    def measures(self, num_outputs: int) -> dict[str, Metric]:
        """Return the metrics by their names; the mean loss is measured in any case.

        A name consists of small letters, digits and `_`. The metric `mae` becomes the
        column `test_mae` of the results.

        Args:
            num_outputs: What the method `num_outputs` returned.
        """
        return {}

    def client_statistics(self) -> dict[str, ClientStatistic]:
        """Return statistics over clients by their names, for runs with `eval_clients`.

        They are of the `metric`, and a name is like a metric's. The statistic
        `worst_rmse` becomes the column `clients_worst_rmse` of the results.
        """
        return {}

    def num_outputs(self, dataset: Dataset) -> int:
        """Return the number of outputs per prediction: `num_classes` of `Model.build`.

        Unless a subclass says otherwise, it is the number of classes, or if the dataset
        has no classes the number K of targets of a sample.
        """
        if dataset.num_classes:
            return dataset.num_classes
        return int(np.prod(dataset.train.y.shape[1:], dtype=np.int64))

    def output_shape(self, dataset: Dataset) -> tuple[int, ...]:
        """Return the shape of the model's output for one sample.

        Unless a subclass says otherwise, it is [num_outputs], with a leading axis for
        each further axis of targets that are classes.
        """
        several = dataset.train.y.shape[1:] if dataset.num_classes else ()
        return (*several, self.num_outputs(dataset))

    def check(self, dataset: Dataset) -> None:
        """Raise a ValueError if the targets of a dataset do not fit this objective."""


def check_targets(objective: Objective, dataset: Dataset) -> None:
    """Check the targets of a dataset, for any objective and for this one.

    Args:
        objective: The objective.
        dataset: The training and test samples.

    Raises:
        ValueError: Classes are not whole numbers below the number of classes; numbers
            are not finite float32; or the objective's own `check` refuses them.
    """
    for part, name in ((dataset.train, "training"), (dataset.test, "test")):
        if dataset.num_classes:
            _check_classes(dataset, part.y)
        else:
            _check_numbers(dataset.name, part.y, name)
    objective.check(dataset)


def _check_classes(dataset: Dataset, y: NDArray[np.int64]) -> None:
    if y.dtype.kind not in "iu":
        raise ValueError(
            f"labels of '{dataset.name}' must be whole numbers (int64), because it has "
            f"num_classes={dataset.num_classes}; they are {y.dtype}. If they are numbers "
            "to predict, give num_classes=0 and y as float32"
        )
    if y.size and not 0 <= y.min() <= y.max() < dataset.num_classes:
        raise ValueError(
            f"labels of '{dataset.name}' must be 0 to {dataset.num_classes - 1}, not "
            f"{y.min()} to {y.max()}"
        )


def _check_numbers(dataset: str, y: NDArray[np.float32], part: str) -> None:
    if y.dtype != np.float32 or y.ndim not in (1, 2):
        raise ValueError(
            f"'{dataset}' has num_classes=0, so its targets are numbers: y must be "
            f"float32 of shape [n] or [n, K], and is {y.dtype} {list(y.shape)}; give "
            'y.astype("float32"), or num_classes if they are classes'
        )
    if not np.isfinite(y).all():
        first = int(np.flatnonzero(~np.isfinite(y.reshape(len(y), -1)).all(1))[0])
        raise ValueError(
            f"'{dataset}' has targets that are not finite: {part} sample {first} is the "
            "first; leave such samples out"
        )


def measures_of(objective: Objective, num_outputs: int) -> dict[str, Metric]:
    """Return everything that is measured: the objective's metrics, then the loss.

    Raises:
        ValueError: A metric has a name that cannot be that of a column.
    """
    metrics = objective.measures(num_outputs)
    for name in metrics:
        if not METRIC_NAME.fullmatch(name) or name == "loss":
            raise ValueError(
                f"{method_name(objective, Objective, 'measures')} names a metric "
                f"{name!r}; a name begins with a small letter and consists of small "
                "letters, digits and _, and 'loss' is taken by the mean loss"
            )
    if objective.metric != "loss" and objective.metric not in metrics:
        raise ValueError(
            f"{type(objective).__name__}.metric is {objective.metric!r}, but "
            f"{method_name(objective, Objective, 'measures')} returns "
            f"{', '.join(metrics) or 'no metric'}; take one of them, or 'loss'"
        )
    loss = mean_of("mean loss", objective.losses, higher_is_better=False)
    return {**metrics, "loss": loss}


@dataclass(frozen=True)
class Measures:
    """Everything that is measured of a model, from one vector of sums.

    Args:
        metrics: The objective's metrics by name, then the mean loss as `loss`.
        sizes: The number of sums of each, which stand in this order.
    """

    metrics: Mapping[str, Metric]
    sizes: Mapping[str, int]

    @cached_property
    def _parts(self) -> dict[str, slice]:
        """Where the sums of each metric stand."""
        stops = accumulate(self.sizes.values())
        return {
            name: slice(stop - size, stop)
            for (name, size), stop in zip(self.sizes.items(), stops, strict=True)
        }

    def values(self, sums_n: Sums, count: int) -> dict[str, Value]:
        """Compute the value of each metric.

        Args:
            sums_n: The sums of all metrics over some samples.
            count: The number of the samples.
        """
        found = {
            name: metric.value(sums_n[self._parts[name]], count)
            for name, metric in self.metrics.items()
        }
        # A value may be a whole number, such as a count.
        return {n: float(v) if isinstance(v, int) else v for n, v in found.items()}

    def value(self, name: str, sums_n: Sums, count: int) -> float:
        """Compute the value of one metric that is a number; NaN without samples."""
        if not count:
            return float("nan")
        value: Any = self.metrics[name].value(sums_n[self._parts[name]], count)
        return float(value)


def client_statistics_of(objective: Objective) -> dict[str, ClientStatistic]:
    """Return the objective's statistics over clients by the columns that they become.

    Raises:
        ValueError: One is no `ClientStatistic`, or has a name that no column can have.
    """
    statistics = objective.client_statistics()
    for name, statistic in statistics.items():
        if not METRIC_NAME.fullmatch(name) or not isinstance(
            statistic, ClientStatistic
        ):
            raise ValueError(
                f"{method_name(objective, Objective, 'client_statistics')} gives {name!r}: "
                f"{in_brief(statistic)}; "
                "a name begins with a small letter and consists of small letters, digits and "
                '_, and what it names is such as fl.objectives.ClientStatistic("lowest", np.min)'
            )
    return {f"clients_{name}": statistic for name, statistic in statistics.items()}


def measure_clients(
    objective: Objective, quality_N: NDArray[np.float64]
) -> dict[str, float]:
    """Compute the objective's statistics over clients, by their columns.

    Args:
        objective: The objective.
        quality_N: The value of its `metric` for each client that is judged.

    Raises:
        ValueError: The value of a statistic is no number.
    """
    found = {}
    for name, statistic in client_statistics_of(objective).items():
        # A copy, as the function may sort it in place.
        value = statistic.value(quality_N.copy())
        if not isinstance(value, int | float | np.number):
            raise ValueError(
                f"the value of '{name}' of "
                f"{method_name(objective, Objective, 'client_statistics')} must be a "
                f"number, and for {len(quality_N)} clients it is {in_brief(value)}"
            )
        found[name] = float(value)
    return found


def hits_of(objective: Objective, num_outputs: int) -> PerSample | None:
    """Return what the accuracy is the mean of; None without a metric `accuracy`."""
    accuracy = objective.measures(num_outputs).get("accuracy")
    return accuracy.per_sample if accuracy else None


def metric_columns(
    objective: Objective,
    num_outputs: int | None = None,
    prefix: str = "test",
    where: str = "the test set",
) -> dict[str, ColumnDescription]:
    """Declare the columns that an objective measures on one set of samples.

    Args:
        objective: The objective.
        num_outputs: The number of outputs. If it is None, it is taken to be 2, so of
            columns that belong to one class each, those of classes 0 and 1 are declared.
        prefix: What the columns' names begin with, as `test` in `test_loss`.
        where: The set of samples, for the columns' meanings.
    """
    measures = measures_of(objective, num_outputs or UNKNOWN_OUTPUTS)
    return {
        f"{prefix}_{name}": further_column(
            f"{metric.meaning}, of the global model on {where}",
            metric.is_fraction,
            metric.higher_is_better,
            metric.is_list,
        )
        for name, metric in measures.items()
    }
