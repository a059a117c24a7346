"""The parts of a page, and the page: one file that asks nothing of a network."""

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

SCREEN = 96  # CSS pixels per inch


@dataclass(frozen=True)
class Picture:
    """A PNG with what a reader who cannot see it is told, and what stands below it."""

    name: str  # of the file
    png: bytes
    alt: str
    caption: str

    @property
    def uri(self) -> str:
        """The picture itself, as an address."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"

    @property
    def width(self) -> int:
        """In CSS pixels, so that its letters have the size of the page's."""
        return round(self._pixels()[0] * SCREEN / DPI)

    @property
    def height(self) -> int:
        """In CSS pixels."""
        return round(self._pixels()[1] * SCREEN / DPI)

    def _pixels(self) -> tuple[int, int]:
        wide, high = struct.unpack(">II", self.png[16:24])  # of the header chunk
        return wide, high


@dataclass(frozen=True)
class Grid:
    """A table; the first cell of a row is its head."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: bool = False  # words, not numbers: flush left
    kind: str = "grid"


@dataclass(frozen=True)
class Prose:
    """Text."""

    html: Markup
    kind: str = "prose"


@dataclass(frozen=True)
class Cards:
    """Numbers that come first: name, value, whether it is bad news."""

    cards: Sequence[tuple[str, str, bool]]
    kind: str = "cards"


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    facts: Mapping[str, str]
    kind: str = "facts"


@dataclass(frozen=True)
class Lines:
    """A list."""

    lines: Sequence[str]
    kind: str = "lines"


@dataclass(frozen=True)
class Pictures:
    """Figures, below each other or beside each other."""

    pictures: Sequence[Picture]
    beside: bool = False
    kind: str = "pictures"


Part = Grid | Prose | Cards | Facts | Lines | Pictures


@dataclass(frozen=True)
class Section:
    """A part of the page with a line in its table of contents."""

    id: str
    title: str
    parts: Sequence[Part]


def prose(text: str) -> Prose:
    """Markdown as text of the page; HTML in it is shown, not obeyed."""
    return Prose(Markup(MarkdownIt("js-default").render(text)))


def badge(word: str) -> Markup:
    """A verdict: a word that also has a colour."""
    return Markup('<span class="verdict {0}">{0}</span>').format(word) if word else Markup("")


def stacked(upper: str, lower: str, mark: str = "") -> Markup:
    """A cell of two lines: ours, and the paper's with its verdict."""
    if not lower:
        return escape(upper)
    tail = Markup(" {}").format(badge(mark)) if mark else ""
    return Markup('{}<br><span class="paper">{}</span>{}').format(upper, lower, tail)


def render(title: str, sections: Sequence[Section], subtitle: str = "", warning: str = "") -> str:
    """The page. Sections without parts are left out."""
    shown = [section for section in sections if section.parts]
    return _template().render(title=title, subtitle=subtitle, warning=warning, sections=shown)


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("raysafl.report")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template(
        "page.html.jinja"
    )
