"""Where the replicates of a group stand between two rounds, as columns.

A column has an entry or a row for each replicate, so a round costs Python about as much for a
thousand replicates as for one.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.algorithm import State
from raysafl.core.participation import Cohort, Cohorts
from raysafl.core.work import Floats
from raysafl.simulation.replicate import Counts, Progress, Standing
from raysafl.simulation.turns import replicate_state, stacked

Flags: TypeAlias = NDArray[np.bool_]
# Of `Counts`, what a replicate has spent since its last record.
SPENT = np.dtype(
    [
        *((name, np.int64) for name in ("snapshots", "server_rounds", "steps")),
        *((name, np.int64) for name in ("bytes_down", "bytes_up")),
        ("virtual_seconds", np.float64),
    ],
    align=True,
)
# All numbers of a replicate: those, whether any client has trained, and two of `Standing`,
# which are NaN where there is none.
NUMBERS = np.dtype(
    [
        ("spent", SPENT),
        ("has_trained", np.bool_),
        ("train_accuracy", np.float64),
        ("train_loss", np.float64),
    ],
    align=True,
)


@dataclass
class Columns:
    """Where the replicates of a group stand between two rounds.

    Args:
        state: The algorithms' states, without `clients`: each tensor has an axis of replicates.
        clients: The vectors of each replicate's clients.
        policies: The state of each replicate's policy.
        numbers_R: The `NUMBERS`.
        rounds: Of each round since the last record the participants, and whether clients
            have trained, [R].
        reached: `Standing.reached` of each.
        progress: `Standing.progress` of each.
    """

    state: State
    clients: list[Mapping[int, Tensor]]
    policies: list[Any]
    numbers_R: NDArray[Any]
    rounds: list[tuple[Cohorts, Flags]]
    reached: list[set[int]]
    progress: list[dict[int, Progress]]

    @classmethod
    def of(cls, standings: Sequence[Standing]) -> "Columns":
        """Return where some replicates stand, all of them at one round."""
        counts = [own.counts for own in standings]
        numbers_R = np.zeros(len(standings), NUMBERS)
        numbers_R["has_trained"] = [own.train_loss is not None for own in standings]
        numbers_R["train_accuracy"] = _or_nan(own.train_accuracy for own in standings)
        numbers_R["train_loss"] = _or_nan(own.train_loss for own in standings)
        for name in SPENT.names or ():
            numbers_R["spent"][name] = [getattr(own, name) for own in counts]
        return cls(
            state=stacked([own.state for own in standings]),
            clients=[own.state.clients for own in standings],
            policies=[own.policy for own in standings],
            numbers_R=numbers_R,
            rounds=[
                (
                    Cohorts.of(
                        [Cohort(own.cohorts[t], own.enforced[t]) for own in counts]
                    ),
                    np.array([own.trained[t] for own in counts]),
                )
                for t in range(len(counts[0].cohorts))
            ],
            reached=[own.reached for own in standings],
            progress=[own.progress for own in standings],
        )

    def standing(self, place: int, round: int) -> Standing:
        """Return where a replicate stands before a round."""
        return Standing(
            state=replicate_state(self.state, place, self.clients[place]),
            policy=self.policies[place],
            round=round,
            train_accuracy=self.accuracy(place),
            train_loss=self.loss(place),
            counts=self.counts[place],
            reached=self.reached[place],
            progress=self.progress[place],
        )

    def accuracy(self, place: int) -> float | None:
        """Return `Standing.train_accuracy` of a replicate."""
        value = float(self.numbers_R["train_accuracy"][place])
        return None if math.isnan(value) else value

    def loss(self, place: int) -> float | None:
        """Return `Standing.train_loss` of a replicate."""
        has_trained = self.numbers_R["has_trained"][place]
        return float(self.numbers_R["train_loss"][place]) if has_trained else None

    @cached_property
    def counts(self) -> list[Counts]:
        """Who took part, and what each replicate has spent, since its last record."""
        rounds = [
            (cohorts.lists(), cohorts.enforced_R.tolist(), trained_R.tolist())
            for cohorts, trained_R in self.rounds
        ]
        return [
            Counts(
                cohorts=[ids[place] for ids, _, _ in rounds],
                enforced=[enforced[place] for _, enforced, _ in rounds],
                trained=[trained[place] for _, _, trained in rounds],
                **dict(zip(SPENT.names or (), spent, strict=True)),
            )
            for place, spent in enumerate(self.numbers_R["spent"].tolist())
        ]


def finite_rows(row_RP: Tensor) -> Flags:
    """Return whether all numbers of each row are finite.

    If the sum is finite, every number is; summing takes a tenth of the time of
    looking at each. The sum of finite numbers may overflow, and only then each is
    looked at.
    """
    finite_R: Flags = np.isfinite(row_RP.sum(1).numpy())
    for r in () if finite_R.all() else np.flatnonzero(~finite_R).tolist():
        finite_R[r] = bool(row_RP[r].isfinite().all())
    return finite_R


def _or_nan(values: Iterable[float | None]) -> Floats:
    """Return numbers as an array, NaN where there is none."""
    return np.array([math.nan if own is None else own for own in values])
