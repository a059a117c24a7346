"""Availability in clock time: the probabilities of each round, and how long clients stay."""

import math
from typing import Any

import numpy as np
import pytest
from helpers.refused import refused
from hypothesis import given, settings
from hypothesis import strategies as st

import raysafl as fl
from raysafl.core.randomness import Keys
from raysafl.participation import Sine, Steps, Varying, diurnal, rates_by_labels

DAY = Sine(amplitude=0.4, mean=0.5, period=24)
EVEN = Steps(values=[1.0], length=1)


def presence(policy: Varying, clients: int, rounds: int, seeds: int) -> Any:
    """Return who is available, [rounds, seeds, clients]."""
    policy.check(clients)
    states: list[Any] = [policy.init()] * seeds
    came = np.zeros((rounds, seeds, clients), bool)
    for t in range(rounds):
        keys = Keys(np.arange(seeds, dtype=np.uint64), t)
        states, cohorts = policy.choose(states, clients, keys)
        came[t, np.repeat(np.arange(seeds), cohorts.count_R), cohorts.ids] = True
    return came


def assert_mean(seen_R: Any, expected: float) -> None:
    """The mean over independent replicates differs by at most 4.5 standard errors."""
    error = seen_R.std(ddof=1) / math.sqrt(len(seen_R))
    assert abs(seen_R.mean() - expected) <= 4.5 * max(error, 1e-12), (
        seen_R.mean(),
        expected,
        error,
    )


def test_a_table_of_hours_and_time_zones() -> None:
    hours = [round(0.02 * (h + 1), 2) for h in range(24)]
    # Four rounds an hour; client 1 is five hours behind, client 2 half an hour ahead.
    policy = Varying(
        base=1.0, factor=Steps(values=hours, length=96 / 24), shift=[0, -5 * 4, 2]
    )
    for t in range(300):
        clock = [t / 4, t / 4 - 5, t / 4 + 0.5]
        assert policy.probs(3, t).tolist() == [hours[int(h // 1) % 24] for h in clock]


@pytest.mark.parametrize("nu", [0.0, 0.9])
def test_the_mean_presence_of_each_hour_over_100000_rounds(nu: float) -> None:
    policy = Varying(base=[1.0, 0.5], factor=DAY, shift=[0, 6], correlation=nu)
    came = presence(policy, 2, 480, 210)
    assert came.shape[0] * came.shape[1] > 100_000
    for hour in range(24):
        for i, (base, shift) in enumerate([(1.0, 0), (0.5, 6)]):
            wave = math.sin(2 * math.pi * (hour + shift) / 24)
            assert_mean(came[hour::24, :, i].mean(0), base * (0.5 + 0.4 * wave))


def test_two_rounds_in_a_row_keep_as_many_clients_as_they_can() -> None:
    nu = 0.8
    policy = Varying(base=1.0, factor=DAY, correlation=nu)
    came = presence(policy, 10, 480, 100)
    p = [0.5 + 0.4 * math.sin(2 * math.pi * t / 24) for t in range(25)]
    for t in range(24):
        both = (came[t:-1:24] & came[t + 1 :: 24]).mean((0, 2))
        # Drawn anew, both are independent; else all stay who can.
        assert_mean(both, (1 - nu) * p[t] * p[t + 1] + nu * min(p[t], p[t + 1]))


def test_sessions_of_equal_probability_have_markovs_lengths_and_correlations() -> None:
    p, nu = 0.4, 0.75
    came = presence(Varying(base=p, factor=EVEN, correlation=nu), 20, 600, 50)
    for lag in (1, 2, 5):
        both = (came[:-lag] & came[lag:]).mean((0, 2))
        assert_mean(both, p**2 + nu**lag * p * (1 - p))
    # A session ends in a round with probability (1 - nu) (1 - p): geometric lengths.
    starts = came[1:-40] & ~came[:-41]
    length = np.cumprod([came[1 + k : len(came) - 40 + k] for k in range(41)], axis=0)
    sums = (length.sum(0) * starts).sum((0, 2)) / starts.sum((0, 2))
    stop = (1 - nu) * (1 - p)
    assert_mean(sums, (1 - (1 - stop) ** 41) / stop)


def test_clients_arrive_and_leave() -> None:
    # Five from the beginning, one more every ten rounds from round 50 on; client 0 leaves.
    arrives = [0] * 5 + [50 + 10 * k for k in range(4)]
    policy = Varying(
        base=1.0, factor=EVEN, first=arrives, last=[59] + [1000] * 8, correlation=0.5
    )
    came = presence(policy, 9, 100, 2)
    for t in range(100):
        there = [i for i, first in enumerate(arrives) if first <= t and (i or t < 60)]
        assert all(np.flatnonzero(row).tolist() == there for row in came[t])


@pytest.mark.parametrize("nu", [0.0, 0.7])
def test_at_least_one_participates_where_somebody_might(nu: float) -> None:
    policy = Varying(
        base=[0.02, 0.01, 0.5],
        factor=EVEN,
        first=[3, 3, 3],
        last=[59, 59, 4],
        correlation=nu,
        at_least_one=True,
    )
    count = presence(policy, 3, 70, 40).sum(2)
    assert not count[:3].any() and not count[60:].any()
    assert (count[3:60] >= 1).all()
    # The one who is nearest does, and a client that has left does not.
    assert not presence(policy, 3, 60, 40)[5:, :, 2].any()


@given(
    base=st.lists(st.floats(0, 1), min_size=3, max_size=3).filter(any),
    values=st.lists(st.floats(0, 3), min_size=1, max_size=4).filter(any),
    nu=st.floats(0, 0.99),
)
@settings(max_examples=30, deadline=None)
def test_certain_rounds_are_certain_for_every_chain(
    base: list[float], values: list[float], nu: float
) -> None:
    policy = Varying(base=base, factor=Steps(values=values, length=2), correlation=nu)
    came = presence(policy, 3, 12, 3)
    for t in range(12):
        p = np.minimum(1, np.array(base) * values[t // 2 % len(values)])
        assert not came[t][:, p == 0].any() and came[t][:, p == 1].all()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"base": [0.5, 0.5]}, "base has 2 entries for N = 3 clients"),
        ({"shift": [1.0]}, "shift has 1 entries for N = 3"),
        ({"first": [1, 2]}, "first has 2 entries"),
        ({"last": [1, 2, 3, 4]}, "last has 4 entries"),
        ({"base": 0.0}, "base is 0 for every client"),
        ({"first": [0, 7, 0], "last": 6}, "last = 6 is before first = [0, 7, 0]"),
        ({"m": 4}, "m = 4 clients a round"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_fits_no_three_clients_is_refused(
    fields: dict[str, Any], told: str
) -> None:
    policy = Varying(**{"base": 0.5, "factor": DAY, **fields})
    assert told in refused(policy.check, 3)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"base": 1.5}, "base"),
        ({"correlation": 1.0}, "correlation"),
        ({"correlation": -0.1}, "correlation"),
        ({"factor": {"kind": "Sin"}}, "did you mean 'Sine'?"),
        ({"factor": {"kind": "Steps", "values": [], "length": 1}}, "values"),
        ({"factor": {"kind": "Steps", "values": [0, 0], "length": 1}}, "all 0"),
        (
            {"factor": {"kind": "Sine", "amplitude": 1, "mean": 1, "period": 0}},
            "period",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_out_of_range_are_refused(fields: dict[str, Any], told: str) -> None:
    assert told in refused(Varying, **{"base": 0.5, "factor": DAY, **fields})


def test_diurnal_clients_are_available_by_the_hour_of_their_zone() -> None:
    policy = diurnal(clients=100, rounds_per_day=48).replace(base=0.8)
    for t in range(100):
        for i, zone in [
            (0, -5),
            (47, -5),
            (48, -6),
            (76, -6),
            (77, -7),
            (83, -7),
            (84, -8),
        ]:
            wave = math.cos(2 * math.pi * (t / 2 + zone - 3) / 24)
            expected = 0.8 * (1 + 0.6 * wave) / 1.6
            assert policy.probs(100, t)[i] == pytest.approx(expected, rel=1e-12)
    two = diurnal(clients=3, rounds_per_day=24, ratio=2, peak=22, zones={0: 1, 12: 2})
    day = np.array([two.probs(3, t) for t in range(24)])
    assert day.argmax(0).tolist() == [22, 10, 10]
    np.testing.assert_allclose(day.max(0), 1)
    np.testing.assert_allclose(day.min(0), 0.5)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"clients": 0}, "give a client at least"),
        ({"zones": {}}, "zones with weights above 0"),
        ({"zones": {0.0: 1.0, 1.0: 0.0}}, "zones with weights above 0"),
        *(({"ratio": ratio}, "ratio must be at least 1") for ratio in (0.5, 0, -2)),
        ({"rounds_per_day": 0}, "period"),
    ],
    ids=str,
)
def test_a_day_that_cannot_be_is_refused(fields: dict[str, Any], told: str) -> None:
    assert told in refused(diurnal, **{"clients": 3, "rounds_per_day": 24, **fields})


def test_rates_that_follow_labels() -> None:
    data = fl.Federation(clients=12, partition=fl.Dirichlet(alpha=0.3))
    u = [0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.4, 0.3, 0.2, 0.1]
    dataset = data.load()
    labels = dataset.train.y
    expected = []
    for own in data.split(dataset, 4).clients:
        share = [sum(1 for j in own if labels[j] == c) / len(own) for c in range(10)]
        expected.append(sum(s * v for s, v in zip(share, u, strict=True)))
    assert rates_by_labels(data, 4, u) == pytest.approx(expected, rel=1e-12)
    run = Varying(base=rates_by_labels(data, 4), factor=DAY)
    run.check(12)


def test_drawn_rates_of_classes_have_fedawes_ranges_and_follow_the_seed() -> None:
    # With one class a client, a client's rate is that of its class.
    data = fl.Federation(clients=10, partition=fl.ClassesPerClient(p=1))
    dataset = data.load()
    drawn = np.zeros((60, 10))
    for seed in range(60):
        for own, rate in zip(
            data.split(dataset, seed).clients, rates_by_labels(data, seed), strict=True
        ):
            drawn[seed, dataset.train.y[own[0]]] = rate
    assert len(np.unique(drawn)) == 600
    assert rates_by_labels(data, 3) == rates_by_labels(data, 3)
    for c in range(10):
        top = 1.0 if c < 5 else 0.5
        assert 0 <= drawn[:, c].min() < 0.1 * top
        assert 0.9 * top < drawn[:, c].max() < top


def test_a_client_without_samples_is_never_available() -> None:
    class FirstHasNone(fl.Iid):
        def spread(self, samples: Any, clients: int, rng: Any) -> Any:
            return [np.empty(0, int), *super().spread(samples, clients - 1, rng)]

    rates = rates_by_labels(fl.Federation(clients=4, partition=FirstHasNone()))
    assert rates[0] == 0 and min(rates[1:]) > 0


def test_rates_of_classes_that_do_not_fit_are_refused() -> None:
    data = fl.Federation(clients=10)
    wrongs: list[Any] = [[0.5] * 9, [[0.5]] * 10, []]
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"one rate for each class; .* has 10"):
            rates_by_labels(data, 0, wrong)
    x = np.zeros((20, 2))
    numbers = fl.from_arrays(x, np.linspace(0, 1, 20), test=(x[:2], [0.5, 0.1]))
    with pytest.raises(ValueError, match="has 0 classes, and not one for each"):
        rates_by_labels(fl.Federation(dataset=numbers, clients=2))
