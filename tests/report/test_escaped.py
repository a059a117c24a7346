"""Whatever a label is, no file and no terminal takes it for more than text."""

import re
from functools import cache
from html.parser import HTMLParser

import numpy as np
from helpers.scored import made
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from raysafl.core.text import CONTROL, printable
from raysafl.report.analysis.numbers import Numbers
from raysafl.report.pages.document import Document, Grid, html, latex, markdown
from raysafl.report.pages.screen import screen
from raysafl.report.write import results_document
from raysafl.sweep.progress import plain_console

NASTY = (
    "<script>alert(1)</script>", "<img src=x onerror=y>", "&lt;b&gt;", "`", "``", "\\", "|",
    "](http://x.org)", "![", "[a](b)", "*", "**", "_", "$", r"$\input{/etc/passwd}$", r"$x\\$",
    r"$\text{\input{a}}$", r"\input{x}", "%", "{", "}", "^^M", "~", "=1+1", "+1", "-1", "@a",
    "\t=1", "\n", "\r", "\x1b[31m", "\x07", "\x9b", "\u202e", "\u2066", "\u200f", " ", "a", "7",
)  # fmt: skip
LABELS = st.lists(
    st.sampled_from(NASTY) | st.text(st.characters(exclude_categories=["Cs"])),
    min_size=1,
    max_size=5,
).map("".join)


def sweep_of(label: str, notes: str = "") -> tuple[Numbers, Document]:
    """A sweep with this label, title, name and name of an axis, and the document on it."""
    values = {
        (setting, method): np.array([0.5, 0.6, 0.4]) - shift
        for setting, shift in ((label, 0.0), ("other", 0.1))
        for method in (f"{label}x", "y")
    }
    runs, manifest = made(values, axes=(f"{label} axis", "algorithm"))
    texts = {"name": label, "title": label, "notes": notes}
    numbers = Numbers.of(runs, manifest.replace(texts))
    return numbers, results_document(numbers)


class Page(HTMLParser):
    """The elements of a page with the names of their attributes, and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements = set[tuple[str, tuple[str, ...]]]()
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of an element."""
        self.elements.add((tag, tuple(sorted(name for name, _ in attrs))))

    def handle_data(self, data: str) -> None:
        """Take note of a text."""
        self.texts.append(data)


@cache
def usual() -> set[tuple[str, tuple[str, ...]]]:
    """The elements of a page whose labels are words, which may break behind a `_`."""
    return {*Page(html(sweep_of("a_word")[1])).elements, ("code", ())}


def squeezed(text: str) -> str:
    return " ".join(printable(text).split())


def without_code(text: str) -> str:
    """What stands between backticks is shown as code, so without them."""
    return re.sub(r"(?<!`)`([^`]+)`(?!`)", r"\1", text)


@given(LABELS)
@example("```<script>`")
@example(r"\`<script>`")
@settings(max_examples=15, deadline=None)
def test_pages_tables_and_the_terminal_show_labels_as_text(label: str) -> None:
    numbers, document = sweep_of(label)
    page = html(document)
    assert Page(page).elements <= usual() and not CONTROL.search(page)
    assert printable(label) in " ".join(Page(page).texts)

    text = markdown(document)
    assert not CONTROL.search(text)
    reader = MarkdownIt("commonmark", {"html": True}).enable("table")
    tokens = [
        own for token in reader.parse(text) for own in (token, *(token.children or ()))
    ]
    kinds = {token.type for token in tokens}
    assert not kinds & {"html_block", "html_inline", "link_open", "image"}
    shown = "".join(Page(reader.render(text)).texts)
    assert without_code(squeezed(f"{label}x")) in shown.replace("\n", " ")

    console = plain_console()
    with console.capture() as taken:
        console.print(screen(numbers.runs, numbers.manifest))
    assert not CONTROL.search(taken.get())


@given(LABELS)
@example(r"\<script>alert(1)</script>")
@settings(max_examples=15, deadline=None)
def test_notes_are_markdown_without_html(notes: str) -> None:
    text = markdown(sweep_of("word", notes)[1])
    reader = MarkdownIt("commonmark", {"html": True})
    tokens = [
        own for token in reader.parse(text) for own in (token, *(token.children or ()))
    ]
    assert not {token.type for token in tokens} & {"html_block", "html_inline"}
    assert not CONTROL.search(text)


@given(LABELS)
@settings(max_examples=50, deadline=None)
def test_latex_has_no_command_of_a_label(label: str) -> None:
    text = latex(Grid("", ["a"], [[label]]))
    assert not CONTROL.search(text)
    row = text.split("\\midrule\n")[1].split(" \\\\\n\\bottomrule")[0]
    # pandas writes a space behind a backslash, a tilde or a circumflex as a command too.
    known = r"\\[&%$#_{}]|\\(textbackslash|textasciitilde|textasciicircum|space) "
    known += r"|\{\\text(less|greater|bar)\}|^\{\}"
    assert not set(re.sub(known, "", row)) & {*"\\$%#&~_^{}<>|"}
