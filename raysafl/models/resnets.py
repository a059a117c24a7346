"""Residual networks (ResNets) with GroupNorm, for small images."""

from typing import ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from raysafl.core.problem import Model
from raysafl.models.basic import check_images


class _ResNet(Model):
    """What both residual networks share: a 3x3 convolution, stages of blocks, a linear layer.

    A block computes relu(F(x) + S(x)) with F = GroupNorm(conv(relu(GroupNorm(conv(x)))))
    and 3x3 convolutions without biases. The first block of each stage but the first one
    halves the sides of the images and has more channels; there S is the network's
    shortcut, elsewhere S(x) = x. The mean over all pixels goes to the linear layer.

    GroupNorm replaces BatchNorm, whose running statistics cannot be averaged as
    parameters; Hsieh et al. 2020 (docs/papers.md#hsieh2020) found that it suits label skew.
    Two groups are those of Reddi et al. 2021 (docs/papers.md#fedopt). Parameters start as
    in torchvision: convolutions are normal with the variance 2 / (fan out).
    """

    abstract: ClassVar[bool] = True
    channels: ClassVar[tuple[int, ...]]
    blocks: ClassVar[int]
    projects: ClassVar[bool]
    groups: Literal[1, 2, 4, 8, 16, 32] = Field(
        default=2,
        description="Number of groups into which GroupNorm divides the channels; "
        "ResNet-20 has up to 16.",
    )

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build the module for images of 8 or more pixels a side."""
        check_images(self, input_shape, 8)
        depth = self.channels[0]
        layers = [*_normed(input_shape[0], depth, 3, 1, self.groups), nn.ReLU()]
        for width in self.channels:
            for _ in range(self.blocks):
                layers += [_Residual(depth, width, self.groups, self.projects)]
                depth = width
        last = nn.Linear(depth, num_classes)
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), last)


class ResNet18(_ResNet):
    """ResNet-18 with GroupNorm: 11,173,962 parameters for colour images in ten classes.

    Four stages of two blocks have 64, 128, 256 and 512 channels. A shortcut is a 1x1
    convolution with stride 2 and GroupNorm (option B of He et al.). For small images, as
    those of CIFAR, the first convolution is 3x3 with stride 1, and no pooling follows it.

    Source: He et al. 2016, table 1 (docs/papers.md#resnet).
    """

    channels: ClassVar[tuple[int, ...]] = (64, 128, 256, 512)
    blocks: ClassVar[int] = 2
    projects: ClassVar[bool] = True


class ResNet20(_ResNet):
    """ResNet-20 with GroupNorm: 269,722 parameters for colour images in ten classes.

    Three stages of three blocks have 16, 32 and 64 channels. A shortcut takes every second
    pixel of every second row, and adds channels of zeros (option A of He et al.).

    Source: He et al. 2016, section 4.2, with n = 3 (docs/papers.md#resnet). The paper does
    not say where the channels of zeros stand; here they are the last ones.
    """

    channels: ClassVar[tuple[int, ...]] = (16, 32, 64)
    blocks: ClassVar[int] = 3
    projects: ClassVar[bool] = False


def _normed(
    depth: int, width: int, size: int, stride: int, groups: int
) -> list[nn.Module]:
    """Return a convolution that keeps the image's size but for its stride, and GroupNorm."""
    convolution = nn.Conv2d(depth, width, size, stride, size // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out")
    return [convolution, nn.GroupNorm(groups, width)]


class _Residual(nn.Module):
    """A residual block; with more channels than before, it halves the sides of the images."""

    def __init__(self, depth: int, width: int, groups: int, projects: bool) -> None:
        super().__init__()
        self.added = width - depth
        stride = 2 if self.added else 1
        first = _normed(depth, width, 3, stride, groups)
        self.residual = nn.Sequential(
            *first, nn.ReLU(), *_normed(width, width, 3, 1, groups)
        )
        short = (
            _normed(depth, width, 1, stride, groups) if projects and self.added else ()
        )
        self.shortcut = nn.Sequential(*short)

    def forward(self, x: Tensor) -> Tensor:
        kept: Tensor = self.shortcut(x)
        if self.added and not len(self.shortcut):
            kept = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.added))
        return F.relu(self.residual(x) + kept)
