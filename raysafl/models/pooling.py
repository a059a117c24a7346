"""ReLU and 2x2 max-pooling in one pass on a CPU, bitwise what torch does in two.

Between convolutions these two take half of a small network's time: torch reads and writes the
large tensor for the ReLU, for the pooling, and twice more on the way back.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysafl.compiled import compiled

NAN = np.int16(0x7FFF)  # the rank of what is not a number
NONE = 4  # in place of which of the four was the largest: none was above zero


class PooledReLU(nn.Module):
    """max_pool2d(relu(x), 2). `fused`: in one pass, where x is a plain batch on a CPU."""

    fused = False

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to [B, C, H // 2, W // 2]."""
        if self.fused and x.device.type == "cpu" and x.dtype in KERNELS and x.ndim == 4:
            out: Tensor = _Fused.apply(x)
            return out
        return F.max_pool2d(F.relu(x), 2)


def fuse_pooling(module: nn.Module) -> list[PooledReLU]:
    """Replace each ReLU before a 2x2 pooling in an `nn.Sequential`; names of parameters stay."""
    found: list[PooledReLU] = []
    for part in module.modules():
        if type(part) is not nn.Sequential:
            continue
        for i in range(len(part) - 1):
            if type(part[i]) is nn.ReLU and _halves(part[i + 1]):
                found.append(PooledReLU())
                part[i], part[i + 1] = found[-1], nn.Identity()
    return found


def _halves(part: nn.Module) -> bool:
    plain = nn.MaxPool2d(2)
    names = ("kernel_size", "stride", "padding", "dilation", "return_indices", "ceil_mode")
    return type(part) is nn.MaxPool2d and all(
        getattr(part, name) in (getattr(plain, name), (getattr(plain, name),) * 2) for name in names
    )


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
