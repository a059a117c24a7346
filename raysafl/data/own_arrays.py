"""Data of one's own as arrays, by which all other ways go, or as a dataset of torch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysafl.core.problem import Dataset, Features, Samples
from raysafl.core.randomness import Key
from raysafl.core.text import count, first_of
from raysafl.data.in_memory import InMemory, in_memory
from raysafl.data.own_columns import (
    SHOWN,
    Array,
    Target,
    Targets,
    as_float32,
    as_plain_array,
    check_columns,
    columns_as_float32,
    encode_columns,
    is_table,
    names_of,
    read_tags,
    read_targets,
    read_words,
    refuse_not_finite,
)
from raysafl.data.sources import standardised

# The name of the column that `clients=` makes.
CLIENT = "client"
# Numbers of channels of an image.
CHANNELS = (1, 3, 4)


def from_arrays(
    x: Any,
    y: Any,
    *,
    test: Any = None,
    test_share: float | None = None,
    clients: Any = None,
    names: Sequence[str] | None = None,
    words: int | Sequence[str] | None = None,
    target: Target = "auto",
    scale: float | None = None,
    standardise: bool = False,
    seed: int = 0,
    name: str = "",
) -> InMemory:
    """Make a dataset of arrays of numpy, tensors of torch, tables of pandas or lists.

    The arrays are copied, so that a later change of yours changes no run. Their digest
    identifies the data: equal arrays are the same run, other arrays are another run.

    Args:
        x: inputs [n, ...]: images [n, channels, height, width], or features [n, D].
            uint8 is kept and scaled when a batch is drawn; other numbers, and the columns
            of a DataFrame, become float32.
        y: targets [n]. Text and whole numbers are classes, which are numbered in
            ascending order; fractions are numbers to predict (also [n, K]).
        test: the test set, (x, y), or (x, y, clients); or which of the samples are for
            testing, an array [n] of booleans.
        test_share: in place of `test`, the fraction of the samples that is kept for
            testing, drawn at random.
        clients: to whom each training sample belongs, [n] of text, whole numbers or
            dates; or several such columns by name, or as a DataFrame. `ByColumn` makes
            clients of them; a column without a name is called "client".
        names: the names of the classes; targets are then whole numbers, the positions
            of their class in `names`. Or the tags to predict; by default the 500 most
            frequent ones of the training samples.
        words: if inputs are text, for `BagOfWords`: the number of known words, the most
            frequent ones of the training samples, or which. Words are parted by space.
        target: "class" or "number", if "auto" does not tell it by the targets' type; or
            for `MultiLabel` "tags", which are text such as "bird|red".
        scale: the factor of each input; by default 1/255 for uint8, and 1 otherwise.
        standardise: whether inputs get the mean 0 and the standard deviation 1 over the
            training samples: each column of [n, D] by itself, and images as a whole.
        seed: the seed of the draw of `test_share`.
        name: a name for messages, figures and the configuration.

    Returns:
        A source for `Federation(dataset=...)`.

    Raises:
        ValueError: the data do not fit together, or hold something that is no number;
            the message says where.

    Example:
        >>> import numpy as np
        >>> import raysafl as fl
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(100, 4))
        >>> town = np.repeat(["Bern", "Genf"], 50)
        >>> source = fl.from_arrays(
        ...     x, x[:, 0] > 0, test_share=0.2, clients=town, names=None
        ... )
        >>> data = fl.Federation(
        ...     dataset=source, clients=2, partition=fl.ByColumn(column="client")
        ... )
        >>> dataset = data.load()
        >>> split = data.split(dataset, seed=0)
        >>> len(dataset.train), data.client_names(dataset, split)
        (80, ('Bern', 'Genf'))
    """
    given = [_read_items(x, y, clients, "", words)]
    check_test(test=test, test_share=test_share)
    is_test = np.zeros(len(given[0][0]), bool)
    if isinstance(test, tuple | list) and len(test) in (2, 3):
        given.append(_read_items(test[0], test[1], [*test, None][2], "test ", words))
        _check_same_columns((x, y), test)
    else:
        is_test = _which_are_tests(test, test_share, seed, len(is_test))
    features = Features(names_of(x) if words is None else ())
    inputs, labels, columns = zip(*given, strict=True)
    label_names = names_of(y)
    label = f"the label column {' and '.join(map(repr, label_names))}"
    what = label if label_names else "y"
    counted_in = np.flatnonzero(~is_test)
    if target == "tags":
        known = 500 if names is None else names
        targets, label_names = read_tags(labels, what, known, counted_in)
    else:
        targets = read_targets(labels, what, target, names)
    if words is not None:
        if standardise:
            raise ValueError("words= is for text, which standardise= does not fit")
        inputs = tuple(read_words(inputs, "the text", words, counted_in)[0])
    parts = [
        Samples(x, y, columns=own)
        for x, y, own in zip(
            inputs, targets.parts, encode_columns(columns), strict=True
        )
    ]
    if len(parts) == 1:
        parts = [parts[0].take(~is_test), parts[0].take(is_test)]
    if scale is None:
        scale = 1 / 255 if parts[0].x.dtype == np.uint8 else 1.0
    if not np.isfinite(scale) or scale == 0:
        raise ValueError(f"scale must be a finite number and not 0, not {scale}")
    parts = [replace(part, scale=float(scale)) for part in parts]
    made = dataset_of_parts(name or "arrays", parts, targets, names)
    dataset = replace(made, features=features, targets=label_names)
    if standardise and dataset.train.x.ndim == 2:
        dataset = _standardised_columns(dataset)
        standardise = False
    return in_memory(standardised(dataset, standardise), name)


def from_torch(
    train: Any,
    test: Any = None,
    *,
    names: Sequence[str] | None = None,
    **options: Any,
) -> InMemory:
    """Make a dataset of a `torch.utils.data.Dataset`, whose items are pairs (input, target).

    All items are read once. An input is a tensor, an array, a number or an image of
    PIL; images of PIL become uint8 [channels, height, width].

    Args:
        train: the training set; anything with a length and items by number.
        test: the test set.
        names: the names of the classes; by default those in the attribute `classes`, as
            the datasets of torchvision have it.
        options: all other arguments of `from_arrays`, such as `test_share` in place of
            `test`.

    Raises:
        ValueError: an item is no pair; inputs differ in shape; or an item differs each
            time that it is read, as with a random transform, so that no digest could
            identify the data.

    Example:
        >>> import torch
        >>> import raysafl as fl
        >>> from torch.utils.data import TensorDataset, random_split
        >>> whole = TensorDataset(torch.rand(50, 3), torch.arange(50) % 2)
        >>> source = fl.from_torch(*random_split(whole, [40, 10]))
        >>> source.load().train.x.shape
        (40, 3)
    """
    x, y = _items(train, "train")
    classes = getattr(train, "classes", None)
    if names is None and classes is not None and y.dtype.kind in "iu":
        names = list(map(str, classes))
    pair = None if test is None else _items(test, "test")
    return from_arrays(x, y, test=pair, names=names, **options)


def _items(dataset: Any, place: str) -> tuple[Array, Array]:
    """Read all items of a dataset of torch as inputs and targets."""
    try:
        items = [(x, y) for x, y in (dataset[i] for i in range(len(dataset)))]
        again, _ = dataset[0]
    except (TypeError, ValueError, NotImplementedError, LookupError) as error:
        raise ValueError(
            f"the {place} dataset must have a length, and pairs (input, target) as its "
            f"items by number, as TensorDataset has ({error})"
        ) from error
    # What is not a number is refused later, with its place.
    inputs = [_as_array(value, "an input") for value, _ in items]
    if not np.array_equal(inputs[0], _as_array(again, "an input"), equal_nan=True):
        raise ValueError(
            f"the {place} dataset gives another input each time that its first item is "
            "read, probably by a random transform; runs could not be repeated. Leave the "
            "random transform out"
        )
    targets = [y.tolist() if hasattr(y, "tolist") else y for _, y in items]
    return _as_array(inputs, f"the inputs of the {place} dataset"), np.asarray(targets)


def pixels_of(image: Any) -> NDArray[np.uint8]:
    """Return an image of PIL as [channels, height, width], with one or three channels."""
    pixels = np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)


def _as_array(value: Any, what: str) -> Array:
    """Return a tensor, a list, columns of pandas or an image of PIL as an array of numpy."""
    if hasattr(value, "getbands"):
        return pixels_of(value)
    if is_table(value) and value.shape[1] != 1:
        return columns_as_float32(value, what)
    if hasattr(value, "iloc"):
        return as_plain_array(value.iloc[:, 0] if is_table(value) else value)
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{what} cannot be read as one array ({error}); all samples must have the "
            "same shape"
        ) from error


def _read_items(
    x: Any, y: Any, clients: Any, place: str, words: Any
) -> tuple[Array, Array, dict[str, Array]]:
    """Check and copy the inputs, the targets and the columns by name of one part.

    Args:
        x: the inputs.
        y: the targets.
        clients: the column, or the columns by name, or None.
        place: stands before the names of these in messages.
        words: None: inputs are numbers; otherwise they are text.
    """
    for role, table in {"features": x, "labels": y, "clients": clients}.items():
        if is_table(table):
            check_columns(table, (), f" of {place}{role}")
    if words is not None:
        inputs = np.asarray(x, object)
    elif is_table(x):
        inputs = columns_as_float32(x, f"{place}feature")
    else:
        inputs = _checked_inputs(_as_array(x, f"{place}x"), f"{place}x")
    if not inputs.ndim or not inputs.size:
        shape = list(inputs.shape)
        raise ValueError(f"{place}x has the shape {shape}: there are no samples")
    targets = _as_array(y, f"{place}{'label' if hasattr(y, 'iloc') else 'y'}")
    columns: Mapping[str, Any] = {}
    if clients is not None:
        is_named = isinstance(clients, Mapping) or is_table(clients)
        columns = clients if is_named else {CLIENT: clients}
    arrays = {
        str(name): _as_array(values, f"{place}clients")
        for name, values in columns.items()
    }
    for name, array in {f"{place}y": targets, **arrays}.items():
        is_deep = name in arrays and array.ndim > 1
        if array.shape[:1] != (len(inputs),) or is_deep or not array.size:
            raise ValueError(
                f"{place}x has {count(len(inputs), 'sample')}, but {name} has the shape "
                f"{list(array.shape)}; give one value for each sample"
            )
    return inputs, targets, arrays


def _check_same_columns(train: Sequence[Any], test: Sequence[Any]) -> None:
    """Check that tables of inputs, or targets, have the same columns in the same order."""
    for one, other, role in zip(train, test, ("feature", "label"), strict=False):
        names = names_of(one)
        if is_table(one) and is_table(other) and names != names_of(other):
            raise ValueError(
                f"training and testing need the same {role} columns in the same order; "
                "give the table of test as table[train.columns]"
            )


def _checked_inputs(x: Array, what: str) -> Array:
    """Return a copy of inputs as uint8 or float32, if they are finite numbers."""
    if x.dtype.kind not in "fiub":
        raise ValueError(
            f"{what} must hold numbers, but its type is {x.dtype}; if its samples have "
            "different shapes, make them alike; encode text as numbers"
        )
    if x.ndim < 2:
        raise ValueError(
            f"{what} has the shape {list(x.shape)}; give [n, D] for n samples of D "
            "features (x.reshape(-1, 1) for one), or [n, channels, height, width]"
        )
    if x.dtype == np.uint8:
        if x.ndim == 4 and x.shape[3] in CHANNELS and x.shape[1] not in CHANNELS:
            raise ValueError(
                f"{what} has the shape {list(x.shape)}, so the channels of its images are "
                "last; models need them first: give x.transpose(0, 3, 1, 2)"
            )
        return np.array(x, order="C")
    copied = as_float32(x)
    names = [f"column {i} of {what}" for i in range(x.shape[1])]
    refuse_not_finite(copied, names if x.ndim == 2 else [what])
    return copied


def check_test(**given: Any) -> None:
    """Check that test data are given in one way.

    Raises:
        ValueError: they are given in none of the ways, or in several.
    """
    names = [name for name, value in given.items() if value is not None]
    if not names:
        raise ValueError(
            "there are no test data: give test= (samples of their own), test_share=0.2 "
            "to keep a fifth of the samples, drawn at random, for testing, or of a table "
            "split=, the column that says 'train' or 'test'"
        )
    if len(names) > 1:
        raise ValueError(
            f"test data are given by {' and by '.join(names)}; give one of them"
        )


def _which_are_tests(
    test: Any, share: float | None, seed: int, count: int
) -> NDArray[np.bool_]:
    """Return which of `count` samples are for testing.

    Args:
        test: booleans that say it, or None.
        share: the fraction that is drawn uniformly without replacement, or None.
        seed: the seed of the draw.
        count: the number of samples.

    Raises:
        ValueError: the share is no fraction, or `test` no booleans.
    """
    if share is not None:
        if not isinstance(share, int | float) or not 0 < share < 1:
            raise ValueError(f"test_share must be above 0 and below 1, not {share!r}")
        return Key(seed)("test share").permutation(count).argsort() < round(
            share * count
        )
    is_test = np.asarray(test)
    if is_test.dtype != bool or is_test.shape != (count,):
        raise ValueError(
            "test must be a tuple (x, y), or (x, y, clients), of the test samples, or "
            f"say by {count} booleans which samples are for testing"
        )
    return is_test


def dataset_of_parts(
    name: str,
    parts: Sequence[Samples],
    targets: Targets,
    names: Sequence[str] | None,
) -> Dataset:
    """Make a dataset of a training set and a test set, if they fit together.

    Args:
        name: the name of the dataset.
        parts: the samples for training, and those for testing.
        targets: what their targets are.
        names: the names of the classes, where they are given and not those of the data.

    Raises:
        ValueError: a part is empty; their inputs or targets differ in shape or type; or
            the test set alone has a class, such as a name spelt otherwise.
    """
    train, test = parts
    for part, which in ((train, "training"), (test, "test")):
        if not len(part):
            raise ValueError(f"the {which} set is empty; neither part may be")
    pairs = {"inputs": (train.x, test.x), "targets": (train.y, test.y)}
    for what, (one, other) in pairs.items():
        if one.shape[1:] != other.shape[1:] or one.dtype != other.dtype:
            raise ValueError(
                f"training {what} are {one.dtype} of shape {list(one.shape[1:])}, test "
                f"{what} {other.dtype} of shape {list(other.shape[1:])}; they must be alike"
            )
    alone = np.setdiff1d(test.y, train.y)
    if names is None and targets.names and len(alone):
        known = [repr(targets.names[c]) for c in np.unique(train.y)]
        raise ValueError(
            "classes that no training sample has are in the test set: "
            f"{first_of([repr(targets.names[c]) for c in alone], SHOWN)} (the training "
            f"set has {first_of(known, SHOWN)}); correct the spelling, leave these "
            "samples out, or give another seed= for test_share"
        )
    kind = targets.class_type
    classes = targets.num_classes
    return Dataset(name, train, test, classes, targets.names, class_type=kind)


def _standardised_columns(dataset: Dataset) -> Dataset:
    """Standardise each feature by its training samples; constant ones become 0."""
    numbers = dataset.train.x.astype(np.float64)
    std_D = numbers.std(axis=0)
    std_D[std_D == 0] = 1
    mean_D = numbers.mean(axis=0)
    raw = replace(
        dataset.features, mean=tuple(mean_D.tolist()), std=tuple(std_D.tolist())
    )
    train, test = (
        replace(part, x=raw.standardised(part.x), scale=1.0)
        for part in (dataset.train, dataset.test)
    )
    return replace(dataset, train=train, test=test, features=raw)
