"""Random streams."""

import zlib
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray


class _Zeros(np.random.SeedSequence):
    """Philox(key=...) would ask the system for entropy and drop it, which takes 10 us each."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        """What is overwritten at once."""
        return np.zeros(n_words, dtype)


_ZEROS = _Zeros(0)
_STATE = np.random.Philox(_ZEROS).state  # with nothing drawn yet


class Key(NamedTuple):
    """Random streams as a pure function of (seed, round, purpose, client).

    A counter-based generator (Philox) is keyed by (seed, purpose) and started at the counter
    (client, round), so streams never overlap and none depends on what was drawn before.
    """

    seed: int
    round: int = 0

    def __call__(self, purpose: str, client: int = 0) -> np.random.Generator:
        """A generator for one purpose, and one client if it is about one."""
        key = np.array([self.seed, zlib.crc32(purpose.encode())], np.uint64)
        counter = np.array([0, (client + 1) % 2**64, self.round, 0], np.uint64)  # SERVER is -1
        bits = np.random.Philox(_ZEROS)
        bits.state = _STATE | {"state": {"counter": counter, "key": key}}
        return np.random.Generator(bits)

    def torch(self, purpose: str, client: int = 0) -> torch.Generator:
        """The same stream's seed for torch."""
        seed = int(self(purpose, client).integers(2**63))
        return torch.Generator().manual_seed(seed)
