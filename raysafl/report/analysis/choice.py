"""What of a sweep a table or figure of a paper shows, in which order and by which names."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from raysafl.core.text import nearest
from raysafl.report.analysis.layout import Layout, label_text
from raysafl.storage.manifest import Entry, Label, Manifest


@dataclass(frozen=True)
class Choice:
    """What is shown of a sweep.

    Args:
        methods: the labels of the lines' axis, in their order; all by default.
        only: for some axes, the labels that are shown, in their order.
        lines: the axis whose labels are lines and marks, and go down the table; by
            default the methods.
        panels: the axes whose labels make panels, in order: the last goes across panels
            and table. Axes that are not named come before them.
        statistic: the column of `runs.parquet` that the table shows; by default the
            sweep's.
        names: new names for labels and axes.
    """

    methods: Sequence[str] = ()
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)
    lines: str = ""
    panels: Sequence[str] = ()
    statistic: str = ""
    names: Mapping[str, str] = field(default_factory=dict)

    def of(self, manifest: Manifest, columns: Iterable[str]) -> Manifest:
        """Return the sweep as it is shown, without the numbers and claims of a paper.

        Args:
            manifest: the sweep.
            columns: the columns of `runs.parquet`.

        Raises:
            ValueError: there is no such axis, label or statistic, or two things would
                have one name; the message has the nearest one.
        """
        for axis in [*filter(None, [self.lines]), *self.panels, *self.only]:
            if axis not in manifest.axes:
                raise ValueError(
                    f"the sweep has no axis '{axis}': {nearest(axis, manifest.axes)}"
                )
        table = manifest.table.replace(lines=self.lines)
        chosen = manifest.replace(paper=[], more=[], claims=[], goal=None, table=table)
        layout = Layout.of(chosen)
        wanted = dict(self.only)
        if self.methods and layout.method:
            wanted[layout.method] = self.methods
        orders = {a: _places(a, layout.values[a], own) for a, own in wanted.items()}
        # An axis of which one label is left is the same everywhere.
        gone = {a for a, own in orders.items() if len(own) == 1 and a != layout.method}
        axes = [axis for axis in layout.axes if axis not in gone]
        chosen = chosen.replace(
            axes=[axis for axis in manifest.axes if axis in axes],
            entries=_ordered(manifest.entries, orders, gone),
        )
        if not chosen.entries:
            raise ValueError("no run has all the labels that were asked for")
        if self.lines or self.panels:
            own = [axis for axis in [layout.method] if axis]
            panels = [a for a in self.panels if a in axes and a not in own]
            panels = [a for a in axes if a not in [*own, *panels]] + panels
            rows, across = [*panels[:-1], *own], panels[-1:]
        else:
            rows = [axis for axis in layout.down if axis in axes]
            across = [axis for axis in layout.across if axis in axes]
        heat = [axis for axis in table.panels if axis in axes and not self.panels]
        table = table.replace(rows=rows, columns=across, panels=heat)
        if self.statistic:
            known = manifest.known(columns)
            if self.statistic not in known:
                hint = nearest(self.statistic, known)
                raise ValueError(f"runs have no statistic '{self.statistic}': {hint}")
            is_fraction = known[self.statistic].is_fraction
            scale = (100.0, "%") if is_fraction else (1.0, "")
            table = table.replace(
                statistic=self.statistic, scale=scale[0], unit=scale[1]
            )
        return _renamed(chosen.replace(table=table), self.names)


def labels_in(text: str, known: Iterable[Label]) -> list[str]:
    """Split labels at commas, unless the comma is a part of a known label.

    Example:
        >>> labels_in("cyclic, Beta(1, 10)", ["Beta(1, 10)", "cyclic"])
        ['cyclic', 'Beta(1, 10)']
    """
    names = sorted(map(label_text, known), key=len, reverse=True)
    found = []
    rest = text.strip()
    while rest:
        fits = (n for n in names if rest == n or rest.startswith(f"{n},"))
        name = next(fits, rest.partition(",")[0])
        found.append(name.strip())
        rest = rest[len(name) + 1 :].strip()
    return found


def _places(
    axis: str, values: Sequence[Label], wanted: Sequence[str]
) -> dict[Label, int]:
    """Return the place of each label that is wanted on an axis."""
    known = {label_text(value): value for value in values}
    for name in wanted:
        if name not in known:
            raise ValueError(f"no run has {axis}={name}: {nearest(name, known)}")
    return {known[name]: i for i, name in enumerate(wanted)}


def _ordered(
    entries: Sequence[Entry],
    orders: Mapping[str, Mapping[Label, int]],
    gone: Iterable[str],
) -> list[Entry]:
    """Return the entries that have the labels that are wanted, in their order."""
    kept = [e for e in entries if all(e.labels[a] in own for a, own in orders.items())]
    kept.sort(key=lambda e: [own[e.labels[a]] for a, own in orders.items()])
    return [
        e.replace(labels={a: v for a, v in e.labels.items() if a not in gone})
        for e in kept
    ]


def _renamed(manifest: Manifest, names: Mapping[str, str]) -> Manifest:
    """Give labels and axes new names."""
    values = {v for entry in manifest.entries for v in entry.labels.values()}
    known = {*manifest.axes, *map(label_text, values)}
    for old, new in names.items():
        if old not in known:
            raise ValueError(f"nothing has the name '{old}': {nearest(old, known)}")
        if new in known - set(names) or list(names.values()).count(new) > 1:
            raise ValueError(f"'{old}' cannot be called '{new}': something else is")

    def renamed(labels: Mapping[str, Label]) -> dict[str, Label]:
        return {names.get(a, a): names.get(label_text(v), v) for a, v in labels.items()}

    table = manifest.table
    axes = {
        kind: [names.get(axis, axis) for axis in getattr(table, kind)]
        for kind in ("rows", "columns", "panels")
    }
    table = table.replace(
        **axes,
        lines=names.get(table.lines, table.lines),
        minus=renamed(table.minus),
        readings=[],
    )
    return manifest.replace(
        axes=[names.get(axis, axis) for axis in manifest.axes],
        entries=[e.replace(labels=renamed(e.labels)) for e in manifest.entries],
        table=table,
    )
