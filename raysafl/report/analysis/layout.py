"""How the axes of a sweep are laid out: what goes down a table, what goes across it."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from raysafl.storage.manifest import (
    Entry,
    Label,
    Manifest,
    label_text,
    method_axis,
    same_label,
)

# The labels of an entry, one for each of some axes.
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Layout:
    """The layout of a sweep's axes, made once for a report and passed to all of its parts.

    Attributes:
        method: the axis that tells methods apart; None if there is no axis.
        down: the axes whose labels go down the table, in order.
        across: the axes whose labels go across the table, in order.
        values: the labels of each axis, in the order in which the manifest first has
            them.
        baseline: the label of the method that others are compared with: that of the table
            if it is there, otherwise the first one.
    """

    method: str | None
    down: list[str]
    across: list[str]
    values: Mapping[str, list[Label]]
    baseline: Label

    @classmethod
    def of(cls, manifest: Manifest) -> "Layout":
        """Lay out the axes of a sweep; an axis that its table does not name goes down.

        The method's axis is that of `method_axis`. If the runs were drawn, all axes go down.
        """
        rows = list(manifest.table.rows)
        across = list(manifest.table.columns)
        down = rows + [axis for axis in manifest.axes if axis not in [*rows, *across]]
        values = {
            axis: list(
                dict.fromkeys(entry.labels.get(axis) for entry in manifest.entries)
            )
            for axis in manifest.axes
        }
        method = method_axis(values, manifest.table, manifest.is_drawn)
        methods = [None] if method is None else values[method]
        wanted = [m for m in methods if same_label(m, manifest.table.baseline)]
        baseline = next(iter([*wanted, *methods]), None)
        if manifest.is_drawn:
            return cls(method, [*down, *across], [], values, baseline)
        return cls(method, down, across, values, baseline)

    @property
    def axes(self) -> list[str]:
        """Return all axes, those that go down first."""
        return [*self.down, *self.across]

    @property
    def methods(self) -> list[Label]:
        """Return the labels of the method's axis; a single None if there is no axis."""
        return [None] if self.method is None else self.values[self.method]

    def method_of(self, entry: Entry) -> Label:
        """Return the label of an entry on the method's axis; None if there is no axis."""
        return None if self.method is None else entry.labels.get(self.method)

    def method_name(self, label: Label) -> str:
        """Name a method by its label, with the axis before it if the label is no word."""
        return (
            label_text(label) if self.method is None else words_of({self.method: label})
        )

    @property
    def varying(self) -> list[str]:
        """Return the axes on which the sweep has several labels, those that go down first."""
        return [axis for axis in self.axes if len(self.values[axis]) > 1]

    @property
    def settings(self) -> list[str]:
        """Return the axes with several labels whose labels are a setting: all but the method."""
        return [axis for axis in self.varying if axis != self.method]

    def shared(self, labels: Sequence[Mapping[str, Label]]) -> dict[str, Label]:
        """Return the labels that some entries share and others of the sweep do not have."""
        return {
            axis: labels[0].get(axis)
            for axis in self.values
            if axis in self.varying and len({own.get(axis) for own in labels}) == 1
        }

    def combinations(self, manifest: Manifest, axes: list[str]) -> list[Key]:
        """Return the combinations of labels on `axes` that occur in a manifest, in order.

        Those of runs that were drawn have the order of the manifest's entries.

        Args:
            manifest: the sweep, or a part of its entries.
            axes: axes of the sweep; the first one varies slowest.
        """
        if manifest.is_drawn:
            return list(dict.fromkeys(entry.key(axes) for entry in manifest.entries))
        order = [
            {value: i for i, value in enumerate(self.values[axis])} for axis in axes
        ]
        return sorted(
            {entry.key(axes) for entry in manifest.entries},
            key=lambda key: [places[v] for places, v in zip(order, key, strict=True)],
        )


def labels_text(labels: Mapping[str, Label], axes: list[str]) -> str:
    """Write the labels on some axes as text, such as `algorithm = FedAvg, s = 2`."""
    return ", ".join(f"{axis} = {label_text(labels.get(axis))}" for axis in axes)


def words_of(labels: Mapping[str, Label]) -> str:
    """Write labels in few letters: words as they are, and numbers with their axis."""
    return ", ".join(
        v if isinstance(v, str) else f"{axis} = {label_text(v)}"
        for axis, v in labels.items()
    )


def entries_by_labels(
    entries: pd.DataFrame, axes: list[str]
) -> dict[Key, dict[Hashable, Any]]:
    """Map the labels on some axes to the entry that has them, with its columns."""
    return {
        tuple(entry[f"label.{axis}"] for axis in axes): entry
        for entry in entries.to_dict("records")
    }
