"""The networks of FAST for images, as its authors' code has them (docs/papers.md#fast)."""

from pydantic import Field, PositiveInt
from torch import nn

import raysafl as fl
from raysafl.models.basic import check_images


class FastFashionNet(fl.Model):
    """FAST's network for Fashion-MNIST: 1,206,590 parameters on 28x28 images.

    Source: the code of FAST's authors (docs/papers.md#fast). It has 62 outputs, as many
    as FEMNIST has classes; those of the ten classes are the first.
    """

    channels: list[PositiveInt] = Field(
        default=[32, 64],
        min_length=1,
        description="Output channels of each convolution, which takes 2 pixels from a side.",
    )
    hidden: int = Field(default=128, gt=0, description="Units of the hidden layer.")
    outputs: int = Field(
        default=62, gt=0, description="Number of outputs, if there are no more classes."
    )

    def outputs_for(self, num_classes: int) -> int:
        """Return the number of outputs: `outputs`, or one for each class."""
        return max(self.outputs, num_classes)

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build the module for images of one shape.

        Its layers are the convolutions, each with a ReLU, then 2x2 pooling, dropout of
        0.25, a dense layer with a ReLU, dropout of 0.5, and the logits.

        Args:
            input_shape: channels, height and width of an image.
            num_classes: the number of classes.

        Raises:
            ValueError: the data are no images, or too small for the convolutions.
        """
        shrunk = 2 * len(self.channels)
        check_images(self, input_shape, shrunk + 2)
        depth, height, width = input_shape
        layers: list[nn.Module] = []
        for channels in self.channels:
            layers += [nn.Conv2d(depth, channels, 3), nn.ReLU()]
            depth = channels
        pixels = ((height - shrunk) // 2) * ((width - shrunk) // 2)
        return nn.Sequential(
            *layers,
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(depth * pixels, self.hidden),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(self.hidden, self.outputs_for(num_classes)),
        )


class FastCifarNet(fl.CNN):
    """FAST's network for CIFAR-10: 541,094 parameters on 32x32 images and 10 classes.

    It is a `CNN` with dropout before and after the hidden layer.

    Source: the code of FAST's authors (docs/papers.md#fast).
    """

    channels: list[PositiveInt] = Field(
        default=[16, 32, 64],
        min_length=1,
        description="Output channels of each convolution; each is followed by 2x2 pooling.",
    )
    hidden: int = Field(
        default=500,
        gt=0,
        description="Units of the hidden layer after the convolutions.",
    )
    dropout: float = Field(
        default=0.25, ge=0, lt=1, description="Probability to drop an entry."
    )

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build the module for images of one shape, see `CNN.build`."""
        net = super().build(input_shape, num_classes)
        *features, hidden, relu, logits = net.children()
        return nn.Sequential(
            *features,
            nn.Dropout(self.dropout),
            hidden,
            relu,
            nn.Dropout(self.dropout),
            logits,
        )
