"""Tables, curves and heat maps of small sweeps whose numbers are known."""

import io
import itertools
import math
import statistics as stdlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.drawn import drawn, picture_of, study_of
from helpers.made import end
from helpers.reports import markdown, on_screen
from helpers.scored import made
from helpers.summaries import summarise
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import stats

from raysafl.report.analysis.entries import aggregate
from raysafl.report.analysis.numbers import MOST, Numbers
from raysafl.report.export import table_tex
from raysafl.report.figures.curves import LINES, curves, enforcement_curves
from raysafl.report.figures.means import heatmap
from raysafl.report.figures.style import first_ones
from raysafl.report.pages.document import Grid
from raysafl.report.pages.methods import methods
from raysafl.report.pages.sections import share_text
from raysafl.report.write import write_report
from raysafl.storage.manifest import Entry, Label, Manifest, Table
from raysafl.storage.store import Store
from raysafl.sweep.measures import Measures

AXES: dict[str, list[Label]] = {
    "algorithm": ["FedAvg", "SAFARI"],
    "s": [0, 2],
    "p": [0.1, 1.0],
}


def manifest(axes: dict[str, list[Label]] = AXES, **fields: Any) -> Manifest:
    """A full grid; the last axis goes across."""
    names = list(axes)
    entries = [
        Entry(
            run_id=f"{i:012x}",
            labels=dict(zip(names, combo, strict=True)),
            config={"replicates": 3, "number": i},
        )
        for i, combo in enumerate(itertools.product(*axes.values()))
    ]
    table = fields.pop("table", {})
    given = {
        "rows": names[:-1] or names,
        "columns": names[-1:] if len(names) > 1 else [],
    } | table
    return Manifest(
        name="sweep", axes=names, entries=entries, table=Table(**given), **fields
    )


def run_rows(run_id: str, finals: list[float], **fields: Any) -> list[dict[str, Any]]:
    """Rows of `runs.parquet`: last10, best and after_server lie 0.01, 0.02, 0.03 above final."""
    fixed = {
        "status": "finished",
        "reason": "",
        "seconds": 90.0,
        "commit": "abc",
        "torch": "2.6",
    }
    more = {"host": "box", "device": "cpu", "config.replicates": str(len(finals))}
    return [
        {
            "run_id": run_id,
            "replicate": i,
            "seed": i,
            "final": x,
            "last10": x + 0.01,
            "best": x + 0.02,
        }
        | {"after_server": x + 0.03}
        | fixed
        | more
        | {k: v[i] if isinstance(v, list) else v for k, v in fields.items()}
        for i, x in enumerate(finals)
    ]


def runs_of(
    sweep: Manifest, finals: tuple[float, ...] = (0.5, 0.6, 0.7)
) -> pd.DataFrame:
    return pd.DataFrame(
        [r for e in sweep.entries for r in run_rows(e.run_id, list(finals))]
    )


def rounds_of(
    sweep: Manifest, replicates: int = 3, length: int = 6
) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    return [
        {"run_id": entry.run_id, "replicate": r, "seed": r, "round": t}
        | {"kind": "server" if t % 3 == 2 else "client", "trained": [t % 3 != 2]}
        | {"cohorts": [[r]], "enforced": [False]}
        | {"test_accuracy": 0.1 * t + 0.02 * random.random(), "test_loss": 1.0}
        | {"train_accuracy": 0.5, "train_loss": 1.0, "server_rounds": 0, "steps": 1}
        | {"bytes_down": 4, "bytes_up": 4, "seconds": 0.1}
        for entry in sweep.entries
        for r in range(replicates)
        for t in range(length)
    ]


def stored(path: Path, sweep: Manifest, done: int | None = None) -> Store:
    """A sweep's folder with the first `done` runs in it, their statistics from their rounds."""
    store = Store(path)
    store.create()
    store.write_manifest(sweep)
    begun = sweep.replace(entries=sweep.entries[:done])
    frame, made = pd.DataFrame(rounds_of(begun)), []
    for entry in begun.entries:
        rows = frame[frame["run_id"] == entry.run_id]
        end(store, entry.run_id, rows.to_dict("records"))
        base = run_rows(entry.run_id, [0.0] * 3)
        made += [
            b | summarise(own)
            for b, (_, own) in zip(base, rows.groupby("replicate"), strict=True)
        ]
    columns = ["run_id", "replicate", "status", "reason", "final", "last10", "best"]
    store.write_runs(
        pd.DataFrame(made, columns=None if made else [*columns, "after_server"])
    )
    return store


def picture(content: bytes) -> Image.Image:
    """The PNG, decoded whole; more than a blank sheet."""
    image = Image.open(io.BytesIO(content))
    image.load()
    assert image.format == "PNG"
    # It is None where there are more.
    assert image.convert("RGB").getcolors(maxcolors=20) is None
    return image


def section(text: str, title: str) -> list[str]:
    """The lines of a part of `table.md` that are rows of a table."""
    part = text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    return [line for line in part.splitlines() if line.startswith("|")]


# --- numbers


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.sampled_from([1.0, 100.0]))
@settings(max_examples=25, deadline=None)
def test_aggregate_agrees_with_the_standard_library(
    finals: list[float], scale: float
) -> None:
    sweep = manifest({"algorithm": ["FedAvg"]}, table={"scale": scale})
    entry = aggregate(runs_of(sweep, tuple(finals)), sweep).iloc[0]
    assert entry["mean.final"] == pytest.approx(scale * stdlib.fmean(finals), abs=1e-9)
    assert entry["std.final"] == pytest.approx(scale * stdlib.stdev(finals), abs=1e-6)


def test_entries_without_runs_are_missing_not_zero() -> None:
    sweep = manifest()
    entries = aggregate(runs_of(sweep).query("run_id == '000000000000'"), sweep)
    assert entries["replicates"].tolist() == [3] + [0] * 7
    assert entries["missing"].tolist() == [0] + [3] * 7
    assert entries["mean.final"].notna().tolist() == [True] + [False] * 7
    # So are replicates of the configuration that have no row.
    rows = run_rows(sweep.entries[0].run_id, [0.4, 0.5], **{"config.replicates": "5"})
    assert aggregate(pd.DataFrame(rows), sweep)["missing"][0] == 3


def test_diverged_and_failed_replicates_are_counted_but_not_averaged() -> None:
    sweep = manifest({"algorithm": ["FedAvg", "SAFARI"]})
    ends = ["finished", "diverged", "finished", "failed"]
    rows = run_rows(sweep.entries[0].run_id, [0.4, 0.0, 0.6, 0.0], status=ends)
    entry = aggregate(pd.DataFrame(rows), sweep).iloc[0]
    assert entry["mean.final"] == pytest.approx(50)
    counts = entry[["replicates", "diverged", "failed", "missing"]]
    assert counts.tolist() == [2, 1, 1, 0]


def test_an_unknown_statistic_names_the_nearest() -> None:
    sweep = manifest(table={"statistic": "finale"})
    with pytest.raises(ValueError, match="did you mean 'final'"):
        aggregate(runs_of(sweep), sweep)


# --- table.md and the screen


def test_reasons_of_diverged_and_failed_runs_are_told_once() -> None:
    sweep = manifest({"algorithm": ["FedAvg", "SAFARI"]})
    first, second = (entry.run_id for entry in sweep.entries)
    why = "round 17: loss | is NaN"
    rows = run_rows(
        first, [0.1] * 3, status=["finished", *["diverged"] * 2], reason=["", why, why]
    )
    rows += run_rows(second, [math.nan], status="failed", reason="OSError:\nno space")
    text = markdown(pd.DataFrame(rows), sweep)
    assert "- algorithm = FedAvg: 2 seeds diverged: round 17: loss | is NaN" in text
    assert "- algorithm = SAFARI: 1 seed failed: OSError: no space" in text
    assert "| FedAvg | 10.00 [1 of 3] |" in text and "| SAFARI | failed |" in text


def test_the_table_says_how_it_was_made() -> None:
    sweep = manifest(notes="Batch size: not printed.", command="raysafl run sweep")
    runs = runs_of(sweep)
    runs.loc[0:2, "commit"] = "def"
    text = markdown(runs, sweep)
    for fact in (
        *("## Notes\n\nBatch size", "```sh\nraysafl run sweep\n```", "- host: box"),
        *("- commit: abc (7 runs), def (1 run)", "- versions: torch 2.6"),
        "- total time: 12 min 0 s",  # 8 runs of 90 s, once each
    ):
        assert fact in text


def test_where_a_table_is_wider_than_the_screen_each_entry_has_a_line() -> None:
    sweep = manifest(AXES | {"p": [i / 16 for i in range(16)]})
    lines = on_screen(runs_of(sweep), sweep).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 100
    words = [line.replace("†", "").split() for line in lines if "60.00 ± 10.00" in line]
    labels = [own[-4] for own in words]
    assert labels == [f"{i / 16:.6g}" for i in range(16)] * 4


def test_entries_at_chance_and_lost_replicates_are_marked_and_explained() -> None:
    sweep = manifest(AXES)
    runs = runs_of(sweep).assign(chance=0.1)
    first, second = (entry.run_id for entry in sweep.entries[:2])
    runs.loc[runs["run_id"] == first, ["final", "last5"]] = 0.12
    lost = runs.index[runs["run_id"] == second][0]
    runs.loc[lost, "status"] = "diverged"
    for text in (on_screen(runs, sweep), markdown(runs, sweep)):
        plain = " ".join(text.replace("`", "").split())
        assert plain.count("‡ 12.00 ±") == 1
        assert (
            "‡ marks what has not learnt: its last5 is less than 10 % of the way"
            in plain
        )
        assert "[3 of 5] says that only three of five seeds" in plain
    # Without a level of chance, nothing is marked.
    unknown = on_screen(runs.assign(chance=math.nan, status="finished"), sweep)
    assert "‡" not in unknown and "[3 of 5]" not in unknown


def test_a_method_is_called_higher_or_lower_where_holms_p_is_below_5_percent() -> None:
    base = np.array([0.50, 0.55, 0.60, 0.52, 0.58])
    noise = np.array([0.01, -0.01, 0.02, 0.0, -0.015])
    gaps = {
        "better": 0.05 + noise,
        "worse": noise - 0.05,
        "alike": noise,
        "near": 0.02 + noise,
    }
    runs, sweep = made(
        {("FedAvg",): base, **{(name,): base + gap for name, gap in gaps.items()}},
        ("algorithm",),
    )
    p = {name: stats.ttest_rel(base + gap, base).pvalue for name, gap in gaps.items()}
    adjusted, so_far = {}, 0.0
    for rank, name in enumerate(sorted(p, key=lambda name: p[name])):
        so_far = max(so_far, (len(p) - rank) * p[name])
        adjusted[name] = so_far
    # One of them would be clear without the correction.
    assert p["near"] < 0.05 < adjusted["near"]
    due = {
        name: ("higher" if gap.mean() > 0 else "lower") if adjusted[name] < 0.05 else ""
        for name, gap in gaps.items()
    }
    assert list(due.values()) == ["higher", "lower", "", ""]
    _, grid = methods(Numbers.of(runs, sweep))
    assert isinstance(grid, Grid)
    assert {str(row[0]): row[-1] for row in grid.rows} == due


def test_a_label_may_be_none_beside_numbers() -> None:
    values = {
        (clip, name): np.array([0.5, 0.6, 0.7]) + gap * np.arange(3)
        for clip in (None, 0.5)
        for name, gap in (("FedAvg", 0.0), ("SAFARI", 0.01))
    }
    runs, sweep = made(values, ("clip", "algorithm"))
    _, grid = methods(Numbers.of(runs, sweep))
    assert isinstance(grid, Grid)
    assert [row[0] for row in grid.rows] == ["None", "0.5"]


# --- figures


@pytest.mark.parametrize(
    "axes",
    [
        AXES,
        {"q": [i / 10 for i in range(11)]},
        {"algorithm": ["$a$", "_b", "c" * 60], "policy": ["x$", "y" * 50]},
        {},
    ],
)
def test_curves_are_one_picture_whatever_the_axes(axes: dict[str, list[Label]]) -> None:
    sweep = manifest(axes)
    study = study_of(sweep, rounds_of(sweep, replicates=2, length=3))
    width, height = picture_of(drawn(curves(study))).size
    assert width >= 900 and height >= 450


@pytest.mark.parametrize(
    "axes", [AXES, {"algorithm": ["a", "b"], "p": [0, 1]}, AXES | {"q": [1, 2]}]
)
def test_two_axes_or_more_make_a_heat_map_with_each_number_at_its_labels(
    axes: dict[str, list[Label]],
) -> None:
    sweep = manifest(axes)
    # Entry i has i per cent, and the last one has not ended.
    finals = {entry.run_id: i / 100 for i, entry in enumerate(sweep.entries[:-1])}
    runs = pd.DataFrame([row for i, x in finals.items() for row in run_rows(i, [x])])
    figure = drawn(heatmap(study_of(sweep, runs=runs)))
    *panels, _ = figure.axes  # the last is the scale of colours
    down = [label.get_text() for label in panels[0].yaxis.get_ticklabels()]
    shown = {}
    for panel in panels:
        across = [label.get_text() for label in panel.xaxis.get_ticklabels()]
        for text in panel.texts:
            column, row = map(int, text.get_position())
            title = panel.get_title().rpartition("=")[2].strip()
            labels = filter(None, [title, down[row], across[column]])
            shown[", ".join(labels)] = text.get_text()
    keys = [
        ", ".join(v if isinstance(v, str) else f"{v:g}" for v in entry.labels.values())
        for entry in sweep.entries
    ]
    due = [*(f"{i}.0" for i in range(len(finals))), "–"]  # noqa: RUF001
    assert shown == dict(zip(keys, due, strict=True))


def test_an_outlier_does_not_flatten_the_colours_of_a_heat_map() -> None:
    sweep = manifest({"algorithm": ["a", "b"], "p": list(range(5))})
    finals = [0.02, 0.80, 0.82, 0.84, 0.86, 0.81, 0.83, 0.85, 0.87, 0.88]
    rows = [run_rows(e.run_id, [x]) for e, x in zip(sweep.entries, finals, strict=True)]
    runs = pd.DataFrame(list(itertools.chain(*rows)))
    figure = drawn(heatmap(study_of(sweep, runs=runs)))
    (image,) = figure.axes[0].get_images()
    assert image.get_clim() == pytest.approx((81.25 - 3 * 4.5, 88))
    assert "ends of the scale also stand for values beyond" in figure.get_label()


def test_a_baseline_without_an_axis_is_a_line_in_every_panel() -> None:
    sweep = manifest({"method": ["FedAvg", "FSL"], "n0": [0, 10, 20]})
    kept = [
        e
        for e in sweep.entries
        if (e.labels["method"] == "FSL") != (not e.labels["n0"])
    ]
    sweep = sweep.replace(entries=kept)
    assert len(sweep.entries) == 3
    figure = drawn(curves(study_of(sweep, rounds_of(sweep))))
    assert [len(panel.get_lines()) for panel in figure.axes] == [1, 2, 2]


def test_of_very_many_lines_in_a_panel_one_in_two_is_drawn() -> None:
    sweep = manifest({"lr": list(range(1, 2 * LINES))})
    figure = drawn(curves(study_of(sweep, rounds_of(sweep))))
    (panel,) = figure.axes
    assert len(panel.get_lines()) == LINES
    assert "One in 2 lines is drawn" in figure.get_label()


def test_a_legend_names_no_method_that_is_not_drawn() -> None:
    sweep = manifest({"algorithm": ["FedAvg", "SAFARI", "FSL"]})
    shown = sweep.replace(entries=sweep.entries[:2])
    figure = drawn(curves(study_of(sweep, rounds_of(shown))))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["FedAvg", "SAFARI"]


def test_bytes_are_in_mb_and_accuracies_beside_them_in_per_cent() -> None:
    table = Measures().filled(
        Table(rows=["algorithm"], statistic="total_bytes", also=["final"])
    )
    sweep = manifest({"algorithm": ["FedAvg"]}).replace(table=table)
    rows = run_rows(sweep.entries[0].run_id, [0.5], total_bytes=[3.9e8])
    text = markdown(pd.DataFrame(rows), sweep)
    assert "`total_bytes` is 390 MB." in text and "e+08" not in text
    head, _, row = section(text, "All entries")
    assert "total_bytes (MB)" in head and "| 390.0 |" in row and "| 50.00 |" in row


# --- the folder


@pytest.mark.parametrize("done", [None, 3, 0])
def test_a_report_is_written_of_whole_and_partial_sweeps(
    tmp_path: Path, done: int | None
) -> None:
    sweep = manifest(scale="small")
    store = stored(tmp_path / "sweep", sweep, done)
    files = write_report(store)
    names = ["table.md", "report.html"]
    names += [] if done == 0 else ["curves.png", "heatmap.png"]
    # Only the whole sweep has settings in which all methods have ended.
    names += ["intervals.png"] if done is None else []
    assert [file.name for file in files] == names
    text = files[0].read_text()
    assert len(section(text, "All entries")) == 2 + 8
    assert "nan" not in text.lower()
    assert ("8 runs of 8 missing: " in text) == (done == 0)
    assert ("5 runs of 8 missing: algorithm = FedAvg, s = 2, p = 1;" in text) == (
        done == 3
    )
    for file in files[2:]:
        picture(file.read_bytes())


def test_figures_of_an_earlier_report_go_and_other_files_stay(tmp_path: Path) -> None:
    store = stored(tmp_path, manifest({"algorithm": ["FedAvg"]}))
    for name in ("heatmap.png", "enforce_prob.png"):
        (tmp_path / name).touch()
    (tmp_path / "curves-talk.png").touch()
    write_report(store)
    assert sorted(p.name for p in tmp_path.glob("*.png")) == [
        "curves-talk.png",
        "curves.png",
    ]


# --- what replicates that have not finished, or ended early, change


def test_the_cost_is_that_of_finished_replicates() -> None:
    sweep = manifest({"algorithm": ["FedAvg"]})
    work = {"total_bytes_down": 1000, "total_bytes_up": 2000}
    work |= {"total_server_rounds": 3, "total_snapshots": 4}
    rows = run_rows(
        sweep.entries[0].run_id,
        [0.5, 0.5, 0.5],
        status=["finished", "failed", "waiting"],
        total_steps=[30, 7, math.nan],
        **work,
    )
    head, _, cost = section(markdown(pd.DataFrame(rows), sweep), "Cost")
    found = dict(zip(head.split(" | "), cost.strip(" |").split(" | "), strict=True))
    assert found["local steps"] == "30.0"
    assert (found["to clients"], found["from clients"]) == ("1 kB", "2 kB")
    assert (found["server rounds"], found["enforced rounds |"]) == ("3.0", "4.0")


def test_a_note_says_of_how_many_the_first_are_shown() -> None:
    assert first_ones(1, 2, "panels") == "shown is the first of 2 panels"
    assert first_ones(3, 4000, "panels") == "shown are the first 3 of 4,000 panels"
    assert not first_ones(2, 2, "panels")


def test_a_replicate_that_ended_early_keeps_its_last_value_in_the_curve() -> None:
    sweep = manifest({"algorithm": ["FedAvg"]})
    rounds = pd.DataFrame(rounds_of(sweep, replicates=2))
    short = rounds[(rounds["replicate"] == 0) | (rounds["round"] < 2)]
    page = drawn(curves(study_of(sweep, short, runs_of(sweep, (0.5, 0.6)))))
    line = page.axes[0].get_lines()[0].get_ydata()
    wide = rounds.pivot(index="round", columns="replicate", values="test_accuracy")
    wide.loc[2:, 1] = wide.loc[1, 1]
    np.testing.assert_allclose(line, 100 * wide.mean(axis=1))


def test_replicates_that_are_counted_as_left_out_are_those_of_the_figure() -> None:
    sweep = manifest({"algorithm": ["FedAvg", "SAFARI"]})
    first = sweep.entries[0].run_id
    rounds = pd.DataFrame(rounds_of(sweep))
    moving = rounds["run_id"] == first
    q = np.where(moving, 1 - rounds["round"] / 10, 0.5)
    runs = runs_of(sweep)
    runs.loc[[2, 3, 4, 5], "status"] = "diverged"
    study = study_of(sweep, rounds.assign(enforce_prob=q), runs)
    moving_lines = drawn(enforcement_curves(study))
    assert "1 diverged seed left out" in moving_lines.get_label()
    assert moving_lines.axes[0].get_ylim()[1] > 1  # the first round is seen, too
    kept = drawn(curves(study))
    assert "4 diverged seeds left out" in kept.get_label()
    line = kept.axes[0].get_lines()[0].get_ydata()
    good = rounds[moving & (rounds["replicate"] < 2)]
    means = good.groupby("round")["test_accuracy"].mean()
    np.testing.assert_allclose(line, 100 * means)


def test_the_spread_is_called_that_of_a_new_partition_wherever_it_is_shown() -> None:
    sweep = manifest({"algorithm": ["FedAvg", "SAFARI"]})
    runs = runs_of(sweep, (0.5, 0.6, 0.7, 0.8))
    runs["partition_seed"] = runs["seed"] // 2
    said = "± is for one new partition and seed, from 2 partitions."
    study = study_of(sweep, rounds_of(sweep), runs)
    text = table_tex(study)
    assert said in " ".join(on_screen(runs, sweep).split())
    assert said in text
    assert f"{said} Over all" in markdown(runs, sweep)
    assert "All entries are listed below." in markdown(runs, sweep)
    assert "listed below" not in text


# --- very many entries


def grid(*sizes: int) -> Manifest:
    """A grid of numbered labels, of which the last ones go across."""
    axes = zip("abc", sizes, strict=True)
    return manifest({axis: list(range(size)) for axis, size in axes})


def test_an_ordinary_sweep_is_shown_whole_and_nothing_is_said() -> None:
    sweep = grid(10, 10, 10)
    numbers = Numbers.of(runs_of(sweep, (0.5,)), sweep)
    assert numbers.shown == sweep and len(numbers.shown_entries) == 1000
    assert numbers.share == share_text(numbers) == ""


@pytest.mark.usefixtures("no_pictures")
def test_the_files_of_a_report_are_bounded_and_say_what_is_left_out(
    tmp_path: Path,
) -> None:
    store = stored(tmp_path / "many", grid(60, 6, 5), 40)
    write_report(store)
    note = "Shown one by one are the first 1,000 of 1,800 entries; the numbers of all are in "
    table = (store.path / "table.md").read_text()
    assert len(section(table, "All entries")) == 2 + MOST
    page = (store.path / "report.html").read_text()
    assert note in table
    assert note in page and page.count("<tr>") < 2.5 * MOST
    # What summarises the sweep counts all of its runs.
    assert "40 of 1800" in page and "1760 runs of 1800 missing" in table


def test_a_terminal_shows_few_entries_and_says_so() -> None:
    sweep = grid(60, 6, 5)
    text = on_screen(runs_of(sweep, (0.5,)), sweep)
    assert len(text.splitlines()) < 400
    note = "Shown one by one are the first 300 of 1,800 entries"
    assert note in " ".join(text.split())
