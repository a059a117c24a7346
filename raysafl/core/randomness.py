"""Random streams: generators that depend on seed, round, purpose and client alone."""

import zlib
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray


class _Words(np.random.SeedSequence):
    """A seed sequence of given words, which become the key of a generator.

    `Philox(key=...)` would ask the system for entropy that it then discards, which
    takes 10 microseconds for each generator.
    """

    def __init__(self, words: NDArray[np.uint64]) -> None:
        # That of the base class would ask the system too.
        self.words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        """Return the words; Philox asks for two of 64 bits."""
        return self.words


@lru_cache(maxsize=1024)
def checksum(purpose: str) -> int:
    """Return the number of a purpose, which is a part of a generator's key."""
    return zlib.crc32(purpose.encode())


class Key(NamedTuple):
    """Makes random generators as a pure function of (seed, round, purpose, client).

    A counter-based generator (Philox) gets its key from (seed, purpose) and starts at
    the counter (client, round). So the streams never overlap, and none depends on what
    was drawn before: runs can be split over processes, or go on after a crash, without
    changing a number.

    Args:
        seed: the seed of the replicate.
        round: the number of the round, from 0.

    Example:
        >>> key = Key(seed=0, round=3)
        >>> key("cohort").integers(9, size=4).tolist() == key("cohort").integers(9, size=4).tolist()
        True
        >>> key("noise", client=1).random() == key("noise", client=2).random()
        False
    """

    seed: int
    round: int = 0

    def __call__(self, purpose: str, client: int = 0) -> np.random.Generator:
        """Return a numpy generator.

        Args:
            purpose: what is drawn, such as "cohort"; equal purposes draw equal numbers.
            client: the client that the numbers are for, if they are for one.
        """
        key = np.array([self.seed, checksum(purpose)], np.uint64)

        # The server's number is -1. Adding one makes every client's number fit an
        # unsigned word.
        counter = np.array([0, (client + 1) % 2**64, self.round, 0], np.uint64)
        return np.random.Generator(np.random.Philox(_Words(key), counter=counter))

    def torch(self, purpose: str, client: int = 0) -> torch.Generator:
        """Return a torch generator whose seed is drawn from the same stream."""
        seed = int(self(purpose, client).integers(2**63))
        return torch.Generator().manual_seed(seed)


class Keys(NamedTuple):
    """The keys of several replicates in one round.

    Args:
        seeds_R: the seed of each replicate.
        round: the number of the round.
    """

    seeds_R: NDArray[np.uint64]
    round: int

    def each(self) -> list[Key]:
        """Return the key of each replicate."""
        return [Key(seed, self.round) for seed in self.seeds_R.tolist()]
