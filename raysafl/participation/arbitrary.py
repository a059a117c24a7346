"""Arbitrary participation: clients come by probabilities that a distribution gives them."""

from functools import lru_cache
from typing import Any

import numpy as np
from pydantic import Field, SerializeAsAny

from raysafl.core.participation import Cohort, Participation
from raysafl.core.randomness import Key
from raysafl.participation.distributions import Distribution
from raysafl.participation.sampling import Floats, check_m, come, weighted


@lru_cache(maxsize=8)
def masses(dist: Distribution, num_clients: int) -> Floats:
    """The clients' probabilities: every round has the same."""
    mass_M = dist.masses(num_clients)
    mass_M.flags.writeable = False  # it is cached
    return mass_M


@lru_cache(maxsize=32)  # replicates take turns
def rates(dist: Distribution, num_clients: int, seed: int) -> Floats:
    """The clients' rates: every round of a seed has the same."""
    rate_M = dist.rates(num_clients, Key(seed)("rates"))
    rate_M.flags.writeable = False  # it is cached
    return rate_M


class Arbitrary(Participation):
    """m a round, client i with the mass of a distribution on [i/M, (i+1)/M] (FAST, B.1.3).

    p_i = mass on [i/M, (i+1)/M], renormalised over [0, 1]. The paper names the distributions,
    not how a draw becomes a client, nor how m distinct ones come of it. Chosen: the m clients
    are drawn one after the other without replacement, each with probability ~ p_i among those
    left. So client i comes with probability exactly p_i if m = 1; for m > 1 more evenly than
    m p_i (which may exceed 1). `ArbitraryRates` is the other reading.
    """

    dist: SerializeAsAny[Distribution]
    m: int = Field(gt=0)

    def check(self, num_clients: int) -> None:
        """There is mass on [0, 1], and at least m clients have some."""
        check_m(self.m, num_clients)
        able = int(np.count_nonzero(masses(self.dist, num_clients)))
        if able < self.m:
            raise ValueError(
                f"m = {self.m} clients a round, but {self.dist!r} gives only {able} of "
                f"M = {num_clients} a positive probability; lower m or widen the distribution"
            )

    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, Cohort]:
        """A weighted draw without replacement."""
        return state, Cohort(weighted(masses(self.dist, num_clients), self.m, key("arbitrary")))


class ArbitraryRates(Participation):
    """One rate per client drawn from a distribution; each comes with its rate (FAST, B.1.3).

    The other reading of the paper's distributions: rate_i is a draw, clipped to [0, 1], and a
    function of the seed alone. With m = None every client comes with probability rate_i on its
    own (if none does: the one with the least u_i / rate_i). With m, m distinct clients
    are drawn one after the other with probability ~ rate_i among those left; clients of
    rate 0 only when the others are used up.
    """

    dist: SerializeAsAny[Distribution]
    m: int | None = Field(default=None, gt=0)

    def check(self, num_clients: int) -> None:
        """There is mass on [0, 1], and m is at most M."""
        check_m(self.m, num_clients)
        masses(self.dist, num_clients)

    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, Cohort]:
        """By the clients' rates."""
        rate_M = rates(self.dist, num_clients, key.seed)
        rng = key("arbitrary rates")
        if self.m is not None:
            return state, Cohort(weighted(rate_M, self.m, rng))
        return state, Cohort(come(rate_M, rng)[1].tolist())
