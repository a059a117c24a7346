"""The scaling benchmark, small: every axis is measured, and the table and figure hold it."""

import io
import json
import sys
from typing import Any

import pytest

from benchmarks.child import do_job
from benchmarks.found import Found
from benchmarks.job import Job
from benchmarks.processes import Result
from benchmarks.scaling import AXES, seconds_of
from benchmarks.scaling_report import PANELS, figure, scaling

PNG = b"\x89PNG\r\n\x1a\n"
ORIGIN = {"machine": "this one", "date": "today", "commit": "", "versions": {}}


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
