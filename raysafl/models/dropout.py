"""Dropout whose masks are a pure function of a seed, however many models run as one batch.

torch's own dropout draws from one global stream, so what a client drops would depend on who
was trained before it, and vmap refuses it. Here the bits of a mask are a hash of (seed, which
dropout of the forward pass, position): integer arithmetic on tensors, the same in a loop, under
vmap, on a CPU and on a GPU.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

BITS = 31  # of a seed's halves, so that each is an int32 and not negative
# torch's dropout layers; their common base is private
DROPOUT_LAYERS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
MULTIPLY1, MULTIPLY2, GOLDEN = 0x7FEB352D, 0x45D9F3B, 0x9E3779B9 - 2**32


class Draws:
    """The random bits of one forward pass."""

    def __init__(self, seed: Tensor) -> None:
        half = 2**BITS - 1
        self.low, self.high = (part.to(torch.int32) for part in (seed & half, seed >> BITS & half))
        self.count = 0

    def words(self, like: Tensor) -> Tensor:
        """Uniform words, int32 [like.shape] of either sign, new ones at every call."""
        self.count += 1
        at = torch.arange(like.numel(), dtype=torch.int32, device=like.device)
        salt = self.count * GOLDEN % 2**BITS  # far apart: a bare count would meet other seeds
        words = _mix(_mix(at * GOLDEN + self.low) ^ self.high ^ salt)
        return words.view(like.shape)


_DRAWS: ContextVar[Draws | None] = ContextVar("draws", default=None)


@contextmanager
def drawing_from(seed: Tensor | None) -> Iterator[None]:
    """Inside, every `Dropout` draws from this int64 seed, below 2^62 (None: torch's generator)."""
    token = _DRAWS.set(None if seed is None else Draws(seed))
    try:
        yield
    finally:
        _DRAWS.reset(token)


class Dropout(nn.Dropout):
    """torch's dropout, but its mask is a pure function of the seed given by `drawing_from`."""

    def forward(self, input: Tensor) -> Tensor:
        """Zero each entry with probability p and scale the others by 1/(1-p), in training."""
        draws = _DRAWS.get()
        if draws is None or not self.training or self.p == 0:
            return super().forward(input)
        least = min(round(self.p * 2**32) - 2**31, 2**31 - 1)
        kept = draws.words(input) >= least
        return input * (kept.to(input.dtype) * (0 if self.p == 1 else 1 / (1 - self.p)))


def seed_dropout(module: nn.Module, name: str) -> bool:
    """Turn every `nn.Dropout` of a module into ours; whether any drops.

    Raises:
        ValueError: the module has other random layers, which this cannot make repeatable.
    """
    drops = False
    for path, part in module.named_modules():
        if type(part) is nn.Dropout:
            part.__class__ = Dropout  # in place: the module may hold it under several names
        drops = drops or (type(part) is Dropout and part.p > 0)
        inside = isinstance(part, nn.RNNBase | nn.MultiheadAttention) and part.dropout > 0
        other = isinstance(part, DROPOUT_LAYERS) and type(part) is not Dropout
        if inside or other or isinstance(part, nn.RReLU):
            what = f"{type(part).__name__}(dropout={part.dropout})" if inside else repr(part)
            raise ValueError(
                f"model {name} draws random numbers in {path or 'itself'}: {what}; runs could not "
                "be repeated. Use nn.Dropout layers, which raysafl seeds for every client"
            )
    return drops


def _mix(word: Tensor) -> Tensor:
    """A bijection of 32-bit words in which every input bit reaches every output bit.

    Products wrap around; shifts keep the sign, so what they shift in is masked away.
    """
    word = (word ^ (word >> 16 & 0xFFFF)) * MULTIPLY1
    word = (word ^ (word >> 15 & 0x1FFFF)) * MULTIPLY2
    return word ^ (word >> 16 & 0xFFFF)
