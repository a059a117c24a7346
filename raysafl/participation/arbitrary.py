"""Arbitrary participation: a distribution gives each client's participation probability."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from pydantic import Field, SerializeAsAny

from raysafl.core.participation import Cohorts, PicksTogether
from raysafl.core.randomness import Key, Keys
from raysafl.participation.distributions import Distribution
from raysafl.participation.sampling import (
    Floats,
    check_m,
    come,
    of_one_size,
    uniforms,
    weighted,
)


@lru_cache(maxsize=8)
def masses(dist: Distribution, num_clients: int) -> Floats:
    """Return the clients' probabilities [N], which are the same in every round."""
    mass_N = dist.masses(num_clients)
    # The array is cached and shared.
    mass_N.flags.writeable = False
    return mass_N


# Groups of replicates take turns, so the rates of several are in use at the same time.
@lru_cache(maxsize=16)
def rates(dist: Distribution, num_clients: int, seeds: tuple[int, ...]) -> Floats:
    """Return the clients' rates [R, N], which are the same in every round of the seeds."""
    rate_RN = np.stack([dist.rates(num_clients, Key(seed)("rates")) for seed in seeds])
    # The array is cached and shared.
    rate_RN.flags.writeable = False
    return rate_RN


class Arbitrary(PicksTogether):
    """m clients participate in each round, drawn in proportion to a distribution's masses.

    With N clients, client i has the probability p_i: the distribution's mass on
    [i / N, (i + 1) / N], normalised over [0, 1].

    Source: FAST, appendix B.1.3 (docs/papers.md#fast). The paper names the
    distributions, but not how a draw becomes a client, nor how m distinct clients
    result. Here m clients are drawn one after another without replacement, in
    proportion to p_i among the rest. For m = 1, client i participates with probability
    p_i. For larger m, the probabilities are closer to one another than m p_i, which may
    exceed 1. `ArbitraryRates` is the other reading.
    """

    dist: SerializeAsAny[Distribution] = Field(
        description="Distribution whose mass on the i-th of N equal parts of [0, 1] is "
        "client i's."
    )
    m: int = Field(gt=0, description="Number of clients in each round.")

    def check(self, num_clients: int) -> None:
        """Raise ValueError if fewer than m clients have a positive probability."""
        check_m(self.m, num_clients)
        able = int(np.count_nonzero(masses(self.dist, num_clients)))
        if able < self.m:
            raise ValueError(
                f"m = {self.m} clients a round, but {self.dist!r} gives only {able} of "
                f"N = {num_clients} a positive probability; lower m or widen the distribution"
            )

    def choose(
        self, states: Sequence[Any], num_clients: int, keys: Keys
    ) -> tuple[list[Any], Cohorts]:
        """Draw m clients in proportion to their probabilities."""
        mass_N = masses(self.dist, num_clients)
        mass_RN = np.broadcast_to(mass_N, (len(states), num_clients))
        ids_RM = weighted(mass_RN, self.m, keys, "arbitrary")
        return list(states), of_one_size(ids_RM)


class ArbitraryRates(PicksTogether):
    """Each client draws a rate once, and participates in each round with that probability.

    rate_i is one draw from the distribution, clipped to [0, 1]; it depends on the seed
    alone. With m = None, every client participates with probability rate_i, independently
    of the others. If no client does, the cohort is the client with the least u_i / rate_i
    (u_i: its uniform draw). With m, m distinct clients are drawn one after another in
    proportion to rate_i among the rest; clients of rate 0 are drawn last.

    Source: FAST, appendix B.1.3 (docs/papers.md#fast); `Arbitrary` is the other
    reading.
    """

    dist: SerializeAsAny[Distribution] = Field(
        description="Distribution from which each client's rate is drawn."
    )
    m: int | None = Field(
        default=None,
        gt=0,
        description="Number of clients in each round; None: by chance.",
    )

    def check(self, num_clients: int) -> None:
        """Raise ValueError if the distribution has no mass on [0, 1], or m is too large."""
        check_m(self.m, num_clients)
        masses(self.dist, num_clients)

    def choose(
        self, states: Sequence[Any], num_clients: int, keys: Keys
    ) -> tuple[list[Any], Cohorts]:
        """Draw the cohort by the clients' rates."""
        rate_RN = rates(self.dist, num_clients, tuple(keys.seeds_R.tolist()))
        purpose = "arbitrary rates"
        if self.m is not None:
            ids_RM = weighted(rate_RN, self.m, keys, purpose)
            return list(states), of_one_size(ids_RM)
        u_RN = uniforms(num_clients, keys, purpose)
        return list(states), come(rate_RN, u_RN, at_least_one=True)[1]
