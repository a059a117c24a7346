"""Compiled draws have the bits of numpy's generators."""

import numpy as np
import pytest
from helpers.tasks import Task, columns, draw_batches
from torch import empty

from raysafl import LocalTraining
from raysafl.algorithms import SERVER, Key
from raysafl.core.algorithm import ContinuedTraining
from raysafl.core.problem import EVERYONE
from raysafl.participation import sampling
from raysafl.training.inputs import StepCounts, draw_plan

SEEDS = [*range(18), 2**40 + 7, 2**63 - 1]


@pytest.mark.parametrize(
    ("count", "m"),
    [(1, 1), (7, 6), (10, 10), (1000, 100), (9999, 5000), (10_000, 300), (10_001, 900)],
)
def test_any_number_of_clients_is_chosen_as_by_numpy(count: int, m: int) -> None:
    for seed in SEEDS:
        for round in (0, 1, 2**31 - 1):
            key = Key(seed, round)
            chosen = sampling.draw(count, m, key)
            assert (chosen == key("cohort").choice(count, m, replace=False)).all()


def test_mini_batches_are_cut_from_numpys_permutations() -> None:
    kinds = [
        LocalTraining(lr=0.1, batch_size=8, epochs=2),
        LocalTraining(lr=0.1, batch_size=8, steps=9),
        ContinuedTraining(lr=0.1, batch_size=8, steps=3, keep_optimizer=False),
        ContinuedTraining(
            lr=0.1, batch_size=8, epochs=2, keep_optimizer=False, shuffle=False
        ),
    ]
    rng = np.random.default_rng(0)
    tasks, held = [], []
    for k in range(400):
        client = (SERVER, EVERYONE, 0, 3, 10**6)[k % 5]
        seed, round, call = (int(n) for n in rng.integers(2**31, size=3))
        seed = SEEDS[k % 20] if k % 3 else seed
        before = int(rng.integers(50))
        local = kinds[k % 4]
        tasks.append(
            Task(0, client, empty(0), local, seed, round, call % 3, before=before)
        )
        held.append(rng.choice(1000, int(rng.integers(5, 40)), replace=False))
    # Batches of at most eight samples, absent ones included, have one width.
    whole = columns(tasks)
    plan = draw_plan(whole, held, StepCounts.of(whole, held))
    stops = np.cumsum(plan.steps_T)
    for task, own, stop, steps in zip(tasks, held, stops, plan.steps_T, strict=True):
        key = Key(task.seed, task.round)(f"batches {task.call}", task.client)
        if isinstance(task.local, ContinuedTraining) and task.local.steps:
            number = task.before // task.local.batches_per_pass(len(own))
            key = Key(task.seed, number)("pass", task.client)
        positions = draw_batches(len(own), task.local, key, task.before)
        expected = np.where(positions < 0, -1, own[positions])
        np.testing.assert_array_equal(plan.index_NB[stop - steps : stop], expected)
