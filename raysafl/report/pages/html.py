"""A document as HTML: one file that loads nothing from a network."""

import base64
import re
import struct
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from raysafl.core.text import printable
from raysafl.report.figures.style import DPI
from raysafl.report.pages.document import Cell, Document, Strong

if TYPE_CHECKING:
    from jinja2 import Template


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
    # A PNG file states its size at this position of its header.
    wide, high = struct.unpack(">II", png[16:24])
    return round(wide * SCREEN / DPI), round(high * SCREEN / DPI)


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader, StrictUndefined

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
