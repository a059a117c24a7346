"""What a paper prints of a sweep: numbers, claims, and how to read them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raysafl import Sweep
from raysafl.storage.manifest import PAPER, Label, Manifest, same_label

# A printed mean, and its standard deviation or None.
MeanAndStd = tuple[float, float | None]
Labels = Mapping[str, Label]


@dataclass(frozen=True)
class Printed:
    """A number that a paper prints.

    Args:
        labels: the label on each axis of the entry that the number belongs to.
        mean: the printed mean, in the unit of the table.
        std: the printed standard deviation, if the paper gives one.
        statistic: what the number is a value of; empty for the table's own statistic.
    """

    labels: Labels
    mean: float
    std: float | None = None
    statistic: str = ""

    def is_of(self, labels: Labels) -> bool:
        """Return whether the number belongs to the entry with these labels."""
        return all(
            axis in labels and same_label(value, labels[axis])
            for axis, value in self.labels.items()
        )


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of a paper as a comparison of entries, which runs support or contradict.

    With `order`, two or more entries are compared wherever the values of all other axes
    are equal: the statistic of the first must exceed that of the second by more than
    `margin`, and so on; with `within` they may differ by at most that instead. Without
    `order`, the statistic of each entry must be at least `least` and at most `most`.

    Example:
        >>> claim = Claim(
        ...     text="SAFARI beats FedAvg by more than one point.",
        ...     order=[{"algorithm": "SAFARI"}, {"algorithm": "FedAvg"}],
        ...     margin=1.0,
        ... )

    Args:
        text: the paper's sentence, and where it stands.
        order: labels of the entries to compare, the one with the highest value first.
        where: only entries with these labels are looked at.
        statistic: the statistic to compare; empty for the table's own.
        margin: by how much each entry must exceed the next, in the unit of the table.
        within: by how much the entries may differ at most, likewise.
        least: the lowest value that is allowed, likewise.
        most: the highest value that is allowed, likewise.

    Raises:
        ValueError: neither `order` (with two entries or more) nor a bound is given, or
            both are.
    """

    text: str
    order: Sequence[Labels] = ()
    where: Labels = field(default_factory=dict)
    statistic: str = ""
    margin: float = 0.0
    within: float | None = None
    least: float | None = None
    most: float | None = None

    def __post_init__(self) -> None:
        bounded = self.least is not None or self.most is not None
        if len(self.order) == 1 or bool(self.order) == bounded:
            raise ValueError(
                f"claim '{self.text}' needs either order=[...] of two entries or more, or "
                "least=... or most=..."
            )


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A sweep, and what a paper prints of it.

    Args:
        sweep: the sweep.
        paper: the printed numbers of the table's statistic, by the labels of the entries.
        more: printed numbers of other statistics, such as FAST's ratio, by their names.
        claims: what the paper says in words.
        minus: labels of a baseline: the printed numbers are differences, seed by seed, to
            the entry that differs from theirs in these labels alone (SAFARI, tables 2 to 4).
        readings: the axes whose values are possible readings of the paper.
        seeds: how many seeds each printed number is the mean of; 1 if the paper prints
            single runs or does not say.
        source: where the numbers are printed, such as "SAFARI, table 8".
    """

    sweep: Sweep
    paper: Mapping[Any, MeanAndStd] = field(default_factory=dict)
    more: Mapping[str, Mapping[Any, MeanAndStd]] = field(default_factory=dict)
    claims: Sequence[Claim] = ()
    minus: Labels = field(default_factory=dict)
    readings: Sequence[str] = ()
    seeds: int = 1
    source: str = ""

    @property
    def statistics(self) -> list[str]:
        """The statistics that printed numbers and claims name beside the table's."""
        claimed = (claim.statistic for claim in self.claims if claim.statistic)
        return list(dict.fromkeys([*self.more, *claimed]))

    def printed(self, manifest: Manifest) -> list[Printed]:
        """Return the numbers of the table's statistic; none below the paper's scale."""
        return self._listed("", self.paper, manifest)

    def further(self, manifest: Manifest) -> list[Printed]:
        """Return the numbers of other statistics; none below the paper's scale."""
        return [
            number
            for statistic, numbers in self.more.items()
            for number in self._listed(statistic, numbers, manifest)
        ]

    def _listed(
        self, statistic: str, numbers: Mapping[Any, MeanAndStd], manifest: Manifest
    ) -> list[Printed]:
        # Nothing compares smaller runs with printed numbers.
        if manifest.scale != PAPER:
            return []
        axes = self.sweep.axis_names
        return [
            Printed(
                dict(zip(axes, key if isinstance(key, tuple) else (key,), strict=True)),
                mean,
                std,
                statistic,
            )
            for key, (mean, std) in numbers.items()
        ]
