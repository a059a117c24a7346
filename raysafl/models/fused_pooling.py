"""ReLU and 2x2 max-pooling in one pass on a CPU, equal to torch's two bit for bit.

Between convolutions these two take half of a small network's time: torch reads and
writes the large tensor once for the ReLU and once for the pooling, and twice more on
the way back.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

# The types that are pooled in one pass.
TYPES = (torch.float32, torch.bfloat16)


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
    pooled = []
    for part in module.modules():
        if isinstance(part, PooledSequential):
            pooled.append(part)
            continue
        pairs = frozenset(_pairs(list(part))) if type(part) is nn.Sequential else ()
        if isinstance(part, nn.Sequential) and pairs:
            # The class is exchanged, not the object: the module may hold it under
            # several names.
            part.__class__ = PooledSequential
            assert isinstance(part, PooledSequential)
            part.pairs = frozenset(pairs)
            pooled.append(part)
    return pooled


def _pairs(parts: list[nn.Module]) -> Iterator[int]:
    """Yield the position of each ReLU that is followed by a plain 2x2 max-pooling."""
    plain = nn.MaxPool2d(2)
    names = (
        "kernel_size",
        "stride",
        "padding",
        "dilation",
        "return_indices",
        "ceil_mode",
    )
    for i, (first, second) in enumerate(pairwise(parts)):
        if type(first) is nn.ReLU and type(second) is nn.MaxPool2d:
            # torch takes a number or a pair of equal numbers: MaxPool2d(2) or
            # MaxPool2d((2, 2))
            values = [getattr(plain, name) for name in names]
            if all(
                getattr(second, name) in (value, (value, value))
                for name, value in zip(names, values, strict=True)
            ):
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
