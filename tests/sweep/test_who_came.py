"""Rows hold who came in every round, evaluated or not, and figures show that."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.here import run_in_process, session_of, write

from raysafl import (
    SAFARI,
    Cohort,
    Hardware,
    Participation,
    Patience,
    Run,
    Runner,
    Snapshot,
    Sweep,
    Uniform,
)
from raysafl.algorithms import Key
from raysafl.participation import Bernoulli, Cyclic, Markov
from raysafl.report.figures import clients
from raysafl.report.write import write_report
from raysafl.runtime.in_process import Worker
from raysafl.storage.store import Store

POLICIES: dict[str, Participation] = {
    "cyclic": Cyclic(m=3, groups=4),
    "uniform": Uniform(m=2),
    # In about a third of the rounds nobody comes.
    "empty rounds": Bernoulli(rate=0.1),
    "chains": Markov(mean=0.2, correlation=0.6),
    "snapshots": Snapshot(base=Bernoulli(rate=0.1), uniform=Uniform(m=3), every=3),
}


class Never(Participation):
    """Nobody ever comes."""

    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, Cohort]:
        """An empty cohort."""
        return state, Cohort([])


def truth(run: Run, seed: int) -> list[tuple[int, list[int], bool]]:
    """Each round, who came in it and whether it was enforced, by the policy itself."""
    state, found = run.participation.init(), []
    for t in range(run.rounds):
        state, cohort = run.participation.pick(
            state, run.data.clients, Key(seed, t), None
        )
        found.append((t, list(cohort.ids), cohort.enforced))
    return found


def stored(store: Store, run: Run, seed: int) -> list[tuple[int, list[int], bool]]:
    """The same from the rows of a replicate, in the order in which they lie there."""
    rows = store.rounds(run.id)
    found = []
    for row in rows[rows["seed"] == seed].itertuples():
        first = row.round + 1 - len(row.cohorts)
        assert len(row.cohorts) == len(row.enforced) == len(row.trained)
        for k, (ids, enforced) in enumerate(
            zip(row.cohorts, row.enforced, strict=True)
        ):
            found.append((first + k, ids.tolist(), bool(enforced)))
    return found


def worker(run: Run) -> Worker:
    return Worker(run.cells, run.data.load(), run.model)


@pytest.mark.parametrize("pack", [1, pytest.param(3, marks=pytest.mark.acceptance), 64])
def test_rows_and_figure_have_who_came_as_the_policy_picks_them(
    pack: int, tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []

    def draw_raster(_: Any, came: Any, *__: Any) -> None:
        drawn.append(came.mean(axis=0))

    # The last row is that of round 10, and the one before that of round 7.
    base = tiny.replace(rounds=11, eval_every=4)
    runs = {(name,): base.replace(participation=p) for name, p in POLICIES.items()}
    sweep = Sweep("s", runs, axes=("policy",))
    hardware = Hardware(pack=pack)
    Runner(sweep, tmp_path / "s", hardware, executor="here", track="none").run()
    store = Store(tmp_path / "s")
    for run in runs.values():
        for seed in run.seeds:
            assert stored(store, run, seed) == truth(run, seed)

    monkeypatch.setattr(clients, "draw_raster", draw_raster)
    write_report(store)
    assert len(drawn) == len(runs)
    for share, run in zip(drawn, runs.values(), strict=True):
        ids = [i for _, cohort, _ in truth(run, run.seed) for i in cohort]
        times = np.bincount(ids, minlength=run.data.clients)
        np.testing.assert_allclose(share, times / run.rounds)


@pytest.mark.parametrize("killed_after", [1, 4, 5])
def test_a_run_that_was_killed_has_each_round_exactly_once(
    killed_after: int, tiny: Run, tmp_path: Path
) -> None:
    run = tiny.replace(
        participation=POLICIES["snapshots"], algorithm=SAFARI(client_prob=0.5)
    )
    run = run.replace(rounds=11, eval_every=4)
    store, whole = Store(tmp_path / "killed"), Store(tmp_path / "whole")
    for own in (store, whole):
        own.create()
    run_in_process(run, whole, worker(run))
    for _ in range(2):
        # A session is lost without a word some rounds after its checkpoint.
        session = session_of([run], worker(run), store)
        for _ in range(killed_after):
            session._advance()
        write(session.news(at_once=True), store, [run])
        for _ in range(4):
            session._advance()
    run_in_process(run, store, worker(run))
    for seed in run.seeds:
        assert stored(store, run, seed) == truth(run, seed)
    columns = ["cohorts", "enforced", "trained", "snapshots", "test_loss"]
    pd.testing.assert_frame_equal(
        store.rounds()[columns], whole.rounds()[columns], check_exact=True
    )


def test_a_replicate_that_stops_early_has_who_came_up_to_the_round_of_its_stop(
    tiny: Run, tmp_path: Path
) -> None:
    patience = Patience(metric="test_accuracy", rounds=2, min_delta=0.9)
    run = tiny.replace(rounds=20, eval_every=3, patience=patience)
    store = Store(tmp_path)
    store.create()
    run_in_process(run, store, worker(run))
    for seed in run.seeds:
        found = stored(store, run, seed)
        assert found == truth(run, seed)[: len(found)]
        assert len(found) == store.rounds()["round"].max() + 1 < run.rounds


def test_a_round_in_which_nobody_comes_is_an_empty_list(
    tiny: Run, tmp_path: Path
) -> None:
    run = tiny.replace(participation=Never(), rounds=3, eval_every=2, replicates=1)
    store = Store(tmp_path)
    store.create()
    run_in_process(run, store, worker(run))
    rows = store.results().rows
    assert rows["cohorts"].to_pylist() == [[[], []], [[]]]
    assert rows["trained"].to_pylist() == rows["enforced"].to_pylist()
    assert rows["trained"].to_pylist() == [[False, False], [False]]
