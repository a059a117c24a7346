"""The coordinator itself, stepped here as Tune steps it, with real client actors."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import ray
from helpers.actors import end_actor, kill_actor
from helpers.here import run_in_process

from raysafl import Hardware, Run
from raysafl.participation import Markov
from raysafl.runtime.in_process import Worker
from raysafl.storage.store import Store
from raysafl.sweep.on_ray.coordinator import Coordinator, Given
from raysafl.sweep.open_pack import Terms
from raysafl.sweep.packs import PACK_KEY, Pack

pytestmark = pytest.mark.usefixtures("ray_local")


CHAINS = Markov(mean=0.3, correlation=0.8)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "s")
    store.create()
    return store


@pytest.fixture
def configs(tiny: Run) -> dict[str, dict[str, Any]]:
    """Configurations of trials of one run each, by name."""
    runs = {
        "tiny": tiny,
        "other": tiny.replace(seed=9),
        "chains": tiny.replace(participation=CHAINS),
    }
    dataset = ray.put(tiny.data.load())
    packs = {name: Pack((run,)) for name, run in runs.items()}
    return {
        name: {PACK_KEY: Given(pack.id, ray.put((pack, {runs[name].id: {}})), dataset)}
        for name, pack in packs.items()
    }


@pytest.fixture(scope="module")
def idle() -> Iterator[list[Coordinator]]:
    """Coordinators that no test uses now: to start their client actors takes seconds."""
    trials: list[Coordinator] = []
    yield trials
    for trial in trials:
        trial.stop()


@pytest.fixture
def start(
    store: Store,
    configs: dict[str, dict[str, Any]],
    idle: list[Coordinator],
    request: pytest.FixtureRequest,
) -> Iterator[Any]:
    """Start a coordinator for runs by name, or take one of an earlier test."""
    made: list[Coordinator] = []
    terms = Terms(store.path, commit="", report_seconds=0.0)
    # Tests of lost client actors kill them.
    is_shared = "lost" not in request.node.name

    class Here(Coordinator):
        def setup(self, config: dict[str, Any], *_: Any) -> None:
            super().setup(config, terms, Hardware(cpus=0.5))

    def begin(name: str) -> Coordinator:
        if is_shared and idle:
            trial = idle.pop()
            trial.terms = terms
            trial.reset_config(configs[name])
        else:
            trial = Here(configs[name])
        made.append(trial)
        return trial

    yield begin
    for trial in made:
        if is_shared:
            trial.open.stop()
            idle.append(trial)
        else:
            trial.stop()


def to_the_end(trial: Coordinator) -> list[dict[str, Any]]:
    results = [trial.train()]
    while not results[-1]["done"]:
        results.append(trial.train())
    return results


def test_it_reports_every_evaluated_round_and_ends_with_the_ledger(
    start: Any, store: Store, tiny: Run
) -> None:
    results = to_the_end(start("tiny"))
    assert [r["round"] for r in results] == [1, 2, 3, 4]
    entry = store.ledger().get(tiny.id)
    assert entry is not None and entry.status == "finished"
    assert entry.metrics["test_accuracy"] == results[-1]["test_accuracy"]
    of = store.rounds().query("round == 3")["test_accuracy"].mean()
    assert results[-1]["test_accuracy"] == pytest.approx(of)


def test_reset_for_another_run_equals_a_fresh_start(
    start: Any, configs: Any, store: Store, tiny: Run
) -> None:
    trial = start("tiny")
    to_the_end(trial)
    assert trial.reset_config(configs["other"])
    trial.config = configs["other"]
    to_the_end(trial)
    other = tiny.replace(seed=9)
    reference = Store(store.path.parent / "reference")
    reference.create()
    run_in_process(
        other,
        reference,
        Worker(other.cells, other.data.load(), other.model),
    )
    facts = ["replicate", "round", "test_accuracy", "test_loss"]
    pd.testing.assert_frame_equal(
        store.rounds(other.id)[facts], reference.rounds()[facts]
    )


def test_setting_up_a_trial_touches_nothing_of_its_run(
    start: Any, store: Store, tiny: Run
) -> None:
    trial = start("tiny")
    trial.train()
    before = store.rounds()
    start("tiny")  # as Tune does when it then gives the trial to a cached actor
    pd.testing.assert_frame_equal(store.rounds(), before)


def test_a_stopped_trial_goes_on_from_where_it_was(
    start: Any, configs: Any, store: Store, tiny: Run
) -> None:
    first = start("tiny")
    first.train()
    first.reset_config(configs["other"])
    assert store.open_runs() == [tiny.id]
    results = to_the_end(start("tiny"))
    assert [r["round"] for r in results] == [2, 3, 4]
    assert len(store.rounds(tiny.id)) == 8


@pytest.mark.acceptance
def test_a_lost_client_actor_is_replaced_within_the_trial(
    start: Any, store: Store, tiny: Run
) -> None:
    """Markov chains have a state, which the round that is cut has already moved."""
    trial = start("chains")
    trial.train()
    kill_actor(trial.actors.handles[0])
    to_the_end(trial)
    check_chains(store, tiny)


@pytest.mark.acceptance
def test_actors_lost_for_good_leave_no_checkpoint_of_half_a_round(
    start: Any, store: Store, tiny: Run
) -> None:
    first = start("chains")
    first.train()
    first.open.session.flush()
    kept = next((store.path / "open").glob("*.ckpt")).read_bytes()
    end_actor(first.actors.handles[0])
    to_the_end(first)
    entry = store.ledger().get(first.open.pack.runs[0].id)
    was_lost = "LostActorsError: the client actor that was to (train|evaluate) was lost"
    assert entry is not None and re.match(was_lost, entry.reason)
    assert next((store.path / "open").glob("*.ckpt")).read_bytes() == kept
    to_the_end(start("chains"))
    check_chains(store, tiny)


def check_chains(store: Store, tiny: Run) -> None:
    """The rows are those of the reference."""
    run = tiny.replace(participation=CHAINS)
    reference = Store(store.path.parent / "reference")
    reference.create()
    run_in_process(run, reference, Worker(run.cells, run.data.load(), run.model))
    facts = ["replicate", "round", "test_accuracy", "test_loss"]
    pd.testing.assert_frame_equal(store.rounds()[facts], reference.rounds()[facts])
