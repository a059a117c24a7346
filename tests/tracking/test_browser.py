"""What a person sees in a browser: `report.html` from disk, and a sweep in MLflow's own pages."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.browser import opened_browser
from helpers.servers import free_port

from raysafl.storage.mlflow_view import MlflowView
from raysafl.storage.store import Store
from raysafl.tracking.client import connect, default_uri, disconnect
from raysafl.tracking.server import server
from raysafl.tracking.tracker import sync

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed"
)
WIDTHS = (1440, 1024)
PATIENCE = 60_000  # milliseconds: MLflow's pages are slow on a busy machine
OWN = (
    "/mlflow/users/current"  # MLflow's page asks for it even where nobody logs in: 404
)
LATE = "ResizeObserver loop"  # a notice, not an error: a busy browser lays out one frame later


class Seen:
    """A page, and what went wrong or out on it."""

    def __init__(self, browser: Any, width: int = 1440) -> None:
        self.page = page = browser.new_page(viewport={"width": width, "height": 1000})
        self.errors: list[str] = []
        self.asked: set[str] = set()
        page.set_default_timeout(PATIENCE)
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.asked.add(request.url))

    def _hear(self, message: Any) -> None:
        known = message.location["url"].endswith(OWN) or LATE in message.text
        if message.type == "error" and not known:
            self.errors.append(f"{message.text} ({message.location['url']})")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as opened:
        yield opened


@pytest.mark.parametrize("width", WIDTHS)
def test_the_report_opens_from_disk_and_can_be_read(
    width: int, browser: Any, real_results: Path
) -> None:
    seen = Seen(browser, width)
    page = seen.page
    file = real_results / "quickstart" / "report.html"
    page.goto(file.as_uri())
    assert (
        page.title()
        == "FedAvg against SAFARI on digits: s of 10 clients unavailable, p classes each"
    )
    assert page.get_by_role("heading", name="Table", exact=True).is_visible()
    assert page.get_by_text("8 of 8").first.is_visible()
    page.get_by_role("link", name="Heat map").click()
    page.wait_for_function("location.hash == '#heat-map'")
    heading = page.get_by_role("heading", name="Heat map")
    playwright.expect(heading).to_be_in_viewport()
    sizes = page.evaluate(
        "[...document.images].map(i => [i.naturalWidth, i.clientWidth])"
    )
    assert len(sizes) == len(list(file.parent.glob("*.png")))
    assert all(own >= shown > 300 for own, shown in sizes)
    # nothing sticks out
    assert page.evaluate("document.documentElement.scrollWidth") == width
    seen.asked -= {url for url in seen.asked if url.startswith("data:")}
    assert seen.asked == {file.as_uri()} and seen.errors == []


@pytest.fixture(scope="module")
def mlflow(
    browser: Any, real_results: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str, str]]:
    """A real server over the real sweep: its URL, the experiment's id and the parent run's."""
    root = tmp_path_factory.mktemp("mlflow")
    shutil.copytree(real_results / "quickstart", root / "quickstart")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        sync(root, None, print)
        uri = default_uri(root)
    client = connect(uri)
    experiment = client.get_experiment_by_name("quickstart")
    assert experiment
    parent = "tags.`raysafl.kind` = 'parent'"
    (run,) = client.search_runs([experiment.experiment_id], parent)
    disconnect(client)
    with server(uri, "127.0.0.1", free_port()) as (_, url):
        yield url, experiment.experiment_id, run.info.run_id


@pytest.mark.acceptance
def test_mlflow_draws_the_curves_of_all_runs_of_the_sweep(
    browser: Any, mlflow: tuple[str, str, str], real_results: Path
) -> None:
    url, experiment, parent = mlflow
    seen = Seen(browser)
    page = seen.page
    view = MlflowView(url, experiment, parent)
    page.goto(f"{url}{view.page}&compareRunsMode=CHART")
    for name in ("s=4, SAFARI, p=1", "s=0, FedAvg, p=2"):
        page.get_by_role("link", name=name).first.wait_for()
    page.get_by_text("test/accuracy", exact=True).first.wait_for(state="attached")
    page.get_by_text("FedAvg against SAFARI on digits").first.wait_for()  # the note
    # MLflow draws with plotly.
    page.wait_for_selector(".js-plotly-plot .scatterlayer .trace", state="attached")
    ends = page.evaluate(
        "[...document.querySelectorAll('.js-plotly-plot')].flatMap("
        "plot => plot.data.filter(line => line.y).map(line => line.y.at(-1)))"
    )
    rounds = Store(real_results / "quickstart").rounds()
    last = rounds[rounds["round"] == rounds["round"].max()].groupby("run_id")
    accuracies = last["test_accuracy"].mean().round(6)
    assert set(accuracies) <= {round(end, 6) for end in ends if end is not None}
    assert seen.errors == []
    assert all(a.startswith((url, "data:", "blob:")) for a in seen.asked)


@pytest.mark.acceptance
def test_the_page_of_a_sweep_lists_the_number_that_ranks_its_runs_the_best_one_first(
    browser: Any, mlflow: tuple[str, str, str], real_results: Path
) -> None:
    url, experiment, parent = mlflow
    seen = Seen(browser)
    page = seen.page
    page.goto(url + MlflowView(url, experiment, parent).page)
    page.get_by_role("columnheader", name="last10").wait_for()
    page.get_by_role("link", name="s=4, SAFARI, p=1").first.wait_for()
    numbers = page.evaluate(
        "[...document.querySelectorAll('[role=gridcell][col-id*=last10]')]"
        ".map(cell => parseFloat(cell.innerText)).filter(own => own)"
    )
    means = Store(real_results / "quickstart").runs().groupby("run_id")["last10"].mean()
    best = means.sort_values(ascending=False)[: len(numbers)]
    assert len(numbers) > 3 and numbers == pytest.approx(list(best), abs=1e-6)


@pytest.mark.acceptance
def test_mlflow_s_parent_run_shows_the_report(
    browser: Any, mlflow: tuple[str, str, str]
) -> None:
    url, experiment, parent = mlflow
    seen = Seen(browser)
    page = seen.page
    page.goto(f"{url}/#/experiments/{experiment}/runs/{parent}/artifacts/report.html")
    for file in ("table.md", "curves.png", "runs.parquet", "heatmap.png"):
        page.get_by_text(file, exact=True).first.wait_for()
    inside = page.frame_locator("iframe").first
    inside.get_by_role("heading", name="Table", exact=True).wait_for()
    assert inside.get_by_text("8 of 8").first.is_visible()
    assert seen.errors == []


@pytest.mark.acceptance
def test_the_page_of_a_run_has_its_curves_first_and_few_charts(
    browser: Any, mlflow: tuple[str, str, str]
) -> None:
    url, experiment, parent = mlflow
    seen = Seen(browser, 1280)
    page = seen.page
    runs = f"{url}/#/experiments/{experiment}/runs"
    page.goto(f"{runs}/{parent}?workflowType=machine_learning")
    page.get_by_role("link", name="s=4, SAFARI, p=1").first.click()
    page.get_by_role("tab", name="Model metrics").click()
    page.get_by_text("(5)", exact=True).first.wait_for()
    text = " ".join(page.inner_text("body").split())
    titles = ["test (2)", "train (2)", "work (4)", "Model metrics (5)"]
    places = [text.index(title) for title in titles]
    assert places == sorted(places)
    # Two curves are in sight without scrolling.
    for chart in ("accuracy", "loss"):
        playwright.expect(page.get_by_text(chart, exact=True).first).to_be_in_viewport()
    assert seen.errors == []
