"""Data of one's own as arrays, or as a dataset of torch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from raysafl.core.client_indices import Ints
from raysafl.core.problem import Dataset, Features, Samples
from raysafl.core.randomness import Key
from raysafl.core.text import in_brief
from raysafl.data.in_memory import InMemory, in_memory
from raysafl.data.own_columns import (
    SHOWN,
    Array,
    Target,
    Targets,
    as_float32,
    counted,
    encode_columns,
    read_targets,
    read_words,
    refuse_not_finite,
)
from raysafl.data.sources import standardised

# The name of the column that `clients=` makes.
CLIENT = "client"
WHICH_TEST = (
    "there are no test data: give test= (samples of their own), or test_share=0.2 to "
    "keep a fifth of the samples, drawn at random, for testing"
)
# Numbers of channels of an image.
CHANNELS = (1, 3, 4)


class Block(NamedTuple):
    """Samples as the user gave them, with inputs that were checked and copied.

    Args:
        x: [n, ...] uint8 or float32, which belongs to nobody else; or texts.
        y: [n] or [n, K] targets of any type.
        columns: [n] values by which a partition may make clients, by name.
    """

    x: Array
    y: Array
    columns: dict[str, Array]


def source_of_blocks(
    blocks: Sequence[Block],
    rows: tuple[Ints, Ints] | None,
    *,
    kind: str,
    label: str,
    target: Target,
    names: Sequence[str] | None,
    standardise: bool,
    name: str,
    scale: float | None = None,
    features: Sequence[Any] = (),
    columns_of_target: Sequence[Any] = (),
    words: int | Sequence[str] | None = None,
) -> InMemory:
    """Make a source of a training block and a test block, or of one block.

    Args:
        blocks: the samples for training and those for testing, or all of them.
        rows: of one block, the rows for training and those for testing.
        kind: how messages call the dataset, if it has no name.
        label: how messages call the targets.
        target, names, standardise, name, scale: see `from_arrays`.
        features, columns_of_target: the names of these columns, if they have any.
        words: see `from_pandas`.

    Raises:
        ValueError: the targets or the columns do not fit.
    """
    counted_in = range(len(blocks[0].y)) if rows is None else rows[0]
    given = [block.y for block in blocks]
    if target == "tags":
        known = 500 if names is None else names
        tags, columns_of_target = read_words(given, label, known, counted_in, "|")
        numbers = range(1, len(columns_of_target) + 1)
        hot = [np.stack([(own == k).any(1) for k in numbers], 1) for own in tags]
        targets = Targets([y.astype(np.float32) for y in hot], 0, ())
    else:
        targets = read_targets(given, label, target, names)
    if words is not None:
        if standardise:
            raise ValueError("words= is for text, which standardise= does not fit")
        tokens, _ = read_words([own.x for own in blocks], "the text", words, counted_in)
        blocks = [own._replace(x=x) for own, x in zip(blocks, tokens, strict=True)]
    columns = encode_columns([block.columns for block in blocks])
    parts = [
        Samples(block.x, y, columns=own)
        for block, y, own in zip(blocks, targets.parts, columns, strict=True)
    ]
    if rows is not None:
        (whole,) = parts
        parts = [whole.take(part) for part in rows]
    train, test = parts
    check_parts(train, test)
    if targets.names and names is None:
        refuse_classes_only_in_test(train, test, targets.names)

    if scale is None:
        scale = 1 / 255 if train.x.dtype == np.uint8 else 1.0
    if not np.isfinite(scale) or scale == 0:
        raise ValueError(f"scale must be a finite number and not 0, not {scale}")
    train, test = (replace(part, scale=float(scale)) for part in (train, test))
    raw = Features(tuple(map(str, features)))
    if standardise and train.x.ndim == 2:
        raw = _standardising(train, raw.names)
        train, test = (
            replace(part, x=raw.standardised(part.x), scale=1.0)
            for part in (train, test)
        )
        standardise = False
    dataset = Dataset(name or kind, train, test, targets.num_classes, targets.names)
    of_target = tuple(map(str, columns_of_target))
    kind = targets.class_type
    dataset = replace(dataset, features=raw, targets=of_target, class_type=kind)
    return in_memory(standardised(dataset, standardise), name)


def from_arrays(
    x: Any,
    y: Any,
    *,
    test: Sequence[Any] | None = None,
    test_share: float | None = None,
    clients: Any = None,
    names: Sequence[str] | None = None,
    target: Target = "auto",
    scale: float | None = None,
    standardise: bool = False,
    seed: int = 0,
    name: str = "",
) -> InMemory:
    """Make a dataset of arrays of numpy, tensors of torch or lists.

    The arrays are copied, so that a later change of yours changes no run. Their digest
    identifies the data: equal arrays are the same run, other arrays are another run.

    Args:
        x: inputs [n, ...]: images [n, channels, height, width], or features [n, D].
            uint8 is kept and scaled when a batch is drawn; other numbers become
            float32.
        y: targets [n]. Text and whole numbers are classes, which are numbered in
            ascending order; fractions are numbers to predict (also [n, K]). See
            `target`.
        test: the test set, (x, y), or (x, y, clients).
        test_share: in place of `test`, the fraction of the samples that is kept for
            testing, drawn at random.
        clients: to whom each training sample belongs, [n] of text, whole numbers or
            dates; or several such columns by name. `ByColumn` makes clients of them;
            the column is called "client" if you give it no name.
        names: the names of the classes; targets are then whole numbers, the positions
            of their class in `names`.
        target: "class", "number" or "tags", see `from_pandas`.
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
    blocks = [_block_of_arrays(x, y, clients, "")]
    if test is not None:
        if not isinstance(test, tuple | list) or len(test) not in (2, 3):
            raise ValueError(
                "test must be a tuple (x, y), or (x, y, clients), of the test samples"
            )
        blocks.append(_block_of_arrays(test[0], test[1], [*test, None][2], "test "))
    check_test(test=test, test_share=test_share)
    rows = None
    if test_share is not None:
        rows = draw_test(len(blocks[0].x), test_share, seed)
    return source_of_blocks(
        blocks,
        rows,
        kind="arrays",
        label="y",
        target=target,
        names=names,
        standardise=standardise,
        name=name,
        scale=scale,
    )


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
        count = len(dataset)
        items = [dataset[0]] if count else []
    except (TypeError, NotImplementedError, AttributeError) as error:
        raise ValueError(
            f"the {place} dataset has no length or no items by number ({error}); give "
            "a map-style dataset, such as TensorDataset"
        ) from error
    if not count:
        raise ValueError(f"the {place} dataset is empty")
    if not isinstance(items[0], tuple | list) or len(items[0]) != 2:
        raise ValueError(
            f"the items of the {place} dataset must be pairs (input, target), but the "
            f"first is {in_brief(items[0])}"
        )
    # What is not a number is refused later, with its place.
    once, again = (_as_input(item[0]) for item in (items[0], dataset[0]))
    if not np.array_equal(once, again, equal_nan=True):
        raise ValueError(
            f"the {place} dataset gives another input each time that its first item is "
            "read, probably by a random transform; runs could not be repeated. Leave the "
            "random transform out"
        )
    items += [dataset[i] for i in range(1, count)]
    inputs = [_as_input(value) for value, _ in items]
    targets = [_as_number(target) for _, target in items]
    return _as_array(inputs, f"the inputs of the {place} dataset"), np.asarray(targets)


def _as_input(value: Any) -> Array:
    """Return an input as an array; an image of PIL with its channels first."""
    from PIL import Image

    if isinstance(value, Image.Image):
        return pixels_of(value)
    return _as_array(value, "an input")


def pixels_of(image: Any) -> NDArray[np.uint8]:
    """Return an image of PIL as [channels, height, width], with one or three channels."""
    pixels = np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)


def _as_number(value: Any) -> Any:
    """Return a target as a number or a text, or several of them as a list."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return value


def _as_array(value: Any, what: str) -> Array:
    """Return a tensor, a list or an array as an array of numpy."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{what} cannot be read as one array ({error}); all samples must have the "
            "same shape"
        ) from error


def _block_of_arrays(x: Any, y: Any, clients: Any, place: str) -> Block:
    """Check and copy the arrays of one part.

    Args:
        x: the inputs.
        y: the targets.
        clients: the column, or the columns by name, or None.
        place: stands before the names of these in messages.
    """
    inputs = _checked_inputs(_as_array(x, f"{place}x"), f"{place}x")
    targets = _as_array(y, f"{place}y")
    columns: Mapping[str, Any] = {}
    if clients is not None:
        columns = clients if isinstance(clients, Mapping) else {CLIENT: clients}
    arrays = {
        str(name): _as_array(values, f"{place}clients")
        for name, values in columns.items()
    }
    for name, array in {f"{place}y": targets, **arrays}.items():
        if array.ndim == 0 or len(array) != len(inputs):
            held = counted(len(array), "value") if array.ndim else "one value"
            raise ValueError(
                f"{place}x has {counted(len(inputs), 'sample')}, but {name} has {held}; "
                "give one for each sample"
            )
    wrong = [name for name, array in arrays.items() if array.ndim != 1]
    if wrong:
        raise ValueError(
            f"{place}clients must hold one value for each sample, but '{wrong[0]}' has "
            f"the shape {list(arrays[wrong[0]].shape)}"
        )
    return Block(inputs, targets, arrays)


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
    if not x.size:
        raise ValueError(f"{what} has the shape {list(x.shape)}: there are no samples")
    if x.dtype == np.uint8:
        _refuse_channels_last(x, what)
        return np.array(x, order="C")
    copied = as_float32(x)
    names = [f"column {i} of {what}" for i in range(x.shape[1])]
    refuse_not_finite(copied, names if x.ndim == 2 else [what])
    return copied


def _refuse_channels_last(x: Array, what: str) -> None:
    if x.ndim == 4 and x.shape[3] in CHANNELS and x.shape[1] not in CHANNELS:
        raise ValueError(
            f"{what} has the shape {list(x.shape)}, so the channels of its images are "
            "last; models need them first: give x.transpose(0, 3, 1, 2)"
        )


def check_test(**given: Any) -> None:
    """Check that test data are given in one way.

    Raises:
        ValueError: they are given in none of the ways, or in several.
    """
    names = [name for name, value in given.items() if value is not None]
    if not names:
        more = "; or split=, the column that says 'train' or 'test'"
        raise ValueError(f"{WHICH_TEST}{more if 'split' in given else ''}")
    if len(names) > 1:
        raise ValueError(
            f"test data are given by {' and by '.join(names)}; give one of them"
        )


def draw_test(count: int, share: float, seed: int) -> tuple[Ints, Ints]:
    """Draw which of `count` samples are for testing, uniformly without replacement.

    Args:
        count: the number of samples.
        share: the fraction for testing.
        seed: the seed of the draw.

    Returns:
        The rows for training and the rows for testing, both ascending.

    Raises:
        ValueError: the share is no fraction, or one of the parts would be empty.
    """
    if not isinstance(share, int | float) or not 0 < share < 1:
        raise ValueError(f"test_share must be above 0 and below 1, not {share!r}")
    tested = round(share * count)
    if not 0 < tested < count:
        raise ValueError(
            f"test_share={share} of {counted(count, 'sample')} keeps {tested} for "
            f"testing and {count - tested} for training; neither may be empty"
        )
    order = Key(seed)("test share").permutation(count)
    return np.sort(order[tested:]), np.sort(order[:tested])


def check_parts(train: Samples, test: Samples) -> None:
    """Check that a training set and a test set are there and fit together.

    Raises:
        ValueError: one is empty, or their inputs or targets differ in shape or type.
    """
    for part, name in ((train, "training"), (test, "test")):
        if not len(part):
            raise ValueError(f"the {name} set is empty; neither part may be")
    pairs = {"inputs": (train.x, test.x), "targets": (train.y, test.y)}
    for what, (one, other) in pairs.items():
        if one.shape[1:] != other.shape[1:] or one.dtype != other.dtype:
            raise ValueError(
                f"training {what} are {one.dtype} of shape {list(one.shape[1:])}, test "
                f"{what} {other.dtype} of shape {list(other.shape[1:])}; they must be alike"
            )


def refuse_classes_only_in_test(
    train: Samples, test: Samples, names: tuple[str, ...]
) -> None:
    """Refuse classes that the test set alone has, such as a name spelt otherwise.

    Raises:
        ValueError: there are some; the message names them.
    """
    known = np.unique(train.y)
    alone = np.setdiff1d(test.y, known)
    if len(alone):
        shown = ", ".join(repr(names[c]) for c in alone[:SHOWN])
        there = ", ".join(repr(names[c]) for c in known[:SHOWN])
        more = ", ..." if len(known) > SHOWN else ""
        raise ValueError(
            f"classes that no training sample has are in the test set: {shown} (the "
            f"training set has {there}{more}); correct the spelling, leave these samples "
            "out, or give another seed= for test_share"
        )


def _standardising(train: Samples, names: tuple[str, ...]) -> Features:
    """Standardise each feature by its training samples; constant ones become 0."""
    numbers = train.x.astype(np.float64)
    std_D = numbers.std(axis=0)
    std_D[std_D == 0] = 1
    return Features(names, tuple(numbers.mean(axis=0).tolist()), tuple(std_D.tolist()))
