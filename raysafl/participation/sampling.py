"""How a cohort is drawn: pure functions of a `Key`, one purpose for each kind of draw."""

import numpy as np
from numpy.typing import NDArray

from raysafl.core.randomness import Key

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def check_m(m: int | None, num_clients: int) -> None:
    """Raise ValueError if m clients a round are more than there are."""
    if m is not None and m > num_clients:
        raise ValueError(f"m = {m} clients a round, but there are M = {num_clients}")


def ascending(ids: Ints) -> list[int]:
    """A cohort as policies return it."""
    cohort: list[int] = np.sort(ids).tolist()
    return cohort


def draw(count: int, m: int, key: Key) -> Ints:
    """m distinct numbers below count, uniformly, in any order."""
    return key("cohort").choice(count, m, replace=False)


def at_most(ids: Ints, m: int | None, key: Key) -> list[int]:
    """All of these clients, or m of them, uniformly, if they are more; sorted."""
    if m is not None and len(ids) > m:
        ids = ids[key("at most").choice(len(ids), m, replace=False)]
    return ascending(ids)


def weighted(weight_M: Floats, m: int, rng: np.random.Generator) -> list[int]:
    """m distinct clients, one after the other, each with probability ~ weight among the rest.

    As an exponential race: client i arrives at E_i / weight_i, the first m are taken, which is
    the same law (Efraimidis and Spirakis 2006). Clients of weight 0 arrive last, by number.
    """
    wait: Floats = np.log(rng.standard_exponential(len(weight_M)))
    with np.errstate(divide="ignore"):
        arrival = wait - np.log(weight_M)
    last = np.partition(arrival, m - 1)[m - 1]
    first = np.flatnonzero(arrival < last)
    tied = np.flatnonzero(arrival == last)[: m - len(first)]
    return ascending(np.concatenate([first, tied]))


def come(chance_M: Floats, rng: np.random.Generator) -> tuple[NDArray[np.bool_], Ints]:
    """Each client comes with its own chance: u_i < chance_i, with u_i uniform on [0, 1).

    Returns who came by chance, and the cohort. If nobody came, the cohort is the client with
    the least u_i / chance_i: as if all chances were raised together until somebody comes.
    """
    u_M = rng.random(len(chance_M))
    on_M = u_M < chance_M
    ids = np.flatnonzero(on_M)
    if not len(ids):  # a chance of 0 can be the least only if all are 0
        ids = np.argmin(u_M / np.maximum(chance_M, 1e-300), keepdims=True)
    return on_M, ids
