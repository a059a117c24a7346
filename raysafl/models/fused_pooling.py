"""ReLU and 2x2 max-pooling in one pass on a CPU, bitwise what torch does in two.

Between convolutions these two take half of a small network's time: torch reads and writes the
large tensor for the ReLU, for the pooling, and twice more on the way back.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from raysafl.kernels.pooling import (
    relu_pool,
    relu_pool_bfloat16,
    relu_pool_gradient,
)


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
        relu_pool_gradient(g, ctx.where.numpy(), _array(out_BHWC), g.dtype.type(0))
        return out_BHWC.permute(0, 3, 1, 2)


def _array(x: Tensor) -> Any:
    """As numpy, which has no bfloat16: its bits."""
    return (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy()


KERNELS = {torch.float32: relu_pool, torch.bfloat16: relu_pool_bfloat16}
