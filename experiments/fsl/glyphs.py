"""Drawn letters as the server's data, FSL's "synthetic EMNIST" (docs/papers.md#fsl)."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from pydantic import Field, field_validator

import raysafl as fl
from raysafl.core.text import nearest
from raysafl.data.other_dataset import Bytes, fit_images


class Glyphs(fl.data.ServerData):
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

    def outside(self, dataset: fl.data.Dataset) -> fl.data.Samples:
        """Draw fonts * angles * sizes images of each class.

        Raises:
            ValueError: the dataset holds no images, or its classes are not known to be single
                letters.
        """
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
        return fit_images(images, labels, dataset)

    def _draw(self, letter: str, face: ImageFont.FreeTypeFont, angle: float) -> Bytes:
        side = self.INCHES * self.DPI
        image = Image.new("L", (side, side))
        left, top, right, bottom = face.getbbox(letter)
        # The box is that of the letter's ink, which is put in the middle of the image.
        corner = ((side - left - right) / 2, (side - top - bottom) / 2)
        ImageDraw.Draw(image).text(corner, letter, fill=255, font=face)
        return np.asarray(image.rotate(angle, Image.Resampling.BILINEAR))[None]


def font_file(name: str) -> str:
    """Find the file of an installed font, or of one that comes with matplotlib.

    Args:
        name: the font's family, optionally with ":italic" or ":bold" after it.

    Raises:
        ValueError: there is no such font; the message names the nearest.
    """
    # Imported here, because few commands draw letters.
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
