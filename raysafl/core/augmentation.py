"""Random crops and flips of images, as a function of given random words."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Augmentation:
    """Each image is moved by up to `padding` pixels, and mirrored in half of the cases.

    Args:
        padding: The number of zeros by which each side is extended; of the result, a
            part of the image's size is cut out anywhere.
        flip: Whether left and right change places with probability 1/2.
    """

    padding: int
    flip: bool

    def applied(self, x_S: Tensor, words_3S: Tensor) -> Tensor:
        """Return the images as they are cut out.

        Args:
            x_S: [S, channels, height, width] images of any type.
            words_3S: [3, S] random int32 over their whole range: where an image is cut
                out vertically and horizontally, and whether it is mirrored.
        """
        height, width = x_S.shape[2:]
        # The remainder of a negative number is not negative, either.
        down_S, right_S = words_3S[:2].long() % (2 * self.padding + 1) - self.padding
        row_SH = torch.arange(height, device=x_S.device) + down_S[:, None]
        column_SW = torch.arange(width, device=x_S.device).expand(len(x_S), -1)
        if self.flip:
            mirrored_S1 = (words_3S[2] >= 0)[:, None]
            column_SW = torch.where(mirrored_S1, width - 1 - column_SW, column_SW)
        column_SW = column_SW + right_S[:, None]

        # Pixels outside of the image are read anywhere in it, and become zero.
        is_inside_SHW = _below(row_SH, height)[:, :, None]
        is_inside_SHW = is_inside_SHW & _below(column_SW, width)[:, None, :]
        row_SH1 = row_SH.clamp(0, height - 1)[:, :, None]
        pixel_SHW = row_SH1 * width + column_SW.clamp(0, width - 1)[:, None, :]
        pixel_SCp = pixel_SHW.flatten(1)[:, None].expand(-1, x_S.shape[1], -1)
        cut_S = x_S.flatten(2).gather(2, pixel_SCp).view(x_S.shape)
        return cut_S * is_inside_SHW[:, None]


def _below(index: Tensor, limit: int) -> Tensor:
    """Return which indices lie from 0 to limit - 1."""
    return (index >= 0) & (index < limit)
