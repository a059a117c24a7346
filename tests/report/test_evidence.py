"""Intervals, verdicts and tests against scipy's own functions on samples, and by hand."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from raysafl.report.analysis.entries import aggregate, compare
from raysafl.report.analysis.evidence import (
    VERDICTS,
    add_verdicts,
    half_width,
    holm,
    paired,
    rule,
    welch,
)
from raysafl.report.analysis.layout import Layout
from raysafl.storage.manifest import Entry, Manifest, Printed, Table

SAMPLES = st.lists(st.floats(-100, 100), min_size=2, max_size=7).filter(
    lambda x: np.ptp(x) > 1e-3
)


def column(*values: float) -> Any:
    return np.array(values, float)


@given(SAMPLES, SAMPLES)
@settings(max_examples=50, deadline=None)
def test_intervals_are_those_that_scipy_finds_in_the_samples(
    a: list[float], b: list[float]
) -> None:
    one = stats.ttest_1samp(a, 0).confidence_interval(0.95)
    mine = half_width(column(np.std(a, ddof=1)), column(len(a)))[0]
    assert mine == pytest.approx((one.high - one.low) / 2, rel=1e-9)
    two = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    spread = (column(np.std(x, ddof=1)) for x in (a, b))
    gap = welch(*spread, column(len(a)), column(len(b)))[0]
    assert gap == pytest.approx((two.high - two.low) / 2, rel=1e-9)


def sweep(
    finals: dict[str, list[float]], paper: list[Printed] | None = None, **table: Any
) -> Any:
    """Runs of one axis, `method`, and their manifest."""
    entries = [Entry(run_id=name, labels={"method": name}) for name in finals]
    shown = Table(rows=["method"], also=[], paper=paper or [], **table)
    rows = [
        {"run_id": name, "replicate": i, "seed": i, "status": "finished", "final": x}
        for name, values in finals.items()
        for i, x in enumerate(values)
    ]
    return pd.DataFrame(rows), Manifest(
        name="s", axes=["method"], entries=entries, table=shown
    )


def verdicts(runs: pd.DataFrame, manifest: Manifest) -> pd.DataFrame:
    return add_verdicts(
        compare(aggregate(runs, manifest), manifest), manifest
    ).set_index("run_id")


def test_the_four_verdicts_by_hand() -> None:
    # ours: mean 50 %; n = 3 each side, std 1: half the width is 2.78 * sqrt(2/3) = 2.27
    narrow, wide = [0.49, 0.50, 0.51], [0.40, 0.50, 0.60]
    finals = {
        "agrees": narrow,
        "off": narrow,
        "unclear": wide,
        "close": [0.499, 0.5, 0.501],
    }
    means = {"agrees": 51.9, "off": 52.9, "unclear": 55.0, "close": 51.0}
    stds = {"agrees": 1.0, "off": 1.0, "unclear": 1.0, "close": 0.1}
    paper = [
        Printed(labels={"method": m}, mean=x, std=stds[m]) for m, x in means.items()
    ]
    entries = verdicts(*sweep(finals, paper))
    assert entries["verdict"].to_dict() == {name: name for name in finals}
    half = stats.t.ppf(0.975, 4) * math.sqrt(2 / 3)
    assert entries.loc["agrees", "half.diff"] == pytest.approx(half)
    assert entries.loc["agrees", "deviations"] == pytest.approx(1.9 / math.sqrt(2))
    assert entries.loc["agrees", "half.mean"] == pytest.approx(
        4.302653 / math.sqrt(3), rel=1e-6
    )


def test_without_a_printed_spread_the_paper_s_is_taken_to_be_ours() -> None:
    finals = {"a": [0.48, 0.50, 0.52]}
    given_, none = (
        verdicts(
            *sweep(finals, [Printed(labels={"method": "a"}, mean=51, std=std)])
        ).loc["a"]
        for std in (2.0, None)
    )
    assert given_["half.diff"] == pytest.approx(none["half.diff"])
    assert given_["verdict"] == none["verdict"] == "agrees"


def test_a_printed_spread_of_five_rounds_is_no_spread_over_seeds() -> None:
    # Ours: 40 and 1 over three seeds. The paper prints 50 and 12 over five rounds.
    paper = [Printed(labels={"method": "a"}, mean=50, std=12)]
    finals = {"a": [0.39, 0.40, 0.41]}
    seeds = verdicts(*sweep(finals, paper)).loc["a"]
    assert seeds["verdict"] == "unclear"
    # Welch: a = 1 / 3 and b = 144 / 3, so 48.33^2 / (a^2 / 2 + b^2 / 2) = 2.03 degrees.
    assert seeds["half.diff"] == pytest.approx(29.5, abs=0.3)

    runs, manifest = sweep(finals, paper, printed_spread="last5")
    rounds = verdicts(runs, manifest).loc["a"]
    assert rounds["verdict"] == "off"
    half = stats.t.ppf(0.975, 4) * math.sqrt(2 / 3)
    assert rounds["half.diff"] == pytest.approx(half)
    assert rounds["deviations"] == pytest.approx(10 / math.sqrt(2))
    # The printed spread is still shown.
    assert rounds["paper.std"] == 12
    assert "compares with `last5_std`" in rule(manifest.table)
    smaller = manifest.replace(scale="small")
    assert manifest.table.printed_spread == "last5"
    assert smaller.table.printed_spread == "seeds"


@pytest.mark.parametrize(("mean", "verdict"), [(51.9, "close"), (52.1, "off")])
def test_one_seed_is_judged_by_nearness_alone(mean: float, verdict: str) -> None:
    paper = [Printed(labels={"method": "a"}, mean=mean, std=1.0)]
    entry = verdicts(*sweep({"a": [0.5]}, paper)).loc["a"]
    assert entry["verdict"] == verdict and math.isnan(entry["half.diff"])


def test_near_is_a_share_of_the_number_in_other_units_and_no_number_has_no_verdict() -> (
    None
):
    paper = [Printed(labels={"method": m}, mean=100, std=0.1) for m in ("a", "b")]
    finals = {"a": [95.9, 96.0, 96.1], "b": [93.9, 94.0, 94.1], "c": [1.0, 1.0]}
    runs, manifest = sweep(finals, paper, scale=1.0, unit="rounds")
    entries = verdicts(runs, manifest)
    assert entries["verdict"].to_dict() == {"a": "close", "b": "off", "c": ""}
    assert "5% of the paper's" in rule(manifest.table)
    assert all(f"**{name}**" in rule(manifest.table) for name in VERDICTS)


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


def test_infinite_numbers_are_compared_without_a_warning() -> None:
    runs, manifest = sweep({"a": [math.inf, 0.5, 0.6], "b": [math.inf, 0.7, 0.9]})
    pair = paired(runs, manifest, Layout.of(manifest)).iloc[0]
    assert pair["seeds"] == 3 and pair["diff"] == pytest.approx(25)
    assert math.isnan(pair["p"])
