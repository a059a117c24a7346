"""Datasets: the embedded digits, a subset of another dataset, and folders of Parquet.

Images have the shape [n, channels, height, width] and stay uint8 in memory. They are
scaled to float32 only when a batch is drawn.
"""

import io
import os
from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import platformdirs
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from pydantic import Field, SerializeAsAny, model_validator

from raysafl.core.component import Component
from raysafl.core.problem import Dataset, Samples
from raysafl.core.randomness import Key


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

    @abstractmethod
    def load(self) -> Dataset:
        """Read the training set and the test set.

        Raises:
            ValueError: something is missing; the message names it and where it should
                be.
        """


class Digits(Source):
    """The handwritten digits of scikit-learn: 1,797 images of 8x8 pixels in 10 classes.

    They need no download. 80 % of the images are for training and 20 % for testing; the
    classes have the same shares in both parts, and the division is always the same one.
    Pixel values are 0 to 16.
    """

    def load(self) -> Dataset:
        """Return 1,437 training and 360 test images [1, 8, 8], scaled to [0, 1]."""
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        x, y = load_digits(return_X_y=True)
        x = x.astype(np.uint8).reshape(-1, 1, 8, 8)
        parts = train_test_split(
            x, y.astype(np.int64), test_size=0.2, stratify=y, random_state=0
        )
        x_train, x_test, y_train, y_test = parts
        train = Samples(x_train, y_train, scale=1 / 16)
        test = Samples(x_test, y_test, scale=1 / 16)
        return Dataset("digits", train, test, num_classes=10, names=tuple("0123456789"))


class Subset(Source):
    """Part of another dataset, for runs that are smaller than a paper's.

    Samples are drawn uniformly without replacement, after the classes have been
    restricted.
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
        if classes > whole.num_classes:
            raise ValueError(
                f"'{whole.name}' has {whole.num_classes} classes; classes={classes} is too many"
            )
        train = self._some(
            whole.train, self.train, classes, Key(self.seed)("subset train")
        )
        test = self._some(whole.test, self.test, classes, Key(self.seed)("subset test"))
        return Dataset(whole.name, train, test, classes, whole.names[:classes])

    def _some(
        self, samples: Samples, most: int | None, classes: int, rng: np.random.Generator
    ) -> Samples:
        """Draw at most `most` samples (all if None) of the first `classes` classes."""
        rows = np.flatnonzero(samples.y < classes)
        if most is not None and most < len(rows):
            rows = np.sort(rng.choice(rows, most, replace=False))

        users = None if samples.users is None else samples.users[rows]
        return replace(samples, x=samples.x[rows], y=samples.y[rows], users=users)


class ParquetImages(Source):
    """A folder with `train.parquet` and `test.parquet` in the image layout of Hugging Face.

    Each file has a column `image` (a struct whose field `bytes` holds the encoded
    image) and a column `label` (integers from 0). All images must have the same shape.
    Pixel values are scaled from 0..255 to `low`..`high`.
    """

    path: str = Field(
        description="The folder; a relative path is looked up in the folder RAYSAFL_DATA."
    )
    low: float = Field(default=0.0, description="What the pixel value 0 becomes.")
    high: float = Field(default=1.0, description="What the pixel value 255 becomes.")

    @model_validator(mode="after")
    def _range(self) -> "ParquetImages":
        if self.low >= self.high:
            raise ValueError(f"low ({self.low}) must be below high ({self.high})")
        return self

    def load(self) -> Dataset:
        """Decode all images of both files.

        Raises:
            ValueError: a file or a column is missing, a label is no integer from 0, an
                image cannot be decoded, or the images differ in shape.
        """
        folder = data_root() / self.path
        train, test = (
            self._read(folder / name) for name in ("train.parquet", "test.parquet")
        )
        if train.x.shape[1:] != test.x.shape[1:]:
            raise ValueError(
                f"{folder}: training images are {train.x.shape[1:]}, test images "
                f"{test.x.shape[1:]} (channels, height, width); they must be alike"
            )
        classes = 1 + int(max(train.y.max(), test.y.max()))
        return Dataset(folder.name, train, test, num_classes=classes)

    def _read(self, file: Path) -> Samples:
        """Decode one Parquet file, after checking its columns and their types."""
        if not file.is_file():
            raise ValueError(
                f"{file} is missing; the dataset '{self.path}' needs train.parquet and "
                f"test.parquet in {file.parent} (set RAYSAFL_DATA, or give an absolute path)"
            )
        try:
            schema = pq.read_schema(file)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{file} is not a Parquet file ({error})") from error
        columns = schema.names
        for name in ("image", "label"):
            if name not in columns:
                raise ValueError(
                    f"{file} has no column '{name}' (it has: {', '.join(columns)})"
                )
        image = schema.field("image").type
        label = schema.field("label").type
        if not pa.types.is_integer(label):
            raise ValueError(
                f"{file}: labels must be integers from 0; the column is {label}"
            )
        if not pa.types.is_struct(image) or image.get_field_index("bytes") < 0:
            raise ValueError(
                f"{file}: 'image' must be a struct with 'bytes'; the column is {image}"
            )

        table = pq.read_table(file, columns=["image", "label"])
        if table["image"].null_count or table["label"].null_count:
            raise ValueError(f"{file} has rows without an image or a label")
        labels = np.asarray(table["label"].to_numpy(), np.int64)
        if len(labels) == 0 or labels.min() < 0:
            given = f"the least is {labels.min()}" if len(labels) else "there are none"
            raise ValueError(f"{file}: labels must be integers from 0, but {given}")

        images = [_decode(row["bytes"], file) for row in table["image"].to_pylist()]
        # Images of different shapes cannot be stacked into one array.
        shapes = {image.shape for image in images}
        if len(shapes) > 1:
            raise ValueError(
                f"{file} mixes image shapes {sorted(shapes)}; make them alike"
            )
        # Colour images are transposed views, and a stack of such views is not
        # contiguous.
        x = np.ascontiguousarray(np.stack(images))
        return Samples(x, labels, (self.high - self.low) / 255, self.low)


def _decode(content: bytes, file: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Decode one image to [channels, height, width] with one or three channels."""
    try:
        image = Image.open(io.BytesIO(content))
        pixels = np.asarray(
            image if image.mode in ("L", "RGB") else image.convert("RGB")
        )
    except OSError as error:
        raise ValueError(f"{file}: an image cannot be decoded ({error})") from error
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
