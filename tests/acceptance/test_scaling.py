"""The scaling benchmark, small: every axis is measured, and the table and figure hold it."""

import importlib
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("scaling")


def test_a_smoke_run_measures_in_processes_of_its_own_and_keeps_other_axes(
    scaling: ModuleType, tmp_path: Path
) -> None:
    short = ["--smoke", "--seconds", "0.01", "--out", str(tmp_path)]
    scaling.main([*short, "--only", "population", "--repeats", "1"])
    first = json.loads((tmp_path / "scaling.json").read_text())
    scaling.main([*short, "--only", "replicates", "--repeats", "1"])
    both = json.loads((tmp_path / "scaling.json").read_text())
    assert both["population"] == first["population"] and both["replicates"][
        "points"
    ] == [1, 3]
    assert first["population"]["points"] == [100, 1_000_000]
    ((few,), (many,)) = first["population"]["taken"]
    assert min(few["seconds"], many["seconds"], few["memory"]) > 0
    assert few["parameters"] == many["parameters"] == 650 and many["engine"] == "fused"
    table = (tmp_path / "scaling.md").read_text()
    assert re.search(r"^\| 1,000,000 \| [\d.,]+ \| [\d.,]+ \| [\d.,]+ \|$", table, re.M)
    assert (
        "## Population" in table
        and "## Replicates" in table
        and "## Trials" not in table
    )
    assert (tmp_path / "scaling.png").read_bytes().startswith(PNG)
    (tmp_path / "scaling.md").unlink()
    scaling.main(["--redraw", "--out", str(tmp_path)])
    assert (tmp_path / "scaling.md").read_text() == table


@pytest.mark.usefixtures("ray_local")
def test_every_axis_is_measured_tabulated_and_drawn(scaling: ModuleType) -> None:
    report = importlib.import_module("scaling_report")
    measured = {
        name: {
            "machine": {"cpu": "this one"},
            "points": list(axis.small),
            "taken": [[axis.measure(point, True, 0.01)] for point in axis.small],
        }
        for name, axis in scaling.AXES.items()
    }
    assert list(measured) == list(report.PANELS) == list(report.TITLES)
    table = report.table(
        measured, {name: axis.told for name, axis in scaling.AXES.items()}
    )
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) == sum(2 + len(axis.small) for axis in scaling.AXES.values())
    assert "| MLP 32 | 2,410 |" in table and "| logistic | 1 |" in table
    (one,), (three,) = measured["packs"]["taken"]
    assert one["parameters"] == 650 and min(one["actor"], three["memory"]) > 50
    assert 100 < three["header"] < one["header"] < 2_000
    (_,), (two,) = measured["at-once"]["taken"]
    assert two["seconds"] == max(two["each"]) and len(two["each"]) == 2
    (_,), (sweep,) = measured["trials"]["taken"]
    assert sweep["sync"] > 0 and sweep["row"] > 50 and sweep["files"] > 5
    assert sweep["bytes"] > 1_000 and sweep["database"] > 10_000
    assert "ms of it per further report" in table
    assert report.figure(measured).startswith(PNG)


def test_further_trials_cost_what_is_beyond_the_first_sweep(
    scaling: ModuleType,
) -> None:
    report = importlib.import_module("scaling_report")
    axis = {
        "points": [1, 10, 100],
        "taken": [
            [{"seconds": s} for s in row] for row in ([9, 10, 30], [19, 19, 19], [60])
        ],
    }
    assert report.further(axis) == [1.0, 50 / 99]
    assert report.span(report.each(axis, lambda s, n: s / n)) == [
        "10 (9-30)",
        "1.9 (1.9-1.9)",
        "0.6",
    ]
    assert [report.number(v) for v in (12345.6, 99.4, 0.01234)] == [
        "12,346",
        "99.4",
        "0.0123",
    ]
    assert [report.short(v) for v in (1e6, 2000, 0.5)] == ["1M", "2k", "0.5"]
