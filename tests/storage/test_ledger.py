"""The ledger's lines: what is stored, and what is read again."""

import json

import pytest

from raysafl.storage.ledger import MOST_OF_LINE, CellEnd, Status, read_lines, to_lines
from raysafl.storage.paths import sealed, unsealed
from raysafl.storage.store import RunResult


def test_a_status_says_if_there_is_another_attempt_and_if_all_went_well() -> None:
    assert {status.value: (status.decided, status.bad) for status in Status} == {
        "finished": (True, False),
        "stopped": (True, False),
        "diverged": (True, True),
        "failed": (False, True),
        "running": (False, False),
        "waiting": (False, False),
    }


def test_entries_are_plain_json_and_what_cells_have_in_common_is_written_once() -> None:
    part = "0123456789abcdef01234567"
    more = {"host": "box", "rounds": part, "seconds": 2.5, "metrics": {"round": 3}}
    first = CellEnd.now("a", Status.DIVERGED, "round 3", seed=1, **more)
    second = first.model_copy(update={"cell": "b", "seed": 2, "reason": ""})
    content = to_lines([first, second])
    (line,) = content.splitlines()
    own = {"status": "diverged", "seconds": 2.5, "metrics": {"round": 3}}
    assert json.loads(unsealed(line)) == {
        "shared": {"rounds": part, "ended": first.ended, "host": "box"},
        "cells": [
            {"cell": "a", "seed": 1, "reason": "round 3", **own},
            {"cell": "b", "seed": 2, **own},
        ],
    }
    assert read_lines(content) == ({"a": first, "b": second}, {})
    assert read_lines(content, ["b", "c"]) == ({"b": second}, {})


def test_a_line_that_is_damaged_costs_its_cells_alone() -> None:
    ends = [
        CellEnd(cell=f"c{k}", seed=k, status=Status.FINISHED)
        for k in range(2 * MOST_OF_LINE + 1)
    ]
    lines = to_lines(ends).splitlines(keepends=True)
    assert len(lines) == 3
    lines[1] = lines[1].replace(b"finished", b"stopped!", 1)
    found = read_lines(b"".join(lines))
    assert list(found.ends.values()) == ends[:MOST_OF_LINE] + ends[-1:]
    assert found.faults == {2: "its SHA-256 does not fit its content"}
    # Another cell's line is not even read.
    assert read_lines(b"".join(lines), ["c0"]).faults == {}


def test_fields_that_are_not_known_survive_and_missing_ones_are_not_added() -> None:
    fields = {"cell": "a", "status": "finished", "cluster": {"nodes": 2}}
    line = sealed({"shared": {"host": "box"}, "cells": [fields]}) + b"\n"
    end = read_lines(line).ends["a"]
    assert (end.reason, end.seed, end.seconds) == ("", None, 0.0)
    assert to_lines([end]) == line


def test_a_reason_with_a_secret_is_stored_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2hunter2")
    text = "hunter2hunter2 is not allowed"
    end = CellEnd.now("a", Status.FAILED, text, traceback=text)
    assert end.reason == end.traceback == "*** is not allowed"


def test_the_worst_cell_stands_for_its_run_and_the_reason_says_of_how_many() -> None:
    def end(status: Status, reason: str = "") -> CellEnd:
        return CellEnd(cell="a", status=status, reason=reason)

    def run(*cells: CellEnd) -> RunResult:
        return RunResult("a", {}, {}, cells)

    finished, stopped = end(Status.FINISHED), end(Status.STOPPED, "a rule")
    diverged = end(Status.DIVERGED, "round 3")
    assert run(finished, diverged, stopped).worst is diverged
    assert run(diverged, end(Status.FAILED, "no memory")).status is Status.FAILED
    assert run(finished, end(Status.WAITING)).status is Status.WAITING
    assert run(finished, diverged, diverged).reason == "2 of 3 seeds: round 3"
    later = end(Status.DIVERGED, "round 5")
    assert run(diverged, later).reason == "2 of 2 seeds, the first: round 3"
    assert run(stopped).reason == "a rule" and run(finished, finished).reason == ""
