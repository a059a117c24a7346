"""placement."""

import heapq
from collections.abc import Sequence

EVEN = 1.1  # times the time of the evenest placement: what whole replicates may cost


def place(costs: Sequence[int], loads: Sequence[int]) -> list[list[int]]:
    """Longest first onto the least loaded actor; ties by number. Each share in rising order.

    `loads` is what each actor has to do before.
    """
    heap = [(load, actor) for actor, load in enumerate(loads)]
    heapq.heapify(heap)
    shares: list[list[int]] = [[] for _ in loads]
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, actor = heapq.heappop(heap)
        shares[actor].append(i)
        heapq.heappush(heap, (load + costs[i], actor))
    return [sorted(share) for share in shares]


def place_replicates(
    replicates: Sequence[int], costs: Sequence[int], loads: Sequence[int]
) -> list[list[int]]:
    """Tasks of one replicate together if that is about as even as `place`.

    Then a replicate's parameters and sums travel once.
    """
    members: dict[int, list[int]] = {}
    for i, replicate in enumerate(replicates):
        members.setdefault(replicate, []).append(i)
    groups = list(members.values())
    whole = place([sum(costs[i] for i in group) for group in groups], loads)
    together = [sorted(i for g in share for i in groups[g]) for share in whole]
    if _longest(together, costs, loads) * len(loads) <= EVEN * (sum(costs) + sum(loads)):
        return together  # no placement is shorter than the mean
    apart = place(costs, loads)
    even = _longest(together, costs, loads) <= EVEN * _longest(apart, costs, loads)
    return together if even else apart


def _longest(shares: list[list[int]], costs: Sequence[int], loads: Sequence[int]) -> int:
    return max(
        load + sum(costs[i] for i in share) for load, share in zip(loads, shares, strict=True)
    )
