"""pooling."""

import numpy as np

from raysafl.kernels.jit import compiled

NAN = np.int16(0x7FFF)  # the rank of what is not a number
NONE = 4  # in place of which of the four was the largest: none was above zero


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
