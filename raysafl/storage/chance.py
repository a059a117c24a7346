"""The accuracy of guessing, from a run's configuration.

The number of classes is read from the configuration's JSON, because reading the data
would take long, and the classes of the datasets import torch, which reports do without.
"""

import math
from collections.abc import Mapping
from typing import Any

# Kind of a built-in dataset -> its number of classes. That of `Shakespeare` follows from
# its file.
CLASSES = {
    "Digits": 10,
    "Mnist": 10,
    "FashionMnist": 10,
    "Cifar10": 10,
    "Stl10": 10,
    "Synthetic": 10,
}
# Path of `ParquetImages` -> the number of classes of the dataset that the folder is named
# after. Those of other folders follow from their files.
FOLDERS = {"cifar10": 10, "emnist47": 47}
# Classes of EMNIST before some are dropped.
EMNIST_CLASSES = 47


def classes_of(dataset: Mapping[str, Any]) -> int | None:
    """Return the number of classes of a dataset, or None if only its data tell it.

    Args:
        dataset: the JSON of a dataset.

    Example:
        >>> classes_of({"kind": "Subset", "dataset": {"kind": "Mnist"}, "classes": 3})
        3
        >>> classes_of({"kind": "Subset", "dataset": {"kind": "Mnist"}, "classes": None})
        10
    """
    kind = dataset.get("kind")
    if kind == "Subset":
        return dataset.get("classes") or classes_of(dataset.get("dataset") or {})
    if kind == "Emnist":
        return EMNIST_CLASSES - len(dataset.get("drop") or [])
    if kind == "ParquetImages":
        return FOLDERS.get(str(dataset.get("path")))
    return CLASSES.get(str(kind))


def chance_of(config: Mapping[str, Any]) -> float:
    """Return the accuracy of guessing: 1 / number of classes; NaN if it is unknown.

    Args:
        config: the JSON of a run.
    """
    data = config.get("data") or {}
    classes = classes_of(data.get("dataset") or {})
    return 1 / classes if classes else math.nan
