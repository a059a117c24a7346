"""How cohorts are drawn: pure functions of a `Key` or of a random generator."""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raysafl.core.randomness import Key, checksum

# The number of clients up to which cohorts are drawn by a compiled loop, which takes a fifth
# of the time that it takes to make numpy's generator and to draw. Of more clients numpy may
# draw in another way.
MOST_COMPILED = 10_000
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# The largest number of clients of a cohort, see `at_most`.
Most = Annotated[
    int | None,
    Field(
        gt=0,
        description="If more than m clients come, m of them are drawn uniformly; None: "
        "no limit.",
    ),
]


def check_m(m: int | None, num_clients: int) -> None:
    """Check that a cohort of m clients can be drawn.

    Raises:
        ValueError: m is larger than the number of clients.
    """
    if m is not None and m > num_clients:
        raise ValueError(
            f"m = {m} clients a round, but there are N = {num_clients}; lower m, or give "
            "Federation(clients=...) more"
        )


def ascending(ids: Ints) -> list[int]:
    """Return client ids as a sorted list, as a cohort holds them."""
    ids = ids.copy()
    ids.sort()
    cohort: list[int] = ids.tolist()
    return cohort


def draw(count: int, m: int, key: Key, purpose: str = "cohort") -> Ints:
    """Draw m distinct numbers below `count` uniformly, in random order.

    They are those of numpy's `key(purpose).choice(count, m, replace=False)`.
    """
    if count > MOST_COMPILED or m > count:
        return key(purpose).choice(count, m, replace=False)
    # Imported here, because numba takes some tenths of a second to import.
    from raysafl.kernels.draws import choose_clients

    chosen = np.empty(m, np.int64)
    choose_clients(np.uint64(key.seed), checksum(purpose), key.round, count, chosen)
    return chosen


def at_most(ids: Ints, m: int | None, key: Key) -> list[int]:
    """Return these clients, sorted; if they are more than m, draw m of them uniformly."""
    if m is not None and len(ids) > m:
        ids = ids[draw(len(ids), m, key, "at most")]
    return ascending(ids)


def weighted(weight_N: Floats, m: int, rng: np.random.Generator) -> list[int]:
    """Draw m distinct clients one after another, in proportion to the weights of the rest.

    The draw is done as an exponential race, which has the same distribution (Efraimidis
    and Spirakis 2006, docs/papers.md#efraimidis-spirakis): client i arrives at E_i /
    weight_i with independent exponential E_i, and the first m are taken. Clients of
    weight 0 arrive last, in the order of their numbers.

    Args:
        weight_N: weight of each client, at least 0.
        m: number of clients to draw.
        rng: the only source of randomness.
    """
    wait: Floats = np.log(rng.standard_exponential(len(weight_N)))
    with np.errstate(divide="ignore"):
        arrival = wait - np.log(weight_N)
    last = np.partition(arrival, m - 1)[m - 1]
    first = np.flatnonzero(arrival < last)
    tied = np.flatnonzero(arrival == last)[: m - len(first)]
    return ascending(np.concatenate([first, tied]))


def come(
    chance_N: Floats, rng: np.random.Generator, at_least_one: bool
) -> tuple[NDArray[np.bool_], Ints]:
    """Let each client come with its own probability, independently of the others.

    Client i comes if u_i < chance_i, with u_i uniform on [0, 1).

    Args:
        chance_N: the probability of each client.
        rng: the only source of randomness.
        at_least_one: whether, if nobody comes, the cohort is the client with the least
            u_i / chance_i, as if all probabilities were raised together until somebody
            comes.

    Returns:
        Who came by chance, as booleans [N], and the ids of the cohort.
    """
    u_N = rng.random(len(chance_N))
    on_N = u_N < chance_N
    ids = np.flatnonzero(on_N)
    if at_least_one and not len(ids):
        # The bound avoids a division by zero; a client of probability 0 wins only if
        # all are 0.
        ids = np.argmin(u_N / np.maximum(chance_N, 1e-300), keepdims=True)
    return on_N, ids
