"""Cohorts without preference: everyone, m of all, m of those that ever come."""

from typing import Any

import numpy as np
from pydantic import Field

from raysafl.core.participation import Cohort, Participation
from raysafl.core.randomness import Key
from raysafl.participation.sampling import ascending, check_m, draw


class Full(Participation):
    """Every client comes in every round (FedAvg with C = 1, McMahan et al. 2017)."""

    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, Cohort]:
        """All of them."""
        return state, Cohort(list(range(num_clients)), enforced=True)


class Uniform(Participation):
    """m of all M clients, uniformly without replacement (McMahan et al. 2017)."""

    m: int = Field(gt=0)

    def check(self, num_clients: int) -> None:
        """m is at most M."""
        check_m(self.m, num_clients)

    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, Cohort]:
        """A uniform draw."""
        return state, Cohort(ascending(draw(num_clients, self.m, key)), enforced=True)


class Absent(Participation):
    """s clients never come; m a round, uniformly from the other M - s (SAFARI, section 5).

    Which clients stay away is open in the paper. Default: the last s ids, which is no loss of
    generality since partitions give classes to ids at random; or name them in `clients`.
    """

    s: int = Field(ge=0)
    m: int = Field(gt=0)
    clients: list[int] | None = None

    def absentees(self, num_clients: int) -> set[int]:
        """The ids that never come."""
        return set(
            range(num_clients - self.s, num_clients) if self.clients is None else self.clients
        )

    def check(self, num_clients: int) -> None:
        """m <= M - s, and the ids in `clients` exist and are s in number."""
        if self.m > num_clients - self.s:
            raise ValueError(
                f"m = {self.m} clients a round cannot come from M - s = {num_clients} - {self.s} "
                f"= {num_clients - self.s}; lower m or s"
            )
        if self.clients is not None:
            unknown = [i for i in self.clients if not 0 <= i < num_clients]
            if unknown or len(set(self.clients)) != self.s:
                raise ValueError(
                    f"clients must be s = {self.s} distinct ids from 0 to {num_clients - 1}, "
                    f"not {self.clients}"
                )

    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, Cohort]:
        """A uniform draw from those that can come."""
        ids = draw(num_clients - self.s, self.m, key)  # among those that can come, by number
        if self.clients is not None:
            away = np.sort(self.clients)
            ids += np.searchsorted(away - np.arange(self.s), ids, side="right")
        return state, Cohort(ascending(ids))
