"""The document of a report, and how it is written as Markdown, HTML and LaTeX."""

import base64
import itertools
import re
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import pandas as pd
from markupsafe import Markup, escape

from raysafl.core.text import printable
from raysafl.report.wording import as_markdown

if TYPE_CHECKING:
    from jinja2 import Template


class Strong(str):
    """A number that stands out."""


# Parts between backticks are code.
Cell = str


@dataclass(frozen=True)
class Grid:
    """A table.

    Attributes:
        caption: what it shows, for readers who cannot see it.
        head: the names of the columns.
        rows: the entries of each row.
        heads: how many columns, from the left, tell the rows apart.
        is_list: whether rows stand for themselves, so that labels that they share with
            the row above are written.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    heads: int = 1
    is_list: bool = False

    def groups(self) -> list[tuple[str, list[Sequence[Cell]]]]:
        """Return the rows by their first label, which is empty where it groups nothing.

        The rows of a group are without it.
        """
        found = [
            (first, [row[1:] for row in rows])
            for first, rows in itertools.groupby(self.rows, lambda row: row[0])
        ]
        if self.is_list or self.heads < 2 or len(found) == len(self.rows):
            return [("", list(self.rows))]
        return found

    def sparse(self) -> list[Sequence[Cell]]:
        """Return the rows, with the label of a group in its first row alone."""
        return [
            [label if i == 0 else "", *row] if label else row
            for label, rows in self.groups()
            for i, row in enumerate(rows)
        ]


@dataclass(frozen=True)
class Picture:
    """A PNG file, which only a page shows.

    Attributes:
        name: the name of the file.
        png: its content.
        caption: the text below it.
    """

    name: str
    png: bytes
    caption: str


# A text is Markdown.
Block = str | Grid | Picture


@dataclass(frozen=True)
class Document:
    """A title and sections, which are made once and written in several formats.

    Attributes:
        title: the title.
        sections: the blocks of each section, by its title. Empty texts are left out, and
            so are sections without blocks.
        warning: what must not be overlooked; may be empty.
        lead: the text below the title, as Markdown.
        folded: the titles of the sections that a page shows when they are asked for.
    """

    title: str
    sections: Mapping[str, Sequence[Block]]
    warning: str = ""
    lead: str = ""
    folded: Collection[str] = ()

    def __post_init__(self) -> None:
        """Leave out what is empty."""
        kept = {
            name: [b for b in blocks if b] for name, blocks in self.sections.items()
        }
        some = {name: blocks for name, blocks in kept.items() if blocks}
        object.__setattr__(self, "sections", some)


# What begins a heading, a list or a quotation where a line begins.
OPENING = re.compile(r"^(\d*)(?=(?:[-+.)]|#+)\s|>)")
ESCAPED = r"\1\\"


def markdown(document: Document) -> str:
    """Write a document as Markdown; sections that have only pictures are left out."""
    parts = [f"# {as_markdown(document.title)}"]
    parts += [f"**{as_markdown(document.warning)}**"] if document.warning else []
    parts += [document.lead] if document.lead else []
    for title, own in document.sections.items():
        texts = [
            pipe_table(b.head, b.rows, b.heads) if isinstance(b, Grid) else b.strip()
            for b in own
            if not isinstance(b, Picture)
        ]
        parts += [f"## {title}", *texts] if texts else []
    return printable("\n\n".join(parts)) + "\n"


def bullets(lines: Iterable[str]) -> str:
    r"""Write a list of lines, each of which is shown as it is.

    Example:
        >>> print(bullets(["# of clients: 5", "lr: 0.1"]))
        - \# of clients: 5
        - lr: 0.1
    """
    return "\n".join(f"- {OPENING.sub(ESCAPED, as_markdown(line))}" for line in lines)


def pipe_table(
    head: Sequence[str], rows: Iterable[Sequence[Cell]], left: int = 1
) -> str:
    """Write a Markdown table, its first `left` columns flush left, the others flush right."""
    rule = [":--" if i < left else "--:" for i in range(len(head))]
    return "\n".join(
        f"| {' | '.join(map(_cell_markdown, row))} |" for row in [head, rule, *rows]
    )


def _cell_markdown(cell: Cell) -> str:
    """Write an entry of a table, such as `**56.18 ± 0.20**`."""
    if isinstance(cell, Strong):
        return f"**{cell}**"
    return as_markdown(cell).replace("|", "\\|")


# CSS pixels per inch.
SCREEN = 96


def html(document: Document) -> str:
    """Write a document as a page with all of its pictures."""
    return printable(_template().render(document=document))


def _cell_html(cell: Cell) -> Markup:
    """Write an entry of a table."""
    if isinstance(cell, Strong):
        return Markup("<strong>{}</strong>").format(cell)
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(cell))))


def _pixels(png: bytes) -> tuple[int, int]:
    """Return width and height in CSS pixels at which letters are as large as the page's."""
    # Imported here, because matplotlib is large, and no table needs it.
    from raysafl.report.figures.style import DPI

    # A PNG file states its size at this position of its header.
    wide, high = struct.unpack(">II", png[16:24])
    return round(wide * SCREEN / DPI), round(high * SCREEN / DPI)


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markdown_it import MarkdownIt

    loader = PackageLoader("raysafl.report")
    there = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    filters: dict[str, Callable[..., Any]] = {
        # HTML in Markdown is shown as text, not interpreted.
        "prose": lambda text: Markup(MarkdownIt("js-default").render(text)),
        "cell": _cell_html,
        # The page needs no other file.
        "data": lambda png: f"data:image/png;base64,{base64.b64encode(png).decode()}",
        "pixels": _pixels,
        "anchor": lambda title: re.sub(r"\W+", "-", title.lower()).strip("-"),
        "kind": lambda block: type(block).__name__,
    }
    there.filters |= filters
    return there.get_template("page.html.jinja")


def latex(grid: Grid, note: str = "") -> str:
    r"""Write a table as a `tabular`, which needs `\usepackage{booktabs}`.

    The label of a group is in its first row alone. LaTeX shows all texts as they are.

    Args:
        grid: the table.
        note: what stands in a comment above the table.
    """
    # As objects, texts that stand out stay what they are.
    frame = pd.DataFrame(grid.sparse(), columns=[*grid.head], dtype=object)
    bold = frame.map(lambda c: "textbf:--rwrap;" if isinstance(c, Strong) else "")
    shown = frame.style.hide(axis="index").apply(lambda _: bold, axis=None)
    shown = shown.format(escape="latex").format_index(escape="latex", axis="columns")
    columns = "l" * grid.heads + "r" * (len(grid.head) - grid.heads)
    table = shown.to_latex(column_format=columns, hrules=True)
    # Pandas leaves letters that a usual font of LaTeX has elsewhere, and a label that the
    # command before it would take for its option.
    for letter, name in {"<": "less", ">": "greater", "|": "bar"}.items():
        table = table.replace(letter, rf"{{\text{name}}}")
    table = re.sub(r"^(?=[\[*])", "{}", table, flags=re.MULTILINE)
    return "".join(f"% {line}\n" for line in note.splitlines()) + printable(table)
