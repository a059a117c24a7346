"""Cohorts of many clients: the same as by the plain rule, without lists of all clients."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysafl import Absent, Participation, Uniform
from raysafl.algorithms import Key
from raysafl.core.randomness import Keys
from raysafl.participation import (
    Arbitrary,
    ArbitraryRates,
    Bernoulli,
    Beta,
    Cyclic,
    Markov,
    ScipyDistribution,
)
from raysafl.participation.arbitrary import masses, rates
from raysafl.participation.sampling import at_most, come, of_sizes, uniforms, weighted

MILLION = 1_000_000
# numpy changes its method
SIZES = st.integers(1, 60) | st.sampled_from([9_999, 10_001, 40_000])
SEEDS = st.integers(0, 10**6)


def pick(
    policy: Participation, num_clients: int, key: Key, state: Any = None
) -> list[int]:
    policy.check(num_clients)
    return policy.pick(state, num_clients, key, None)[1].ids


def drawn(pool: list[int], m: int, key: Key, purpose: str = "cohort") -> list[int]:
    """m of a list, as it is told."""
    return sorted(key(purpose).choice(pool, m, replace=False).tolist())


@given(SIZES, st.data(), SEEDS, st.integers(0, 1000))
def test_uniform_and_absent_draw_from_the_list_of_those_that_can_come(
    num_clients: int, data: st.DataObject, seed: int, t: int
) -> None:
    key = Key(seed, t)
    m = data.draw(st.integers(1, num_clients))
    assert pick(Uniform(m=m), num_clients, key) == drawn(
        list(range(num_clients)), m, key
    )
    s = data.draw(st.integers(0, num_clients - m))
    first = list(range(num_clients - s))
    assert pick(Absent(s=s, m=m), num_clients, key) == drawn(first, m, key)
    away = np.random.default_rng(seed).permutation(num_clients)[:s].tolist()
    others = np.setdiff1d(np.arange(num_clients), away).tolist()
    assert pick(Absent(s=s, m=m, clients=away), num_clients, key) == drawn(
        others, m, key
    )


@given(
    st.lists(st.sampled_from([0.0, 1e-300, 0.1, 0.5, 1.0]), min_size=1),
    st.data(),
    st.lists(SEEDS, min_size=1, max_size=3),
)
def test_a_weighted_draw_takes_the_first_arrivals_in_stable_order(
    weights: list[float], data: st.DataObject, seeds: list[int]
) -> None:
    m = data.draw(st.integers(1, len(weights)))
    weight_RN = np.array([weights] * len(seeds))
    drawn_RM = weighted(weight_RN, m, Keys(np.array(seeds, np.uint64), 4), "x")
    for seed, ids in zip(seeds, drawn_RM.tolist(), strict=True):
        wait = np.log(Key(seed, 4)("x").standard_exponential(len(weights)))
        with np.errstate(divide="ignore"):
            order = np.argsort(wait - np.log(weights), kind="stable")
        assert ids == sorted(order[:m].tolist())


@given(
    st.lists(st.sampled_from([0.0, 1e-6, 0.3]), min_size=1, max_size=9),
    st.lists(SEEDS, min_size=1, max_size=3),
)
def test_clients_come_by_chance_and_if_asked_at_least_the_nearest_does(
    rate: list[float], seeds: list[int]
) -> None:
    u_RN = uniforms(len(rate), Keys(np.array(seeds, np.uint64), 5), "x")
    for at_least_one in (False, True):
        on_RN, cohorts = come(np.array(rate), u_RN, at_least_one)
        came = np.split(cohorts.ids, np.cumsum(cohorts.count_R)[:-1])
        for seed, on, ids in zip(seeds, on_RN, came, strict=True):
            u = Key(seed, 5)("x").random(len(rate))
            by_chance = np.flatnonzero(u < rate).tolist()
            nearest = min(
                range(len(rate)), key=lambda i: (u[i] / max(rate[i], 1e-300), i)
            )
            assert np.flatnonzero(on).tolist() == by_chance
            assert ids.tolist() == (by_chance or [nearest] * at_least_one)


@given(
    st.lists(st.sets(st.integers(0, 10**7)), min_size=1, max_size=4),
    st.none() | st.integers(1, 50),
    SEEDS,
)
def test_at_most_m_are_kept_of_those_that_came(
    came: list[set[int]], m: int | None, seed: int
) -> None:
    expected = []
    seeds = range(seed, seed + len(came))
    for number, ids in zip(seeds, map(sorted, came), strict=True):
        few = m is None or len(ids) <= m
        key = Key(number, 6)
        expected.append(ids if few else drawn(ids, m or 0, key, "at most"))
    flat = np.array([i for ids in came for i in sorted(ids)], np.int64)
    cohorts = of_sizes(flat, np.array([len(ids) for ids in came]))
    kept = at_most(cohorts, m, Keys(np.array(seeds, np.uint64), 6))
    assert kept.ids.tolist() == [i for ids in expected for i in ids]
    assert kept.count_R.tolist() == [len(ids) for ids in expected]


@pytest.mark.parametrize(
    "policy",
    [
        Uniform(m=100),
        Absent(s=1000, m=100),
        Absent(s=1000, m=100, clients=list(range(0, 1000 * 999, 999))),
        Cyclic(groups=10_000),
    ],
    ids=repr,
)
def test_a_cohort_of_a_million_needs_no_list_of_them(policy: Participation) -> None:
    policy.check(MILLION)
    policy.pick(None, MILLION, Key(0), None)
    tracemalloc.start()
    try:
        _, cohort = policy.pick(None, MILLION, Key(1, 2), None)
        ids = cohort.ids
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(ids) == 100 and most < MILLION / 10  # bytes


@pytest.mark.parametrize(
    "policy",
    [
        Bernoulli(rate=1e-4),
        Bernoulli(rate=0.3, m=100),
        Markov(mean=1e-4, correlation=0.5),
        Arbitrary(dist=Beta(), m=100),
        ArbitraryRates(dist=Beta(), m=100),
    ],
    ids=repr,
)
def test_policies_with_something_for_each_client_need_a_few_arrays(
    policy: Participation,
) -> None:
    policy.check(MILLION)
    state, _ = policy.pick(policy.init(), MILLION, Key(1, 1), None)
    tracemalloc.start()
    try:
        policy.pick(state, MILLION, Key(1, 2), None)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 50 * MILLION  # bytes


def test_probabilities_are_computed_once_for_equal_distributions_and_cannot_be_changed() -> (
    None
):
    first = masses(ScipyDistribution("beta", a=1, b=10), 50)
    assert masses(ScipyDistribution("beta", b=10.0, a=1.0), 50) is first
    assert np.array_equal(first, ScipyDistribution("beta", a=1, b=10).masses(50))
    assert not np.array_equal(masses(ScipyDistribution("beta", a=2, b=10), 50), first)
    both = rates(Beta(), 50, (7, 8))
    for rate_N, seed in zip(both, (7, 8), strict=True):
        assert np.array_equal(rate_N, Beta().rates(50, Key(seed)("rates")))
    for cached in (first, both):
        with pytest.raises(ValueError, match="read-only"):
            cached[0] = 1.0
