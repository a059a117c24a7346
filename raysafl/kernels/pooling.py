"""ReLU and 2x2 max-pooling in one pass over the images, and the pass back.

All arrays are [batch, height, width, channels] with the channels next to each other in
memory, so that the innermost loops over channels become vector instructions. Results
equal torch's ReLU followed by its MaxPool2d(2) to the last bit, NaN included.

For each output the pass forward notes which of its four inputs was the largest, as a
uint8:

    0 1
    2 3

or NONE if no input was above zero: then the ReLU's output is zero, and so is its
gradient.
"""

import numpy as np

from raysafl.kernels.jit import compiled

# No input was above zero.
NONE = 4


@compiled()
def relu_pool(x, out, where):  # type: ignore[no-untyped-def] # pragma: no cover
    """Compute out = max_pool2d(relu(x), 2) for float32 images.

    As in torch, a NaN is taken as the maximum, and of several NaN the last one. The
    maximum is taken before the ReLU: that gives the same result with one comparison
    instead of four.

    Args:
        x: [B, H, W, C] float32; an odd last row or column is left out, as torch does.
        out: [B, H // 2, W // 2, C] float32, written.
        where: the same shape in uint8, written: which input was the largest.
    """
    batch, height, width, channels = out.shape
    for b in range(batch):
        for i in range(height):
            for j in range(width):
                upper = x[b, 2 * i]
                lower = x[b, 2 * i + 1]
                x0 = upper[2 * j]
                x1 = upper[2 * j + 1]
                x2 = lower[2 * j]
                x3 = lower[2 * j + 1]
                out_C = out[b, i, j]
                where_C = where[b, i, j]
                for c in range(channels):
                    largest = x0[c]
                    k = 0
                    # A number is not equal to itself only if it is a NaN.
                    if x1[c] > largest or x1[c] != x1[c]:
                        largest = x1[c]
                        k = 1
                    if x2[c] > largest or x2[c] != x2[c]:
                        largest = x2[c]
                        k = 2
                    if x3[c] > largest or x3[c] != x3[c]:
                        largest = x3[c]
                        k = 3
                    if largest <= 0:
                        largest = np.float32(0)
                        k = NONE
                    out_C[c] = largest
                    where_C[c] = k


@compiled()
def relu_pool_gradient(g, where, out, zero):  # type: ignore[no-untyped-def] # pragma: no cover
    """Send each output's gradient to its largest input, and zero to the others.

    Args:
        g: [B, H // 2, W // 2, C] gradients of the outputs (bfloat16 as int16 bits).
        where: the same shape in uint8: which input was the largest.
        out: [B, H, W, C] gradients of the inputs, written; an odd last row or column is
            not.
        zero: zero in the type of `g`.
    """
    batch, height, width, channels = g.shape
    for b in range(batch):
        for i in range(height):
            for j in range(width):
                g_C = g[b, i, j]
                where_C = where[b, i, j]
                # One input at a time: the loop over channels then becomes vector
                # instructions.
                for k in range(4):
                    out_C = out[b, 2 * i + k // 2, 2 * j + k % 2]
                    for c in range(channels):
                        out_C[c] = g_C[c] if where_C[c] == k else zero
