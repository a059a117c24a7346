"""Datasets that exist in the memory of a process only, by the digest of their content.

A configuration is JSON, which holds no data. A source that was made from arrays names
the digest of its content instead, and its data are found here. They are kept for as
long as a source uses them.
"""

from weakref import WeakValueDictionary

from raysafl.core.problem import Dataset

_here: WeakValueDictionary[str, Dataset] = WeakValueDictionary()


def hold(content: str, dataset: Dataset) -> Dataset:
    """Make a dataset known in this process, for as long as somebody refers to it.

    Args:
        content: the digest of its content.
        dataset: the dataset.

    Returns:
        The dataset that is known by this digest. Equal data are in memory once.
    """
    return _here.setdefault(content, dataset)


def find_held(content: str) -> Dataset | None:
    """Return the dataset with a digest; None if this process does not hold it."""
    return _here.get(content)
