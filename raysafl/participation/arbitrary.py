"""Arbitrary participation: distributions, which give each client's participation probability."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, SerializeAsAny, model_validator

from raysafl.core.component import Component
from raysafl.core.participation import Cohorts, PicksTogether
from raysafl.core.randomness import Key, Keys
from raysafl.core.text import nearest
from raysafl.participation.sampling import (
    Floats,
    check_m,
    come,
    of_one_size,
    uniforms,
    weighted,
)


@cache
def continuous() -> Mapping[str, Any]:
    """Return the continuous distributions of scipy by name.

    scipy.stats takes half a second to import, so it is imported only where it is used.
    """
    from scipy import stats

    return {k: v for k, v in vars(stats).items() if isinstance(v, stats.rv_continuous)}


class Distribution(Component):
    """A continuous distribution. Subclass it and define `law` to bring your own.

    Example:
        >>> import raysafl as fl
        >>> fl.participation.ScipyDistribution("uniform").masses(4).tolist()
        [0.25, 0.25, 0.25, 0.25]
    """

    abstract: ClassVar[bool] = True

    def __hash__(self) -> int:
        return hash(self.to_json())

    @abstractmethod
    def law(self) -> tuple[str, dict[str, float]]:
        """Return the distribution's name in scipy.stats, and its arguments there."""

    def masses(self, cells: int) -> Floats:
        """Return the mass of each of `cells` equal parts of [0, 1], normalised to sum to 1.

        Args:
            cells: the number of parts, one for each client.

        Raises:
            ValueError: the distribution has no mass on [0, 1].
        """
        name, arguments = self.law()
        edges = np.linspace(0.0, 1.0, cells + 1)
        below, above = (
            np.asarray(getattr(continuous()[name], side)(edges, **arguments), float)
            for side in ("cdf", "sf")
        )
        # Where the cdf is near 1, its differences are rounding errors; those of 1 - cdf
        # are exact.
        mass = np.where(below[1:] < 0.5, below[1:] - below[:-1], above[:-1] - above[1:])
        total = mass.sum()
        if not total > 0:
            raise ValueError(
                f"{self!r} has no mass on [0, 1], where the clients lie; move it there, "
                "for example with loc and scale"
            )
        masses: Floats = mass / total
        return masses

    def rates(self, clients: int, rng: np.random.Generator) -> Floats:
        """Draw one rate per client independently, clipped to [0, 1]."""
        name, arguments = self.law()
        drawn = continuous()[name].ppf(rng.random(clients), **arguments)
        clipped: Floats = np.clip(np.asarray(drawn, float), 0.0, 1.0)
        return clipped


class ScipyDistribution(Distribution):
    """Any continuous distribution of scipy.stats, given by its name and its arguments.

    `ScipyDistribution("lognorm", s=1.0, scale=0.2)` is an example.

    Raises:
        ValueError: the name of the distribution is unknown (the nearest is named), an
            argument is unknown or missing, or the values are not allowed.
    """

    name: str = Field(description="Name of the distribution in scipy.stats.")
    params: dict[str, float] = Field(
        default_factory=dict, description="Its arguments: shapes, loc and scale."
    )

    def __init__(
        self, name: str = "", params: Mapping[str, float] | None = None, **more: Any
    ) -> None:
        # `kind` is in the JSON of every component, and no argument of the distribution.
        more.pop("kind", None)
        if isinstance(params, Mapping):
            params = {**params, **more}
        super().__init__(**{"name": name, "params": more if params is None else params})

    @model_validator(mode="after")
    def _known(self) -> "ScipyDistribution":
        if self.name not in continuous():
            raise ValueError(
                f"unknown distribution '{self.name}': {nearest(self.name, continuous())}"
            )
        law = continuous()[self.name]
        try:
            is_allowed = np.isfinite(law.cdf(0.5, **self.params))
        except TypeError:
            is_allowed = False
        if not is_allowed:
            takes = f"{law.shapes or 'no shape'}, and perhaps loc and scale"
            raise ValueError(
                f"{self.name} takes {takes}, in the range of scipy.stats, and not {self.params}"
            )
        return self

    def law(self) -> tuple[str, dict[str, float]]:
        """Return the name and the arguments as they were given."""
        return self.name, dict(self.params)


class Beta(Distribution):
    """Density proportional to x^(a-1) (1-x)^(b-1).

    With the defaults, `Arbitrary` picks the first clients most often.

    Source: FAST, appendix B.1.3 (docs/papers.md#fast), with these defaults.
    """

    a: float = Field(default=1.0, gt=0, description="First shape parameter.")
    b: float = Field(default=10.0, gt=0, description="Second shape parameter.")

    def law(self) -> tuple[str, dict[str, float]]:
        """Return scipy's `beta` with its arguments."""
        return "beta", {"a": self.a, "b": self.b}


class Gamma(Distribution):
    """Density proportional to x^(k-1) exp(-x / theta): its mean is k theta = 0.1 by default.

    Source: FAST, appendix B.1.3 (docs/papers.md#fast), with these defaults.
    """

    k: float = Field(default=10.0, gt=0, description="Shape.")
    theta: float = Field(default=0.01, gt=0, description="Scale.")

    def law(self) -> tuple[str, dict[str, float]]:
        """Return scipy's `gamma` with its arguments."""
        return "gamma", {"a": self.k, "scale": self.theta}


class RelativeLogNormal(Distribution):
    """Rates X_i / max_j(X_j) with log(X_i) ~ N(0, s^2): the rate of one client is 1.

    `rates` and `ArbitraryRates` are relative to the largest X of the N clients; `masses` and
    `Arbitrary` take X as it is.

    Source: F3AST (docs/papers.md#f3ast), with s = 0.25 or 0.5. FLGo has
    s = -log(1 - beta - 1e-6), with beta = 0.1 by default.

    Example:
        >>> import raysafl as fl
        >>> some = fl.participation.RelativeLogNormal(s=0.5)
        >>> float(some.rates(100, np.random.default_rng(0)).max())
        1.0
    """

    s: float = Field(gt=0, le=10, description="Standard deviation of log(X).")

    def law(self) -> tuple[str, dict[str, float]]:
        """Return scipy's `lognorm` with its argument."""
        return "lognorm", {"s": self.s}

    def rates(self, clients: int, rng: np.random.Generator) -> Floats:
        """Draw X for each client independently, and divide by the largest."""
        drawn = rng.lognormal(0.0, self.s, clients)
        rates: Floats = drawn / drawn.max()
        return rates


class Weibull(Distribution):
    """Density proportional to x^(k-1) exp(-(x / lam)^k).

    With the defaults, `Arbitrary` picks the last clients most often.

    Source: FAST, appendix B.1.3 (docs/papers.md#fast), with these defaults. The paper
    prints the factor lam / k in front; only k / lam makes it a density. The code of its
    authors divides the draws by 1.2, which is lam = 1 / 1.2.
    """

    k: float = Field(default=10.0, gt=0, description="Shape.")
    lam: float = Field(default=1.0, gt=0, description="Scale.")

    def law(self) -> tuple[str, dict[str, float]]:
        """Return scipy's `weibull_min` with its arguments."""
        return "weibull_min", {"c": self.k, "scale": self.lam}


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
