"""Compiled draws have the bits of numpy's generators."""

import numpy as np
import pytest
from helpers.tasks import Task, columns, draw_batches
from torch import empty

from raysafl import LocalTraining
from raysafl.algorithms import SERVER, Key
from raysafl.core.algorithm import ContinuedTraining
from raysafl.core.problem import EVERYONE
from raysafl.core.randomness import Keys
from raysafl.participation import sampling
from raysafl.training.inputs import Held, StepCounts, draw_plan, step_seeds

SEEDS = [*range(18), 2**40 + 7, 2**63 - 1]


@pytest.mark.parametrize(
    ("count", "m"),
    [(1, 1), (7, 6), (10, 10), (1000, 100), (9999, 5000), (10_000, 300), (10_001, 900)],
)
def test_any_number_of_clients_is_chosen_as_by_numpy(count: int, m: int) -> None:
    seeds_R = np.array(SEEDS, np.uint64)
    # Every other seed has one number less to choose from, where there is one to spare.
    count_R = np.array([max(m, count - r % 2) for r in range(len(SEEDS))])
    for round in (0, 1, 2**31 - 1):
        chosen_RM = sampling.draw(count_R, m, Keys(seeds_R, round))
        for seed, n, chosen_M in zip(SEEDS, count_R, chosen_RM, strict=True):
            expected = Key(seed, round)("cohort").choice(n, m, replace=False)
            assert (chosen_M == np.sort(expected)).all()


@pytest.mark.parametrize("count", [1, 3, 100, 10_001])
def test_uniform_numbers_are_those_of_numpy(count: int) -> None:
    seeds_R = np.array(SEEDS, np.uint64)
    for round in (0, 2**31 - 1):
        u_RN = sampling.uniforms(count, Keys(seeds_R, round), "x")
        for seed, u_N in zip(SEEDS, u_RN, strict=True):
            assert (u_N == Key(seed, round)("x").random(count)).all()


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
            Task(0, client, empty(1), local, seed, round, call % 3, before=before)
        )
        held.append(rng.choice(1000, int(rng.integers(5, 40)), replace=False))
    # Batches of at most eight samples, absent ones included, have one width.
    whole = columns(tasks)
    samples = Held.of(held)
    plan = draw_plan(whole, samples, StepCounts.of(whole, samples.samples_T))
    stops = np.cumsum(plan.steps_T)
    for task, own, stop, steps in zip(tasks, held, stops, plan.steps_T, strict=True):
        key = Key(task.seed, task.round)(f"batches {task.call}", task.client)
        if isinstance(task.local, ContinuedTraining) and task.local.steps:
            number = task.before // task.local.batches_per_pass(len(own))
            key = Key(task.seed, number)("pass", task.client)
        positions = draw_batches(len(own), task.local, key, task.before)
        expected = np.where(positions < 0, -1, own[positions])
        np.testing.assert_array_equal(plan.index_NB[stop - steps : stop], expected)


def test_the_seeds_of_steps_are_those_that_numpy_draws() -> None:
    local = LocalTraining(lr=0.1, batch_size=8, epochs=2)
    tasks = [
        Task(0, client, empty(1), local, seed, round, 1 + seed % 3)
        for seed in SEEDS
        for client, round in ((SERVER, 0), (3, 7), (10**6, 2**31 - 1))
    ]
    steps_T = np.arange(len(tasks), 0, -1)
    seed_KT = step_seeds(columns(tasks), steps_T)
    for task, steps, seed_K in zip(tasks, steps_T, seed_KT.T, strict=True):
        key = Key(task.seed, task.round)(f"dropout {task.call}", task.client)
        assert (seed_K[:steps] == key.integers(2**62, size=steps)).all()
        assert not seed_K[steps:].any()
