"""Runs with different objectives in one folder: rows and statistics."""

import shutil
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
from helpers.folders import apart, finished
from helpers.made import ended
from helpers.objectives import DETAILED, PLAIN, REGRESSION

from raysafl.core.record import further_column
from raysafl.storage.rows import ROUNDS
from raysafl.storage.runs_table import make_runs_table, write_runs_table
from raysafl.storage.statistics import (
    BY_NAME,
    STATISTICS,
    statistics_of,
    summarise_each,
)
from raysafl.storage.store import Store
from raysafl.sweep.definition import Sweep

RUNS = {"plain": PLAIN, "detailed": DETAILED, "regression": REGRESSION}
PER_CLASS = ["test_accuracy_of_0", "test_accuracy_of_1"]


def sweep() -> Sweep:
    return Sweep("two", {(k,): run for k, run in RUNS.items()}, axes=("what",))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(sweep(), tmp_path_factory.mktemp("two") / "two").path


@pytest.fixture(params=["packs", "joined"])
def store(folder: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    """A copy of the folder whose rows lie in a part for each run, or in one."""
    made = Store(Path(shutil.copytree(folder, tmp_path / "two")))
    if request.param == "packs":
        apart(made)
    assert len(made.files("rounds")) == (3 if request.param == "packs" else 1)
    return made


def of(frame: pd.DataFrame, what: str) -> pd.DataFrame:
    return frame[frame["run_id"] == RUNS[what].id]


def test_a_column_that_a_run_does_not_have_is_empty_in_its_rows(store: Store) -> None:
    rows = store.rounds()
    first = ["run_id", "replicate", *ROUNDS.names[1:]]
    assert list(rows)[: len(first)] == first
    further = {"test_f1", *PER_CLASS, "test_confusion", "test_mae", "test_rmse"}
    assert set(rows) - set(first) == further | {"test_r2"}
    assert of(rows, "regression")["test_mae"].notna().all()
    assert of(rows, "regression")["test_accuracy"].isna().all()
    assert of(rows, "detailed")[["test_f1", *PER_CLASS]].notna().all(axis=None)
    assert of(rows, "detailed")["test_confusion"].map(sum).eq(20).all()
    assert of(rows, "plain")[sorted(further)].isna().all(axis=None)
    alone = store.rounds({PLAIN.id}).drop(
        columns=[*further, "test_r2"], errors="ignore"
    )
    assert list(alone) == first


LISTS = ["cohorts", "enforced", "trained"]


def test_pandas_and_duckdb_read_all_columns_of_all_files(store: Store) -> None:
    files = store.files("rounds")
    order = [("cell", "ascending"), ("round", "ascending")]
    mine = store.results().rows.sort_by(order).to_pandas()
    mine = mine.drop(columns=[*LISTS, "test_confusion"])
    by_pandas = pd.concat(map(pd.read_parquet, files))
    by_duckdb = duckdb.sql(
        f"SELECT * FROM read_parquet('{store.path}/rounds/*.parquet', "
        "union_by_name = true)"
    ).df()
    for other in (by_pandas, by_duckdb):
        read = other.sort_values(["cell", "round"], ignore_index=True)
        pd.testing.assert_frame_equal(read[list(mine)], mine, check_dtype=False)


def frame_of(**columns: list[float]) -> pd.DataFrame:
    n = len(next(iter(columns.values())))
    fixed: dict[str, Any] = {"round": range(n), "kind": "client", "trained": None}
    fixed |= {"test_accuracy": np.nan, "test_loss": np.arange(n) + 0.5}
    return pd.DataFrame({**fixed, **columns})


COLUMNS = {
    "test_mae": further_column("mean absolute error", higher_is_better=False),
    "test_r2": further_column("R^2"),
    "val_mae": further_column("error on validation data", higher_is_better=False),
    "test_list": further_column("a list", is_list=True),
}


def test_the_statistics_of_further_columns_by_hand() -> None:
    frame = frame_of(
        test_mae=[9.0, 3.0, 5.0, 4.0, 7.0, 6.0],
        test_r2=[0.0, 0.5, 0.9, 0.7, 0.1, 0.2],
        val_mae=[8.0, 2.0, 1.0, 1.0, 3.0, 4.0],
    )
    found = summarise_each(frame, np.array([6]), COLUMNS, "test_mae")
    further = found.drop(columns=list(STATISTICS), errors="ignore").iloc[0].to_dict()
    assert further == pytest.approx(
        {
            "final_mae": 6.0,
            "last5_mae": (3 + 5 + 4 + 7 + 6) / 5,
            "best_mae": 3.0,
            "final_r2": 0.2,
            "last5_r2": (0.5 + 0.9 + 0.7 + 0.1 + 0.2) / 5,
            "best_r2": 0.9,
            "final_val_mae": 4.0,
            "best_val_mae": 1.0,
            # Validation is best in round 2, and again in round 3.
            "at_best_val": 5.0,
        }
    )
    assert "final" not in found and found["final_loss"].iloc[0] == 5.5


def test_runs_without_a_column_have_none_of_its_statistics() -> None:
    one = frame_of(test_mae=[2.0, 1.0])
    other = frame_of(test_mae=[np.nan] * 3)
    found = summarise_each(pd.concat([one, other]), np.array([2, 3, 0]), COLUMNS)
    assert found["best_mae"].tolist()[0] == 1.0
    assert found[["final_mae", "best_mae", "last5_mae"]].iloc[1:].isna().all(axis=None)
    assert "final_r2" not in found and "at_best_val" not in found
    alone = summarise_each(other, np.array([3]), COLUMNS)
    assert list(alone) == [name for name in STATISTICS if name not in BY_NAME]


def test_the_best_round_on_validation_data_gives_the_accuracy_on_the_test_set() -> None:
    columns = {"val_accuracy": further_column("validation accuracy", True)}
    frame = frame_of(val_accuracy=[0.1, 0.9, np.nan, 0.5])
    frame["test_accuracy"] = [0.2, 0.6, 0.8, 0.7]
    found = summarise_each(frame, np.array([4]), columns).iloc[0]
    assert (found["at_best_val"], found["best"]) == (0.6, 0.8)
    assert found["best_val_accuracy"] == 0.9


def test_runs_judged_by_their_loss_have_its_best_value() -> None:
    found = summarise_each(
        frame_of(test_mae=[1.0, 2.0]), np.array([2]), {}, "test_loss"
    )
    further = found.drop(columns=list(STATISTICS), errors="ignore").iloc[0].to_dict()
    assert further == {"best_loss": 0.5, "last5_loss": 1.0}


@pytest.mark.parametrize("name", ["test_std", "test_val_mae"])
def test_a_metric_whose_statistic_has_another_meaning_is_refused(name: str) -> None:
    columns = COLUMNS | {name: further_column("something else")}
    with pytest.raises(ValueError, match="give the metric another name"):
        statistics_of(columns)


def test_runs_parquet_has_the_statistics_that_some_run_has(store: Store) -> None:
    runs = make_runs_table(store).set_index("label.what")
    further = ["final_f1", "best_accuracy_of_1", "final_mae", "best_rmse", "last5_r2"]
    assert set(further) <= set(runs) and "final_confusion" not in runs
    assert runs.loc["plain", further].isna().all(axis=None)
    last = store.rounds().query("round == 5 and replicate == 1")
    expected = of(last, "regression")["test_mae"].item()
    assert runs.loc["regression", "final_mae"].iloc[1] == expected
    assert runs.loc["regression", "final"].isna().all()
    assert runs.loc["detailed", "final"].notna().all()
    order = list(runs)
    assert order.index("total_bytes") < order.index("final_f1") < order.index("chance")


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ([1, 2, 10], "int64"),
        ([0.5, 1, 10], "float64"),
        ([True, False], "bool"),
        (["a", "b"], "object"),
        ([1, "b"], "object"),
    ],
)
def test_labels_that_are_numbers_stay_numbers(
    labels: list[Any], kind: str, tmp_path: Path
) -> None:
    store = Store(tmp_path / "s")
    store.create()
    runs = {(x,): PLAIN.replace(seed=i) for i, x in enumerate(labels)}
    store.write_manifest(Sweep("s", runs, axes=("p",)).manifest())
    store.take(*ended(list(runs.values())))
    read = write_runs_table(store)
    stored = store.runs()
    assert str(stored["label.p"].dtype).replace("str", "object") == kind
    assert read["label.p"].tolist() == stored["label.p"].tolist()
    if kind in ("int64", "float64"):
        assert sorted(set(stored["label.p"])) == sorted(labels)
    else:
        texts = {str(x) for x in stored["label.p"]}
        assert texts == {str(x) for x in labels}
