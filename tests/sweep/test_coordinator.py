"""The coordinator itself, stepped here as Tune steps it, with real client actors."""

import io
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import ray
import torch
from helpers.actors import end_actor, kill_actor
from helpers.here import session_of
from torch import nn

from raysafl import Hardware, Model, Run
from raysafl.participation import Markov
from raysafl.runtime.in_process import Worker
from raysafl.storage.ledger import Checkpoint
from raysafl.sweep.news import GivenPack, News, Terms
from raysafl.sweep.on_ray.coordinator import NEWS, Coordinator, Given
from raysafl.sweep.packs import PACK_KEY, Pack

pytestmark = pytest.mark.usefixtures("ray_local")
Start = Callable[..., Coordinator]


def config_of(run: Run, *checkpoints: bytes) -> dict[str, Any]:
    """The configuration of a trial of a run's cells."""
    pack = Pack(tuple(run.split()))
    given = GivenPack(
        pack,
        {cell: {} for cell in run.cell_ids},
        [Checkpoint.read(io.BytesIO(file)) for file in checkpoints],
    )
    dataset = ray.put(run.data.load())
    return {PACK_KEY: Given(pack.id, ray.put(given), dataset)}


@pytest.fixture(scope="module")
def idle() -> Iterator[list[Coordinator]]:
    """Coordinators that no test uses now: to start their client actors takes seconds."""
    trials: list[Coordinator] = []
    yield trials
    for trial in trials:
        trial.stop()


class PerProcess(Model):
    """A linear layer with frozen weights beside it that differ in every process."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build both, as a file would that is another one on each machine."""
        first = nn.Linear(math.prod(input_shape), 8).requires_grad_(False)
        rng = torch.Generator().manual_seed(os.getpid())
        first.weight.copy_(torch.randn(first.weight.shape, generator=rng))
        return nn.Sequential(nn.Flatten(), first, nn.Linear(8, num_classes))


@pytest.fixture
def start(idle: list[Coordinator], request: pytest.FixtureRequest) -> Iterator[Start]:
    """Start a coordinator for a run, or take one of an earlier test."""
    made: list[Coordinator] = []
    terms = Terms(commit="", package="", report_seconds=0.0)
    # Tests of lost client actors kill them.
    is_shared = "lost" not in request.node.name

    class Here(Coordinator):
        def setup(self, config: dict[str, Any], *_: Any) -> None:
            super().setup(config, terms, Hardware(cpus=0.5))

    def begin(run: Run, *checkpoints: bytes) -> Coordinator:
        config = config_of(run, *checkpoints)
        if is_shared and idle:
            trial = idle.pop()
            trial.reset_config(config)
        else:
            trial = Here(config)
        made.append(trial)
        return trial

    yield begin
    for trial in made:
        if is_shared:
            trial.open.close()
            idle.append(trial)
        else:
            trial.stop()


def to_the_end(trial: Coordinator) -> list[dict[str, Any]]:
    results = [trial.train()]
    while not results[-1]["done"]:
        results.append(trial.train())
    return results


def rows_of(news: News) -> pd.DataFrame:
    found = news.rows.to_pandas().drop(columns="seconds")
    return found.sort_values(["seed", "round"]).reset_index(drop=True)


def assert_reference(results: Sequence[dict[str, Any]], run: Run) -> None:
    """The rows at the end are those of the run in this process."""
    session = session_of([run], Worker(run.cells, run.data.load(), run.model))
    session.advance(np.inf)
    last: News = results[-1][NEWS]
    pd.testing.assert_frame_equal(rows_of(last), rows_of(session.news()))


def test_it_reports_every_evaluated_round_and_ends_with_all_rows(
    start: Start, tiny: Run
) -> None:
    results = to_the_end(start(tiny))
    assert [r["round"] for r in results] == [1, 2, 3, 4]
    ends = results[-1][NEWS].ends
    assert [(end.cell, end.status) for end in ends] == [
        (cell, "finished") for cell in tiny.cell_ids
    ]
    mean = np.mean([end.metrics["test_accuracy"] for end in ends])
    assert results[-1]["test_accuracy"] == pytest.approx(mean)
    assert_reference(results, tiny)


def test_reset_for_another_run_equals_a_fresh_start(start: Start, tiny: Run) -> None:
    trial = start(tiny)
    trial.train()
    other = tiny.replace(seed=9)
    trial.config = config_of(other)
    assert trial.reset_config(trial.config)
    # Tune may set up one coordinator for a trial, and then give the trial to another.
    assert trial.open.lockstep is None
    assert_reference(to_the_end(trial), other)


def test_a_trial_that_tune_has_paused_goes_on_from_where_it_was(
    start: Start, tiny: Run, tmp_path: Path
) -> None:
    first = start(tiny)
    first.train()
    first.save_checkpoint(str(tmp_path))
    again = start(tiny)
    again.load_checkpoint(str(tmp_path))
    results = to_the_end(again)
    assert [r["round"] for r in results] == [2, 3, 4]
    assert_reference(results, tiny)


def test_client_actors_compute_with_the_coordinator_s_frozen_parameters(
    start: Start, tiny: Run
) -> None:
    # Ray's workers cannot import it.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    run = tiny.replace(model=PerProcess())
    assert_reference(to_the_end(start(run)), run)


@pytest.mark.acceptance
def test_a_lost_client_actor_is_replaced_within_the_trial(
    start: Start, tiny: Run
) -> None:
    """Markov chains have a state, which the round that is cut has already moved."""
    run = tiny.replace(participation=Markov(mean=0.3, correlation=0.8))
    trial = start(run)
    trial.train()
    kill_actor(trial.actors.handles[0])
    assert_reference(to_the_end(trial), run)


@pytest.mark.acceptance
def test_actors_lost_for_good_leave_no_checkpoint_of_half_a_round(
    start: Start, tiny: Run
) -> None:
    run = tiny.replace(participation=Markov(mean=0.3, correlation=0.8))
    first = start(run)
    kept = first.train()[NEWS].checkpoint
    end_actor(first.actors.handles[0])
    news = to_the_end(first)[-1][NEWS]
    was_lost = "LostActorsError: the client actor that was to (train|evaluate) was lost"
    assert all(re.match(was_lost, end.reason) for end in news.ends)
    assert len(news.ends) == 2 and not news.checkpoint
    assert_reference(to_the_end(start(run, kept)), run)
