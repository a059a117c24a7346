"""Reports, queries and MLflow pages of runs that have no accuracy, or further metrics."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.objectives import DETAILED, HUBER, PLAIN, REGRESSION, carried_out
from rich.console import Console

from raysafl import Sweep
from raysafl.report.analysis.entries import aggregate
from raysafl.report.analysis.pareto import front
from raysafl.report.figures.curves import Quantity, curve_of_run, curves
from raysafl.report.pages.screen import screen
from raysafl.report.query import results, why_nothing
from raysafl.report.write import write_report
from raysafl.storage.rows import ROUNDS
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.store import Store
from raysafl.tracking.metrics import digest, final_statistics, read_runs


def reported(path: Path, sweep: Sweep) -> Store:
    store = carried_out(path, sweep)
    write_runs_table(store)
    write_report(store)
    return store


@pytest.fixture(scope="module")
def regressions(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two losses and two learning rates."""
    runs = {
        (loss, lr): run.replace({"local.lr": lr})
        for loss, run in (("mse", REGRESSION), ("huber", HUBER))
        for lr in (0.05, 0.1)
    }
    folder = tmp_path_factory.mktemp("regressions") / "regressions"
    return reported(folder, Sweep("regressions", runs, axes=("method", "lr")))


@pytest.fixture(scope="module")
def classifiers(tmp_path_factory: pytest.TempPathFactory) -> Store:
    runs = {("plain",): PLAIN, ("detailed",): DETAILED}
    folder = tmp_path_factory.mktemp("classifiers") / "classifiers"
    return reported(folder, Sweep("classifiers", runs, axes=("what",)))


def test_a_report_of_regressions_shows_errors_and_no_accuracy(
    regressions: Store,
) -> None:
    table = regressions.file("table.md").read_text()
    page = regressions.file("report.html").read_text()
    assert (
        "`final_mae` (mean absolute error, of the global model on the test set, "
        in table
    )
    assert "; lower is better." in table and "accuracy" not in table
    text = re.sub(r"<style.*?</style>|base64,[\w+/=]+", "", page, flags=re.DOTALL)
    assert "accuracy" not in text
    assert "Test mae (mean absolute error" in text and "final_rmse" in text
    # No column and no entry is empty.
    entries = table.split("## Methods")[0].replace("± 95%", "")
    assert "– |" not in entries and "%" not in entries  # noqa: RUF001
    first = regressions.runs().query("`label.method` == 'mse' and `label.lr` == 0.05")
    expected = f"{first['final_mae'].mean():.4g} ± {first['final_mae'].std():.4g}"
    assert expected in table and expected in page


def test_the_table_on_the_screen_shows_errors(regressions: Store) -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(screen(regressions.runs(), regressions.manifest(), 120))
    said = console.export_text()
    assert "final_mae" in said and "accuracy" not in said and "%" not in said


def test_figures_draw_what_runs_are_judged_by(regressions: Store) -> None:
    manifest = regressions.manifest()
    what = Quantity.judging(manifest)
    assert (what.column, what.scale, what.label) == ("test_mae", 1, "test mae")
    assert regressions.file("curves.png").is_file()
    rows = regressions.rounds({manifest.entries[0].run_id})
    assert curve_of_run(rows, "one", manifest) != curve_of_run(rows, "one")
    from raysafl.report.analysis.layout import Layout

    drawn = curves(rows, manifest, Layout.of(manifest))
    assert drawn != curves(rows.assign(test_mae=np.nan), manifest, Layout.of(manifest))


def test_means_of_statistics_have_their_own_scale(classifiers: Store) -> None:
    runs = classifiers.runs()
    manifest = classifiers.manifest()
    entries = aggregate(runs, manifest).set_index("label.what")
    assert manifest.table.also[4:] == ["final_loss", "final_f1"]
    means = runs.groupby("label.what")[["final", "final_f1", "final_loss"]].mean()
    for name, scale in (("final", 100), ("final_f1", 100), ("final_loss", 1)):
        expected = scale * means[name]
        assert entries[f"mean.{name}"].to_dict() == pytest.approx(
            expected.to_dict(), nan_ok=True
        )
    table = classifiers.file("table.md").read_text()
    assert "`final_f1`: macro F1 score" in table


def test_the_lowest_error_at_a_cost_is_on_the_front() -> None:
    cost = np.array([1.0, 2.0, 3.0])
    error = np.array([5.0, 6.0, 2.0])
    assert front(cost, error, higher_is_better=False) == [0, 2]
    assert front(cost, error) == [0, 1]


def test_results_show_what_runs_are_judged_by(
    regressions: Store, classifiers: Store
) -> None:
    found = results([regressions.path], sort="best_mae", ascending=True)
    assert list(found) == [
        *["run_id", "label.method", "label.lr", "best_mae", "final_mae", "last5_mae"],
        *["replicates", "status"],
    ]
    assert found["best_mae"].is_monotonic_increasing
    both = results(
        [regressions.path, classifiers.path], "final_f1 > 0 or final_mae > 0"
    )
    assert {"final", "final_mae", "final_f1"} <= set(both) and len(both) == 5
    assert "final_f1_std" in results([classifiers.path], columns=["final_f1_std"])


def test_a_query_finds_what_the_tables_show_and_says_why_it_finds_nothing(
    real_results: Path,
) -> None:
    def count(query: str) -> int:
        return len(results([real_results], query))

    assert count("algorithm == 'SAFARI'") == 4
    assert count("algorithm in ['SAFARI', 'FedAvg']") == 8
    assert count("algorithm != 'SAFARI'") == count("algorithm == 'FedAvg'") == 4
    assert count("algorithm not in ['SAFARI']") == 4
    assert why_nothing([real_results], "algorithm == 'SAFRI' and p == 1") == (
        "no run meets the condition; label.algorithm is FedAvg, SAFARI; label.p is 1, 2"
    )
    assert why_nothing([real_results], "s == 99").endswith("; label.s is 0, 4")
    assert why_nothing([real_results], "select 1 where false") == ""
    assert why_nothing([real_results], "") == ""


def test_mlflow_gets_the_curves_and_statistics_of_further_columns(
    regressions: Store, classifiers: Store
) -> None:
    for store, name in ((regressions, "mae"), (classifiers, "f1")):
        manifest = store.manifest()
        run_id = manifest.entries[-1].run_id
        reading = read_runs(store, [run_id], manifest)[run_id]
        runs = store.runs()
        own = runs[runs["run_id"] == run_id]
        expected = own[f"final_{name}"].mean()
        assert reading.statistics[f"final_{name}"][0] == pytest.approx(expected)
        assert reading.statistics[f"best_{name}"][1] >= 0
        assert reading.curves[f"test_{name}"].iloc[-1] == pytest.approx(expected)


def test_the_fingerprint_of_a_run_without_further_columns_stays(
    classifiers: Store,
) -> None:
    rows = classifiers.rounds().drop(columns="test_confusion")
    plain = rows[rows["run_id"] == PLAIN.id]
    alone = classifiers.rounds({PLAIN.id})[ROUNDS.names]
    assert digest(plain, 5) == digest(alone, 5)
    detailed = rows[rows["run_id"] == DETAILED.id]
    edited = detailed.assign(test_f1=detailed["test_f1"] + 0.5)
    assert digest(detailed, 5) != digest(edited, 5)
    assert set(final_statistics(alone)) == {PLAIN.id}
