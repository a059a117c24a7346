"""What of a sweep a table or figure of a paper shows, in which order and by which names."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from raysafl.core.text import nearest
from raysafl.report.analysis.layout import Layout
from raysafl.storage.manifest import Label, Manifest, label_text


@dataclass(frozen=True)
class Choice:
    """What is shown of a sweep; by default all of it, as in its report.

    Args:
        methods: the labels of the lines' axis, in their order.
        only: for some axes, the labels that are shown, in their order.
        lines: the axis whose labels are lines and marks; by default those of the report.
        panels: the axes whose labels make panels, in order: the last goes across panels
            and table. Axes that are not named come before them.
        statistic: the column of `runs.parquet` that the table shows.
        names: new names for labels and axes.
    """

    methods: Sequence[Label] = ()
    only: Mapping[str, Sequence[Label]] = field(default_factory=dict)
    lines: str = ""
    panels: Sequence[str] = ()
    statistic: str = ""
    names: Mapping[str, str] = field(default_factory=dict)

    def of(self, manifest: Manifest, columns: Iterable[str]) -> Manifest:
        """Return the sweep as it is shown, without the numbers and claims of a paper.

        Args:
            columns: the columns of `runs.parquet`.

        Raises:
            ValueError: there is no such axis, label or statistic, or two things would
                have one name; the message has the nearest one. Or `methods` are given
                and no axis tells them apart.
        """
        for axis in [*filter(None, [self.lines]), *self.panels, *self.only]:
            _check(f"axis '{axis}'", axis, manifest.axes)
        lines = self.lines or manifest.table.lines
        table = manifest.table.replace(lines=lines, readings=[])
        chosen = manifest.replace(paper=[], more=[], claims=[], table=table)
        # Lines and panels that are asked for make a search a table.
        if self.lines or self.panels or not manifest.is_drawn:
            chosen = chosen.replace(is_drawn=False, goal=None)
        layout = Layout.of(chosen)
        method = layout.method or ""
        if self.methods and not method:
            named = ", ".join(manifest.axes) or "but the sweep has no axis"
            raise ValueError(
                f"`methods` needs `lines`, the axis of the methods: {named}"
            )
        wanted = {**self.only, method: self.methods} if self.methods else self.only
        orders = {
            axis: _places(axis, layout.values[axis], list(map(label_text, own)))
            for axis, own in wanted.items()
        }
        entries = [
            entry
            for entry in manifest.entries
            if all(entry.labels[a] in own for a, own in orders.items())
        ]
        entries.sort(key=lambda e: [own[e.labels[a]] for a, own in orders.items()])
        if not entries:
            raise ValueError("no run has all the labels that were asked for")
        for axis, label in table.minus.items():
            own = orders.get(axis, {})
            if own and (label not in own or len(own) == 1):
                raise ValueError(
                    f"the table has differences to {axis}={label_text(label)}: choose this label "
                    "and others"
                )
        # An axis of which one label is left is the same everywhere.
        gone = {a for a, own in orders.items() if len(own) == 1 and a != method}
        down, across = ([a for a in own if a not in gone] for own in self._laid(layout))
        # Another order of methods does not change what they are compared with.
        table = table.replace(rows=down, columns=across, baseline=layout.baseline)
        if self.panels or gone:
            table = table.replace(panels=[])
        if self.statistic:
            known = manifest.known(columns)
            _check(f"statistic '{self.statistic}'", self.statistic, known)
            scale, unit = (
                (100.0, "%") if known[self.statistic].is_fraction else (1.0, "")
            )
            table = table.replace(statistic=self.statistic, scale=scale, unit=unit)
        axes = [axis for axis in manifest.axes if axis not in gone]
        entries = [
            e.replace(labels={a: v for a, v in e.labels.items() if a not in gone})
            for e in entries
        ]
        for name in self.names:
            # What is not shown has its name all the same.
            _check(f"name '{name}'", name, _names_in(manifest))
        return self._renamed(chosen.replace(axes=axes, entries=entries, table=table))

    def _laid(self, layout: Layout) -> tuple[list[str], list[str]]:
        """Return the axes that go down the table, and those that go across it."""
        if not self.lines and not self.panels:
            return layout.down, layout.across
        others = [axis for axis in layout.axes if axis != layout.method]
        others.sort(key=lambda a: self.panels.index(a) if a in self.panels else -1)
        return [*others[:-1], *filter(None, [layout.method])], others[-1:]

    def _renamed(self, manifest: Manifest) -> Manifest:
        """Give labels and axes their new names."""
        known = _names_in(manifest)
        names = {old: new for old, new in self.names.items() if old in known}
        for new in names.values():
            if new in known - {*names} or [*names.values()].count(new) > 1:
                raise ValueError(f"two things would have the name '{new}'")

        def renamed(labels: Mapping[str, Label]) -> dict[str, Label]:
            return {
                names.get(a, a): names.get(label_text(v), v) for a, v in labels.items()
            }

        def axes(own: Sequence[str]) -> list[str]:
            return [names.get(axis, axis) for axis in own]

        table = manifest.table
        table = table.replace(
            rows=axes(table.rows),
            columns=axes(table.columns),
            panels=axes(table.panels),
            lines=names.get(table.lines, table.lines),
            minus=renamed(table.minus),
            baseline=names.get(label_text(table.baseline), table.baseline),
        )
        entries = [e.replace(labels=renamed(e.labels)) for e in manifest.entries]
        return manifest.replace(axes=axes(manifest.axes), entries=entries, table=table)


def _names_in(manifest: Manifest) -> set[str]:
    """Return the names of all axes and labels of a sweep."""
    labels = (v for entry in manifest.entries for v in entry.labels.values())
    return {*manifest.axes, *map(label_text, labels)}


def _check(what: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise ValueError(f"the sweep has no {what}: {nearest(name, known)}")


def _places(
    axis: str, values: Sequence[Label], wanted: Sequence[str]
) -> dict[Label, int]:
    """Return the place of each label that is wanted on an axis."""
    known = {label_text(value): value for value in values}
    for name in wanted:
        _check(f"{axis}={name}", name, known)
    return {known[name]: i for i, name in enumerate(wanted)}
