"""The table and figures for a paper: choice, LaTeX, letters, looks, equal files."""

import io
import itertools
import re
from pathlib import Path

import pandas as pd
import pytest
from helpers.drawn import drawn, study_of
from helpers.scored import made
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

import raysafl as fl
from raysafl.report import export
from raysafl.report.figures.curves import curves
from raysafl.report.figures.style import paper_style, to_file
from raysafl.report.pages.document import Grid, Strong, latex
from raysafl.report.results import SweepResults
from raysafl.storage.manifest import Entry, Manifest, Table

MEASURED = Path(__file__).parents[2] / "results/measured"
METHODS = [f"method {i}" for i in range(16)]
POLICIES = [f"policy {i}" for i in range(26)]


@pytest.fixture(scope="module")
def measured() -> SweepResults:
    """A sweep of nine methods, eight policies and two partitions."""
    return fl.load(MEASURED / "factorial_small")


def study_of_many() -> tuple[Manifest, pd.DataFrame]:
    """Rows of 16 methods by 26 policies; the curve of method i ends at 50 + 2 i per cent."""
    pairs = list(itertools.product(METHODS, POLICIES))
    entries = [
        Entry(run_id=f"{i:012x}", labels={"algorithm": a, "policy": p})
        for i, (a, p) in enumerate(pairs)
    ]
    rows = pd.DataFrame(
        {
            "run_id": entry.run_id,
            "replicate": r,
            "seed": r,
            "round": t,
            "test_accuracy": (0.5 + 0.02 * METHODS.index(a)) * (1 - 0.5**t) + 0.01 * r,
        }
        for entry, (a, _) in zip(entries, pairs, strict=True)
        for r in range(2)
        for t in range(20)
    )
    table = Table(rows=["algorithm"], columns=["policy"])
    axes = ["algorithm", "policy"]
    return Manifest(name="many", axes=axes, entries=entries, table=table), rows


def letters_of(figure: Figure) -> set[float]:
    return {
        text.get_fontsize()
        for text in figure.findobj(Text)
        if isinstance(text, Text) and text.get_text() and text.get_visible()
    }


# --- the figures


@pytest.mark.parametrize("width", [3.25, 6.75])
def test_all_letters_of_an_exported_figure_have_seven_points_and_it_has_its_width(
    measured: SweepResults, width: float
) -> None:
    only = {"partition": ["Dirichlet(0.1)"]}
    for name in ("curves", "heatmap", "intervals", "participation"):
        figure = measured.figure(name, only=only, width=width)
        with paper_style(width).used():
            figure.draw_without_rendering()
        assert min(letters_of(figure)) >= 7
        assert figure.get_figwidth() == width
        assert not figure.get_suptitle()


def test_curves_share_a_range_without_the_climb_and_have_a_legend() -> None:
    manifest, rows = study_of_many()
    figure = drawn(curves(study_of(manifest, rows), paper_style(3.25)))
    shown = figure.axes
    # Two panels side by side and seven above each other fit on a page.
    assert [axes.get_title() for axes in shown] == POLICIES[:14]
    assert "Shown are the first 14 of 26 panels." in figure.get_label()
    assert all(len(axes.get_lines()) == len(METHODS) for axes in shown)
    ((low, high),) = {axes.get_ylim() for axes in shown}
    assert 45 < low < 51 and 80 < high < 85
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == METHODS


@pytest.mark.parametrize("kind", ["pdf", "svg", "png"])
def test_a_figure_is_the_same_file_each_time(measured: SweepResults, kind: str) -> None:
    made = []
    for _ in range(2):
        figure = measured.figure("heatmap", {"algorithm": ["FedAvg"]}, width=3.25)
        with paper_style(3.25).used():
            made.append(to_file(figure, kind))  # type: ignore[arg-type]
    assert made[0] == made[1]
    assert not re.search(rb"CreationDate|dc:date|Type3", made[0])
    if kind == "png":
        assert Image.open(io.BytesIO(made[0])).size[0] == round(3.25 * 300)


# --- the table


def test_latex_shows_names_as_they_are_and_bold_where_an_entry_stands_out() -> None:
    strong = Strong("1.00 ± 0.10")
    grid = Grid("c", ["a_b", "p = 1"], [["50% & #1", strong], ["x^2~{}\\", "2"]])
    text = latex(grid, "note")
    assert "% note" in text and r"\toprule" in text and r"\begin{tabular}{lr}" in text
    assert r"a\_b & p = 1 \\" in text
    assert r"50\% \& \#1 & \textbf{1.00 ± 0.10} \\" in text


def test_latex_takes_no_label_for_an_option_and_shows_signs_that_its_font_lacks() -> (
    None
):
    text = latex(Grid("c", ["a", "b"], [["[x]", "1"], ["*", "2"], ["<|>", "3"]]))
    rows = [line for line in text.splitlines() if line.endswith(r"\\")][1:]
    assert rows[:2] == [r"{}[x] & 1 \\", r"{}* & 2 \\"]
    assert rows[2] == r"{\textless}{\textbar}{\textgreater} & 3 \\"


def test_a_dollar_sign_in_a_name_is_one_in_the_legend(measured: SweepResults) -> None:
    names = {"SAFARI": r"$\lambda$", "FedAvg": "costs $5 and $6_a"}
    figure = measured.figure("curves", {"algorithm": ["SAFARI", "FedAvg"]}, names)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [*names.values()]
    assert not any(text.get_parse_math() for text in legend.get_texts())


def test_the_table_has_the_means_of_the_stored_runs_of_what_is_shown(
    measured: SweepResults,
) -> None:
    only = {"algorithm": ["SAFARI", "FedAvg"], "participation": ["cyclic"]}
    text = export.table_tex(measured._study(only, None))
    runs = measured.runs.query("`label.algorithm` in ['SAFARI', 'FedAvg']")
    runs = runs[runs["label.participation"] == "cyclic"]
    statistic = measured.store.manifest().table.statistic
    means = runs.groupby(["label.algorithm", "label.partition"])[statistic].mean()
    shown = re.findall(r"([\d.]+) ±", text)
    assert sorted(shown) == sorted(f"{100 * mean:.2f}" for mean in means)
    assert text.index("SAFARI") < text.index("FedAvg")


# --- the choice


def test_one_label_may_be_chosen_without_a_list_and_a_number_be_renamed() -> None:
    values = {(p, name): [0.5] for p in (1, 2) for name in ("FedAvg", "SAFARI")}
    _, manifest = made(values, ("p", "algorithm"))
    some = export.shown_sweep(manifest, {"p": 1}, {})
    assert some == export.shown_sweep(manifest, {"p": [1]}, {}) != manifest
    some = export.shown_sweep(manifest, {"algorithm": "SAFARI"}, {2: "two"})  # type: ignore[dict-item]
    assert [entry.labels["p"] for entry in some.entries] == [1, "two"]


def test_labels_their_order_and_names_are_those_that_were_chosen(
    measured: SweepResults,
) -> None:
    figure = measured.figure(
        "curves",
        only={
            "algorithm": ["SAFARI", "FedAvg"],
            "partition": ["1 class"],
            "participation": ["cyclic", "uniform"],
        },
        rename={"SAFARI": "Ours", "participation": "who comes"},
    )
    titles = [axes.get_title() for axes in figure.axes]
    assert [title.split()[-1] for title in titles] == ["cyclic", "uniform"]
    legends = [text for legend in figure.legends for text in legend.get_texts()]
    texts = [*legends, *(text for axes in figure.axes for text in axes.texts)]
    assert {text.get_text() for text in texts} >= {"Ours", "FedAvg"}


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("only", {"participaton": ["cyclic"]}, "did you mean 'participation'"),
        ("only", {"partition": ["2 class"]}, "did you mean '1 class'"),
        ("rename", {"SAFARY": "x"}, "did you mean 'SAFARI'"),
        ("rename", {"SAFARI": "FedAvg"}, "two things would have the name 'FedAvg'"),
        ("name", "curve", "did you mean 'curves'"),
        ("width", "wide", "width is 'wide'; give inches"),
        ("name", "served", "has no numbers for the figure 'served'"),
    ],
)
def test_a_misspelt_choice_is_told_with_the_nearest_name(
    measured: SweepResults, option: str, value: object, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        measured.figure(**{"name": "heatmap", option: value})  # type: ignore[arg-type]


def test_export_writes_table_and_figures_and_nothing_after_a_mistake(
    measured: SweepResults, tmp_path: Path
) -> None:
    to = tmp_path / "paper"
    with pytest.raises(ValueError, match="did you mean 'SAFARI'"):
        measured.export(to, only={"algorithm": ["SAFARY"]})
    assert not to.exists()
    only = {"algorithm": ["SAFARI", "FedAvg"], "partition": ["1 class"]}
    only["participation"] = ["cyclic", "uniform"]
    measured.export(to, only=only, rename={"SAFARI": "us"})
    names = {file.name for file in to.iterdir()}
    figures = {name.rpartition(".")[0] for name in names} - {"table", "captions"}
    assert {"curves", "heatmap", "participation"} <= figures
    for name in figures:
        assert {f"{name}.{kind}" for kind in ("pdf", "svg", "png")} <= names
        assert f"- {name}: " in (to / "captions.md").read_text()
    assert "us & " in (to / "table.tex").read_text()


def test_captions_are_whole_sentences_and_say_how_many_seeds() -> None:
    own = {"FedAvg": [0.5, 0.6], "SAFARI": [0.7, 0.6]}
    values = {(s, m): own[m] for s in "ab" for m in own}
    runs, sweep = made(values)
    files = export.files_of(study_of(sweep, runs=runs), paper_style(5.5))
    lines = files["captions.md"].decode().splitlines()
    texts = [line.partition(": ")[2] for line in lines]
    texts.append(files["table.tex"].decode().splitlines()[0].removeprefix("% "))
    for text in texts:
        assert text[0].isupper() and text.endswith(".")
        assert ".." not in text and ". ." not in text
    assert "mean ± standard deviation over 2 seeds of final" in texts[0] == texts[-1]
    assert "Bold is the best mean of each setting. † marks" in texts[0]
    assert not re.search("[`*]", " ".join(texts))
