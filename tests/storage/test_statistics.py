"""One row of statistics per run and replicate, by hand."""

import math
import statistics as stdlib

import numpy as np
import pandas as pd
import pytest
from helpers.summaries import summarise
from hypothesis import given
from hypothesis import strategies as st

from raysafl.storage.statistics import BY_NAME, STATISTICS, summarise_each


def rows(
    accuracies: list[float], kinds: list[str] | None = None, every: int = 1
) -> pd.DataFrame:
    n = len(accuracies)
    kinds = kinds or ["client"] * n
    return pd.DataFrame(
        {
            "round": [every * (t + 1) - 1 for t in range(n)],
            "kind": kinds,
            "trained": [every * ["client" in kind] for kind in kinds],
            "test_accuracy": accuracies,
            "test_loss": [2.0 - 0.5 * t for t in range(n)],
            "server_rounds": [t % 2 for t in range(n)],
            "steps": [10] * n,
            "bytes_down": [4] * n,
            "bytes_up": [8] * n,
        }
    )


def test_after_server_is_the_mean_over_rounds_of_the_server_alone() -> None:
    kinds = ["client", "server", "client+server", "server"]
    row = summarise(rows([0.1, 0.6, 0.3, 0.8], kinds))
    assert row["after_server"] == pytest.approx(0.7)
    alone = summarise(rows([0.1, 0.2], ["client", "client+server"]))
    assert math.isnan(alone["after_server"])


def test_totals_are_sums_over_the_rows() -> None:
    row = summarise(rows([0.1, 0.2, 0.3, 0.4]))
    totals = {name: row[f"total_{name}"] for name in ("server_rounds", "steps")}
    assert totals == {"server_rounds": 2, "steps": 40}
    assert (row["total_bytes_down"], row["total_bytes_up"]) == (16, 32)
    assert row["total_bytes"] == 16 + 32 and row["rounds"] == 4


def test_no_rows_give_no_rounds_and_no_accuracy() -> None:
    row = summarise(rows([]))
    assert row["rounds"] == 0 and row["total_steps"] == 0
    assert all(
        math.isnan(row[n]) for n in ("final", "last10", "best", "best5", "after_server")
    )


def test_best5_is_the_best_where_every_fifth_round_was_evaluated_anyway() -> None:
    assert summarise(rows([0.1, 0.7, 0.4], every=5))["best5"] == 0.7
    # Offsets 1 and 3: the rounds are 1 and 3.
    assert summarise(rows([0.1, 0.7], every=2))["best5"] == pytest.approx(0.4)
    row = summarise(rows([0.2, math.nan, 0.4]))
    assert row["best5"] == pytest.approx(0.3)


def test_rise_time_counts_rounds_until_nine_tenths_of_the_final() -> None:
    assert summarise(rows([0.1, 0.44, 0.46, 0.3, 0.5]))["rise_time"] == 3
    assert summarise(rows([0.1, 0.44, 0.46, 0.3, 0.5], every=5))["rise_time"] == 15
    assert summarise(rows([0.5]))["rise_time"] == 1


def test_rise_time20_is_that_of_the_rolling_mean() -> None:
    # 20 rows at 0, then 1s: the mean of the last 20 is k/20 after k of them, 1 at the
    # end.
    row = summarise(rows([0.0] * 20 + [1.0] * 20))
    assert (row["rise_time"], row["rise_time20"]) == (21, 38)
    # At the start the mean is over what there is: 0, 0.2, 0.4 and, at the end, 0.6.
    row = summarise(rows([0.0, 0.4, 0.8, 1.2]))
    assert (row["rise_time"], row["rise_time20"]) == (4, 4)
    assert summarise(rows([0.57, 0.57, 0.60]))["rise_time20"] == 1


def test_rounds_to_a_target_are_counted_and_nan_if_never_reached() -> None:
    targets = {10: 20, 50: 20, 61.5: 40, 70: math.nan}
    names = [f"rounds_to_{target}" for target in targets]
    row = summarise(rows([0.05, 0.5, 0.3, 0.62], every=10), *names)
    expected = pytest.approx(list(targets.values()), nan_ok=True)
    assert [row[name] for name in names] == expected


def test_the_ratio_of_arbitrary_rounds_counts_rounds_run_not_evaluated() -> None:
    frame = rows([0.1, 0.2, 0.3, 0.4], every=5)
    frame = frame.assign(snapshots=[1, 0, 2, 2])
    row = summarise(frame)
    assert row["total_snapshots"] == 5
    assert row["arbitrary_ratio"] == pytest.approx((20 - 5) / 20)
    assert summarise(rows([0.1]))["arbitrary_ratio"] == 1


def test_rounds_of_the_server_alone_are_not_arbitrary() -> None:
    # SAFARI: rounds 1 and 3 are the server's. Uniform participation and snapshots of
    # every round enforce each client round, and arbitrary participation none of them.
    frame = rows([0.1] * 4, ["client", "server", "client", "server"])
    assert summarise(frame.assign(snapshots=[1, 0, 1, 0]))["arbitrary_ratio"] == 0
    assert summarise(frame.assign(snapshots=0))["arbitrary_ratio"] == 2 / 4
    assert summarise(frame.assign(snapshots=[1, 0, 0, 0]))["arbitrary_ratio"] == 1 / 4

    alone = rows([0.1] * 4, ["server"] * 4).assign(snapshots=0)
    assert summarise(alone)["arbitrary_ratio"] == 0
    central = rows([0.1] * 4, ["central"] * 4).assign(snapshots=0)
    assert summarise(central)["arbitrary_ratio"] == 0
    # FSL: the server trains beside the clients in every round.
    both = rows([0.1] * 4, ["client+server"] * 4)
    assert summarise(both.assign(snapshots=0))["arbitrary_ratio"] == 1
    assert summarise(both.assign(snapshots=1))["arbitrary_ratio"] == 0


def test_client_rounds_between_two_evaluations_are_counted_whatever_the_evaluated_ones_are() -> (
    None
):
    # FSL over SAFARI: the evaluated rounds 2 and 5 of six were the server's alone.
    frame = rows([0.1] * 2, ["server", "server"], every=3).assign(snapshots=[0, 1])
    frame["trained"] = [[True, True, False], [False, True, False]]
    assert summarise(frame)["arbitrary_ratio"] == pytest.approx((3 - 1) / 6)


def test_no_rows_leave_every_new_statistic_open() -> None:
    row = summarise(rows([]))
    names = (
        "last5",
        "rolling20",
        "rise_time",
        "rise_time20",
        "best_round",
    )
    assert all(
        math.isnan(row[name]) for name in (*names, "arbitrary_ratio", "last5_std")
    )


def test_diverged_rows_do_not_break_the_statistics() -> None:
    row = summarise(rows([0.2, math.nan, 0.4]))
    assert (row["best"], row["best_round"], row["rise_time"]) == (0.4, 2, 3)


def test_each_statistic_has_its_meaning() -> None:
    always = list(summarise_each(rows([0.1]), np.array([1])))
    assert always == [name for name in STATISTICS if name not in BY_NAME]
    assert all(known.meaning for known in STATISTICS.values())


def test_replicates_that_are_computed_together_are_those_computed_alone() -> None:
    random = np.random.default_rng(0)
    lengths = random.choice([0, 1, 4, 5, 9, 21, 40], 60)
    parts = []
    for length in lengths.tolist():
        accuracy = random.random(length)
        accuracy[random.random(length) < random.choice([0.0, 0.2, 1.0])] = math.nan
        kinds = random.choice(["client", "server", "central"], length)
        every = int(random.choice([1, 2, 5]))
        parts.append(rows(accuracy.tolist(), kinds.tolist(), every))
    whole = pd.concat(parts, ignore_index=True)
    together = summarise_each(whole, lengths, named=BY_NAME)[list(STATISTICS)]
    alone = pd.DataFrame([summarise(part) for part in parts])
    pd.testing.assert_frame_equal(together, alone, check_exact=True)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_the_statistics_agree_with_plain_python(accuracies: list[float]) -> None:
    row = summarise(rows(accuracies))
    recent = accuracies[-5:]
    assert (row["final"], row["best"]) == (accuracies[-1], max(accuracies))
    assert row["final_loss"] == 2.0 - 0.5 * (len(accuracies) - 1)
    assert row["last10"] == pytest.approx(stdlib.fmean(accuracies[-10:]))
    assert row["last5"] == pytest.approx(stdlib.fmean(recent))
    assert row["rolling20"] == pytest.approx(stdlib.fmean(accuracies[-20:]))
    spread = stdlib.stdev(recent) if len(recent) > 1 else math.nan
    assert row["last5_std"] == pytest.approx(spread, abs=1e-9, nan_ok=True)
    highest = [max(accuracies[o::5]) for o in range(5) if accuracies[o::5]]
    assert row["best5"] == pytest.approx(stdlib.fmean(highest))
    assert row["best_round"] == accuracies.index(max(accuracies))
    reached = [t for t, a in enumerate(accuracies) if a >= 0.9 * accuracies[-1]]
    assert row["rise_time"] == 1 + reached[0]
