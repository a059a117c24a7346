"""The papers' networks, layer by layer where they are printed."""

from typing import Literal

from pydantic import Field, PositiveInt
from torch import Tensor, nn

from raysafl.core.problem import Model
from raysafl.models.basic import CNN


class _FslNet(Model):
    """What both networks of FSL share: two convolutions, then two dense layers with dropout.

    Open in the paper: the start. Its tables have the form of Keras's, so the default is Keras's
    (weights uniform by Glorot, biases zero); `start="torch"` is torch's.
    """

    abstract = True
    start: Literal["keras", "torch"] = "keras"
    dropout: tuple[float, float] = (0.25, 0.5)

    def _net(self, features: list[nn.Module], width: int, num_classes: int) -> nn.Module:
        first, second = self.dropout
        net = nn.Sequential(
            *features,
            nn.Dropout(first),
            nn.Flatten(),
            *(nn.Linear(width, 128), nn.ReLU(), nn.Dropout(second)),
            nn.Linear(128, num_classes),
        )
        for layer in net:
            if self.start == "keras" and isinstance(layer, nn.Conv2d | nn.Linear):
                assert layer.bias is not None
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
        return net

    def _check(self, input_shape: tuple[int, ...], least: int) -> None:
        if len(input_shape) != 3 or min(input_shape[1:]) < least:
            raise ValueError(
                f"{type(self).__name__} needs images of at least {least} pixels, "
                f"[channels, height, width]; the data is {list(input_shape)}"
            )


class FslEmnistNet(_FslNet):
    """FSL's network for EMNIST (table II): 1,409,197 parameters on 28x28 images, 45 classes.

    The printed shapes say that the first convolution keeps the size (28 to 28) and the second
    does not (28 to 26).
    """

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Convolution 32 (padded), convolution 64, pooling, dropout, dense 128, dropout, dense.

        Raises ValueError if the data is no images of at least 4 pixels.
        """
        self._check(input_shape, 4)
        depth, height, width = input_shape
        features: list[nn.Module] = [
            *(nn.Conv2d(depth, 32, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        ]
        return self._net(features, 64 * ((height - 2) // 2) * ((width - 2) // 2), num_classes)


class FslCifarNet(_FslNet):
    """FSL's network for CIFAR-10 (table III): 545,098 parameters on 32x32 images, 10 classes.

    Table III prints (13, 13, 64) behind the first pooling, which is table II's row: a misprint.
    Pooling (32, 32, 32) by two gives (16, 16, 32), and only that fits the next rows' shape
    (16, 16, 64) and 18,496 parameters.
    """

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Twice a padded convolution and pooling; dropout, dense 128, dropout, dense.

        Raises ValueError if the data is no images of at least 4 pixels.
        """
        self._check(input_shape, 4)
        depth, height, width = input_shape
        features: list[nn.Module] = [
            *(nn.Conv2d(depth, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        ]
        return self._net(features, 64 * (height // 4) * (width // 4), num_classes)


class FastFashionNet(CNN):
    """FAST's network for Fashion-MNIST (appendix B.1.1): two convolutions, two dense layers.

    Open in the paper ("provided in our source codes"): every size. 3x3 convolutions of 32 and 64
    channels and 128 hidden units are a common choice, not measured against the paper's numbers.
    """

    channels: list[PositiveInt] = Field(default=[32, 64], min_length=1)
    hidden: int = Field(default=128, gt=0)


class FastCifarNet(CNN):
    """FAST's network for CIFAR-10 (appendix B.1.1): three convolutions, two dense layers.

    Open in the paper ("provided in our source codes"): every size. 3x3 convolutions of 64, 128
    and 256 channels and 256 hidden units are our guess at what reaches its 80 % with no more
    layers; not measured against the paper's numbers.
    """

    channels: list[PositiveInt] = Field(default=[64, 128, 256], min_length=1)
    hidden: int = Field(default=256, gt=0)


class CharLSTM(Model):
    """FAST's next-character model for Shakespeare (appendix B.1.1): embedding, LSTM, dropout.

    Open in the paper: sizes and the dropout rate. The defaults are LEAF's embedding (8), hidden
    size (256) and two layers, and torch's dropout rate (0.5).
    """

    embedding: int = Field(default=8, gt=0)
    hidden: int = Field(default=256, gt=0)
    layers: int = Field(default=2, gt=0)
    dropout: float = Field(default=0.5, ge=0, lt=1)

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """From tokens [batch, length], each below num_classes, to logits of the next one.

        Raises ValueError if the data is not text.
        """
        if len(input_shape) != 1:
            raise ValueError(
                f"CharLSTM needs text, [length] tokens; the data is {list(input_shape)}"
            )
        return _CharLSTM(self, num_classes)


class _CharLSTM(nn.Module):
    def __init__(self, sizes: CharLSTM, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, sizes.embedding)
        self.lstm = nn.LSTM(sizes.embedding, sizes.hidden, sizes.layers, batch_first=True)
        self.dropout = nn.Dropout(sizes.dropout)
        self.out = nn.Linear(sizes.hidden, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(x))
        out: Tensor = self.out(self.dropout(hidden[:, -1]))
        return out
