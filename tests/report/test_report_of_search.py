"""Reports of searches whose runs are no grid: a list, slices, and the lines of the best."""

import io
import itertools

import numpy as np
import pandas as pd
import pytest
from helpers.drawn import study_of
from helpers.reports import markdown
from matplotlib.figure import Figure
from rich.console import Console

from raysafl.report.analysis.layout import Layout
from raysafl.report.analysis.numbers import Numbers
from raysafl.report.analysis.part import MOST
from raysafl.report.figures.curves import curves
from raysafl.report.figures.heatmap import heatmap
from raysafl.report.figures.search import NAMED, WORDS, slices
from raysafl.report.pages.screen import MOST as MOST_ON_SCREEN
from raysafl.report.pages.screen import screen
from raysafl.storage.manifest import Entry, Label, Manifest, Table

RATES = (0.1, 0.001, 0.9, 0.03, 0.3, 0.01, 0.2)
METHODS = ("FedAvg", "SAFARI")
# The mean of each run over its two seeds, in the order of the search.
FINALS = (0.7, 0.2, 0.3, 0.6, 0.8, 0.5, 0.75)


def search_of(
    keys: list[tuple[Label, ...]],
    axes: tuple[str, ...] = ("lr", "method"),
    **table: str,
) -> Manifest:
    entries = [
        Entry(run_id=f"{i:012x}", labels=dict(zip(axes, key, strict=True)))
        for i, key in enumerate(keys)
    ]
    return Manifest(
        name="search",
        axes=list(axes),
        entries=entries,
        table=Table(rows=list(axes[:-1]), columns=[axes[-1]], also=[], **table),
        goal=("test_accuracy", "max"),
    )


DRAWN = search_of([(rate, METHODS[i % 2]) for i, rate in enumerate(RATES)])


def runs_of(search: Manifest, finals: tuple[float, ...] = FINALS) -> pd.DataFrame:
    return pd.DataFrame(
        {"run_id": entry.run_id, "replicate": r, "seed": r, "status": "finished"}
        | {"reason": "", "seconds": 1.0, "config": "{}", "config.replicates": "2"}
        | {"final": final + 0.01 * (2 * r - 1), "final_loss": 1 - final}
        | {"diverged": False, "partition_seed": 0}
        for entry, final in zip(search.entries, finals, strict=True)
        for r in (0, 1)
    )


def rows_of(search: Manifest, finals: tuple[float, ...] = FINALS) -> pd.DataFrame:
    return pd.DataFrame(
        {"run_id": entry.run_id, "replicate": r, "round": t}
        | {"test_accuracy": final + 0.01 * (t - 9)}
        for entry, final in zip(search.entries, finals, strict=True)
        for r in (0, 1)
        for t in range(10)
    )


def drawn(figures: list[Figure]) -> Figure:
    (figure,) = figures
    return figure


def slices_of(search: Manifest, finals: tuple[float, ...] = FINALS) -> Figure:
    return drawn(
        slices(study_of(search, rows_of(search, finals), runs_of(search, finals)))
    )


def heads_and_rows(text: str) -> list[list[str]]:
    table = text.split("## Table")[1].split("\n## ")[0].splitlines()
    lines = [line.strip("|").split("|") for line in table if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in (lines[0], *lines[2:])]


def test_a_search_lists_its_runs_and_the_best_is_first_and_bold() -> None:
    head, *rows = heads_and_rows(markdown(runs_of(DRAWN), DRAWN))
    assert head == ["lr", "method", "final"]
    by_value = sorted(zip(FINALS, RATES, strict=True), reverse=True)
    assert [row[0] for row in rows] == [str(rate) for _, rate in by_value]
    assert ["**" in row[2] for row in rows] == [True, *[False] * 6]


def test_where_less_is_better_the_lowest_run_is_first() -> None:
    table = DRAWN.table.replace(statistic="final_loss", scale=1.0, unit="")
    _, *rows = heads_and_rows(markdown(runs_of(DRAWN), DRAWN.replace(table=table)))
    assert rows[0][0] == "0.3" and rows[-1][0] == "0.001"


def test_runs_without_a_number_are_last() -> None:
    runs = runs_of(DRAWN)
    runs = runs[runs["run_id"] != DRAWN.entries[4].run_id]
    _, *rows = heads_and_rows(markdown(runs, DRAWN))
    assert rows[0][0] == "0.2" and rows[-1][0] == "0.3" and "±" not in rows[-1][2]


def test_the_terminal_lists_every_label_of_every_run() -> None:
    text = io.StringIO()
    Console(file=text, width=100).print(screen(runs_of(DRAWN), DRAWN))
    lines = [line.split() for line in text.getvalue().splitlines()]
    listed = [line for line in lines if len(line) == 5 and line[1] in METHODS]
    assert [line[0] for line in listed] == [
        "0.3",
        "0.2",
        "0.1",
        "0.03",
        "0.01",
        "0.9",
        "0.001",
    ]
    assert "→" not in text.getvalue()


def test_of_very_many_runs_the_best_are_listed_and_counted() -> None:
    number = MOST + 200
    values = np.random.default_rng(0).permutation(number)
    search = search_of([(float(i), "FedAvg") for i in range(number)])
    finals = tuple(0.1 + 0.5 * values / number)
    numbers = Numbers.of(runs_of(search, finals), search)
    shown = numbers.part.entries["mean.final"]
    assert len(shown) == MOST and shown.is_monotonic_decreasing
    assert shown.min() > numbers.entries["mean.final"].nsmallest(200).max()
    assert numbers.part.note.startswith(
        "Shown one by one are the best 1,000 of 1,200 entries;"
    )
    text = io.StringIO()
    Console(file=text, width=100).print(screen(runs_of(search, finals), search))
    assert f"the best {MOST_ON_SCREEN} of 1,200 entries" in " ".join(
        text.getvalue().split()
    )


def test_a_grid_that_has_a_goal_keeps_its_table_and_its_heat_map() -> None:
    grid = search_of(list(itertools.product((0.1, 0.2, 0.3), METHODS)))
    layout = Layout.of(grid)
    assert (layout.down, layout.across, layout.is_list) == (["lr"], ["method"], False)
    study = study_of(grid, rows_of(grid, FINALS[:6]), runs_of(grid, FINALS[:6]))
    assert len(heatmap(study)) == 1 and slices(study) == []


def test_a_sweep_without_a_goal_is_no_list() -> None:
    assert not Layout.of(DRAWN.replace(goal=None)).is_list


def test_a_list_tells_methods_apart_by_an_axis_of_that_name_alone() -> None:
    assert Layout.of(DRAWN).method == "method"
    other = search_of([(rate, 2 * rate) for rate in RATES], ("lr", "q"))
    assert Layout.of(other).method is None
    chosen = other.replace(table=other.table.replace(lines="q"))
    assert Layout.of(chosen).method == "q"


def test_a_search_has_no_heat_map_and_a_panel_of_slices_for_each_axis() -> None:
    study = study_of(DRAWN, rows_of(DRAWN), runs_of(DRAWN))
    assert heatmap(study) == []
    rates, methods = drawn(slices(study)).axes
    assert (rates.get_xlabel(), methods.get_xlabel()) == ("lr", "method")
    assert (rates.get_xscale(), methods.get_xscale()) == ("log", "linear")
    assert [text.get_text() for text in methods.get_xticklabels()] == list(METHODS)
    for axes, places in ((rates, RATES), (methods, [i % 2 for i in range(7)])):
        points = np.concatenate([line.get_xydata() for line in axes.lines])
        expected = {
            (float(x), round(100 * y, 9)) for x, y in zip(places, FINALS, strict=True)
        }
        assert {(float(x), round(float(y), 9)) for x, y in points} == expected


def test_the_star_is_the_best_run_and_filled_points_are_its_ties() -> None:
    finals = (0.7, 0.795, 0.3, 0.6, 0.8, 0.5, 0.75)
    runs = runs_of(DRAWN, finals)
    # The second run is better with one seed, and worse with the other.
    second = runs["run_id"] == DRAWN.entries[1].run_id
    runs.loc[second, "final"] = [0.6, 0.99]
    figure = drawn(slices(study_of(DRAWN, rows_of(DRAWN, finals), runs)))
    others, close, best = figure.axes[0].lines
    assert best.get_marker() == "*" and best.get_xdata() == [0.3]
    assert close.get_xdata() == [0.001] and close.get_markerfacecolor() != "white"
    assert len(others.get_xdata()) == 5 and others.get_markerfacecolor() == "white"
    assert "The star is the best run." in figure.get_label()


@pytest.mark.parametrize(
    ("values", "scale", "ticks"),
    [
        ((0, 4, 2, 0, 4, 2, 0), "linear", [0, 2, 4]),
        ((True, False, True, False, True, False, True), "linear", [0, 1]),
        ((None, 0.5, None, 0.5, 0.5, 0.5, 0.5), "linear", [0, 1]),
        ((1, 10, 100, 1000, 1, 10, 100), "log", None),
    ],
)
def test_an_axis_of_slices_fits_its_values(
    values: tuple[Label, ...], scale: str, ticks: list[int] | None
) -> None:
    search = search_of(list(zip(RATES, values, strict=True)), ("lr", "b"))
    axes = slices_of(search).axes[1]
    assert axes.get_xscale() == scale
    if ticks is not None:
        assert list(axes.get_xticks()) == ticks


def test_of_very_many_words_some_are_written() -> None:
    words = [f"word {i}" for i in range(30)]
    search = search_of(list(enumerate(words)), ("lr", "b"))
    axes = slices_of(search, tuple(0.01 * i for i in range(30))).axes[1]
    assert 1 < len(axes.get_xticks()) <= WORDS


def test_the_lines_of_a_search_stand_in_one_panel_and_the_best_are_named() -> None:
    figure = drawn(curves(study_of(DRAWN, rows_of(DRAWN), runs_of(DRAWN))))
    (axes,) = figure.axes
    assert len(axes.lines) == len(RATES)
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names[0] == "lr = 0.3, FedAvg" and len(names) == NAMED
    assert "Named are the best 5 of 7 runs, by final." in figure.get_label()
    # The named lines lie above the grey ones, and the axis shows the better half.
    order = sorted(axes.lines, key=lambda line: line.get_zorder(), reverse=True)
    assert float(np.asarray(order[0].get_ydata())[-1]) == pytest.approx(80)
    assert axes.get_ylim()[0] > 35


def test_lines_of_a_search_that_has_just_begun_are_drawn_without_numbers() -> None:
    figure = drawn(curves(study_of(DRAWN, rows_of(DRAWN).query("round < 3"))))
    assert len(figure.axes[0].lines) == len(RATES)
