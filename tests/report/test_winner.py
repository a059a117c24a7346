"""The winner of a search: which run is best, by what, and how good it is on held-out data."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.reports import markdown, on_screen
from helpers.scored import made
from scipy import stats

from raysafl.core.record import further_column
from raysafl.report.analysis.winner import winner_of
from raysafl.report.wording import winner_text
from raysafl.storage.manifest import Manifest
from raysafl.storage.store import Store
from raysafl.sweep.outcome import Outcome

VAL = {"val_accuracy": further_column("accuracy", is_fraction=True)}
# Learning rate -> (accuracy on validation, on the test set) of two replicates, last round.
RATES = {0.1: (0.7, 0.9), 0.3: (0.8, 0.75), 0.9: (0.6, 0.5)}


def searched(
    goal: tuple[str, str] | None = ("val_accuracy", "max"), **changes: str
) -> tuple[pd.DataFrame, Manifest]:
    """A search over learning rates; `changes` are statuses of the last replicate of a rate."""
    values = {(rate,): [x - 0.005, x + 0.005] for rate, (_, x) in RATES.items()}
    runs, manifest = made(values, ("lr",))
    rates = runs["label.lr"]
    runs["final_val_accuracy"] = rates.map({rate: x for rate, (x, _) in RATES.items()})
    runs["config"] = [f"run {rate}" for rate in rates]
    for rate, status in changes.items():
        last = (rates == float(rate)) & (runs["replicate"] == 1)
        runs.loc[last, "status"] = status
    return runs, manifest.replace(name="s", columns=VAL, goal=goal)


def outcome(runs: pd.DataFrame, manifest: Manifest) -> Outcome:
    return Outcome(Store(Path("nowhere")), manifest, runs, 0, 0, 1.0)


def test_the_winner_is_chosen_on_validation_and_judged_on_test_samples() -> None:
    best = outcome(*searched()).best
    assert best.labels == {"lr": 0.3} and best.config == "run 0.3"
    assert (best.metric, best.value) == ("val_accuracy", pytest.approx(0.8))
    assert best.test == pytest.approx(0.75) and best.is_held_out
    assert best.candidates == 3


def test_the_best_by_an_error_is_the_lowest_and_has_no_per_cent() -> None:
    runs, manifest = searched(("val_mae", "min"))
    runs = runs.rename(columns={"final_val_accuracy": "final_val_mae"})
    mae = further_column("MAE", higher_is_better=False)
    manifest = manifest.replace(columns={"val_mae": mae})
    text = winner_text(winner_of(runs, manifest), manifest)
    assert text.startswith(
        "Best run: **lr = 0.9**, with the lowest `val_mae` 0.6 [0.6, 0.6] in"
    )


def test_the_best_has_scipys_interval_and_names_what_ties_with_it() -> None:
    runs, manifest = searched(("test_accuracy", "max"))
    rng = np.random.default_rng(1)
    runs = pd.concat(
        [runs.assign(replicate=2 * k + runs["replicate"]) for k in range(2)]
    )
    runs = runs.assign(seed=runs["replicate"])
    near = runs["run_id"] == manifest.entries[1].run_id
    runs.loc[near, "final"] = 0.9
    runs["final"] += rng.normal(0, 0.01, len(runs))
    best = winner_of(runs, manifest)
    assert best is not None and best.seeds == 4
    values = {i: own.sort_values("seed")["final"] for i, own in runs.groupby("run_id")}
    mine = values[best.run_id]
    t = stats.ttest_1samp(mine, 0.0).confidence_interval(0.95)
    assert best.interval == pytest.approx(tuple(t)) == best.test_interval
    alike = {
        i: {"lr": rate}
        for rate, i in zip(RATES, values, strict=True)
        if i != best.run_id
        and stats.ttest_rel(values[i].to_numpy(), mine.to_numpy()).pvalue >= 0.05
    }
    assert best.ties == alike and len(alike) == 1


def test_an_interval_of_accuracies_ends_at_100_per_cent_one_of_errors_not() -> None:
    runs, manifest = searched(("test_accuracy", "max"))
    runs["final"] += 0.05 * (2 * runs["replicate"] - 1) + 0.04
    values = runs.loc[runs["run_id"] == manifest.entries[0].run_id, "final"]
    t = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert 0 < t.low and t.high > 1
    best = winner_of(runs, manifest)
    assert best is not None and best.interval == pytest.approx((t.low, 1.0))
    assert "100.00]" in winner_text(best, manifest)
    errors = manifest.replace(goal=("test_mae", "max"), quality="test_mae")
    mae = further_column("MAE", higher_is_better=False)
    errors = errors.replace(columns={"test_mae": mae})
    best = winner_of(runs.rename(columns={"final": "final_mae"}), errors)
    assert best is not None and best.interval == pytest.approx(tuple(t))


@pytest.mark.parametrize("order", [1, -1])
def test_of_equal_runs_the_first_of_the_sweep_wins_and_the_others_are_ties(
    order: int,
) -> None:
    runs, manifest = searched()
    manifest = manifest.replace(entries=manifest.entries[::order])
    alike = runs["run_id"] != manifest.entries[1].run_id
    runs.loc[alike, "final_val_accuracy"] = 0.9
    best = winner_of(runs, manifest)
    first, last = (manifest.entries[k].labels for k in (0, 2))
    assert best is not None and best.labels == first
    assert list(best.ties.values()) == [last]


def test_the_report_of_a_search_begins_with_its_winner() -> None:
    text = markdown(*searched())
    answer = text.partition("## Answer")[2].partition("## Table")[0].strip()
    assert answer == (
        "Best run: **lr = 0.3**, with the highest `val_accuracy` 80.00 % [80.00, 80.00] in the "
        "last round, of 3 finished; on the test set, which had no part in the choice: "
        "`test_accuracy` 75.00 % [68.65, 81.35]. Brackets hold 95 % intervals of the means over "
        "2 seeds. 0 of 2 others cannot be told apart from it in `val_accuracy`.\n\n"
        "Sweep s, 3 of 3 runs: 6 seeds finished."
    )


def test_the_terminal_names_the_best_run_unless_it_is_that_of_the_table() -> None:
    best = "Best run: lr = 0.3, with the highest val_accuracy 80.00 %"
    compared, manifest = searched(None)
    assert best in on_screen(*searched(), 300)
    assert best in on_screen(compared, manifest, 300)
    # Without validation samples, the best one is that of the table.
    by_test = compared.drop(columns="final_val_accuracy")
    assert "Best run" not in on_screen(by_test, manifest, 300)
    assert outcome(by_test, manifest).best.metric == "test_accuracy"


def test_a_run_with_an_unfinished_replicate_or_one_without_value_loses() -> None:
    assert outcome(*searched(**{"0.3": "diverged"})).best.labels == {"lr": 0.1}
    runs, manifest = searched()
    best = (runs["final_val_accuracy"] == 0.8) & (runs["seed"] == 1)
    runs.loc[best, "final_val_accuracy"] = np.nan
    assert outcome(runs, manifest).best.labels == {"lr": 0.1}
    runs["final_val_accuracy"] = np.nan
    with pytest.raises(ValueError, match="and a value of `val_accuracy`"):
        _ = outcome(runs, manifest).best


@pytest.mark.parametrize("column", ["test_accuracy", "clients_worst_accuracy"])
def test_a_choice_by_samples_of_the_test_set_is_said_to_be_one(column: str) -> None:
    runs, manifest = searched(("test_accuracy", "max"))
    best = outcome(runs, manifest).best
    assert best.labels == {"lr": 0.1} and not best.is_held_out
    said = markdown(runs, manifest.replace(searched_by=column))
    assert "It was chosen by the test set, so its score is optimistic." in said
    assert f"by `{column}`, which is measured on the test set" in said
    said = markdown(runs, manifest.replace(searched_by="val_accuracy"))
    assert "not by anything that was measured on the test set" in said
