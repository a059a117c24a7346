"""FSL's networks, layer by layer as its tables II and III print them (docs/papers.md#fsl)."""

from abc import abstractmethod
from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

import raysafl as fl
from raysafl.models.basic import check_images


class _FslNet(fl.Model):
    """What both networks of FSL share: two convolutions, two dense layers, dropout.

    The paper does not give the initial parameters. Its tables have the form of Keras's,
    so the default is Keras's (weights uniform by Glorot, docs/papers.md#glorot, and
    biases zero); `start="torch"` is torch's.
    """

    abstract: ClassVar[bool] = True
    start: Literal["keras", "torch"] = Field(
        default="keras",
        description="How parameters start: weights uniform by Glorot and biases "
        "zero, as in Keras, or torch's defaults.",
    )
    dropout: tuple[float, float] = Field(
        default=(0.25, 0.5),
        description="Probabilities, in [0, 1], to drop an entry after the "
        "convolutions and after the first dense layer.",
    )

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build the module for images of one shape.

        Its layers are the network's convolutions and poolings, dropout, a dense layer of
        128 units, dropout, and the logits.

        Args:
            input_shape: channels, height and width of an image.
            num_classes: the number of logits.

        Raises:
            ValueError: the data are no images of at least 4 pixels a side.
        """
        check_images(self, input_shape, 4)
        features, width = self._convolutions(*input_shape)
        dropout_features, dropout_dense = self.dropout
        net = nn.Sequential(
            *features,
            nn.Dropout(dropout_features),
            nn.Flatten(),
            nn.Linear(width, 128),
            nn.ReLU(),
            nn.Dropout(dropout_dense),
            nn.Linear(128, num_classes),
        )
        for layer in net:
            if self.start == "keras" and isinstance(layer, nn.Conv2d | nn.Linear):
                assert layer.bias is not None
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
        return net

    @abstractmethod
    def _convolutions(
        self, depth: int, height: int, width: int
    ) -> tuple[list[nn.Module], int]:
        """Return the convolutions and poolings, and how many numbers they give per image."""


class FslEmnistNet(_FslNet):
    """FSL's network for EMNIST: 1,409,197 parameters on 28x28 images and 45 classes.

    Source: docs/papers.md#fsl, table II. The shapes printed there say that the first
    convolution keeps the image's size (28 to 28) and the second does not (28 to 26).

    Left open by the paper: how parameters start; see `start`.
    """

    def _convolutions(
        self, depth: int, height: int, width: int
    ) -> tuple[list[nn.Module], int]:
        # A padded convolution of 32 channels, a convolution of 64, and pooling.
        features: list[nn.Module] = [
            nn.Conv2d(depth, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        # The unpadded convolution takes 2 pixels from each side length, pooling halves it.
        return features, 64 * ((height - 2) // 2) * ((width - 2) // 2)


class FslCifarNet(_FslNet):
    """FSL's network for CIFAR-10: 545,098 parameters on 32x32 images and 10 classes.

    Source: docs/papers.md#fsl, table III. It prints (13, 13, 64) after the first
    pooling, which is table II's row: a misprint. Pooling (32, 32, 32) by two gives (16,
    16, 32), and only that fits the next row's shape (16, 16, 64) and its 18,496
    parameters.

    Left open by the paper: how parameters start; see `start`.
    """

    def _convolutions(
        self, depth: int, height: int, width: int
    ) -> tuple[list[nn.Module], int]:
        # Twice a padded convolution, of 32 channels and then 64, with pooling.
        features: list[nn.Module] = [
            nn.Conv2d(depth, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        return features, 64 * (height // 4) * (width // 4)
