"""`raysafl results`: ask DuckDB about the stored runs of one sweep or of many."""

import difflib
import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from raysafl.core.text import count
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Manifest
from raysafl.storage.paths import Location
from raysafl.storage.runs_table import make_runs_table
from raysafl.storage.statistics import (
    ROUNDS_TO,
    STATISTICS,
    quality_statistics,
)
from raysafl.storage.store import sweeps_in

# A run has the first of these statuses that one of its replicates has.
WORST = {status: place for place, status in enumerate(reversed(Status))}
# How many statistics of what runs are judged by are shown by default.
SHOWN = 3
# Largest number of values that a hint names.
MOST_VALUES = 20
# Largest number of rows in a terminal.
MOST_ROWS = 1_000
# A query reads the runs, and no file, no address and no variable of this process.
SAFE: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "python_enable_replacements": False,
    "lock_configuration": True,
}
# What a name may be a column without, in the order in which it is looked up.
PREFIXES = ("", "label.", "config.")


def results(
    paths: Iterable[Location],
    query: str = "",
    sort: str = "",
    ascending: bool | None = None,
    top: int | None = None,
    columns: Sequence[str] = (),
) -> pd.DataFrame:
    """Return the runs that meet a condition, one row per run, sorted.

    Statistics are means over the finished replicates of a run (of `rounds_to_50` and the
    like, if all have reached the value), `<statistic>_std` are their standard deviations,
    and `replicates` is their number. Of a run that a scheduler or a rule stopped, they are
    those of the rounds that it ran. `status` and `reason` are those of the replicate that
    ended worst. A run that has not ended is listed, as `running` or
    `interrupted`, without statistics. `attrs["damaged"]` of the frame is the number of
    damaged runs in the folders, which have no statistics, and `attrs["fractions"]`
    names the statistics that are fractions; a line of the ledger that cannot be read counts as
    a damaged run. If no run meets the condition, `attrs["why"]`
    says which values the columns have that it names.

    Args:
        paths: folders of sweeps, or folders that hold some.
        query: a condition in DuckDB's SQL, such as `algorithm == 'SAFARI' and client_prob > 0.5`,
            or a whole query, which begins with `select`, `with` or `from`, over the table
            `runs`. A name is a column of `runs.parquet`, a label, a setting
            (`algorithm.client_prob`), or the end of a setting's name (`client_prob`),
            looked up in this order.
        sort: the column to sort by. The best value of a statistic comes first, and the
            largest of any other column.
        ascending: whether the smallest value comes first instead, or the largest.
        top: the maximum number of rows.
        columns: the columns to show; by default those of a whole query, or the labels,
            what the condition and the order name, what the runs are judged by,
            replicates and status.

    Raises:
        ValueError: a folder holds no sweep, DuckDB cannot answer the query, or a name is
            no column (the message has the nearest) or could be one of several.
    """
    # Unlike `Path.is_dir`, this raises no error for a query that is too long for a path.
    if os.path.isdir(query):
        raise ValueError(
            f"'{query}' is a folder: the query comes first, '' for all, and then the folders"
        )
    asked = [*columns, sort, query]
    until = [match[0] for text in asked for match in ROUNDS_TO.finditer(text)]
    frame, judged_by = _read_folders(paths, until)
    found, named = _answer(query, frame)
    none = found.empty
    by = [_column_of(sort, found)] if sort else []
    shown = [_column_of(name, found) for name in columns] or [*map(str, found)]
    if not columns and not _is_whole(query):
        shown = _default(frame, [*named, *by, *judged_by])
    if by:
        if ascending is None:
            ascending = by[0] in frame.attrs["lower_is_better"]
        found = found.sort_values(by, ascending=ascending, kind="stable")
    found = found[shown].iloc[:top].reset_index(drop=True)
    damaged = int((frame["status"] == Status.DAMAGED).sum())
    found.attrs["damaged"] = damaged + frame.attrs["unreadable"]
    found.attrs["fractions"] = frame.attrs["fractions"]
    is_asked = bool(query.strip()) and not _is_whole(query)
    found.attrs["why"] = _why(frame, named) if none and len(frame) and is_asked else ""
    return found


def _why(frame: pd.DataFrame, named: Iterable[str]) -> str:
    """Say that no run meets a condition, and which values its columns have."""
    there = [
        f"{name.removeprefix('config.')} is {_values_of_column(frame[name])}"
        for name in dict.fromkeys(named)
    ]
    return "; ".join(["no run meets the condition", *there])


def _values_of_column(column: "pd.Series[Any]") -> str:
    """Write the values of a column: all of them, or the first and the last of many."""
    texts = list(dict.fromkeys(map(_shown_value, sorted(column.dropna().unique()))))
    if len(texts) > MOST_VALUES:
        return f"{texts[0]} to {texts[-1]}"
    return ", ".join(texts) or "missing"


def _is_whole(query: str) -> bool:
    """Return whether a query is a whole one, and no condition."""
    return bool(re.match(r"\s*(select|with|from)\b", query, re.IGNORECASE))


def _answer(query: str, frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return DuckDB's answer, and the columns of the runs that the query names."""
    import duckdb

    whole = _is_whole(query)
    sql = (
        query if whole else f"SELECT * FROM runs WHERE (\n{query.strip() or 'true'}\n)"
    )
    named: list[str] = []

    def resolve(node: dict[str, Any]) -> dict[str, Any]:
        """Put the column into a part of DuckDB's tree that is a name."""
        if node.get("class") == "COLUMN_REF":
            parts = node["column_names"]
            # A name may stand behind that of a table.
            place = int(len(parts) > 1 and parts[0] in own)
            name = ".".join(parts[place:])
            if not whole or (name not in own and _candidates(name, frame)):
                named.append(_column_of(name, frame))
                node["column_names"] = [*parts[:place], named[-1]]
        return node

    try:
        with duckdb.connect(config=SAFE) as database:
            database.register("runs", pa.Table.from_pandas(frame))
            ask = "SELECT json_serialize_sql(?::VARCHAR)"
            [(tree,)] = database.execute(ask, [sql]).fetchall()
            # Names that the query itself gives to tables and columns.
            own = {"runs", *re.findall(r'"(?:alias|key)":"(\w+)"', tree)}
            tree = json.loads(tree, object_hook=resolve)
            if tree["error"]:
                raise duckdb.Error(tree["error_message"])
            ask = "SELECT json_deserialize_sql(?::VARCHAR)"
            [(sql,)] = database.execute(ask, [json.dumps(tree)]).fetchall()
            found = database.execute(sql).df()
    except (duckdb.Error, RecursionError) as error:
        reason = str(error).partition("\nLINE")[0].strip().replace("\n", " ")
        raise ValueError(
            f"the query '{query}' cannot be answered ({reason}): write a condition such as "
            "\"algorithm == 'SAFARI' and client_prob > 0.5\""
        ) from None
    return found, named


def _candidates(name: str, frame: pd.DataFrame) -> list[str]:
    """Return the columns that a name may stand for."""
    for column in (f"{prefix}{name}" for prefix in PREFIXES):
        if column in frame:
            return [column]
    # Otherwise the name may be how the dotted name of one setting ends.
    settings = [c for c in map(str, frame) if c.startswith("config.")]
    return [column for column in settings if column.endswith(f".{name}")]


def _column_of(name: str, frame: pd.DataFrame) -> str:
    """Return the column that a name stands for.

    Raises:
        ValueError: there is none, or there are several.
    """
    found = _candidates(name, frame)
    if len(found) > 1:
        choices = ", ".join(sorted(c.removeprefix("config.") for c in found))
        raise ValueError(f"'{name}' could be any of {choices}: write which one")
    if not found:
        known = {re.sub(r"^(config|label)\.", "", column) for column in map(str, frame)}
        close = difflib.get_close_matches(name, known, n=3)
        labels = [column for column in map(str, frame) if column.startswith("label.")]
        axes = [column.removeprefix("label.") for column in labels]
        hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
        if not close or (frame.astype(str) == name).any(axis=None):
            hint = f"a text is written in quotes, as '{name}'. "
        hint += f"The axes are {', '.join(axes)}. " if axes else ""
        raise ValueError(
            f"runs have no column '{name}': {hint}docs/results.md lists the columns"
        )
    return found[0]


def _read_folders(
    paths: Iterable[Location], named: Sequence[str] = ()
) -> tuple[pd.DataFrame, list[str]]:
    """Read one row per run, and the statistics that are shown by default.

    Args:
        paths: folders of sweeps, or folders that hold some.
        named: statistics that are asked for by name, such as `rounds_to_r2_0.7`.
    """
    parts = []
    fractions = set[str]()
    lower_is_better = set[str]()
    shown: list[str] = []
    unreadable = 0
    for path in paths:
        for store in sweeps_in(path):
            manifest = store.manifest()
            runs = make_runs_table(store, named=named)
            parts.append(_per_run(runs, manifest))
            unreadable += store.unreadable()
            known = manifest.known(runs)
            fractions |= {name for name, own in known.items() if own.is_fraction}
            lower_is_better |= {
                n for n, own in known.items() if not own.higher_is_better
            }
            shown += quality_statistics(manifest.quality)[:SHOWN]
    frame = pd.concat(
        [part for part in parts if len(part)] or parts[:1], ignore_index=True
    )
    for name in map(str, frame):
        if name.startswith(("config.", "label.")):
            values = frame[name].astype(object)
            # A run whose sweep has no such axis has the setting of this name.
            setting = f"config.{name.removeprefix('label.')}"
            if setting in frame:
                values = values.combine_first(frame[setting])
            frame[name] = _parsed(values)
    frame.attrs["fractions"] = sorted(fractions)
    frame.attrs["unreadable"] = unreadable
    frame.attrs["lower_is_better"] = sorted(lower_is_better)
    return frame, shown


def _per_run(runs: pd.DataFrame, manifest: Manifest) -> pd.DataFrame:
    """Join the replicates of each run to one row."""
    if runs.empty:
        names = ["sweep", "run_id", "status", "replicates", *STATISTICS]
        return pd.DataFrame(columns=names)
    known = manifest.known(runs)
    names = [name for name in {**STATISTICS, **dict.fromkeys(known)} if name in runs]
    spread = [n for n in names if f"{n}_std" not in names and n != "last5_std"]
    # Stopped replicates are there only in a run that was stopped as a whole.
    is_over = runs["status"].isin([Status.FINISHED, Status.STOPPED])
    done = runs[is_over].groupby("run_id")
    worst = runs.sort_values("status", key=lambda s: s.map(WORST), kind="stable")
    first = worst.drop_duplicates("run_id").set_index("run_id")
    means = done[names].mean()
    for name in [name for name in names if name.startswith("rounds_to_")]:
        # The mean of those that reached a value is none of a run of which one did not.
        means[name] = means[name].where(done[name].count() == done.size())
    joined = (
        first.drop(columns=[*names, "replicate", "seed", "partition_seed"])
        .join(means)
        .join(done[spread].std().add_suffix("_std"))
        .join(done.size().rename("replicates"))
    )
    joined["replicates"] = joined["replicates"].fillna(0).astype(int)
    return joined.loc[runs["run_id"].unique()].reset_index()


def _parsed(values: "pd.Series[Any]") -> "pd.Series[Any]":
    """Turn text into numbers or truth values, if all of it can be read so."""
    text = values.map(str, na_action="ignore")
    there = text.dropna()
    if len(there) and there.isin(["True", "False"]).all():
        return text.map({"True": True, "False": False})
    numbers = pd.to_numeric(text, errors="coerce")
    return numbers if len(there) and numbers.count() == len(there) else text


def _default(frame: pd.DataFrame, named: Sequence[str]) -> list[str]:
    """Return the columns that are shown if the user names none."""
    names = [str(name) for name in frame]
    labels = [c for c in names if c.startswith("label.") and frame[c].notna().any()]
    several = ["sweep"] if frame["sweep"].nunique() > 1 else []
    explained = [status for status in Status if status.unended]
    explained += [Status.DAMAGED, Status.STOPPED]
    why = ["reason"] if frame["status"].isin(explained).any() else []
    wanted = [*several, "run_id", *labels, *named, "replicates", "status", *why]
    return [name for name in dict.fromkeys(wanted) if name in names]


def as_table(found: pd.DataFrame) -> Table:
    """Write what was found as a table for a terminal.

    All labels stand in one column, numbers have four digits, and names have no
    prefixes. Of very many rows the first are shown, and the caption says so.
    """
    caption = count(len(found), "row")
    if len(found) > MOST_ROWS:
        caption = f"the first {MOST_ROWS:,} of {len(found):,} rows (--csv and --json write all)"
    texts = found[:MOST_ROWS].map(_shown_value)
    labels = [name for name in map(str, texts) if name.startswith("label.")]
    if labels:
        names = [name.removeprefix("label.") for name in labels]
        joined = [
            ", ".join(f"{n} {text}" for n, text in zip(names, row, strict=True) if text)
            for row in texts[labels].itertuples(index=False)
        ]
        texts = texts.drop(columns=labels)
        texts.insert(0, "labels", joined, allow_duplicates=True)
    if any(name in found for name in found.attrs.get("fractions", ())):
        caption += "; accuracies and other shares are fractions"
    out = Table(box=SIMPLE_HEAD, caption=caption)
    for name in map(str, texts):
        right = name in found and pd.api.types.is_numeric_dtype(found[name])
        out.add_column(
            Text(name.removeprefix("config.")),
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=right or name in ("run_id", "status"),
        )
    for row in texts.itertuples(index=False):
        out.add_row(*map(Text, row))
    return out


def _shown_value(value: Any) -> str:
    """Write a value, numbers with four digits, missing ones as nothing."""
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
