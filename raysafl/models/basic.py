"""Networks as recipes: linear, dense, convolutional, residual and recurrent."""

import math
from typing import ClassVar, Literal

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
        check_images(self, input_shape, 2 ** len(self.channels))
        depth, height, width = input_shape
        layers: list[nn.Module] = []
        for channels in self.channels:
            convolution = nn.Conv2d(depth, channels, 3, padding=1)
            layers += [convolution, nn.ReLU(), nn.MaxPool2d(2)]
            depth = channels
            height //= 2
            width //= 2
        first = nn.Linear(depth * height * width, self.hidden)
        last = nn.Linear(self.hidden, num_classes)
        return nn.Sequential(*layers, nn.Flatten(), first, nn.ReLU(), last)


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


class CharLSTM(Model):
    """A next-character model for Shakespeare: embedding, LSTM, dropout, logits.

    Source: FAST (docs/papers.md#fast), appendix B.1.1, and the code of its authors, which
    has these sizes and 80 characters: 819,920 parameters. They are those of LEAF
    (docs/papers.md#leaf), the benchmark that made the dataset.

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
