"""The table clients/: written when a cell ends, once, and checked like its rows."""

from pathlib import Path

import numpy as np
import pandas as pd
from helpers.folders import apart, finished

from raysafl import PerClient, Run, Sweep
from raysafl.storage.rows import CLIENT_COLUMNS
from raysafl.storage.verify import verify


def runs_of(tiny: Run) -> list[Run]:
    """Two runs that evaluate their clients, and one that does not."""
    asked = tiny.replace(eval_clients=PerClient(every=2, personal_steps=1))
    return [asked, asked.replace(seed=7), tiny.replace(seed=3)]


def sweep_of(runs: list[Run]) -> Sweep:
    return Sweep("sweep", {(run.seed,): run for run in runs}, axes=("seed",))


def test_a_finished_run_has_a_row_for_each_client_and_evaluation(
    tiny: Run, tmp_path: Path
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


def test_tables_that_are_put_together_read_the_same(tiny: Run, tmp_path: Path) -> None:
    runs = runs_of(tiny)
    store = finished(sweep_of(runs), tmp_path / "sweep")
    before = store.clients()
    apart(store)
    assert len(store.files("clients")) == 2
    store.rewrite()
    assert len(store.files("clients")) == 1
    pd.testing.assert_frame_equal(store.clients(), before)
    store.forget(set(runs[0].cell_ids))
    assert set(store.clients()["run_id"]) == {runs[1].id}
    store.forget(None)
    assert store.clients().empty and not store.files("clients")
