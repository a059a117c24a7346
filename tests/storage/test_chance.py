"""The number of classes that is read from a run's configuration."""

import math

import pytest

from raysafl import Digits, Federation, Run, from_arrays
from raysafl.data import (
    Augmented,
    Cifar10,
    Emnist,
    FashionMnist,
    Mnist,
    ParquetImages,
    Shakespeare,
    Stl10,
    Subset,
    Synthetic,
)
from raysafl.data.sources import Source
from raysafl.storage.chance import CLASSES, chance_of, classes_of

KNOWN = [
    (Digits(), 10),
    (Mnist(), 10),
    (FashionMnist(), 10),
    (Cifar10(), 10),
    (Stl10(), 10),
    (Synthetic(), 10),
    (Emnist(), 45),
    (Emnist(drop=[]), 47),
    (Subset(dataset=Emnist(), train=100), 45),
    (Subset(dataset=Emnist(), classes=5), 5),
    (Augmented(dataset=Cifar10()), 10),
    (Shakespeare(), None),
    (ParquetImages(path="images"), None),
    (ParquetImages(path="cifar10"), 10),
    (Subset(dataset=ParquetImages(path="emnist47"), classes=45), 45),
    (from_arrays([[1], [2], [3]], ["a", "a", "a"], test_share=0.3), 1),
]


@pytest.mark.parametrize(("source", "classes"), KNOWN)
def test_the_number_of_classes_is_known_without_the_data(
    source: Source, classes: int | None
) -> None:
    assert classes_of(source.model_dump(mode="json")) == classes


@pytest.mark.parametrize("source", [Digits(), Subset(dataset=Digits(), classes=3)])
def test_it_is_that_of_the_data(source: Source) -> None:
    classes = classes_of(source.model_dump(mode="json"))
    assert classes == source.load().num_classes


def test_every_built_in_dataset_is_known_or_in_the_list_above() -> None:
    listed = {type(source).__name__ for source, _ in KNOWN}
    built_in = {
        kind
        for kind, source in Source.kinds().items()
        if source.__module__.startswith("raysafl.")
    }
    assert built_in == listed
    assert set(CLASSES) <= built_in


def test_chance_is_one_in_so_many_classes(tiny: Run) -> None:
    config = tiny.replace(data=Federation(dataset=Emnist())).model_dump(mode="json")
    assert chance_of(config) == pytest.approx(1 / 45)
    assert math.isnan(chance_of({"data": {"kind": "Mine", "files": 3}}))
    assert math.isnan(chance_of({}))
