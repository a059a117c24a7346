"""The tables of docs/answers.md, which `experiments.tools.reproduction` fills in."""

import pandas as pd

from experiments.tools.measured import compared, sweeps
from raysafl.report.analysis.numbers import Numbers
from raysafl.report.pages.document import Grid
from raysafl.report.pages.markdown import pipe_table
from raysafl.report.pages.sections import standings
from raysafl.report.wording import NOTHING, spread


def with_intervals(name: str, rows: list[str], column: str) -> str:
    """Return a table of means over seeds, each ± its 95 % interval.

    Args:
        name: The sweep's folder in results/measured.
        rows: The axes whose labels name the rows.
        column: The axis whose labels name the columns.
    """
    entries, manifest = compared(name)
    statistic = manifest.table.statistic
    text = [
        spread(mean, half, manifest.table.unit)
        for mean, half in zip(
            entries[f"mean.{statistic}"], entries["half.mean"], strict=True
        )
    ]
    axes = [f"label.{axis}" for axis in (*rows, column)]
    # Categories keep the order in which labels appear in the sweep.
    labels = {a: pd.Categorical(entries[a], entries[a].unique()) for a in axes}
    wide = entries.assign(**labels, text=text).pivot_table(
        index=axes[:-1],
        columns=axes[-1],
        values="text",
        aggfunc="first",
        observed=True,
        sort=True,
    )
    lines = [
        [*map(str, key), *cells]
        for key, cells in zip(wide.index, wide.fillna(NOTHING).to_numpy(), strict=True)
    ]
    order = list(wide.columns)
    head = [*rows, *(f"{column} = {label}" for label in order)]
    return pipe_table(head, lines, len(rows))


def standing(name: str) -> str:
    """Return how the methods of a sweep stand over all settings, the best one first."""
    sweep = sweeps()[name]
    blocks = standings(Numbers.of(sweep.runs, sweep.manifest))
    (grid,) = (block for block in blocks if isinstance(block, Grid))
    return pipe_table(grid.head, grid.rows, grid.heads)
