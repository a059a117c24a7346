"""The document of a report, before `html` and `markdown` write it."""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


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
