"""Availability that changes with time: daily cycles, steps, arrivals and departures."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field, SerializeAsAny, model_validator

from raysafl.core.component import Component
from raysafl.core.participation import Cohorts, PicksTogether
from raysafl.core.problem import FederatedData
from raysafl.core.randomness import Key, Keys
from raysafl.participation.processes import (
    AtLeastOne,
    Rate,
    chains_as_texts,
    chains_from_texts,
    per_client,
)
from raysafl.participation.sampling import (
    Floats,
    Most,
    at_most,
    check_m,
    come,
    uniforms,
)

RoundNumber = Annotated[int, Field(ge=0)]
# The zones of the United States in hours, and about how much of the population has each.
US_ZONES = {-5.0: 0.48, -6.0: 0.29, -7.0: 0.07, -8.0: 0.16}


class Factor(Component):
    """A function of time, in rounds. Subclass it and define `at` to bring your own.

    Example:
        >>> import raysafl as fl
        >>> fl.participation.Steps(values=[1.0, 0.4], length=10).at(np.array([9.0, 10.0, 20.0]))
        array([1. , 0.4, 1. ])
    """

    abstract: ClassVar[bool] = True

    @abstractmethod
    def at(self, t_N: Floats) -> Floats:
        """Return the factor at the times t_N, [N], which may be fractions or negative."""


class Sine(Factor):
    """The factor at time t is mean + amplitude sin(2 pi t / period).

    Source: FedAWE (docs/papers.md#fedawe), whose authors' program has amplitude g, mean
    1 - g and period 20, with g = 0.3, 0.2 or 0.1.
    """

    amplitude: float = Field(ge=0, description="How far it departs from its mean.")
    mean: float = Field(gt=0, description="Mean over a period.")
    period: float = Field(gt=0, description="Rounds of a period.")

    def at(self, t_N: Floats) -> Floats:
        """Return the sine at these times."""
        return self.mean + self.amplitude * np.sin(2 * np.pi * t_N / self.period)


class Steps(Factor):
    """The factor at time t is values[floor(t / length) mod (number of values)].

    24 values of length rounds_per_day / 24 are a table of hours.

    Source: FedAWE (docs/papers.md#fedawe), whose authors' program has the values 1 and
    0.4 and the length 10 ("staircase").
    """

    values: list[Annotated[float, Field(ge=0)]] = Field(
        min_length=1, description="The values in turn; after the last, the first again."
    )
    length: float = Field(gt=0, description="Rounds that each value lasts.")

    @model_validator(mode="after")
    def _is_not_0(self) -> "Steps":
        if not any(self.values):
            raise ValueError(
                "values are all 0, so no client would ever be available; raise one"
            )
        return self

    def at(self, t_N: Floats) -> Floats:
        """Return the values of these times."""
        number_N = np.floor(t_N / self.length).astype(np.int64) % len(self.values)
        return np.asarray(self.values, float)[number_N]


class Varying(PicksTogether):
    """Each client is available with a probability that changes with time.

    In round t, client i is available with the probability

        p_it = base_i * factor(t + shift_i), at most 1 and at least 0.

    It is 0 if that product is less than `least`, before round first_i and after round
    last_i. With correlation 0, a client's rounds are independent of one another. Otherwise
    each client is an on/off Markov chain, whose first state is on with probability p_i0,
    and which then has with nu = correlation

        P(on | on)  = (1 - nu) p_it + nu min(1, p_it / p_i,t-1)
        P(on | off) = (1 - nu) p_it + nu max(0, (p_it - p_i,t-1) / (1 - p_i,t-1)).

    So a client is on with probability exactly p_it in every round. Where p_it stays the
    same, this is `Markov`, and a session lasts on average 1 / ((1 - nu) (1 - p_it)) rounds.

    With `at_least_one`, if no client is on although one might be, the client with the
    least u_i / P(on) participates in this round (u_i: its uniform draw), and its chain
    stays off. The state is None with correlation 0, else a text as that of `Markov`.

    Source: FedAWE (docs/papers.md#fedawe), with correlation 0, base rates of
    `rates_by_labels`, and `least` = 0.1 in its dynamic "interleaved". No paper says what a
    chain does whose probability changes; the two equations are our choice.
    """

    base: Rate | list[Rate] = Field(
        description="What the factor multiplies: one for all clients, or one per client."
    )
    factor: SerializeAsAny[Factor] = Field(description="How rates change with time.")
    shift: float | list[float] = Field(
        default=0.0,
        description="By how many rounds clients are ahead in time: one for all, or one per "
        "client. A zone of h hours is ahead by h * rounds_per_day / 24.",
    )
    least: float = Field(default=0.0, ge=0, le=1, description="Less counts as 0.")
    first: RoundNumber | list[RoundNumber] = Field(
        default=0, description="The first round of all clients, or of each."
    )
    last: RoundNumber | list[RoundNumber] | None = Field(
        default=None, description="The last round; None: no client leaves."
    )
    correlation: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Correlation nu of consecutive rounds of equal probability.",
    )
    m: Most = None
    at_least_one: AtLeastOne = False

    def check(self, num_clients: int) -> None:
        """Raise ValueError if a list has another length, or a client leaves too early."""
        check_m(self.m, num_clients)
        self.probs(num_clients, 0)
        if self.last is not None and np.less(self.last, self.first).any():
            raise ValueError(
                f"last = {self.last} is before first = {self.first} for a client; raise last"
            )

    def probs(self, num_clients: int, t: int) -> Floats:
        """Return the probability p_it of each client in round t, [N]."""
        base_N = per_client("base", self.base, num_clients)
        shift_N = per_client("shift", self.shift, num_clients, may_be_0=True)
        first_N = per_client("first", self.first, num_clients, may_be_0=True)
        last = np.inf if self.last is None else self.last
        last_N = per_client("last", last, num_clients, may_be_0=True)
        p_N = np.clip(base_N * self.factor.at(t + shift_N), 0.0, 1.0)
        is_there_N = (first_N <= t) & (t <= last_N) & (p_N >= self.least)
        return np.where(is_there_N, p_N, 0.0)

    def choose(
        self, states: Sequence[Any], num_clients: int, keys: Keys
    ) -> tuple[list[Any], Cohorts]:
        """Draw for each client whether it is available."""
        p_N = self.probs(num_clients, keys.round)
        nu = self.correlation
        chance_RN = p_N
        if states[0] is not None:
            before_N = self.probs(num_clients, keys.round - 1)
            # The bounds avoid divisions by zero: no chain of probability 0 is on, and none
            # of probability 1 is off.
            stays_N = np.minimum(1, p_N / np.maximum(before_N, 1e-300))
            joins_N = np.maximum(0, (p_N - before_N) / np.maximum(1 - before_N, 1e-300))
            kept_RN = np.where(chains_from_texts(states, num_clients), stays_N, joins_N)
            chance_RN = (1 - nu) * p_N + nu * kept_RN
        u_RN = uniforms(num_clients, keys, "varying")
        on_RN, cohorts = come(chance_RN, u_RN, self.at_least_one and bool(p_N.any()))
        after = chains_as_texts(on_RN) if nu else list(states)
        return after, at_most(cohorts, self.m, keys)


def diurnal(
    clients: int,
    rounds_per_day: float,
    ratio: float = 4.0,
    peak: float = 3.0,
    zones: Mapping[float, float] = US_ZONES,
) -> Varying:
    """Return clients that are available by night; round 0 begins at midnight UTC.

    At hour h of its own zone, a client's factor is proportional to

        (ratio + 1) + (ratio - 1) cos(2 pi (h - peak) / 24), and 1 at h = peak.

    Take `.replace(base=..., correlation=..., m=...)` for other rates, for sessions or for a
    limit.

    Args:
        clients: Number of clients N.
        rounds_per_day: Rounds of 24 hours.
        ratio: The largest factor divided by the least, at least 1.
        peak: The hour of the largest factor.
        zones: The weight of each zone by its hours ahead of UTC, in the clients' order.

    Raises:
        ValueError: There is no client or no zone, or a number is out of range.

    Source: Bonawitz et al. 2019 (docs/papers.md#bonawitz) for the ratio. The cosine, its
    peak at 3 a.m. and the weights of the zones of the United States are our choice.
    """
    if clients < 1 or not zones or min(zones.values()) <= 0:
        raise ValueError(
            f"give a client at least, and zones with weights above 0, not {clients} and {zones}"
        )
    if not ratio >= 1:
        raise ValueError(f"ratio must be at least 1, not {ratio}")
    edges = np.cumsum([*zones.values()]) / sum(zones.values())
    zone_N = np.searchsorted(edges, (np.arange(clients) + 0.5) / clients)
    # A sine has its peak after a quarter of its period.
    shift_N = (np.array([*zones])[zone_N] + 6 - peak) * rounds_per_day / 24
    swing = (ratio - 1) / (2 * ratio)
    sine = Sine(amplitude=swing, mean=1 - swing, period=rounds_per_day)
    return Varying(base=1.0, factor=sine, shift=shift_N.tolist())


def rates_by_labels(
    data: FederatedData, seed: int = 0, rate_of_class: Sequence[float] | None = None
) -> list[float]:
    """Return base rates p_i = sum over classes c of share_ic u_c, one per client.

    share_ic is the fraction of client i's training samples that are of class c. A client
    without samples has the rate 0.

    Args:
        data: The federation of the run. Where its partition differs between seeds, the
            rates fit that of this seed alone.
        seed: The seed of the replicate, by which the data are split and u is drawn.
        rate_of_class: u_c for each class; None: drawn uniformly from [0, 1) for the first
            half of the classes (rounded down), and from [0, 0.5) for the others.

    Raises:
        ValueError: The samples have no classes, or there is not one rate for each.

    Source: FedAWE (docs/papers.md#fedawe), as in its authors' program.
    """
    dataset = data.load()
    C = dataset.num_classes
    labels = dataset.train.y
    drawn_C = Key(seed)("rates of classes").random(C) / (1 + (np.arange(C) >= C // 2))
    u_C = np.asarray(drawn_C if rate_of_class is None else rate_of_class)
    if not dataset.has_labels or u_C.shape != (C,):
        raise ValueError(
            f"rate_of_class must have one rate for each class; '{dataset.name}' has {C} "
            f"classes{'' if dataset.has_labels else ', and not one for each sample'}"
        )
    return [
        float(np.bincount(labels[own], minlength=C) / max(1, len(own)) @ u_C)
        for own in data.split(dataset, seed).clients
    ]
