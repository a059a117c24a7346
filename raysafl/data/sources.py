"""Where samples come from: the embedded digits, and folders of Parquet.

Images are [n, channels, height, width] and stay uint8 in memory.
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
    """The folder of the datasets: `$RAYSAFL_DATA`, else a per-user cache folder."""
    return Path(os.environ.get("RAYSAFL_DATA") or platformdirs.user_cache_path("raysafl")).resolve()


class Source(Component):
    """A dataset's origin. Define `load` in your own file to bring your own."""

    abstract: ClassVar[bool] = True

    @abstractmethod
    def load(self) -> Dataset:
        """Read training and test set. Raises ValueError naming what is missing and where."""


class Digits(Source):
    """scikit-learn's 8x8 handwritten digits: 1,797 images, 10 classes, values 0 to 16.

    Needs no download. Split 80/20, stratified by class, always the same way.
    """

    def load(self) -> Dataset:
        """1,437 training and 360 test images [1, 8, 8], scaled to [0, 1]."""
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        x, y = load_digits(return_X_y=True)
        x = x.astype(np.uint8).reshape(-1, 1, 8, 8)
        parts = train_test_split(x, y.astype(np.int64), test_size=0.2, stratify=y, random_state=0)
        train, test = Samples(parts[0], parts[2], 1 / 16), Samples(parts[1], parts[3], 1 / 16)
        return Dataset("digits", train, test, num_classes=10, names=tuple("0123456789"))


class Subset(Source):
    """Some samples of another dataset: for small runs, which are to be labelled as such.

    `train` and `test` are drawn uniformly without replacement by `seed`, all if there are no
    more; `classes` keeps only the first so many classes.
    """

    dataset: SerializeAsAny[Source]
    train: int | None = Field(default=None, gt=0)
    test: int | None = Field(default=None, gt=0)
    classes: int | None = Field(default=None, gt=1)
    seed: int = Field(default=0, ge=0, lt=2**63)

    def load(self) -> Dataset:
        """Raises ValueError if the dataset cannot be read or has fewer classes."""
        whole = self.dataset.load()
        classes = self.classes or whole.num_classes
        if classes > whole.num_classes:
            raise ValueError(
                f"'{whole.name}' has {whole.num_classes} classes; classes={classes} is too many"
            )
        train = self._some(whole.train, self.train, classes, Key(self.seed)("subset train"))
        test = self._some(whole.test, self.test, classes, Key(self.seed)("subset test"))
        return Dataset(whole.name, train, test, classes, whole.names[:classes])

    def _some(
        self, samples: Samples, most: int | None, classes: int, rng: np.random.Generator
    ) -> Samples:
        kept = np.flatnonzero(samples.y < classes)
        if most is not None and most < len(kept):
            kept = np.sort(rng.choice(kept, most, replace=False))
        users = None if samples.users is None else samples.users[kept]
        return replace(samples, x=samples.x[kept], y=samples.y[kept], users=users)


class ParquetImages(Source):
    """A folder with `train.parquet` and `test.parquet`, in the Hugging Face image layout.

    Columns: `image` (a struct with the encoded file in `bytes`) and `label` (integers from 0).
    A relative `path` is looked up under the data root. Values are scaled from 0..255 to
    `low`..`high`.
    """

    path: str
    low: float = 0.0
    high: float = 1.0

    @model_validator(mode="after")
    def _range(self) -> "ParquetImages":
        if self.low >= self.high:
            raise ValueError(f"low ({self.low}) must be below high ({self.high})")
        return self

    def load(self) -> Dataset:
        """Decode all images, which must have one shape."""
        folder = data_root() / self.path
        train, test = (self._read(folder / name) for name in ("train.parquet", "test.parquet"))
        if train.x.shape[1:] != test.x.shape[1:]:
            raise ValueError(
                f"{folder}: training images are {train.x.shape[1:]}, test images "
                f"{test.x.shape[1:]} (channels, height, width); they must be alike"
            )
        classes = 1 + int(max(train.y.max(), test.y.max()))
        return Dataset(folder.name, train, test, num_classes=classes)

    def _read(self, file: Path) -> Samples:
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
                raise ValueError(f"{file} has no column '{name}' (it has: {', '.join(columns)})")
        image, label = schema.field("image").type, schema.field("label").type
        if not pa.types.is_integer(label):
            raise ValueError(f"{file}: labels must be integers from 0; the column is {label}")
        if not pa.types.is_struct(image) or image.get_field_index("bytes") < 0:
            raise ValueError(
                f"{file}: 'image' must be a struct with 'bytes'; the column is {image}"
            )
        table = pq.read_table(file, columns=["image", "label"])
        if table["image"].null_count or table["label"].null_count:
            raise ValueError(f"{file} has rows without an image or a label")
        labels = np.asarray(table["label"].to_numpy(), np.int64)
        if len(labels) == 0 or labels.min() < 0:
            raise ValueError(f"{file}: labels must be integers from 0, and there must be some")
        images = [_decode(row["bytes"], file) for row in table["image"].to_pylist()]
        shapes = {image.shape for image in images}
        if len(shapes) > 1:
            raise ValueError(f"{file} mixes image shapes {sorted(shapes)}; make them alike")
        x = np.ascontiguousarray(np.stack(images))  # stacked views of colour images are not
        return Samples(x, labels, (self.high - self.low) / 255, self.low)


def _decode(content: bytes, file: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    try:
        image = Image.open(io.BytesIO(content))
        pixels = np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
    except OSError as error:
        raise ValueError(f"{file}: an image cannot be decoded ({error})") from error
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
