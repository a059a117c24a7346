"""Datasets: the bundled digits, and what is made of another dataset.

Images have the shape [n, channels, height, width] and stay uint8 in memory. They are
scaled to float32, and standardised if the source says so, only when a batch is drawn.
"""

import math
import os
from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import platformdirs
import torch
from pydantic import Field, PositiveFloat, SerializeAsAny, StrictBool

from raysafl.core.component import Component
from raysafl.core.problem import Augmentation, Dataset, Samples
from raysafl.core.randomness import Key

DIGITS = Path(__file__).with_name("digits.npz")
MAKERS = "fl.from_arrays, fl.from_pandas, fl.from_csv, fl.from_parquet or fl.from_torch"
# How many images `_mean_and_std` converts to float64 at a time.
BLOCK = 1000


def data_root() -> Path:
    """Return the folder that holds the datasets.

    It is the value of the environment variable `RAYSAFL_DATA` if that is set, and a
    cache folder of the user otherwise.
    """
    folder = os.environ.get("RAYSAFL_DATA") or platformdirs.user_cache_path("raysafl")
    return Path(folder).resolve()


class Source(Component):
    """Where a dataset comes from. Subclass it and define `load` to bring your own.

    Example:
        >>> import raysafl as fl
        >>> dataset = fl.Digits().load()
        >>> dataset.train.x.shape, dataset.num_classes
        ((1437, 1, 8, 8), 10)
    """

    abstract: ClassVar[bool] = True
    _made_by: ClassVar[str] = f", which {MAKERS} makes of your own data"

    @abstractmethod
    def load(self) -> Dataset:
        """Read the training set and the test set.

        Raises:
            ValueError: something is missing; the message names it and where it should
                be.
        """


class ImageSource(Source):
    """A dataset of images, whose inputs can be standardised.

    Subclass it and define `read` to bring images of your own.

    Let v be an input in the range that the source itself has, which is [0, 1] unless
    the source says otherwise. Standardised inputs are (v - mean) / std, for the
    training set and for the test set alike. One mean and one standard deviation serve
    all pixels and all channels. The images stay as they are stored (uint8), and the
    division is done when a batch is drawn.

    The mean and the standard deviation of `standardise=True` are those of all pixels of
    the training images that the source holds, before a `Subset` draws from them and
    before the server's images of another dataset are added. For `Mnist` they are 0.1307
    and 0.3081.

    Example:
        >>> import raysafl as fl
        >>> train = fl.Digits(standardise=True).load().train
        >>> inputs = train.x * train.scale + train.shift
        >>> bool(abs(inputs.mean()) < 1e-6), round(float(inputs.std()), 6)
        (True, 1.0)
        >>> train.x.dtype
        dtype('uint8')
    """

    abstract: ClassVar[bool] = True
    standardise: StrictBool | tuple[float, PositiveFloat] = Field(
        default=False,
        description="False: inputs are in the source's own range, [0, 1] for most. True: "
        "inputs have mean 0 and standard deviation 1 over all pixels of the source's "
        "training images. A pair (mean, std) for all channels, such as (0.1307, "
        "0.3081): inputs are (v - mean) / std.",
    )

    @abstractmethod
    def read(self) -> Dataset:
        """Read the training set and the test set, with inputs that are not standardised.

        Raises:
            ValueError: something is missing; the message names it and where it should
                be.
        """

    def load(self) -> Dataset:
        """Read the dataset and standardise its inputs if `standardise` says so.

        Raises:
            ValueError: the dataset cannot be read, or all its pixels are equal.
        """
        return standardised(self.read(), self.standardise)


def standardised(dataset: Dataset, standardise: bool | tuple[float, float]) -> Dataset:
    """Return a dataset with standardised inputs, see `ImageSource`.

    Args:
        dataset: the dataset, whose inputs stay as they are stored.
        standardise: False, True, or a mean and a standard deviation.

    Raises:
        ValueError: all pixels are equal.
    """
    if standardise is False:
        return dataset
    if standardise is True:
        mean, std = _mean_and_std(dataset.train)
    else:
        mean, std = standardise
    if std == 0:
        raise ValueError(
            f"'{dataset.name}' cannot be standardised: all pixels of its training "
            "images are equal"
        )
    return replace(
        dataset,
        train=_rescaled(dataset.train, mean, std),
        test=_rescaled(dataset.test, mean, std),
    )


def _mean_and_std(samples: Samples) -> tuple[float, float]:
    """Return mean and standard deviation of x * scale + shift over all numbers in x."""
    x = samples.x
    mean = float(x.mean(dtype=np.float64))
    # All images as float64 would take eight times their memory.
    blocks = (x[start : start + BLOCK] for start in range(0, len(x), BLOCK))
    squares = sum(float(np.square(block - np.float64(mean)).sum()) for block in blocks)
    std = math.sqrt(squares / x.size)
    return mean * samples.scale + samples.shift, std * abs(samples.scale)


def _rescaled(samples: Samples, mean: float, std: float) -> Samples:
    """Return the same samples with (x * scale + shift - mean) / std as inputs."""
    return replace(
        samples, scale=samples.scale / std, shift=(samples.shift - mean) / std
    )


class Digits(ImageSource):
    """Handwritten digits, bundled with raysafl: 1,797 images of 8x8 pixels in 10 classes.

    They need no download. 80 % of the images are for training and 20 % for testing; the
    classes have the same shares in both parts, and the division is always the same one.
    Pixel values are 0 to 16.

    Source: the test images of E. Alpaydin and C. Kaynak, Optical Recognition of
    Handwritten Digits, UCI Machine Learning Repository, 1998, doi:10.24432/C50P49,
    licensed under CC BY 4.0. scikit-learn's `load_digits` has the same images. They are
    divided as its `train_test_split` does, stratified and with the random state 0.
    """

    def read(self) -> Dataset:
        """Return 1,437 training and 360 test images [1, 8, 8], scaled to [0, 1]."""
        with np.load(DIGITS) as file:
            train, test = (
                Samples(
                    file[f"{part}_x"],
                    file[f"{part}_y"].astype(np.int64),
                    scale=1 / 16,
                )
                for part in ("train", "test")
            )
        return Dataset("digits", train, test, num_classes=10, names=tuple("0123456789"))


class Subset(Source):
    """Part of another dataset, for runs that are smaller than a paper's.

    Samples are drawn uniformly without replacement, after the classes have been
    restricted. Inputs are scaled as those of the whole dataset are; to standardise
    them, give `standardise` to the dataset to draw from.
    """

    dataset: SerializeAsAny[Source] = Field(description="The dataset to draw from.")
    train: int | None = Field(
        default=None,
        gt=0,
        description="Number of training samples; None, or more than there are, keeps all.",
    )
    test: int | None = Field(
        default=None,
        gt=0,
        description="Number of test samples; None, or more than there are, keeps all.",
    )
    classes: int | None = Field(
        default=None,
        gt=1,
        description="Keep the classes 0 to classes - 1; None keeps all.",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of the draw.")

    def load(self) -> Dataset:
        """Read the other dataset and draw from it.

        Raises:
            ValueError: the dataset cannot be read, or it has fewer than `classes`
                classes.
        """
        whole = self.dataset.load()
        classes = self.classes or whole.num_classes
        if self.classes and not (whole.has_labels and classes <= whole.num_classes):
            raise ValueError(
                f"classes={classes} needs one class for each sample, of as many classes, and "
                f"'{whole.name}' has {whole.num_classes if whole.has_labels else 'none'}"
            )
        key = Key(self.seed)
        train = self._some(whole.train, self.train, key("subset train"))
        test = self._some(whole.test, self.test, key("subset test"))
        names = whole.names[:classes]
        return replace(whole, train=train, test=test, num_classes=classes, names=names)

    def _some(
        self, samples: Samples, most: int | None, rng: np.random.Generator
    ) -> Samples:
        """Draw at most `most` samples (all if None) of the classes that are kept."""
        rows = np.arange(len(samples))
        if self.classes is not None:
            rows = np.flatnonzero(samples.y < self.classes)
        if most is not None and most < len(rows):
            rows = np.sort(rng.choice(rows, most, replace=False))
        return samples.take(rows)


class Augmented(Source):
    """Images of another dataset, of which training reads random crops and mirror images.

    Each time that a local step reads an image, each side is extended by `padding` zeros
    (of the image as it is stored, before it is scaled), a part of the image's own size
    is cut out, and with `flip` left and right change places in half of the cases. What
    is cut out is a function of the seed, the round, the client, the local step and the
    image. Where a model is only evaluated, training images are as they are.

    With `test`, the test images are augmented as well, once for all rounds and runs, so
    that all models are tested on equal images.

    Source: FAST (docs/papers.md#fast), which trains so on CIFAR-10, by torchvision's
    `RandomCrop` and `RandomHorizontalFlip`. Its code draws new test images for each
    evaluation.
    """

    dataset: SerializeAsAny[Source] = Field(description="The dataset of images.")
    padding: int = Field(
        default=4, ge=0, description="Zeros by which each side is extended."
    )
    flip: bool = Field(
        default=True, description="Whether half of the images are mirrored."
    )
    test: bool = Field(
        default=False, description="Whether the test images are augmented as well."
    )

    def load(self) -> Dataset:
        """Read the other dataset, and say how its training images are augmented.

        Raises:
            ValueError: the dataset cannot be read, or its samples are no images.
        """
        whole = self.dataset.load()
        shape = whole.train.x.shape[1:]
        if len(shape) != 3:
            raise ValueError(
                "Augmented is for images, [channels, height, width]; samples of "
                f"'{whole.name}' have the shape {list(shape)}"
            )
        augment = Augmentation(self.padding, self.flip)
        test = whole.test
        if self.test:
            rng = Key(0)("augmented test images")
            words_3S = rng.integers(-(2**31), 2**31, (3, len(test)), dtype="int32")
            x_S = augment.applied(torch.tensor(test.x), torch.from_numpy(words_3S))
            test = replace(test, x=x_S.numpy())
        train = replace(whole.train, augment=augment)
        return replace(whole, train=train, test=test)
