"""Policies that pick for many replicates at once pick what they pick for each alone."""

import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysafl import Absent, Participation, Snapshot, Uniform
from raysafl.algorithms import Key
from raysafl.core import participation
from raysafl.core.participation import Cohort, Cohorts
from raysafl.core.randomness import Keys
from raysafl.participation import (
    Arbitrary,
    ArbitraryRates,
    Bernoulli,
    Beta,
    Cyclic,
    Full,
    Gamma,
    Markov,
    MinimumSeparation,
    ScipyDistribution,
    Sine,
    Trace,
    Varying,
)
from raysafl.participation.arbitrary import masses, rates
from raysafl.participation.sampling import at_most, come, of_sizes, uniforms, weighted
from raysafl.simulation.turns import checked_picks

SEEDS = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5)


class FirstOfEvenRounds(Participation):
    """One client comes in even rounds; the state counts the rounds."""

    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, Cohort]:
        return (state or 0) + 1, Cohort([0] if key.round % 2 == 0 else [])


class Backwards(Uniform):
    """Picks in its own way, and inherits how Uniform picks for many replicates."""

    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, Cohort]:
        state, cohort = super().pick(state, num_clients, key, accuracy)
        return state, Cohort(sorted(num_clients - 1 - i for i in cohort.ids))


class NeverASnapshot(Snapshot):
    """Follows its base in every round."""

    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, Cohort]:
        after, base = self.base.pick(state["base"], num_clients, key, accuracy)
        return {**state, "base": after}, base


def assert_equals_pick(
    policy: Participation,
    num_clients: int,
    seeds: list[int],
    accuracies: list[list[float | None]],
) -> None:
    """Play rounds with all seeds at once, and with each alone."""
    policy.check(num_clients)
    states = alone = [policy.init()] * len(seeds)
    seeds_R = np.array(seeds, np.uint64)
    for round, now in enumerate(accuracies):
        pairs = [
            policy.pick(state, num_clients, Key(seed, round), accuracy)
            for state, seed, accuracy in zip(alone, seeds, now, strict=True)
        ]
        alone = [state for state, _ in pairs]
        keys = Keys(seeds_R, round)
        states, cohorts = checked_picks(policy, states, num_clients, keys, now)
        assert states == alone
        assert one_by_one(cohorts) == [cohort for _, cohort in pairs]


def one_by_one(cohorts: Cohorts) -> list[Cohort]:
    return [
        Cohort(ids.tolist(), bool(enforced), None if math.isnan(prob) else float(prob))
        for ids, enforced, prob in zip(
            np.split(cohorts.ids, np.cumsum(cohorts.count_R)[:-1]),
            cohorts.enforced_R,
            cohorts.enforce_prob_R,
            strict=True,
        )
    ]


@st.composite
def policies(draw: st.DrawFn, num_clients: int, trace: str) -> Participation:
    """A policy other than a snapshot."""
    count = st.integers(1, num_clients)
    rate = st.sampled_from([0.03, 0.3, 1.0])
    rates = rate | st.lists(rate, min_size=num_clients, max_size=num_clients)
    most = st.none() | count
    m = draw(count)
    s = draw(st.integers(0, num_clients - m))
    away = st.permutations(range(num_clients)).map(lambda ids: ids[:s])
    dist = draw(st.sampled_from([Beta(), Gamma()]))
    mine: list[st.SearchStrategy[Participation]] = [
        st.just(Full()),
        st.just(Uniform(m=m)),
        st.builds(Absent, s=st.just(s), m=st.just(m), clients=st.none() | away),
        st.builds(Bernoulli, rate=rates, m=most, at_least_one=st.booleans()),
        st.builds(
            Markov,
            mean=rates,
            correlation=st.sampled_from([0.0, 0.7]),
            m=most,
            at_least_one=st.booleans(),
        ),
        st.builds(
            Varying,
            base=rates,
            factor=st.just(Sine(amplitude=0.5, mean=0.5, period=3)),
            correlation=st.sampled_from([0.0, 0.7]),
            m=most,
            at_least_one=st.booleans(),
        ),
        st.builds(Cyclic, groups=count, length=st.integers(1, 3), m=most),
        st.just(Cyclic(groups=1, length=9, offset="random", m=m)),
        st.just(MinimumSeparation(base=Uniform(m=m), rounds=2)),
        st.just(Cyclic(groups=[list(range(num_clients))[::-1], [0]], m=m)),
        st.just(Arbitrary(dist=dist, m=m)),
        st.builds(ArbitraryRates, dist=st.just(dist), m=most),
        st.builds(Trace, file=st.just(trace), m=most),
        st.just(FirstOfEvenRounds()),
        st.just(Backwards(m=m)),
    ]
    return draw(st.one_of(mine))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    file: Path = tmp_path_factory.mktemp("trace") / "trace.csv"
    file.write_text("client,start,end\n0,0,3\n0,2,4\n")
    return str(file)


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_all_replicates_at_once_have_the_cohorts_and_states_of_each_alone(
    data: st.DataObject, trace: str
) -> None:
    num_clients = data.draw(st.integers(1, 30))
    policy = data.draw(policies(num_clients, trace))
    if data.draw(st.booleans()):
        schedules: list[dict[str, Any]] = [
            {"every": 2},
            {"snapshot_prob": 0.5},
            {"adapt": 3.0},
        ]
        policy = Snapshot(
            base=policy,
            uniform=data.draw(policies(num_clients, trace)),
            **data.draw(st.sampled_from(schedules)),
        )
    seeds = data.draw(SEEDS)
    accuracy = st.none() | st.floats(0, 1)
    accuracies = st.lists(accuracy, min_size=len(seeds), max_size=len(seeds))
    rounds = data.draw(st.lists(accuracies, min_size=4, max_size=4))
    assert_equals_pick(policy, num_clients, seeds, rounds)


@pytest.mark.parametrize(
    "policy",
    [
        Uniform(m=3),
        Bernoulli(rate=0.001, m=5),
        Snapshot(base=Full(), uniform=Uniform(m=3), every=2),
    ],
    ids=repr,
)
def test_so_many_clients_that_draws_would_fill_the_memory_are_picked_one_by_one(
    policy: Participation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(participation, "MOST_TOGETHER", 20_001)
    # Of more than 10,000 clients, numpy draws; two times 10,001 are one by one.
    for num_clients, seeds in ((10_000, [0, 1]), (20_001, [0]), (10_001, [0, 1])):
        keys = Keys(np.array(seeds, np.uint64), round=0)
        nothing: list[float | None] = [None] * len(seeds)
        states = [policy.init()] * len(seeds)
        together = policy.pick_all(states, num_clients, keys, nothing)
        assert (together is None) == (num_clients == 10_001)
        assert_equals_pick(policy, num_clients, seeds, [nothing])


@pytest.mark.parametrize(
    "policy",
    [
        Backwards(m=2),
        FirstOfEvenRounds(),
        Snapshot(base=FirstOfEvenRounds(), uniform=Uniform(m=2), every=3),
        Snapshot(base=Full(), uniform=Backwards(m=2), adapt=1.0),
        NeverASnapshot(base=Bernoulli(rate=0.5), uniform=Full(), every=1),
    ],
    ids=repr,
)
def test_a_policy_of_the_users_is_asked_for_each_replicate(
    policy: Participation,
) -> None:
    assert_equals_pick(policy, 9, [3, 5], [[None, 0.5], [0.1, 0.2], [0.6, 0.7]])


class Twice(Participation):
    """Names a client twice."""

    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, Cohort]:
        return state, Cohort([1, 1])


@pytest.mark.parametrize(
    "policy", [Twice(), Snapshot(base=Twice(), uniform=Full(), every=2)], ids=repr
)
def test_what_a_policy_of_the_users_picks_is_checked(policy: Participation) -> None:
    keys = Keys(np.arange(2, dtype=np.uint64), round=1)
    with pytest.raises(ValueError, match=r"Twice\.pick .* holds a client twice"):
        checked_picks(policy, [policy.init()] * 2, 5, keys, [None, None])


MILLION = 1_000_000
# numpy changes its method
SIZES = st.integers(1, 60) | st.sampled_from([9_999, 10_001, 40_000])
SEED = st.integers(0, 10**6)


def pick(
    policy: Participation, num_clients: int, key: Key, state: Any = None
) -> list[int]:
    policy.check(num_clients)
    return policy.pick(state, num_clients, key, None)[1].ids


def drawn(pool: list[int], m: int, key: Key, purpose: str = "cohort") -> list[int]:
    """m of a list, as it is told."""
    return sorted(key(purpose).choice(pool, m, replace=False).tolist())


@given(SIZES, st.data(), SEED, st.integers(0, 1000))
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
    st.lists(SEED, min_size=1, max_size=3),
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
    st.lists(SEED, min_size=1, max_size=3),
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
    SEED,
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


def test_probabilities_are_computed_once_and_cannot_be_changed() -> None:
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
