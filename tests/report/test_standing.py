"""Which entries are best, and how methods stand over all settings."""

import itertools
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from raysafl.report.analysis.numbers import Numbers
from raysafl.report.analysis.standing import Standing
from raysafl.report.pages.markdown import markdown
from raysafl.report.pages.results import results_document
from raysafl.storage.manifest import Entry, Manifest, Table

METHODS = ("FedAvg", "SAFARI", "FSL")
SEEDS = 5
STATISTICS = ("final", "last10", "best", "after_server", "final_loss")


def made(
    values: Mapping[tuple[str, ...], np.ndarray],
    axes: tuple[str, ...] = ("setting", "algorithm"),
    statistic: str = "final",
) -> tuple[pd.DataFrame, Manifest]:
    """The table of runs and the manifest of a sweep with these values of each replicate."""
    entries = [
        Entry(run_id=f"{k:012x}", labels=dict(zip(axes, key, strict=True)))
        for k, key in enumerate(values)
    ]
    rows = [
        {
            "run_id": entry.run_id,
            "status": "finished",
            "reason": "",
            "replicate": seed,
            "seed": seed,
            **dict.fromkeys(STATISTICS, np.nan),
            statistic: value,
            **{f"label.{axis}": label for axis, label in entry.labels.items()},
        }
        for entry, own in zip(entries, values.values(), strict=True)
        for seed, value in enumerate(own)
    ]
    table = Table(rows=list(axes), statistic=statistic)
    manifest = Manifest(name="made", axes=list(axes), entries=entries, table=table)
    return pd.DataFrame(rows), manifest


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


def test_an_entry_is_told_apart_from_the_best_as_scipys_paired_test_does(
    values: dict[tuple[str, ...], np.ndarray],
) -> None:
    runs, manifest = made(values)
    standing = Numbers.of(runs, manifest).standing
    ids = dict(zip(values, (e.run_id for e in manifest.entries), strict=True))
    assert 4 < len(standing.close) < 12
    for setting in "abcd":
        first = max(METHODS, key=lambda m: values[(setting, m)].mean())
        assert ids[(setting, first)] in standing.best
        for method in METHODS:
            best, own = values[(setting, first)], values[(setting, method)]
            p = 1.0 if method == first else stats.ttest_rel(own, best).pvalue
            assert (ids[(setting, method)] in standing.close) == (p >= 0.05)


def test_means_and_ranks_are_over_all_settings(
    values: dict[tuple[str, ...], np.ndarray],
) -> None:
    runs, manifest = made(values)
    standing = Numbers.of(runs, manifest).standing
    assert standing.settings == 4
    frame = standing.methods.set_index("label.algorithm")
    means = {m: [100 * values[(s, m)].mean() for s in "abcd"] for m in METHODS}
    places = {
        s: stats.rankdata([-values[(s, m)].mean() for m in METHODS]) for s in "abcd"
    }
    for k, method in enumerate(METHODS):
        assert frame.loc[method, "mean"] == pytest.approx(np.mean(means[method]))
        rank = np.mean([places[s][k] for s in "abcd"])
        assert frame.loc[method, "rank"] == pytest.approx(rank)
    assert frame["rank"].is_monotonic_increasing


def test_where_lower_is_better_the_lowest_is_best(
    values: dict[tuple[str, ...], np.ndarray],
) -> None:
    losses = {key: 1 - own for key, own in values.items()}
    ours = Numbers.of(*made(values)).standing
    theirs = Numbers.of(*made(losses, statistic="final_loss")).standing
    assert theirs.best == ours.best and theirs.close == ours.close


def test_a_setting_that_a_method_has_not_finished_counts_for_none(
    values: dict[tuple[str, ...], np.ndarray],
) -> None:
    runs, manifest = made(values)
    lost = manifest.entries[-1].run_id
    runs = runs[runs["run_id"] != lost]
    standing = Numbers.of(runs, manifest).standing
    assert standing.settings == 3
    assert len(standing.best) == 4


def test_without_an_axis_of_methods_the_entries_themselves_stand_in_line() -> None:
    rates = {("0.1",): np.array([0.8, 0.81]), ("0.2",): np.array([0.9, 0.92])}
    standing = Numbers.of(*made(rates, axes=("lr",))).standing
    assert list(standing.methods["label.lr"]) == ["0.2", "0.1"]


def test_with_one_seed_nothing_is_told_apart(
    values: dict[tuple[str, ...], np.ndarray],
) -> None:
    runs, manifest = made({key: own[:1] for key, own in values.items()})
    standing = Numbers.of(runs, manifest).standing
    assert len(standing.best) == 4 and len(standing.close) == 12


def test_the_answer_comes_first_and_the_best_entries_are_bold(
    values: dict[tuple[str, ...], np.ndarray],
) -> None:
    numbers = Numbers.of(*made(values))
    text = markdown(results_document(numbers))
    assert text.index("## Answer") < text.index("## Table")
    first = numbers.standing.methods["label.algorithm"].iloc[0]
    assert f"**{first}** has the best mean rank over 4 settings by `final`" in text
    table = text.partition("## Table")[2].partition("## ")[0]
    assert table.count("**") == 2 * len(numbers.standing.close)


def test_a_sweep_of_one_run_has_no_answer() -> None:
    numbers = Numbers.of(*made({("a", "FedAvg"): np.array([0.5, 0.6])}))
    assert "## Answer" not in markdown(results_document(numbers))
    assert isinstance(numbers.standing, Standing)
    assert list(itertools.chain(numbers.standing.close)) == [
        numbers.manifest.entries[0].run_id
    ]
