"""Which actor trains which tasks: a deterministic, nearly even distribution.

Where a task is trained does not change its result, so this is only a matter of speed.
"""

import heapq
from collections.abc import Sequence

# Replicates are kept whole if that takes at most this many times as long as the evenest
# distribution, because the parameters and the sum of a replicate then travel only once.
TOLERANCE = 1.1


def assign_longest_first(costs: Sequence[int], loads: Sequence[int]) -> list[list[int]]:
    """Distribute tasks over actors: the longest first, each to the least loaded actor.

    Args:
        costs: The cost of each task, in any unit of time.
        loads: What each actor has to do already, in the same unit.

    Returns:
        For each actor, the indices of its tasks in ascending order. Ties go to the task
        and the actor with the lowest index.

    Example:
        >>> assign_longest_first(costs=[3, 1, 2, 2], loads=[0, 0])
        [[0, 1], [2, 3]]
    """
    heap = [(load, actor) for actor, load in enumerate(loads)]
    heapq.heapify(heap)
    shares: list[list[int]] = [[] for _ in loads]
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, actor = heapq.heappop(heap)
        shares[actor].append(i)
        heapq.heappush(heap, (load + costs[i], actor))
    return [sorted(share) for share in shares]


def assign_replicates(
    replicates: Sequence[int], costs: Sequence[int], loads: Sequence[int]
) -> list[list[int]]:
    """Distribute tasks over actors, each replicate as a whole if that is about as even.

    Args:
        replicates: The number of each task's replicate.
        costs: The cost of each task, in any unit of time.
        loads: What each actor has to do already, in the same unit.

    Returns:
        For each actor, the indices of its tasks in ascending order.

    Example:
        >>> assign_replicates([0, 1, 0, 1], costs=[5, 5, 5, 5], loads=[0, 0])
        [[0, 2], [1, 3]]
    """
    members: dict[int, list[int]] = {}
    for i, replicate in enumerate(replicates):
        members.setdefault(replicate, []).append(i)
    groups = list(members.values())

    group_costs = [sum(costs[i] for i in group) for group in groups]
    whole = assign_longest_first(group_costs, loads)
    together = [sorted(i for g in share for i in groups[g]) for share in whole]
    time_together = _time(together, costs, loads)

    # No distribution is faster than the mean over actors, so a comparison with it comes
    # first.
    mean_time = (sum(costs) + sum(loads)) / len(loads)
    if time_together <= TOLERANCE * mean_time:
        return together
    apart = assign_longest_first(costs, loads)
    return (
        together if time_together <= TOLERANCE * _time(apart, costs, loads) else apart
    )


def _time(shares: list[list[int]], costs: Sequence[int], loads: Sequence[int]) -> int:
    """Return when the last actor is done."""
    return max(
        load + sum(costs[i] for i in share)
        for load, share in zip(loads, shares, strict=True)
    )
