"""Models of no paper in particular: logistic regression, fully connected, convolutional."""

import math

from pydantic import Field, PositiveInt
from torch import nn

from raysafl.core.problem import Model


class Logistic(Model):
    """Multinomial logistic regression (SAFARI on MNIST): one linear layer, started at zero.

    Open in the paper: the start. The problem is convex; zero is the usual choice and makes
    replicates differ in cohorts and batches only. `zero_init=False` takes torch's default.
    """

    zero_init: bool = True

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Flatten, then a linear layer: 7,850 parameters on MNIST."""
        layer = nn.Linear(math.prod(input_shape), num_classes)
        if self.zero_init:
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(nn.Flatten(), layer)


class MLP(Model):
    """Fully connected layers with ReLU between them."""

    hidden: list[PositiveInt] = Field(default=[64], min_length=1)

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Flatten, then hidden layers, then logits."""
        layers: list[nn.Module] = [nn.Flatten()]
        width = math.prod(input_shape)
        for size in self.hidden:
            layers += [nn.Linear(width, size), nn.ReLU()]
            width = size
        return nn.Sequential(*layers, nn.Linear(width, num_classes))


class CNN(Model):
    """A small convolutional network for images.

    Per entry of `channels` a 3x3 convolution (same size), ReLU and 2x2 max-pooling; then one
    hidden layer of `hidden` units with ReLU, then logits.
    """

    channels: list[PositiveInt] = Field(default=[16, 32], min_length=1)
    hidden: int = Field(default=64, gt=0)

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Raises ValueError if the images are too small to be halved that often."""
        if len(input_shape) != 3 or min(input_shape[1:]) < 2 ** len(self.channels):
            raise ValueError(
                f"{type(self).__name__} with {len(self.channels)} poolings needs images of at "
                f"least {2 ** len(self.channels)} pixels, [channels, height, width]; "
                f"the data is {list(input_shape)}"
            )
        depth, height, width = input_shape
        layers: list[nn.Module] = []
        for size in self.channels:
            layers += [nn.Conv2d(depth, size, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            depth, height, width = size, height // 2, width // 2
        layers += [nn.Flatten(), nn.Linear(depth * height * width, self.hidden), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(self.hidden, num_classes))
