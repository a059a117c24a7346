"""Intervals and tests against scipy's own functions on samples, and by hand."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from raysafl.report.analysis.evidence import (
    estimated,
    holm,
    paired,
)
from raysafl.report.analysis.layout import Layout
from raysafl.storage.manifest import Entry, Manifest, Table

SAMPLES = st.lists(st.floats(-100, 100), min_size=2, max_size=7).filter(
    lambda x: np.ptp(x) > 1e-3
)


def column(*values: float) -> Any:
    return np.array(values, float)


# Two seeds of each of three partitions, whose means are 40, 50 and 60 %.
DEALT = [0.39, 0.41, 0.49, 0.51, 0.58, 0.62]
PARTITIONS = [0, 0, 1, 1, 2, 2]


@given(SAMPLES)
@settings(max_examples=50, deadline=None)
def test_intervals_are_those_that_scipy_finds_in_the_samples(
    a: list[float],
) -> None:
    one = stats.ttest_1samp(a, 0).confidence_interval(0.95)
    mine = estimated(*sweep({"a": [x / 100 for x in a]}))["half.mean"][0]
    assert mine == pytest.approx((one.high - one.low) / 2, rel=1e-6)


def sweep(
    finals: dict[str, list[float]],
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
    )


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
    runs, manifest = sweep(finals, PARTITIONS)
    pair = paired(runs, manifest, Layout.of(manifest)).iloc[0]
    test = stats.ttest_1samp([40, 50, 60], 0)
    assert pair["seeds"] == 3 and pair["p"] == pytest.approx(test.pvalue)
