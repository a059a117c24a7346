"""`raysafl results`: plain SQL over the stored runs of one sweep or of many."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from raysafl.core.text import count
from raysafl.storage.ledger import SEVERITY, Status
from raysafl.storage.manifest import Manifest
from raysafl.storage.runs_table import make_runs_table, over_replicates
from raysafl.storage.statistics import (
    BY_NAME,
    ROUNDS_TO,
    STATISTICS,
    quality_statistics,
)
from raysafl.storage.store import sweeps_in

# A run has the first of these statuses that one of its replicates has.
WORST = {status: place for place, status in enumerate(reversed(SEVERITY))}
# How many statistics of what runs are judged by are shown by default.
SHOWN = 3
# A query reads the runs, and no file, no address and no variable of this process.
SAFE: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "python_enable_replacements": False,
    "lock_configuration": True,
}


def results(paths: Iterable[Path], query: str = "") -> pd.DataFrame:
    """Return the runs that meet a condition, one row per run, or the answer to a query.

    Statistics are means over the finished replicates of a run (of `rounds_to_50` and the
    like, if all have reached the value), `<statistic>_std` are their standard deviations,
    and `replicates` is their number. Of a run that a scheduler or a rule stopped, they are
    those of the rounds that it ran. `status` and `reason` are those of the replicate that
    ended worst. A run that has not ended is listed, as `running` or `waiting`, without
    statistics.

    Args:
        paths: folders of sweeps, or folders that hold some.
        query: what stands behind `where` in DuckDB's SQL, such as
            `algorithm == 'SAFARI' and client_prob > 0.5 order by best desc limit 10`, or
            `limit 10` without a condition; or a whole query, which begins with `select`, `with`
            or `from`, over the view `runs`, whose columns `_names` describes.

    Returns:
        The columns of a whole query; or the labels, what the query names, what the runs are
        judged by, replicates and status. `attrs["damaged"]` is the number of damaged runs in
        the folders, which have no statistics; a line of the ledger that cannot be read counts
        as one.

    Raises:
        ValueError: a folder holds no sweep, or DuckDB cannot answer the query.
    """
    # Unlike `Path.is_dir`, this raises no error for a query that is too long for a path.
    if os.path.isdir(query):
        raise ValueError(
            f"'{query}' is a folder: the query comes first, '' for all, and then the folders"
        )
    named = [match[0] for match in ROUNDS_TO.finditer(query)]
    named += [name for name in BY_NAME if name in query]
    runs = _read_folders(paths, named)
    is_whole = re.match(r"\s*(select|with|from)\b", query, re.IGNORECASE)
    of_all = re.match(r"\s*(order|limit)\b|\s*$", query, re.IGNORECASE)
    condition = f"SELECT * FROM runs WHERE {'true ' if of_all else ''}{query}"
    answer = _answer(query if is_whole else condition, query, runs)
    if not is_whole:
        answer = answer[_default(runs, re.findall(r"[\w.]+", query))]
    answer.attrs = {"damaged": runs.attrs["damaged"]}
    return answer


def _answer(sql: str, asked: str, runs: pd.DataFrame) -> pd.DataFrame:
    """Return DuckDB's answer from the view `runs`.

    Raises:
        ValueError: DuckDB cannot answer it.
    """
    import duckdb

    try:
        with duckdb.connect(config=SAFE) as database:
            database.register("runs", pa.Table.from_pandas(runs))
            statements = database.extract_statements(sql)
            if len(statements) != 1:
                raise duckdb.Error(
                    f"it has {len(statements)} statements in place of one"
                )
            return database.execute(statements[0]).df()
    except (duckdb.Error, RecursionError) as error:
        reason = str(error).partition("\nLINE")[0].strip().replace("\n", " ")
        raise ValueError(
            f"the query '{asked}' cannot be answered ({reason}): write a condition such as "
            "\"algorithm == 'SAFARI' and client_prob > 0.5\", with texts in 'quotes' and names "
            'that have a dot in "double ones"'
        ) from None


def _names(columns: Sequence[str]) -> dict[str, str]:
    """Return the name that queries have for each stored column.

    An axis is named without `label.`, and a setting by the last part of its name if no other
    setting has it (`client_prob` for `config.algorithm.client_prob`), or else without
    `config.` (`algorithm.lr`). Where such a name is taken, the stored one is left.
    """
    settings = {column for column in columns if column.startswith("config.")}
    lasts = Counter(column.rpartition(".")[2] for column in settings)
    names: dict[str, str] = {}
    taken = set[str]()
    for column in sorted(columns, key=lambda c: (c in settings, c[:6] == "label.")):
        name = column.removeprefix("label.").removeprefix("config.")
        last = name.rpartition(".")[2]
        is_short = column in settings and lasts[last] == 1
        wanted = [last, name, column] if is_short else [name, column]
        # DuckDB does not tell capital letters from small ones.
        names[column] = next(own for own in wanted if own.casefold() not in taken)
        taken.add(names[column].casefold())
    return names


def _read_folders(paths: Iterable[Path], named: Sequence[str]) -> pd.DataFrame:
    """Read one row per run, with the columns of the view `runs`.

    Args:
        paths: folders of sweeps, or folders that hold some.
        named: statistics that are asked for by name, such as `rounds_to_r2_0.7`.

    Returns:
        The rows. Their `attrs` name the axes (`labels`) and the statistics that are `shown`
        by default, and count the `damaged` runs and the lines of ledgers that cannot be read.
    """
    parts = []
    shown: list[str] = []
    damaged = 0
    for store in (store for path in paths for store in sweeps_in(path)):
        manifest = store.manifest()
        found = store.read()
        runs = make_runs_table(store, found, named)
        parts.append(_per_run(runs, manifest))
        damaged += len(found.damaged) + len(store.lines().faults)
        shown += quality_statistics(manifest.quality)[:SHOWN]
    some = [part for part in parts if len(part)] or parts[:1]
    frame = pd.concat(some, ignore_index=True)
    for name in map(str, frame):
        if name.startswith(("config.", "label.")):
            values = frame[name].astype(object)
            # A run whose sweep has no such axis has the setting of this name.
            setting = f"config.{name.removeprefix('label.')}"
            if setting in frame:
                values = values.combine_first(frame[setting])
            frame[name] = _parsed(values)
    names = _names(list(map(str, frame)))
    frame = frame.rename(columns=names)
    frame.attrs = {
        "labels": [new for old, new in names.items() if old.startswith("label.")],
        "shown": shown,
        "damaged": damaged,
    }
    return frame


def _per_run(runs: pd.DataFrame, manifest: Manifest) -> pd.DataFrame:
    """Join the replicates of each run to one row."""
    if runs.empty:
        names = ["sweep", "run_id", "status", "replicates", *STATISTICS]
        return pd.DataFrame(columns=names)
    known = {**STATISTICS, **manifest.known(runs)}
    names = [name for name in known if name in runs]
    spread = [n for n in names if f"{n}_std" not in names and n != "last5_std"]
    means, stds, replicates = over_replicates(runs, names)
    worst = runs.sort_values("status", key=lambda s: s.map(WORST), kind="stable")
    first = worst.drop_duplicates("run_id").set_index("run_id")
    joined = (
        first.drop(columns=[*names, "replicate", "seed", "partition_seed"])
        .join(means)
        .join(stds[spread].add_suffix("_std"))
        .join(replicates)
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


def _default(runs: pd.DataFrame, asked: Sequence[str]) -> list[str]:
    """Return the columns that are shown of a condition in which these words stand."""
    sweep = ["sweep"] if runs["sweep"].nunique() > 1 else []
    labels = [name for name in runs.attrs["labels"] if runs[name].notna().any()]
    judged = [name for name in [*asked, *runs.attrs["shown"]] if name in runs]
    reason = [] if (runs["status"] == Status.FINISHED).all() else ["reason"]
    ends = ["replicates", "status", *reason]
    return list(dict.fromkeys([*sweep, "run_id", *labels, *judged, *ends]))


def as_text(answer: pd.DataFrame) -> str:
    """Write an answer as a table for a terminal, its numbers with four digits."""
    table = answer.to_string(index=False, na_rep="", float_format="{:.4g}".format)
    return ("" if answer.empty else f"{table}\n") + count(len(answer), "row")
