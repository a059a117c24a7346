"""What a report says of a paper: claims, improvements over a baseline, readings, more numbers."""

import io
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.drawn import study_of
from helpers.reports import markdown
from rich.console import Console
from rich.table import Table as Screen

from raysafl import Claim, Run, Sweep, Table
from raysafl.report.analysis.baseline import improvements
from raysafl.report.analysis.claims import CheckedClaim, check_claim
from raysafl.report.analysis.entries import aggregate, compare, distance, readings
from raysafl.report.figures.heatmap import heatmap
from raysafl.report.pages.screen import screen
from raysafl.storage.manifest import Manifest, Printed
from raysafl.storage.store import Store

ENTRIES = [(n0, p) for n0 in (0, 50, 1000) for p in (1, 10)]
FINAL = {(0, 1): 0.50, (0, 10): 0.90, (50, 1): 0.60, (50, 10): 0.91, (1000, 1): 0.80}


@pytest.fixture
def sweep(tiny: Run) -> Sweep:
    """Six entries: n0 samples at the server (0: none used), p classes."""
    runs = {
        (n0, p): tiny.replace({"data.server.n0": n0 or 60, "data.partition.p": p})
        for n0, p in ENTRIES
    }
    return Sweep("x", runs, axes=("n0", "p"))


def runs_of(manifest: Manifest, seeds: int = 2, **columns: Any) -> pd.DataFrame:
    """FINAL, and 0.01 more for each further seed; the entry (1000, 10) has not run."""
    return pd.DataFrame(
        [
            {
                "run_id": entry.run_id,
                "replicate": r,
                "seed": r,
                "status": "finished",
                "reason": "",
                "config.replicates": str(seeds),
                "final": FINAL[key] + 0.01 * r,
                "rounds_to_50": 100.0 - key[0] / 100,
                **columns,
            }
            for entry in manifest.entries
            if (key := (entry.labels["n0"], entry.labels["p"])) in FINAL  # type: ignore[comparison-overlap]
            for r in range(seeds)
        ]
    )


def shown(sweep: Sweep, **table: Any) -> Manifest:
    table = {"rows": ["n0"], "columns": ["p"], "also": []} | table
    return sweep.manifest().replace(table=Table(**table))


def verdict(sweep: Sweep, claim: Claim, **table: Any) -> CheckedClaim:
    manifest = shown(sweep, **table).replace(claims=[claim])
    return check_claim(claim, aggregate(runs_of(manifest), manifest), manifest)


@pytest.mark.parametrize(
    ("claim", "told", "effect"),
    [
        (Claim(text="", order=[{"n0": 50}, {"n0": 0}]), "holds", (10 + 1) / 2),
        (
            Claim(text="", order=[{"n0": 50}, {"n0": 0}], margin=5),
            "holds at 1 of 2 places",
            5.5,
        ),
        (Claim(text="", order=[{"n0": 0}, {"n0": 50}]), "does not hold", -5.5),
        (Claim(text="", order=[{"n0": 1000}, {"n0": 50}, {"n0": 0}]), "holds", 30),
        (
            Claim(text="", order=[{"n0": 1000}, {"n0": 0}], where={"p": 10}),
            "unknown",
            None,
        ),
        (
            Claim(text="", order=[{"n0": 50}, {"n0": 0}], within=2),
            "holds at 1 of 2 places",
            5.5,
        ),
        (Claim(text="", order=[{"p": 10, "n0": 0}, {"p": 1, "n0": 50}]), "holds", 30),
        (Claim(text="", where={"n0": 50}, least=60, most=92), "holds", 75.5),
        (Claim(text="", where={"n0": 50}, most=60), "does not hold", 75.5),
        (
            Claim(text="", order=[{"n0": 0}, {"n0": 1000}], statistic="rounds_to_50"),
            "holds",
            10,
        ),
    ],
)
def test_a_claim_is_judged_at_every_place(
    sweep: Sweep, claim: Claim, told: str, effect: float | None
) -> None:
    judged = verdict(sweep, claim)
    assert judged.verdict == told
    if effect is None:
        assert math.isnan(judged.effect) and judged.places == 0 and judged.unknown == 1
    else:
        # the second seed is 1 % above the first
        shift = 0.5 if not claim.order else 0.0
        assert judged.effect == pytest.approx(effect + shift)


def test_a_claim_is_judged_only_where_its_entries_are_above_chance(
    sweep: Sweep,
) -> None:
    # Ten classes: (a - 0.1) / 0.9 is 0.1 at a = 0.19. Where p = 1, the entry n0 = 0 is
    # just below, so that place is not judged.
    level = {(0, 1): 0.189, (0, 10): 0.2, (50, 1): 0.8, (50, 10): 0.8, (1000, 1): 0.8}
    manifest = shown(sweep)
    runs = runs_of(manifest, chance=0.1)
    labels = manifest.labels()
    runs["last5"] = [
        level[(labels[i]["n0"], labels[i]["p"])]  # type: ignore[index]
        for i in runs["run_id"]
    ]

    def judged(claim: Claim, runs: pd.DataFrame) -> CheckedClaim:
        claimed = manifest.replace(claims=[claim])
        return check_claim(claim, aggregate(runs, claimed), claimed)

    claim = Claim(text="more", order=[{"n0": 50}, {"n0": 0}])
    entries = aggregate(runs, manifest).set_index(["label.n0", "label.p"])
    assert entries.loc[(0, 1), "above_chance"] == pytest.approx(0.089 / 0.9)
    assert entries.loc[(50, 1), "above_chance"] == pytest.approx(0.7 / 0.9)
    found = judged(claim, runs)
    assert (found.verdict, found.held, found.places, found.not_learnt) == (
        "holds",
        1,
        1,
        1,
    )
    assert found.effect == pytest.approx(1)  # 91 - 90, where p = 10
    text = markdown(runs, manifest.replace(claims=[claim]))
    assert "| more | `final` | holds, 1 not learnt | +1 |" in text

    at_one = judged(claim.replace(where={"p": 1}), runs)
    assert at_one.verdict == "not learnt" and math.isnan(at_one.effect)
    within = judged(claim.replace(where={"p": 1}, within=50), runs)
    bound = judged(Claim(text="", where={"n0": 0}, least=10), runs)
    assert within.verdict == "not learnt"
    assert (bound.verdict, bound.places, bound.not_learnt) == ("holds", 1, 1)
    # Times are compared only where there is something to reach, too.
    times = judged(claim.replace(statistic="rounds_to_50"), runs)
    assert (times.verdict, times.places, times.not_learnt) == ("does not hold", 1, 1)
    # Without the number of classes, every place is judged.
    assert judged(claim, runs.assign(chance=math.nan)).places == 2
    assert judged(claim, runs.drop(columns="chance")).places == 2


def test_improvements_are_judged_by_the_accuracy_below_them(sweep: Sweep) -> None:
    manifest = shown(sweep, minus={"n0": 0})
    runs = runs_of(manifest, chance=0.1, last5=0.55)
    own, rest = improvements(runs, manifest)
    entries = aggregate(own, rest).set_index(["label.n0", "label.p"])
    assert entries.loc[(50, 1), "mean.final"] == pytest.approx(10)
    assert entries.loc[(50, 1), "above_chance"] == pytest.approx(0.45 / 0.9)


def test_a_claim_that_says_nothing_or_of_unknown_axes_is_refused(sweep: Sweep) -> None:
    for wrong in (
        {},
        {"order": [{"n0": 1}]},
        {"order": [{"n0": 1}, {"n0": 2}], "most": 1},
    ):
        with pytest.raises(ValueError, match="needs either order"):
            Claim(text="x", **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown axis 'n': did you mean 'n0'"):
        verdict(sweep, Claim(text="x", where={"n": 1}, least=1))


def test_improvements_are_differences_to_the_baseline_seed_by_seed(
    sweep: Sweep,
) -> None:
    manifest = shown(sweep, minus={"n0": 0})
    runs = runs_of(manifest)
    late = runs["replicate"] == 1
    runs.loc[late & (runs["run_id"] == manifest.entries[0].run_id), "final"] = (
        0.41  # base, p = 1
    )
    own, rest = improvements(runs, manifest)
    assert {entry.labels["n0"] for entry in rest.entries} == {50, 1000}
    entries = aggregate(own, rest).set_index(["label.n0", "label.p"])
    # 0.60-0.50, 0.61-0.41
    assert entries.loc[(50, 1), "mean.final"] == pytest.approx((10 + 20) / 2)
    assert entries.loc[(50, 1), "std.final"] == pytest.approx(10 / math.sqrt(2))
    assert entries.loc[(50, 10), "std.final"] == pytest.approx(0, abs=1e-9)
    assert entries.loc[(1000, 10), "missing"] == 2


def test_without_its_baseline_an_improvement_is_missing(sweep: Sweep) -> None:
    manifest = shown(sweep, minus={"n0": 0})
    runs = runs_of(manifest)
    runs.loc[runs["run_id"] == manifest.entries[0].run_id, "status"] = "diverged"
    own, rest = improvements(runs, manifest)
    entries = aggregate(own, rest).set_index(["label.n0", "label.p"])
    assert entries.loc[(50, 1), "missing"] == 2 and math.isnan(
        entries.loc[(50, 1), "mean.final"]
    )
    assert entries.loc[(50, 10), "missing"] == 0


def test_without_minus_nothing_changes(sweep: Sweep) -> None:
    manifest = shown(sweep)
    runs = runs_of(manifest)
    own, same = improvements(runs, manifest)
    assert own is runs and same is manifest
    nothing, _ = improvements(runs.iloc[:0], shown(sweep, minus={"n0": 0}))
    assert nothing.empty


def test_the_nearest_reading_comes_first(sweep: Sweep) -> None:
    full = Sweep(
        "x",
        sweep.runs,
        axes=("n0", "p"),
        paper={(n0, 1): (80.0, None) for n0 in (0, 50, 1000)},
    )
    manifest = full.manifest().replace(
        table=full.manifest().table.replace(readings=["n0"], also=[])
    )
    found = readings(
        compare(aggregate(runs_of(manifest), manifest), manifest), manifest
    )
    assert found["reading"].tolist() == ["n0 = 1000", "n0 = 50", "n0 = 0"]
    assert found["distance"].tolist() == pytest.approx([0.5, 19.5, 29.5])
    assert readings(pd.DataFrame(), shown(sweep)).empty


def test_a_table_has_its_distance_beside_the_printed_spread(sweep: Sweep) -> None:
    # Ours are 50.5, 60.5 and 80.5 (p = 1), and 91.5; (1000, 10) has not run.
    paper = {
        (0, 1): (52.0, 0.3),
        (50, 1): (60.0, 0.5),
        (1000, 1): (80.0, None),
        (50, 10): (90.0, 0.7),
        (1000, 10): (95.0, 9.0),
    }
    full = Sweep("x", sweep.runs, axes=("n0", "p"), paper=paper)
    table = full.manifest().table.replace(also=["last5_std"])
    manifest = full.manifest().replace(table=table)
    runs = runs_of(manifest, last5_std=0.02)
    found = distance(compare(aggregate(runs, manifest), manifest), manifest)
    assert found.entries == 4
    assert found.difference == pytest.approx((1.5 + 0.5 + 0.5 + 1.5) / 4)
    assert found.printed_std == pytest.approx((0.3 + 0.5 + 0.7) / 3)
    line = (
        "Distance to the paper: the mean absolute difference of `final` is **1.00 percentage "
        "points** over 4 entries; the mean printed standard deviation is **0.50 percentage "
        "points**."
    )
    text = markdown(runs, manifest)
    assert line in text
    # Each entry has ours, the printed number, the difference and its place.
    row = "| 0 | 1 | 2 | 50.50 ± 0.71 | 6.35 | 52.00 ± 0.30 | -1.50 ± 11.00 | -1.73 | inside |"
    assert row in text

    without = manifest.replace(paper=[])
    assert "Distance" not in markdown(runs, without)


def test_other_printed_numbers_keep_their_unit(sweep: Sweep) -> None:
    claim = Claim(text="more help | more", order=[{"n0": 50}, {"n0": 0}])
    full = Sweep(
        "x",
        sweep.runs,
        axes=("n0", "p"),
        more={"rounds_to_50": {(50, 1): (90.0, None)}},
        claims=[claim],
        table=Table(
            rows=["n0"], columns=["p"], also=["final"], readings=["n0"], minus={}
        ),
        paper={(50, 1): (61.0, 0.1)},
    )
    manifest = full.manifest()
    assert Manifest.from_json(manifest.to_json()) == manifest
    text = markdown(runs_of(manifest), manifest)
    assert "| n0 = 50, p = 1 | `rounds_to_50` | 99.50 ± 0.00 | 90.00 | +9.50 |" in text
    assert "`rounds_to_50`: 9.5 from the paper's in the mean over 1 entry." in text
    assert "| more help \\| more | `final` | holds | +5.5 |" in text
    assert "## Readings" in text


def test_a_table_of_improvements_says_so(sweep: Sweep, tmp_path: Path) -> None:
    manifest = shown(sweep, minus={"n0": 0})
    text = markdown(runs_of(manifest), manifest)
    assert "minus that of the same seed's n0 = 0" in text
    assert "| 50 | 10.00 ± 0.00 | 1.00 ± 0.00 |" in text and "\n| 0 |" not in text
    of_rows = runs_of(manifest)
    (figure,) = heatmap(study_of(manifest, runs=of_rows))
    (table,) = screen(of_rows, manifest).renderables
    for said in (figure.get_label(), str(table.caption)):  # type: ignore[union-attr]
        assert "minus that of the same seed's n0 = 0" in said
    assert isinstance(table, Screen) and table.row_count == 2
    store = Store(tmp_path)
    store.create()
    store.write_manifest(manifest)
    assert store.manifest().table.minus == {"n0": 0}


def test_a_sweep_over_one_axis_takes_plain_labels(tiny: Run) -> None:
    sweep = Sweep("x", {1: tiny}, axes=("a",), paper={1: (50.0, None)})
    (printed,) = sweep.manifest().paper
    assert printed.labels == {"a": 1}


def test_smaller_runs_are_never_laid_beside_printed_numbers(
    tiny: Run, tmp_path: Path
) -> None:
    full = Sweep(
        "x",
        {(n0, p): tiny.replace({"data.server.n0": n0 or 60, "data.partition.p": p})
         for n0, p in ENTRIES},
        axes=("n0", "p"),
        table=Table(rows=["n0"], columns=["p"], also=["final"], readings=["n0"], source="T, 1"),
        paper={(50, 1): (61.25, 0.1)},
        more={"rounds_to_50": {(50, 1): (91.75, None)}},
        claims=[Claim(text="more helps", order=[{"n0": 50}, {"n0": 0}])],
    )  # fmt: skip
    at_scale = full.manifest()
    assert "61.25" in at_scale.to_json() and "91.75" in at_scale.to_json()
    for manifest in (full.at("smoke").manifest(), at_scale.replace(scale="small")):
        runs = runs_of(manifest)
        assert "61.25" not in manifest.to_json() and "91.75" not in manifest.to_json()
        assert Manifest.from_json(manifest.to_json()) == manifest
        text = markdown(runs, manifest)
        assert "read trends, not numbers" in text and "more helps" in text
        # ours are still shown
        assert "99.5 ± 0" in text and "`rounds_to_50`" in text
        for word in (
            "61.25",
            "91.75",
            "(paper",
            "| paper |",
            "Δ",
            "inside",
            "outside",
        ):
            assert word not in text.split("## Methods")[0], word
        assert "61.25" not in shown_on_screen(runs, manifest)
    assert "paper 61.25" in shown_on_screen(runs_of(at_scale), at_scale)


def shown_on_screen(runs: pd.DataFrame, manifest: Manifest) -> str:
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(screen(runs, manifest, 200))
    return console.export_text()


def test_a_baseline_is_found_by_a_label_of_another_type_of_number(sweep: Sweep) -> None:
    manifest = shown(sweep)
    for entry in manifest.entries:
        entry.labels["n0"] = float(entry.labels["n0"])  # type: ignore[arg-type]
    own = manifest.replace(table=manifest.table.replace(minus={"n0": 0}))
    _, rest = improvements(runs_of(own), own)
    assert {entry.labels["n0"] for entry in rest.entries} == {50.0, 1000.0}


def test_a_failed_baseline_is_told_with_its_reason_and_what_it_leaves_alone(
    sweep: Sweep,
) -> None:
    manifest = shown(sweep, minus={"n0": 0})
    runs = runs_of(manifest)
    lost = runs["run_id"] == manifest.entries[0].run_id
    runs.loc[lost, ["status", "reason"]] = ["failed", "no memory"]
    text = markdown(runs, manifest)
    part = text.partition("## Replicates that have not finished")[2].partition("## ")[0]
    # Those of n0 = 50 and n0 = 1000 at p = 1 have finished without it.
    assert "n0 = 0, p = 1: 2 replicates failed: no memory" in part
    assert "- 4 replicates without a finished baseline" in part
    assert "n0 = 50" not in part and "1 run of 6 missing: n0 = 1000, p = 10" in part


def test_a_claim_is_judged_where_a_label_is_none_as_well(sweep: Sweep) -> None:
    manifest = shown(sweep)
    runs = runs_of(manifest)
    for entry in manifest.entries:
        entry.labels["p"] = None if entry.labels["p"] == 1 else 10
    claim = Claim(text="", order=[{"n0": 50}, {"n0": 0}])
    found = check_claim(claim, aggregate(runs, manifest), manifest)
    assert found.places == 2


def test_a_reading_none_has_a_distance_as_others_have(sweep: Sweep) -> None:
    manifest = shown(sweep, rows=["n0"], also=[], readings=["n0"])
    runs, paper = runs_of(manifest), [Printed(labels={"p": 1}, mean=80.0)]
    for entry in manifest.entries:
        entry.labels["n0"] = entry.labels["n0"] or None
    manifest = manifest.replace(paper=paper)
    entries = compare(aggregate(runs, manifest), manifest)
    found = readings(entries, manifest)["reading"].tolist()
    assert found == ["n0 = 1000", "n0 = 50", "n0 = None"]
