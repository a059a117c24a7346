"""The statistics of methods over all settings, against definitions, and the section on them."""

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import pytest
from helpers.drawn import drawn, study_of
from helpers.scored import made
from scipy import stats

from raysafl.report.analysis.evidence import Floats
from raysafl.report.analysis.method_statistics import (
    MethodStatistics,
    bootstrap,
    proportion,
)
from raysafl.report.analysis.numbers import Numbers
from raysafl.report.figures.means import intervals
from raysafl.report.pages.document import Grid, markdown
from raysafl.report.pages.methods import OVER_SETTINGS, over_settings
from raysafl.report.write import results_document
from raysafl.storage.manifest import Manifest

HEADING = f"## {OVER_SETTINGS}"


def compared(
    values: Mapping[str, Sequence[Sequence[float]]], statistic: str = "final"
) -> MethodStatistics:
    """The statistics of methods with these values of each setting and seed."""
    of_runs = {
        (setting, method): own[setting]
        for method, own in values.items()
        for setting in range(len(own))
    }
    return MethodStatistics(*made(of_runs, statistic=statistic))


@pytest.fixture
def values() -> dict[str, list[list[float]]]:
    """Accuracies of three methods in five settings with four seeds."""
    rng = np.random.default_rng(1)
    common = rng.normal(0, 0.05, (5, 4))
    return {
        method: (level + common + rng.normal(0, 0.03, (5, 4))).tolist()
        for method, level in {"FedAvg": 0.6, "SAFARI": 0.65, "FSL": 0.63}.items()
    }


def lost(found: MethodStatistics, method: str, setting: int, seed: int) -> None:
    """Let a replicate diverge."""
    runs = found.runs
    here = (runs["label.algorithm"] == method) & (runs["label.setting"] == setting)
    runs.loc[here & (runs["seed"] == seed), ["status", "final"]] = ["diverged", np.nan]


# --- interquartile means


def test_the_interquartile_mean_is_that_of_the_middle_half_of_all_scores(
    values: dict[str, list[list[float]]],
) -> None:
    found = compared(values).interquartile_means.set_index("method")
    for method, own in values.items():
        middle = sorted(itertools.chain(*own))[5:15]
        assert found.loc[method, "iqm"] == pytest.approx(100 * sum(middle) / 10)
        assert found.loc[method, "replicates"] == 20


def test_the_interval_is_the_expanded_percentile_interval_of_draws_within_settings(
    values: dict[str, list[list[float]]],
) -> None:
    rng = np.random.default_rng(7)
    own = np.array(values["FSL"])
    drawn = []
    for _ in range(20_000):
        again = [setting[rng.integers(4, size=4)] for setting in own]
        drawn.append(np.sort(np.concatenate(again))[5:15].mean())
    # Of 20 scores in 5 settings 15 vary freely.
    tail = stats.norm.cdf(-math.sqrt(20 / 15) * stats.t.ppf(0.975, 15))
    expected = np.quantile(drawn, [tail, 1 - tail])
    found = bootstrap(list(own), together=False)
    assert found[1:] == pytest.approx(expected, abs=0.2 * np.std(drawn))
    plain = np.quantile(drawn, [0.025, 0.975])
    assert found[1] < plain[0] and found[2] > plain[1]


def studies(settings: int, seeds: int, common: float) -> tuple[Floats, float]:
    """Scores of 200 studies [studies, settings, seeds], and their interquartile mean.

    Args:
        settings: the number of settings; scores of one are normal, those of half of them
            higher.
        seeds: the number of seeds.
        common: the standard deviation of what a seed adds in all settings.
    """
    rng = np.random.default_rng(5)
    level = np.where(np.arange(settings) % 2, 0.5, 0.0)[:, None]

    def scores(n: int, k: int) -> Floats:
        shared = common * rng.normal(size=(n, 1, k))
        return level + shared + rng.normal(size=(n, settings, k))

    many = np.sort(scores(1, 400_000).ravel())
    return scores(200, seeds), float(many[len(many) // 4 : -len(many) // 4].mean())


@pytest.mark.parametrize(
    ("seeds", "common", "together"),
    [
        (5, 0.0, False),
        pytest.param(3, 0.0, False, marks=pytest.mark.acceptance),
        pytest.param(10, 0.0, False, marks=pytest.mark.acceptance),
        pytest.param(10, 1.0, True, marks=pytest.mark.acceptance),
    ],
)
def test_the_interval_holds_the_interquartile_mean_in_92_to_98_percent_of_studies(
    seeds: int, common: float, together: bool
) -> None:
    scores, truth = studies(6, seeds, common)
    found = [bootstrap(list(own), together) for own in scores]
    assert 0.92 <= np.mean([low <= truth <= high for _, low, high in found]) <= 0.98


def test_scores_of_several_partitions_are_their_means_and_are_drawn_together() -> None:
    rng = np.random.default_rng(2)
    own = {m: rng.normal(0.5, 0.1, (3, 10)) for m in ("FedAvg", "FSL")}
    one = compared({m: v.tolist() for m, v in own.items()})
    # Two seeds of each of five partitions.
    several = MethodStatistics(
        one.runs.assign(partition_seed=one.runs["seed"] // 2), one.manifest
    )
    means = 100 * own["FSL"].reshape(3, 5, 2).mean(axis=2)
    found = several.interquartile_means.set_index("method").loc["FSL"]
    expected = bootstrap(list(means), together=True)
    assert [found["iqm"], found["low"], found["high"]] == pytest.approx(expected)
    assert len(one.scores) == 30 and len(several.scores) == 15


# --- what diverged


def test_a_replicate_that_diverged_is_worse_than_all_others_and_is_counted(
    values: dict[str, list[list[float]]],
) -> None:
    found = compared(values)
    lost(found, "SAFARI", setting=0, seed=2)
    frame = found.interquartile_means.set_index("method")
    middle = sorted(
        x for x in itertools.chain(*values["SAFARI"]) if x != values["SAFARI"][0][2]
    )
    assert frame.loc["SAFARI", "iqm"] == pytest.approx(1000 * sum(middle[4:14]) / 100)
    assert list(frame["diverged"][list(values)]) == [0, 1, 0]
    assert found.ranks.loc["setting = 0", "SAFARI"] == 3
    better = found.improvement.set_index(["method", "over"]).loc[("SAFARI", "FedAvg")]
    wins = np.array(values["SAFARI"]) > np.array(values["FedAvg"])
    wins[0, 2] = False
    assert better["probability"] == pytest.approx(wins.mean())
    # If over a quarter diverged, the middle half has no mean.
    for setting, seed in itertools.product((1, 2), range(4)):
        lost(found, "FSL", setting, seed)
    frame = MethodStatistics(found.runs, found.manifest).interquartile_means
    assert frame.set_index("method").loc["FSL", "iqm"] == -math.inf


def test_two_that_diverged_are_equal_and_those_that_failed_have_no_score(
    values: dict[str, list[list[float]]],
) -> None:
    found = compared(values)
    for setting in range(5):
        lost(found, "FSL", setting, 0)
        lost(found, "FedAvg", setting, 0)
    found.runs.loc[found.runs["seed"] > 1, "status"] = "failed"
    better = found.improvement.set_index(["method", "over"]).loc[("FSL", "FedAvg")]
    wins = np.array(values["FSL"])[:, 1] > np.array(values["FedAvg"])[:, 1]
    assert better["pairs"] == 10
    assert better["probability"] == pytest.approx((0.5 * 5 + wins.sum()) / 10)


def test_a_value_that_is_never_reached_is_the_worst_number_of_rounds() -> None:
    rounds = {"FedAvg": [[30.0, np.nan], [20, 25]], "FSL": [[90.0, 95], [50, 55]]}
    found = compared(rounds, "rounds_to_50")
    assert list(found.ranks.loc["setting = 0", ["FedAvg", "FSL"]]) == [2, 1]
    assert list(found.ranks.loc["setting = 1", ["FedAvg", "FSL"]]) == [1, 2]


# --- probabilities


def test_where_lower_is_better_all_statistics_are_turned_around(
    values: dict[str, list[list[float]]],
) -> None:
    ours = compared(values)
    losses = {m: (-np.array(own)).tolist() for m, own in values.items()}
    theirs = compared(losses, "final_loss")
    assert ours.methods == theirs.methods and ours.sign == -theirs.sign
    for name in ("iqm", "low", "high"):
        mirror = {"low": "high", "high": "low"}.get(name, name)
        one = ours.interquartile_means[name]
        assert list(one) == pytest.approx(list(-theirs.interquartile_means[mirror]))
    assert list(ours.improvement["probability"]) == pytest.approx(
        list(theirs.improvement["probability"])
    )


def test_the_probability_of_improvement_counts_pairs_of_equal_setting_and_seed(
    values: dict[str, list[list[float]]],
) -> None:
    values["FSL"][0] = values["FedAvg"][0]
    values["SAFARI"][4] = values["SAFARI"][4][:2]
    found = compared(values)
    assert found.ranks.loc["setting = 0", "FSL"] in (1.5, 2.5)
    frame = found.improvement.set_index(["method", "over"])["probability"]
    assert set(found.improvement["over"]) == {"FedAvg", found.methods[1]}
    for (method, over), probability in frame.items():
        shares = []
        for own, other in zip(values[method], values[over], strict=True):
            pairs = list(zip(own, other, strict=False))
            shares.append(np.mean([(x > y) + 0.5 * (x == y) for x, y in pairs]))
        assert probability == pytest.approx(np.mean(shares))


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
@pytest.mark.parametrize("settings", [1, 6, 20])
@pytest.mark.parametrize("is_equal", [True, False])
def test_the_interval_of_an_improvement_holds_the_true_one_in_95_percent_of_studies(
    seeds: int, settings: int, is_equal: bool
) -> None:
    """Settings have one probability of a win, or such as lie around it as far as they can."""
    rng = np.random.default_rng(8)
    for true in (0.5, 0.8, 0.95):
        gap = 0.0 if is_equal or settings == 1 else min(true, 1 - true)
        each = true + gap * np.where(np.arange(settings) % 2, 1, -1)
        wins = (rng.random((400, settings, seeds)) < each[:, None]).astype(float)
        ends = np.array([proportion(list(own))[1:] for own in wins])
        held = np.mean((ends[:, 0] <= true) & (true <= ends[:, 1]))
        # Of 400 studies with a coverage of 95 %, 93 % hold it but in 5 of 100 such tests.
        assert held >= 0.93
        assert (ends[:, 1] - ends[:, 0]).min() > 0


def test_the_interval_of_an_improvement_is_scipys_of_as_many_wins() -> None:
    for won in range(7):
        wins = [np.array([float(k < won) for k in range(6)])]
        known = stats.binomtest(won, 6).proportion_ci(0.95, "exact")
        expected = (won / 6, known.low, known.high)
        assert proportion(wins) == pytest.approx(expected)
        thrice = stats.binomtest(3 * won, 18).proportion_ci(0.95, "exact")
        assert proportion(wins * 3)[1:] == pytest.approx((thrice.low, thrice.high))
        # Partitions with all of their settings are six draws, however many settings.
        assert proportion(wins * 3, together=True) == pytest.approx(expected)
    # Six and two pairs in two settings tell as much as three in each.
    uneven = [np.ones(6), np.ones(2)]
    assert proportion(uneven)[1:] == pytest.approx(proportion([np.ones(3)] * 2)[1:])
    assert np.isnan(proportion([np.ones(1)] * 9)[1:]).all()


@pytest.mark.parametrize(
    ("seeds", "settings", "together"),
    [(2, 6, False), (4, 1, False), (4, 2, False), (4, 6, True)],
)
def test_with_so_few_scores_that_it_would_fail_the_mean_has_no_interval(
    seeds: int, settings: int, together: bool
) -> None:
    samples = [np.arange(seeds + 1) / (k + 1) for k in range(settings)]
    assert np.isfinite(bootstrap(samples, together)).all()
    value, *ends = bootstrap([own[1:] for own in samples], together)
    assert np.isfinite(value) and np.isnan(ends).all()


# --- the section on them, and its figure


@pytest.mark.parametrize("baseline", ["", "SAFARI", "FSL"])
def test_all_that_compares_pairs_takes_the_baseline_or_else_the_first_method(
    values: dict[str, list[list[float]]], baseline: str
) -> None:
    """By the order of the sweep, "Zeta" is first; FedAvg is a method like any other."""
    listed = {"Zeta": values["FSL"], **values}
    first = compared(listed)
    table = first.manifest.table.replace(baseline=baseline)
    found = MethodStatistics(first.runs, first.manifest.replace(table=table))
    wanted = baseline or "Zeta"
    assert set(found.seed_by_seed["baseline"]) == {wanted}
    assert wanted not in set(found.seed_by_seed["label.algorithm"])
    assert found.improvement["over"].iloc[0] == wanted
    report = markdown(results_document(Numbers.of(found.runs, found.manifest)))
    assert f"Each method minus {wanted} in `final`" in report
    assert f"| better than {wanted} |" in report


def planted(methods: int, settings: int, seeds: int) -> tuple[pd.DataFrame, Manifest]:
    """The runs of a sweep of methods with long names in some settings."""
    rng = np.random.default_rng(6)
    values = {
        (f"setting {s}", f"A method with a long name {m}"): 0.5
        + 0.02 * (m // 2)
        + 0.01 * rng.normal(size=seeds)
        for s in range(settings)
        for m in range(methods)
    }
    return made(values)


def test_the_section_has_the_numbers_of_the_frames() -> None:
    numbers = Numbers.of(*planted(4, 8, seeds=3))
    text, grid = over_settings(numbers)
    assert isinstance(grid, Grid)
    assert "in the 8 settings in which all methods" in str(text)
    means = numbers.methods.interquartile_means
    better = numbers.methods.improvement
    # The baseline is the sweep's first method, and the runner-up is another one.
    over = list(dict.fromkeys(better["over"]))
    assert over[0].endswith("name 0") and len(over) == 2
    for row, (_, own) in zip(grid.rows, means.iterrows(), strict=True):
        assert row[0] == own["method"]
        assert row[4] == f"{own['iqm']:.2f} [{own['low']:.2f}, {own['high']:.2f}]"
        for cell, other in zip(row[5:], over, strict=True):
            pair = better[(better["method"] == row[0]) & (better["over"] == other)]
            share = f"{100 * pair['probability'].item():.1f}" if len(pair) else "–"  # noqa: RUF001
            assert str(cell).split(" ")[0] == share


@pytest.mark.parametrize(("methods", "settings"), [(1, 8), (4, 1)])
def test_the_section_is_absent_where_there_is_nothing_to_compare(
    methods: int, settings: int
) -> None:
    document = results_document(Numbers.of(*planted(methods, settings, seeds=1)))
    assert HEADING not in markdown(document)


def test_intervals_are_those_of_the_frames_in_the_order_of_the_ranks() -> None:
    runs, manifest = planted(3, 4, seeds=3)
    study = study_of(manifest, runs=runs)
    figure = drawn(intervals(study))
    means = study.numbers.methods.interquartile_means
    better = study.numbers.methods.improvement
    better = better[better["over"] == better["over"][0]].assign(
        probability=lambda own: 100 * own["probability"]
    )
    left, right = figure.axes
    names = [text.get_text() for text in left.get_yticklabels()]
    assert names == list(means["method"])
    for axes, own, column in ((left, means, "iqm"), (right, better, "probability")):
        at = [names.index(name) for name in own["method"]]
        points = np.asarray(axes.get_lines()[0].get_xydata())
        np.testing.assert_allclose(points, np.stack([own[column], at], axis=1))
    assert intervals(study_of(manifest)) is None
