"""Simple models: linear, fully connected and convolutional."""

import math

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from raysafl.core.problem import Model


class Logistic(Model):
    """Multinomial logistic regression: one linear layer on flattened inputs.

    logits = W x + b, with W [classes, inputs]. SAFARI's experiment on MNIST uses it
    (docs/papers.md#safari).

    The paper does not give the initial parameters. Zero is the usual choice for this
    convex problem, and makes replicates differ in their cohorts and batches only.

    Example:
        >>> model = Logistic()
        >>> module = model.build(input_shape=(1, 28, 28), num_classes=10)
        >>> sum(p.numel() for p in module.parameters())
        7850
    """

    zero_init: bool = Field(
        default=True,
        description="Start at zero; if false, with torch's random default for linear layers.",
    )

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build a module that flattens its input and applies one linear layer."""
        layer = nn.Linear(math.prod(input_shape), num_classes)
        if self.zero_init:
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(nn.Flatten(), layer)


class BagOfWords(Model):
    """Logistic regression on the share x_v of each word v in a text, from zero.

    logits = W x + b, with W [classes, words]. A sample is int64 [L], which `words=` of
    `from_pandas` makes: 0 is no word, 1 to `words` are known, and others unknown words,
    which count among all words of the text only. Without words, the logits are b.

    Source: FedOpt's program (docs/papers.md#fedopt), where W starts by Glorot.
    """

    words: int = Field(default=10_000, gt=0, description="Number of known words.")

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build the module for texts of `input_shape` words or fewer."""
        return _BagOfWordsModule(self.words, num_classes)


class _BagOfWordsModule(nn.Module):
    """The module of `BagOfWords`: [B, L] int64 tokens to [B, classes] logits."""

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(words, classes))
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, x: Tensor) -> Tensor:
        words = len(self.weight)
        count_B1 = (x != 0).sum(1, keepdim=True).clamp(min=1)
        share_BL = ((x > 0) & (x <= words)) / count_B1
        rows_BLC = F.embedding((x - 1).clamp(0, words - 1), self.weight)
        return torch.bmm(share_BL.unsqueeze(1), rows_BLC).squeeze(1) + self.bias


class MLP(Model):
    """Fully connected layers with a ReLU between each two of them.

    Example:
        >>> MLP(hidden=[32]).build(input_shape=(1, 8, 8), num_classes=10)
        Sequential(
          (0): Flatten(start_dim=1, end_dim=-1)
          (1): Linear(in_features=64, out_features=32, bias=True)
          (2): ReLU()
          (3): Linear(in_features=32, out_features=10, bias=True)
        )
    """

    hidden: list[PositiveInt] = Field(
        default=[64],
        min_length=1,
        description="Number of units of each hidden layer, from the input to the output.",
    )

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build a module: flatten, then the hidden layers with ReLU, then the logits."""
        layers: list[nn.Module] = [nn.Flatten()]
        width = math.prod(input_shape)
        for units in self.hidden:
            layers += [nn.Linear(width, units), nn.ReLU()]
            width = units
        return nn.Sequential(*layers, nn.Linear(width, num_classes))


class CNN(Model):
    """A small convolutional network for images.

    For each entry of `channels` it has a 3x3 convolution that keeps the image's size, a
    ReLU and 2x2 max-pooling; then one hidden layer of `hidden` units with a ReLU, then
    the logits.
    """

    channels: list[PositiveInt] = Field(
        default=[16, 32],
        min_length=1,
        description="Output channels of each convolution; each is followed by 2x2 pooling.",
    )
    hidden: int = Field(
        default=64,
        gt=0,
        description="Units of the hidden layer after the convolutions.",
    )

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build the module for images that can be halved once per convolution."""
        if len(input_shape) != 3 or min(input_shape[1:]) < 2 ** len(self.channels):
            raise ValueError(
                f"{type(self).__name__} with {len(self.channels)} poolings needs "
                f"images of at least {2 ** len(self.channels)} pixels, [channels, "
                f"height, width]; the data is {list(input_shape)}"
            )
        depth, height, width = input_shape
        layers: list[nn.Module] = []
        for channels in self.channels:
            layers += [
                nn.Conv2d(depth, channels, 3, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
            depth = channels
            height //= 2
            width //= 2
        layers += [
            nn.Flatten(),
            nn.Linear(depth * height * width, self.hidden),
            nn.ReLU(),
        ]
        return nn.Sequential(*layers, nn.Linear(self.hidden, num_classes))


class LeNet(Model):
    """LeNet-5 as federated learning's programs have it: 62,006 parameters on CIFAR-10.

    Two 5x5 convolutions of 6 and 16 channels, each with a ReLU and 2x2 max-pooling; two
    hidden layers of 120 and 84 units, each with a ReLU; then the logits.

    Source: the code of MIFA's authors (docs/papers.md#mifa), after LeCun et al. 1998
    (docs/papers.md#mnist), who have tanh in place of ReLU, means with trained factors in
    place of maxima, and an output by distances to fixed codes.
    """

    padding: int = Field(
        default=0,
        ge=0,
        description="Pixels of zeros on each side of the image; 2 gives images of 28x28 "
        "pixels the size 32x32, as LeCun et al. have it.",
    )

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build the module for images of 16 or more pixels a side, padding included."""
        check_images(self, input_shape, max(1, 16 - 2 * self.padding))
        depth, *sides = input_shape
        # A convolution takes 4 pixels from a side, and pooling halves it.
        left = [((side + 2 * self.padding - 4) // 2 - 4) // 2 for side in sides]
        return nn.Sequential(
            nn.Conv2d(depth, 6, 5, padding=self.padding),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * math.prod(left), 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, num_classes),
        )


def check_images(model: Model, input_shape: tuple[int, ...], least: int) -> None:
    """Raise ValueError for samples that are no images of `least` pixels or more."""
    if len(input_shape) != 3 or min(input_shape[1:]) < least:
        raise ValueError(
            f"{type(model).__name__} needs images of at least {least} pixels, "
            f"[channels, height, width]; the data is {list(input_shape)}"
        )
