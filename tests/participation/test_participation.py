"""Policies against the distribution they promise."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from raysafl import Absent, Federation, Participation, Run, Uniform
from raysafl.algorithms import Key

ROUNDS = 4000


def cohorts(
    policy: Participation, num_clients: int, rounds: int, seed: int = 0
) -> list[list[int]]:
    policy.check(num_clients)
    state, out = policy.init(), []
    for t in range(rounds):
        state, cohort = policy.pick(state, num_clients, Key(seed, t), None)
        out.append(cohort.ids)
    return out


@st.composite
def policies(draw: st.DrawFn) -> tuple[Participation, int, set[int]]:
    """A policy, M, and who may come."""
    num_clients = draw(st.integers(1, 40))
    m = draw(st.integers(1, num_clients))
    s = draw(st.integers(0, num_clients - m))
    everyone = set(range(num_clients))
    named = draw(st.permutations(range(num_clients)))[:s]
    return draw(
        st.sampled_from(
            [
                (Uniform(m=m), num_clients, everyone),
                (Absent(s=s, m=m), num_clients, set(range(num_clients - s))),
                (Absent(s=s, m=m, clients=named), num_clients, everyone - set(named)),
            ]
        )
    )


@given(policies(), st.integers(0, 2**32), st.integers(0, 10**6))
def test_a_cohort_is_m_distinct_sorted_ids_of_those_that_can_come(
    case: tuple[Participation, int, set[int]], seed: int, t: int
) -> None:
    policy, num_clients, able = case
    policy.check(num_clients)
    _, cohort = policy.pick(policy.init(), num_clients, Key(seed, t), 0.5)
    ids = cohort.ids
    assert ids == sorted(set(ids)) and len(ids) == policy.m
    assert set(ids) <= able
    assert all(type(i) is int for i in ids)


@given(policies(), st.integers(0, 2**32), st.integers(0, 10**6))
def test_a_cohort_is_a_function_of_seed_and_round(
    case: tuple[Participation, int, set[int]], seed: int, t: int
) -> None:
    policy, num_clients, _ = case
    first = policy.pick(policy.init(), num_clients, Key(seed, t), None)
    policy.pick(policy.init(), num_clients, Key(seed + 1, t), 0.1)
    assert policy.pick(policy.init(), num_clients, Key(seed, t), 0.9) == first


def test_cohorts_change_with_round_and_with_seed() -> None:
    a, b = (cohorts(Uniform(m=5), 100, 50, seed) for seed in (0, 1))
    assert len({tuple(ids) for ids in a + b}) == 100


@pytest.mark.parametrize(
    ("policy", "able"),
    [
        (Uniform(m=3), range(6)),
        (Absent(s=2, m=2), range(4)),
        (Absent(s=2, m=3, clients=[0, 4]), [1, 2, 3, 5]),
        (Absent(s=0, m=4), range(6)),
    ],
    ids=repr,
)
def test_every_possible_cohort_is_equally_frequent(
    policy: Participation, able: list[int]
) -> None:
    counts = Counter(tuple(ids) for ids in cohorts(policy, 6, ROUNDS))
    possible = list(itertools.combinations(able, policy.m))
    assert set(counts) == set(possible)
    assert 1e-3 < stats.chisquare([counts[ids] for ids in possible]).pvalue < 1 - 1e-3


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (Uniform(m=11), "m = 11 clients a round, but there are N = 10"),
        (
            Absent(s=4, m=7),
            "m = 7 clients a round, but only N - s = 10 - 4 = 6 ever participate; "
            "lower m or s",
        ),
        (Absent(s=10, m=1), "only N - s = 10 - 10 = 0 ever participate"),
        (
            Absent(s=2, m=3, clients=[1, 10]),
            "clients must be s = 2 distinct ids from 0 to 9, not [1, 10]",
        ),
        (Absent(s=2, m=3, clients=[3]), "s = 2 distinct ids from 0 to 9, not [3]"),
    ],
    ids=repr,
)
def test_a_policy_that_cannot_serve_the_clients_says_why(
    policy: Participation, told: str, tiny: Run
) -> None:
    with pytest.raises(ValueError) as caught:
        policy.check(10)
    assert told in str(caught.value)
    with pytest.raises(ValueError) as caught:
        tiny.replace(data=Federation(clients=10), participation=policy)
    assert told in str(caught.value)
