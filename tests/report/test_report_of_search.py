"""Reports of searches whose runs are no grid: a list, slices, and the lines of the best."""

import numpy as np
import pandas as pd
import pytest
from helpers.drawn import drawn, study_of
from helpers.reports import markdown, on_screen
from matplotlib.figure import Figure

from raysafl.report.analysis.numbers import MOST, Numbers
from raysafl.report.export import table_tex
from raysafl.report.figures.curves import BEST, curves
from raysafl.report.figures.means import heatmap, slices
from raysafl.report.pages.screen import MOST as MOST_ON_SCREEN
from raysafl.storage.manifest import Entry, Label, Manifest, Table

RATES = (0.1, 0.001, 0.9, 0.03, 0.3, 0.01, 0.2)
METHODS = ("FedAvg", "SAFARI")
AXES = ("method", "lr")
# The mean of each run over its two seeds, in the order of the search.
FINALS = (0.7, 0.2, 0.3, 0.6, 0.8, 0.5, 0.75)


def search_of(
    keys: list[tuple[Label, ...]], axes: tuple[str, ...] = ("lr", "method")
) -> Manifest:
    entries = [
        Entry(run_id=f"{i:012x}", labels=dict(zip(axes, key, strict=True)))
        for i, key in enumerate(keys)
    ]
    return Manifest(
        name="search",
        axes=list(axes),
        entries=entries,
        table=Table(rows=list(axes[:-1]), columns=[axes[-1]], also=[]),
        goal=("test_accuracy", "max"),
        is_drawn=True,
    )


DRAWN = search_of([(rate, METHODS[i % 2]) for i, rate in enumerate(RATES)])


def runs_of(search: Manifest, finals: tuple[float, ...] = FINALS) -> pd.DataFrame:
    return pd.DataFrame(
        {"run_id": entry.run_id, "replicate": r, "seed": r, "status": "finished"}
        | {"reason": "", "seconds": 1.0, "config": "{}", "config.replicates": "2"}
        | {"final": final + 0.01 * (2 * r - 1), "final_loss": 1 - final}
        # On the validation samples, the third run is the best one.
        | {"partition_seed": 0, "final_val_accuracy": 0.9 - abs(final - 0.3)}
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


def names_in(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


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


def first_labels(runs: pd.DataFrame, search: Manifest = DRAWN) -> list[str]:
    return [row[0] for row in heads_and_rows(markdown(runs, search))[1:]]


def test_runs_are_in_the_order_of_what_the_best_one_is_chosen_by() -> None:
    runs = runs_of(DRAWN)
    by_loss = DRAWN.replace(goal=("test_loss", "min"))
    assert first_labels(runs, by_loss) == first_labels(runs)
    by_val = DRAWN.replace(goal=("val_accuracy", "max"))
    assert first_labels(runs, by_val)[:3] == ["0.9", "0.001", "0.01"]
    study = study_of(by_val, rows_of(DRAWN), runs)
    _, best = drawn(slices(study)).axes[0].lines
    assert list(best.get_xdata()) == [0.9]
    assert names_in(drawn(curves(study)))[0] == "lr = 0.9, FedAvg"


def test_runs_that_have_not_finished_are_last_and_are_not_named() -> None:
    runs = runs_of(DRAWN)
    best, *_ = runs.index[runs["run_id"] == DRAWN.entries[4].run_id]
    runs.loc[best, "status"] = "diverged"
    unfinished = [DRAWN.entries[i].run_id for i in (0, 1, 2, 5)]
    runs = runs[~runs["run_id"].isin(unfinished)]
    # Of the last ones, the order is that of the search.
    assert first_labels(runs) == ["0.2", "0.03", "0.1", "0.001", "0.9", "0.3", "0.01"]
    figure = drawn(curves(study_of(DRAWN, rows_of(DRAWN), runs)))
    names = names_in(figure)
    assert names == ["lr = 0.2, FedAvg", "lr = 0.03, SAFARI"]
    assert "Shown are the best 2 of 7 runs, by test_accuracy." in figure.get_label()


def test_the_terminal_and_latex_list_every_label_of_every_run() -> None:
    search = search_of([(METHODS[i % 2], rate) for i, rate in enumerate(RATES)], AXES)
    # The first three have the same method.
    finals = (0.9, 0.2, 0.8, 0.3, 0.7, 0.4, 0.5)
    text = on_screen(runs_of(search, finals), search)
    lines = [line.split() for line in text.splitlines()]
    listed = [tuple(line[:2]) for line in lines if line and line[0] in METHODS]
    assert listed[:3] == [("FedAvg", "0.1"), ("FedAvg", "0.9"), ("FedAvg", "0.3")]
    assert len(listed) == len(RATES) and "→" not in text
    study = study_of(search, runs=runs_of(search, finals))
    made = table_tex(study).splitlines()
    assert sum(line.startswith("FedAvg & ") for line in made) == 4


def test_of_very_many_runs_the_best_are_listed_and_counted() -> None:
    number = MOST + 200
    values = np.random.default_rng(0).permutation(number)
    search = search_of([(float(i), "FedAvg") for i in range(number)])
    finals = tuple(0.1 + 0.5 * values / number)
    numbers = Numbers.of(runs_of(search, finals), search)
    shown = numbers.shown_entries["mean.final"]
    assert len(shown) == MOST and shown.is_monotonic_decreasing
    assert shown.min() > numbers.entries["mean.final"].nsmallest(200).max()
    assert numbers.share == "the first 1,000 of 1,200 entries"
    words = " ".join(on_screen(runs_of(search, finals), search).split())
    assert f"the first {MOST_ON_SCREEN} of 1,200 entries" in words


def test_a_search_has_no_heat_map_and_a_panel_of_slices_for_each_axis() -> None:
    study = study_of(DRAWN, rows_of(DRAWN), runs_of(DRAWN))
    assert heatmap(study) is None
    figure = drawn(slices(study))
    rates, methods = figure.axes
    _, star = rates.lines
    assert star.get_marker() == "*" and list(star.get_xdata()) == [0.3]
    assert "The star is the best run by test_accuracy." in figure.get_label()
    assert (rates.get_xlabel(), methods.get_xlabel()) == ("lr", "method")
    assert (rates.get_xscale(), methods.get_xscale()) == ("log", "linear")
    assert [text.get_text() for text in methods.get_xticklabels()] == list(METHODS)
    for axes, places in ((rates, RATES), (methods, [i % 2 for i in range(7)])):
        points = np.concatenate([line.get_xydata() for line in axes.lines])
        expected = {
            (float(x), round(100 * y, 9)) for x, y in zip(places, FINALS, strict=True)
        }
        assert {(float(x), round(float(y), 9)) for x, y in points} == expected


@pytest.mark.parametrize(
    ("values", "scale", "ticks"),
    [
        ((0, 4, 2, 0, 4, 2, 0), "linear", None),
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


def test_the_best_runs_of_a_search_have_lines_in_one_panel_and_are_named() -> None:
    figure = drawn(curves(study_of(DRAWN, rows_of(DRAWN), runs_of(DRAWN))))
    (axes,) = figure.axes
    names = names_in(figure)
    assert names[0] == "lr = 0.3, FedAvg" and len(names) == BEST
    assert "Shown are the best 5 of 7 runs, by test_accuracy." in figure.get_label()
    ends = [float(np.asarray(line.get_ydata())[-1]) for line in axes.lines]
    best = sorted(FINALS, reverse=True)[:BEST]
    assert ends == pytest.approx([100 * final for final in best])


def test_an_exported_list_says_why_its_best_run_is_bold_and_marks_ties() -> None:
    runs = runs_of(DRAWN)
    # The second run is better with one seed, and worse with the other.
    second = runs["run_id"] == DRAWN.entries[1].run_id
    runs.loc[second, "final"] = [0.6, 0.99]
    text = table_tex(study_of(DRAWN, runs=runs))
    table = text.partition(r"\begin")[2]
    assert table.count(r"\textbf{") == table.count("† ") == 1
    assert "Bold is the best run, by test_accuracy. † marks the" in text
