"""What takes the place of torch's layers: seeded dropout, and pooling with its ReLU.

Dropout's masks are a pure function of a seed, alone or under vmap. torch's own dropout draws
from one global stream: what a client drops would depend on who was trained before it, and
`torch.func.vmap` refuses to draw. Here the bits of a mask are a hash of (seed, which dropout
of the forward pass, position in the tensor). It is integer arithmetic on tensors, so the
mask is the same in a loop, under vmap, on a CPU and on a GPU.

On a CPU, a ReLU and the 2x2 max-pooling after it are one pass, equal to torch's two bit for
bit. Between convolutions these two take half of a small network's time: torch reads and
writes the large tensor once for the ReLU and once for the pooling, and twice more on the way
back.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

# A seed is split into halves of 31 bits, so that each is an int32 that is not negative.
BITS = 31

# Multipliers of two well-known integer hashes (Chris Wellons' lowbias32, Thomas
# Mueller's); they are odd, so that a product can be undone. GOLDEN is 2^32 divided by
# the golden ratio, as an int32: its multiples are spread evenly over all words.
MULTIPLY1 = 0x7FEB352D
MULTIPLY2 = 0x45D9F3B
GOLDEN = 0x9E3779B9 - 2**32

# torch's dropout layers. Their common base class is private.
DROPOUT_LAYERS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)

# The types that are pooled in one pass.
TYPES = (torch.float32, torch.bfloat16)


class RandomWords:
    """The random bits of one forward pass.

    Args:
        seed: an int64 tensor without dimensions, at least 0 and below 2^62; for `at`
            alone, of any shape that the positions fit.
    """

    def __init__(self, seed: Tensor) -> None:
        mask = 2**BITS - 1
        self.low = (seed & mask).to(torch.int32)
        self.high = (seed >> BITS & mask).to(torch.int32)
        self.count = 0

    def words(self, like: Tensor) -> Tensor:
        """Draw uniform 32-bit words, new ones at every call.

        Args:
            like: a tensor that gives the shape and the device.

        Returns:
            int32 of that shape, over its whole range.
        """
        self.count += 1
        position = torch.arange(like.numel(), dtype=torch.int32, device=like.device)
        return self.at(position, self.count).view(like.shape)

    def at(self, position: Tensor, count: int) -> Tensor:
        """Return the words of some positions, int32.

        Args:
            position: int32 numbers of what the words are for.
            count: which draw it is; `words` has the numbers from 1 on.
        """
        # Counts are spread far apart. With the bare count, one
        # call of a seed could give the words of another call of another seed.
        salt = count * GOLDEN % 2**BITS
        return _mix(_mix(position * GOLDEN + self.low) ^ self.high ^ salt)


_DRAWS: ContextVar[RandomWords | None] = ContextVar("draws", default=None)


@contextmanager
def drawing_from(seed: Tensor | None) -> Iterator[None]:
    """Make every `Dropout` inside the block draw from a seed.

    Args:
        seed: an int64 tensor without dimensions, at least 0 and below 2^62; None leaves
            torch's global generator in use.
    """
    token = _DRAWS.set(None if seed is None else RandomWords(seed))
    try:
        yield
    finally:
        _DRAWS.reset(token)


class Dropout(nn.Dropout):
    """torch's dropout, with a mask that depends on the seed of `drawing_from` alone.

    Example:
        >>> layer = Dropout(p=0.5)
        >>> with drawing_from(torch.tensor(7)):
        ...     first = layer(torch.ones(100))
        >>> with drawing_from(torch.tensor(7)):
        ...     second = layer(torch.ones(100))
        >>> torch.equal(first, second)
        True
    """

    def forward(self, input: Tensor) -> Tensor:
        """Zero each entry with probability p and scale the others by 1 / (1 - p).

        It does so in training only; in evaluation the input is returned. Outside of
        `drawing_from` it is torch's dropout.
        """
        draws = _DRAWS.get()
        if draws is None or not self.training or self.p == 0:
            return super().forward(input)
        # Of 2^32 equally likely words, about p 2^32 are below this one.
        threshold = min(round(self.p * 2**32) - 2**31, 2**31 - 1)
        kept = draws.words(input) >= threshold
        scale = 0 if self.p == 1 else 1 / (1 - self.p)
        return input * (kept.to(input.dtype) * scale)


def seed_dropout(module: nn.Module, name: str) -> bool:
    """Replace every `nn.Dropout` of a module, in place, by the seeded `Dropout`.

    Args:
        module: the module, which is changed.
        name: the model's name, for the message.

    Returns:
        Whether any of them has p > 0.

    Raises:
        ValueError: the module has other random layers (Dropout2d, dropout inside an RNN
            or an attention layer, RReLU, ...), whose draws cannot be made repeatable.
    """
    has_dropout = False
    for path, part in module.named_modules():
        if type(part) is nn.Dropout:
            # The class is exchanged, not the object: the module may hold it under
            # several names.
            part.__class__ = Dropout
        if type(part) is Dropout:
            has_dropout = has_dropout or part.p > 0
            continue

        description = repr(part)
        is_random = isinstance(part, (*DROPOUT_LAYERS, nn.RReLU))
        if isinstance(part, nn.RNNBase | nn.MultiheadAttention):
            description = f"{type(part).__name__}(dropout={part.dropout})"
            is_random = part.dropout > 0
        if is_random:
            raise ValueError(
                f"model {name} draws random numbers in {path or 'itself'}: "
                f"{description}; runs could not be repeated. Use nn.Dropout layers, "
                "which raysafl seeds for every client"
            )
    return has_dropout


def _mix(word: Tensor) -> Tensor:
    """Apply a bijection of 32-bit words; every input bit reaches every output bit.

    Products wrap around. A right shift of an int32 repeats the sign, so the bits that
    it shifts in are masked away.
    """
    word = (word ^ (word >> 16 & 0xFFFF)) * MULTIPLY1
    word = (word ^ (word >> 15 & 0x1FFFF)) * MULTIPLY2
    return word ^ (word >> 16 & 0xFFFF)


class PooledSequential(nn.Sequential):
    """An `nn.Sequential` that computes a ReLU and a 2x2 pooling after it in one pass.

    It does so while `fused` is true. Its modules stay what they were, for code that
    uses them directly, and so do the names of its parameters.

    Attributes:
        fused: whether pairs are computed in one pass.
        pairs: the positions of the ReLUs that a 2x2 pooling follows.
    """

    fused = False
    pairs: frozenset[int] = frozenset()

    def forward(self, x: Tensor) -> Tensor:
        """Compute what `nn.Sequential` computes.

        On images in the memory format channels_last it is the same to the last bit. The
        pooling returns its images in this format; given others, torch may take another
        convolution after it than in `nn.Sequential`, which rounds another way.
        """
        parts = list(self)
        i = 0
        while i < len(parts):
            if self.fused and i in self.pairs and _has_kernel(x):
                x = _FusedReluPool.apply(x)
                i += 2
            else:
                x = parts[i](x)
                i += 1
        return x


def fuse_pooling(module: nn.Module) -> list[PooledSequential]:
    """Turn every `nn.Sequential` with a ReLU before a 2x2 pooling into a fused one.

    Args:
        module: the module, which is changed in place.

    Returns:
        The `PooledSequential`s in it, those among them that were fused before.
    """
    for part in module.modules():
        if type(part) is nn.Sequential and (pairs := frozenset(_pairs(list(part)))):
            # The class is exchanged, not the object: the module may hold it under
            # several names.
            part.__class__ = PooledSequential
            assert isinstance(part, PooledSequential)
            part.pairs = pairs
    return [part for part in module.modules() if isinstance(part, PooledSequential)]


def _pairs(parts: list[nn.Module]) -> Iterator[int]:
    """Yield the position of each ReLU that is followed by a plain 2x2 max-pooling."""
    for i, (first, second) in enumerate(pairwise(parts)):
        if type(first) is nn.ReLU and type(second) is nn.MaxPool2d:
            # torch takes a number or a pair: MaxPool2d(2) or MaxPool2d((2, 2)).
            of = (second.kernel_size, second.stride, second.padding, second.dilation)
            sizes = [size if isinstance(size, tuple) else (size, size) for size in of]
            has_more = second.ceil_mode or second.return_indices
            if sizes == [(2, 2), (2, 2), (0, 0), (1, 1)] and not has_more:
                yield i


def _has_kernel(x: Tensor) -> bool:
    """Return whether x is a batch of images that a kernel here can pool."""
    return (
        x.device.type == "cpu"
        and x.dtype in TYPES
        and x.ndim == 4
        and min(x.shape[2:]) > 1
    )


class _FusedReluPool(torch.autograd.Function):
    """The pass forward, which notes where each maximum was, and the pass back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        # Imported here, because numba takes some tenths of a second to import.
        from raysafl.kernels.pooling import relu_pool

        x_BHWC = (
            x.detach().contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
        )
        batch, height, width, channels = x_BHWC.shape
        shape = (batch, height // 2, width // 2, channels)
        # numpy and numba have no bfloat16, of which float32 has all numbers.
        out_BHWC = torch.empty(shape)
        ctx.shape = x_BHWC.shape
        ctx.where = torch.empty_like(out_BHWC, dtype=torch.uint8)
        relu_pool(x_BHWC.float().numpy(), out_BHWC.numpy(), ctx.where.numpy())
        return out_BHWC.to(x.dtype).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        from raysafl.kernels.pooling import relu_pool_gradient

        g_BHWC = (
            grads[0].contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
        )
        # The kernel does not write to an odd last row or column, whose gradient is
        # zero.
        has_odd_side = ctx.shape[1] % 2 or ctx.shape[2] % 2
        out_BHWC = (g_BHWC.new_zeros if has_odd_side else g_BHWC.new_empty)(ctx.shape)
        g = _as_numpy(g_BHWC)
        relu_pool_gradient(g, ctx.where.numpy(), _as_numpy(out_BHWC), g.dtype.type(0))
        return out_BHWC.permute(0, 3, 1, 2)


def _as_numpy(x: Tensor) -> Any:
    """Return an array on the tensor's memory; bfloat16, which numpy lacks, as int16."""
    return (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy()
