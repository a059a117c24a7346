"""Spreads, intervals and tests against scipy's own functions on samples, and by hand."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.scored import made
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from raysafl.report.analysis.entries import nested, units_of
from raysafl.report.analysis.evidence import estimated, holm, paired
from raysafl.report.analysis.layout import Layout

SAMPLES = st.lists(st.floats(-100, 100), min_size=2, max_size=7).filter(
    lambda x: np.ptp(x) > 1e-3
)


def column(*values: float) -> Any:
    return np.array(values, float)


def pairs_of(runs: pd.DataFrame, manifest: Any) -> pd.DataFrame:
    """The comparisons of a sweep, by the label of the method."""
    return paired(runs, manifest, Layout.of(manifest)).set_index("label.method")


def sweep(finals: dict[str, list[float]]) -> Any:
    """Runs of one axis, `method`, and their manifest."""
    return made({(name,): own for name, own in finals.items()}, ("method",))


@given(SAMPLES)
@settings(max_examples=50, deadline=None)
def test_intervals_are_those_that_scipy_finds_in_the_samples(a: list[float]) -> None:
    one = stats.ttest_1samp(a, 0).confidence_interval(0.95)
    mine = estimated(*sweep({"a": [x / 100 for x in a]}))["half.mean"][0]
    assert mine == pytest.approx((one.high - one.low) / 2, rel=1e-6)


def test_holm_by_hand() -> None:
    # sorted 0.005 0.01 0.03 0.04, times 4 3 2 1, never falling
    np.testing.assert_allclose(
        holm(column(0.01, 0.04, 0.03, 0.005)), [0.03, 0.06, 0.06, 0.02]
    )
    np.testing.assert_allclose(holm(column(0.6, 0.9)), [1.0, 1.0])
    assert len(holm(column())) == 0


def test_methods_are_compared_over_common_seeds_only() -> None:
    of_b = [0.55, 0.68, 0.74, 0.1]
    runs, manifest = sweep(
        {"a": [0.5, 0.6, 0.7, 0.9], "b": of_b, "c": [0.6, 0.7, 0.8, 1.0]}
    )
    runs.loc[(runs["label.method"] == "b") & (runs["seed"] == 3), "status"] = "diverged"
    pairs = pairs_of(runs, manifest)
    test = stats.ttest_1samp([5.0, 8.0, 4.0], 0)
    b = pairs.loc["b"]
    assert (b["seeds"], b["baseline"]) == (3, "a")
    assert b["diff"] == pytest.approx(17 / 3)
    assert b["p"] == b["holm"] == pytest.approx(test.pvalue)
    low, high = test.confidence_interval(0.95)
    assert b["half"] == pytest.approx((high - low) / 2)
    c = pairs.loc["c"]  # 10 points above with every seed: no t test
    assert c["diff"] == pytest.approx(10)
    assert math.isnan(c["p"]) and math.isnan(c["holm"])


def test_places_of_the_other_axes_are_kept_apart() -> None:
    values = {
        (0, "a"): (0.1, 0.2),
        (0, "b"): (0.3, 0.5),
        (2, "a"): (0.5, 0.6),
        (2, "b"): (0.4, 0.4),
    }
    pairs = pairs_of(*made(values, ("s", "method")))
    assert pairs["label.s"].to_list() == [0, 2] and [*pairs.index] == ["b", "b"]
    assert pairs["diff"].to_list() == pytest.approx([25, -15])
    smallest, other = sorted(pairs["p"])
    due = sorted([2 * smallest, max(2 * smallest, other)])
    assert sorted(pairs["holm"]) == pytest.approx(due)


def test_pairs_with_other_numbers_of_common_seeds_are_tested_apart() -> None:
    random = np.random.default_rng(3)
    finals = {
        name: random.random(n).tolist()
        for name, n in zip("abcdef", (9, 9, 5, 2, 1, 5), strict=True)
    }
    pairs = pairs_of(*sweep(finals))
    assert pairs.index.tolist() == ["b", "c", "d", "f"]
    for name, pair in pairs.iterrows():
        own = np.array(finals[str(name)]) * 100
        test = stats.ttest_1samp(own - 100 * np.array(finals["a"][: len(own)]), 0)
        assert pair["seeds"] == len(own)
        assert pair["p"] == pytest.approx(test.pvalue, rel=1e-9)
        low, high = test.confidence_interval(0.95)
        assert pair["half"] == pytest.approx((high - low) / 2, rel=1e-9)


def test_seeds_of_one_partition_are_one_pair() -> None:
    # Two seeds of each of three partitions, whose means are 40, 50 and 60 %.
    dealt = [0.39, 0.41, 0.49, 0.51, 0.58, 0.62]
    runs, manifest = sweep({"a": dealt, "b": [2 * x for x in dealt]})
    pair = pairs_of(runs.assign(partition_seed=runs["seed"] // 2), manifest).iloc[0]
    test = stats.ttest_1samp([40, 50, 60], 0)
    assert pair["seeds"] == 3 and pair["p"] == pytest.approx(test.pvalue)


# --- the spread between and within partitions


def one_run(values: list[float], partitions: list[int]) -> "pd.Series[float]":
    runs = pd.Series("run", index=range(len(values)))
    return nested(pd.Series(values), runs, pd.Series(partitions)).loc["run"]


@given(
    st.lists(st.lists(st.floats(-9, 9), min_size=2, max_size=4), min_size=2, max_size=5)
)
@settings(max_examples=50, deadline=None)
def test_the_mean_squares_are_those_of_scipys_one_way_analysis(
    groups: list[list[float]],
) -> None:
    values = [x for group in groups for x in group]
    partitions = [d for d, group in enumerate(groups) for _ in group]
    found = one_run(values, partitions)
    within = float(found["within"]) ** 2
    if within < 1e-6:
        return
    # F = MSB / MSW, so between^2 = max(0, (F - 1) MSW / n).
    f = float(stats.f_oneway(*groups).statistic)
    sizes = np.array([len(group) for group in groups])
    total = int(sizes.sum())
    n = (total - (sizes**2).sum() / total) / (len(groups) - 1)
    expected = max(0.0, (f - 1) * within / n)
    pooled = sum((len(g) - 1) * np.var(g, ddof=1) for g in groups)
    assert within == pytest.approx(pooled / (total - len(groups)))
    assert found["between"] ** 2 == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert found["std"] ** 2 == pytest.approx(expected + within, rel=1e-6)


def test_one_partition_and_one_seed_each_have_the_plain_standard_deviation() -> None:
    values = [1.0, 2.0, 4.0, 8.0]
    for partitions in ([5, 5, 5, 5], [1, 2, 3, 4]):
        found = one_run(values, partitions)
        assert found["std"] == pytest.approx(np.std(values, ddof=1))
        assert found["error"] == pytest.approx(stats.sem(values))
        assert (found["mean"], found["freedom"]) == (3.75, 3)
        assert math.isnan(found["between"])
    assert math.isnan(found["within"])


def test_known_variances_are_found_in_many_draws() -> None:
    rng = np.random.default_rng(0)
    partitions = np.repeat(np.arange(4000), 2)
    values = 3 * rng.normal(size=4000)[partitions] + 2 * rng.normal(size=8000)
    found = one_run(values.tolist(), partitions.tolist())
    # The standard errors of these estimates are 0.04, 0.02 and 0.04.
    assert found["between"] == pytest.approx(3, abs=0.2)
    assert found["within"] == pytest.approx(2, abs=0.1)
    assert found["std"] == pytest.approx(math.sqrt(13), abs=0.2)
    assert found["error"] == pytest.approx(math.sqrt(9 / 4000 + 4 / 8000), rel=0.1)


def test_a_run_with_one_replicate_left_does_not_make_seeds_the_unit_of_all() -> None:
    seeds = {"seed": [0, 1, 2, 3, 0], "partition_seed": [0, 1, 0, 1, 0]}
    runs = pd.DataFrame({"run_id": list("aaaab"), **seeds})
    assert units_of(runs).name == "partition"
    assert units_of(runs[4:]).name == units_of(runs[:0]).name == "seed"
    assert units_of(runs.assign(partition_seed=0)).name == "seed"
