"""The figures and the table of a sweep, as they go into a paper."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from raysafl.core.text import nearest
from raysafl.report.analysis.layout import Layout
from raysafl.report.analysis.numbers import Study
from raysafl.report.figures.listed import FIGURES
from raysafl.report.figures.style import FileKind, Style, to_file
from raysafl.report.pages.document import latex
from raysafl.report.pages.sections import (
    entries_text,
    marks_text,
    pivot,
    share_text,
)
from raysafl.report.wording import as_markdown, legend, spread_note, without_markup
from raysafl.storage.manifest import Label, Manifest, label_text
from raysafl.storage.statistics import final_of

KINDS: tuple[FileKind, ...] = ("pdf", "svg", "png")
# The labels that are shown of some axes, in their order, or the only one.
Only = Mapping[str, Sequence[Label] | Label]


def shown_sweep(manifest: Manifest, only: Only, rename: Mapping[str, str]) -> Manifest:
    """Return the part of a sweep that is shown, by the names that it has in a paper.

    An axis of which one label is left is the same everywhere, so it is left out.

    Args:
        manifest: the whole sweep.
        only: for some axes, the labels that are shown, in their order.
        rename: new names for some labels and axes, shown or not.

    Raises:
        ValueError: there is no such axis or label, which is told with the nearest one; no
            run has all labels; or two things would have one name.
    """
    rename = {label_text(name): new for name, new in rename.items()}
    for name in rename:
        _check(f"name '{name}'", name, _names_in(manifest))
    layout = Layout.of(manifest)
    places = {axis: _places(axis, manifest, labels) for axis, labels in only.items()}
    entries = [
        entry
        for entry in manifest.entries
        if all(entry.labels[axis] in place for axis, place in places.items())
    ]
    if not entries:
        raise ValueError("no run has all the labels that were asked for")
    entries.sort(key=lambda e: [place[e.labels[a]] for a, place in places.items()])
    alike = {axis for axis in places if len(places[axis]) == 1} - {layout.method}
    entries = [
        entry.replace(labels={a: v for a, v in entry.labels.items() if a not in alike})
        for entry in entries
    ]
    table = manifest.table.replace(
        rows=[axis for axis in layout.down if axis not in alike],
        columns=[axis for axis in layout.across if axis not in alike],
        panels=[] if alike else manifest.table.panels,
        # Another order of the methods does not change what they are compared with.
        baseline=layout.baseline,
    )
    part = manifest.replace(
        axes=[axis for axis in manifest.axes if axis not in alike],
        entries=entries,
        table=table,
        goal=manifest.goal if manifest.is_drawn else None,
    )
    return _renamed(part, rename)


def _places(
    axis: str, manifest: Manifest, labels: Sequence[Label] | Label
) -> dict[Label, int]:
    """Return the place of each label that is wanted on an axis."""
    if isinstance(labels, str | int | float | None):
        labels = [labels]
    wanted = list(map(label_text, labels))
    _check(f"axis '{axis}'", axis, manifest.axes)
    known = {
        label_text(entry.labels[axis]): entry.labels[axis] for entry in manifest.entries
    }
    for name in wanted:
        _check(f"{axis}={name}", name, known)
    return {known[name]: i for i, name in enumerate(wanted)}


def _check(what: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise ValueError(f"the sweep has no {what}: {nearest(name, known)}")


def _names_in(manifest: Manifest) -> set[str]:
    """Return the names of all axes and labels of a sweep."""
    labels = (v for entry in manifest.entries for v in entry.labels.values())
    return {*manifest.axes, *map(label_text, labels)}


def _renamed(manifest: Manifest, rename: Mapping[str, str]) -> Manifest:
    """Give labels and axes their new names."""
    times = Counter(rename.get(name, name) for name in _names_in(manifest))
    for name, number in times.items():
        if number > 1:
            raise ValueError(f"two things would have the name '{name}'")

    def axes(old: Sequence[str]) -> list[str]:
        return [rename.get(axis, axis) for axis in old]

    def label(old: Label) -> Label:
        return rename.get(label_text(old), old)

    table = manifest.table
    return manifest.replace(
        axes=axes(manifest.axes),
        entries=[
            entry.replace(
                labels={rename.get(a, a): label(v) for a, v in entry.labels.items()}
            )
            for entry in manifest.entries
        ],
        table=table.replace(
            rows=axes(table.rows),
            columns=axes(table.columns),
            panels=axes(table.panels),
            lines=rename.get(table.lines, table.lines),
            baseline=label(table.baseline),
        ),
    )


def draw(name: str, study: Study, style: Style) -> Figure | None:
    """Draw `curves`, `heatmap` ...; None if there are no numbers for it.

    Raises:
        ValueError: there is no such figure.
    """
    if name not in FIGURES:
        raise ValueError(f"there is no figure '{name}': {nearest(name, FIGURES)}")
    with style.used():
        return FIGURES[name].draw(study, style)


def table_tex(study: Study) -> str:
    """Return the table as a `tabular` of LaTeX, with its caption in a comment."""
    numbers = study.numbers
    # Beside a chosen round the last one would make the table too wide.
    last = f"mean.{final_of(numbers.manifest.table.statistic)}"
    entries = numbers.entries.drop(columns=last, errors="ignore")
    return latex(pivot(replace(numbers, entries=entries)), caption_of(study))


def caption_of(study: Study) -> str:
    """Say what the numbers of the table are."""
    numbers = study.numbers
    texts = [entries_text(numbers), share_text(numbers), marks_text(numbers)]
    texts.append(legend(numbers.shown_entries))
    texts.append(spread_note(numbers.entries, numbers.manifest.table))
    return without_markup(" ".join(filter(None, texts)))


def files_of(study: Study, style: Style) -> dict[str, bytes]:
    """Return the content of all files by name: the table, each figure, their captions."""
    captions = [f"- table: {as_markdown(caption_of(study))}"]
    made = {"table.tex": table_tex(study).encode()}
    for name, listed in FIGURES.items():
        figure = draw(name, study, style)
        if figure is not None:
            about = listed.about(study.numbers.manifest)
            captions.append(f"- {name}: {as_markdown(f'{about} {figure.get_label()}')}")
            with style.used():
                made |= {f"{name}.{end}": to_file(figure, end) for end in KINDS}
    return made | {"captions.md": "\n".join([*captions, ""]).encode()}
