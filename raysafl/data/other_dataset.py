"""Server data from outside the training set: images of another dataset."""

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializeAsAny, field_validator

from raysafl.core.problem import Dataset, Samples
from raysafl.core.randomness import Key
from raysafl.data.partitions import even_counts
from raysafl.data.server_data import ServerData
from raysafl.data.sources import ImageSource, Source

Bytes = NDArray[np.uint8]
# The CIFAR-10 class of each class of STL-10 (airplane, bird, car, cat, deer, dog,
# horse, monkey, ship, truck); CIFAR-10 has no monkey.
STL10_AS_CIFAR10: list[int | None] = [0, 2, 1, 3, 4, 5, 7, None, 8, 9]


def _shape(dataset: Dataset) -> tuple[int, int, int]:
    """Return (channels, height, width) of the images.

    Raises:
        ValueError: the dataset holds no uint8 images with one or three channels.
    """
    x = dataset.train.x
    if x.ndim != 4 or x.dtype != np.uint8 or x.shape[1] not in (1, 3):
        raise ValueError(
            f"server data of images needs a dataset of images; '{dataset.name}' has "
            f"{x.dtype} samples of shape {x.shape[1:]}"
        )
    return x.shape[1], x.shape[2], x.shape[3]


def fit_images(images: Iterable[Bytes], labels: Any, dataset: Dataset) -> Samples:
    """Fit images with values 0 to 255 to the shape and the range of a dataset.

    They get the dataset's scale and shift, so that they are standardised if it is.

    Args:
        images: the pixels of each, [channels, height, width], with one or three channels.
        labels: the class of each.
        dataset: whose images they are to be like.

    Raises:
        ValueError: the dataset holds no images.
    """
    # Imported here, because few runs have images of the server's own.
    from PIL import Image

    channels, height, width = _shape(dataset)
    mode = "L" if channels == 1 else "RGB"
    # Bilinear resampling averages over all pixels that a new pixel replaces.
    smooth = Image.Resampling.BILINEAR
    fitted = []
    for pixels in images:
        laid_out = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
        image = Image.fromarray(laid_out).convert(mode).resize((width, height), smooth)
        fitted.append(np.asarray(image).reshape(height, width, channels))
    x = np.stack(fitted)
    # The brightest value of the dataset stands for 255; in `Digits` it is 16.
    top = int(dataset.train.x.max())
    if top != 255:
        x = np.rint(x * (top / 255)).astype(np.uint8)
    x = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return Samples(
        x, np.asarray(labels, np.int64), dataset.train.scale, dataset.train.shift
    )


class OtherDatasetServer(ServerData):
    """The server holds n0 training images of another dataset, resized to fit.

    Equally many images of each class are drawn, the same ones in all replicates; if n0
    is no multiple of the number of classes, random classes get one image more.

    Source: FSL, scenario 2b, which takes STL-10 for CIFAR-10 (docs/papers.md#fsl); its
    classes are `STL10_AS_CIFAR10`.
    """

    needs_classes: ClassVar[bool] = True
    dataset: SerializeAsAny[Source] = Field(description="The other dataset.")
    n0: int = Field(gt=0, description="Number of images that the server holds.")
    classes: list[int | None] = Field(
        description="For each class of the other dataset, its class in the run's dataset; "
        "None leaves it out."
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of the draw.")

    @field_validator("dataset")
    @classmethod
    def _not_standardised(cls, dataset: Source) -> Source:
        sources = dataset.components()
        if any(
            isinstance(s, ImageSource) and s.standardise is not False for s in sources
        ):
            raise ValueError(
                "the server's images are scaled as the run's dataset is; give "
                "`standardise` to that one alone"
            )
        return dataset

    def outside(self, dataset: Dataset) -> Samples:
        """Read the other dataset and fit n0 of its images to this one.

        Raises:
            ValueError: one of them holds no images, `classes` does not fit, or a
                class has too few images.
        """
        _shape(dataset)
        other = self.dataset.load()
        self._check(other, dataset)
        _shape(other)
        rng = Key(self.seed)("other data")
        used = [i for i, label in enumerate(self.classes) if label is not None]
        wanted = even_counts(self.n0, len(used), rng)

        rows = []
        labels = []
        for i, want in zip(used, wanted.tolist(), strict=True):
            pool = np.flatnonzero(other.train.y == i)
            if want > len(pool):
                raise ValueError(
                    f"n0 = {self.n0} needs {want} images of class {i} of '{other.name}', which "
                    f"has {len(pool)}; choose a smaller n0"
                )
            rows.append(np.sort(rng.choice(pool, want, replace=False)))
            labels += [self.classes[i]] * want

        x = other.train.x[np.concatenate(rows)]
        # The other dataset may have another range of values, as `Digits` has.
        x = np.rint(x * (255 / int(other.train.x.max()))).astype(np.uint8)
        return fit_images(x, labels, dataset)

    def _check(self, other: Dataset, dataset: Dataset) -> None:
        """Check that `classes` covers the other dataset and names classes of this one."""
        if len(self.classes) != other.num_classes:
            raise ValueError(
                f"classes has {len(self.classes)} entries, but '{other.name}' has "
                f"{other.num_classes} classes: give each its class in '{dataset.name}', or None"
            )
        wrong = [
            c
            for c in self.classes
            if c is not None and not 0 <= c < dataset.num_classes
        ]
        if wrong or all(c is None for c in self.classes):
            raise ValueError(
                f"classes names {wrong or 'no class at all'}; the classes of "
                f"'{dataset.name}' are 0 to {dataset.num_classes - 1}"
            )
