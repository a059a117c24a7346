"""One run in this process: whose checkpoint it continues from."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from helpers.crashes import Crash, crashes
from helpers.here import run_in_process

from raysafl import LocalTraining, PerClient, Run
from raysafl.runtime.in_process import Worker
from raysafl.storage.sealed import OpenState
from raysafl.storage.store import Store
from raysafl.sweep import session
from raysafl.sweep.session import Session

CLOCK = "seconds"


def work(run: Run) -> Worker:
    return Worker(run.cells, run.data.load(), run.model)


def interrupted(run: Run, store: Store) -> Path:
    """The checkpoint of a run that was interrupted after its first rounds."""
    store.create()
    session = Session([run], store, work(run), {})
    session.advance(0.0)
    session.flush()
    path = Path(str(store.open_file(run.id)))
    assert path.is_file()
    return path


def test_a_checkpoint_of_another_run_is_not_used_and_it_is_told_which_and_whose(
    tiny: Run, tmp_path: Path
) -> None:
    other = tiny.replace(local=LocalTraining(lr=0.9, batch_size=32, epochs=1))
    theirs = interrupted(other, Store(tmp_path / "theirs"))
    store = Store(tmp_path / "ours")
    ours = interrupted(tiny, store)
    shutil.copy(theirs, ours)
    told = run_in_process(tiny, store, work(tiny))
    assert "so the run begins anew" in told
    assert str(ours) in told and f"belongs to run {other.id}" in told
    assert tiny.id in told
    reference = Store(tmp_path / "reference")
    reference.create()
    run_in_process(tiny, reference, work(tiny))
    pd.testing.assert_frame_equal(
        store.rounds().drop(columns="seconds"),
        reference.rounds().drop(columns="seconds"),
    )


def test_a_damaged_checkpoint_is_named_and_the_run_begins_anew(
    tiny: Run, tmp_path: Path
) -> None:
    store = Store(tmp_path / "ours")
    checkpoint = interrupted(tiny, store)
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    session = Session([tiny], store, work(tiny), {})
    told = session.begun_anew
    assert "so the run begins anew" in told and str(checkpoint) in told
    assert session.open[tiny.id].simulation.round == 0
    # The driver is told at the next report, when the run may have ended.
    assert session.advance(np.inf) and session.begun_anew == told


def test_a_crash_at_any_operation_of_a_flush_costs_no_round_that_a_checkpoint_had(
    tiny: Run, tmp_path: Path
) -> None:
    """Neither does a checkpoint say more than the rows, so that it would not be used."""
    whole = Store(tmp_path / "whole")
    whole.create()
    run_in_process(tiny, whole, worker := work(tiny))
    attempt = 0

    def begin() -> Session:
        """A session after two rounds, of which the first alone has a checkpoint."""
        nonlocal store, attempt
        attempt += 1
        store = Store(tmp_path / str(attempt))
        store.create()
        session = Session([tiny], store, worker, {}, flush_seconds=np.inf)
        session.advance(1e-9)
        session.flush()
        session.advance(1e-9)
        return session

    store = whole
    rounds = set()
    for _ in crashes(lambda: begin().flush()):
        if not store.open_runs():
            continue
        again = Session([tiny], store, worker, {})
        assert not again.begun_anew
        rounds.add(again.open[tiny.id].simulation.round)
        again.advance(np.inf)
        pd.testing.assert_frame_equal(
            store.rounds().drop(columns=CLOCK), whole.rounds().drop(columns=CLOCK)
        )
    assert rounds == {1, 2}


@pytest.mark.parametrize(("takes", "every"), [(1.0, 31), (6.0, 121)])
def test_checkpoints_that_take_longer_to_write_are_written_more_seldom(
    takes: float,
    every: int,
    tiny: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a clock on which a round takes a second: 30 s and four times as long."""
    now = 0.0
    rounds = 0
    at = list[int]()

    class Slow(Store):
        def flush(self, run_id: str, content: OpenState) -> None:
            nonlocal now
            now += takes
            at.append(rounds)

    class Clocked(Session):
        def _advance(self) -> bool:
            nonlocal now, rounds
            now += 1
            rounds += 1
            return super()._advance()

    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: now))
    store = Slow(tmp_path)
    store.create()
    run = tiny.replace(rounds=300)
    Clocked([run], store, work(run), {}, flush_seconds=30.0).advance(np.inf)
    first, *later = at
    assert first == 31 and set(np.diff([first, *later])) == {every}


@pytest.mark.parametrize("flush_seconds", [0.0, np.inf])
def test_runs_whose_pack_goes_on_without_the_first_keep_the_rows_of_each_alone(
    flush_seconds: float, tiny: Run, tmp_path: Path
) -> None:
    runs = [tiny.replace(rounds=rounds, seed=10 * rounds) for rounds in (1, 4, 2, 3)]
    cells = [cell for run in runs for cell in run.cells]
    store = Store(tmp_path / "pack")
    store.create()
    together = Worker(cells, tiny.data.load(), tiny.model)
    Session(runs, store, together, {}, flush_seconds).advance(np.inf)
    for run in runs:
        alone = Store(tmp_path / run.id)
        alone.create()
        run_in_process(run, alone, work(run))
        pd.testing.assert_frame_equal(
            store.rounds(run.id).drop(columns=CLOCK), alone.rounds().drop(columns=CLOCK)
        )


def test_a_run_that_has_ended_after_a_crash_at_any_operation_has_its_table_of_clients(
    tiny: Run, tmp_path: Path
) -> None:
    run = tiny.replace(eval_clients=PerClient(every=2, personal_steps=1))
    whole = Store(tmp_path / "whole")
    whole.create()
    run_in_process(run, whole, worker := work(run))
    stores: list[Store] = []

    def act() -> None:
        stores.append(Store(tmp_path / str(len(stores))))
        stores[-1].create()
        Session([run], stores[-1], worker, {}).advance(np.inf)

    ended = set()
    for _ in crashes(act):
        store = stores[-1]
        ended.add(run.id in store.ledger())
        if run.id not in store.ledger():
            Session([run], store, worker, {}).advance(np.inf)
        pd.testing.assert_frame_equal(store.clients(), whole.clients())
        pd.testing.assert_frame_equal(
            store.rounds().drop(columns=CLOCK), whole.rounds().drop(columns=CLOCK)
        )
    assert ended == {True, False}


def test_what_a_run_keeps_is_written_before_the_run_counts_as_ended(
    tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny.replace(rounds=1, keep="last")
    store = Store(tmp_path / "s")
    store.create()
    session = Session([run], store, work(run), {}, keep_states=True)

    def killed(*_: object) -> None:
        raise Crash

    monkeypatch.setattr(Store, "commit", killed)
    with pytest.raises(Crash):
        session.advance(np.inf)
    assert store.kept_state(run.id) and store.model(run.id).is_file()


def test_of_runs_that_end_together_each_is_told_its_own_value(
    tiny: Run, tmp_path: Path
) -> None:
    runs = [tiny.replace(seed=seed) for seed in (0, 10, 20)]
    cells = [cell for run in runs for cell in run.cells]
    store = Store(tmp_path / "pack")
    store.create()
    together = Worker(cells, tiny.data.load(), tiny.model)
    session = Session(runs, store, together, {})
    session.advance(np.inf)
    told = {end.run_id: end.value for end in session.take_ends()}
    rows = store.rounds()
    last = rows[rows["round"] == tiny.rounds - 1]
    due = last.groupby("run_id")["test_accuracy"].mean()
    assert told == pytest.approx(due.to_dict()) and due.nunique() == len(runs)
