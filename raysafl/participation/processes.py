"""Clients that come and go by themselves: independent, with memory, in turns."""

from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from raysafl.core.participation import Cohort, Participation
from raysafl.core.randomness import Key
from raysafl.participation.sampling import Floats, Ints, at_most, check_m, come

Rate = Annotated[float, Field(ge=0, le=1)]


def per_client(name: str, value: float | list[float], num_clients: int) -> Floats:
    """One number for each client. Raises ValueError if a list has another length, or only 0."""
    values: Floats = np.asarray(value, float)
    if values.ndim and len(values) != num_clients:
        raise ValueError(
            f"{name} has {len(values)} entries for M = {num_clients} clients; "
            "give one for each, or a single number for all"
        )
    if not values.any():
        raise ValueError(f"{name} is 0 for every client, so nobody would ever come; raise one")
    return np.broadcast_to(values, num_clients)


class Bernoulli(Participation):
    """Each client comes with its rate, independent of the others and the past (FedAU, section 6).

    `rate` is one number for all, or a list with one for each client. If nobody comes by chance,
    the client with the least u_i / rate_i does (u_i: its uniform draw). With `m`, at most m
    of those that came are kept, uniformly.
    """

    rate: Rate | list[Rate]
    m: int | None = Field(default=None, gt=0)

    def check(self, num_clients: int) -> None:
        """One rate for each client, not all zero."""
        check_m(self.m, num_clients)
        per_client("rate", self.rate, num_clients)

    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, Cohort]:
        """One coin for each client."""
        _, ids = come(per_client("rate", self.rate, num_clients), key("bernoulli"))
        return state, Cohort(at_most(ids, self.m, key))


class Markov(Participation):
    """Each client is an on/off Markov chain of given mean and correlation (FedAU, section 6).

    P(on | on) = mean + correlation (1 - mean),    P(on | off) = mean (1 - correlation),

    started in the stationary law, so that a client is on with probability `mean` in every
    round, and two rounds that lie k apart have correlation^k. `mean` is one number, or a list
    with one for each client. If nobody is on, the client with the least u_i / P(on) comes for
    this round; its chain stays off. With `m`, at most m of those that are on, uniformly.

    The state is the list of all clients' 0 (off) or 1 (on).
    """

    mean: Rate | list[Rate]
    correlation: float = Field(gt=-1, lt=1)
    m: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _is_a_chain(self) -> "Markov":
        for mean in set(np.unique(self.mean).tolist()) - {0.0, 1.0}:
            lowest = -min(mean / (1 - mean), (1 - mean) / mean)
            if self.correlation < lowest:
                raise ValueError(
                    f"no on/off chain of mean {mean} has correlation {self.correlation}; "
                    f"the least possible is {lowest:.6g}"
                )
        return self

    def check(self, num_clients: int) -> None:
        """One mean for each client, not all zero."""
        check_m(self.m, num_clients)
        per_client("mean", self.mean, num_clients)

    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, Cohort]:
        """One step of every chain."""
        mean_M, rho = per_client("mean", self.mean, num_clients), self.correlation
        chance_M = mean_M
        if state is not None:
            on_M = np.asarray(state, bool)
            chance_M = np.where(on_M, mean_M + rho * (1 - mean_M), mean_M * (1 - rho))
        on_M, ids = come(chance_M, key("markov"))
        return on_M.astype(int).tolist(), Cohort(at_most(ids, self.m, key))


class Cyclic(Participation):
    """Groups of clients take turns, `length` rounds each (FedAmplify, Wang and Ji 2022).

    In round t the group number floor(t / length) mod G is there. `groups` is G, and the clients
    are cut into G blocks of consecutive ids whose sizes differ by one at most; or the list of
    the groups themselves. All of the group come; with `m`, at most m of it, uniformly.
    """

    groups: Annotated[int, Field(gt=0)] | list[list[int]]
    length: int = Field(default=1, gt=0)
    m: int | None = Field(default=None, gt=0)

    def group(self, number: int, num_clients: int) -> Ints:
        """The ids of a group."""
        if not isinstance(self.groups, int):
            return np.array(self.groups[number], np.int64)
        each, more = divmod(num_clients, self.groups)
        return np.arange(
            number * each + min(number, more), (number + 1) * each + min(number + 1, more)
        )

    def check(self, num_clients: int) -> None:
        """No group is empty, repeats a client or names one that does not exist."""
        check_m(self.m, num_clients)
        if isinstance(self.groups, int):
            if self.groups > num_clients:
                raise ValueError(
                    f"groups = {self.groups} groups cannot be made of M = {num_clients} clients"
                )
            return
        if self.groups == []:
            raise ValueError("groups is empty: give a number of groups, or the ids of each")
        for number, ids in enumerate(self.groups):
            known = all(0 <= i < num_clients for i in ids)
            if not ids or not known or len(set(ids)) < len(ids):
                raise ValueError(
                    f"group {number} must hold at least one id, each once and from 0 to "
                    f"{num_clients - 1}, not {ids}"
                )

    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, Cohort]:
        """The group whose turn it is."""
        count = self.groups if isinstance(self.groups, int) else len(self.groups)
        turn = key.round // self.length % count
        return state, Cohort(at_most(self.group(turn, num_clients), self.m, key))
