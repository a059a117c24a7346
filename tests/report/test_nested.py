"""The spread between and within partitions, against sums by hand, scipy and simulation."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from raysafl.report.analysis.entries import nested, units_of


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
    runs = pd.DataFrame(
        {
            "run_id": list("aaaab"),
            "seed": [0, 1, 2, 3, 0],
            "partition_seed": [0, 1] * 2 + [0],
        }
    )
    assert units_of(runs).name == "partition"
    assert units_of(runs[4:]).name == units_of(runs[:0]).name == "seed"
    assert units_of(runs.assign(partition_seed=0)).name == "seed"
