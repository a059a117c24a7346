"""`raysafl results`: ask DuckDB about the stored runs of one sweep or of many."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from raysafl.core.text import closest, count, first_of
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
    says which values the columns have that it names. `attrs["labels"]` names the axes.

    Args:
        paths: folders of sweeps, or folders that hold some.
        query: a condition in DuckDB's SQL, such as `algorithm == 'SAFARI' and client_prob > 0.5`,
            or a whole query, which begins with `select`, `with` or `from`, over the view
            `runs`, whose columns `_names` describes.
        sort: the column to sort by. The best value of a statistic comes first, and the
            largest of any other column.
        ascending: whether the smallest value comes first instead, or the largest.
        top: the maximum number of rows.
        columns: the columns to show; by default those of a whole query, or the labels,
            what the condition and the order name, what the runs are judged by,
            replicates and status.

    Raises:
        ValueError: a folder holds no sweep, DuckDB cannot answer the query, or a name is
            no column (the message has the nearest).
    """
    # Unlike `Path.is_dir`, this raises no error for a query that is too long for a path.
    if os.path.isdir(query):
        raise ValueError(
            f"'{query}' is a folder: the query comes first, '' for all, and then the folders"
        )
    asked = [*columns, sort, query]
    until = [match[0] for text in asked for match in ROUNDS_TO.finditer(text)]
    runs = _read_folders(paths, until)
    is_whole = bool(re.match(r"\s*(select|with|from)\b", query, re.IGNORECASE))
    condition = f"SELECT * FROM runs WHERE (\n{query.strip() or 'true'}\n)"
    found = _answer(query if is_whole else condition, query, runs)
    named = [name for name in map(str, runs) if _is_in(name, query)]
    shown = list(columns) or list(map(str, found))
    if not columns and not is_whole:
        shown = _default(runs, [*named, *filter(None, [sort])])
    for name in [*shown, *filter(None, [sort])]:
        if name not in found:
            close = closest(name, map(str, found))
            hint = f"did you mean '{close}'? " if close else ""
            raise ValueError(
                f"runs have no column '{name}': {hint}docs/results.md lists the columns"
            )
    why = ""
    if found.empty and len(runs) and named and not is_whole:
        values = "; ".join(f"{name} is {_values(runs[name])}" for name in named)
        why = f"no run meets the condition; {values}"
    if sort:
        if ascending is None:
            ascending = sort in runs.attrs["lower_is_better"]
        found = found.sort_values(sort, ascending=ascending, kind="stable")
    found = found[shown].iloc[:top].reset_index(drop=True)
    damaged = int((runs["status"] == Status.DAMAGED).sum()) + runs.attrs["unreadable"]
    for name in ("fractions", "labels"):
        found.attrs[name] = runs.attrs[name]
    found.attrs["damaged"] = damaged
    found.attrs["why"] = why
    return found


def _answer(sql: str, asked: str, runs: pd.DataFrame) -> pd.DataFrame:
    """Return DuckDB's answer from the view `runs`.

    Raises:
        ValueError: DuckDB cannot answer it.
    """
    import duckdb

    try:
        with duckdb.connect(config=SAFE) as database:
            database.register("runs", pa.Table.from_pandas(runs))
            return database.execute(sql).df()
    except (duckdb.Error, RecursionError) as error:
        reason = str(error).partition("\nLINE")[0].strip().replace("\n", " ")
        raise ValueError(
            f"the query '{asked}' cannot be answered ({reason}): write a condition such as "
            "\"algorithm == 'SAFARI' and client_prob > 0.5\", with texts in 'quotes' and names "
            'that have a dot in "double ones"'
        ) from None


def _is_in(name: str, query: str) -> bool:
    """Return whether a query has a word that is the name of a column."""
    return bool(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", query))


def _values(column: "pd.Series[Any]") -> str:
    """Write the values of a column, or the first of many."""
    there = sorted(column.dropna().unique())
    return first_of(list(map(_shown_value, there)), MOST_VALUES) or "missing"


def _names(columns: Iterable[str]) -> dict[str, str]:
    """Return the name that queries have for each stored column.

    An axis is named without `label.`, and a setting by the last part of its name if no other
    column has it (`client_prob` for `config.algorithm.client_prob`), or else without `config.`
    (`algorithm.lr`). Where such a name is taken, the stored one is left.
    """
    stored = list(columns)
    labels = [column for column in stored if column.startswith("label.")]
    settings = [column for column in stored if column.startswith("config.")]
    lasts = Counter(column.rpartition(".")[2] for column in settings)
    names = {c: c for c in stored if not c.startswith(("label.", "config."))}
    for column in [*labels, *settings]:
        name = column.partition(".")[2]
        last = name.rpartition(".")[2]
        is_short = column in settings and lasts[last] == 1
        # DuckDB does not tell capital letters from small ones.
        taken = {known.casefold() for known in names.values()}
        free = [
            own
            for own in ([last] if is_short else []) + [name]
            if own.casefold() not in taken
        ]
        names[column] = free[0] if free else column
    return names


def _read_folders(paths: Iterable[Location], named: Sequence[str]) -> pd.DataFrame:
    """Read one row per run, with the columns of the view `runs`.

    Args:
        paths: folders of sweeps, or folders that hold some.
        named: statistics that are asked for by name, such as `rounds_to_r2_0.7`.

    Returns:
        The rows. Their `attrs` name the axes (`labels`), the statistics that are `fractions`,
        those of which the `lower_is_better`, and those that are `shown` by default, and
        count the `unreadable` lines of ledgers.
    """
    parts = []
    fractions = set[str]()
    lower_is_better = set[str]()
    shown: list[str] = []
    unreadable = 0
    for store in (store for path in paths for store in sweeps_in(path)):
        manifest = store.manifest()
        runs = make_runs_table(store, named=named)
        parts.append(_per_run(runs, manifest))
        unreadable += store.unreadable()
        known = manifest.known(runs)
        fractions |= {name for name, own in known.items() if own.is_fraction}
        lower_is_better |= {n for n, own in known.items() if not own.higher_is_better}
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
    names = _names(map(str, frame))
    frame = frame.rename(columns=names)
    frame.attrs = {
        "labels": [new for old, new in names.items() if old.startswith("label.")],
        "fractions": sorted(fractions),
        "lower_is_better": sorted(lower_is_better),
        "shown": shown,
        "unreadable": unreadable,
    }
    return frame


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


def _default(runs: pd.DataFrame, named: Sequence[str]) -> list[str]:
    """Return the columns that are shown if the user names none."""
    labels = [name for name in runs.attrs["labels"] if runs[name].notna().any()]
    several = ["sweep"] if runs["sweep"].nunique() > 1 else []
    explained = [status for status in Status if status.unended]
    explained += [Status.DAMAGED, Status.STOPPED]
    why = ["reason"] if runs["status"].isin(explained).any() else []
    shown = [name for name in runs.attrs["shown"] if name in runs]
    wanted = [*several, "run_id", *labels, *named, *shown, "replicates", "status", *why]
    return list(dict.fromkeys(wanted))


def as_table(found: pd.DataFrame) -> Table:
    """Write what was found as a table for a terminal.

    All labels stand in one column, and numbers have four digits. Of very many rows the
    first are shown, and the caption says so.
    """
    caption = count(len(found), "row")
    if len(found) > MOST_ROWS:
        caption = f"the first {MOST_ROWS:,} of {len(found):,} rows (--csv and --json write all)"
    texts = found[:MOST_ROWS].map(_shown_value)
    labels = [name for name in found.attrs.get("labels", ()) if name in found]
    if labels:
        joined = [
            ", ".join(
                f"{n} {text}" for n, text in zip(labels, row, strict=True) if text
            )
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
            Text(name),
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
