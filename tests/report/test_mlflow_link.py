"""The report links to the page of MLflow that shows the sweep, and says how to start it."""

import shutil
from pathlib import Path

import pytest

from raysafl.report.pages.sections import mlflow_text
from raysafl.report.write import write_report
from raysafl.storage.mlflow_view import NAME, MlflowView, read_view, write_view
from raysafl.storage.store import Store
from raysafl.tracking.client import default_uri

PAGE = "/#/experiments/3/runs?viewStateShareKey=raysafl&workflowType=machine_learning"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "my results" / "demo")
    store.create()
    return store


def test_the_link_leads_to_the_server_that_raysafl_ui_starts(store: Store) -> None:
    write_view(store, MlflowView(default_uri(store.path.parent), "3", "abc"))
    text = mlflow_text(store)
    assert f"`raysafl ui '{store.path.parent}'`" in text
    assert f"(http://127.0.0.1:5000{PAGE})" in text


@pytest.mark.parametrize("content", [None, b"{", b'{"uri": "x"}', b"[]"])
def test_without_a_readable_file_there_is_no_link(
    content: bytes | None, store: Store
) -> None:
    if content is not None:
        (store.path / NAME).write_bytes(content)
    assert read_view(store) is None and mlflow_text(store) == ""


def test_the_page_has_the_link_below_the_command(
    real_results: Path, tmp_path: Path
) -> None:
    store = Store(tmp_path / "quickstart")
    shutil.copytree(real_results / "quickstart", store.path)
    page = store.path / "report.html"
    assert "In MLflow" not in page.read_text()
    write_view(store, MlflowView(default_uri(tmp_path), "3", "abc"))
    write_report(store)
    text = page.read_text()
    link = PAGE.replace("&", "&amp;")
    assert (
        f'<a href="http://127.0.0.1:5000{link}">all runs and their charts</a>' in text
    )
    assert text.index("To run it again") < text.index("In MLflow")
