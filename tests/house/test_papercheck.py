"""What experiments/papercheck says of printed numbers, against scipy and by hand."""

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from raysafl import Run, Sweep, Table
from raysafl.storage.manifest import Entry, Manifest

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2]))
    comparison = importlib.import_module("experiments.papercheck.comparison")
    judging = importlib.import_module("experiments.papercheck.judging")
    page = importlib.import_module("experiments.papercheck.page")
Claim, Comparison = comparison.Claim, comparison.Comparison
Compared = judging.Compared
ENTRIES = [(n0, p) for n0 in (0, 50, 1000) for p in (1, 10)]
FINAL = {(0, 1): 0.50, (0, 10): 0.90, (50, 1): 0.60, (50, 10): 0.91, (1000, 1): 0.80}
# Two seeds of each of three partitions, whose means are 40, 50 and 60 %.
DEALT = [0.39, 0.41, 0.49, 0.51, 0.58, 0.62]
PARTITIONS = [0, 0, 1, 1, 2, 2]


class Axes:
    """Stands for a sweep, of which a comparison asks for the axes alone."""

    axis_names = ("method",)


def methods(
    finals: dict[str, list[float]],
    paper: dict[Any, Any],
    partitions: list[int] | None = None,
    **options: Any,
) -> Any:
    """Lay runs of the axis `method`, with these accuracies by seed, beside printed numbers."""
    rows = [
        {"run_id": name, "replicate": i, "seed": i, "status": "finished", "final": x}
        | ({"partition_seed": partitions[i]} if partitions else {})
        for name, values in finals.items()
        for i, x in enumerate(values)
    ]
    manifest = Manifest(
        name="s",
        axes=["method"],
        entries=[Entry(run_id=name, labels={"method": name}) for name in finals],
        table=Table(rows=["method"], also=[]),
    )
    printed = {key: (mean, None) for key, mean in paper.items()}
    beside = Comparison(sweep=Axes(), paper=printed, **options)
    return Compared.of(beside, pd.DataFrame(rows), manifest)


def place(finals: list[float], mean: float, *more: Any, **options: Any) -> Any:
    """Return how one printed number is judged."""
    return methods({"a": finals}, {"a": mean}, *more, **options).entries.iloc[0]


def test_with_one_partition_a_printed_number_is_one_more_seed() -> None:
    # Ours are 49, 50 and 51: a further seed differs from the mean by sqrt(1 + 1 / 3).
    reach = stats.t.ppf(0.975, 2) * math.sqrt(4 / 3)
    inside, outside = (place([0.49, 0.50, 0.51], 50 + reach + x) for x in (-0.01, 0.01))
    assert (inside["verdict"], outside["verdict"]) == ("inside", "outside")
    assert inside["half.diff"] == pytest.approx(reach)
    assert inside["z"] == pytest.approx(-(reach - 0.01) / math.sqrt(4 / 3))
    assert math.isnan(inside["below"])


def test_a_printed_number_lies_among_partitions_by_hand() -> None:
    # within^2 is (2 + 2 + 8) / 3 = 4, MSB is 2 (100 + 0 + 100) / 2 = 200, so between^2
    # is 98, and the variance of our mean 200 / 6.
    entry = place(DEALT, 55, PARTITIONS, seeds=4)
    deviation = math.sqrt(98 + 4 / 4 + 200 / 6)
    assert entry["z"] == pytest.approx(-5 / deviation)
    assert entry["half.diff"] == pytest.approx(stats.t.ppf(0.975, 2) * deviation)
    assert (entry["verdict"], entry["below"]) == ("inside", pytest.approx(2 / 3))
    # With one seed each, nothing tells what is within, and so nothing is divided by n.
    for seeds in (1, 5):
        single = place([0.4, 0.5, 0.6], 55, [0, 1, 2], seeds=seeds)
        assert single["z"] == pytest.approx(-5 / math.sqrt(100 + 100 / 3))


def test_one_replicate_judges_nothing_and_no_number_has_no_verdict() -> None:
    entry = place([0.5], 50)
    assert entry["verdict"] == "" and math.isnan(entry["half.diff"])
    found = methods({"a": [0.4, 0.5], "b": [0.4, 0.5]}, {})
    assert found.entries["verdict"].tolist() == ["", ""] and judging.bias(found).empty


def test_the_bias_of_a_group_is_judged_as_one_number_over_the_same_replicates() -> None:
    # What one entry has too much, the other has too little: their mean hardly varies.
    finals = {"a": [0.40, 0.50, 0.60], "b": [0.62, 0.50, 0.41]}
    found = methods(finals, dict.fromkeys("ab", 51), [0, 1, 2])
    groups = judging.bias(found).set_index("group")
    assert groups.index.tolist() == ["all entries", "method = a", "method = b"]
    whole = groups.loc["all entries"]
    deviation = np.std([51, 50, 50.5], ddof=1) * math.sqrt(1 + 1 / 3)
    assert whole["diff"] == pytest.approx(np.mean([51, 50, 50.5]) - 51)
    assert whole["z"] == pytest.approx(whole["diff"] / deviation)
    assert whole["half"] == pytest.approx(stats.t.ppf(0.975, 2) * deviation)
    assert (whole["entries"], whole["lower"]) == (2, 1)
    assert groups.loc["method = a", "z"] == pytest.approx(found.entries["z"][0])


@pytest.fixture
def sweep(tiny: Run) -> Sweep:
    """Six entries: n0 samples at the server (0: none used), p classes."""
    runs = {
        (n0, p): tiny.replace({"data.server.n0": n0 or 60, "data.partition.p": p})
        for n0, p in ENTRIES
    }
    table = Table(rows=["n0"], columns=["p"], also=[])
    return Sweep("x", runs, axes=("n0", "p"), table=table)


def beside(sweep: Sweep, columns: dict[str, Any] | None = None, **options: Any) -> Any:
    """Lay two seeds of `FINAL` beside what a paper prints, the second 0.01 above the first.

    The entry (1000, 10) has not run.
    """
    manifest = sweep.manifest()
    rows = [
        {
            "run_id": entry.run_id,
            "replicate": r,
            "seed": r,
            "status": "finished",
            "reason": "",
            "config.replicates": "2",
            "final": FINAL[key] + 0.01 * r,
            "rounds_to_50": 100.0 - key[0] / 100,
        }
        for entry, key in zip(manifest.entries, ENTRIES, strict=True)
        if key in FINAL
        for r in range(2)
    ]
    runs = pd.DataFrame(rows).assign(**columns or {})
    return Compared.of(Comparison(sweep=sweep, **options), runs, manifest)


@pytest.mark.parametrize(
    ("claim", "told", "effect"),
    [
        ({"order": [{"n0": 50}, {"n0": 0}]}, "holds", (10 + 1) / 2),
        (
            {"order": [{"n0": 50}, {"n0": 0}], "margin": 5},
            "holds at 1 of 2 places",
            5.5,
        ),
        ({"order": [{"n0": 0}, {"n0": 50}]}, "does not hold", -5.5),
        ({"order": [{"n0": 1000}, {"n0": 50}, {"n0": 0}]}, "holds", 30),
        (
            {"order": [{"n0": 50}, {"n0": 0}], "within": 2},
            "holds at 1 of 2 places",
            5.5,
        ),
        ({"order": [{"p": 10, "n0": 0}, {"p": 1, "n0": 50}]}, "holds", 30),
        ({"where": {"n0": 50}, "least": 60, "most": 92}, "holds", 76),
        ({"where": {"n0": 50}, "most": 60}, "does not hold", 76),
        (
            {"order": [{"n0": 0}, {"n0": 1000}], "statistic": "rounds_to_50"},
            "holds",
            10,
        ),
        ({"order": [{"n0": 1000}, {"n0": 0}], "where": {"p": 10}}, "unknown", math.nan),
    ],
)
def test_a_claim_is_judged_at_every_place(
    sweep: Sweep, claim: dict[str, Any], told: str, effect: float
) -> None:
    own = Claim(text="", **claim)
    judged = judging.check_claim(own, beside(sweep, claims=[own]))
    assert judged.verdict == told
    assert judged.effect == pytest.approx(effect, nan_ok=True)


def test_a_claim_is_judged_only_where_its_entries_are_above_chance(
    sweep: Sweep,
) -> None:
    # Ten classes: (a - 0.1) / 0.9 is 0.1 at a = 0.19. Where p = 1, the entry n0 = 0 is
    # just below, so that place is not judged.
    level = [0.189, 0.189, 0.2, 0.2, *[0.8] * 6]
    claim = Claim(text="more", order=[{"n0": 50}, {"n0": 0}])
    found = beside(sweep, {"chance": 0.1, "last5": level}, claims=[claim])
    judged = judging.check_claim(claim, found)
    assert (judged.held, judged.places, judged.not_learnt) == (1, 1, 1)
    assert judged.effect == pytest.approx(1)  # 91 - 90, where p = 10
    text = page.comparison_page(found)
    assert "| more | `final` | holds, 1 not learnt | +1 |" in text
    bound = judging.check_claim(Claim(text="", where={"n0": 0}, least=10), found)
    assert (bound.verdict, bound.places, bound.not_learnt) == ("holds", 1, 1)


def test_a_claim_that_says_nothing_or_of_unknown_axes_is_refused(sweep: Sweep) -> None:
    for wrong in ({}, {"order": [{"n0": 1}]}, {"order": [{}, {}], "most": 1}):
        with pytest.raises(ValueError, match="needs either order"):
            Claim(text="x", **wrong)
    claim = Claim(text="x", where={"n": 1}, least=1)
    with pytest.raises(ValueError, match="unknown axis 'n': did you mean 'n0'"):
        judging.check_claim(claim, beside(sweep))


def test_improvements_are_differences_to_the_baseline_seed_by_seed(
    sweep: Sweep,
) -> None:
    # The first two rows are the baseline's where p = 1.
    final = [0.50, 0.41, 0.90, 0.91, 0.60, 0.61, 0.91, 0.92, 0.80, 0.81]
    more = {"final": final, "chance": 0.1, "last5": 0.55}
    found = beside(sweep, more, minus={"n0": 0})
    assert {entry.labels["n0"] for entry in found.manifest.entries} == {50, 1000}
    entries = found.entries.set_index(["label.n0", "label.p"])
    # 0.60 - 0.50 and 0.61 - 0.41
    assert entries.loc[(50, 1), "mean.final"] == pytest.approx((10 + 20) / 2)
    assert entries.loc[(50, 1), "std.final"] == pytest.approx(10 / math.sqrt(2))
    assert entries.loc[(1000, 10), "missing"] == 2
    # Whether an entry has learnt is seen from its accuracy, not from its improvement.
    assert entries.loc[(50, 1), "above_chance"] == pytest.approx(0.45 / 0.9)
    assert "minus that of the same seed's n0 = 0" in page.comparison_page(found)
    status = ["diverged", "diverged", *["finished"] * 8]
    lost = beside(sweep, {"status": status}, minus={"n0": 0}).entries
    assert lost["missing"].tolist() == [2, 0, 2, 2]


def test_the_nearest_reading_comes_first(sweep: Sweep) -> None:
    paper = {(n0, 1): (80.0, None) for n0 in (0, 50, 1000)}
    found = judging.readings(beside(sweep, paper=paper, readings=["n0"]))
    assert found["reading"].tolist() == ["n0 = 1000", "n0 = 50", "n0 = 0"]
    assert found["distance"].tolist() == pytest.approx([0.5, 19.5, 29.5])
    assert judging.readings(beside(sweep)).empty


def test_a_page_has_the_distance_beside_the_printed_spread(sweep: Sweep) -> None:
    # Ours are 50.5, 60.5 and 80.5 (p = 1), and 91.5; (1000, 10) has not run.
    paper = {
        (0, 1): (52.0, 0.3),
        (50, 1): (60.0, 0.5),
        (1000, 1): (80.0, None),
        (50, 10): (90.0, 0.7),
        (1000, 10): (95.0, 9.0),
    }
    claim = Claim(text="more help | more", order=[{"n0": 50}, {"n0": 0}])
    more = {"rounds_to_50": {(50, 1): (90.0, None)}}
    found = beside(sweep, paper=paper, more=more, claims=[claim], source="T, 1")
    total = judging.distance(found)
    assert total.entries == 4
    assert total.difference == pytest.approx((1.5 + 0.5 + 0.5 + 1.5) / 4)
    assert total.printed_std == pytest.approx((0.3 + 0.5 + 0.7) / 3)
    text = page.comparison_page(found)
    for line in (
        "is **1.00 percentage points** over 4 entries; the mean printed standard deviation "
        "is **0.50 percentage points**.",
        "| 0 | 1 | 50.50 ± 0.71 | 52.00 ± 0.30 | -1.50 ± 11.00 | -1.73 |",
        "| n0 = 50, p = 1 | `rounds_to_50` | 99.50 ± 0.00 | 90.00 | +9.50 |",
        "| more help \\| more | `final` | holds | +5.5 |",
        "x: beside T, 1",
    ):
        assert line in text, line


def test_a_printed_number_finds_its_entry_in_spite_of_rounding() -> None:
    printed = comparison.Printed({"p": 0.3}, 50)
    assert printed.is_of({"p": 0.1 + 0.2}) and not printed.is_of({"p": 0.4})
    assert [p.labels for p in methods({"a": [0.5]}, {"z": 1}).unplaced] == [
        {"method": "z"}
    ]
