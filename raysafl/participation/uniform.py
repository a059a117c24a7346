"""Uniform cohorts: all clients, m of all clients, or m of those that are ever available."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from raysafl.core.participation import Cohorts, PicksTogether
from raysafl.core.randomness import Keys
from raysafl.participation.sampling import check_m, draw, of_one_size


class Full(PicksTogether):
    """Every client participates in every round.

    Source: McMahan et al. 2017, with their fraction of clients C = 1
    (docs/papers.md#fedavg).
    """

    def choose(
        self, states: Sequence[Any], num_clients: int, keys: Keys
    ) -> tuple[list[Any], Cohorts]:
        """Return all clients."""
        ids_RN = np.tile(np.arange(num_clients), (len(states), 1))
        return list(states), of_one_size(ids_RN, enforced=True)


class Uniform(PicksTogether):
    """m of all clients participate in each round, drawn uniformly without replacement.

    Source: McMahan et al. 2017 (docs/papers.md#fedavg).

    Example:
        >>> import raysafl as fl
        >>> policy = fl.Uniform(m=3)
        >>> state, cohort = policy.pick(policy.init(), 10, fl.algorithms.Key(0, 0), None)
        >>> len(cohort.ids), cohort.ids == sorted(cohort.ids)
        (3, True)
    """

    m: int = Field(gt=0, description="Number of clients in each round.")

    def check(self, num_clients: int) -> None:
        """Raise ValueError if there are fewer than m clients."""
        check_m(self.m, num_clients)

    def choose(
        self, states: Sequence[Any], num_clients: int, keys: Keys
    ) -> tuple[list[Any], Cohorts]:
        """Draw m of all clients uniformly."""
        count_R = np.full(len(states), num_clients)
        ids_RM = draw(count_R, self.m, keys)
        return list(states), of_one_size(ids_RM, enforced=True)


class Absent(PicksTogether):
    """s clients never participate; in each round, m of the others do, drawn uniformly.

    Source: SAFARI, section 5 (docs/papers.md#safari). The paper leaves open which
    clients are absent. By default it is those with the last s ids; `clients` names others.
    Where clients are alike but for chance (`Iid`, `Shards`, `IndependentClasses`,
    `Dirichlet`), this loses no generality. `ClassesPerClient` and `DealtClasses` assign
    classes to one client after another. Under the first, the participating clients hold more
    of the classes than if s random clients were absent: with 10 clients, 10 classes, p = 2
    and s = 4 no class is lost, and 1.3 are lost at random. Under the second they hold fewer.
    `ByColumn` orders clients by their names.
    """

    s: int = Field(ge=0, description="Number of clients that never participate.")
    m: int = Field(gt=0, description="Number of clients in each round.")
    clients: list[int] | None = Field(
        default=None,
        description="Ids of the clients that never participate; None: the last s.",
    )

    def check(self, num_clients: int) -> None:
        """Check that m clients can participate, and that `clients` names s existing clients.

        Raises:
            ValueError: m exceeds the number of clients that may participate, or `clients`
                does not name s existing clients.
        """
        if self.m > num_clients - self.s:
            raise ValueError(
                f"m = {self.m} clients a round, but only N - s = {num_clients} - {self.s} = "
                f"{num_clients - self.s} ever participate; lower m or s, or give "
                "Federation(clients=...) more"
            )
        if self.clients is not None:
            unknown = [i for i in self.clients if not 0 <= i < num_clients]
            if unknown or not len(self.clients) == len({*self.clients}) == self.s:
                raise ValueError(
                    f"clients must be s = {self.s} distinct ids from 0 to {num_clients - 1}, "
                    f"not {self.clients}"
                )

    def choose(
        self, states: Sequence[Any], num_clients: int, keys: Keys
    ) -> tuple[list[Any], Cohorts]:
        """Draw m of the clients that are not absent."""
        # These are positions in the list of the other clients. By default the last
        # clients are absent, and then position k is id k.
        count_R = np.full(len(states), num_clients - self.s)
        ids_RM = draw(count_R, self.m, keys)
        if self.clients is not None:
            # Position k among the others is id k + (absent ids up to there).
            away = np.sort(self.clients)
            ids_RM += np.searchsorted(away - np.arange(self.s), ids_RM, side="right")
        return list(states), of_one_size(ids_RM)
