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


def classes_of(dataset: Any) -> int | None:
    """Return the number of classes of a dataset, or None if only its data tell it.

    Args:
        dataset: the JSON of a dataset. Anything else, as in the entry of a run that
            was damaged, has no number of classes.

    Example:
        >>> classes_of({"kind": "Subset", "dataset": {"kind": "Mnist"}, "classes": 3})
        3
        >>> classes_of({"kind": "Subset", "dataset": {"kind": "Mnist"}, "classes": None})
        10
    """
    if not isinstance(dataset, Mapping):
        return None
    kind = dataset.get("kind")
    if kind in ("Subset", "Augmented"):
        classes = dataset.get("classes")
        return (
            classes if isinstance(classes, int) else classes_of(dataset.get("dataset"))
        )
    if kind == "Emnist":
        dropped = dataset.get("drop")
        return EMNIST_CLASSES - (len(dropped) if isinstance(dropped, list) else 0)
    if kind == "InMemory":
        classes = dataset.get("num_classes")
        return classes if isinstance(classes, int) else None
    if kind == "ParquetImages":
        return FOLDERS.get(str(dataset.get("path")))
    return CLASSES.get(str(kind))


def chance_of(config: Mapping[str, Any]) -> float:
    """Return the accuracy of guessing: 1 / number of classes; NaN if it is unknown.

    Args:
        config: the JSON of a run.
    """
    data = config.get("data")
    classes = classes_of(data.get("dataset")) if isinstance(data, Mapping) else None
    return 1 / classes if classes and classes > 0 else math.nan
