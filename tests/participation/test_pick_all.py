"""Policies that pick for many replicates at once pick what they pick for each alone."""

import math
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
    Sine,
    Trace,
    Varying,
)
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
