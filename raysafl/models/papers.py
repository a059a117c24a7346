"""The networks of the FSL and FAST papers, layer by layer where they are printed."""

from abc import abstractmethod
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt
from torch import Tensor, nn

from raysafl.core.problem import Model
from raysafl.models.basic import CNN, check_images


class _FslNet(Model):
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

    Example:
        >>> module = FslEmnistNet().build(input_shape=(1, 28, 28), num_classes=45)
        >>> sum(p.numel() for p in module.parameters())
        1409197
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

    Example:
        >>> module = FslCifarNet().build(input_shape=(3, 32, 32), num_classes=10)
        >>> sum(p.numel() for p in module.parameters())
        545098
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


class FastFashionNet(Model):
    """FAST's network for Fashion-MNIST: 1,206,590 parameters on 28x28 images.

    Source: the code of FAST's authors (docs/papers.md#fast). It has 62 outputs, as many
    as FEMNIST has classes; those of the ten classes are the first.

    Example:
        >>> module = FastFashionNet().build(input_shape=(1, 28, 28), num_classes=10)
        >>> sum(p.numel() for p in module.parameters())
        1206590
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


class FastCifarNet(CNN):
    """FAST's network for CIFAR-10: 541,094 parameters on 32x32 images and 10 classes.

    It is a `CNN` with dropout before and after the hidden layer.

    Source: the code of FAST's authors (docs/papers.md#fast).

    Example:
        >>> module = FastCifarNet().build(input_shape=(3, 32, 32), num_classes=10)
        >>> sum(p.numel() for p in module.parameters())
        541094
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


class CharLSTM(Model):
    """FAST's next-character model for Shakespeare: embedding, LSTM, dropout, logits.

    Source: docs/papers.md#fast, appendix B.1.1, and the code of its authors, which has
    these sizes and 80 characters: 819,920 parameters. They are those of LEAF, the
    benchmark that made the dataset.

    Example:
        >>> import torch
        >>> module = CharLSTM().build(input_shape=(80,), num_classes=65)
        >>> module(torch.zeros(4, 80, dtype=torch.int64)).shape
        torch.Size([4, 80])
        >>> sum(p.numel() for p in module.parameters())
        819920
    """

    embedding: int = Field(
        default=8,
        gt=0,
        description="Dimensions of the vector that stands for a character.",
    )
    hidden: int = Field(default=256, gt=0, description="Units of each LSTM layer.")
    layers: int = Field(default=2, gt=0, description="Number of LSTM layers.")
    vocabulary: int = Field(
        default=80,
        gt=0,
        description="Number of characters that the network knows, if there are no more.",
    )
    dropout: float = Field(
        default=0.5,
        ge=0,
        lt=1,
        description="Probability to drop an entry of the LSTM's last output.",
    )

    def outputs_for(self, num_classes: int) -> int:
        """Return the number of outputs: `vocabulary`, or one for each character."""
        return max(self.vocabulary, num_classes)

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build a module from tokens to the logits of the next one.

        Args:
            input_shape: the number of tokens in a sample; each is below num_classes.
            num_classes: the number of characters.

        Raises:
            ValueError: the data are no text.
        """
        if len(input_shape) != 1:
            raise ValueError(
                f"CharLSTM needs text, [length] tokens; the data is {list(input_shape)}"
            )
        return _CharLSTMModule(self, self.outputs_for(num_classes))


class _CharLSTMModule(nn.Module):
    """The module of `CharLSTM`: [B, length] int64 tokens to [B, vocabulary] logits."""

    def __init__(self, recipe: CharLSTM, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, recipe.embedding)
        self.lstm = nn.LSTM(
            recipe.embedding, recipe.hidden, recipe.layers, batch_first=True
        )
        self.dropout = nn.Dropout(recipe.dropout)
        self.out = nn.Linear(recipe.hidden, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(x))
        out: Tensor = self.out(self.dropout(hidden[:, -1]))
        return out
