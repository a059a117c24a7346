"""The networks of the FSL and FAST papers, layer by layer where they are printed."""

from typing import Literal

from pydantic import Field, PositiveInt
from torch import Tensor, nn

from raysafl.core.problem import Model
from raysafl.models.basic import CNN


class _FslNet(Model):
    """What both networks of FSL share: two convolutions, two dense layers, dropout.

    The paper does not give the initial parameters. Its tables have the form of Keras's,
    so the default is Keras's (weights uniform by Glorot, docs/papers.md#glorot, and
    biases zero); `start="torch"` is torch's.
    """

    abstract = True
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

    def _with_dense_layers(
        self, features: list[nn.Module], width: int, num_classes: int
    ) -> nn.Module:
        """Put the dense layers after the convolutions, and set the parameters' start.

        Args:
            features: the convolutions, with their ReLUs and poolings.
            width: how many numbers they give per image.
            num_classes: the number of logits.
        """
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

    def _check_images(self, input_shape: tuple[int, ...], least: int) -> None:
        """Raise ValueError for samples that are no images of `least` pixels or more."""
        if len(input_shape) != 3 or min(input_shape[1:]) < least:
            raise ValueError(
                f"{type(self).__name__} needs images of at least {least} pixels, "
                f"[channels, height, width]; the data is {list(input_shape)}"
            )


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

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build the module for images of one shape.

        Its layers are a padded convolution of 32 channels, a convolution of 64,
        pooling, dropout, a dense layer of 128 units, dropout, and the logits.

        Args:
            input_shape: channels, height and width of an image.
            num_classes: the number of logits.

        Raises:
            ValueError: the data are no images of at least 4 pixels a side.
        """
        self._check_images(input_shape, 4)
        depth, height, width = input_shape
        features: list[nn.Module] = [
            nn.Conv2d(depth, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        # The unpadded convolution takes 2 pixels from each side length, pooling halves it.
        features_width = 64 * ((height - 2) // 2) * ((width - 2) // 2)
        return self._with_dense_layers(features, features_width, num_classes)


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

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build the module for images of one shape.

        Its layers are twice a padded convolution (32 channels, then 64) with pooling,
        then dropout, a dense layer of 128 units, dropout, and the logits.

        Args:
            input_shape: channels, height and width of an image.
            num_classes: the number of logits.

        Raises:
            ValueError: the data are no images of at least 4 pixels a side.
        """
        self._check_images(input_shape, 4)
        depth, height, width = input_shape
        features: list[nn.Module] = [
            nn.Conv2d(depth, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        features_width = 64 * (height // 4) * (width // 4)
        return self._with_dense_layers(features, features_width, num_classes)


class FastFashionNet(CNN):
    """FAST's network for Fashion-MNIST: two convolutions and two dense layers.

    Source: docs/papers.md#fast, appendix B.1.1.

    Left open by the paper ("provided in our source codes"): the size of every layer.
    3x3 convolutions of 32 and 64 channels and 128 hidden units are a common choice;
    they were not measured against the paper's numbers.
    """

    channels: list[PositiveInt] = Field(
        default=[32, 64],
        min_length=1,
        description="Output channels of each convolution; each is followed by 2x2 pooling.",
    )
    hidden: int = Field(
        default=128,
        gt=0,
        description="Units of the hidden layer after the convolutions.",
    )


class FastCifarNet(CNN):
    """FAST's network for CIFAR-10: three convolutions and two dense layers.

    Source: docs/papers.md#fast, appendix B.1.1.

    Left open by the paper ("provided in our source codes"): the size of every layer.
    3x3 convolutions of 64, 128 and 256 channels and 256 hidden units are our guess of
    sizes that reach the paper's 80 % accuracy; they were not measured against its
    numbers.
    """

    channels: list[PositiveInt] = Field(
        default=[64, 128, 256],
        min_length=1,
        description="Output channels of each convolution; each is followed by 2x2 pooling.",
    )
    hidden: int = Field(
        default=256,
        gt=0,
        description="Units of the hidden layer after the convolutions.",
    )


class CharLSTM(Model):
    """FAST's next-character model for Shakespeare: embedding, LSTM, dropout, logits.

    Source: docs/papers.md#fast, appendix B.1.1.

    Left open by the paper: the sizes and the dropout rate. The defaults are the
    embedding (8), hidden size (256) and two layers of LEAF, the benchmark that made the
    dataset, and torch's dropout rate (0.5).

    Example:
        >>> import torch
        >>> module = CharLSTM(hidden=16).build(input_shape=(80,), num_classes=90)
        >>> module(torch.zeros(4, 80, dtype=torch.int64)).shape
        torch.Size([4, 90])
    """

    embedding: int = Field(
        default=8,
        gt=0,
        description="Dimensions of the vector that stands for a character.",
    )
    hidden: int = Field(default=256, gt=0, description="Units of each LSTM layer.")
    layers: int = Field(default=2, gt=0, description="Number of LSTM layers.")
    dropout: float = Field(
        default=0.5,
        ge=0,
        lt=1,
        description="Probability to drop an entry of the LSTM's last output.",
    )

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
        return _CharLSTMModule(self, num_classes)


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
