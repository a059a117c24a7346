"""Rows hold who came in every round, and how the model serves each client."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.folders import finished
from helpers.here import run_in_process, session_of, write

import raysafl as fl
from raysafl.algorithms import Key
from raysafl.participation import Bernoulli, Cyclic, Markov
from raysafl.report.figures import clients
from raysafl.report.write import write_report
from raysafl.runtime.in_process import Worker
from raysafl.storage.rows import CLIENT_COLUMNS
from raysafl.storage.store import Store
from raysafl.storage.verify import verify

POLICIES: dict[str, fl.Participation] = {
    "cyclic": Cyclic(m=3, groups=4),
    "uniform": fl.Uniform(m=2),
    # In about a third of the rounds nobody comes.
    "empty rounds": Bernoulli(rate=0.1),
    "chains": Markov(mean=0.2, correlation=0.6),
    "snapshots": fl.Snapshot(
        base=Bernoulli(rate=0.1), uniform=fl.Uniform(m=3), every=3
    ),
}


def truth(run: fl.Run, seed: int) -> list[tuple[int, list[int], bool]]:
    """Each round, who came in it and whether it was enforced, by the policy itself."""
    state, found = run.participation.init(), []
    for t in range(run.rounds):
        state, cohort = run.participation.pick(
            state, run.data.clients, Key(seed, t), None
        )
        found.append((t, list(cohort.ids), cohort.enforced))
    return found


def stored(store: Store, run: fl.Run, seed: int) -> list[tuple[int, list[int], bool]]:
    """The same from the rows of a replicate, in the order in which they lie there."""
    rows = store.rounds(run.id)
    found = []
    for row in rows[rows["seed"] == seed].itertuples():
        first = row.round + 1 - len(row.cohorts)
        assert len(row.cohorts) == len(row.enforced) == len(row.trained)
        for k, (ids, enforced, trained) in enumerate(
            zip(row.cohorts, row.enforced, row.trained, strict=True)
        ):
            assert len(ids) or not trained
            found.append((first + k, ids.tolist(), bool(enforced)))
    return found


def worker(run: fl.Run) -> Worker:
    return Worker(run.cells, run.data.load(), run.model)


@pytest.mark.parametrize("pack", [1, pytest.param(3, marks=pytest.mark.acceptance), 64])
def test_rows_and_figure_have_who_came_as_the_policy_picks_them(
    pack: int, tiny: fl.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []

    def draw_raster(_: Any, came: Any, *__: Any) -> None:
        drawn.append(came.mean(axis=0))

    # The last row is that of round 10, and the one before that of round 7.
    base = tiny.replace(rounds=11, eval_every=4)
    runs = {(name,): base.replace(participation=p) for name, p in POLICIES.items()}
    sweep = fl.Sweep("s", runs, axes=("policy",))
    hardware = fl.Hardware(pack=pack)
    fl.Runner(sweep, tmp_path / "s", hardware, executor="here", track="none").run()
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
    killed_after: int, tiny: fl.Run, tmp_path: Path
) -> None:
    run = tiny.replace(
        participation=POLICIES["snapshots"], algorithm=fl.SAFARI(client_prob=0.5)
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
    tiny: fl.Run, tmp_path: Path
) -> None:
    patience = fl.Patience(metric="test_accuracy", rounds=2, min_delta=0.9)
    run = tiny.replace(rounds=20, eval_every=3, patience=patience)
    store = Store(tmp_path)
    store.create()
    run_in_process(run, store, worker(run))
    for seed in run.seeds:
        found = stored(store, run, seed)
        assert found == truth(run, seed)[: len(found)]
        assert len(found) == store.rounds()["round"].max() + 1 < run.rounds


def runs_of(tiny: fl.Run) -> list[fl.Run]:
    """Two runs that evaluate their clients, and one that does not."""
    asked = tiny.replace(eval_clients=fl.PerClient(every=2, personal_steps=1))
    return [asked, asked.replace(seed=7), tiny.replace(seed=3)]


def sweep_of(runs: list[fl.Run]) -> fl.Sweep:
    return fl.Sweep("sweep", {(run.seed,): run for run in runs}, axes=("seed",))


def test_a_finished_run_has_a_row_for_each_client_and_evaluation(
    tiny: fl.Run, tmp_path: Path
) -> None:
    runs = runs_of(tiny)
    store = finished(sweep_of(runs), tmp_path / "sweep")
    table = store.clients()
    assert list(table) == ["run_id", "replicate", *list(CLIENT_COLUMNS)[1:]]
    assert set(table["run_id"]) == {run.id for run in runs[:2]}
    assert len(table) == 2 * tiny.replicates * 2 * tiny.data.clients
    assert sorted(table["round"].unique()) == [1, 3]
    own = store.clients(runs[0].id)
    assert set(own["run_id"]) == {runs[0].id}
    assert (own["seed"] == own["replicate"] + runs[0].seed).all()
    # A client has trained in the rounds whose cohorts hold it.
    rounds = store.rounds(runs[0].id)
    for (replicate, client), rows in own.groupby(["replicate", "client"]):
        cohorts = rounds.loc[rounds["replicate"] == replicate, "cohorts"].explode()
        came = sum(client in cohort for cohort in cohorts)
        assert rows["participations"].iloc[-1] == came
    # The columns of rounds/ follow from the table.
    at_end = rounds[rounds["round"] == 3].set_index("replicate")
    means = own[own["round"] == 3].groupby("replicate")["quality"].mean()
    np.testing.assert_allclose(at_end["clients_mean_accuracy"], means)
    assert at_end["clients_mean_personal_accuracy"].notna().all()
    assert rounds.loc[rounds["round"] == 0, "clients_mean_accuracy"].isna().all()
    statistics = store.runs().set_index(["run_id", "replicate"])
    assert statistics.loc[(runs[0].id, 0), "final_clients_mean_accuracy"] == means[0]
    assert verify(store) == []
