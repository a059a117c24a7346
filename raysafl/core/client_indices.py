"""Which samples each client holds, for ten clients or a million.

The samples are given by their positions in a dataset. They are stored in one array for
all clients, or computed for one client when they are needed.
"""

import operator
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class ClientIndices(Sequence[Ints]):
    """The positions of each client's samples. It reads like a list of integer arrays."""

    # `sizes[i]` is the number of samples that client i holds.
    sizes: Ints

    @abstractmethod
    def samples_of(self, client: int) -> Ints:
        """Return the positions of a client's samples.

        Args:
            client: from 0 to the number of clients - 1.
        """

    @abstractmethod
    def within(self, pool: Ints) -> "ClientIndices":
        """Replace each position p by `pool[p]`.

        A partition splits a pool of free samples, whose positions it counts from 0.
        This turns them into positions in the whole dataset.
        """

    @abstractmethod
    def extended(self, count: int, extra: Callable[[int], Ints]) -> "ClientIndices":
        """Append samples to those of each client.

        Args:
            count: how many samples each client gets.
            extra: the positions of these samples, from the client's number.
        """

    def concatenated(self) -> Ints:
        """Return all clients' samples in one array, client after client."""
        return np.concatenate(list(self))

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, which: int) -> Ints: ...
    @overload
    def __getitem__(self, which: slice) -> list[Ints]: ...
    def __getitem__(self, which: int | slice) -> Ints | list[Ints]:
        if isinstance(which, slice):
            return [self.samples_of(i) for i in range(*which.indices(len(self)))]
        client = operator.index(which)
        if not -len(self) <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        return self.samples_of(client % len(self))


class StoredIndices(ClientIndices):
    """All clients' samples, stored in one array.

    This takes 16 bytes a client and 8 a sample; a list of arrays takes 130 bytes a
    client more.

    Args:
        flat: the positions of all clients' samples, client after client.
        sizes: how many of them each client holds.
    """

    def __init__(self, flat: Ints, sizes: Ints) -> None:
        self.flat = flat
        self.sizes = sizes
        self.starts = np.concatenate([[0], np.cumsum(sizes)])

    def samples_of(self, client: int) -> Ints:
        """Return a view of the part of the array that belongs to the client."""
        return self.flat[self.starts[client] : self.starts[client + 1]]

    def within(self, pool: Ints) -> "StoredIndices":
        """Replace each position p by `pool[p]`; all of them are computed now."""
        return StoredIndices(pool[self.flat], self.sizes)

    def extended(self, count: int, extra: Callable[[int], Ints]) -> ClientIndices:
        """Append samples to those of each client; all of them are computed now."""
        joined = [np.concatenate([samples, extra(i)]) for i, samples in enumerate(self)]
        return as_client_indices(joined)

    def concatenated(self) -> Ints:
        """Return the array that holds all clients' samples, without a copy."""
        return self.flat


class ComputedIndices(ClientIndices):
    """Equally many samples for each client, computed on demand and never stored.

    Args:
        clients: the number of clients.
        size: how many samples each client holds.
        compute: the positions of a client's samples, from its number. It must return
            the same for the same client each time.
    """

    def __init__(self, clients: int, size: int, compute: Callable[[int], Ints]) -> None:
        self.size = size
        self.compute = compute
        self.sizes = np.broadcast_to(np.int64(size), clients)

    def samples_of(self, client: int) -> Ints:
        """Compute the positions of a client's samples, at each call anew."""
        return self.compute(client)

    def within(self, pool: Ints) -> "ComputedIndices":
        """Replace each position p by `pool[p]`, when a client's samples are read."""
        return ComputedIndices(len(self), self.size, lambda i: pool[self.samples_of(i)])

    def extended(self, count: int, extra: Callable[[int], Ints]) -> "ComputedIndices":
        """Append samples to those of a client when they are needed."""

        def joined(client: int) -> Ints:
            return np.concatenate([self.samples_of(client), extra(client)])

        return ComputedIndices(len(self), self.size + count, joined)


def as_client_indices(parts: Iterable[Ints]) -> ClientIndices:
    """Store integer arrays, one for each client, in one array.

    `ClientIndices` are returned as they are.

    Example:
        >>> stored = as_client_indices([np.array([4, 1]), np.array([7])])
        >>> stored[0], stored.sizes
        (array([4, 1]), array([2, 1]))

    Raises:
        ValueError: the arrays do not hold whole numbers.
    """
    if isinstance(parts, ClientIndices):
        return parts
    parts = list(parts)
    sizes = np.array([len(part) for part in parts], np.int64)
    flat = np.concatenate(
        [part for part in parts if len(part)] or [np.empty(0, np.int64)]
    )
    if flat.dtype.kind not in "iu":
        raise ValueError(
            f"clients hold positions of samples, which are whole numbers, not {flat.dtype}; "
            "a partition gives one integer array per client"
        )
    return StoredIndices(flat.astype(np.int64, copy=False), sizes)


def group_by_owner(owner: Ints, samples: Ints, clients: int) -> StoredIndices:
    """Give each client the samples that it owns, in rising order.

    Args:
        owner: for each sample the client that owns it, from 0 to `clients` - 1.
        samples: the positions of the samples, each not negative.
        clients: the number of clients, of which some may own nothing.

    Example:
        >>> list(group_by_owner(np.array([1, 0, 1]), np.array([8, 5, 2]), clients=2))
        [array([5]), array([2, 8])]
    """
    sizes = np.bincount(owner, minlength=clients)

    # One sort of combined numbers is much faster than a sort by two keys.
    width = samples.max(initial=-1) + 1
    combined = np.sort(owner * width + samples)
    return StoredIndices(combined - np.repeat(np.arange(clients) * width, sizes), sizes)
