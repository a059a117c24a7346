"""A dataset that was given in memory, named by a digest of its content.

A configuration is JSON, which holds no data. So a source that was made from arrays names
the digest of its content, by which its data are found in this process. They are kept for
as long as a source uses them.
"""

import hashlib
import json
from dataclasses import replace
from typing import Any, Self
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from raysafl.core.problem import Dataset, Samples
from raysafl.data.sources import MAKERS, Source

_here: WeakValueDictionary[str, Dataset] = WeakValueDictionary()


class InMemory(Source):
    """Data that were given in memory; `from_arrays` and its like return it.

    Its JSON holds no data but the SHA-256 of all that the data are: inputs, targets,
    names of classes, columns for partitions, and which samples are for testing. So
    equal data are the same run, wherever they come from, and other data are another
    run. The data themselves are in this process, once, and in Ray's object store while
    a sweep runs. A pickle holds none of them.

    A configuration that is read from JSON finds its data if the same source was made
    before in this session.

    Example:
        >>> import numpy as np
        >>> import raysafl as fl
        >>> x = np.arange(12.0).reshape(6, 2)
        >>> y = np.array(["cat", "dog", "cat", "dog", "cat", "dog"])
        >>> source = fl.from_arrays(x[:4], y[:4], test=(x[4:], y[4:]))
        >>> source.num_classes, source.load().names
        (2, ('cat', 'dog'))
        >>> fl.data.Source.from_json(source.to_json()) == source
        True
    """

    content: str = Field(
        pattern="^[0-9a-f]{64}$", description="SHA-256 of the data (hexadecimal)."
    )
    num_classes: int = Field(
        ge=0, description="Number of classes; 0: the targets are numbers."
    )
    name: str = Field(
        default="",
        description="A name for messages and figures; it is a part of the run's id.",
    )
    _dataset: Dataset | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any, /) -> None:
        """Find the data, and refer to them, so that they are kept.

        A source that was pickled is not made anew, and finds its data in `load`.

        Raises:
            ValueError: this process does not have them; the message says what to do.
        """
        self.load()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and dict(other) == dict(self)

    def __getstate__(self) -> dict[Any, Any]:
        return {**super().__getstate__(), "__pydantic_private__": {"_dataset": None}}

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        # Neither the source nor its data can change. Tune copies what a search space
        # holds.
        return self

    def load(self) -> Dataset:
        """Return the data, which are not copied.

        Raises:
            ValueError: this process does not have them; the message says what to do.
        """
        dataset = self._dataset or _here.get(self.content)
        if dataset is None:
            name = f" '{self.name}'" if self.name else ""
            raise ValueError(
                f"the data{name} of this configuration (content {self.content[:12]}...) were "
                "given in memory, and JSON and pickles hold their digest only; make the same "
                f"source again in this process, with {MAKERS} on the same data, before "
                "reading or using the configuration"
            )
        self._dataset = dataset
        return replace(dataset, name=self.name or dataset.name)


def in_memory(dataset: Dataset, name: str) -> InMemory:
    """Return a source of a dataset, whose arrays nobody can change from now on.

    Args:
        dataset: the dataset, whose arrays belong to nobody else.
        name: the name that the user gave, or "".
    """
    for part in (dataset.train, dataset.test):
        for array in (part.x, part.y, *(c.codes for c in part.columns.values())):
            array.setflags(write=False)
    content = content_of(dataset)
    # Equal data are in memory once, for as long as this variable or a source has them.
    known = _here.setdefault(content, dataset)
    fields = ("features", "targets", "class_type")
    now = {field: getattr(dataset, field) for field in fields}
    if any(getattr(known, field) != value for field, value in now.items()):
        # The values are the same; their columns have got other names, unit or type.
        known = _here[content] = replace(known, **now)
    return InMemory(content=content, num_classes=known.num_classes, name=name)


def content_of(dataset: Dataset) -> str:
    """Return the SHA-256 of all that a dataset holds, its name excepted."""
    sha = hashlib.sha256()
    head = {"classes": dataset.num_classes, "names": dataset.names}
    _add_text(sha, head)
    for part in (dataset.train, dataset.test):
        _add_samples(sha, part)
    return sha.hexdigest()


def _add_samples(sha: Any, part: Samples) -> None:
    columns = dict(sorted(part.columns.items()))
    values = {name: column.values for name, column in columns.items()}
    _add_text(sha, {"scale": part.scale, "shift": part.shift, "columns": values})
    for array in (part.x, part.y, *(column.codes for column in columns.values())):
        _add_array(sha, array)


def _add_text(sha: Any, content: Any) -> None:
    text = json.dumps(content).encode()
    sha.update(len(text).to_bytes(8, "little") + text)


def _add_array(sha: Any, array: NDArray[Any]) -> None:
    """Hash type, shape and numbers, in the byte order of most machines."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    _add_text(sha, [little.dtype.str, little.shape])
    sha.update(np.ascontiguousarray(little).reshape(-1).view(np.uint8).data)
