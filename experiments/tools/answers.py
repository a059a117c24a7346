"""The tables of docs/answers.md, which `experiments.tools.reproduction` fills in."""

import pandas as pd

from experiments.tools.measured import compared, sweeps
from raysafl.report.analysis.evidence import t_quantile
from raysafl.report.analysis.numbers import Numbers
from raysafl.report.pages.document import Grid, pipe_table
from raysafl.report.pages.methods import standings
from raysafl.report.wording import NOTHING, signed_spread, spread
from raysafl.storage.manifest import Label

Labels = dict[str, Label]


def with_intervals(name: str, rows: list[str], column: str) -> str:
    """Return a table of means over seeds, each ± its 95 % interval.

    Args:
        name: The sweep's folder in results/measured.
        rows: The axes whose labels name the rows.
        column: The axis whose labels name the columns.
    """
    found = compared(name)
    entries, table = found.entries, found.manifest.table
    text = [
        spread(mean, half, table.unit)
        for mean, half in zip(
            entries[f"mean.{table.statistic}"], entries["half.mean"], strict=True
        )
    ]
    return _wide_table(entries.assign(text=text), rows, column)


def _wide_table(entries: pd.DataFrame, rows: list[str], column: str) -> str:
    """Return the `text` of entries as a table.

    Args:
        entries: One row an entry, with its labels.
        rows: The axes whose labels name the rows.
        column: The axis whose labels name the columns.
    """
    axes = [f"label.{axis}" for axis in (*rows, column)]
    # Categories keep the order in which labels appear in the sweep.
    labels = {a: pd.Categorical(entries[a], entries[a].unique()) for a in axes}
    wide = entries.assign(**labels).pivot_table(
        index=axes[:-1],
        columns=axes[-1],
        values="text",
        aggfunc="first",
        observed=True,
        sort=True,
    )
    lines = [
        [*map(str, key if isinstance(key, tuple) else (key,)), *cells]
        for key, cells in zip(wide.index, wide.fillna(NOTHING).to_numpy(), strict=True)
    ]
    order = list(wide.columns)
    head = [*rows, *(f"{column} = {label}" for label in order)]
    return pipe_table(head, lines, len(rows))


def differences(
    name: str, pairs: list[tuple[str, Labels, Labels]], rows: list[str], column: str
) -> str:
    """Return a table of differences of two entries, taken seed by seed.

    Each seed has a partition of its own. A difference is the mean over seeds ± its 95 %
    interval, with the number of seeds at which it is above zero.

    Args:
        name: The sweep's folder in results/measured.
        pairs: For each row its text, the labels of the first entry, and those of the
            second one, which is subtracted.
        rows: The other axes whose labels name the rows.
        column: The axis whose labels name the columns.
    """
    sweep = sweeps()[name]
    table = sweep.manifest.table
    runs = sweep.runs.assign(value=sweep.runs[table.statistic] * table.scale)
    axes = [f"label.{axis}" for axis in (*rows, column)]
    parts = []
    for text, *sides in pairs:
        first, second = (
            runs[(runs[[f"label.{a}" for a in own]] == list(own.values())).all(axis=1)]
            .set_index([*axes, "seed"])["value"]
            .sort_index()
            for own in sides
        )
        found = (
            (first - second).dropna().groupby(axes).agg(["mean", "sem", "size", _above])
        )
        half = found["sem"] * t_quantile(found["size"].to_numpy(float) - 1)
        cells = [
            f"{signed_spread(mean, width, table.unit)} ({above} of {size})"
            for mean, width, above, size in zip(
                found["mean"], half, found["_above"], found["size"], strict=True
            )
        ]
        compared_text = {"label.difference": text, "text": cells}
        parts.append(found.reset_index().assign(**compared_text))
    return _wide_table(pd.concat(parts), [*rows, "difference"], column)


def _above(values: "pd.Series[float]") -> int:
    """Return how many values are above zero."""
    return int((values > 0).sum())


def standing(name: str) -> str:
    """Return how the methods of a sweep stand over all settings, the best one first."""
    sweep = sweeps()[name]
    blocks = standings(Numbers.of(sweep.runs, sweep.manifest))
    (grid,) = (block for block in blocks if isinstance(block, Grid))
    return pipe_table(grid.head, grid.rows, grid.heads)
