"""Datasets that exist in the memory of a process only, by the digest of their content.

A configuration is JSON, which holds no data. A source that was made from arrays names
the digest of its content instead, and its data are found here. They are kept for as
long as a source uses them. In another process, such as a trial of Ray Tune, they are
fetched when they are first needed.
"""

from collections.abc import Callable
from weakref import WeakValueDictionary

from raysafl.core.problem import Dataset

_here: WeakValueDictionary[str, Dataset] = WeakValueDictionary()
_elsewhere: dict[str, Callable[[], Dataset]] = {}


def hold(content: str, dataset: Dataset) -> Dataset:
    """Make a dataset known in this process, for as long as somebody refers to it.

    Args:
        content: the digest of its content.
        dataset: the dataset.

    Returns:
        The dataset that is known by this digest. Equal data are in memory once.
    """
    return _here.setdefault(content, dataset)


def hold_elsewhere(content: str, fetch: Callable[[], Dataset]) -> None:
    """Say how a dataset that another process holds is fetched.

    Args:
        content: the digest of its content.
        fetch: returns the dataset.
    """
    _elsewhere[content] = fetch


def find_held(content: str) -> Dataset | None:
    """Return the dataset with a digest, fetching it if need be; None if it is unknown."""
    dataset = _here.get(content)
    if dataset is None and content in _elsewhere:
        dataset = hold(content, _elsewhere[content]())
    return dataset


def held_in_process() -> dict[str, Dataset]:
    """Return all datasets that this process holds, by the digests of their contents."""
    return dict(_here)
