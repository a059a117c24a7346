"""ReLU and 2x2 max-pooling in one pass on a CPU, bitwise what torch does in two.

Between convolutions these two take half of a small network's time: torch reads and writes the
large tensor for the ReLU, for the pooling, and twice more on the way back.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raysafl.compiled import compiled

NAN = np.int16(0x7FFF)  # the rank of what is not a number
NONE = 4  # in place of which of the four was the largest: none was above zero


class PooledSequential(nn.Sequential):
    """An `nn.Sequential` that does each ReLU and the 2x2 pooling behind it at once, if `fused`.

    `pairs`: where these ReLUs are. Its modules are what they were, for whoever uses them directly.
    """

    fused = False
    pairs: frozenset[int] = frozenset()

    def forward(self, x: Tensor) -> Tensor:
        """What `nn.Sequential` gives, to the last bit."""
        parts, i = list(self), 0
        while i < len(parts):
            at_once = self.fused and i in self.pairs and _fits(x)
            x = _Fused.apply(x) if at_once else parts[i](x)
            i += 2 if at_once else 1
        return x


def fuse_pooling(module: nn.Module) -> list[PooledSequential]:
    """Make every `nn.Sequential` in it with such a pair a `PooledSequential`; these."""
    found = []
    for part in module.modules():
        pairs = frozenset(_pairs(list(part))) if type(part) is nn.Sequential else ()
        if isinstance(part, nn.Sequential) and pairs:
            part.__class__ = PooledSequential
            assert isinstance(part, PooledSequential)
            part.pairs = frozenset(pairs)
            found.append(part)
    return found


def _pairs(parts: list[nn.Module]) -> Iterator[int]:
    plain = nn.MaxPool2d(2)
    names = ("kernel_size", "stride", "padding", "dilation", "return_indices", "ceil_mode")
    for i, (first, second) in enumerate(pairwise(parts)):
        if type(first) is nn.ReLU and type(second) is nn.MaxPool2d:
            wanted = [(w := getattr(plain, name), (w, w)) for name in names]
            if all(getattr(second, n) in either for n, either in zip(names, wanted, strict=True)):
                yield i


def _fits(x: Tensor) -> bool:
    """Whether x is a plain batch of images on a CPU, large enough to be pooled."""
    return x.device.type == "cpu" and x.dtype in KERNELS and x.ndim == 4 and min(x.shape[2:]) > 1


class _Fused(torch.autograd.Function):
    """The pass forward, which notes where each maximum was, and the pass back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x_BHWC = x.detach().contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
        batch, height, width, channels = x_BHWC.shape
        out_BHWC = x.new_empty(batch, height // 2, width // 2, channels)
        ctx.shape, ctx.where = x_BHWC.shape, torch.empty_like(out_BHWC, dtype=torch.uint8)
        KERNELS[x.dtype](_array(x_BHWC), _array(out_BHWC), ctx.where.numpy())
        return out_BHWC.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        g_BHWC = grads[0].contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
        odd = ctx.shape[1] % 2 or ctx.shape[2] % 2
        out_BHWC = (g_BHWC.new_zeros if odd else g_BHWC.new_empty)(ctx.shape)
        g = _array(g_BHWC)
        _backward(g, ctx.where.numpy(), _array(out_BHWC), g.dtype.type(0))
        return out_BHWC.permute(0, 3, 1, 2)


def _array(x: Tensor) -> Any:
    """As numpy, which has no bfloat16: its bits."""
    return (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy()


@compiled()
def _forward(x, out, where):  # type: ignore[no-untyped-def] # pragma: no cover
    batch, height, width, channels = out.shape
    for b in range(batch):
        for i in range(height):
            for j in range(width):
                up, down = x[b, 2 * i], x[b, 2 * i + 1]
                p, q, r, s = up[2 * j], up[2 * j + 1], down[2 * j], down[2 * j + 1]
                to, at = out[b, i, j], where[b, i, j]
                for c in range(channels):
                    most, k = p[c], 0
                    if q[c] > most or q[c] != q[c]:  # a NaN is taken, as torch does
                        most, k = q[c], 1
                    if r[c] > most or r[c] != r[c]:
                        most, k = r[c], 2
                    if s[c] > most or s[c] != s[c]:
                        most, k = s[c], 3
                    if most <= 0:
                        most, k = np.float32(0), NONE
                    to[c], at[c] = most, k


@compiled()
def _rank(bits):  # type: ignore[no-untyped-def] # pragma: no cover
    """Bits of bfloat16 as whole numbers that are ordered alike above zero; a NaN is the highest."""
    return bits if bits & 0x7FFF <= 0x7F80 else NAN


@compiled()
def _forward_half(x, out, where):  # type: ignore[no-untyped-def] # pragma: no cover
    batch, height, width, channels = out.shape
    for b in range(batch):
        for i in range(height):
            for j in range(width):
                up, down = x[b, 2 * i], x[b, 2 * i + 1]
                p, q, r, s = up[2 * j], up[2 * j + 1], down[2 * j], down[2 * j + 1]
                to, at = out[b, i, j], where[b, i, j]
                for c in range(channels):
                    most, k = p[c], 0
                    if _rank(q[c]) > min(_rank(most), NAN - 1):
                        most, k = q[c], 1
                    if _rank(r[c]) > min(_rank(most), NAN - 1):
                        most, k = r[c], 2
                    if _rank(s[c]) > min(_rank(most), NAN - 1):
                        most, k = s[c], 3
                    if _rank(most) <= 0:
                        most, k = np.int16(0), NONE
                    to[c], at[c] = most, k


@compiled()
def _backward(g, where, out, zero):  # type: ignore[no-untyped-def] # pragma: no cover
    batch, height, width, channels = g.shape
    for b in range(batch):
        for i in range(height):
            for j in range(width):
                of, at = g[b, i, j], where[b, i, j]
                for k in range(4):  # one target at a time, so that the loop becomes vectors
                    to = out[b, 2 * i + k // 2, 2 * j + k % 2]
                    for c in range(channels):
                        to[c] = of[c] if at[c] == k else zero


KERNELS = {torch.float32: _forward, torch.bfloat16: _forward_half}
