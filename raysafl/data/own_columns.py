"""What the user's own columns mean: classes, numbers to predict, features, clients.

All checks of these are here. They name the column, how many rows are wrong, and the
first of them, counted from 0.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from raysafl.core.client_indices import Ints
from raysafl.core.problem import Column
from raysafl.core.text import count, first_of, in_brief, nearest

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[Any]
# What the targets are; "auto" decides by their type.
Target: TypeAlias = Literal["class", "number", "tags", "auto"]
TARGETS = ("class", "number", "tags", "auto")
# Whole numbers with more distinct values are no classes unless the user says so.
MOST_CLASSES = 100
# As which types of numpy a kept model predicts classes that are no text.
CLASS_TYPES = {"boolean": "bool", "whole numbers": "int64", "fractions": "float64"}
# The number of wrong values or columns that a message names.
SHOWN = 5
FILL = "Drop these rows, or fill the values in, for example with the column's median"


class Targets(NamedTuple):
    """The targets of one or more parts of a dataset.

    Args:
        parts: for each part int64 labels [n], or float32 numbers [n] or [n, K].
        num_classes: the number of classes; 0 for numbers.
        names: the names of the classes.
        class_type: what classes were before they became text, as in `Dataset`.
    """

    parts: list[Array]
    num_classes: int
    names: tuple[str, ...]
    class_type: str = "str"


def read_targets(
    parts: Sequence[Array],
    what: str,
    target: Target = "auto",
    names: Sequence[str] | None = None,
) -> Targets:
    """Read targets as classes or as numbers.

    Fractions become numbers to predict; whole numbers, text, booleans and dates become
    classes, in the ascending order of their values. `target` decides otherwise.

    Args:
        parts: the targets of each part, [n] or [n, K].
        what: how a message calls them.
        target: what they are.
        names: the names of the classes; labels are their positions then.

    Raises:
        ValueError: a target is missing or no number; or it is unclear what they are.
    """
    if target not in TARGETS:
        raise ValueError(
            f"target={target!r} is unknown: {nearest(str(target), TARGETS)}"
        )
    floats = all(part.dtype.kind == "f" for part in parts)
    is_auto = target == "auto"
    if target == "number" or (is_auto and floats and names is None):
        if names is not None:
            raise ValueError("names= names classes, and target='number' has none")
        return Targets([_as_numbers(part, what) for part in parts], 0, ())
    for part in parts:
        if part.ndim != 1:
            raise ValueError(
                f"{what} has the shape {list(part.shape)}; give one class for each "
                "sample (of one-hot rows, y.argmax(axis=1)), or target='number' to "
                "predict several numbers, or several tags that are 0 or 1"
            )
    if names is not None:
        return _as_positions(parts, what, names)
    column, codes = encode(parts, what)
    whole = all(part.dtype.kind in "iu" for part in parts)
    if whole and is_auto and len(column) > MOST_CLASSES:
        raise ValueError(
            f"{what} holds whole numbers with {len(column):,} distinct values; give "
            "target='number' to predict the number, or target='class' if each value "
            "is a class"
        )
    kind = CLASS_TYPES.get(_kind_of_array(parts[0]), "str")
    if kind == "int64" and int(column[-1]) >= 2**63:
        kind = "str"
    return Targets(list(codes), len(column), column, kind)


def _as_numbers(part: Array, what: str) -> Array:
    """Return numbers to predict as float32 [n], or [n, K] with K > 1."""
    if part.dtype.kind not in "fiub":
        raise ValueError(
            f"{what} holds {_kind_of_array(part)}, which cannot be predicted as a number; give "
            "target='class'"
        )
    if part.ndim > 2:
        raise ValueError(
            f"{what} has the shape {list(part.shape)}; give [n], or [n, K] for K "
            "numbers a sample"
        )
    numbers = as_float32(part)
    refuse_not_finite(numbers, [what], "Drop these rows: a target must be known")
    return numbers[:, 0].copy() if numbers.shape[1:] == (1,) else numbers


def _as_positions(parts: Sequence[Array], what: str, names: Sequence[str]) -> Targets:
    """Return labels that are positions in `names`."""
    texts = tuple(map(str, names if np.ndim(names) == 1 else ()))
    if len(set(texts)) < len(texts) or not texts:
        raise ValueError(
            "names must hold the name of each class once, in the order of their "
            f"numbers, such as names=['cat', 'dog'], not {names!r}"
        )
    for part in parts:
        if part.dtype.kind not in "iu":
            raise ValueError(
                f"{what} holds {_kind_of_array(part)}; with names=, labels are whole numbers "
                f"from 0 to {len(texts) - 1}. Leave names= out if the labels are the "
                "names"
            )
        wrong = np.flatnonzero((part < 0) | (part >= len(texts)))
        if len(wrong):
            raise ValueError(
                f"{what} holds the label {part[wrong[0]]} (row {wrong[0]}), but names= "
                f"names {len(texts)} classes, 0 to {len(texts) - 1}"
            )
    return Targets([part.astype(np.int64) for part in parts], len(texts), texts)


def encode(
    parts: Sequence[Array], what: str, advice: str = "drop these rows, or fill them in"
) -> tuple[tuple[str, ...], list[Ints]]:
    """Number the distinct values of a column in ascending order.

    Args:
        parts: the values [n] of each part.
        what: how a message calls the column.
        advice: what to do about missing values.

    Returns:
        The distinct values as text, and for each part the position of each value.

    Raises:
        ValueError: a value is missing, or the values are of several types.
    """
    import pandas as pd

    for part in parts:
        missing = np.flatnonzero(pd.isna(part))
        if len(missing):
            raise ValueError(
                f"{what} has {count(len(missing), 'row')} without a value (the first "
                f"is row {missing[0]}); {advice}"
            )
    whole = np.concatenate(parts) if len(parts) > 1 else parts[0]
    kinds = sorted({_kind_of_array(part) for part in parts})
    if len(kinds) > 1 or kinds[0].startswith("mixed"):
        types = sorted({type(v).__name__ for part in parts for v in part.tolist()})
        raise ValueError(
            f"{what} holds values of several types ({', '.join(types)}); turn them into "
            "one, for example by .astype(str)"
        )
    codes, values = pd.factorize(whole, sort=True)
    texts = _as_texts(values)
    ends = np.cumsum([len(part) for part in parts])[:-1]
    return texts, np.split(codes.astype(np.int64), ends)


def read_words(
    parts: Sequence[Array],
    what: str,
    known: Any,
    counted_in: Iterable[int],
    between: str | None = None,
) -> tuple[list[Ints], tuple[str, ...]]:
    """Number words by how often samples have them, or as `known` names them.

    Args:
        parts: texts [n], or [n, T] for T of them per sample, of each part.
        what: how a message calls them.
        known: the number of known words, the most frequent ones; or which.
        counted_in: the rows of the first part where words are counted.
        between: what parts the words of a text; None: space.

    Returns:
        For each part int64 [n, L], the words from 1, -1 for unknown ones and 0 after the
        last; and the known words.

    Raises:
        ValueError: a sample holds no text, `known` is neither a whole number above 0 nor
            a list of text, or none of its words is in the rows that are counted.
    """
    lists: list[list[list[str]]] = [[] for _ in parts]
    for own, part in zip(lists, parts, strict=True):
        for row, cells in enumerate(part.reshape(len(part), -1)):
            if not all(isinstance(cell, str) for cell in cells):
                raise ValueError(
                    f"{what} holds no text in row {row}; '' stands for none"
                )
            texts = [text.strip() for cell in cells for text in cell.split(between)]
            own.append([text for text in texts if text])
    counts = Counter(word for row in counted_in for word in lists[0][row])
    if isinstance(known, int | np.integer) and not isinstance(known, bool):
        known = sorted(counts, key=lambda word: (-counts[word], word))[: max(0, known)]
    is_list = np.ndim(known) == 1 and all(isinstance(word, str) for word in known)
    entries = [*map(str, known)] if is_list else []
    number = {word: i for i, word in enumerate(entries, 1)}
    if not 0 < len(number) == len(entries):
        raise ValueError(
            f"{in_brief(known)} are the known entries of {what}; give a whole number "
            "above 0, or a list of text with each once"
        )
    if not number.keys() & counts.keys():
        common = first_of([repr(word) for word, _ in counts.most_common(SHOWN)], SHOWN)
        raise ValueError(
            f"{in_brief(known)} are the known entries of {what}, and no training sample "
            f"has any of them; the most frequent ones there are {common or 'none'}"
        )
    longest = max(len(words) for own in lists for words in own)
    found = [np.zeros((len(own), longest), np.int64) for own in lists]
    for array, own in zip(found, lists, strict=True):
        for numbers, words in zip(array, own, strict=True):
            numbers[: len(words)] = [number.get(word, -1) for word in words]
    return found, tuple(entries)


def read_tags(
    parts: Sequence[Array], what: str, known: Any, counted_in: Iterable[int]
) -> tuple[Targets, tuple[str, ...]]:
    """Read texts such as `java|regex` as targets: 1 for each tag of a sample, else 0.

    Args:
        parts, what, known, counted_in: see `read_words`.

    Returns:
        The targets, float32 [n, tags] of each part; and the tags.
    """
    numbered, tags = read_words(parts, what, known, counted_in, "|")
    numbers = range(1, len(tags) + 1)
    hot = [np.stack([(own == k).any(1) for k in numbers], 1) for own in numbered]
    return Targets([part.astype(np.float32) for part in hot], 0, ()), tags


def _as_texts(values: Any) -> tuple[str, ...]:
    """Write values as text: whole numbers without a point, dates without midnight."""
    array = np.asarray(values)
    if array.dtype.kind == "f" and (array == np.rint(array)).all():
        array = array.astype(np.int64)
    if array.dtype.kind == "M":
        import pandas as pd

        array = np.array([str(pd.Timestamp(value)) for value in array])
    texts = [str(value) for value in array.tolist()]
    midnight = " 00:00:00"
    if texts and all(text.endswith(midnight) for text in texts):
        texts = [text.removesuffix(midnight) for text in texts]
    return tuple(texts)


def _kind_of_array(part: Array) -> str:
    """Name the type of the values of an array."""
    import pandas as pd

    if part.ndim > 1:
        return str(part.dtype)
    kind = str(pd.api.types.infer_dtype(part, skipna=True))
    return {"string": "text", "integer": "whole numbers", "floating": "fractions"}.get(
        kind, kind
    )


def encode_columns(
    parts: Sequence[dict[str, Array]],
) -> list[dict[str, Column]]:
    """Encode the columns by which a partition may make clients.

    Args:
        parts: the columns of each part, by name. A part may lack a column.
    """
    found: list[dict[str, Column]] = [{} for _ in parts]
    for name in dict.fromkeys(name for part in parts for name in part):
        having = [i for i, part in enumerate(parts) if name in part]
        advice = (
            "a client needs a name; drop these rows, or fill them in, for example "
            "with 'unknown'"
        )
        what = f"the client column '{name}'"
        values, codes = encode([parts[i][name] for i in having], what, advice)
        for i, own in zip(having, codes, strict=True):
            found[i][name] = Column(own, values)
    return found


def as_float32(array: Array) -> NDArray[np.float32]:
    """Return a new array of float32. What is too large for it becomes infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array(array, np.float32, order="C")


def is_table(given: Any) -> bool:
    """Return whether data are a table of pandas, and not one column or an array."""
    return hasattr(given, "iloc") and given.ndim == 2


def names_of(given: Any) -> tuple[str, ...]:
    """Return the names of the columns of a table of pandas; nothing of other data."""
    if not hasattr(given, "iloc"):
        return ()
    names = given.columns if is_table(given) else [given.name]
    return tuple(str(name) for name in names if name is not None)


def check_columns(df: "pd.DataFrame", needed: Iterable[Any], place: str) -> None:
    """Check that a table has some columns, and each column once.

    Raises:
        ValueError: it does not; the message gives the nearest name of what is missing.
    """
    twice = sorted(map(str, set(df.columns[df.columns.duplicated()])))
    if twice:
        raise ValueError(
            f"the table{place} has several columns {', '.join(twice)}; rename them"
        )
    missing = [str(name) for name in needed if name not in df.columns]
    if missing:
        raise ValueError(
            f"the table{place} lacks the columns {first_of(missing, SHOWN)}: "
            f"{nearest(missing[0], map(str, df.columns))}"
        )


def as_plain_array(column: "pd.Series[Any]") -> Array:
    """Return a column as an array of its own type; nullable numbers as plain ones."""
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.cat.categories.dtype)
    if pd.api.types.is_extension_array_dtype(column.dtype) and not column.hasnans:
        kind = getattr(column.dtype, "numpy_dtype", None)
        if kind is not None and getattr(kind, "kind", "O") in "iufb":
            return column.to_numpy(dtype=kind)
    values: Array = column.to_numpy()
    return values


def columns_as_float32(df: "pd.DataFrame", what: str) -> NDArray[np.float32]:
    """Return the columns of a table as float32 [n, D].

    Args:
        df: the table.
        what: stands before the word column in messages.

    Raises:
        ValueError: a column holds no numbers, or values that are missing or infinite.
    """
    import pandas as pd

    x = np.empty(df.shape, np.float32)
    for j, (name, column) in enumerate(df.items()):
        is_complex = pd.api.types.is_complex_dtype(column)
        if is_complex or not pd.api.types.is_numeric_dtype(column):
            raise ValueError(
                f"the {what} column '{name}' holds {_kind_of_array(as_plain_array(column))} "
                f"({column.dtype}), and a model needs numbers: turn it into numbers (text for "
                "example by pd.get_dummies, digits by pd.to_numeric, dates into days), leave "
                f"it out, or if it says whose sample it is, give client='{name}'"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            x[:, j] = column.to_numpy(dtype=np.float64, na_value=np.nan)
    refuse_not_finite(x, [f"{what} column '{name}'" for name in df])
    return x


def refuse_not_finite(
    values: NDArray[np.float32], names: Sequence[str], advice: str = FILL
) -> None:
    """Refuse values that are NaN or infinite.

    Args:
        values: [n, ...]; the second axis are the columns that `names` names, if there
            are several names.
        names: how messages call the values, or each column of them.
        advice: what to do about them.

    Raises:
        ValueError: the message names the columns, how many rows are wrong, and the first.
    """
    if np.isfinite(values).all():
        return
    # With one name, all values are one column.
    wrong_nC = (~np.isfinite(values)).reshape(len(values), len(names), -1).any(axis=2)
    found = [
        f"{name}: {wrong_n.sum():,} (the first in row {wrong_n.argmax()})"
        for name, wrong_n in zip(names, np.atleast_2d(wrong_nC.T), strict=True)
        if wrong_n.any()
    ]
    raise ValueError(
        "values are NaN, infinite or too large for float32: "
        f"{first_of(found, SHOWN, '; ')}. {advice}"
    )
