"""What the driver does when a trial of several runs could not be carried out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.made import ended

from raysafl.quickstart import BASE
from raysafl.storage.ledger import Status
from raysafl.storage.rows import CLIENTS, ROUNDS
from raysafl.storage.sealed import OpenState
from raysafl.storage.store import Store
from raysafl.sweep.open_pack import News
from raysafl.sweep.packs import Pack
from raysafl.sweep.progress import Display
from raysafl.sweep.session import End
from raysafl.sweep.watch import Watch

RUNS = tuple(BASE.replace(seed=10 * k, rounds=2) for k in range(4))
PACK = Pack(RUNS)


class Shown(Display):
    """Collects the labels of the runs that have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[tuple[str, Status]] = []

    def add_runs(self, ends: Sequence[End]) -> None:
        self.ends += [(end.label, end.status) for end in ends]


class Submitted:
    """Collects the runs that MLflow is to get."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def submit(self, run_ids: list[str]) -> None:
        self.ids += run_ids


def halved(watch: Watch, pack: Pack) -> None:
    """The last news of the pack ask for halves."""
    watch.complete(News(halve=True), pack)


def lost(watch: Watch, pack: Pack) -> None:
    """The pack's process was lost again and again."""
    watch.lose("its process was lost", pack)


def watch_of(folder: Path) -> tuple[Watch, Shown, Submitted]:
    """What follows packs, in a new folder, with what it shows and logs."""
    store = Store(folder)
    store.create()
    shown, tracked = Shown(), Submitted()
    tracker: Any = tracked
    watch = Watch(
        store,
        shown,
        tracker,
        {},
        lambda run: {},
    )
    return watch, shown, tracked


@pytest.mark.parametrize("end", [halved, lost])
def test_runs_that_ended_in_a_pack_that_is_to_be_halved_are_shown_and_tracked_once(
    end: Any, tmp_path: Path
) -> None:
    """The pack has reported the first of them, and not lived to report the second."""
    watch, shown, tracked = watch_of(tmp_path)
    watch.store.commit(*ended(RUNS[:2]))
    first = End(RUNS[0].id, Status.FINISHED, "", "test_accuracy", 0.5)
    watch.take(News(ends=[first]))
    end(watch, PACK)
    finished = [(run.id, Status.FINISHED) for run in RUNS[:2]]
    assert sorted(shown.ends) == sorted(finished)
    assert sorted(tracked.ids) == sorted(run.id for run in RUNS[:2])
    assert watch.unfinished == [PACK]
    halves = PACK.halves(watch.shown)
    assert [half.runs for half in halves] == [(RUNS[2],), (RUNS[3],)]


def test_a_run_whose_process_was_lost_has_what_its_checkpoint_says_of_its_origin(
    tmp_path: Path,
) -> None:
    watch, _, _ = watch_of(tmp_path)
    run = RUNS[0]
    about = {"spent": 3.5, "started": "2026-01-01", "grown_from": ["older"]}
    origin = {"host": "a-node", "device": "cuda", "engine": "vmap"}
    nothing = ROUNDS.empty_table(), CLIENTS.empty_table(), b""
    watch.store.flush(run.id, OpenState({**about, "origin": origin}, *nothing))
    watch.lose("its process was lost", Pack((run,)))
    entry = watch.store.ledger()[run.id]
    assert entry.status is Status.FAILED and entry.reason == "its process was lost"
    assert (entry.host, entry.device, entry.engine) == ("a-node", "cuda", "vmap")
    assert (entry.seconds, entry.grown_from) == (3.5, ["older"])
