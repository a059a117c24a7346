"""Convolutions of stacked tasks as products of matrices, which a GPU computes faster.

Tasks that are stacked have kernels of their own. To cuDNN that is one convolution of
many groups, for which it has slow algorithms only. So each task's patches are copied next
to each other, and its convolution becomes a product: [O, C K] times [C K, B L] for O
output channels, C input channels, kernels of K pixels, and B images with L places each.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

Pair = int | tuple[int, int]


def stacked_convolutions(device: torch.device) -> AbstractContextManager[Any]:
    """Return what computes convolutions of stacked tasks the way that suits a device."""
    return ConvolutionsAsProducts() if device.type == "cuda" else nullcontext()


class ConvolutionsAsProducts(TorchFunctionMode):
    """Inside the block, convolutions of batches of images are products of matrices.

    Convolutions with groups or dilation are left to torch.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch's, or what takes its place."""
        if func is torch.conv2d:
            return _convolved(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _convolved(
    x: Tensor,
    kernel: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Tensor:
    """Return what `torch.conv2d` does."""
    if x.ndim != 4 or groups != 1 or _pair(dilation) != (1, 1):
        return torch.conv2d(x, kernel, bias, stride, padding, dilation, groups)
    channels, _, height, width = kernel.shape
    down, right = _pair(stride)
    x = F.pad(x, _edges(padding, height, width))
    batch = len(x)
    rows = (x.shape[2] - height) // down + 1
    columns = (x.shape[3] - width) // right + 1
    # For each pixel of the kernel, all pixels on which it lies. Slices, since vmap takes
    # the gradient of `Tensor.unfold` one task after the other.
    under = [
        x[:, :, i : i + down * rows : down, j : j + right * columns : right]
        for i in range(height)
        for j in range(width)
    ]
    patch_DN = (
        torch.stack(under, 1).permute(2, 1, 0, 3, 4).reshape(kernel[0].numel(), -1)
    )
    out_ON = kernel.reshape(channels, -1) @ patch_DN
    out = out_ON.reshape(channels, batch, rows, columns).transpose(0, 1)
    return out if bias is None else out + bias[:, None, None]


def _edges(padding: Pair | str, height: int, width: int) -> list[int]:
    """Return the zeros to the left, right, top and bottom, as `F.pad` takes them."""
    if padding == "valid":
        padding = 0
    if isinstance(padding, str):
        # "same": where an even kernel needs an odd number of zeros, one more at the end.
        sizes = (width - 1, height - 1)
        return [edge for size in sizes for edge in (size // 2, size - size // 2)]
    top, left = _pair(padding)
    return [left, left, top, top]


def _pair(number: Pair) -> tuple[int, int]:
    """Return a number twice, or two numbers as they are."""
    return (number, number) if isinstance(number, int) else (number[0], number[-1])
