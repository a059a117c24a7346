"""Which entries are best, and how methods stand over all settings."""

import io
import json
import re

import numpy as np
import pytest
from helpers.drawn import study_of
from helpers.scored import made
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

from raysafl.core.record import further_column
from raysafl.report.analysis.numbers import Numbers
from raysafl.report.analysis.winner import best_of
from raysafl.report.export import table_tex
from raysafl.report.pages.document import Grid, html, markdown
from raysafl.report.pages.methods import answer as answer_text
from raysafl.report.pages.methods import methods as paired_text
from raysafl.report.pages.methods import over_settings, standings
from raysafl.report.pages.screen import screen
from raysafl.report.write import results_document
from raysafl.storage.manifest import Manifest
from raysafl.tracking.descriptions import saved_view

METHODS = ("FedAvg", "SAFARI", "FSL")
SEEDS = 5


@pytest.fixture
def values() -> dict[tuple[str, ...], np.ndarray]:
    """Accuracies in four settings; the third method is worse than the others."""
    rng = np.random.default_rng(3)
    found = {}
    for setting in ("a", "b", "c", "d"):
        common = rng.normal(0, 0.05, SEEDS)
        for method, level in zip(METHODS, (0.7, 0.72, 0.6), strict=True):
            own = level + common + rng.normal(0, 0.02, SEEDS)
            found[(setting, method)] = own
    return found


def test_the_best_mean_alone_is_bold_and_daggers_are_given_as_scipys_paired_test_says(
    values: dict[tuple[str, ...], np.ndarray],
) -> None:
    runs, manifest = made(values)
    marks = Numbers.of(runs, manifest).marks
    ids = dict(zip(values, (e.run_id for e in manifest.entries), strict=True))
    assert len(marks.best) == 4 and 0 < len(marks.close) < 8
    for setting in "abcd":
        order = sorted(METHODS, key=lambda m: -values[(setting, m)].mean())
        best, *others = (values[(setting, method)] for method in order)
        assert ids[(setting, order[0])] in marks.best
        p = [stats.ttest_rel(own, best).pvalue for own in others]
        close = [all(own >= 0.05 for own in p[: k + 1]) for k in range(len(p))]
        assert [ids[(setting, m)] in marks.close for m in order[1:]] == close
    # Where lower is better, the lowest is best.
    losses = made({key: 1 - own for key, own in values.items()}, statistic="final_loss")
    assert Numbers.of(*losses).marks == marks


def test_equal_means_are_all_bold_and_one_without_a_value_is_not() -> None:
    own = np.array([0.5, 0.6, 0.7])
    values = {("a", "one"): own, ("a", "two"): own[[1, 2, 0]], ("a", "low"): own - 0.1}
    runs, manifest = made({**values, ("a", "part"): [0.9, 0.9, np.nan]})
    marks = Numbers.of(runs, manifest).marks
    ids = [entry.run_id for entry in manifest.entries]
    assert marks.best == set(ids[:2]) and not marks.close & {*ids[:2], ids[3]}


def test_without_common_seeds_the_answer_and_the_dagger_say_so() -> None:
    own = [0.5, 0.6, 0.7]
    runs, manifest = made({("a", "FedAvg"): own, ("a", "SAFARI"): own[::-1]})
    other = runs["run_id"] == manifest.entries[1].run_id
    numbers = Numbers.of(runs.assign(seed=runs["seed"] + 100 * other), manifest)
    assert "Too few seeds are common to SAFARI and FedAvg" in answer_text(numbers)
    three = {("a", "FedAvg"): own, ("a", "SAFARI"): own, ("a", "one"): own[:1]}
    runs, manifest = made({**three, ("a", "SAFARI"): [0.6, 0.8, 0.7]})
    last = runs["run_id"] == manifest.entries[1].run_id
    runs = runs.assign(seed=runs["seed"] + 2 * last)
    text = markdown(results_document(Numbers.of(runs, manifest)))
    assert "seed by seed, holds 0, or they have fewer than two seeds in common" in text


def test_a_dagger_by_partitions_is_said_to_be_so() -> None:
    own = np.array([0.5, 0.6, 0.7, 0.8])
    runs, manifest = made({("a", "FedAvg"): own, ("a", "SAFARI"): [0.5, 0.6, 0.7, 0.9]})
    runs = runs.assign(partition_seed=runs["seed"] // 2)
    text = markdown(results_document(Numbers.of(runs, manifest)))
    assert "interval of the difference, partition by partition, holds 0." in text


@given(
    st.lists(
        st.tuples(st.floats(0.1, 0.9), st.sampled_from([0.0, 0.001, 0.02, 0.2])),
        min_size=2,
        max_size=7,
    ),
    st.integers(1, 5),
    st.integers(0, 99),
)
@settings(max_examples=30, deadline=None)
def test_no_marked_mean_is_below_an_unmarked_one(
    methods: list[tuple[float, float]], seeds: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    values = {
        ("a", f"m{k}"): mean + spread * rng.normal(size=seeds)
        for k, (mean, spread) in enumerate(methods)
    }
    numbers = Numbers.of(*made(values))
    means = numbers.entries.set_index("run_id")["mean.final"]
    best = numbers.marks.best
    assert (
        means[[*best]] > means.max() - 1e-9
    ).all() and not best & numbers.marks.close
    marked = means.index.isin([*best, *numbers.marks.close])
    assert means[marked].min() >= means[~marked].max() or marked.all()
    # One seed tells no difference.
    assert seeds > 1 or marked.all()


def test_the_mark_of_the_best_is_the_same_in_every_format() -> None:
    """Of the first setting one mean is close to the best, of the second one none."""
    values = {("a", "x"): [0.9, 0.8, 0.85], ("a", "y"): [0.89, 0.82, 0.82]}
    values |= {("b", "x"): [0.5, 0.5, 0.51], ("b", "y"): [0.9, 0.9, 0.91]}
    runs, manifest = made(values)
    table = manifest.table.replace(rows=["algorithm"], columns=["setting"])
    manifest = manifest.replace(table=table)
    numbers = Numbers.of(runs, manifest)
    document = results_document(numbers)
    console = Console(
        width=100, file=io.StringIO(), force_terminal=True, color_system="standard"
    )
    console.print(screen(runs, manifest))
    terminal = console.file.getvalue()
    study = study_of(manifest, runs=runs)
    bold = {
        "terminal": re.findall(r"\x1b\[1m *([\d.]+) ±", terminal),
        "markdown": re.findall(r"\*\*([\d.]+) ±[^*]*\*\*", markdown(document)),
        "html": re.findall(r"<strong>([\d.]+) ±", html(document)),
        "latex": re.findall(r"\\textbf\{([\d.]+) ±", table_tex(study)),
    }
    assert bold == {name: ["85.00", "90.33"] for name in bold}
    for text in (terminal, markdown(document), html(document), table_tex(study)):
        assert re.findall(r"† ([\d.]+)", text) == ["84.33"]
        assert "Bold is the best mean of each setting. † marks the" in text


def answer(numbers: Numbers) -> Grid:
    """The table below the answer."""
    _, grid = standings(numbers)
    assert isinstance(grid, Grid)
    return grid


def test_means_and_ranks_are_over_all_settings(
    values: dict[tuple[str, ...], np.ndarray],
) -> None:
    grid = answer(Numbers.of(*made(values)))
    means = {m: np.mean([100 * values[(s, m)].mean() for s in "abcd"]) for m in METHODS}
    places = {
        s: stats.rankdata([-values[(s, m)].mean() for m in METHODS]) for s in "abcd"
    }
    ranks = {m: np.mean([places[s][k] for s in "abcd"]) for k, m in enumerate(METHODS)}
    first = sorted(METHODS, key=lambda m: ranks[m])
    told = [[m, f"{means[m]:.2f}", f"{ranks[m]:.1f}"] for m in first]
    assert [list(row[:3]) for row in grid.rows] == told


def test_the_answer_goes_by_validation_samples_and_shows_the_test_set() -> None:
    rng = np.random.default_rng(5)
    values = {(s, m): rng.normal(0.7, 0.001, SEEDS) for s in "ab" for m in METHODS}
    runs, manifest = made(values)
    # On the validation samples the last method is best, on the test set the first.
    runs["final"] -= 0.1 * runs["label.algorithm"].map(METHODS.index)
    runs["final_val_accuracy"] = 1.2 - runs["final"]
    columns = {"val_accuracy": further_column("accuracy", is_fraction=True)}
    numbers = Numbers.of(runs.assign(config=""), manifest.replace(columns=columns))
    said, grid = standings(numbers)
    assert isinstance(grid, Grid) and grid.rows[0][0] == METHODS[-1]
    shown = runs.loc[runs["label.algorithm"] == METHODS[-1], "final"].mean()
    assert grid.rows[0][1] == f"{100 * shown:.2f}"
    best = best_of(numbers.runs, numbers.manifest)
    assert best.labels["algorithm"] == METHODS[-1] and best.metric == "val_accuracy"
    assert "ranks are by `final_val_accuracy`, on the validation samples" in str(said)
    # What the table shows is marked by its means.
    first = {e.run_id for e in manifest.entries if e.labels["algorithm"] == METHODS[0]}
    assert numbers.marks.best == first and best.run_id not in first
    assert "and its marks are by `final`, on the test set" in str(said)
    (text, _) = over_settings(numbers)
    assert "the second best mean rank by `final`" in str(text)


def test_a_setting_that_a_method_has_not_finished_counts_for_none(
    values: dict[tuple[str, ...], np.ndarray],
) -> None:
    runs, manifest = made(values)
    lost = manifest.entries[-1].run_id
    runs = runs[runs["run_id"] != lost]
    numbers = Numbers.of(runs, manifest)
    assert list(numbers.methods.ranks.index) == [f"setting = {s}" for s in "abc"]
    assert answer(numbers).rows[0][3].endswith(" of 3")


def test_the_answer_says_where_a_method_is_higher_and_where_none_is() -> None:
    base = np.array([0.5, 0.52, 0.54, 0.51, 0.53])
    noise = np.array([0.002, -0.001, 0.001, -0.002, 0.0])
    values = {}
    for p, gap in (("1", 0.3), ("2", 0.1), ("10", 0.0)):
        values[(p, "FedAvg")] = base
        values[(p, "SAFARI")] = base + gap + noise
    numbers = Numbers.of(*made(values, axes=("p", "algorithm")))
    one = Numbers.of(*made({("a", "FedAvg"): np.array([0.5, 0.6])}))
    assert answer_text(one) == "The mean of `final` is 55.00 %." and not one.marks.best
    assert (
        "In `final`, SAFARI is higher than FedAvg in 2 of 3 settings, by up to 30.00 points "
        "(p = 1). In the other 1, among them all with p = 10, 5 seeds show no significant "
        "difference."
    ) in answer_text(numbers)
    grid = {(s, *key): own for s in "04" for key, own in values.items()}
    for p in ("1", "2"):
        grid["0", p, "SAFARI"] = base
    text = answer_text(Numbers.of(*made(grid, axes=("s", "p", "algorithm"))))
    assert "among them all with s = 0 or p = 10, 5 seeds" in text


def means_of(numbers: Numbers) -> dict[str, str]:
    """The mean that the answer has of each method."""
    return {str(row[0]): str(row[1]) for row in answer(numbers).rows}


def test_a_value_that_some_seeds_never_reached_has_no_mean_of_the_others() -> None:
    values = {
        ("a", "FedAvg"): np.array([10, np.nan, np.nan]),
        ("a", "SAFARI"): np.array([20.0, 21, 22]),
    }
    runs, manifest = made(values, statistic="rounds_to_50")
    table = manifest.table.replace(scale=1.0, unit="")
    numbers = Numbers.of(runs, manifest.replace(table=table))
    shown, means = markdown(results_document(numbers)), means_of(numbers)
    assert "| a | FedAvg | 10.00 [1 of 3] |" in shown and "**21.00 ± 1.00**" in shown
    assert "over 1 or 3 seeds" in shown and "or have no value" in shown
    assert means == {"SAFARI": "21", "FedAvg": "–"}  # noqa: RUF001


def test_a_further_statistic_says_how_many_seeds_have_a_value() -> None:
    runs, manifest = made({("a", "FedAvg"): [0.5, 0.6], ("a", "SAFARI"): [0.6, 0.8]})
    table = manifest.table.replace(also=["rounds_to_50"])
    numbers = Numbers.of(
        runs.assign(rounds_to_50=[4, np.nan, 3, 3]), manifest.replace(table=table)
    )
    shown = markdown(results_document(numbers))
    assert "| 4.000 [1 of 2] |" in shown and "| 3.000 ± 0.000 |" in shown
    assert shown.count("[3 of 5]") == 1


def test_pairs_are_called_seeds_or_partitions_and_those_with_a_p_are_counted() -> None:
    base = np.array([0.5, 0.7, 0.5, 0.6])
    gap = [0.02, -0.01, 0.02, 0.03]
    values = {("FedAvg",): base, ("SAFARI",): base + gap, ("same",): base}
    runs, manifest = made(values, ("algorithm",))
    for seeds, what in ((4, "4 seeds"), (2, "2 partitions")):
        numbers = Numbers.of(
            runs.assign(partition_seed=runs["seed"] // seeds), manifest
        )
        assert f"{what} show no" in answer_text(numbers)
        text, grid = paired_text(numbers)
        assert isinstance(grid, Grid) and grid.head[1] == what.split()[1]
        assert "adjusted for 1 comparison with a p;" in str(text)


def test_what_diverged_is_not_best_and_a_setting_where_all_did_is_not_passed_over(
    values: dict[tuple[str, ...], np.ndarray],
) -> None:
    runs, manifest = made(values)
    ids = dict(zip(values, (e.run_id for e in manifest.entries), strict=True))
    lost = (runs["run_id"] == ids[("a", "SAFARI")]) & (runs["seed"] > 0)
    runs.loc[lost, ["status", "final"]] = ["diverged", np.nan]
    # A mean of the other seeds would make an unstable method look good.
    assert means_of(Numbers.of(runs, manifest))["SAFARI"] == "–"  # noqa: RUF001
    lost = runs["run_id"] == ids[("b", "SAFARI")]
    runs.loc[lost, ["status", "final"]] = ["diverged", np.nan]
    runs.loc[runs["run_id"] == ids[("a", "SAFARI")], "final"] += 0.2
    numbers = Numbers.of(runs, manifest)
    means = means_of(numbers)
    assert means["SAFARI"] == "–" != means["FedAvg"]  # noqa: RUF001
    assert ids[("a", "SAFARI")] not in numbers.marks.best | numbers.marks.close
    assert ids[("a", "FedAvg")] in numbers.marks.best


def test_a_count_of_rounds_is_not_ranked_by_the_validation_samples() -> None:
    values = {("a", m): np.array([k + 1.0, k + 2]) for k, m in enumerate(METHODS)}
    name = "rounds_to_accuracy_0.85"
    runs, manifest = made(values, statistic=name)
    columns = {"val_accuracy": further_column("accuracy", is_fraction=True)}
    columns["test_accuracy"] = columns["val_accuracy"]
    runs["final_val_accuracy"] = runs[name] / 10
    numbers = Numbers.of(runs, manifest.replace(columns=columns))
    assert numbers.ranking.manifest.table.statistic == name
    assert numbers.ranking.methods[0] == METHODS[0]


def test_in_a_search_without_a_winner_nothing_is_bold(
    values: dict[tuple[str, ...], np.ndarray],
) -> None:
    runs, manifest = made(values)
    runs.loc[runs["seed"] == 0, "status"] = "stopped"
    numbers = Numbers.of(runs, manifest.replace(goal=("test_accuracy", "max")))
    assert numbers.winner is None and not numbers.marks.close
    text = markdown(results_document(numbers))
    assert "**" not in text.partition("## Table")[2].partition("## ")[0]


def test_mlflow_lists_runs_by_validation_samples_if_all_runs_have_some(
    values: dict[tuple[str, ...], np.ndarray],
) -> None:
    _, manifest = made(values)
    columns = {"val_accuracy": further_column("accuracy", is_fraction=True)}
    with_val, without = {"data": {"validation": {"clients": 0.1}}}, {"data": {}}

    def judged(*configs: dict[str, object]) -> Manifest:
        pairs = zip(manifest.entries, configs, strict=False)
        entries = [entry.replace(config=config) for entry, config in pairs]
        return manifest.replace(entries=entries, columns=columns)

    assert judged(with_val, with_val).ranked_by == ("final_val_accuracy", False)
    assert judged(with_val, without).ranked_by == ("final", False)
    view = json.loads(json.loads(saved_view(judged(with_val), 0))["state"])
    assert view["orderByKey"] == "metrics.`final_val_accuracy`"
    assert "metrics.`final`" in view["selectedColumns"]
