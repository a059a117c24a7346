"""Every policy: what all promise, and the frequencies that each one does."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from helpers.matrix import policies
from helpers.refused import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from raysafl import Absent, Participation, Snapshot, Uniform
from raysafl.algorithms import EVERYONE, Key
from raysafl.participation import (
    Arbitrary,
    ArbitraryRates,
    Bernoulli,
    Beta,
    Cohort,
    Cyclic,
    Full,
    Gamma,
    Markov,
    MinimumSeparation,
    RelativeLogNormal,
    ScipyDistribution,
    Sine,
    Steps,
    Trace,
    Varying,
    Weibull,
    sampling,
)
from raysafl.participation.arbitrary import Distribution


class OfEveryone(Full):
    """Goes by the accuracy on all clients' samples."""

    def measured_on(self, cohort: list[int]) -> list[int]:
        return [EVERYONE]


class OfPasses(Full):
    """Goes by the accuracy of passes."""

    goes_by_passes: ClassVar[bool] = True


M = 12
FULL: Any = {"base": Full(), "uniform": Full()}
EVERY: list[Participation] = [
    Full(),
    Uniform(m=4),
    Absent(s=3, m=4),
    *(
        Arbitrary(dist=d, m=3)
        for d in (
            Beta(),
            Gamma(theta=0.05),
            Weibull(),
            ScipyDistribution("lognorm", s=1.0),
        )
    ),
    *(
        ArbitraryRates(dist=d, m=m)
        for d in (Beta(), Gamma(), Weibull())
        for m in (None, 3)
    ),
    Bernoulli(rate=0.02, at_least_one=True),
    Bernoulli(rate=[0.0, 0.9, *[0.1] * (M - 2)], m=2),
    Markov(mean=0.05, correlation=0.9, at_least_one=True),
    Markov(mean=0.5, correlation=-1 + 1e-9, m=5),
    Varying(base=0.3, factor=Sine(amplitude=0.5, mean=0.9, period=7), m=3),
    Varying(
        base=[i / 12 for i in range(M)],
        factor=Steps(values=[0.2, 1.0], length=2),
        shift=[0.5 * i for i in range(M)],
        least=0.1,
        first=2,
        correlation=0.8,
    ),
    Cyclic(groups=5, length=3),
    Cyclic(groups=[[0, 7], [3], [3, 4, 11]], m=2),
    Cyclic(groups=4, length=6, offset="random", m=2),
    MinimumSeparation(base=Markov(mean=0.4, correlation=0.6), rounds=2, m=3),
    Snapshot(base=Markov(mean=0.2, correlation=0.5), uniform=Uniform(m=4), every=3),
    Snapshot(base=Arbitrary(dist=Beta(), m=3), uniform=Full(), snapshot_prob=0.4),
    Snapshot(base=Cyclic(groups=4), uniform=Uniform(m=2), adapt=5.0),
]
INDEPENDENT = [
    p for p in EVERY if p.init() is None and not getattr(p, "correlation", 0)
]


def cohorts(
    policy: Participation,
    rounds: int,
    seed: int = 0,
    clients: int = M,
    through_json: bool = False,
) -> list[list[int]]:
    policy.check(clients)
    state, out = policy.init(), []
    for t in range(rounds):
        state, cohort = policy.pick(state, clients, Key(seed, t), (t * 7 % 10) / 10)
        state = json.loads(json.dumps(state)) if through_json else state
        out.append(cohort.ids)
    return out


def fits(observed: Any, expected: Any) -> bool:
    """Chi-square: neither too far from what is expected nor too near."""
    return bool(1e-3 < stats.chisquare(observed, expected).pvalue < 1 - 1e-3)


@pytest.mark.parametrize("policy", EVERY, ids=repr)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=5, deadline=None)
def test_cohorts_are_distinct_sorted_and_known_and_follow_the_seed(
    policy: Participation, seed: int
) -> None:
    seen = cohorts(policy, 40, seed)
    most = getattr(policy, "m", None) or M
    least = int(getattr(policy, "at_least_one", False))
    for ids in seen:
        assert least <= len(ids) <= most
        assert ids == sorted(set(ids)) and set(ids) <= set(range(M))
        assert all(type(i) is int for i in ids)
    assert seen == cohorts(policy, 40, seed)
    if not isinstance(policy, Full | Cyclic):
        assert seen != cohorts(policy, 40, seed + 1)


@pytest.mark.parametrize("policy", INDEPENDENT, ids=repr)
def test_a_policy_without_state_is_a_function_of_seed_and_round(
    policy: Participation,
) -> None:
    alone = [policy.pick(None, M, Key(3, t), None)[1].ids for t in reversed(range(20))]
    assert alone[::-1] == cohorts(policy, 20, 3)


def test_a_cohort_is_chosen_without_a_draw_of_a_later_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    stream = Key.__call__

    def noted(key: Key, purpose: str, client: int = 0) -> np.random.Generator:
        drawn.append(key.round)
        return stream(key, purpose, client)

    monkeypatch.setattr(Key, "__call__", noted)
    # No number of clients is small enough for the compiled loop, which makes no `Key`.
    monkeypatch.setattr(sampling, "MOST_COMPILED", 0)
    for policy in [*EVERY, *policies(tmp_path).values()]:
        state = policy.init()
        seen = False
        for t in range(12):
            drawn.clear()
            state, _ = policy.pick(state, M, Key(3, t), 0.5)
            assert all(round <= t for round in drawn), policy
            seen |= bool(drawn)
        assert seen or isinstance(policy, Full | Cyclic | Trace), policy


@pytest.mark.parametrize("policy", EVERY, ids=repr)
def test_a_policy_and_its_state_survive_json(policy: Participation) -> None:
    again = Participation.from_json(policy.to_json())
    assert again == policy and again.digest() == policy.digest()
    assert cohorts(policy, 40, through_json=True) == cohorts(again, 40)


X = (np.arange(100 * 2000) + 0.5) / (100 * 2000)


def mass(density: Any) -> Any:
    """The mass on each of 100 cells by quadrature of a printed density at X."""
    return density.reshape(100, -1).sum(1) / density.sum()


GAMMA = mass(X**9 * np.exp(-X / 0.01))


@pytest.mark.parametrize(
    ("dist", "expected"),
    [
        (Beta(), mass((1 - X) ** 9)),
        (Beta(a=2, b=3), mass(X * (1 - X) ** 2)),
        (Gamma(), GAMMA),
        (Weibull(), mass(X**9 * np.exp(-(X**10)))),
        (Weibull(k=2, lam=0.3), mass(X * np.exp(-((X / 0.3) ** 2)))),
        (ScipyDistribution("uniform"), np.full(100, 0.01)),
        (ScipyDistribution("gamma", a=10, scale=0.01), GAMMA),
    ],
    ids=repr,
)
def test_masses_are_those_of_the_printed_densities(
    dist: Distribution, expected: Any
) -> None:
    assert dist.masses(100).sum() == pytest.approx(1)
    np.testing.assert_allclose(dist.masses(100), expected, rtol=1e-4, atol=1e-9)


def test_pairs_come_as_by_successive_draws() -> None:
    policy = Arbitrary(dist=Beta(a=1, b=2), m=2)
    p = policy.dist.masses(4)
    pairs = [(i, j) for i in range(4) for j in range(i + 1, 4)]
    chance = [p[i] * p[j] / (1 - p[i]) + p[j] * p[i] / (1 - p[j]) for i, j in pairs]
    counts = Counter(tuple(ids) for ids in cohorts(policy, 5000, clients=4))
    assert fits([counts[pair] for pair in pairs], 5000 * np.array(chance))


def test_clients_without_mass_never_come() -> None:
    seen = cohorts(
        Arbitrary(dist=ScipyDistribution("uniform", loc=0.2, scale=0.4), m=3),
        300,
        clients=10,
    )
    assert set().union(*seen) == {2, 3, 4, 5}


def test_rates_are_one_draw_per_client_and_the_same_in_every_round() -> None:
    policy = ArbitraryRates(dist=Beta(a=2, b=2))
    rates = policy.dist.rates(6, Key(9)("rates"))
    # Each client's count is binomial with its rate; those rounds that nobody chose are
    # few.
    seen = np.zeros(6)
    for ids in cohorts(policy, 4000, seed=9, clients=6):
        seen[ids] += 1
    z = (seen - 4000 * rates) / np.sqrt(4000 * rates * (1 - rates))
    nobody = float(np.prod(1 - rates))
    assert nobody < 0.01 and np.all(np.abs(z) < 4.5)
    many = Beta(a=2, b=2).rates(4000, Key(1)("rates"))
    assert stats.kstest(many, stats.beta(2, 2).cdf).pvalue > 1e-3


def test_rates_are_clipped_and_weigh_the_draw_of_m() -> None:
    policy = ArbitraryRates(dist=ScipyDistribution("uniform", loc=-0.5, scale=2), m=1)
    rates = policy.dist.rates(6, Key(4)("rates"))
    assert rates.min() == 0 and rates.max() == 1
    counts = Counter(ids[0] for ids in cohorts(policy, 4000, seed=4, clients=6))
    able = np.flatnonzero(rates)
    assert set(counts) == set(able.tolist())
    assert fits([counts[i] for i in able], 4000 * rates[able] / rates.sum())


def test_bernoulli_clients_come_with_their_rates_and_independently() -> None:
    # the last always comes, so that nobody is forced
    rates = np.array([0.2, 0.5, 0.9, 1.0])
    seen = Counter(
        tuple(ids) for ids in cohorts(Bernoulli(rate=rates.tolist()), 6000, clients=4)
    )
    every = [[c for c in range(3) if mask >> c & 1] for mask in range(8)]
    chance = [
        np.prod([rates[c] if c in ids else 1 - rates[c] for c in range(3)])
        for ids in every
    ]
    assert fits([seen[(*ids, 3)] for ids in every], 6000 * np.array(chance))


@pytest.mark.parametrize(
    ("mean", "rho"), [(0.3, 0.8), (0.5, 0.0), (0.6, -0.5), (0.9, 0.5)], ids=repr
)
def test_a_markov_chain_has_its_mean_and_correlation(mean: float, rho: float) -> None:
    clients, rounds = 200, 60  # so many that never is nobody on
    policy = Markov(mean=mean, correlation=rho)
    on = np.zeros((rounds, clients))
    for t, ids in enumerate(cohorts(policy, rounds, seed=1, clients=clients)):
        on[t, ids] = 1
    # Round 0 is stationary already, as is the last one: exact binomial tests.
    for t in (0, 1, rounds - 1):
        assert stats.binomtest(int(on[t].sum()), clients, mean).pvalue > 1e-3
    for before, chance in ((1, mean + rho * (1 - mean)), (0, mean * (1 - rho))):
        after = on[1:][on[:-1] == before]
        assert stats.binomtest(int(after.sum()), len(after), chance).pvalue > 1e-3
    left, right = on[:-1].ravel() - mean, on[1:].ravel() - mean
    found = (left * right).mean() / (mean * (1 - mean))
    assert (
        abs(found - rho) < 4.5 / np.sqrt(len(left)) / (mean * (1 - mean)) * 0.25 + 0.02
    )


def test_a_markov_chain_steps_by_the_draws_of_its_own_round() -> None:
    mean, rho, clients = 0.5, 0.4, 50
    policy = Markov(mean=mean, correlation=rho)
    state = policy.init()
    on = None
    for t in range(20):
        chance = mean
        if on is not None:
            chance = np.where(on, mean + rho * (1 - mean), mean * (1 - rho))
        on = Key(0, t)("markov").random(clients) < chance
        state, cohort = policy.pick(state, clients, Key(0, t), None)
        assert cohort.ids == np.flatnonzero(on).tolist() != []


def test_cyclic_groups_take_turns_exactly() -> None:
    blocks = [[0, 1, 2], [3, 4], [5, 6]]
    assert cohorts(Cyclic(groups=3, length=2), 7, clients=7) == [
        blocks[g] for g in (0, 0, 1, 1, 2, 2, 0)
    ]
    named = Cyclic(groups=[[4, 1], [0]])
    assert cohorts(named, 3, clients=5) == [[1, 4], [0], [1, 4]]


def test_runs_without_an_offset_keep_their_ids() -> None:
    plain = Cyclic(groups=5, length=4)
    assert plain.to_json() == '{"groups":5,"kind":"Cyclic","length":4,"m":null}'
    later = Cyclic(groups=5, length=4, offset=3)
    assert Participation.from_json(later.to_json()) == later != plain


def test_an_offset_moves_the_turns_and_a_random_one_shortens_the_first() -> None:
    plain = cohorts(Cyclic(groups=5, length=4), 60)
    assert cohorts(Cyclic(groups=5, length=4, offset=7), 50) == plain[7:57]
    ahead = Counter(
        next(
            k
            for k in range(4)
            if cohorts(Cyclic(groups=5, length=4, offset="random"), 45, seed)
            == plain[k : k + 45]
        )
        for seed in range(400)
    )
    assert fits([ahead[k] for k in range(4)], [100] * 4)


def test_minimum_separation_takes_available_clients_that_have_waited() -> None:
    base = Markov(mean=0.5, correlation=0.7)
    seen = cohorts(MinimumSeparation(base=base, rounds=3), 60)
    for t, available in enumerate(cohorts(base, 60)):
        recent = {i for ids in seen[max(0, t - 3) : t] for i in ids}
        assert seen[t] == sorted(set(available) - recent)
    # Of twelve clients four participate each round, and wait for two: as in turns.
    turns = cohorts(MinimumSeparation(base=Full(), rounds=2, m=4), 40)
    for t in range(38):
        assert sorted(turns[t] + turns[t + 1] + turns[t + 2]) == list(range(M))
    # No round is uniform among all clients, as each of Full is.
    policy = MinimumSeparation(base=Full(), rounds=2, m=4)
    assert not policy.pick(policy.init(), M, Key(0, 0), None)[1].enforced
    # Each is drawn as often as any other.
    first = Counter(
        i
        for seed in range(300)
        for i in cohorts(MinimumSeparation(base=Full(), rounds=2, m=4), 1, seed)[0]
    )
    assert fits([first[i] for i in range(M)], [100] * M)


def test_one_minimum_separation_around_another_draws_anew() -> None:
    inner = MinimumSeparation(base=Full(), rounds=1, m=6)
    outer = MinimumSeparation(base=inner, rounds=1, m=3)
    same = 0
    for seed in range(40):
        (six,), (three,) = cohorts(inner, 1, seed), cohorts(outer, 1, seed)
        assert len(three) == 3 and {*three} < {*six}
        alone = MinimumSeparation(base=Cyclic(groups=[six]), rounds=1, m=3)
        same += cohorts(alone, 1, seed) == [three]
    # There are 20 threes of the six, and those that the inner one's numbers give are one.
    assert same < 10


@pytest.mark.parametrize("s", [0.25, 0.5])
def test_rates_relative_to_the_largest_are_lognormal_up_to_a_factor(s: float) -> None:
    N = 20_000
    rates_N = RelativeLogNormal(s=s).rates(N, Key(3)("rates"))
    assert rates_N.max() == 1 and rates_N.min() > 0
    log_N = np.log(rates_N)
    assert log_N.std() == pytest.approx(s, rel=4 / (2 * N) ** 0.5)
    # log(X) has its mean at 0, so the mean of the rates' logarithms is -max(log(X)).
    z_N = (log_N - log_N.mean()) / log_N.std()
    for threshold, share in ((-1, 0.1587), (0, 0.5), (1, 0.8413)):
        error = (share * (1 - share) / N) ** 0.5
        assert (z_N < threshold).mean() == pytest.approx(share, abs=4 * error)


def test_minimum_separation_takes_the_ids_of_a_users_policy_as_numpy_has_them() -> None:
    class Drawn(Participation):
        def pick(
            self, state: Any, num_clients: int, key: Key, accuracy: float | None
        ) -> tuple[Any, Cohort]:
            ids: Any = np.sort(key("mine").choice(num_clients, 4, replace=False))
            return state, Cohort(ids)

    policy = MinimumSeparation(base=Drawn(), rounds=3)
    assert cohorts(policy, 9, through_json=True) == cohorts(policy, 9)


@pytest.mark.parametrize(
    "base",
    [
        OfEveryone(),
        OfPasses(),
        Snapshot(base=Full(), uniform=Full(), adapt=1.0),
        Snapshot(base=Full(), uniform=Full(), every=2),
    ],
    ids=repr,
)
def test_minimum_separation_refuses_a_policy_that_goes_by_an_accuracy(
    base: Participation,
) -> None:
    with pytest.raises(ValueError, match="put the MinimumSeparation into the Snapshot"):
        MinimumSeparation(base=base, rounds=1).check(M)


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (Uniform(m=13), "m = 13 clients a round, but there are N = 12"),
        (Absent(s=4, m=9), "only N - s = 12 - 4 = 8 ever participate; lower m or s"),
        (Absent(s=2, m=3, clients=[1, 12]), "s = 2 distinct ids from 0 to 11, not [1"),
        (Absent(s=2, m=3, clients=[3]), "s = 2 distinct ids from 0 to 11, not [3]"),
        (Arbitrary(dist=Beta(), m=13), "m = 13 clients a round, but there are N = 12"),
        (ArbitraryRates(dist=ScipyDistribution("norm", loc=80)), "has no mass on [0,"),
        (ArbitraryRates(dist=ScipyDistribution("norm", loc=-80)), "has no mass on [0,"),
        (
            Arbitrary(dist=ScipyDistribution("uniform", scale=0.1), m=3),
            "gives only 2 of N = 12 a positive probability; lower m or widen",
        ),
        (Bernoulli(rate=[0.5, 0.5]), "rate has 2 entries for N = 12 clients"),
        (Bernoulli(rate=0), "rate is 0 for every client"),
        (Markov(mean=[0.0] * 12, correlation=0), "mean is 0 for every client"),
        (Markov(mean=[0.5], correlation=0), "mean has 1 entries for N = 12"),
        (Cyclic(groups=13), "groups = 13, but there are only N = 12 clients"),
        (Cyclic(groups=[]), "groups is empty"),
        (Cyclic(groups=3, offset="random"), "leave out offset, or give a length above"),
        (Cyclic(groups=[[0], [1, 12]]), "group 1 must hold at least one id"),
        (Cyclic(groups=[[0], []]), "group 1 must hold"),
        (Cyclic(groups=[[2, 2]]), "group 0 must hold"),
        (MinimumSeparation(base=Uniform(m=20), rounds=1), "m = 20 clients a round"),
        (MinimumSeparation(base=Full(), rounds=1, m=20), "m = 20 clients a round"),
        (Snapshot(base=Full(), uniform=Uniform(m=20), every=2), "m = 20 clients a"),
        (Snapshot(base=Uniform(m=20), uniform=Full(), every=2), "m = 20 clients a"),
    ],
    ids=repr,
)
def test_a_policy_that_cannot_serve_the_clients_says_why(
    policy: Participation, told: str
) -> None:
    assert told in refused(policy.check, M)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ScipyDistribution("lognrom", s=1), "'lognrom': did you mean"),
        (lambda: ScipyDistribution("gamma", k=10), "gamma takes a, and perhaps loc"),
        (lambda: ScipyDistribution("norm", scal=2), "norm takes no shape, and perhaps"),
        (lambda: ScipyDistribution("beta", a=1), "beta takes a, b, and perhaps loc"),
        (lambda: ScipyDistribution("beta", a=1, b=-1), "and not {'a': 1.0, 'b': -1.0}"),
        (lambda: Beta(b=0), "Beta: b: Input should be greater than 0"),
        (lambda: Bernoulli(rate=1.5), "less than or equal to 1"),
        (lambda: Markov(mean=0.2, correlation=1), "correlation: Input should be less"),
        (lambda: Markov(mean=0.2, correlation=-0.3), "the least possible is -0.25"),
        (lambda: Snapshot(**FULL), "exactly one of them"),
        (lambda: Snapshot(**FULL, snapshot_prob=1, every=1), "exactly one of them"),
        (
            lambda: Snapshot(base=Snapshot(**FULL, every=1), uniform=Full(), every=2),
            "a Snapshot cannot contain a Snapshot",
        ),
        (
            lambda: Snapshot(base=OfEveryone(), uniform=Full(), every=2),
            "a Snapshot cannot contain a OfEveryone, which says itself whose accuracy",
        ),
        (
            lambda: Snapshot(base=Full(), uniform=OfPasses(), every=2),
            "a Snapshot cannot contain a OfPasses, which says itself whose accuracy",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arguments_that_make_no_sense_are_refused(make: Any, told: str) -> None:
    assert told in refused(make)
