"""What a person sees of a sweep and its outcome in Python: in a terminal and in a notebook."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
from ray import tune
from rich.console import Console

from raysafl import Sweep
from raysafl.quickstart import BASE, SWEEP
from raysafl.storage.mlflow_view import MlflowView, write_view
from raysafl.storage.store import Store
from raysafl.sweep.options import command_of_script
from raysafl.sweep.outcome import Outcome


@pytest.fixture
def outcome(real_results: Path, tables: None) -> Outcome:
    store = Store(real_results / "quickstart")
    return Outcome(store, store.manifest(), store.runs(), 3, 0, None, 2.5)


def test_the_outcome_is_one_line_where_a_repr_is_shown(outcome: Outcome) -> None:
    path = outcome.store.path
    assert repr(outcome) == f"Outcome of 'quickstart': 8 finished; in {path}"


def test_a_notebook_shows_the_table_and_the_figure(outcome: Outcome) -> None:
    html = outcome._repr_html_()
    assert html.count("<tr>") == 5 and "<th" in html  # s and algorithm go down
    assert ">SAFARI</td>" in html and "p →" in html and ">1</th>" in html
    assert "Each entry shows the mean ± standard deviation over" in html
    assert 'src="data:image/png;base64,' in html
    assert len(html) < 500_000


def test_html_in_labels_is_shown_and_not_interpreted(outcome: Outcome) -> None:
    title = "<script>alert(1)</script>"
    renamed = outcome.manifest.replace(title=title)
    html = Outcome(outcome.store, renamed, outcome.runs, 0, 0, None, 0)._repr_html_()
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


def test_a_sweep_shows_its_axes_and_not_its_runs() -> None:
    assert repr(SWEEP) == "Sweep 'quickstart': 18 runs over s, algorithm, p"
    assert repr(SWEEP.at("smoke")).endswith("over s, algorithm, p, scale smoke")
    space = {"local.lr": tune.loguniform(0.01, 1), "seed": tune.grid_search([1, 2])}
    sweep = Sweep("sampled", space=space, base=BASE, num_samples=20)
    assert repr(sweep) == "Sweep 'sampled': 20 sampled runs over local.lr, seed"


def test_the_command_of_a_script_is_known_and_that_of_a_module_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["mine.py", "--rate", "0.1 or so"])
    script = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert command_of_script() == ""  # a notebook has no file
    script.__file__ = str(tmp_path / "studies" / "mine.py")
    assert command_of_script() == "python studies/mine.py --rate '0.1 or so'"
    script.__spec__ = ModuleSpec("mine", None)  # python -m mine
    assert command_of_script() == ""
