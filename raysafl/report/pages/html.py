"""A document as HTML: one file that loads nothing from a network."""

import base64
import re
import struct
from functools import cache
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from raysafl.report.figures.style import DPI
from raysafl.report.pages.document import Block, Cell, Document, Pair, Verdict

if TYPE_CHECKING:
    from jinja2 import Template


# CSS pixels per inch.
SCREEN = 96


def html(document: Document) -> str:
    """Write a document as a page with all of its pictures."""
    return _template().render(document=document)


def _prose(text: str) -> Markup:
    """Turn Markdown into HTML; HTML in it is shown as text, not interpreted."""
    return Markup(MarkdownIt("js-default").render(text))


def _cell_html(cell: Cell) -> Markup:
    """Write an entry of a table: our number above what stands beside it."""
    if isinstance(cell, Pair):
        lower = '<br><span class="paper">{}</span> ' if cell.beside else ""
        beside = Markup(lower).format(cell.beside)
        return _cell_html(cell.ours) + beside + _cell_html(cell.verdict)
    if isinstance(cell, Verdict):
        badge = '<span class="verdict {0}">{0}</span>' if cell else ""
        return Markup(badge).format(cell)
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(cell))))


def _data(png: bytes) -> str:
    """Write a picture as a data URI, so that the page needs no other file."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _pixels(png: bytes) -> tuple[int, int]:
    """Return width and height in CSS pixels at which letters are as large as the page's."""
    # A PNG file states its size at this position of its header.
    wide, high = struct.unpack(">II", png[16:24])
    return round(wide * SCREEN / DPI), round(high * SCREEN / DPI)


def _anchor(title: str) -> str:
    """Return the id of a section."""
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def _kind_of_block(block: Block) -> str:
    return type(block).__name__


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("raysafl.report")
    there = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    there.filters |= {
        "prose": _prose,
        "cell": _cell_html,
        "data": _data,
        "pixels": _pixels,
    }
    there.filters |= {"anchor": _anchor, "kind": _kind_of_block}
    return there.get_template("page.html.jinja")
