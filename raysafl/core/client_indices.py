"""Who holds which samples, for ten clients or a million: in one array, or made when asked for."""

import operator
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Parts(Sequence[Ints]):
    """The positions of each client's samples. Reads like a list of arrays, which it replaces."""

    sizes: Ints  # [clients] how many samples each holds

    @abstractmethod
    def held(self, client: int) -> Ints:
        """The samples of a client, from 0 to the number of clients - 1."""

    @abstractmethod
    def within(self, pool: Ints) -> "Parts":
        """The samples of `pool` that stand at these positions."""

    @abstractmethod
    def extended(self, count: int, extra: Callable[[int], Ints]) -> "Parts":
        """With `extra(client)`, so many samples, behind each client's own."""

    def together(self) -> Ints:
        """All clients' samples, client after client."""
        return np.concatenate(list(self))

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, which: int) -> Ints: ...
    @overload
    def __getitem__(self, which: slice) -> list[Ints]: ...
    def __getitem__(self, which: int | slice) -> Ints | list[Ints]:
        if isinstance(which, slice):
            return [self.held(i) for i in range(*which.indices(len(self)))]
        client = operator.index(which)
        if not -len(self) <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        return self.held(client % len(self))


class Packed(Parts):
    """All samples in one array: 16 bytes a client and 8 a sample, where a list takes 130."""

    def __init__(self, flat: Ints, sizes: Ints) -> None:
        self.flat, self.sizes = flat, sizes
        self.starts = np.concatenate([[0], np.cumsum(sizes)])

    def held(self, client: int) -> Ints:
        """A view."""
        return self.flat[self.starts[client] : self.starts[client + 1]]

    def within(self, pool: Ints) -> "Packed":
        """At once."""
        return Packed(pool[self.flat], self.sizes)

    def extended(self, count: int, extra: Callable[[int], Ints]) -> Parts:
        """At once."""
        return pack([np.concatenate([own, extra(i)]) for i, own in enumerate(self)])

    def together(self) -> Ints:
        """What is there already."""
        return self.flat


class Made(Parts):
    """`size` samples for each client, by a pure function of its number: no memory at all."""

    def __init__(self, clients: int, size: int, make: Callable[[int], Ints]) -> None:
        self.size, self.make = size, make
        self.sizes = np.broadcast_to(np.int64(size), clients)

    def held(self, client: int) -> Ints:
        """Made anew each time."""
        return self.make(client)

    def within(self, pool: Ints) -> "Made":
        """When asked for."""
        return Made(len(self), self.size, lambda i: pool[self.held(i)])

    def extended(self, count: int, extra: Callable[[int], Ints]) -> "Made":
        """When asked for."""
        joined = self.size + count
        return Made(len(self), joined, lambda i: np.concatenate([self.held(i), extra(i)]))


def pack(parts: Sequence[Ints]) -> Parts:
    """One array of many; `Parts` stay what they are.

    Raises:
        ValueError: they are no whole numbers.
    """
    if isinstance(parts, Parts):
        return parts
    sizes = np.array([len(part) for part in parts], np.int64)
    flat = np.concatenate([part for part in parts if len(part)] or [np.empty(0, np.int64)])
    if flat.dtype.kind not in "iu":
        raise ValueError(
            f"clients hold positions of samples, which are whole numbers, not {flat.dtype}; "
            "a partition gives one integer array per client"
        )
    return Packed(flat.astype(np.int64, copy=False), sizes)


def deal(owner: Ints, samples: Ints, clients: int) -> Packed:
    """To each client the samples it owns, in rising order; `owner` goes from 0 to clients - 1."""
    sizes, width = np.bincount(owner, minlength=clients), samples.max(initial=-1) + 1
    flat = np.sort(owner * width + samples)  # one sort of numbers is much faster than two keys
    return Packed(flat - np.repeat(np.arange(clients) * width, sizes), sizes)
