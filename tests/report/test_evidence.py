"""Intervals, verdicts and tests against scipy's own functions on samples, and by hand."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from raysafl.report.analysis.evidence import (
    bias,
    holm,
    judged,
    paired,
    rule,
)
from raysafl.report.analysis.layout import Layout
from raysafl.storage.manifest import Entry, Manifest, Printed, Table

SAMPLES = st.lists(st.floats(-100, 100), min_size=2, max_size=7).filter(
    lambda x: np.ptp(x) > 1e-3
)


def column(*values: float) -> Any:
    return np.array(values, float)


@given(SAMPLES)
@settings(max_examples=50, deadline=None)
def test_intervals_are_those_that_scipy_finds_in_the_samples(
    a: list[float],
) -> None:
    one = stats.ttest_1samp(a, 0).confidence_interval(0.95)
    mine = judged(*sweep({"a": [x / 100 for x in a]}))["half.mean"][0]
    assert mine == pytest.approx((one.high - one.low) / 2, rel=1e-6)


def sweep(
    finals: dict[str, list[float]],
    paper: list[Printed] | None = None,
    partitions: list[int] | None = None,
    **table: Any,
) -> Any:
    """Runs of one axis, `method`, and their manifest."""
    entries = [Entry(run_id=name, labels={"method": name}) for name in finals]
    shown = Table(rows=["method"], also=[], **table)
    rows = [
        {"run_id": name, "replicate": i, "seed": i, "status": "finished", "final": x}
        | ({"partition_seed": partitions[i]} if partitions else {})
        for name, values in finals.items()
        for i, x in enumerate(values)
    ]
    return pd.DataFrame(rows), Manifest(
        name="s",
        axes=["method"],
        entries=entries,
        table=shown,
        paper=paper or [],
    )


def place(finals: list[float], mean: float, *more: Any, **table: Any) -> Any:
    """How a printed number is judged."""
    paper = [Printed(labels={"method": "a"}, mean=mean)]
    return judged(*sweep({"a": finals}, paper, *more, **table)).iloc[0]


def test_with_one_partition_a_printed_number_is_one_more_seed() -> None:
    # Ours are 49, 50 and 51: a further seed differs from the mean by sqrt(1 + 1 / 3).
    reach = stats.t.ppf(0.975, 2) * math.sqrt(4 / 3)
    inside, outside = (place([0.49, 0.50, 0.51], 50 + reach + x) for x in (-0.01, 0.01))
    assert (inside["verdict"], outside["verdict"]) == ("inside", "outside")
    assert inside["half.diff"] == pytest.approx(reach)
    assert inside["z"] == pytest.approx(-(reach - 0.01) / math.sqrt(4 / 3))
    assert math.isnan(inside["below"])


def test_a_printed_mean_of_n_seeds_has_an_nth_of_the_variance_within() -> None:
    one, five = (place([0.49, 0.50, 0.51], 52, seeds=n) for n in (1, 5))
    assert one["z"] == pytest.approx(-2 / math.sqrt(1 + 1 / 3))
    assert five["z"] == pytest.approx(-2 / math.sqrt(1 / 5 + 1 / 3))


# Two seeds of each of three partitions, whose means are 40, 50 and 60 %.
DEALT = [0.39, 0.41, 0.49, 0.51, 0.58, 0.62]
PARTITIONS = [0, 0, 1, 1, 2, 2]


def test_a_printed_number_lies_among_partitions_by_hand() -> None:
    # within^2 is (2 + 2 + 8) / 3 = 4, MSB is 2 (100 + 0 + 100) / 2 = 200, so between^2
    # is 98, and the variance of our mean 200 / 6.
    entry = place(DEALT, 55, PARTITIONS, seeds=4)
    assert entry["between"] == pytest.approx(math.sqrt(98))
    assert entry["within"] == pytest.approx(2)
    assert entry["std.final"] == pytest.approx(math.sqrt(102))
    deviation = math.sqrt(98 + 4 / 4 + 200 / 6)
    assert entry["z"] == pytest.approx(-5 / deviation)
    assert entry["half.diff"] == pytest.approx(stats.t.ppf(0.975, 2) * deviation)
    assert (entry["verdict"], entry["below"]) == ("inside", pytest.approx(2 / 3))


def test_with_one_seed_each_a_printed_mean_of_seeds_is_judged_as_a_single_run() -> None:
    # Nothing tells what of the spread is within, so none of it is divided by n.
    entries = [place([0.4, 0.5, 0.6], 55, [0, 1, 2], seeds=n) for n in (1, 5)]
    for entry in entries:
        assert entry["z"] == pytest.approx(-5 / math.sqrt(100 + 100 / 3))
        assert math.isnan(entry["between"]) and math.isnan(entry["within"])


def test_one_replicate_judges_nothing_and_no_number_has_no_verdict() -> None:
    entry = place([0.5], 50)
    assert entry["verdict"] == "" and math.isnan(entry["half.diff"])
    runs, manifest = sweep({"a": [0.4, 0.5], "b": [0.4, 0.5]})
    assert judged(runs, manifest)["verdict"].tolist() == ["", ""]
    assert bias(judged(runs, manifest), runs, manifest).empty


def test_the_rule_names_the_number_of_printed_seeds() -> None:
    _, manifest = sweep({"a": [0.5]}, [], seeds=5)
    assert "the mean of 5 seeds on one partition" in rule(manifest.table)


def test_the_bias_of_a_group_is_judged_as_one_number_over_the_same_replicates() -> None:
    # What one entry has too much, the other has too little: their mean hardly varies.
    finals = {"a": [0.40, 0.50, 0.60], "b": [0.62, 0.50, 0.41]}
    paper = [Printed(labels={"method": m}, mean=51) for m in finals]
    runs, manifest = sweep(finals, paper, [0, 1, 2])
    found = bias(judged(runs, manifest), runs, manifest).set_index("group")
    assert found.index.tolist() == ["all entries", "method = a", "method = b"]
    means = [51, 50, 50.5]
    whole = found.loc["all entries"]
    deviation = np.std(means, ddof=1) * math.sqrt(1 + 1 / 3)
    assert whole["diff"] == pytest.approx(np.mean(means) - 51)
    assert whole["z"] == pytest.approx(whole["diff"] / deviation)
    assert whole["half"] == pytest.approx(stats.t.ppf(0.975, 2) * deviation)
    assert (whole["entries"], whole["lower"]) == (2, 1 + 0)
    one = found.loc["method = a"]
    assert one["z"] == pytest.approx(judged(runs, manifest)["z"][0])


def test_entries_without_common_replicates_have_a_bias_without_an_interval() -> None:
    paper = [Printed(labels={"method": m}, mean=51) for m in "ab"]
    runs, manifest = sweep({"a": [0.4, 0.5], "b": [0.4, 0.5]}, paper)
    runs.loc[runs["run_id"] == "b", "replicate"] += 2
    whole = bias(judged(runs, manifest), runs, manifest).iloc[0]
    assert whole["diff"] == pytest.approx(-6) and math.isnan(whole["half"])


def test_holm_by_hand() -> None:
    # sorted 0.005 0.01 0.03 0.04, times 4 3 2 1, never falling
    np.testing.assert_allclose(
        holm(column(0.01, 0.04, 0.03, 0.005)), [0.03, 0.06, 0.06, 0.02]
    )
    np.testing.assert_allclose(holm(column(0.6, 0.9)), [1.0, 1.0])
    assert len(holm(column())) == 0


def test_methods_are_compared_over_common_seeds_only() -> None:
    finals = {
        "a": [0.5, 0.6, 0.7, 0.9],
        "b": [0.55, 0.68, 0.74, 0.1],
        "c": [0.6, 0.7, 0.8, 1.0],
    }
    runs, manifest = sweep(finals)
    runs.loc[(runs["run_id"] == "b") & (runs["seed"] == 3), "status"] = "diverged"
    pairs = paired(runs, manifest, Layout.of(manifest)).set_index("label.method")
    difference = [5.0, 8.0, 4.0]
    test = stats.ttest_1samp(difference, 0)
    b = pairs.loc["b"]
    assert (b["seeds"], b["baseline"]) == (3, "a")
    assert b["diff"] == pytest.approx(np.mean(difference))
    assert b["p"] == b["holm"] == pytest.approx(test.pvalue)
    low, high = test.confidence_interval(0.95)
    assert b["half"] == pytest.approx((high - low) / 2)
    c = pairs.loc["c"]  # 10 points above with every seed: no t test
    assert (
        c["diff"] == pytest.approx(10) and math.isnan(c["p"]) and math.isnan(c["holm"])
    )


def test_nothing_is_compared_without_two_common_seeds() -> None:
    runs, manifest = sweep({"a": [0.5, 0.6], "b": [0.7]})
    assert paired(runs, manifest, Layout.of(manifest)).empty
    assert paired(runs[:0], manifest, Layout.of(manifest)).empty
    alone = sweep({"a": [0.1, 0.2]})
    assert paired(*alone, Layout.of(alone[1])).empty


def test_places_of_the_other_axes_are_kept_apart() -> None:
    entries = [
        Entry(run_id=f"{m}{s}", labels={"method": m, "s": s})
        for s in (0, 2)
        for m in ("a", "b")
    ]
    manifest = Manifest(
        name="s",
        axes=["method", "s"],
        entries=entries,
        table=Table(rows=["s", "method"], also=[]),
    )
    finals = {"a0": (0.1, 0.2), "b0": (0.3, 0.5), "a2": (0.5, 0.6), "b2": (0.4, 0.4)}
    rows = [
        {"run_id": name, "replicate": i, "seed": i, "status": "finished", "final": x}
        for name, values in finals.items()
        for i, x in enumerate(values)
    ]
    pairs = paired(pd.DataFrame(rows), manifest, Layout.of(manifest))
    assert pairs["label.s"].tolist() == [0, 2] and pairs["label.method"].tolist() == [
        "b",
        "b",
    ]
    assert pairs["diff"].tolist() == [pytest.approx(25), pytest.approx(-15)]
    smallest, other = sorted(pairs["p"])
    assert sorted(pairs["holm"]) == pytest.approx(
        sorted([2 * smallest, max(2 * smallest, other)])
    )


def test_pairs_of_different_numbers_of_common_seeds_are_each_tested_by_themselves() -> (
    None
):
    random = np.random.default_rng(3)
    finals = {
        name: random.random(n).tolist()
        for name, n in zip("abcdef", (9, 9, 5, 2, 1, 5), strict=True)
    }
    runs, manifest = sweep(finals)
    pairs = paired(runs, manifest, Layout.of(manifest)).set_index("label.method")
    assert pairs.index.tolist() == ["b", "c", "d", "f"]
    for name, pair in pairs.iterrows():
        own = np.array(finals[str(name)]) * 100
        test = stats.ttest_1samp(own - 100 * np.array(finals["a"][: len(own)]), 0)
        assert pair["seeds"] == len(own)
        assert pair["p"] == pytest.approx(test.pvalue, rel=1e-9)
        low, high = test.confidence_interval(0.95)
        assert pair["half"] == pytest.approx((high - low) / 2, rel=1e-9)


def test_seeds_of_one_partition_are_one_pair() -> None:
    finals = {"a": DEALT, "b": [x + d for x, d in zip(DEALT, DEALT, strict=True)]}
    runs, manifest = sweep(finals, None, PARTITIONS)
    pair = paired(runs, manifest, Layout.of(manifest)).iloc[0]
    test = stats.ttest_1samp([40, 50, 60], 0)
    assert pair["seeds"] == 3 and pair["p"] == pytest.approx(test.pvalue)


def test_infinite_numbers_are_compared_without_a_warning() -> None:
    runs, manifest = sweep({"a": [math.inf, 0.5, 0.6], "b": [math.inf, 0.7, 0.9]})
    pair = paired(runs, manifest, Layout.of(manifest)).iloc[0]
    assert pair["seeds"] == 3 and pair["diff"] == pytest.approx(25)
    assert math.isnan(pair["p"])


def test_the_label_none_has_a_bias_as_others_have() -> None:
    paper = [Printed(labels={"method": name}, mean=45) for name in ("a", "b")]
    runs, manifest = sweep({"a": [0.4, 0.5], "b": [0.5, 0.6]}, paper)
    manifest.entries[1].labels["method"] = manifest.paper[1].labels["method"] = None
    found = bias(judged(runs, manifest), runs, manifest).set_index("group")["diff"]
    expected = {"all entries": 5, "method = a": 0, "method = None": 10}
    assert found.to_dict() == pytest.approx(expected)


def test_a_declared_statistic_without_any_value_has_no_paired_comparison() -> None:
    runs, manifest = sweep({"a": [0.4, 0.5], "b": [0.5, 0.6]})
    table = manifest.table.replace(statistic="final_mae")
    manifest = manifest.replace(table=table)
    assert paired(runs, manifest, Layout.of(manifest)).empty
