"""Mutated input of a user: configurations, labels, traces.

Whatever is in them, the answer is the value itself or one clear error (a `ValueError`
that names the file). What raysafl writes itself has a SHA-256: tests/storage/test_verify.py.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raysafl import Run
from raysafl.algorithms import Key
from raysafl.participation import Trace
from raysafl.sweep.definition import Sweep

fuzz = settings(
    max_examples=int(os.environ.get("FUZZ", "40")),
    derandomize="FUZZ" not in os.environ,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["kind", "q", "run_id", "status", "x"]), inner, max_size=3
        )
    ),
    max_leaves=5,
)
NAMES = st.sampled_from(
    [
        "../x",
        "/etc/passwd",
        "",
        ".",
        "..",
        "a/b",
        "a\\b",
        "*",
        "x\0y",
        "\ud800",
        "a" * 9,
    ]
)


@st.composite
def spoiled(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes of a file with some changed, cut off, doubled or put in."""
    at = draw(st.integers(0, len(content) - 1))
    match draw(st.sampled_from(["flip", "cut", "insert", "zeros", "other", "empty"])):
        case "flip":
            bit = 1 << draw(st.integers(0, 7))
            return content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :]
        case "cut":
            return content[:at]
        case "insert":
            return (
                content[:at] + draw(st.binary(min_size=1, max_size=16)) + content[at:]
            )
        case "zeros":
            size = draw(st.integers(1, 64))
            return content[:at] + bytes(size) + content[at + size :]
        case "other":
            return draw(st.binary(max_size=64))
        case _:
            return b""


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value in JSON."""
    yield path
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if type(tree) is list
        else []
    )
    for key, value in items:
        yield from places(value, (*path, key))


def changed(tree: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(tree)
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[path[0]] = changed(copy[path[0]], path[1:], change)
    return copy


@st.composite
def mutated(draw: st.DrawFn, tree: Any) -> Any:
    """JSON of which some values were exchanged for others."""
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(tree))))
        value = draw(JSON | NAMES)
        tree = changed(tree, path, lambda _, value=value: value)
    return tree


@pytest.fixture(scope="module")
def run() -> Run:
    from raysafl.quickstart import BASE

    return BASE.replace(rounds=3, replicates=2)


def tried(action: Callable[[], Any], *named: str) -> Any:
    """What it returns, or None after a clear error; errors and warnings name these."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            result = action()
        except ValueError as error:
            assert str(error) and all(name in str(error) for name in named), str(error)
            return None
    assert all(name in str(w.message) for w in said for name in named), [
        str(w) for w in said
    ]
    return None if said else result


@given(st.data())
@fuzz
def test_a_mutated_configuration_is_a_run_or_a_clear_error(
    run: Run, data: st.DataObject
) -> None:
    text = json.dumps(data.draw(mutated(json.loads(run.to_json()))))
    found = tried(lambda: Run.from_json(text))
    assert found is None or Run.from_json(found.to_json()).id == found.id


@given(
    path=st.lists(st.text(max_size=6), max_size=3).map(".".join),
    value=JSON,
    data=st.data(),
)
@fuzz
def test_a_change_of_anything_to_anything_is_a_run_or_a_clear_error(
    run: Run, path: str, value: Any, data: st.DataObject
) -> None:
    names = [".".join(map(str, p)) for p in places(json.loads(run.to_json())) if p]
    for name in (path, data.draw(st.sampled_from(names))):
        found = tried(lambda name=name: run.replace({name: value}))
        assert found is None or found.to_json()


@given(label=st.text(max_size=6), value=st.text(max_size=6))
@fuzz
def test_any_label_chooses_runs_or_is_a_clear_error(
    run: Run, label: str, value: str
) -> None:
    manifest = Sweep("sweep", {("a", 1): run}, axes=("x", "y")).manifest()
    for axis in (label, "x"):
        chosen = tried(lambda axis=axis: manifest.select({axis: value}), axis)
        assert chosen is None or (axis == "x" and value == "a")


TRACE = "client,start,end\n0,0,3\n1,1,4\n2,3,6\n"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@given(data=st.data())
@fuzz
def test_a_mutated_trace_is_a_policy_or_a_clear_error_with_its_name(
    tmp_path: Path, kind: str, data: st.DataObject
) -> None:
    file = tmp_path / f"trace.{kind}"
    file.write_text(TRACE)
    if kind == "parquet":
        pd.DataFrame(
            {"client": [0, 1, 2], "start": [0, 1, 3], "end": [3, 4, 6]}
        ).to_parquet(file)
    bad = data.draw(spoiled(file.read_bytes()))
    file.write_bytes(bad)

    def cohorts() -> list[list[int]]:
        trace = Trace(file=str(file))
        trace.check(3)
        return [trace.pick(None, 3, Key(0, t), None)[1].ids for t in range(12)]

    found = tried(cohorts, file.name)
    assert found is None or all(0 <= i < 3 for ids in found for i in ids)
    assert file.read_bytes() == bad
