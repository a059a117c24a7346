"""`report.html`, its figures and comparisons, of a real sweep and of planted ones."""

import base64
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raysafl.cli import app as cli
from raysafl.report.pages.document import (
    Document,
    Grid,
    Picture,
    Strong,
    bullets,
    html,
    markdown,
)
from raysafl.report.pages.sections import mlflow_text
from raysafl.report.write import write_report
from raysafl.storage.mlflow_view import NAME, MlflowView, read_view, write_view
from raysafl.storage.store import Store
from raysafl.tracking.client import default_uri

TITLES = ["Table", "All entries", "Methods, seed by seed", "Curves", "Heat map"]
TITLES += ["Participation", "Cost"]
TITLES += ["Methods over all settings", "Configuration", "How it was made"]


class Page(HTMLParser):
    """What a page links to, shows and has headings for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.ids, self.said, self.tags = (list[str]() for _ in range(4))
        self.addresses: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.feed(text)
        self.text = " ".join(" ".join(self.said).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        self.links += [found["href"] or ""] if tag == "a" else []
        self.ids += [found["id"] or ""] if "id" in found else []
        self.images += [found] if tag == "img" else []
        self.addresses += [
            v or "" for k, v in attrs if k in ("src", "href", "srcset", "action")
        ]

    def handle_data(self, data: str) -> None:
        self.said.append(data)


@pytest.fixture(scope="module")
def page(real_results: Path) -> Page:
    return Page((real_results / "quickstart" / "report.html").read_text())


@pytest.fixture
def copy(real_results: Path, tmp_path: Path) -> Store:
    """The real sweep, to change."""
    store = Store(tmp_path / "my results" / "quickstart")
    shutil.copytree(real_results / "quickstart", store.path)
    return store


def test_the_page_needs_nothing_but_itself(page: Page) -> None:
    assert page.addresses and all(a.startswith(("#", "data:")) for a in page.addresses)
    assert not {"script", "iframe", "object", "embed"} & set(page.tags)


def test_every_line_of_the_contents_leads_to_its_section(page: Page) -> None:
    assert [link.removeprefix("#") for link in page.links] == page.ids
    assert len(set(page.ids)) == len(page.ids)
    for title in TITLES:
        # in the contents and above the section
        assert page.said.count(title) >= 2, title


def test_every_picture_is_there_whole_with_words_for_who_cannot_see_it(
    page: Page, real_results: Path
) -> None:
    files = {f.read_bytes() for f in (real_results / "quickstart").glob("*.png")}
    shown = {base64.b64decode((i["src"] or "").partition(",")[2]) for i in page.images}
    assert shown == files and len(files) == 4
    for image in page.images:
        assert len(image["alt"] or "") > 40 and int(image["width"] or 0) > 300


def test_the_page_has_the_numbers_of_the_table(page: Page, real_results: Path) -> None:
    table = (
        (real_results / "quickstart" / "table.md").read_text().split("## Methods")[0]
    )
    numbers = re.findall(r"\d+\.\d+ ± \d+\.\d+", table)
    assert len(numbers) == 8
    for number in numbers:
        # in the table and in its entry's line
        assert page.text.count(number) >= 2, number
    assert "8 of 8" in page.text and "raysafl quickstart" in page.text
    assert "data.partition.p: 1, 2" in page.text  # of what differs
    assert "seeds finished." in page.text and "not finished" not in page.text


@pytest.mark.usefixtures("no_pictures")
def test_the_command_reports_each_sweep(
    copy: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = copy.path.parent
    monkeypatch.chdir(root)
    shutil.copytree(copy.path, root / "second")
    for name in ("quickstart", "second"):
        (root / name / "report.html").unlink()
    arguments = ["report", "quickstart", "second"]
    result = CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert (root / "quickstart/report.html").is_file()
    assert (root / "second/report.html").is_file()


def test_both_writers_show_every_part_of_a_document(page: Page) -> None:
    grid = Grid("g", ["a", "b", "c"], [["x", Strong("y"), "higher"]], 2)
    png = base64.b64decode(str(page.images[0]["src"])[22:])
    picture = Picture("p.png", png, "cap")
    parts = [grid, "", "*told*", bullets(["<b> | *l*"])]
    document = Document(
        "T < 1", {"One": parts, "Two": [picture], "No": [""]}, "Mind", "lead"
    )
    text = markdown(document)
    assert text == (
        "# T < 1\n\n**Mind**\n\nlead\n\n## One\n\n| a | b | c |\n| :-- | :-- | --: |\n"
        "| x | **y** | higher |\n\n*told*\n\n- \\<b> | \\*l\\*\n"
    )
    shown = Page(html(document))
    assert shown.ids == ["one", "two"]
    (image,) = shown.images
    assert image["alt"] == "Two: cap The numbers are in the table."
    for word in ("T < 1", "Mind", "lead", "a, b c", "x, y higher", "told", "cap"):
        assert word in shown.text, word
    # What is told as it is, is not interpreted, and a text is.
    assert "<b> | *l*" in shown.text and "em" in shown.tags and "b" not in shown.tags


def test_code_in_an_entry_of_a_table_is_code_and_html_is_text() -> None:
    shown = Page(html(Document("t", {"s": [Grid("g", ["h"], [["`<i>` <i>"]])]})))
    assert "<i> <i>" in shown.text and "code" in shown.tags and "i" not in shown.tags


# --- the link to MLflow

PAGE = "/#/experiments/3/runs?viewStateShareKey=raysafl&workflowType=machine_learning"


@pytest.mark.parametrize("content", [None, b"{", b'{"uri": "x"}', b"[]"])
def test_without_a_readable_file_there_is_no_link_to_mlflow(
    content: bytes | None, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / NAME).write_bytes(content)
    store = Store(tmp_path)
    assert read_view(store) is None and mlflow_text(store) == ""


@pytest.mark.usefixtures("no_pictures")
def test_the_page_links_to_the_server_that_raysafl_ui_starts(copy: Store) -> None:
    root = copy.path.parent
    page = copy.path / "report.html"
    assert "In MLflow" not in page.read_text()
    write_view(copy, MlflowView(default_uri(root), "3", "abc"))
    assert f"`raysafl ui '{root}'`" in mlflow_text(copy)
    write_report(copy)
    text = page.read_text()
    href = f"http://127.0.0.1:5000{PAGE}".replace("&", "&amp;")
    assert f'<a href="{href}">all runs and their charts</a>' in text
    assert text.index("To run it again") < text.index("In MLflow")
