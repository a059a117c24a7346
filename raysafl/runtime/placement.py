"""Which actor trains which tasks: a deterministic, nearly even distribution.

Where a task is trained does not change its result, so this is only a matter of speed.
"""

import heapq
from collections.abc import Sequence

# Cells are kept whole if that takes at most this many times as long as the evenest
# distribution, because the parameters and the sum of a cell then travel only once.
TOLERANCE = 1.1


def assign_longest_first(costs: Sequence[int], actors: int) -> list[list[int]]:
    """Distribute tasks over actors: the longest first, each to the least loaded actor.

    Args:
        costs: The cost of each task, in any unit of time.
        actors: The number of actors.

    Returns:
        For each actor, the indices of its tasks in ascending order. Ties go to the task
        and the actor with the lowest index.

    Example:
        >>> assign_longest_first(costs=[3, 1, 2, 2], actors=2)
        [[0, 1], [2, 3]]
    """
    if actors == 1:
        return [list(range(len(costs)))]
    heap = [(0, actor) for actor in range(actors)]
    shares: list[list[int]] = [[] for _ in heap]
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, actor = heapq.heappop(heap)
        shares[actor].append(i)
        heapq.heappush(heap, (load + costs[i], actor))
    return [sorted(share) for share in shares]


def assign_cells(
    cells: Sequence[int], costs: Sequence[int], actors: int
) -> list[list[int]]:
    """Distribute tasks over actors, each cell as a whole if that is about as even.

    Args:
        cells: The number of each task's cell.
        costs: The cost of each task, in any unit of time.
        actors: The number of actors.

    Returns:
        For each actor, the indices of its tasks in ascending order.

    Example:
        >>> assign_cells([0, 1, 0, 1], costs=[5, 5, 5, 5], actors=2)
        [[0, 2], [1, 3]]
    """
    members: dict[int, list[int]] = {}
    for i, cell in enumerate(cells):
        members.setdefault(cell, []).append(i)
    groups = list(members.values())

    group_costs = [sum(costs[i] for i in group) for group in groups]
    whole = assign_longest_first(group_costs, actors)
    together = [sorted(i for g in share for i in groups[g]) for share in whole]
    time_together = _time(together, costs)

    # No distribution is faster than the mean over actors, so a comparison with it comes
    # first.
    if time_together * actors <= TOLERANCE * sum(costs):
        return together
    apart = assign_longest_first(costs, actors)
    return together if time_together <= TOLERANCE * _time(apart, costs) else apart


def _time(shares: list[list[int]], costs: Sequence[int]) -> int:
    """Return when the last actor is done."""
    return max(sum(costs[i] for i in share) for share in shares)
