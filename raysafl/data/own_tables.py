"""Data of one's own as a table: a DataFrame of pandas, or a CSV file."""

from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from raysafl.core.text import nearest
from raysafl.data.in_memory import InMemory
from raysafl.data.own_arrays import check_test, from_arrays
from raysafl.data.own_columns import SHOWN, check_columns
from raysafl.data.sources import data_root

if TYPE_CHECKING:
    import pandas as pd

SPLITS = ("train", "test")
# The arguments of `from_arrays` that a table has, too.
OPTIONS = {*signature(from_arrays).parameters} - {"x", "y", "clients", "test"}


def from_pandas(
    df: "pd.DataFrame",
    *,
    label: str | Sequence[str],
    features: Sequence[str] | None = None,
    client: str | Sequence[str] | None = None,
    split: str | None = None,
    test: "pd.DataFrame | None" = None,
    **options: Any,
) -> InMemory:
    """Make a dataset of a DataFrame of pandas, with one row for each sample.

    The digest of the values identifies the data: equal values in the same order are the
    same run, whatever the index.

    Args:
        df: the table; of the training samples, if `test` is given.
        label: the column of the target, see `y` of `from_arrays`. Several columns are
            several numbers.
        features: the columns that the model sees, as float32 [n, D] in this order; by
            default all that are nothing else.
        client: the column that says to whom a sample belongs, such as a hospital, or
            several such columns. `ByColumn(column=...)` makes clients of one of them.
        split: the column that says "train" or "test" for each row.
        test: in place of `split`, a table with the test samples and the same columns.
        options: other arguments of `from_arrays`: `test_share` in place of both,
            `target`, `names`, `words`, `standardise`, `seed` and `name`.

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
    roles = {
        "label": as_list(label),
        "client": as_list(client),
        "split": as_list(split),
    }
    if others := sorted(options.keys() - OPTIONS):
        near = nearest(others[0], [*roles, "features", "test", *OPTIONS])
        raise ValueError(f"from_pandas has no argument '{others[0]}': {near}")
    check_test(test=test, split=split, test_share=options.get("test_share"))
    chosen = _features_of(df, roles, features)
    needed = [chosen, roles["label"], roles["client"]]
    tested: Any = None
    if test is not None:
        check_columns(test, [name for names in needed for name in names], " of test")
        tested = [test[names] for names in needed]
    elif split is not None:
        tested = _is_test(df[split], split)
    x, y, clients = (df[names] for names in needed)
    return from_arrays(x, y, test=tested, clients=clients, **options)


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
            `pandas.read_csv`, such as `sep=";"`, but not `chunksize` or `iterator`.
            `names` are those of classes; give a file without a head one first.

    Raises:
        ValueError: a file is missing or cannot be read, or see `from_pandas`.
    """
    known = {*signature(from_pandas).parameters, *OPTIONS}
    columns = {name: options.pop(name) for name in known & options.keys()}
    df = _read_csv(file, options)
    other = None if test is None else _read_csv(test, options)
    return from_pandas(df, label=label, test=other, **columns)


def _read_csv(file: str | Path, options: dict[str, Any]) -> "pd.DataFrame":
    import pandas as pd

    if parts := [name for name in ("chunksize", "iterator") if options.get(name)]:
        raise ValueError(f"a CSV file is read as a whole; leave {parts[0]}= out")
    try:
        path = find_path(file)
        frame: pd.DataFrame = pd.read_csv(path, **options)
    # Each compression and each encoding has errors of its own.
    except Exception as error:
        raise ValueError(f"{file} cannot be read as CSV: {error}") from error
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
        ValueError: it is in neither.
    """
    given = Path(path).expanduser()
    places = list(dict.fromkeys([Path.cwd() / given, data_root() / given]))
    for place in places:
        if place.exists():
            return place.resolve()
    raise ValueError(f"{given} is missing; looked for {' and '.join(map(str, places))}")


def _features_of(
    df: "pd.DataFrame", roles: Mapping[str, list[Any]], features: Sequence[Any] | None
) -> list[Any]:
    """Return the columns that the model sees, and check all columns that are named.

    Raises:
        ValueError: a column is unknown or there twice, or tells the model the answer.
    """
    used = [name for names in roles.values() for name in names]
    check_columns(df, [*used, *as_list(features)], "")
    if not roles["label"]:
        raise ValueError("label must name the column of the target")
    if features is None:
        chosen = [column for column in df.columns if column not in used]
    else:
        chosen = as_list(features)
    for role in ("label", "split"):
        both = [name for name in chosen if name in roles[role]]
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
    return chosen


def as_list(names: Any) -> list[Any]:
    """Return one name or several as a list; of None, an empty one."""
    if names is None:
        return []
    # An array or an index of pandas, as `df.columns` is, has this method.
    is_index = hasattr(names, "tolist") and not isinstance(names, np.generic)
    return list(names) if isinstance(names, list | tuple) or is_index else [names]


def _is_test(values: "pd.Series[Any]", split: str) -> NDArray[np.bool_]:
    """Return by the split column which rows are for testing."""
    others = sorted(map(str, values[~values.isin(SPLITS)].unique()))
    if others:
        raise ValueError(
            f"the split column '{split}' holds {', '.join(map(repr, others[:SHOWN]))}; "
            "it may say 'train' or 'test'. Rename them, or drop these rows"
        )
    return (values == "test").to_numpy(bool)
