"""How cohorts are drawn, and the policies that are one draw: `Full`, `Uniform`, `Absent`.

The cohorts of several replicates are drawn together, as pure functions of seeds and the round.

Axis letters: R replicates, N clients, M clients of a cohort.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raysafl.core.participation import Cohorts, PicksTogether
from raysafl.core.randomness import Keys, checksum

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
        description="If more than m clients are available, m of them are drawn uniformly; "
        "None: no limit.",
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


def draw(count_R: Ints, m: int, keys: Keys, purpose: str = "cohort") -> Ints:
    """Draw m distinct numbers below a count for each key, uniformly; return them sorted.

    They are those of numpy's `key(purpose).choice(count, m, replace=False)`.

    Args:
        count_R: the count for each key.
        m: how many numbers are drawn for each key.
        keys: the keys of all replicates.
        purpose: the purpose of the draws.

    Returns:
        The numbers [R, m].
    """
    if count_R.max() > MOST_COMPILED or m > count_R.min():
        pairs = zip(keys.each(), count_R.tolist(), strict=True)
        return np.sort([key(purpose).choice(n, m, replace=False) for key, n in pairs])
    # Imported here, because numba takes some tenths of a second to import.
    from raysafl.kernels.draws import choose_clients

    chosen_RM = np.empty((len(count_R), m), np.int64)
    choose_clients(keys.seeds_R, checksum(purpose), keys.round, count_R, chosen_RM)
    return chosen_RM


def at_most(cohorts: Cohorts, m: int | None, keys: Keys) -> Cohorts:
    """Return the cohorts; of those that are larger than m, m clients drawn uniformly."""
    count_R = cohorts.count_R
    if m is None or count_R.max(initial=0) <= m:
        return cohorts
    is_large_R = count_R > m
    start_R = np.cumsum(count_R) - count_R
    keys_L = keys._replace(seeds_R=keys.seeds_R[is_large_R])
    chosen_LM = draw(count_R[is_large_R], m, keys_L, "at most")
    stays = np.repeat(~is_large_R, count_R)
    stays[start_R[is_large_R, None] + chosen_LM] = True
    return cohorts._replace(ids=cohorts.ids[stays], count_R=np.minimum(count_R, m))


def weighted(weight_RN: Floats, m: int, keys: Keys, purpose: str) -> Ints:
    """Draw m distinct clients one after another, in proportion to the weights of the rest.

    The draw is done as an exponential race, which has the same distribution (Efraimidis
    and Spirakis 2006, docs/papers.md#efraimidis-spirakis): client i arrives at E_i /
    weight_i with independent exponential E_i, and the first m are taken. Clients of
    weight 0 arrive last, in the order of their numbers.

    Args:
        weight_RN: weight of each client, at least 0; a row for each key.
        m: number of clients to draw for each key.
        keys: the keys of all replicates.
        purpose: the purpose of the draws.

    Returns:
        The clients [R, m], in ascending order for each key.
    """
    with np.errstate(divide="ignore"):
        arrival_RN = np.stack(
            [
                np.log(key(purpose).standard_exponential(len(weight_N)))
                - np.log(weight_N)
                for key, weight_N in zip(keys.each(), weight_RN, strict=True)
            ]
        )
    last_R1 = np.partition(arrival_RN, m - 1, axis=1)[:, m - 1 : m]
    is_taken_RN = arrival_RN < last_R1
    is_tied_RN = arrival_RN == last_R1
    places_R1 = m - is_taken_RN.sum(axis=1, keepdims=True)
    is_taken_RN |= is_tied_RN & (np.cumsum(is_tied_RN, axis=1) <= places_R1)
    return np.nonzero(is_taken_RN)[1].reshape(-1, m)


def uniforms(count: int, keys: Keys, purpose: str) -> Floats:
    """Draw numbers that are uniform on [0, 1), [R, count].

    They are those of numpy's `key(purpose).random(count)`.
    """
    if count > MOST_COMPILED:
        return np.stack([key(purpose).random(count) for key in keys.each()])
    # Imported here, because numba takes some tenths of a second to import.
    from raysafl.kernels.draws import draw_uniforms

    u_RN = np.empty((len(keys.seeds_R), count))
    draw_uniforms(keys.seeds_R, checksum(purpose), keys.round, u_RN)
    return u_RN


def come(
    chance_RN: Floats, u_RN: Floats, at_least_one: bool
) -> tuple[NDArray[np.bool_], Cohorts]:
    """Let each client take part with its own probability, independently of the others.

    Client i takes part if u_i < chance_i.

    Args:
        chance_RN: the probability of each client, [R, N] or [N].
        u_RN: numbers that are uniform on [0, 1).
        at_least_one: whether, if no client takes part, the cohort is the client with the
            least u_i / chance_i, as if all probabilities were raised together until one
            does.

    Returns:
        Which clients take part by chance, as booleans [R, N], and the cohorts.
    """
    on_RN = u_RN < chance_RN
    takes_part_RN = on_RN
    if at_least_one and not (somebody_R := on_RN.any(axis=1)).all():
        nobody = np.flatnonzero(~somebody_R)
        chance_KN = np.broadcast_to(chance_RN, u_RN.shape)[nobody]
        # The bound avoids a division by zero; a client of probability 0 wins only if
        # all are 0.
        nearest = np.argmin(u_RN[nobody] / np.maximum(chance_KN, 1e-300), axis=1)
        takes_part_RN = on_RN.copy()
        takes_part_RN[nobody, nearest] = True
    # nonzero, which finds places in both axes, takes ten times as long.
    ids = np.flatnonzero(takes_part_RN) % takes_part_RN.shape[1]
    return on_RN, of_sizes(ids, np.count_nonzero(takes_part_RN, axis=1))


def of_sizes(ids: Ints, count_R: Ints, enforced: bool = False) -> Cohorts:
    """Return cohorts of these sizes, which have no probability to be enforced."""
    R = len(count_R)
    return Cohorts(ids, count_R, np.full(R, enforced), np.full(R, np.nan))


def of_one_size(ids_RM: Ints, enforced: bool = False) -> Cohorts:
    """Return cohorts that are the rows of an array."""
    R, M = ids_RM.shape
    return of_sizes(ids_RM.ravel(), np.full(R, M), enforced)


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
