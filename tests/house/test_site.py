"""The documentation site: built by one command, it needs no network, and search finds pages."""

import json
import re
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from helpers.browser import opened_browser
from helpers.commands import checked_output
from helpers.scripts import module_of

import raysafl as fl
from raysafl.core.component import Component

ROOT = Path(__file__).parents[2]
# What people look for, in words of the glossaries of Flower and pfl-research and of the papers
# on FedAvg, MIFA, FedAU, SAFARI and FAST, and the page that is to be among the first three.
SEARCHES = {
    "straggler": "glossary",
    "partial participation": "policies",
    "client sampling": "policies",
    "client selection": "policies",
    "unavailable clients": "policies",
    "arbitrary participation": "policies",
    "availability trace": "policies",
    "non-IID": "non_iid",
    "label skew": "non_iid",
    "heterogeneity": "non_iid",
    "dirichlet partition": "non_iid",
    "hyperparameter": "tutorial_tuning",
    "learning rate schedule": "fair_baselines",
    "weighted averaging": "fair_baselines",
    "early stopping": "fair_baselines",
    "communication cost": "recipes",
    "fairness": "who_is_served",
    "personalization": "who_is_served",
    "per-client accuracy": "who_is_served",
    "cross-device": "glossary",
    "cross-silo": "glossary",
    "aggregation": "glossary",
    "secure aggregation": "faq",
    "differential privacy": "faq",
    "plot": "tutorial_paper",
    "confidence interval": "concept_statistics",
    "checkpoint": "faq",
    "custom algorithm": "tutorial_algorithm",
}
# A result in the list of the search.
FOUND = "a[role=option]"
NAMESPACES = ("algorithms", "data", "models", "objectives", "participation", "training")


BUILD = module_of(ROOT / "docs" / "build_site.py")


def test_every_page_of_docs_is_in_the_navigation_once() -> None:
    listed = [name for _, name in BUILD.entries()]
    own = [
        name for name in listed if not name.startswith(("reference/", "repository/"))
    ]
    assert sorted(own) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))
    others = {name for name in listed if name.startswith("repository/")}
    assert all((ROOT / name.removeprefix("repository/")).is_file() for name in others)


def test_links_that_leave_docs_fit_the_site_and_code_is_left_alone(
    tmp_path: Path,
) -> None:
    page = ROOT / "docs" / "gpu.md"
    found: set[Path] = set()
    text = BUILD.relinked(page, found)
    assert "](repository/benchmarks/README.md)" in text and "](log.md)" in text
    assert ROOT / "benchmarks" / "README.md" in found
    assert BUILD.CODE.findall(text) == BUILD.CODE.findall(page.read_text())
    source = BUILD.relinked(ROOT / "docs" / "papers_experiments.md", found)
    assert "](repository/experiments/safari/table1_mnist.py.md)" in source


def test_what_a_page_would_load_and_where_its_links_lead_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BUILD, "SITE", tmp_path)
    fine = '<a href="https://elsewhere.org">a link</a><img src="a.png"><p id="x"></p>'
    (tmp_path / "a.html").write_text(fine)
    (tmp_path / "a.png").touch()
    assert list(BUILD.faults()) == []
    for fault in (
        '<script src="https://cdn.org/x.js"></script>',
        '<link rel="stylesheet" href="//fonts.org/x.css">',
        "<style>@import 'https://fonts.org/x.css';</style>",
        "<style>p { background: url(http://x.org/a.png) }</style>",
        '<a href="b.html">nowhere</a>',
    ):
        (tmp_path / "a.html").write_text(fine + fault)
        assert len(list(BUILD.faults())) == 1, fault


@pytest.fixture(scope="module")
def site() -> Path:
    for name in "zensical mkdocstrings mkdocstrings_handlers griffe_pydantic".split():
        pytest.importorskip(name, reason="the site is built with raysafl[docs]")
    command = [sys.executable, str(ROOT / "docs" / "build_site.py")]
    checked_output(command, cwd=ROOT)
    return ROOT / "build" / "site"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as opened:
        yield opened


@pytest.mark.acceptance
def test_the_reference_describes_every_name_and_field(site: Path) -> None:
    for namespace in NAMESPACES:
        module = getattr(fl, namespace)
        table = (site / "reference" / f"{namespace}.html").read_text()
        for name in module.__all__:
            assert f'href="{namespace}/{name}.html"' in table
            page = (site / "reference" / namespace / f"{name}.html").read_text()
            text = " ".join(unescape(re.sub(r"<[^>]+>", "", page)).split())
            assert f"fl.{namespace}.{name}" in text
            value = getattr(module, name)
            if not (isinstance(value, type) and issubclass(value, Component)):
                continue
            for field, about in value.model_fields.items():
                first = re.split(r"[`(\"]", about.description or "")[0]
                assert field in text, (name, field)
                assert " ".join(first.split()) in text, (name, field)
    commands = (site / "reference" / "command_line.html").read_text()
    assert "--keep-states" in commands and "raysafl verify" in commands


@pytest.mark.acceptance
def test_the_index_for_models_names_every_page_of_the_navigation(site: Path) -> None:
    lines = (site / "llms.txt").read_text().splitlines()
    links = [link for line in lines for link in re.findall(r"\]\((.*?)\): \S", line)]
    assert links == [BUILD.address(name) for _, name in BUILD.entries()]
    assert all((site / link).is_file() for link in links)


@pytest.mark.acceptance
@pytest.mark.parametrize(("width", "scheme"), [(1440, "dark"), (900, "light")])
def test_a_reader_finds_a_page_by_search_and_reads_a_tutorial(
    site: Path, browser: Any, width: int, scheme: str
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 1000}, color_scheme=scheme
    )
    page = context.new_page()
    errors: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda m: m.type == "error" and errors.append(m.text))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("Control+k")
    page.keyboard.type("NightShift")
    hit = page.locator("a[href*='policies.html']:visible", has_text="own").first
    hit.wait_for(timeout=60_000)
    hit.click()
    page.wait_for_url("**/policies.html*")
    assert page.locator("h1").inner_text().startswith("Partial participation")
    page.goto((site / "tutorials.html").as_uri())
    assert page.locator("code", has_text="class StayLongEnough").is_visible()
    wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert not page.evaluate(wide)
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    red = int(re.findall(r"\d+", back)[0])
    assert red > 200 if scheme == "light" else red < 60
    page.goto((site / "example_report.html").as_uri())
    assert page.locator("table").first.is_visible()
    assert not errors
    assert not [url for url in asked if not url.startswith(("file:", "blob:", "data:"))]
    context.close()


@pytest.mark.acceptance
def test_a_search_for_a_term_of_the_field_finds_its_page(
    site: Path, browser: Any
) -> None:
    assert len(SEARCHES) == 28
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("Control+k")
    page.keyboard.type("NightShift")
    page.locator(FOUND).first.wait_for(timeout=60_000)
    missed = {}
    for query, name in SEARCHES.items():
        page.keyboard.press("Control+a")
        page.keyboard.type(query)
        page.wait_for_timeout(1000)
        links = page.locator(FOUND).evaluate_all("all => all.map(a => a.href)")
        first = [Path(re.split("[?#]", link)[0]).stem for link in links[:3]]
        if name not in first:
            missed[query] = first
    assert not missed
    page.close()


@pytest.mark.acceptance
def test_the_search_leaves_out_the_log_and_the_pages_for_developers(site: Path) -> None:
    items = json.loads((site / "search.json").read_text())["items"]
    pages = {item["location"].split("#")[0] for item in items}
    assert {
        "policies.html",
        "glossary.html",
        "reference/algorithms/FedAvg.html",
    } <= pages
    assert not [p for p in pages if p.startswith(("log", "repository/", "reliability"))]
