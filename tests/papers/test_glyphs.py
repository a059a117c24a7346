"""FSL's drawn letters."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.fsl.glyphs import Glyphs
from raysafl.data import EMNIST_LABELS, Dataset, ParquetImages, Samples


def letters(names: str, classes: int | None = None) -> Dataset:
    """Return two white images of 28x28, standardised, of a dataset with some classes."""
    x = np.full((2, 1, 28, 28), 255, np.uint8)
    part = Samples(x, np.array([0, 0]), 1 / 128, -0.5)
    return Dataset("letters", part, part, classes or len(names), tuple(names))


def test_glyphs_are_letters_of_each_class_in_all_angles_and_sizes() -> None:
    extra = Glyphs().outside(letters("IOW"))
    assert extra.x.shape == (45, 1, 28, 28) and extra.x.dtype == np.uint8
    assert np.bincount(extra.y).tolist() == [15, 15, 15]
    assert (extra.scale, extra.shift) == (1 / 128, -0.5)
    ink = extra.x[:, 0].astype(int)
    assert (ink.max(axis=(1, 2)) > 150).all() and (ink[:, 0].max(axis=1) < 50).all()
    assert len(np.unique(ink, axis=0)) == 45
    light = [ink[extra.y == c].mean() for c in range(3)]
    assert light[0] < light[1] < light[2]  # I, O, W
    middle = ink[:, 10:18, 12:16].mean(axis=(1, 2))
    # the O is hollow
    assert middle[extra.y == 1].max() < 20 and middle[extra.y == 0].min() > 50


def test_angles_turn_and_sizes_enlarge() -> None:
    def drawn(**fields: Any) -> Any:
        fields = {"angles": [0], "sizes": [100], **fields}
        glyphs = Glyphs(fonts=["DejaVu Sans"], **fields)
        return glyphs.outside(letters("H")).x[:, 0].astype(int)

    upright, turned = drawn(angles=[0, 90])
    assert (
        np.abs(np.rot90(upright) - turned).mean() < 8 < np.abs(upright - turned).mean()
    )
    small, large = drawn(sizes=[60, 120])
    assert 1.5 * small.sum() < large.sum()


def test_glyphs_of_the_real_emnist_are_nearest_to_their_class(real_data: Path) -> None:
    """The mean image of a class is nearer to its own glyphs than chance (1 of 47) has it."""
    if not (real_data / "emnist47").is_dir():
        pytest.skip("the EMNIST subset (RAYSAFL_DATA/emnist47) is not here")
    dataset = ParquetImages(path="emnist47").load()
    extra = Glyphs(characters=EMNIST_LABELS).outside(dataset)
    real = dataset.train.x.reshape(-1, 784).astype(float)
    centres = np.array([real[dataset.train.y == c].mean(axis=0) for c in range(47)])
    glyphs = extra.x.reshape(-1, 784).astype(float)
    glyphs /= np.linalg.norm(glyphs, axis=1, keepdims=True)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    right = ((glyphs @ centres.T).argmax(axis=1) == extra.y).mean()
    assert len(extra) == 47 * 15 and right > 5 / 47


def test_classes_that_are_no_letters_are_refused() -> None:
    unnamed = letters("", classes=3)
    with pytest.raises(ValueError, match="'letters' are not known to be letters; give"):
        Glyphs().outside(unnamed)
    with pytest.raises(ValueError, match="2 characters for the 3 classes of 'letters'"):
        Glyphs(characters="AB").outside(unnamed)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"fonts": ["DejaVu Sarif"]}, "did you mean 'DejaVu Serif'"),
        ({"fonts": ["DejaVu Serif:cursive"]}, "no style ['cursive']"),
        ({"fonts": []}, "fonts: List should have at least 1 item"),
        ({"angles": []}, "angles: List should have at least 1 item"),
        ({"sizes": [100, 300]}, "points in a figure of 144, not [100.0, 300.0]"),
    ],
)
def test_glyphs_that_cannot_be_drawn_are_refused(fields: Any, told: str) -> None:
    with pytest.raises(ValueError) as caught:
        Glyphs(**fields)
    assert told in str(caught.value)
