"""Mutated input: configurations, labels, Parquet, traces, checkpoints, ledgers, manifests.

Whatever is in them, the answer is the value itself or one clear error (a `ValueError`
that names the file), or a warning that names the file that is left out; nothing is
changed on disk.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.checkpoints import restore
from helpers.here import interrupt_in_process, run_in_process, session_of
from helpers.reports import markdown
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raysafl import Run
from raysafl.algorithms import Key
from raysafl.participation import Trace
from raysafl.report.pages.screen import screen
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Simulation
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.sealed import seal, sealed, unsealed
from raysafl.storage.store import Store
from raysafl.sweep.definition import Sweep
from raysafl.tracking import descriptions

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


@pytest.fixture(scope="module")
def whole(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A sweep of one run, all of it."""
    store = Store(tmp_path_factory.mktemp("fuzz") / "sweep")
    store.create()
    store.write_manifest(Sweep("sweep", {("a", 1): run}, axes=("x", "y")).manifest())
    run_in_process(run, store, Worker(run.cells, run.data.load(), run.model))
    write_runs_table(store)
    return store


@pytest.fixture(scope="module")
def interrupted(
    run: Run, tmp_path_factory: pytest.TempPathFactory
) -> tuple[bytes, Worker]:
    """The checkpoint of the run after a round, and what trains it."""
    work = Worker(run.cells, run.data.load(), run.model)
    store = Store(tmp_path_factory.mktemp("fuzz") / "interrupted")
    interrupt_in_process(run, store, work)
    (file,) = store.files("open")
    return file.read_bytes(), work


def files(store: Store) -> dict[str, bytes]:
    assert isinstance(store.path, Path)
    return {
        str(f): f.read_bytes() for f in sorted(store.path.rglob("*")) if f.is_file()
    }


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


def reported(store: Store) -> None:
    """All of a report but the figures, which take a second."""
    manifest, runs = store.manifest(), store.runs()
    assert markdown(runs, manifest)
    screen(runs, manifest)


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
    whole: Store, label: str, value: str
) -> None:
    manifest = whole.manifest()
    for axis in (label, "x"):
        chosen = tried(lambda axis=axis: manifest.select({axis: value}), axis)
        assert chosen is None or (axis == "x" and value == "a")


@given(st.data())
@fuzz
def test_a_damaged_part_is_left_out_with_its_name_or_is_read_as_it_was(
    whole: Store, run: Run, data: st.DataObject
) -> None:
    (part,) = whole.files("rounds")
    before, rows = part.read_bytes(), whole.rounds()
    part.write_bytes(data.draw(spoiled(before)))
    try:
        now = files(whole)
        found = whole.read()
        assert files(whole) == now
        is_whole = part.read_bytes() == before
        assert is_whole or all(part.name in why for why in found.faults.values())
        assert len(found.faults) == (0 if is_whole else run.replicates)
        assert len(whole.rounds(run.id)) == (len(rows) if is_whole else 0)
    finally:
        part.write_bytes(before)


@given(st.data())
@fuzz
def test_damaged_runs_are_refused_by_name_or_are_what_they_were(
    whole: Store, data: st.DataObject
) -> None:
    file, before = whole.file("runs.parquet"), whole.runs()
    good = file.read_bytes()
    file.write_bytes(data.draw(spoiled(good)))
    try:
        tried(whole.runs, str(file), "makes it anew")
        pd.testing.assert_frame_equal(tried(lambda: write_runs_table(whole)), before)
    finally:
        file.write_bytes(good)


@given(st.data())
@fuzz
def test_a_damaged_checkpoint_is_left_out_with_its_name_or_is_what_it_was(
    run: Run, interrupted: tuple[bytes, Worker], tmp_path: Path, data: st.DataObject
) -> None:
    good, work = interrupted
    store = Store(tmp_path)
    store.save("pack", data.draw(spoiled(good)))
    (file,) = store.files("open")
    found = tried(lambda: store.checkpoint(file), file.name)
    with warnings.catch_warnings(action="ignore"):
        session = session_of([run], work, store)
    over = {own.simulation.rounds_over for own in session.open.values()}
    assert over == {0 if found is None else 1}
    is_whole = file.read_bytes() == good
    assert is_whole == (found is not None)
    if found is not None:
        with pytest.raises((ValueError, KeyError)):
            restore(Simulation(run.replace(seed=7), work), found.state)


@given(st.data())
@fuzz
def test_a_mutated_ledger_entry_is_used_or_left_out_with_its_name(
    whole: Store, run: Run, data: st.DataObject
) -> None:
    file = whole.file("ledger.jsonl")
    before = file.read_bytes()
    tree = data.draw(mutated(json.loads(unsealed(before.rstrip(b"\n")))))
    # The seal is that of the mutated line, as if a program had written it.
    forged = sealed(tree if isinstance(tree, dict) and tree else {"a": tree}) + b"\n"
    bad = data.draw(st.just(forged) | spoiled(before))
    file.write_bytes(bad)
    try:
        ledger = tried(whole.ledger, file.name)
        first = tried(lambda: whole.ledger({run.id}).get(run.id), file.name)
        # The line may name other cells now.
        assert (ledger or {}).get(run.id) == first
        assert file.read_bytes() == bad
        tried(lambda: write_runs_table(whole), file.name)
        if ledger is not None:
            with warnings.catch_warnings(action="ignore"):
                reported(whole)
                for result in whole.read().runs.values():
                    descriptions.ending_tags(result)
    finally:
        file.write_bytes(before)
        write_runs_table(whole)


@given(st.data())
@fuzz
def test_a_mutated_manifest_is_a_sweep_or_a_clear_error_with_its_name(
    whole: Store, data: st.DataObject
) -> None:
    file = whole.file("manifest.json")
    before = file.read_bytes()
    tree = data.draw(mutated(json.loads(unsealed(before))))
    text = json.dumps(tree if isinstance(tree, dict) and tree else {"a": tree})
    bad = data.draw(st.just(seal(text.encode())) | spoiled(before))
    file.write_bytes(bad)
    try:
        manifest = tried(whole.manifest, str(file))
        assert file.read_bytes() == bad
        if manifest is not None:
            assert not any(
                "/" in entry.run_id or "." in entry.run_id for entry in manifest.entries
            )
            tried(lambda: (write_runs_table(whole), reported(whole)))
    finally:
        file.write_bytes(before)
        write_runs_table(whole)


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
