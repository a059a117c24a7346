"""Who comes to several replicates in a round, whatever policy they have."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysafl.core.participation import Cohort, Cohorts, Participation
from raysafl.core.randomness import Key
from raysafl.simulation.checks import checked_pick


def pick_all(
    policy: Participation,
    states: Sequence[Any],
    num_clients: int,
    round: int,
    seeds_R: NDArray[np.uint64],
    accuracies: Sequence[float | None],
) -> tuple[list[Any], Cohorts]:
    """Choose the clients of several replicates in a round.

    A policy that does not pick for all of them at once is asked for one after another, and
    what it picks is checked.

    Args:
        policy: The policy of all replicates.
        states: Its state in each replicate.
        num_clients: The number of all clients.
        round: The number of the round.
        seeds_R: The seed of each replicate.
        accuracies: The training accuracy of each replicate, see `Participation.pick`.

    Returns:
        The new state of each replicate, and the cohorts.

    Raises:
        ValueError: A policy of the user's own picked what is no cohort.
    """
    together = policy.pick_all(states, num_clients, round, seeds_R, accuracies)
    if together is not None:
        return together
    after: list[Any] = []
    cohorts: list[Cohort] = []
    for state, seed, accuracy in zip(states, seeds_R, accuracies, strict=True):
        picked = policy.pick(state, num_clients, Key(int(seed), round), accuracy)
        new, cohort = checked_pick(policy, picked, num_clients, round)
        after.append(new)
        cohorts.append(cohort)
    return after, Cohorts.of(cohorts)
