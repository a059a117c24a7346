"""Clients that are available at times: independently, with memory, or in turns."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializeAsAny, model_validator

from raysafl.core.participation import Cohort, Cohorts, Participation, PicksTogether
from raysafl.core.randomness import Key, Keys
from raysafl.participation.sampling import (
    Floats,
    Ints,
    Most,
    at_most,
    check_m,
    come,
    of_sizes,
    uniforms,
)

Rate = Annotated[float, Field(ge=0, le=1)]
AtLeastOne = Annotated[
    bool,
    Field(
        description="Whether one client participates in a round that would otherwise have no "
        "participants: the client that was nearest to it."
    ),
]


def per_client(
    name: str, value: float | Sequence[float], num_clients: int, may_be_0: bool = False
) -> Floats:
    """Return one number per client, [N], from a single number or a list.

    Raises:
        ValueError: a list has another length than the number of clients, or all numbers
            are 0 and must not be.
    """
    values: Floats = np.asarray(value, float)
    if values.ndim and len(values) != num_clients:
        raise ValueError(
            f"{name} has {len(values)} entries for N = {num_clients} clients; "
            "give one for each, or a single number for all"
        )
    if not values.any() and not may_be_0:
        raise ValueError(
            f"{name} is 0 for every client, so no client would ever participate; raise one"
        )
    return np.broadcast_to(values, num_clients)


def chains_as_texts(on_RN: NDArray[np.bool_]) -> list[str]:
    """Return the chains of each replicate as a text with 0 (off) or 1 (on) per client."""
    return [row_N.tobytes().decode() for row_N in on_RN + np.uint8(ord("0"))]


def chains_from_texts(texts: Sequence[str], num_clients: int) -> NDArray[np.bool_]:
    """Return whether each chain is on, [R, N], from what `chains_as_texts` returned."""
    digits = np.frombuffer("".join(texts).encode(), np.uint8)
    on_RN: NDArray[np.bool_] = digits.reshape(-1, num_clients) == ord("1")
    return on_RN


class Bernoulli(PicksTogether):
    """Each client participates with its own rate, independently of others and of the past.

    With `at_least_one`, if no client participates by chance, the client with the least
    u_i / rate_i does (u_i: its uniform draw).

    Source: FedAU, section 6 (docs/papers.md#fedau).
    """

    rate: Rate | list[Rate] = Field(
        description="Probability to participate, in [0, 1]: one for all, or one per client."
    )
    m: Most = None
    at_least_one: AtLeastOne = False

    def check(self, num_clients: int) -> None:
        """Raise ValueError if there is not one rate per client, or all are 0."""
        check_m(self.m, num_clients)
        per_client("rate", self.rate, num_clients)

    def choose(
        self, states: Sequence[Any], num_clients: int, keys: Keys
    ) -> tuple[list[Any], Cohorts]:
        """Draw for each client whether it participates."""
        rate_N = per_client("rate", self.rate, num_clients)
        u_RN = uniforms(num_clients, keys, "bernoulli")
        _, cohorts = come(rate_N, u_RN, self.at_least_one)
        return list(states), at_most(cohorts, self.m, keys)


class Markov(PicksTogether):
    """Each client is an on/off Markov chain with a given mean and correlation.

        P(on | on)  = mean + correlation (1 - mean)
        P(on | off) = mean (1 - correlation)

    The chains start in their stationary distribution. So a client is on with
    probability `mean` in every round, and a client's presence k rounds later has the
    correlation `correlation`^k. With `at_least_one`, if no client is on, the client with the
    least u_i / P(on) participates in this round (u_i: its uniform draw), and its chain
    stays off.

    The state is a text with 0 (off) or 1 (on) for each client.

    Source: FedAU, section 6 (docs/papers.md#fedau).
    """

    mean: Rate | list[Rate] = Field(
        description="Probability to be on, in [0, 1]: one for all clients, or one per client."
    )
    correlation: float = Field(
        gt=-1,
        lt=1,
        description="Correlation of a client's presence in consecutive rounds.",
    )
    m: Most = None
    at_least_one: AtLeastOne = False

    @model_validator(mode="after")
    def _is_a_chain(self) -> "Markov":
        # Both transition probabilities must be at least 0; a constant chain always is.
        for mean in set(np.unique(self.mean).tolist()) - {0.0, 1.0}:
            lowest = -min(mean / (1 - mean), (1 - mean) / mean)
            if self.correlation < lowest:
                raise ValueError(
                    f"no on/off chain of mean {mean} has correlation {self.correlation}; "
                    f"the least possible is {lowest:.6g}"
                )
        return self

    def check(self, num_clients: int) -> None:
        """Raise ValueError if there is not one mean per client, or all are 0."""
        check_m(self.m, num_clients)
        per_client("mean", self.mean, num_clients)

    def choose(
        self, states: Sequence[Any], num_clients: int, keys: Keys
    ) -> tuple[list[Any], Cohorts]:
        """Take one step of every chain."""
        mean_N = per_client("mean", self.mean, num_clients)
        rho = self.correlation
        # In the first round, the chains are in their stationary distribution.
        chance_RN = mean_N
        if states[0] is not None:
            on_RN = chains_from_texts(states, num_clients)
            chance_RN = np.where(on_RN, mean_N + rho * (1 - mean_N), mean_N * (1 - rho))
        u_RN = uniforms(num_clients, keys, "markov")
        on_RN, cohorts = come(chance_RN, u_RN, self.at_least_one)
        return chains_as_texts(on_RN), at_most(cohorts, self.m, keys)


class Cyclic(PicksTogether):
    """Groups take turns: round t is that of group floor((t + offset) / length) mod G.

    Source: FedAmplify, Wang and Ji 2022 (docs/papers.md#fedamplify). The program of
    Amplified SCAFFOLD (docs/papers.md#amplified-scaffold) has 5 groups and a random offset.
    """

    groups: Annotated[int, Field(gt=0)] | list[list[int]] = Field(
        description="The groups as lists of ids; or their number G, for G blocks of consecutive "
        "ids whose sizes differ by at most one."
    )
    length: int = Field(
        default=1, gt=0, description="Rounds that a group's turn takes."
    )
    offset: Annotated[int, Field(ge=0)] | Literal["random"] = Field(
        default=0,
        exclude_if=lambda offset: offset == 0,
        description='Rounds by which the turns are ahead; "random": drawn for each seed, '
        "uniformly from 0 to length - 1, so that the first turn is shorter.",
    )
    m: Most = None

    def group(self, number: int, num_clients: int) -> Ints:
        """Return the ids of the group with this number."""
        if not isinstance(self.groups, int):
            return np.array(self.groups[number], np.int64)
        # The first `more` groups have one client more than the others.
        each, more = divmod(num_clients, self.groups)
        return np.arange(
            number * each + min(number, more),
            (number + 1) * each + min(number + 1, more),
        )

    def check(self, num_clients: int) -> None:
        """Raise ValueError if a group or the offset cannot be as it is given."""
        check_m(self.m, num_clients)
        if self.offset == "random" and self.length == 1:
            raise ValueError(
                "turns of length=1 cannot begin within a turn; leave out offset, or give a "
                "length above 1"
            )
        if isinstance(self.groups, int):
            if self.groups > num_clients:
                raise ValueError(
                    f"groups = {self.groups}, but there are only N = {num_clients} clients; "
                    "lower groups"
                )
            return
        if self.groups == []:
            raise ValueError(
                "groups is empty: give a number of groups, or the ids of each"
            )
        for number, ids in enumerate(self.groups):
            known = all(0 <= i < num_clients for i in ids)
            if not ids or not known or len(set(ids)) < len(ids):
                raise ValueError(
                    f"group {number} must hold at least one id, each once and from 0 to "
                    f"{num_clients - 1}, not {ids}"
                )

    def choose(
        self, states: Sequence[Any], num_clients: int, keys: Keys
    ) -> tuple[list[Any], Cohorts]:
        """Return the group whose turn it is."""
        count = self.groups if isinstance(self.groups, int) else len(self.groups)
        ids = []
        for seed in keys.seeds_R.tolist():
            ahead = self.offset
            if isinstance(ahead, str):
                ahead = int(Key(seed)("offset").integers(self.length))
            number = (keys.round + ahead) // self.length % count
            ids.append(np.sort(self.group(number, num_clients)))
        cohorts = of_sizes(np.concatenate(ids), np.array([len(own) for own in ids]))
        return list(states), at_most(cohorts, self.m, keys)


class MinimumSeparation(Participation):
    """A client that participates in a round does not in the next `rounds` rounds.

    `base` says who is available; of those that need not wait, at most m participate. The
    state holds the state of `base` and the cohorts of the last rounds. With `Devices`, a client
    that does not report waits as well. In a `Snapshot`, only its own picks count, not enforced
    rounds, in which clients participate that would have to wait.

    Source: Debiased FedAvg (docs/papers.md#debiased), where R is the minimum separation.
    """

    base: SerializeAsAny[Participation] = Field(description="Who is available.")
    rounds: int = Field(gt=0, description="Rounds R that a client waits.")
    m: Most = None

    def check(self, num_clients: int) -> None:
        """Raise ValueError if `base` goes by an accuracy, or for fewer than m clients."""
        measured = type(self.base).measured_on != Participation.measured_on
        if measured or self.base.uses_accuracy or self.base.goes_by_passes:
            raise ValueError(
                "base cannot go by an accuracy; put the MinimumSeparation into the Snapshot"
            )
        check_m(self.m, num_clients)
        self.base.check(num_clients)

    def init(self) -> Any:
        """Return the state before round 0."""
        return {"base": self.base.init(), "recent": []}

    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, Cohort]:
        """Choose among the clients that are available and need not wait."""
        base, cohort = self.base.pick(state["base"], num_clients, key, accuracy)
        # The ids of a policy of the user's own may be numpy's, which are no JSON.
        there = np.asarray(cohort.ids).tolist()
        ids = sorted({*there}.difference(*state["recent"]))
        if self.m is not None and len(ids) > self.m:
            # One around others draws other numbers than they do.
            parts = self.base.components()
            others = sum(isinstance(part, MinimumSeparation) for part in parts)
            chosen = key("separation", others).choice(ids, self.m, replace=False)
            ids = sorted(chosen.tolist())
        recent = [*state["recent"], ids][-self.rounds :]
        return {"base": base, "recent": recent}, Cohort(ids)
