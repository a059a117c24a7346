"""`raysafl results`: filter and sort the stored runs of one sweep or of many."""

import ast
import difflib
import math
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from raysafl.core.text import nearest
from raysafl.report.wording import count
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Manifest
from raysafl.storage.paths import Location, StorageError
from raysafl.storage.statistics import ACCURACY, STATISTICS, quality_statistics
from raysafl.storage.store import Store, find_sweeps

# A run has the first of these statuses that one of its replicates has.
WORST = tuple(reversed(Status))
# What is shown by default of runs that are judged by their accuracy.
SHOWN = ["final", "last10", "best"]
# Largest number of values that a hint names.
MOST_VALUES = 20
# Largest number of runs in a terminal.
MOST_ROWS = 1_000
# No query that a person writes is longer.
MOST_CHARACTERS = 2_000
# What a query may hold, apart from names and values.
ARITHMETIC: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
COMPARISONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: _one_of(left, right),
    ast.NotIn: lambda left, right: ~_one_of(left, right),
}
ALLOWED = (
    ast.Expression,
    ast.BoolOp,
    ast.And,
    ast.Or,
    ast.UnaryOp,
    ast.Not,
    ast.USub,
    ast.UAdd,
    ast.BinOp,
    *ARITHMETIC,
    ast.Compare,
    *COMPARISONS,
    ast.Name,
    ast.Attribute,
    ast.Constant,
    ast.List,
    ast.Tuple,
    ast.Load,
)


def results(
    paths: Sequence[Location],
    query: str = "",
    sort: str = "",
    ascending: bool = False,
    top: int | None = None,
    columns: Sequence[str] = (),
) -> pd.DataFrame:
    """Return the runs that meet a condition, one row per run, sorted.

    Statistics are means over the finished replicates of a run.

    Args:
        paths: folders of sweeps, or folders that hold some.
        query: a condition in Python's notation, such as `algorithm == 'Safari' and q >
            0.5`. A name is a column of `runs.parquet`, a setting (`algorithm.q`), a
            label, or the end of a setting's name (`q`), looked up in this order. If it
            is both a setting and a label, it equals a value if one of them does. `in`,
            `not` and arithmetic work as well.
        sort: the column to sort by, the largest value first.
        ascending: whether to sort the smallest value first.
        top: the maximum number of rows.
        columns: the columns to show; by default the labels, what the query and the
            order name, accuracies or what else the runs are judged by, replicates and
            status.

    Raises:
        ValueError: a folder holds no sweep, the query cannot be read, or a name is no
            column (the message has the nearest) or could be one of several.
    """
    frame, judged_by = _read(paths)
    tree = _parse(query) if query.strip() else None
    named = [_column_of(name, frame) for name in _names_in(tree)] if tree else []
    if tree is not None:
        frame = frame[_holds(tree, frame)]
    by = _column_of(sort, frame) if sort else ""
    if by:
        frame = frame.sort_values(
            by, ascending=ascending, na_position="last", kind="stable"
        )
    wanted = [_column_of(name, frame) for name in columns]
    named = [*named, *([by] if by else []), *judged_by]
    shown = wanted or _default(frame, named)
    return frame[shown].iloc[:top].reset_index(drop=True)


def why_nothing(paths: Sequence[Location], query: str) -> str:
    """Say why no run meets a condition: which value no run has, and the nearest.

    Args:
        paths: folders of sweeps, or folders that hold some.
        query: the condition.

    Returns:
        One sentence; empty if there is no condition, or there are no runs.
    """
    frame = read_runs(paths)
    if frame.empty or not query.strip():
        return ""
    for node in ast.walk(_parse(query)):
        if isinstance(node, ast.Compare):
            for name, value in _demanded(node):
                if why := _unknown_value(name, value, frame):
                    return why
    return "no run meets all of the condition, though its values occur"


def _demanded(node: ast.Compare) -> list[tuple[str, Any]]:
    """Return the names that a comparison demands to have a value, each with the value."""
    parts = [node.left, *node.comparators]
    found: list[tuple[str, Any]] = []
    for left, op, right in zip(parts, node.ops, parts[1:], strict=False):
        if not isinstance(op, ast.Eq | ast.In):
            continue
        for name, other in ((left, right), (right, left)):
            values = other.elts if isinstance(other, ast.List | ast.Tuple) else [other]
            if isinstance(name, ast.Name | ast.Attribute):
                constants = [v.value for v in values if isinstance(v, ast.Constant)]
                found += [(ast.unparse(name), value) for value in constants[:1]]
    return found


def _unknown_value(name: str, value: Any, frame: pd.DataFrame) -> str:
    """Say that no run has a value in a column, and which one is the nearest."""
    columns = [_column_of(name, frame), *_label_beside(name, frame)]
    there = pd.concat([frame[column] for column in columns]).dropna().unique()
    if any(own == value for own in there):
        return ""
    values = sorted({_text(own) for own in there})
    close = nearest(str(value), values)
    if len(values) > MOST_VALUES:
        close = (
            close.partition("(known:")[0].strip() or f"there are {len(values)} others"
        )
    return f"no run has {name} == {value!r}: {close}"


def _label_beside(name: str, frame: pd.DataFrame) -> list[str]:
    """Return the label's column of a name that is a setting and a label; else nothing."""
    label = f"label.{name}"
    both = f"config.{name}" in frame and label in frame and name not in frame
    return [label] if both else []


def read_runs(paths: Iterable[Location]) -> pd.DataFrame:
    """Read the runs of all sweeps in some folders, one row per run.

    The columns are those of `runs.parquet`, with numbers as numbers. Statistics are
    means over the finished replicates, `<statistic>_std` are their standard deviations,
    and `replicates` is their number. `status` and `reason` are those of the replicate
    that ended worst.

    Args:
        paths: folders of sweeps, or folders that hold some.

    Raises:
        ValueError: a folder holds no sweep, or a sweep no `runs.parquet`.
    """
    return _read(paths)[0]


def _read(paths: Iterable[Location]) -> tuple[pd.DataFrame, list[str]]:
    """Read the runs, as `read_runs`, and the statistics that are shown by default."""
    parts = []
    shown: list[str] = []
    for path in paths:
        stores = find_sweeps(path)
        if not stores:
            raise ValueError(
                f"{path} holds no sweep: no manifest.json in it or one level below"
            )
        for store in stores:
            manifest = _manifest(store)
            parts.append(_per_run(store.runs(), manifest))
            quality = manifest.quality if manifest else ACCURACY
            shown += SHOWN if quality == ACCURACY else quality_statistics(quality)
    frame = pd.concat(
        [part for part in parts if len(part)] or parts[:1], ignore_index=True
    )
    for name in frame:
        if str(name).startswith(("config.", "label.")):
            frame[name] = _parsed(frame[name])
    return frame, list(dict.fromkeys(shown))


def _manifest(store: Store) -> Manifest | None:
    """Return what a sweep is; None if its manifest is damaged, which others tell."""
    try:
        return store.manifest()
    except StorageError:
        raise
    except ValueError:
        return None


def _per_run(runs: pd.DataFrame, manifest: Manifest | None) -> pd.DataFrame:
    """Join the replicates of each run to one row."""
    if runs.empty:
        return pd.DataFrame(
            columns=["sweep", "run_id", "status", "replicates", *STATISTICS]
        )
    # The status of a run is that of the replicate that ended worst.
    order = {status: i for i, status in enumerate(WORST)}
    worst = runs.assign(_order=runs["status"].map(order)).sort_values(
        "_order", kind="stable"
    )
    first = worst.drop_duplicates("run_id").set_index("run_id")
    names = [name for name in STATISTICS if name in runs]
    if manifest is not None:
        names += [name for name in manifest.known(runs) if name not in names]
    spread = [
        name for name in names if f"{name}_std" not in names and name != "last5_std"
    ]
    done = runs[runs["status"] == Status.FINISHED].groupby("run_id")
    means = done[names].mean()
    stds = done[spread].std().add_suffix("_std")
    kept = first.drop(columns=[*names, "replicate", "seed", "_order"])
    joined = kept.join(means).join(stds).join(done.size().rename("replicates"))
    joined["replicates"] = joined["replicates"].fillna(0).astype(int)
    return joined.loc[runs["run_id"].unique()].reset_index()


def _parsed(values: "pd.Series[Any]") -> "pd.Series[Any]":
    """Turn text into numbers or truth values, if all of it can be read so."""
    text = values.dropna().astype(str)
    if len(text) and text.isin(["True", "False"]).all():
        return values.map({"True": True, "False": False, True: True, False: False})
    # A column is numbers only if every value that is there can be read as one.
    numbers = pd.to_numeric(values, errors="coerce")
    return numbers if numbers.notna().sum() == len(text) and len(text) else values


def _parse(query: str) -> ast.Expression:
    """Parse a query and refuse everything that is not a plain condition.

    What is left takes a time that is bounded by the query's length: it calls nothing,
    and its numbers are those of a float.
    """
    example = "write a condition such as \"algorithm == 'Safari' and q > 0.5\""
    if len(query) > MOST_CHARACTERS:
        raise ValueError(
            f"the query has {len(query):,} characters, and at most {MOST_CHARACTERS:,} are "
            f"allowed; {example}"
        )
    try:
        tree = ast.parse(query.strip(), mode="eval")
    # Python raises each of these for some text that is no expression.
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else error
        raise ValueError(
            f"the query '{query}' cannot be read ({why}); {example}"
        ) from None
    for node in ast.walk(tree):
        if not isinstance(node, ALLOWED):
            raise ValueError(
                f"the query '{query}' has {type(node).__name__.lower()}, which is not allowed: use "
                "names, values, ==, !=, <, >, in, and, or, not, + - * /; docs/results.md has SQL"
            )
        if isinstance(node, ast.Constant):
            _check_value(node.value)
    return tree


def _check_value(value: object) -> None:
    """Refuse a value that no column holds."""
    if not isinstance(value, str | int | float | None):
        raise ValueError(f"{value!r} in the query is neither a number nor text")
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise ValueError(
            f"the query has a number of {len(str(value))} digits: the largest is "
            f"{sys.float_info.max:.4g}"
        )


def _names_in(tree: ast.AST) -> list[str]:
    """Return the names in a query, each once, dotted ones as a whole."""
    # In `a.b`, the node `a` is a part of the dotted name and no name of its own.
    inner = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Name | ast.Attribute)]
    return list(dict.fromkeys(ast.unparse(n) for n in nodes if id(n) not in inner))


def _column_of(name: str, frame: pd.DataFrame) -> str:
    """Return the column that a name stands for.

    Raises:
        ValueError: there is none, or there are several.
    """
    known = [str(column) for column in frame if column != "config"]
    for column in (name, f"config.{name}", f"label.{name}"):
        if column in known:
            return column
    # Otherwise the name may be how the dotted name of one setting ends.
    ends = [c for c in known if c.startswith("config.") and c.endswith(f".{name}")]
    if len(ends) > 1:
        choices = ", ".join(sorted(c.removeprefix("config.") for c in ends))
        raise ValueError(f"'{name}' could be any of {choices}: write which one")
    if not ends:
        short = {c.removeprefix("config.").removeprefix("label."): c for c in known}
        close = difflib.get_close_matches(name, short, n=3)
        hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
        folder = " (the query comes first, '' for all)" if Path(name).is_dir() else ""
        raise ValueError(
            f"runs have no column '{name}'{folder}: {hint}docs/results.md lists the columns"
        )
    return ends[0]


def _holds(tree: ast.Expression, frame: pd.DataFrame) -> "pd.Series[bool]":
    """Return for which rows a query holds."""
    try:
        with np.errstate(all="ignore"):
            found = _value(tree.body, frame)
    except (TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"the query cannot be answered: {error}") from None
    return _truth_values(found)


def _value(node: ast.expr, frame: pd.DataFrame) -> Any:
    """Return a part of a query: a column, a value, or a list of values."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            values = [_value(part, frame) for part in parts]
            if any(isinstance(value, pd.Series | list) for value in values):
                raise ValueError("a list in the query may hold nothing but values")
            return values
        case ast.BoolOp(op=op, values=parts):
            join = operator.and_ if isinstance(op, ast.And) else operator.or_
            return reduce(join, (_truth_values(_value(part, frame)) for part in parts))
        case ast.UnaryOp(op=ast.Not(), operand=part):
            return ~_truth_values(_value(part, frame))
        case ast.UnaryOp(op=op, operand=part):
            number = _operand(part, frame)
            return -number if isinstance(op, ast.USub) else number
        case ast.BinOp(left=left, op=op, right=right):
            return ARITHMETIC[type(op)](_operand(left, frame), _operand(right, frame))
        case ast.Compare(left=left, ops=ops, comparators=others):
            return _compared([left, *others], ops, frame)
        case _:
            return frame[_column_of(ast.unparse(node), frame)]


def _compared(
    parts: Sequence[ast.expr], ops: Sequence[ast.cmpop], frame: pd.DataFrame
) -> Any:
    """Compare each part of a chain, such as `0.2 < q < 0.8`, with the next one."""
    values = [_value(part, frame) for part in parts]
    results = []
    for i, op in enumerate(ops):
        if isinstance(values[i + 1], list) != isinstance(op, ast.In | ast.NotIn):
            raise ValueError(
                "the query has a list that is not after `in`, or `in` without a list: "
                "write as in 'p in [1, 3]'"
            )
        found = COMPARISONS[type(op)](values[i], values[i + 1])
        for side in (0, 1):
            # A setting that is a label, too, equals a value if one of both does.
            name = parts[i + side]
            if not isinstance(name, ast.Name | ast.Attribute):
                continue
            for label in _label_beside(ast.unparse(name), frame):
                pair = values[i : i + 2]
                pair[side] = frame[label]
                if isinstance(op, ast.Eq | ast.In):
                    found = found | COMPARISONS[type(op)](*pair)
                elif isinstance(op, ast.NotEq | ast.NotIn):
                    found = found & COMPARISONS[type(op)](*pair)
        results.append(found)
    return reduce(operator.and_, results)


def _one_of(value: Any, allowed: list[Any]) -> Any:
    """Return for which rows a column has one of the values."""
    if not isinstance(value, pd.Series):
        raise ValueError(f"{value!r} in the query is no column, but stands before `in`")
    return value.isin(allowed)


def _truth_values(found: Any) -> "pd.Series[bool]":
    """Return a value that must be one truth value per run."""
    if not isinstance(found, pd.Series) or not pd.api.types.is_bool_dtype(found):
        raise ValueError(
            "the query is no condition: compare a column, as in 'best > 0.9'"
        )
    return found


def _operand(node: ast.expr, frame: pd.DataFrame) -> Any:
    """Return an operand of arithmetic as floats, whose size is bounded."""
    value = _value(node, frame)
    column = isinstance(value, pd.Series) and pd.api.types.is_numeric_dtype(value)
    if not column and not isinstance(value, int | float):
        raise ValueError(f"{ast.unparse(node)} in the query is no number")
    return value.astype(float) if column else np.float64(value)


def _default(frame: pd.DataFrame, named: Sequence[str]) -> list[str]:
    """Return the columns that are shown if the user names none."""
    names = [str(name) for name in frame]
    labels = [c for c in names if c.startswith("label.") and frame[c].notna().any()]
    several = ["sweep"] if frame["sweep"].nunique() > 1 else []
    why = ["reason"] if (frame["status"] == Status.DAMAGED).any() else []
    wanted = [*several, "run_id", *labels, *named, "replicates", "status", *why]
    return [name for name in dict.fromkeys(wanted) if name in names]


def as_table(found: pd.DataFrame) -> Table:
    """Write runs as a table for a terminal.

    All labels stand in one column, numbers have four digits, and names have no
    prefixes. Of very many runs the first are shown, and the caption says so.
    """
    caption = f"{count(len(found), 'run')}; accuracies are fractions"
    if len(found) > MOST_ROWS:
        caption = (
            f"the first {MOST_ROWS:,} of {len(found):,} runs (--csv and --json write "
            "all); accuracies are fractions"
        )
        found = found.iloc[:MOST_ROWS]
    names = [str(name) for name in found]
    labels = [name for name in names if name.startswith("label.")]
    others = [name for name in names if name not in labels]
    records: list[dict[str, Any]] = [
        dict(zip(names, row, strict=True)) for row in found.itertuples(index=False)
    ]
    label_texts = [
        ", ".join(
            f"{c.removeprefix('label.')} {_text(r[c])}" for c in labels if _text(r[c])
        )
        for r in records
    ]
    out = Table(box=SIMPLE_HEAD, caption=caption)
    if labels:
        out.add_column(
            Text("labels"), min_width=min(34, max(map(len, label_texts), default=0))
        )
    for name in others:
        right = pd.api.types.is_numeric_dtype(found[name])
        out.add_column(
            Text(name.removeprefix("config.")),
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=right or name in ("run_id", "status"),
        )
    for text, record in zip(label_texts, records, strict=True):
        first = [Text(text)] if labels else []
        out.add_row(*first, *(Text(_text(record[name])) for name in others))
    return out


def _text(value: Any) -> str:
    """Write a value, numbers with four digits, missing ones as nothing."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}"
    return "" if value is None else str(value)
