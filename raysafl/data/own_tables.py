"""Data of one's own as a table: a DataFrame of pandas, or a CSV file."""

from collections.abc import Iterable, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from raysafl.core.client_indices import Ints
from raysafl.core.text import first_of, nearest
from raysafl.data.in_memory import InMemory
from raysafl.data.own_arrays import Block, check_test, draw_test, source_of_blocks
from raysafl.data.own_columns import SHOWN, Array, Target, refuse_not_finite
from raysafl.data.sources import data_root

if TYPE_CHECKING:
    import pandas as pd

SPLITS = ("train", "test")


class Roles(NamedTuple):
    """Which column of a table is what.

    Args:
        label: the columns of the target; one, but for several numbers to predict.
        features: the columns of the inputs.
        client: the columns by which a partition may make clients.
        split: the column that says "train" or "test"; None if there is none.
    """

    label: list[str]
    features: list[str]
    client: list[str]
    split: str | None


def from_pandas(
    df: "pd.DataFrame",
    *,
    label: str | Sequence[str],
    features: Sequence[str] | None = None,
    client: str | Sequence[str] | None = None,
    split: str | None = None,
    test: "pd.DataFrame | None" = None,
    test_share: float | None = None,
    target: Target = "auto",
    names: Sequence[str] | None = None,
    words: int | Sequence[str] | None = None,
    standardise: bool = False,
    seed: int = 0,
    name: str = "",
) -> InMemory:
    """Make a dataset of a DataFrame of pandas, with one row for each sample.

    The digest of the values identifies the data: equal values in the same order are the
    same run, whatever the index.

    Args:
        df: the table; of the training samples, if `test` is given.
        label: the column of the target. Text and whole numbers are classes, fractions
            are numbers to predict; see `target`. Several columns are several numbers.
        features: the columns that the model sees, as float32 [n, D] in this order; by
            default all that are nothing else.
        client: the column that says to whom a sample belongs, such as a hospital, or
            several such columns. `ByColumn(column=...)` makes clients of one of them.
        split: the column that says "train" or "test" for each row.
        test: in place of `split`, a table with the test samples and the same columns.
        test_share: in place of both, the fraction of the rows that is kept for testing,
            drawn at random.
        target: "class" or "number", if "auto" does not tell it by the column's type; or for
            `MultiLabel` "tags", which are text such as "bird|red".
        names: the names of the classes; the label is then the position in `names`. Or the
            tags to predict; by default the 500 most frequent ones of the training rows.
        words: if features are text, for `BagOfWords`: the number of known words, the most
            frequent ones of the training rows, or which. Words are parted by space.
        standardise: whether each feature gets the mean 0 and the standard deviation 1
            over the training rows.
        seed: the seed of the draw of `test_share`.
        name: a name for messages, figures and the configuration.

    Returns:
        A source for `Federation(dataset=...)`.

    Raises:
        ValueError: a column is unknown (the nearest is named), holds no numbers or
            values that are missing; or there are no test data.

    Example:
        >>> import pandas as pd
        >>> import raysafl as fl
        >>> patients = pd.DataFrame(
        ...     {
        ...         "age": [61, 45, 70, 52, 33, 58],
        ...         "ill": ["yes", "no", "yes", "no", "no", "yes"],
        ...         "hospital": ["Bern", "Bern", "Bern", "Genf", "Genf", "Genf"],
        ...         "split": ["train", "train", "test", "train", "train", "test"],
        ...     }
        ... )
        >>> source = fl.from_pandas(
        ...     patients, label="ill", client="hospital", split="split"
        ... )
        >>> dataset = source.load()
        >>> dataset.train.x.ravel().tolist(), dataset.names
        ([61.0, 45.0, 52.0, 33.0], ('no', 'yes'))
    """
    import pandas as pd

    for table, given in (("df", df), ("test", test)):
        if given is not None and not isinstance(given, pd.DataFrame):
            raise ValueError(
                f"{table} must be a DataFrame of pandas, not {type(given).__name__}"
            )
    roles = find_roles(df, label, features, client, split)
    check_test(test=test, split=split, test_share=test_share)
    blocks = [_block_of_table(df, roles, "" if test is None else " of df", words)]
    rows = None
    if test is not None:
        blocks.append(_block_of_table(test, roles, " of test", words))
    elif split is not None:
        rows = _rows_of_splits(df[split], split)
    elif test_share is not None:
        rows = draw_test(len(df), test_share, seed)
    what = " and ".join(f"'{column}'" for column in roles.label)
    return source_of_blocks(
        blocks,
        rows,
        kind="table",
        label=f"the label column {what}",
        target=target,
        names=names,
        standardise=standardise,
        name=name,
        features=roles.features if words is None else (),
        columns_of_target=roles.label,
        words=words,
    )


def from_csv(
    file: str | Path,
    *,
    label: str | Sequence[str],
    test: str | Path | None = None,
    **options: Any,
) -> InMemory:
    """Make a dataset of a CSV file, which pandas reads.

    The file is read once, in this call. Its values identify the data, not its name or its
    place: the same values, from a file or a DataFrame, are the same run.

    Args:
        file: the file; a relative path is looked up in the current folder, and then in
            the folder RAYSAFL_DATA.
        label: see `from_pandas`.
        test: in place of `split` and `test_share`, a file with the test samples.
        options: all other arguments of `from_pandas`; and arguments of
            `pandas.read_csv`, such as `sep=";"`. `names` are those of classes, as in
            `from_pandas`; give a file without a head one first.

    Raises:
        ValueError: a file is missing or cannot be read, or see `from_pandas`.
    """
    known = signature(from_pandas).parameters
    columns = {name: options.pop(name) for name in list(options) if name in known}
    df = _read_csv(file, options)
    other = None if test is None else _read_csv(test, options)
    return from_pandas(df, label=label, test=other, **columns)


def _read_csv(file: str | Path, options: dict[str, Any]) -> "pd.DataFrame":
    import pandas as pd

    path = find_path(file)
    try:
        frame: pd.DataFrame = pd.read_csv(path, **options)
    except (TypeError, ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as CSV: {error}") from error
    head = str(frame.columns[0]) if len(frame.columns) == 1 else ""
    sep = next((own for own in ";\t|" if own in head), "")
    if sep and not {"sep", "delimiter"} & {*options}:
        raise ValueError(
            f"{path} is read with commas between values, and has one column then, {head!r}; "
            f"give sep={sep!r}"
        )
    return frame


def find_path(path: str | Path) -> Path:
    """Find a file or folder: in the current folder, or in the folder RAYSAFL_DATA.

    Raises:
        ValueError: it is in neither; the nearest name beside it is given.
    """
    given = Path(path).expanduser()
    places = list(dict.fromkeys([Path.cwd() / given, data_root() / given]))
    for place in places:
        if place.exists():
            return place.resolve()
    beside = [
        other.name
        for place in places
        if place.parent.is_dir()
        for other in sorted(place.parent.iterdir())[:1000]
    ]
    hint = nearest(given.name, set(beside)).partition(" (known")[0]
    raise ValueError(
        f"{given} is missing; looked for {' and '.join(map(str, places))}"
        f"{f'. {hint[0].upper()}{hint[1:]}' if hint.startswith('did') else ''}"
    )


def find_roles(
    df: "pd.DataFrame",
    label: str | Sequence[str],
    features: Sequence[str] | None,
    client: str | Sequence[str] | None,
    split: str | None,
) -> Roles:
    """Find the columns of a table, and check that each has one role.

    Raises:
        ValueError: a column is unknown, is there twice, or has two roles.
    """
    columns = list(df.columns)
    check_columns(df, [], "")
    labels = as_list(label)
    clients = as_list(client)
    if not labels:
        raise ValueError("label must name the column of the target")
    others = {"label": labels, "client": clients, "split": as_list(split)}
    for role, names in others.items():
        _check_known(names, columns, role)
    used = [name for names in others.values() for name in names]
    if features is None:
        chosen = [column for column in columns if column not in used]
    else:
        chosen = as_list(features)
        _check_known(chosen, columns, "features")
    for role in ("label", "split"):
        both = [name for name in chosen if name in others[role]]
        if both:
            raise ValueError(
                f"'{both[0]}' is the {role} column and among the features, so the model "
                "would see the answer; take it out of features="
            )
    if not chosen:
        raise ValueError(
            "no feature columns are left; name the columns that the model sees by "
            "features=[...]"
        )
    return Roles(labels, chosen, clients, split)


def as_list(names: Any) -> list[Any]:
    """Return one name or several as a list; of None, an empty one."""
    if names is None:
        return []
    # An array or an index of pandas, as `df.columns` is, has this method.
    is_index = hasattr(names, "tolist") and not isinstance(names, np.generic)
    return list(names) if isinstance(names, list | tuple) or is_index else [names]


def _check_known(names: Iterable[Any], columns: Sequence[Any], role: str) -> None:
    for name in names:
        if name not in columns:
            known = nearest(str(name), map(str, columns))
            raise ValueError(
                f"{role} names the column '{name}', which the table lacks: {known}"
            )


def _rows_of_splits(values: "pd.Series[Any]", split: str) -> tuple[Ints, Ints]:
    """Return the rows for training and the rows for testing, by the split column."""
    texts = values.astype(str).to_numpy()
    others = sorted(set(texts[~values.isin(SPLITS).to_numpy()]))
    if others:
        raise ValueError(
            f"the split column '{split}' holds {', '.join(map(repr, others[:SHOWN]))}; "
            "it may say 'train' or 'test'. Rename them, or drop these rows"
        )
    train, test = (np.flatnonzero(texts == name) for name in SPLITS)
    for rows, name in ((train, "train"), (test, "test")):
        if not len(rows):
            raise ValueError(f"no row of the split column '{split}' says '{name}'")
    return train, test


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


def _block_of_table(df: "pd.DataFrame", roles: Roles, place: str, words: Any) -> Block:
    """Read the columns of a table.

    Args:
        df: the table.
        roles: which column is what.
        place: stands behind the name of a column in messages.
        words: None: features are numbers; otherwise they are text.
    """
    if not len(df):
        raise ValueError(f"the table{place} has no rows")
    check_columns(df, [*roles.label, *roles.features, *roles.client], place)
    if len(roles.label) == 1:
        y = as_plain_array(df[roles.label[0]])
    else:
        y = columns_as_float32(df, roles.label, place, "label")
    columns = {str(name): as_plain_array(df[name]) for name in roles.client}
    if words is not None:
        return Block(df[roles.features].to_numpy(object), y, columns)
    return Block(columns_as_float32(df, roles.features, place, "feature"), y, columns)


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


def columns_as_float32(
    df: "pd.DataFrame", names: Sequence[str], place: str, role: str
) -> NDArray[np.float32]:
    """Return columns as float32 [n, D].

    Raises:
        ValueError: a column holds no numbers, or values that are missing or infinite.
    """
    import pandas as pd

    x = np.empty((len(df), len(names)), np.float32)
    kinds = {name: df[name].dtype for name in names}
    is_number = pd.api.types.is_numeric_dtype
    is_complex = pd.api.types.is_complex_dtype
    wrong = [n for n, own in kinds.items() if not is_number(own) or is_complex(own)]
    if wrong:
        others = first_of([f"'{name}'" for name in wrong[1:]], SHOWN)
        more = f". {others} hold no numbers either" if others else ""
        raise ValueError(_no_number(df[wrong[0]], role) + more)
    for j, name in enumerate(names):
        with np.errstate(over="ignore", invalid="ignore"):
            x[:, j] = df[name].to_numpy(dtype=np.float64, na_value=np.nan)
    labels = [f"{role} column '{name}'{place}" for name in names]
    refuse_not_finite(x, labels)
    return x


def _no_number(column: "pd.Series[Any]", role: str) -> str:
    """Say that a column holds no numbers, and what to do."""
    import pandas as pd

    kind = str(pd.api.types.infer_dtype(column, skipna=True))
    name = column.name
    advice = f"encode it, for example by pd.get_dummies(df, columns=['{name}'])"
    if kind.startswith("date") or kind.startswith("time"):
        advice = "turn it into numbers, for example days since a date"
    elif kind not in ("string", "categorical", "boolean"):
        advice = (
            "turn it into numbers, for example by "
            f"df['{name}'] = pd.to_numeric(df['{name}'])"
        )
    if role == "label":
        return f"the label column '{name}' holds {kind} ({column.dtype}) and no numbers"
    return (
        f"the feature column '{name}' holds {kind} values ({column.dtype}), and a model "
        f"needs numbers: if it says whose sample it is, give client='{name}'; otherwise "
        f"{advice}, or leave it out by features=[...]"
    )
