"""The table and figures for a paper: choice, LaTeX, letters, looks, equal files."""

import io
import itertools
import re
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.drawn import study_of
from helpers.scored import made
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from scipy import stats
from typer.testing import CliRunner

import raysafl as fl
from raysafl.cli import app as cli
from raysafl.quickstart import BASE
from raysafl.report.export import Figures
from raysafl.report.figures.curves import curves
from raysafl.report.figures.style import (
    LINES,
    ON_SCREEN,
    literal,
    looks,
    new_figure,
    to_file,
)
from raysafl.report.figures.venues import paper_style
from raysafl.report.pages.document import Grid, Pair
from raysafl.report.pages.latex import latex
from raysafl.storage.manifest import Entry, Manifest, Table
from raysafl.storage.rows import CLIENTS, ROUNDS

MEASURED = Path(__file__).parents[2] / "results/measured"
# In inches. Both columns are the widest that is drawn, one column is the narrowest.
WIDTHS = {"3.25": 3.25, "icml": 3.25, "icml:2": 6.75, "neurips": 5.5}
METHODS = [f"method {i}" for i in range(16)]
POLICIES = [f"policy {i}" for i in range(26)]


@pytest.fixture(scope="module")
def measured() -> Figures:
    """A sweep of nine methods, eight policies and two partitions."""
    return fl.load(MEASURED / "factorial_small").figures


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep that was really run, whose labels LaTeX would misread."""
    folder = tmp_path_factory.mktemp("export") / "brief"
    algorithms = {"FedAvg_50%": fl.FedAvg(), "R&D": fl.SAFARI()}
    sweep = fl.grid(
        BASE.replace(rounds=4),
        {"algorithm": algorithms, "p": [1, 10]},
        seeds=3,
        name="brief",
    )
    fl.Runner(sweep, folder, executor="here", track="none", quiet=True).run()
    return folder


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


@pytest.mark.parametrize("width", WIDTHS)
def test_a_width_is_given_in_inches_or_by_the_name_of_a_venue(width: str) -> None:
    style = paper_style(width)
    assert style.width == pytest.approx(WIDTHS[width])
    assert min(style.letters, style.small) >= 7


@pytest.mark.parametrize("width", ["3.25", "icml:2"])
def test_all_letters_of_an_exported_figure_have_seven_points_and_it_has_its_width(
    measured: Figures, width: str
) -> None:
    chosen = measured.choose(width, only={"partition": ["Dirichlet(0.1)"]})
    drawn = 0
    for name in ("curves", "heatmap", "intervals", "participation"):
        for figure in chosen.draw(name):
            with chosen.style.used():
                figure.draw_without_rendering()
            assert min(letters_of(figure)) >= 7
            assert figure.get_figwidth() == pytest.approx(WIDTHS[width])
            assert not figure.get_suptitle()
            drawn += 1
    assert drawn >= 4


def test_sixteen_methods_differ_without_colour() -> None:
    for n in range(2, 17):
        every = looks(n)
        grey = {(look.mark, look.is_filled) for look in every}
        assert len(grey) == n
    # Dashes tell apart those whose greys are nearest.
    greys = [np.dot(to_rgb(c), (0.299, 0.587, 0.114)) for c in LINES]
    close = [
        (i, j) for i, j in itertools.combinations(range(4), 2)
        if abs(greys[i] - greys[j]) < 0.15
    ]  # fmt: skip
    assert close and all(looks(8)[i].dash != looks(8)[j].dash for i, j in close)


def test_curves_share_a_range_without_the_climb_and_a_legend_names_their_methods() -> (
    None
):
    manifest, rows = study_of_many()
    (figure,) = curves(study_of(manifest, rows), paper_style("5.5"))
    shown = [axes for axes in figure.axes if axes.get_visible()]
    # Three panels side by side and six above each other fit on a page.
    assert [axes.get_title() for axes in shown] == POLICIES[:18]
    assert "Shown are the first 18 of 26 panels." in figure.get_label()
    assert all(len(axes.get_lines()) == len(METHODS) for axes in shown)
    ((low, high),) = {axes.get_ylim() for axes in shown}
    assert 45 < low < 51 and 80 < high < 85
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == METHODS


def test_a_figure_has_its_own_letters_although_another_thread_draws() -> None:
    begun, ended = threading.Event(), threading.Event()

    def draw_large() -> None:
        begun.set()
        with replace(ON_SCREEN, letters=20).used():
            ended.set()

    other = threading.Thread(target=draw_large)
    with ON_SCREEN.used():
        other.start()
        begun.wait()
        # Long enough for what does not wait.
        assert not ended.wait(0.1)
        figure = new_figure(3, 2)
        assert figure.subplots().set_title("a").get_fontsize() == ON_SCREEN.letters
    other.join()
    assert ended.is_set()


@pytest.mark.parametrize("kind", ["pdf", "svg", "png"])
def test_a_figure_is_the_same_file_each_time(measured: Figures, kind: str) -> None:
    chosen = measured.choose("3.25", methods=["FedAvg"], panels=["partition"])
    made = []
    for _ in range(2):
        (figure,) = chosen.draw("heatmap")
        with chosen.style.used():
            made.append(to_file(figure, kind))  # type: ignore[arg-type]
    assert made[0] == made[1]
    assert not re.search(rb"CreationDate|dc:date|Type3", made[0])
    if kind == "png":
        assert Image.open(io.BytesIO(made[0])).size[0] == round(3.25 * 300)


# --- the table


def test_latex_shows_names_as_they_are_and_bold_where_an_entry_stands_out() -> None:
    strong = Pair("1.00 ± 0.10", "", strong=True)
    grid = Grid("c", ["a_b", "p = 1"], [["50% & #1", strong], ["x^2~{}\\", "2"]])
    text = latex(grid, "p", "note")
    assert "% note" in text and r"\toprule" in text and r"\begin{tabular}{lr}" in text
    assert r"a\_b & 1 \\" in text
    assert r"50\% \& \#1 & \textbf{1.00} $\pm$ 0.10 \\" in text
    ends = r"x\textasciicircum{}2\textasciitilde{}\{\}\textbackslash{} & 2 \\"
    assert ends in text


def test_latex_leaves_out_repeated_labels_and_names_the_axis_across_once() -> None:
    rows: list[list[str | Pair]] = [[*"0a12"], [*"0b34"], [*"1b56"]]
    lines = latex(Grid("c", ["s", "p", "q = 7", "q = 8"], rows, 2), "q").splitlines()
    assert lines[2:-2] == [
        r"& & \multicolumn{2}{c}{q} \\",
        r"\cmidrule(lr){3-4}",
        r"s & p & 7 & 8 \\",
        r"\midrule",
        r"0 & a & 1 & 2 \\",
        r" & b & 3 & 4 \\",
        r"\addlinespace",
        r"1 & b & 5 & 6 \\",
    ]


def test_a_formula_in_a_name_is_one_in_latex_and_in_figures_and_other_dollars_are_not(
    measured: Figures,
) -> None:
    names = {"SAFARI": r"$\lambda$ = 0.1", "FedAvg": "costs $5 and $6_a"}
    chosen = measured.choose(methods=["SAFARI", "FedAvg"], names=names)
    text = chosen.files_of_table()["table.tex"]
    assert r"$\lambda$ = 0.1" in text and r"costs \$5 and \$6\_a" in text
    (figure,) = chosen.draw("curves")
    (legend,) = figure.legends
    own = [entry.get_text() for entry in legend.get_texts()]
    assert own == [r"$\lambda$ = 0.1", r"costs \$5 and \$6_a"]
    # What matplotlib does not know is shown as it is.
    assert literal(r"$\unknown$") == r"\$\unknown\$"


def test_bold_are_the_best_and_what_a_paired_test_does_not_tell_apart(
    brief: Path,
) -> None:
    figures = fl.load(brief).figures
    text = figures.files_of_table()["table.tex"]
    runs = figures.runs
    finals = {
        (name, str(p)): own.sort_values("seed")["final"].to_numpy(float)
        for (name, p), own in runs.groupby(["label.algorithm", "label.p"])
    }
    for p in ("1", "10"):
        pair = [finals[name, p] for name in ("FedAvg_50%", "R&D")]
        if pair[0].mean() < pair[1].mean():
            pair.reverse()
        best, other = pair
        difference = best - other
        apart = difference.any() and stats.ttest_rel(best, other).pvalue < 0.05
        assert rf"\textbf{{{100 * best.mean():.2f}}}" in text
        dagger = rf"$\dagger$ {100 * other.mean():.2f}"
        assert (dagger in text) == (not apart)
    assert r"FedAvg\_50\%" in text and r"R\&D" in text


def test_the_table_as_csv_has_the_means_of_the_stored_runs(measured: Figures) -> None:
    chosen = measured.choose(statistic="final", methods=["SAFARI", "FedAvg"])
    table = pd.read_csv(io.StringIO(chosen.files_of_table()["table.csv"]))
    runs = measured.runs.query("`label.algorithm` in ['SAFARI', 'FedAvg']")
    names = ["partition", "participation", "algorithm"]
    means = runs.groupby([f"label.{name}" for name in names])["final"].mean()
    found = table.set_index(names)["mean"].sort_index()
    np.testing.assert_allclose(found, 100 * means.sort_index())
    assert table["algorithm"].iloc[0] == "SAFARI"


def test_brackets_and_stars_at_the_beginning_of_a_row_are_no_arguments_of_latex() -> (
    None
):
    text = latex(Grid("", ["[p]", "n"], [["[0, 1]", "1"], ["*", "2"]]))
    ends = re.findall(r"(?:rule|\\\\)\s*([\[*])", text)
    assert text.count("{[}") == 2 and "{*}" in text and not ends


def test_the_table_as_csv_marks_what_is_bold(measured: Figures) -> None:
    texts = measured.choose(statistic="final").files_of_table()
    table = pd.read_csv(io.StringIO(texts["table.csv"]))
    for column, mark in (("best", r"textbf\{"), ("not_told_apart", r"dagger\$ ")):
        marked = table.loc[table[column], "mean"]
        shown = re.findall(mark + r"([\d.]+)", texts["table.tex"])
        assert sorted(shown) == sorted(f"{mean:.2f}" for mean in marked)
        assert 0 < len(shown) < len(table)


# --- the choice


def test_lines_panels_order_and_names_are_those_that_were_chosen(
    measured: Figures,
) -> None:
    chosen = measured.choose(
        methods=["SAFARI", "FedAvg"],
        only={"participation": ["cyclic", "uniform"]},
        panels=["participation"],
        names={"SAFARI": "Ours", "participation": "who comes"},
    )
    (figure,) = chosen.draw("curves")
    panels = [axes.get_title() for axes in figure.axes]
    assert [title.split()[-1] for title in panels] == ["cyclic", "uniform"] * 2
    named = {text.get_text() for axes in figure.axes for text in axes.texts}
    assert named == {"Ours", "FedAvg"} and not figure.legends
    turned = measured.choose(
        only={"partition": ["1 class"], "algorithm": ["FedAvg"]}, lines="participation"
    )
    assert turned.study.numbers.layout.method == "participation"
    assert turned.manifest.axes == ["participation"]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("methods", ["SAFARY"], "did you mean 'SAFARI'"),
        ("panels", ["participaton"], "did you mean 'participation'"),
        ("lines", "algoritm", "did you mean 'algorithm'"),
        ("only", {"partition": ["2 class"]}, "did you mean '1 class'"),
        ("statistic", "last11", "did you mean 'last10'"),
        ("names", {"SAFARY": "x"}, "did you mean 'SAFARI'"),
        ("names", {"SAFARI": "FedAvg"}, "two things would have the name 'FedAvg'"),
        ("width", "40", "2 to 20 inches"),
        ("width", "icmll", "did you mean 'icml'"),
    ],
)
def test_a_misspelt_choice_is_told_with_the_nearest_name(
    measured: Figures, option: str, value: object, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        measured.choose(**{option: value})  # type: ignore[arg-type]


def test_export_writes_table_and_figures_and_nothing_after_a_mistake(
    brief: Path, tmp_path: Path
) -> None:
    run = CliRunner().invoke
    to = tmp_path / "paper"
    command = ["export", str(brief), "--to", str(to)]
    wrong = run(cli.app, [*command, "--methods", "R&E"])
    assert isinstance(wrong.exception, ValueError) and not to.exists()
    assert "did you mean 'R&D'" in str(wrong.exception)
    named = run(cli.app, [*command, "--methods", "R&D,FedAvg_50%", "--names", "R&D=us"])
    assert named.exit_code == 0, named.output
    names = {file.name for file in to.iterdir()}
    assert {"table.tex", "table.csv", "table.md", "captions.md"} <= names
    figures = {name.rpartition(".")[0] for name in names} - {
        "table",
        "methods",
        "captions",
    }
    assert {f"methods.{kind}" for kind in ("tex", "md", "csv")} <= names
    assert {"curves", "heatmap", "participation"} <= figures
    for name in figures:
        assert {f"{name}.{kind}" for kind in ("pdf", "svg", "png")} <= names
        assert f"- {name}: " in (to / "captions.md").read_text()
    assert "us" in (to / "table.tex").read_text()


def test_files_of_an_earlier_export_that_are_not_made_again_are_deleted(
    tmp_path: Path,
) -> None:
    figures = planted()
    figures.write(tmp_path)
    (tmp_path / "mine-2.pdf").write_text("mine")
    before = {file.name for file in tmp_path.iterdir()}
    again = figures.choose(methods=["FedAvg"])
    again.write(tmp_path)
    left = {file.name for file in tmp_path.iterdir()}
    assert before - left == {
        f"{name}.{kind}"
        for name, kinds in (("heatmap", "pdf svg png"), ("intervals", "pdf svg png"),
                            ("methods", "tex md csv"))
        for kind in kinds.split()
    }  # fmt: skip
    assert left == {*again.files(), "mine-2.pdf"}


def test_captions_are_whole_sentences_and_say_how_many_seeds() -> None:
    files = planted().files()
    lines = files["captions.md"].decode().splitlines()
    texts = [line.partition(": ")[2] for line in lines]
    texts.append(files["table.tex"].decode().splitlines()[0].removeprefix("% "))
    for text in texts:
        assert text[0].isupper() and text.endswith(".")
        assert ".." not in text and ". ." not in text
    assert any("ranks: " in line for line in lines)
    assert "mean ± standard deviation over 2 seeds of final" in texts[0] == texts[-1]
    assert "Bold is the best mean of each setting. † marks" in texts[0]
    assert "with 2 seeds each" in texts[1]
    assert not re.search("[`*]", " ".join(texts))


def planted() -> Figures:
    """A sweep of two methods in two settings, without rows of rounds."""
    values = {(s, m): [0.5, 0.6] for s in "ab" for m in ("FedAvg", "SAFARI")}
    return Figures(*made(values), ROUNDS.empty_table(), CLIENTS.empty_table())


def test_numbers_are_labels_in_a_choice_as_in_tables() -> None:
    values = {(p, m): [0.5, 0.6] for p in (1, 2, 10) for m in ("FedAvg", "SAFARI")}
    figures = Figures(
        *made(values, ("p", "algorithm")), ROUNDS.empty_table(), CLIENTS.empty_table()
    )
    by_text = figures.choose(only={"p": ["10", "1"]}).manifest
    assert figures.choose(only={"p": [10, 1.0]}).manifest == by_text
    assert len(by_text.entries) == 4


def test_names_of_what_is_not_shown_change_nothing() -> None:
    own = {"FedAvg": "x", "algorithm": "method", "SAFARI": "ours", "b": "hard"}
    # Of `setting` one label is left, so neither the axis nor its labels are shown.
    only = {"only": {"setting": ["a"]}, "methods": ["FedAvg", "SAFARI"]}
    named = planted().choose(names=own | {"a": "easy", "setting": "place"}, **only)
    labels = [entry.labels for entry in named.manifest.entries]
    assert labels == [{"method": "x"}, {"method": "ours"}]
    with pytest.raises(
        ValueError, match="name 'zzz': known are FedAvg, SAFARI, a, alg"
    ):
        planted().choose(names={"zzz": "easy"}, **only)


def test_differences_name_their_baseline_and_need_it() -> None:
    figures = planted()
    table = figures.sweep.table.replace(minus={"algorithm": "FedAvg"})
    minus = replace(figures, sweep=figures.sweep.replace(table=table))
    assert (
        "minus that of the same seed's algorithm = FedAvg"
        in minus.files_of_table()["table.tex"]
    )
    for methods in (["SAFARI"], ["FedAvg"]):
        with pytest.raises(ValueError, match="differences to algorithm=FedAvg: choose"):
            minus.choose(methods=methods)


def test_methods_of_a_sweep_without_axes_and_unknown_choices_are_mistakes() -> None:
    one = Figures(
        *made({(): [0.5]}, axes=()), ROUNDS.empty_table(), CLIENTS.empty_table()
    )
    with pytest.raises(ValueError, match="but the sweep has no axis"):
        one.choose(methods=["FedAvg"])


def test_of_runs_that_have_not_ended_nothing_is_written(tmp_path: Path) -> None:
    figures = planted()
    running = replace(figures, runs=figures.runs.assign(status="running", final=np.nan))
    with pytest.raises(ValueError, match="no run of made that is shown has ended yet"):
        running.write(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_the_caption_of_a_part_of_very_many_entries_says_that_it_is_a_part() -> None:
    values = {(str(s), "FedAvg"): [0.5] for s in range(1001)}
    figures = Figures(*made(values), ROUNDS.empty_table(), CLIENTS.empty_table())
    assert "are 1,000 of 1,001 entries" in figures.files_of_table()["table.tex"]


def test_the_lines_are_those_of_the_report_unless_others_are_chosen() -> None:
    values = {(a, p): [0.5] for a in ("FedAvg", "SAFARI") for p in ("x", "y")}
    runs, sweep = made(values, ("algorithm", "policy"))
    sweep = sweep.replace(table=sweep.table.replace(lines="policy"))
    figures = Figures(runs, sweep, ROUNDS.empty_table(), CLIENTS.empty_table())
    assert figures.study.numbers.layout.method == "policy"
    assert figures.choose(methods=["y"]).manifest.entries[0].labels["policy"] == "y"
    chosen = figures.choose(lines="algorithm").study.numbers.layout
    assert chosen.method == "algorithm"
