"""FAST's experiments: the known cohorts, and the comparison with the authors' curves."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.experiments import FOLDER, forget_experiments
from helpers.fast_authors import cohort

from raysafl.algorithms import Key
from raysafl.data import FashionMnist
from raysafl.report.pages.document import Strong
from raysafl.report.wording import NOTHING
from raysafl.storage.store import Store


@pytest.fixture
def fast(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    forget_experiments()
    yield lambda name: importlib.import_module(f"experiments.fast.{name}")
    forget_experiments()


def pages() -> str:
    """Return the text of all pages on FAST's published curves."""
    files = sorted((FOLDER.parent / "docs").glob("fast*.md"))
    return "\n".join(file.read_text() for file in files)


@pytest.mark.parametrize("law", ["Beta", "Gamma", "Weibull"])
def test_the_known_cohorts_follow_the_deal_of_the_images(law: str, fast: Any) -> None:
    labels = FashionMnist().load().train.y
    legacy = np.random.RandomState(365)
    fast("fedlab").FedLabDirichlet(alpha=0.1).deal(labels, 10, 100, legacy)
    policy = fast("known_cohorts").KnownCohorts(law=law, alpha=0.1)
    came = set()
    for t in range(1000):
        expected = cohort(law, legacy)
        _, found = policy.pick(None, 100, Key(0, t), None)
        assert found.ids == sorted(expected)
        came |= set(expected)
    # As a computation of somebody else's found.
    assert len(came) == {"Beta": 56, "Gamma": 25, "Weibull": 66}[law]


def test_the_deviation_of_one_run_is_that_of_the_authors_pairs(fast: Any) -> None:
    published = fast("authors_curves")
    curves = published.authors_curves()
    theirs = published.window_means(curves, [*published.ENTRY, "method"])
    deviation, pairs = published.deviations(theirs)
    # The spreads of the pairs are a computation of somebody else's, from one or two pairs
    # fewer; with alpha = 0.05 FedAvgM is 3.2, 2.7 and 2.4 points higher in the mean.
    spreads = {0.05: [2.6, 2.8, 3.1], 0.1: [2.4, 1.4, 1.3]}
    means = {0.05: [3.2, 2.7, 2.4], 0.1: [0, 0, 0]}
    for alpha, spread in spreads.items():
        assert pairs.loc[alpha].tolist() == [25] * 3
        expected = np.hypot(spread, np.array(means[alpha]) / np.sqrt(2))
        np.testing.assert_allclose(deviation.loc[alpha], expected, rtol=0.15)


def test_the_pages_show_what_the_scripts_print(
    fast: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = pages()
    out = ["--out", str(tmp_path)]
    commands = [("authors_curves", out), ("slips", list[str]())]
    for name, data in (
        ("curves_fashion_mnist", "fashion"),
        ("table3_fashion_mnist", "fashion"),
        ("curves_cifar10", "cifar10"),
    ):
        folder = FOLDER.parent / "results" / "measured" / f"fast_{name}"
        commands.append(("against_authors", [str(folder), "--data", data, *out]))
        store = Store(folder)
        number = f"{len(store.ledger())} of the {len(store.manifest().entries)} runs"
        assert number in page
    for script, options in commands:
        fast(script).main(options)
        printed = capsys.readouterr().out.splitlines()
        told = [line for line in printed if line.startswith("|")]
        assert len(told) > (60 if script == "authors_curves" else 3)
        assert [line for line in told if line not in page] == []
    assert (tmp_path / "authors_curves.png").stat().st_size > 10_000


@pytest.mark.parametrize("data", ["fashion", "cifar10"])
def test_curves_that_are_the_authors_lie_inside_and_shifted_ones_do_not(
    fast: Any, tmp_path: Path, data: str
) -> None:
    against = fast("against_authors")
    published = fast("authors_curves")
    curves = published.authors_curves(data)
    theirs = published.window_means(
        curves, [*published.ENTRY, "method"], against.WINDOWS
    )
    deviation, _ = published.deviations(theirs)
    chosen = (curves["alpha"] == 0.1) & curves["q"].isin(["0", "0.5"])
    same = curves[chosen & curves["method"].isin(against.SAME_LAW)]
    same = same.assign(deal=same["method"])
    for shift, verdict in ((0.0, "inside"), (0.06, "outside")):
        ours = same.assign(value=same["value"] + shift)
        table = against.compared(ours, theirs, deviation)
        # Three distributions, two values of q, three windows.
        assert len(table) == 18 and set(table["verdict"]) == {verdict}
        assert set(table["distance"].astype(float).round(1)) == {100 * shift}
    against.draw(same, curves, deviation, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    adaptive = same.head(2).assign(
        q="Ada.(7)", run_id="a", step=[10, 1000], snapshots=[3, 297]
    )
    probabilities = against.compared_probabilities(adaptive, data).to_dict("records")
    shares = [row["our share of snapshots"] for row in probabilities]
    assert shares == ["0.300"] * (data == "fashion")
    assert all(0.1 < float(row["authors' mean q"]) < 0.9 for row in probabilities)


def test_gains_and_differences_of_invented_curves_are_judged_by_their_spread(
    fast: Any,
) -> None:
    published = fast("authors_curves")
    window = (900, 999)
    # FedAvg gains 4 points at q = 0.5 and 1 at q = 0.1; FedAvgM is FedAvg and a half.
    accuracy = {"0": 80.0, "0.1": 81.0, "0.5": 84.0}
    values = {
        (0.1, "Beta", q, method): value
        + {"fedavg": 0, "fedavgm": 0.5, "fedprox": 3}[method]
        for q, value in accuracy.items()
        for method in published.METHODS
    }
    index = pd.MultiIndex.from_tuples(values, names=[*published.ENTRY, "method"])
    theirs = pd.DataFrame({window: list(values.values())}, index=index)
    deviation = pd.DataFrame({window: {0.1: 1.0}})
    first = published.comparisons(theirs, deviation).iloc[0]
    # Two runs are told apart by more than 2 sqrt(2) = 2.83 points, and the mean of two
    # gains over a run that they share has the deviation sqrt(1 + 1/2).
    assert first["gains beyond chance"] == "1 of 2"
    assert first["mean gain of q > 0"] == "+2.5 ± 2.4"
    assert first["best q"] == "0.5 (84.0)"
    assert first["not told apart from it"] == "0 of 2"
    prox, averaged = published.against_fedavg(theirs, deviation).to_dict("records")
    # FedAvg's law lies a quarter of a point above its one run.
    assert prox["mean difference"] == "+2.8 ± 0.0"
    assert prox["single entries beyond chance"] == 3
    assert averaged["mean difference"] == "+0.5 ± 0.0"
    assert averaged["single entries beyond chance"] == 0

    def gain(points: str, is_beyond_chance: bool = False) -> str:
        return Strong(points) if is_beyond_chance else points

    row = published.gains_by_entry(theirs, deviation).iloc[0]
    assert row["chance"] == "± 2.8"
    assert [row["q = 0.1"], row["q = 0.5"]] == [gain("+1.0"), gain("+4.0", True)]
    assert row["q = Ada.(7)"] == NOTHING
    # The mean of two runs has half of a run's variance: 2 sqrt(1 + 1/2) = 2.45.
    row = published.fedprox_by_entry(theirs, deviation).iloc[0]
    assert row["chance"] == "± 2.4"
    assert [row["q = 0"], row["q = 0.5"]] == [gain("+2.8", True)] * 2
    assert row["q = 1"] == NOTHING


def test_the_change_of_a_slip_is_that_of_its_runs(fast: Any, tmp_path: Path) -> None:
    slips = fast("slips")
    published = fast("authors_curves")
    curves = published.authors_curves()
    theirs = published.window_means(curves, [*published.ENTRY, "method"], slips.WINDOWS)
    deviation, _ = published.deviations(theirs)
    rounds = np.arange(0, 600)
    tested = np.where(rounds % 10 == 9, 0.7 + rounds / 6000, np.nan)
    code = pd.DataFrame(
        {"run_id": "a", "replicate": 0, "round": rounds, "test_accuracy": tested}
    )
    slip = slips.SLIPS[0]
    found = [
        slips.Pair(slip, "Weibull", q, code, code.assign(test_accuracy=tested + by))
        for q, by in ((0, 0.02), (0.5, 0.04))
    ]
    table = slips.changes_by_window(found, theirs, deviation)
    assert list(table["change"]) == ["+2.0", "+2.0", "+4.0", "+4.0"]
    # The tests after rounds 100, 110, ..., 300 have the mean 0.7 + 199 / 6000.
    assert table["ours by the code"][0] == "73.3"
    assert table["ours as printed"][0] == "75.3"
    assert table["authors"][0] == "76.0, 77.8"
    # A run that was stopped after 400 rounds has completed one window of two.
    early = [found[0]._replace(printed=code[code["round"] < 400])]
    only = slips.changes_by_window(early, theirs, deviation)
    assert list(only["rounds"]) == ["100 to 300"]
    one = deviation[slips.WINDOWS[0]][slips.ALPHA]
    assert table["chance"][0] == f"± {2 * np.sqrt(2) * one:.1f}"
    slips.draw(found, curves, tmp_path / "slips.png")
    assert (tmp_path / "slips.png").stat().st_size > 10_000


def test_a_mean_change_is_over_the_last_five_tests_of_all_seeds(fast: Any) -> None:
    slips = fast("slips")
    rounds = np.tile(np.arange(10), 2)
    seed = np.repeat([0, 1], 10)
    code = pd.DataFrame({"replicate": seed, "round": rounds, "test_accuracy": 0.5})
    found = []
    for q, by in ((0, 0.02), (0.5, 0.04)):
        # Only one of two seeds changes, and before the last five tests it changes much.
        moved = 0.5 + np.where(rounds < 5, 0.3, 2 * by) * (seed == 1)
        printed = code.assign(test_accuracy=moved)
        found.append(slips.Pair(slips.SLIPS[0], "Weibull", q, code, printed))
    row = slips.mean_changes(found).iloc[0]
    # Two changes of 2 and 4 points: the standard error is 1, and t with one degree 12.7.
    assert row["mean change"] == "+3.0 ± 12.7" and row["entries"] == 2
