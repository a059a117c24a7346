"""Server data from outside the training set: another dataset, or drawn letters."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializeAsAny, field_validator

from raysafl.core.problem import Dataset, Samples
from raysafl.core.randomness import Key
from raysafl.core.text import nearest
from raysafl.data.partitions import even_counts
from raysafl.data.server_data import ServerData
from raysafl.data.sources import ImageSource, Source

if TYPE_CHECKING:
    from PIL import Image, ImageFont

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


def _fit_images(
    images: "Sequence[Image.Image]", labels: Any, dataset: Dataset
) -> Samples:
    """Fit images with values 0 to 255 to the shape and the range of a dataset.

    They get the dataset's scale and shift, so that they are standardised if it is.
    """
    # Imported here, because few runs have images of the server's own.
    from PIL import Image

    channels, height, width = _shape(dataset)
    mode = "L" if channels == 1 else "RGB"
    # Bilinear resampling averages over all pixels that a new pixel replaces.
    smooth = Image.Resampling.BILINEAR
    fitted = [im.convert(mode).resize((width, height), smooth) for im in images]
    x = np.stack([np.asarray(im).reshape(height, width, channels) for im in fitted])
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
        return _fit_images([_image(pixels) for pixels in x], labels, dataset)

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


def _image(pixels: Bytes) -> "Image.Image":
    from PIL import Image

    return Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))


class Glyphs(ServerData):
    """The server holds images of letters, drawn in given fonts, angles and sizes.

    Each class has one image per font, angle and size, white on black as in EMNIST,
    drawn in a square of 2 by 2 inches and then resized to the dataset's images. They are
    standardised if the dataset is, with the dataset's mean and standard deviation.

    Source: FSL, scenario 2b, "synthetic EMNIST" (docs/papers.md#fsl): one cursive font,
    five angles and three sizes, so 15 images a class. FSL does not name the font. The
    default is the italic serif that comes with matplotlib, so that it works on every
    machine.
    """

    needs_classes: ClassVar[bool] = True
    INCHES: ClassVar[int] = 2
    DPI: ClassVar[int] = 144

    fonts: list[str] = Field(
        default=["DejaVu Serif:italic"],
        min_length=1,
        description='Names of installed fonts, each optionally with ":italic" or ":bold".',
    )
    angles: list[float] = Field(
        default=[-20, -10, 0, 10, 20], min_length=1, description="Rotations in degrees."
    )
    sizes: list[float] = Field(
        default=[100, 110, 120],
        min_length=1,
        description="Font sizes in points, 10 to 140.",
    )
    characters: str | None = Field(
        default=None,
        description="One character per class; None: the dataset's names of its classes.",
    )

    @field_validator("fonts")
    @classmethod
    def _found(cls, fonts: list[str]) -> list[str]:
        for font in fonts:
            font_file(font)
        return fonts

    @field_validator("sizes")
    @classmethod
    def _visible(cls, sizes: list[float]) -> list[float]:
        if any(not 10 <= size <= 140 for size in sizes):
            raise ValueError(
                f"sizes are 10 to 140 points in a figure of 144, not {sizes}"
            )
        return sizes

    def outside(self, dataset: Dataset) -> Samples:
        """Draw fonts * angles * sizes images of each class.

        Raises:
            ValueError: the classes of the dataset are not known to be single letters.
        """
        from PIL import ImageFont

        _shape(dataset)
        letters: Sequence[str] = (
            dataset.names if self.characters is None else self.characters
        )
        if not letters or any(len(letter) != 1 for letter in letters):
            raise ValueError(
                f"the classes of '{dataset.name}' are not known to be letters; give "
                "characters='...', one per class"
            )
        if len(letters) != dataset.num_classes:
            raise ValueError(
                f"{len(letters)} characters for the {dataset.num_classes} classes of "
                f"'{dataset.name}'; give one per class"
            )

        images = []
        labels = []
        for font in self.fonts:
            for size in self.sizes:
                face = ImageFont.truetype(font_file(font), size * self.DPI / 72)
                for label, letter in enumerate(letters):
                    images += [self._draw(letter, face, angle) for angle in self.angles]
                    labels += [label] * len(self.angles)
        return _fit_images(images, labels, dataset)

    def _draw(
        self, letter: str, face: "ImageFont.FreeTypeFont", angle: float
    ) -> "Image.Image":
        from PIL import Image, ImageDraw

        side = self.INCHES * self.DPI
        image = Image.new("L", (side, side))
        left, top, right, bottom = face.getbbox(letter)
        # The box is that of the letter's ink, which is put in the middle of the image.
        corner = ((side - left - right) / 2, (side - top - bottom) / 2)
        ImageDraw.Draw(image).text(corner, letter, fill=255, font=face)
        return image.rotate(angle, Image.Resampling.BILINEAR)


def font_file(name: str) -> str:
    """Find the file of an installed font, or of one that comes with matplotlib.

    Args:
        name: the font's family, optionally with ":italic" or ":bold" after it.

    Raises:
        ValueError: there is no such font; the message names the nearest.
    """
    from matplotlib.font_manager import FontProperties, fontManager

    family, *style = name.split(":")
    known = {entry.name for entry in fontManager.ttflist}
    unknown = set(style) - {"italic", "bold"}
    if family not in known or unknown:
        what = (
            f"no font '{family}'"
            if family not in known
            else f"no style {sorted(unknown)}"
        )
        raise ValueError(
            f"{what}: {nearest(family, known)}; styles are :italic and :bold"
        )
    properties = FontProperties(
        family=[family],
        style="italic" if "italic" in style else "normal",
        weight="bold" if "bold" in style else "normal",
    )
    return str(fontManager.findfont(properties, fallback_to_default=False))
