"""A pack's cells in this process: what their news say, and from where they go on."""

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from helpers.here import interrupt_in_process, run_in_process, session_of, write
from torch import Tensor

from raysafl import LocalTraining, PerClient, Run
from raysafl.algorithms import SCAFFOLD
from raysafl.core import tensor_file
from raysafl.runtime.in_process import Worker
from raysafl.simulation import checkpoint as states
from raysafl.storage.ledger import Status
from raysafl.storage.store import Store
from raysafl.sweep import open_pack
from raysafl.sweep.news import GivenPack, Terms
from raysafl.sweep.open_pack import Host, Hosted, OpenPack
from raysafl.sweep.packs import Pack
from raysafl.training import ContinuedTraining


def work(*runs: Run) -> Worker:
    cells = [cell for run in runs for cell in run.cells]
    return Worker(cells, runs[0].data.load(), runs[0].model)


def store_in(folder: Path) -> Store:
    store = Store(folder)
    store.create()
    return store


def facts(store: Store, run: Run) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of a run's cells, without what a clock wrote, in the order of its seeds."""
    found = store.results(run.cell_ids)
    tables = (found.rows.drop_columns("seconds"), found.clients)
    rows, clients = (
        table.to_pandas().sort_values(keys).reset_index(drop=True)
        for table, keys in zip(
            tables, (["seed", "round"], ["seed", "round", "client"]), strict=True
        )
    )
    return rows, clients


def assert_same(store: Store, reference: Store, *runs: Run) -> None:
    for run in runs:
        for own, due in zip(facts(store, run), facts(reference, run), strict=True):
            pd.testing.assert_frame_equal(own, due)


def alone(folder: Path, *runs: Run) -> Store:
    """The results of each run for itself."""
    store = store_in(folder)
    for run in runs:
        run_in_process(run, store, work(run))
    return store


def test_a_damaged_state_of_a_checkpoint_is_named_and_its_cells_begin_anew(
    tiny: Run, tmp_path: Path
) -> None:
    other = tiny.replace(local=LocalTraining(lr=0.9, batch_size=32, epochs=1))
    store = store_in(tmp_path / "s")
    interrupt_in_process(tiny, store, work(tiny))
    (file,) = store.files("open")
    saved = store.checkpoint(file)
    assert saved is not None
    # A checkpoint of other cells is none of these cells.
    assert not session_of([other], work(other), store).begun_anew
    for state in (saved.state[:-1], b"", b"\x00" * 200):
        cut = replace(saved, state=state)
        store.save(file.stem, cut.to_bytes())
        again = session_of([tiny], work(tiny), store)
        assert "the checkpoint cannot be used" in again.begun_anew
        assert "so 2 cells begin anew" in again.begun_anew
    # The driver is told at the next report, when the cells may have ended.
    assert again.advance(np.inf)
    news = again.news()
    assert news.begun_anew
    write(news, store, [tiny])
    assert_same(store, alone(tmp_path / "alone", tiny), tiny)


@pytest.mark.parametrize(("takes", "every"), [(1.0, 31), (6.0, 121)])
def test_checkpoints_that_take_longer_to_make_are_made_more_seldom(
    takes: float, every: int, tiny: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock on which a round takes a second: 30 s and four times as long."""
    now = 0.0
    at = list[int]()

    def dump(cells: object) -> bytes:
        nonlocal now
        now += takes
        return b""

    monkeypatch.setattr(open_pack, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(open_pack, "dump", dump)
    run = tiny.replace(rounds=300)
    going = session_of([run], work(run), flush_seconds=30.0)
    for rounds in range(1, run.rounds):
        now += 1
        going.advance(0.0)
        if going.news().checkpoint:
            at.append(rounds)
    first, *later = at
    assert first == 30 and set(np.diff([first, *later])) == {every - 1}


@pytest.mark.parametrize("seconds", [0.0, np.inf])
def test_cells_of_a_pack_whose_others_end_before_keep_the_rows_of_each_alone(
    seconds: float, tiny: Run, tmp_path: Path
) -> None:
    """Also if each report is the last of a process that is then lost."""
    runs = [
        tiny.replace(
            rounds=rounds, seed=10 * rounds, eval_clients=PerClient(on="labels")
        )
        for rounds in (1, 4, 2, 3)
    ]
    store = store_in(tmp_path / "pack")
    left = runs
    while left:
        going = session_of(left, work(*left), store, flush_seconds=0.0)
        going.advance(seconds)
        write(going.news(), store, left)
        ended = store.ledger()
        left = [run for run in left if run.id not in ended]
    assert_same(store, alone(tmp_path / "alone", *runs), *runs)


def test_each_cell_is_told_once_with_its_own_value_and_all_of_its_rows(
    tiny: Run,
) -> None:
    runs = [tiny.replace(seed=0), tiny.replace(seed=10, rounds=2)]
    going = session_of(runs, work(*runs), flush_seconds=np.inf)
    told = []
    while not (news := going.news()).done:
        told.append(news)
        going.advance(0.0)
    told.append(news)
    ends = [end.cell for own in told for end in own.ends]
    assert sorted(ends) == sorted(cell for run in runs for cell in run.cell_ids)
    rows = pa.concat_tables(own.rows for own in told).to_pandas()
    assert len(rows) == sum(run.rounds * run.replicates for run in runs)
    assert not rows.duplicated(["cell", "round"]).any()
    last = rows.sort_values("round").groupby("cell")["test_accuracy"].last()
    values = {e.cell: e.metrics["test_accuracy"] for own in told for e in own.ends}
    assert values == last.to_dict() and last.nunique() > 1
    # Their mean is what a search algorithm is told, of the cells that have ended too.
    assert told[-1].metrics["test_accuracy"] == pytest.approx(last.mean())


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": SCAFFOLD()},
        {
            "local": ContinuedTraining(
                lr=0.05, batch_size=8, steps=2, optimizer="adam"
            ),
            "eval_clients": PerClient(every=2, personal_steps=1),
            "keep": "best",
        },
    ],
)
def test_a_checkpoint_of_a_pack_has_at_most_one_tensor_for_each_shape(
    changes: dict[str, Any], tiny: Run
) -> None:
    """However many cells and clients it holds: a tensor costs more than its bytes."""
    run = tiny.replace(replicates=5, **changes)
    going = session_of([run], work(run), flush_seconds=0.0)
    for _ in range(2):
        going.advance(0.0)
    saved = {cell: states.save(own.replicate) for cell, own in going.open.items()}
    _, tensors = tensor_file.from_bytes(states.dump(saved))
    columns = list[Tensor](tensors.values())
    assert len(columns) == len({(t.dtype, t.shape[1:]) for t in columns})
    count = sum(len(own.tensors) for own in saved.values())
    assert sum(len(column) for column in columns) == count > 5 * len(columns)


def test_of_two_checkpoints_with_the_same_cell_the_farther_one_is_used_and_no_row_is_double(
    tiny: Run, tmp_path: Path
) -> None:
    """As after packs were formed anew: one has two cells, the other one of them, farther."""
    store = store_in(tmp_path / "s")
    interrupt_in_process(tiny, store, work(tiny))
    first, _ = tiny.split()
    going = session_of([first], work(first), store)
    going.advance(0.0)
    write(going.news(at_once=True), store, [first])
    assert len(store.files("open")) == 2
    again = session_of([tiny], work(tiny), store)
    over = [own.simulation.rounds_over for own in again.open.values()]
    assert over == [2, 1] and not again.begun_anew
    before = store.results().rows.to_pandas()
    assert sorted(before.groupby("cell").size()) == [1, 2]
    again.advance(np.inf)
    write(again.news(), store, [tiny])
    assert_same(store, alone(tmp_path / "alone", tiny), tiny)


def test_a_cell_that_has_diverged_has_no_last_value(tiny: Run, tmp_path: Path) -> None:
    wild = tiny.replace(local=LocalTraining(lr=3e38, batch_size=4, steps=3))
    going = session_of([wild], work(wild))
    going.advance(np.inf)
    ends = going.news().ends
    assert {end.status for end in ends} == {Status.DIVERGED}
    assert all(np.isnan(end.metrics["test_accuracy"]) for end in ends)


def hosted(runs: Sequence[Run]) -> Hosted:
    return work(*runs), "cpu", "loop"


def opened(
    *cells: Run, host: Host = hosted, package: str = "", report_seconds: float = 0.0
) -> OpenPack:
    given = GivenPack(Pack(cells), {cell.id: {} for cell in cells})
    return OpenPack(given, Terms("", package, report_seconds), host)


def test_a_pack_that_cannot_be_hosted_is_to_be_halved_and_a_single_cell_fails(
    tiny: Run,
) -> None:
    def host(runs: object) -> Hosted:
        raise SystemExit("no room")

    one, other = tiny.split()
    both = opened(one, other, host=host).report()
    assert both.done and both.halve and not both.ends
    alone = opened(one, host=host).report()
    (end,) = alone.ends
    assert alone.done and not alone.halve and end.cell == one.id
    assert end.status is Status.FAILED and "no room" in end.reason


def test_an_error_that_ends_the_process_leaves_nothing_of_the_round_that_it_cuts(
    tiny: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = opened(*tiny.split())
    assert pack.report().checkpoint

    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pack.lockstep, "advance", cut)
    with pytest.raises(KeyboardInterrupt):
        pack.report()
    assert pack.lockstep is None and not pack.open


def test_a_machine_with_another_raysafl_computes_nothing_and_ends_the_sweep(
    tiny: Run,
) -> None:
    def host(runs: object) -> Hosted:
        raise AssertionError("no client may be hosted")

    news = opened(tiny.split()[0], host=host, package="0" * 64).report()
    assert news.done and "another raysafl" in news.lost and not news.ends
    assert np.isnan(news.metrics["test_accuracy"])


def test_garbage_among_all_objects_is_collected_after_a_pack_when_that_is_due(
    tiny: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.disable()
    try:
        for seconds, is_gone in ((3600.0, False), (0.0, True)):
            monkeypatch.setattr("raysafl.sweep.open_pack.SEARCH_SECONDS", seconds)
            pack = opened(tiny)
            pack.myself = pack  # type: ignore[attr-defined]
            garbage = weakref.ref(pack)
            del pack
            assert opened(tiny).report().done
            assert (garbage() is None) == is_gone
    finally:
        gc.enable()
