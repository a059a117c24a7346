"""Curves over virtual seconds and time to accuracy, where runs have devices."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.folders import finished

from raysafl import Devices, Run, Sweep, Table, load
from raysafl.core.record import VIRTUAL_SECONDS
from raysafl.report.query import results
from raysafl.simulation.devices import COLUMN
from raysafl.storage.statistics import summarise_each
from raysafl.storage.store import Store
from raysafl.tracking.metrics import curves_of, metric_name

TO_SOME = "virtual_seconds_to_accuracy_0.2"


@pytest.fixture(scope="module")
def store(tiny: Run, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A run on slow devices, which evaluates each second round, and one without devices."""
    base = tiny.replace(rounds=12)
    runs = {
        ("slow",): base.replace(
            devices=Devices(step_seconds=1, spread=1), eval_every=2
        ),
        ("none",): base,
    }
    table = Table(statistic="final", also=[TO_SOME])
    sweep = Sweep("slow", runs, axes=["devices"], table=table)
    return finished(sweep, tmp_path_factory.mktemp("results") / "slow", report=True)


def test_time_to_accuracy_is_the_time_of_the_first_row_that_is_good_enough() -> None:
    rows = pd.DataFrame(
        {
            "round": [1, 3, 4, 0, 1, 0],
            "kind": "client",
            "trained": None,
            "test_accuracy": [0.4, 0.7, 0.6, 0.1, 0.2, 0.9],
            "test_loss": 0.0,
            VIRTUAL_SECONDS: [2.0, 3.5, 1.0, 4.0, 4.0, np.nan],
        }
    )
    named = ["virtual_seconds_to_accuracy_0.7", "virtual_seconds_to_loss_0.5"]
    rounds_to = "rounds_to_70"
    columns = {VIRTUAL_SECONDS: COLUMN}
    lengths = np.array([3, 2, 1])
    found = summarise_each(rows, lengths, columns, named=[*named, rounds_to])
    assert found[named[0]].tolist()[:2] == [5.5, pytest.approx(np.nan, nan_ok=True)]
    assert found[named[1]].tolist()[:2] == [2.0, 4.0]
    assert found["total_virtual_seconds"].tolist()[:2] == [6.5, 8.0]
    of_time = {name for name in found if VIRTUAL_SECONDS in name}
    assert of_time == {*named, "total_virtual_seconds"}
    # Without devices, no time is known.
    assert found.iloc[2][[*named, "total_virtual_seconds"]].isna().all()
    assert found[rounds_to].tolist()[::2] == [4, 1]
    without = summarise_each(rows.drop(columns=VIRTUAL_SECONDS), np.array([6]), {})
    assert not [name for name in without if VIRTUAL_SECONDS in name]


def test_a_sweep_has_its_time_to_accuracy_and_its_curves_over_time(
    store: Store,
) -> None:
    own = load(store.path)
    rows = own.rounds[own.rounds["label.devices"] == "slow"]
    assert own.rounds[VIRTUAL_SECONDS].notna().sum() == len(rows) == 12
    slow = own.runs.set_index("label.devices").loc["slow"]
    for replicate, of_one in rows.groupby("replicate"):
        passed = of_one[VIRTUAL_SECONDS].cumsum()
        first = passed[of_one["test_accuracy"] >= 0.2].iloc[0]
        assert slow[TO_SOME].iloc[int(replicate)] == pytest.approx(first)
        assert slow["total_virtual_seconds"].iloc[int(replicate)] == passed.iloc[-1]
    query = results(
        [store.path], 'select devices, "virtual_seconds_to_loss_2.5" from runs'
    )
    assert query.set_index("devices").notna().squeeze().to_dict() == {
        "slow": True,
        "none": False,
    }
    axes = own.figure("curves_over_time").axes[0]
    assert axes.get_xlabel() == "virtual seconds"
    (line,) = axes.get_lines()
    by_replicate = rows.groupby("replicate")[VIRTUAL_SECONDS]
    times = np.sort(by_replicate.cumsum())
    # Before all seeds have a row, there is no mean of them.
    times = times[times >= by_replicate.first().max()]
    assert len(times) < 12 and line.get_xdata().tolist() == times.tolist()  # type: ignore[union-attr]
    last = rows[rows["round"] == 11]["test_accuracy"].mean()
    assert line.get_ydata()[-1] == pytest.approx(100 * last)  # type: ignore[index]


def test_the_report_shows_the_time_only_where_there_is_one(
    store: Store, tiny: Run, tmp_path: Path
) -> None:
    text = store.file("table.md").read_text()
    assert "virtual seconds" in text and TO_SOME in text
    assert store.file("curves_over_time.png").is_file()
    other = finished(Sweep("plain", [tiny]), tmp_path / "plain", report=True)
    assert "virtual" not in other.file("table.md").read_text()
    assert not other.file("curves_over_time.png").exists()
    with pytest.raises(ValueError, match="no numbers for the figure"):
        load(other.path).figure("curves_over_time")


def test_a_table_without_devices_cannot_ask_for_the_time(tiny: Run) -> None:
    with pytest.raises(ValueError, match=TO_SOME):
        Sweep("plain", [tiny], table=Table(statistic=TO_SOME))


def test_mlflow_draws_the_seconds_since_the_start(store: Store) -> None:
    rows = store.rounds().sort_values(["run_id", "replicate", "round"])
    slow = rows[rows[VIRTUAL_SECONDS].notna()]
    found = curves_of(slow)[VIRTUAL_SECONDS]
    totals = slow.groupby("replicate")[VIRTUAL_SECONDS].sum()
    assert found.iloc[-1] == pytest.approx(totals.mean())
    assert found.is_monotonic_increasing
    assert metric_name(VIRTUAL_SECONDS) == "work/virtual_seconds"
