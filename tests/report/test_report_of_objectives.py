"""Reports, queries and MLflow pages of runs that have no accuracy, or further metrics."""

import re
from pathlib import Path

import numpy as np
import pytest
from helpers.drawn import drawn, study_of
from helpers.folders import finished
from helpers.objectives import DETAILED, HUBER, PLAIN, REGRESSION

from raysafl import Sweep
from raysafl.report.analysis.entries import aggregate
from raysafl.report.figures.curves import Quantity, curves
from raysafl.report.query import results
from raysafl.report.write import write_report
from raysafl.storage.runs_table import make_runs_table, write_runs_table
from raysafl.storage.store import Store
from raysafl.tracking.metrics import read_runs


def reported(path: Path, sweep: Sweep) -> Store:
    store = finished(sweep, path)
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
    assert " A lower value is better." in table and "accuracy" not in table
    text = re.sub(r"<style.*?</style>|base64,[\w+/=]+", "", page, flags=re.DOTALL)
    assert "accuracy" not in text
    assert "Test mae (mean absolute error" in text and "final_rmse" in text
    # No column and no entry is empty.
    entries = table.split("## Table")[1].split("## Methods")[0].replace("95%", "")
    assert "– |" not in entries and "%" not in entries  # noqa: RUF001
    first = regressions.runs().query("`label.method` == 'mse' and `label.lr` == 0.05")
    numbers = re.findall(r"(\d+\.(\d+)) ± (\d+\.(\d+))", table.split("## Methods")[0])
    decimals = {len(part) for found in numbers for part in found[1::2]}
    assert len(decimals) == 1 and numbers
    mean, std = (
        round(getattr(first["final_mae"], k)(), *decimals) for k in ("mean", "std")
    )
    expected = f"{mean:.{max(decimals)}f} ± {std:.{max(decimals)}f}"
    assert expected in table and expected in page


def test_figures_draw_what_runs_are_judged_by(regressions: Store) -> None:
    manifest = regressions.manifest()
    what = Quantity.judging(manifest)
    assert (what.column, what.scale, what.label) == ("test_mae", 1, "test mae")
    assert regressions.file("curves.png").is_file()
    rows = regressions.rounds({manifest.entries[0].run_id})
    figure = drawn(curves(study_of(manifest, rows)))
    (line,) = figure.axes[0].get_lines()
    means = rows.groupby("round")["test_mae"].mean()
    np.testing.assert_allclose(line.get_ydata(), means)


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


def test_rounds_until_any_metric_is_at_a_value_count_in_the_direction_that_is_better(
    regressions: Store,
) -> None:
    rounds = regressions.rounds().sort_values("round")
    curves_of_run = [
        own["test_mae"] for _, own in rounds.groupby(["run_id", "replicate"])
    ]
    # Between the first and the last value of most replicates.
    limit = round(
        float(np.median([(c.iloc[0] + c.iloc[-1]) / 2 for c in curves_of_run])), 3
    )
    name = f"rounds_to_mae_{limit}"
    found = make_runs_table(regressions, named=[name, "rounds_to_mae_-1"])
    assert found[name].notna().any() and found["rounds_to_mae_-1"].isna().all()
    for _, row in found.iterrows():
        own = rounds.query("run_id == @row.run_id and replicate == @row.replicate")
        below = own.loc[own["test_mae"] <= limit, "round"]
        expected = below.min() + 1 if len(below) else np.nan
        assert row[name] == pytest.approx(expected, nan_ok=True)
    shown = results([regressions.path], f'true order by "{name}"')
    assert shown[name].dropna().is_monotonic_increasing and len(shown) == 4


def test_mlflow_gets_the_curves_and_statistics_of_further_columns(
    regressions: Store, classifiers: Store
) -> None:
    for store, name in ((regressions, "mae"), (classifiers, "f1")):
        run_id = store.manifest().entries[-1].run_id
        reading = read_runs(store, [run_id], live=False)[run_id]
        runs = store.runs()
        own = runs[runs["run_id"] == run_id]
        expected = own[f"final_{name}"].mean()
        assert reading.statistics[f"final_{name}"][0] == pytest.approx(expected)
        assert reading.statistics[f"best_{name}"][1] >= 0
        assert reading.curves[f"test_{name}"].iloc[-1] == pytest.approx(expected)
