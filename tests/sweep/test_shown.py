"""What a person sees of a sweep and its outcome in Python: in a terminal and in a notebook."""

import re
from pathlib import Path

import pytest
from rich.console import Console

from raysafl.storage.mlflow_view import MlflowView, write_view
from raysafl.storage.store import Store
from raysafl.sweep.outcome import Outcome


@pytest.fixture
def outcome(real_results: Path, tables: None) -> Outcome:
    store = Store(real_results / "quickstart")
    return Outcome(store, store.manifest(), store.runs(), 3, 0, 2.5)


def test_a_notebook_shows_the_table_and_the_figure(outcome: Outcome) -> None:
    html = outcome._repr_html_()
    table = re.search(r"<pre.*</pre>", html, re.DOTALL)
    assert table and "  SAFARI  " in table[0] and "p →" in table[0]
    assert "Each entry shows the mean ± standard deviation" in table[0]
    assert 'src="data:image/png;base64,' in html
    assert len(html) < 500_000


def test_html_in_labels_is_shown_and_not_interpreted(outcome: Outcome) -> None:
    title = "<script>alert(1)</script>"
    renamed = outcome.manifest.replace(title=title)
    html = Outcome(outcome.store, renamed, outcome.runs, 0, 0, 0)._repr_html_()
    assert title not in html and "&lt;script&gt;" in html


def test_the_end_of_a_sweep_says_where_the_results_are(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(outcome.store.path.parents[1])
    console = Console(record=True, width=120)
    outcome.print_to(console)
    *_, last = console.export_text().splitlines()
    assert last == (
        "3 runs were finished before; 2 s. Results, table and curves: results/quickstart"
    )
    beside = f"sqlite:///{outcome.store.path.parent / 'mlflow.db'}"
    for uri, where in {
        beside: "raysafl ui results",
        "sqlite:///other.db": "MLFLOW_TRACKING_URI=sqlite:///other.db raysafl ui results",
        "https://a.example/x/": "https://a.example/x/#/experiments/1/runs?",
    }.items():
        write_view(outcome.store, MlflowView(uri, "1", "parent"))
        outcome.print_to(console)
        *_, also, browse = console.export_text().splitlines()
        assert also == last and browse.startswith(f"Browse them: {where}")
