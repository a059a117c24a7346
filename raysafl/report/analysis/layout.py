"""layout."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from raysafl.core.text import nearest
from raysafl.storage.manifest import Label, Manifest

METHOD_AXES = ("algorithm", "method")


def table_axes(manifest: Manifest) -> tuple[list[str], list[str]]:
    """Axes down and axes across; an axis that the table does not name goes down.

    Raises:
        ValueError: the table names an axis that the sweep does not have.
    """
    rows, columns = list(manifest.table.rows), list(manifest.table.columns)
    for axis in [*rows, *columns]:
        if axis not in manifest.axes:
            raise ValueError(f"the table has an unknown axis '{axis}': {_known(axis, manifest)}")
    return rows + [a for a in manifest.axes if a not in rows and a not in columns], columns


def _known(axis: str, manifest: Manifest) -> str:
    return nearest(axis, manifest.axes)


def axis_values(manifest: Manifest, axis: str) -> list[Label]:
    """The values of an axis in the order in which the manifest first has them."""
    return list(dict.fromkeys(entry.labels.get(axis) for entry in manifest.entries))


def method_axis(manifest: Manifest) -> str | None:
    """The axis that tells methods apart: one named so, else the last axis that goes down."""
    for axis in manifest.axes:
        if axis in METHOD_AXES and all(isinstance(v, str) for v in axis_values(manifest, axis)):
            return axis
    rows, columns = table_axes(manifest)
    named = manifest.table.rows or rows or columns
    return named[-1] if named else None


def show(value: Label) -> str:
    """A label as text: floats short, so that 0.1 + 0.2 reads 0.3."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def place(labels: Mapping[str, Label], axes: list[str]) -> str:
    """Where a cell stands, in words: `algorithm = FedAvg, s = 2`."""
    return ", ".join(f"{axis} = {show(labels.get(axis))}" for axis in axes)


Key = tuple[Any, ...]


def keys(manifest: Manifest, axes: list[str]) -> list[Key]:
    """The combinations of labels that occur on some axes, ordered axis by axis."""
    order = {axis: axis_values(manifest, axis) for axis in axes}
    found = {tuple(entry.labels.get(axis) for axis in axes) for entry in manifest.entries}
    return sorted(found, key=lambda k: [order[a].index(v) for a, v in zip(axes, k, strict=True)])


def by_place(cells: pd.DataFrame, axes: list[str]) -> dict[Key, Any]:
    """Cells by their labels on some axes."""
    return {tuple(cell[f"label.{axis}"] for axis in axes): cell for _, cell in cells.iterrows()}
