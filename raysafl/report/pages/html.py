"""The parts of an HTML page, and the page: one file that loads nothing from a network."""

import base64
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from raysafl.report.figures.style import DPI

if TYPE_CHECKING:
    from jinja2 import Template

# CSS pixels per inch.
SCREEN = 96


@dataclass(frozen=True)
class Picture:
    """A PNG file on a page.

    Attributes:
        name: the name of the file.
        png: its content.
        alt: the text for readers who cannot see it.
        caption: the text below it.
    """

    name: str
    png: bytes
    alt: str
    caption: str

    @property
    def uri(self) -> str:
        """Return the picture as a data URI, so that the page needs no other file."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"

    @property
    def width(self) -> int:
        """Return the width in CSS pixels at which letters are as large as the page's."""
        return round(self._pixels()[0] * SCREEN / DPI)

    @property
    def height(self) -> int:
        """Return the height in CSS pixels that belongs to the width."""
        return round(self._pixels()[1] * SCREEN / DPI)

    def _pixels(self) -> tuple[int, int]:
        # A PNG file states its size at this position of its header.
        wide, high = struct.unpack(">II", self.png[16:24])
        return wide, high


@dataclass(frozen=True)
class Grid:
    """A table on a page; the first entry of each row is its head."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    # Whether the entries are words, which are flush left.
    text: bool = False
    kind: str = "grid"


@dataclass(frozen=True)
class Prose:
    """A piece of text on a page, as HTML."""

    html: Markup
    kind: str = "prose"


@dataclass(frozen=True)
class Cards:
    """The most important numbers of a page: name, value, and whether it is bad news."""

    cards: Sequence[tuple[str, str, bool]]
    kind: str = "cards"


@dataclass(frozen=True)
class Facts:
    """A list of names with their values."""

    facts: Mapping[str, str]
    kind: str = "facts"


@dataclass(frozen=True)
class Lines:
    """A list of lines with bullets."""

    lines: Sequence[str]
    kind: str = "lines"


@dataclass(frozen=True)
class Pictures:
    """Figures, one below the other or side by side."""

    pictures: Sequence[Picture]
    beside: bool = False
    kind: str = "pictures"


Part = Grid | Prose | Cards | Facts | Lines | Pictures


@dataclass(frozen=True)
class Section:
    """A section of the page, with a line in the table of contents."""

    id: str
    title: str
    parts: Sequence[Part]


def prose(text: str) -> Prose:
    """Turn Markdown into text of the page; HTML in it is shown as text, not interpreted."""
    return Prose(Markup(MarkdownIt("js-default").render(text)))


def badge(word: str) -> Markup:
    """Write a verdict as a word with a colour of its own."""
    return (
        Markup('<span class="verdict {0}">{0}</span>').format(word)
        if word
        else Markup("")
    )


def stacked(upper: str, lower: str, mark: str = "") -> Markup:
    """Write an entry of two lines: our number, and the paper's with its verdict."""
    if not lower:
        return escape(upper)
    tail = Markup(" {}").format(badge(mark)) if mark else ""
    return Markup('{}<br><span class="paper">{}</span>{}').format(upper, lower, tail)


def render(
    title: str, sections: Sequence[Section], subtitle: str = "", warning: str = ""
) -> str:
    """Write the page as HTML; sections without parts are left out.

    Args:
        title: the title of the page.
        sections: its sections, in order.
        subtitle: a line below the title.
        warning: a warning at the top; empty for none.
    """
    shown = [section for section in sections if section.parts]
    return _template().render(
        title=title, subtitle=subtitle, warning=warning, sections=shown
    )


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("raysafl.report")
    return Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined
    ).get_template("page.html.jinja")
