"""The scaling benchmark, small: every axis is measured, and the table and figure hold it."""

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import pages
from benchmarks.__main__ import main
from benchmarks.child import do_job
from benchmarks.found import Found
from benchmarks.job import Job
from benchmarks.processes import Result
from benchmarks.scaling import AXES, seconds_of
from benchmarks.scaling_report import PANELS, figure, scaling

PNG = b"\x89PNG\r\n\x1a\n"
ORIGIN = {"machine": "this one", "date": "today", "commit": "", "versions": {}}


@pytest.mark.benchmarks
def test_the_command_keeps_other_axes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scaling.json"
    small = ["--dry", "--seconds", "0.01", "--repeats", "1", "--out", str(file)]
    tables = list[str]()
    for axis in ("population", "replicates"):
        assert main(["scaling", *small, "--only", axis]) == 0
        tables.append(capsys.readouterr().out)
    whole = Found.read(file)
    assert whole is not None and list(whole.measures) == ["population", "replicates"]
    assert whole.measures["replicates"]["points"] == [1, 3]
    assert whole.measures["population"]["points"] == [100, 1_000_000]
    ((few,), (many,)) = whole.measures["population"]["taken"]
    assert min(few["seconds"], many["seconds"], few["memory"]) > 0
    assert few["parameters"] == many["parameters"] == 650 and many["engine"] == "fused"
    row = r"^\| 1,000,000 \| [\d.,]+ \| [\d.,]+ \| [\d.,]+ \|$"
    assert all(re.search(row, table, re.M) for table in tables)
    assert "## Replicates" not in tables[0] and "## Replicates" in tables[1]
    assert "## Trials" not in tables[1]
    with pytest.raises(ValueError, match="which measures nothing"):
        pages.pages(tmp_path)


def done_here(job: Job, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `benchmarks.scaling.taken` measures in a process of its own, from this one."""
    answers = list[Any]()
    monkeypatch.setattr(sys, "stdin", io.StringIO("go\n"))
    do_job(job, answers.append)
    ready, told = answers
    assert ready == "ready"
    told = json.loads(json.dumps(told))
    done = Result(told.pop("seconds"), told.pop("accuracy", None), 0.0, told)
    return {"seconds": seconds_of(job, done), **told}


@pytest.mark.benchmarks
@pytest.mark.usefixtures("ray_local")
def test_every_axis_is_measured_tabulated_and_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Found(ORIGIN)
    for name, axis in AXES.items():
        jobs = [axis.job(point, True, 0.01) for point in axis.small]
        taken = [[done_here(job, monkeypatch)] for job in jobs]
        points = list(axis.small)
        found.measures[name] = {"origin": ORIGIN, "points": points, "taken": taken}
    measured = found.measures
    assert list(measured) == list(PANELS)
    table = scaling(found)
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) == sum(1 + len(axis.small) for axis in AXES.values())
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
    assert figure(measured).startswith(PNG)
