"""What the runs of a sweep measure, and by which of it they are judged."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from raysafl.core.record import COLUMNS, ColumnDescription
from raysafl.simulation.run import Run
from raysafl.storage.statistics import ACCURACY, declaration_of, statistics_of

LOSS = "test_loss"


@dataclass(frozen=True)
class Measures:
    """The columns of some runs' rows that not every run has, and what they are judged by.

    Attributes:
        columns: what is known about each of these columns, by name.
        quality: the column by which all of the runs are judged; the test loss, which
            every run has, if they differ in it.
        has_validation: whether every run has validation samples.
        has_accuracy: whether some run measures the test accuracy.
    """

    columns: Mapping[str, ColumnDescription] = field(default_factory=dict)
    quality: str = ACCURACY
    has_validation: bool = False
    has_accuracy: bool = True

    @classmethod
    def of(cls, runs: Iterable[Run]) -> "Measures":
        """Return what some runs measure.

        A metric of each class has a column per class, of which those of the first classes
        are declared; the others are like these (`declaration_of`).

        Raises:
            ValueError: a column's name or type is not allowed, it means one thing in one
                run and another in the next, or a statistic's name would have two
                meanings.
        """
        columns: dict[str, ColumnDescription] = {}
        qualities: list[str] = []
        accurate: list[bool] = []
        seen: set[tuple[str, str, bool, bool]] = set()
        for run in runs:
            # The columns follow from these parts of a run.
            key = (
                run.objective.to_json(),
                str(run.eval_clients),
                run.devices is not None,
                run.data.has_validation,
            )
            if key in seen:
                continue
            seen.add(key)
            every = run.columns()
            accurate.append(ACCURACY in every)
            own = {
                name: column for name, column in every.items() if name not in COLUMNS
            }
            for name in own.keys() & columns.keys():
                _check_alike(name, own[name], columns[name])
            columns |= own
            qualities.append(quality_of(run))
        agreed = len(set(qualities)) == 1
        quality = qualities[0] if agreed else LOSS if qualities else ACCURACY
        # This refuses statistics of equal names.
        statistics_of(columns, quality)
        has_validation = bool(seen) and all(own for *_, own in seen)
        return cls(columns, quality, has_validation, any(accurate) or not accurate)

    @property
    def goal(self) -> tuple[str, str]:
        """What searchers and schedulers go by, and whether its `max` or its `min` is best.

        It is the quality on the validation samples if every run has some, and otherwise
        the quality on the test set.
        """
        on_val = self.quality.replace("test_", "val_", 1)
        name = on_val if self.has_validation else self.quality
        return name, self.mode(name)

    def mode(self, name: str) -> str:
        """Return whether the `max` or the `min` of a column is best."""
        column = declaration_of(name, self.columns)
        return "min" if column is not None and not column.higher_is_better else "max"

    @property
    def scalars(self) -> list[str]:
        """The columns of numbers that are measured on test and validation data."""
        further = [name for name, own in self.columns.items() if own.is_scalar]
        return list(dict.fromkeys([self.quality, LOSS, *further]))


def score_text(
    quality: str,
    value: float,
    columns: Mapping[str, ColumnDescription],
    digits: int = 2,
) -> str:
    """Write a value of the column by which a run is judged, such as `test mae 0.4182`.

    Args:
        quality: the column.
        value: its value.
        columns: what is known about further columns, by name.
        digits: the number of decimals of a fraction, which is shown in per cent.
    """
    column = declaration_of(quality, columns)
    in_per_cent = column is not None and column.is_fraction
    number = f"{value:.{digits}%}" if in_per_cent else f"{value:.4g}"
    return f"{quality.replace('_', ' ')} {number}"


def quality_of(run: Run) -> str:
    """Return the column by which a run is judged."""
    return f"test_{run.objective.metric}"


def _check_alike(name: str, one: ColumnDescription, other: ColumnDescription) -> None:
    """Refuse two columns of one name whose values cannot be compared."""
    differs = [
        kind
        for kind in ("type", "is_fraction", "higher_is_better")
        if getattr(one, kind) != getattr(other, kind)
    ]
    if differs:
        raise ValueError(
            f"two objectives of the sweep have a metric with the column '{name}', which "
            f"differ in {', '.join(differs)}; give one of them another name"
        )
