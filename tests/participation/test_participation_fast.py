"""Who comes under the distributions of FAST's code, against a literal retelling of it."""

from typing import Any

import numpy as np
import pytest
from helpers.fast_authors import comings
from scipy import stats

from raysafl.algorithms import Key
from raysafl.participation import Arbitrary, Beta, Distribution, Gamma, Weibull

LAWS = {"Beta": Beta(), "Gamma": Gamma(), "Weibull": Weibull(lam=1 / 1.2)}
ROUNDS = 1000
Bools = np.ndarray[Any, np.dtype[np.bool_]]


def ours(law: Distribution) -> Bools:
    policy = Arbitrary(dist=law, m=10)
    came = np.zeros((ROUNDS, 100), bool)
    for t, row in enumerate(came):
        row[policy.pick(None, 100, Key(seed=0, round=t), None)[1].ids] = True
    return came


def chi_square_p(came: Bools, law: Bools) -> float:
    """The p-value of counts of comings under a law, of which many rounds are given.

    Clients of a round are drawn without replacement, so their counts are dependent: the
    statistic is d' C^-1 d for the distance d from the expected counts of groups of
    clients, and their covariance C over the given rounds.
    """
    edges = np.searchsorted(np.cumsum(law.mean(0)), np.linspace(0.5, 9.5, 10))
    group = np.searchsorted(np.unique(edges), np.arange(100), side="right")
    member = np.eye(group.max() + 1)[group]
    # The counts of all groups add up to ten a round, so one of them is left out.
    counts, expected = (rows @ member[:, 1:] for rows in (came, law))
    distance = counts.sum(0) - len(came) * expected.mean(0)
    covariance = np.cov(expected.T) * len(came) * (1 + len(came) / len(law))
    statistic = distance @ np.linalg.solve(covariance, distance)
    return float(stats.chi2.sf(statistic, len(distance)))


@pytest.mark.parametrize("name", LAWS)
def test_who_comes_in_1000_rounds_agrees_with_the_authors_draws_by_chi_square(
    name: str,
) -> None:
    law = comings(name, 20_000, seed=1)
    came = ours(LAWS[name])
    assert came.sum(1).tolist() == [10] * ROUNDS
    assert 1e-3 < chi_square_p(came, law) < 1 - 1e-3
    # The law is told apart from the one that the paper prints, and from a shape near it.
    for other in (Weibull(), Beta(b=9.0)):
        assert chi_square_p(ours(other), law) < 1e-6
