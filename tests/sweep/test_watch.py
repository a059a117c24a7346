"""What the driver does on the news of packs: it writes, shows and tracks each cell once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.made import checkpoint_of, ended, ends_of, rows_of

from raysafl import Runner, Sweep
from raysafl.quickstart import BASE
from raysafl.storage.ledger import Status
from raysafl.storage.store import Store
from raysafl.sweep.attempt import Attempt
from raysafl.sweep.news import News
from raysafl.sweep.packs import Pack
from raysafl.sweep.progress import Display, Ending
from raysafl.sweep.watch import Watch

RUNS = tuple(BASE.replace(seed=10 * k, rounds=2, replicates=2) for k in range(2))
PACK = Pack(tuple(cell for run in RUNS for cell in run.split()))


class Shown(Display):
    """Collects what is said of the runs that have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def add_runs(self, ends: Sequence[Ending]) -> None:
        super().add_runs(ends)
        self.texts += [end.text for end in ends]


class Submitted:
    """Collects the runs that MLflow is to get."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def submit(self, run_ids: list[str]) -> None:
        self.ids += run_ids


def watch_of(folder: Path) -> tuple[Watch, Shown, Submitted]:
    """What follows packs, in a new folder, with what it shows and logs."""
    store = Store(folder)
    store.create()
    sweep = Sweep("s", {(k,): run for k, run in enumerate(RUNS)}, axes=("k",))
    store.write_manifest(sweep.manifest())
    attempt = Attempt(Runner(sweep, folder, stop={"round": 1}))
    shown = attempt.display = Shown()
    tracked: Any = Submitted()
    return Watch(attempt, tracked), shown, tracked


def news_of(cells: Sequence[str], done: bool = False) -> News:
    ends, rows, clients = ended(RUNS)
    return News(
        done=done,
        ends=[end for end in ends if end.cell in cells],
        rows=rows,
        clients=clients,
    )


def halved(watch: Watch) -> None:
    """The last news of the pack ask for halves."""
    watch.take(News(halve=True), PACK)
    watch.complete(PACK)


def lost(watch: Watch) -> None:
    """The pack's process was lost again and again."""
    watch.lose("its process was lost", PACK)


@pytest.mark.parametrize("end", [halved, lost])
def test_cells_that_ended_in_a_pack_that_is_to_be_halved_are_not_tried_again(
    end: Any, tmp_path: Path
) -> None:
    watch, shown, tracked = watch_of(tmp_path)
    (one, other), (third, fourth) = (run.cell_ids for run in RUNS)
    watch.take(news_of([one, other, third]), PACK)
    # A report may come twice, if the driver did not know whether it had read it.
    watch.take(news_of([one, other, third]), PACK)
    end(watch)
    assert [text.partition(":")[0] for text in shown.texts] == ["k=0"]
    assert set(tracked.ids) == {run.id for run in RUNS}
    assert watch.unfinished == [PACK]
    halves = PACK.halves(watch.ended)
    assert [cell.id for half in halves for cell in half.runs] == [fourth]
    assert set(watch.store.ledger()) == {one, other, third}
    assert len(watch.store.files("rounds")) == 1
    assert len(watch.store.results().rows) == 3 * 2


def test_a_run_is_shown_when_the_last_of_its_cells_has_ended_by_the_worst_of_them(
    tmp_path: Path,
) -> None:
    watch, shown, _ = watch_of(tmp_path)
    one, other = RUNS[0].cell_ids
    watch.take(news_of([one]), PACK)
    watch.begin(PACK)
    # Both runs have cells that have not ended.
    assert not shown.texts and shown.running == 2
    _, second = ends_of(RUNS[0], Status.FAILED, reason="a mistake")
    watch.take(News(ends=[second], rows=rows_of(RUNS[0], through=1)), PACK)
    assert shown.texts == ["k=0: failed, 1 of 2 seeds: a mistake"]
    assert (shown.running, shown.done, shown.failed) == (1, 1, 1)
    rows = watch.store.results().rows.to_pandas()
    assert rows.groupby("cell").size().to_dict() == {one: 2, other: 1}


def test_cells_that_failed_before_are_tried_and_taken_again(tmp_path: Path) -> None:
    watch, _, _ = watch_of(tmp_path)
    one, _ = RUNS[0].cell_ids
    failed = ends_of(RUNS[0], Status.FAILED)[:1]
    watch.store.take(failed, rows_of(RUNS[0])[:0], news_of([]).clients[:0])
    again, _, _ = watch_of(tmp_path)
    again.take(news_of([one]), PACK)
    assert watch.store.ledger()[one].status is Status.FINISHED


def test_what_a_rule_stopped_keeps_the_rows_and_the_time_of_its_checkpoint(
    tmp_path: Path,
) -> None:
    watch, shown, _ = watch_of(tmp_path)
    pack = Pack(tuple(RUNS[0].split()))
    saved = checkpoint_of(RUNS[0])
    watch.take(News(checkpoint=saved.to_bytes()), pack)
    watch.take(News(metrics={"round": 1, "test_accuracy": 0.25}), pack)
    watch.complete(pack)
    ends = [watch.store.ledger()[cell] for cell in RUNS[0].cell_ids]
    assert {end.reason for end in ends} == {"stopped by `stop` after round 1"}
    assert all(end.seconds == 1.0 and end.started for end in ends)
    assert len(watch.store.results().rows) == 2
    assert not watch.store.files("open")
    assert shown.texts == [
        "k=0: stopped, 2 of 2 seeds: stopped by `stop` after round 1, "
        "test accuracy 25.00%"
    ]


def test_a_lost_process_of_one_cell_is_its_failure_and_keeps_its_checkpoint(
    tmp_path: Path,
) -> None:
    watch, _, _ = watch_of(tmp_path)
    (cell, _) = RUNS[0].split()
    pack = Pack((cell,))
    watch.take(News(checkpoint=checkpoint_of(cell).to_bytes()), pack)
    watch.lose("its process was lost", pack)
    end = watch.store.ledger()[cell.id]
    assert (end.status, end.reason) == (Status.FAILED, "its process was lost")
    assert end.seconds == 1.0 and len(watch.store.results().rows) == 1
    assert len(watch.store.files("open")) == 1


def test_a_full_disk_ends_the_sweep_with_its_reason_and_nothing_is_lost_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, _, _ = watch_of(tmp_path)
    one, other = RUNS[0].cell_ids
    watch.take(news_of([one]), PACK)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("raysafl.storage.paths._sync", full)
        watch.take(news_of([other]), PACK)
    assert "is full" in watch.lost and watch.ends_early
    assert set(watch.store.ledger()) == {one}
