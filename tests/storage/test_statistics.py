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


RISING = [0.1, 0.44, 0.46, 0.3, 0.5]
TARGETS = [0.05, 0.5, 0.3, 0.62]
KINDS = ["client", "server", "client+server", "server"]


@pytest.mark.parametrize(
    ("name", "accuracies", "kinds", "every", "due"),
    [
        ("after_server", [0.1, 0.6, 0.3, 0.8], KINDS, 1, 0.7),
        ("after_server", [0.1, 0.2], ["client", "client+server"], 1, math.nan),
        ("best5", [0.1, 0.7, 0.4], None, 5, 0.7),
        # Offsets 1 and 3: the rounds are 1 and 3.
        ("best5", [0.1, 0.7], None, 2, 0.4),
        ("best5", [0.2, math.nan, 0.4], None, 1, 0.3),
        ("best", [0.2, math.nan, 0.4], None, 1, 0.4),
        ("best_round", [0.2, math.nan, 0.4], None, 1, 2),
        ("rise_time", [0.2, math.nan, 0.4], None, 1, 3),
        ("rise_time", RISING, None, 1, 3),
        ("rise_time", RISING, None, 5, 15),
        ("rise_time", [0.5], None, 1, 1),
        ("rise_time", [0.0] * 20 + [1.0] * 20, None, 1, 21),
        # The mean of the last 20 is k/20 after k rows of 1, and 1 at the end.
        ("rise_time20", [0.0] * 20 + [1.0] * 20, None, 1, 38),
        # At the start the mean is over what there is: 0, 0.2, 0.4 and, at the end, 0.6.
        ("rise_time20", [0.0, 0.4, 0.8, 1.2], None, 1, 4),
        ("rise_time20", [0.57, 0.57, 0.60], None, 1, 1),
        ("rounds_to_10", TARGETS, None, 10, 20),
        ("rounds_to_61.5", TARGETS, None, 10, 40),
        ("rounds_to_70", TARGETS, None, 10, math.nan),
    ],
)
def test_a_statistic_by_hand(
    name: str, accuracies: list[float], kinds: list[str] | None, every: int, due: float
) -> None:
    row = summarise(rows(accuracies, kinds, every), name)
    assert row[name] == pytest.approx(due, nan_ok=True)


def test_totals_are_sums_over_the_rows() -> None:
    row = summarise(rows([0.1, 0.2, 0.3, 0.4]))
    totals = {name: row[f"total_{name}"] for name in ("server_rounds", "steps")}
    assert totals == {"server_rounds": 2, "steps": 40}
    assert (row["total_bytes_down"], row["total_bytes_up"]) == (16, 32)
    assert row["total_bytes"] == 16 + 32 and row["rounds"] == 4


def test_no_rows_give_no_rounds_no_totals_and_nothing_else() -> None:
    row = summarise(rows([]))
    counts = {name for name, known in STATISTICS.items() if known.is_count}
    assert {row[name] for name in counts} == {0}
    assert all(math.isnan(row[name]) for name in STATISTICS.keys() - counts)


@pytest.mark.parametrize(
    ("kinds", "snapshots", "every", "due"),
    [
        # Rounds that were run are counted, not those that were evaluated.
        (["client"] * 4, [1, 0, 2, 2], 5, (20 - 5) / 20),
        # SAFARI: rounds 1 and 3 are the server's. Uniform participation and snapshots of
        # every round enforce each client round, and arbitrary participation none of them.
        (["client", "server"] * 2, [1, 0, 1, 0], 1, 0),
        (["client", "server"] * 2, [0, 0, 0, 0], 1, 2 / 4),
        (["client", "server"] * 2, [1, 0, 0, 0], 1, 1 / 4),
        (["server"] * 4, [0] * 4, 1, 0),
        (["central"] * 4, [0] * 4, 1, 0),
        # FSL: the server trains beside the clients in every round.
        (["client+server"] * 4, [0] * 4, 1, 1),
        (["client+server"] * 4, [1] * 4, 1, 0),
    ],
)
def test_the_ratio_of_arbitrary_rounds(
    kinds: list[str], snapshots: list[int], every: int, due: float
) -> None:
    row = summarise(rows([0.1] * 4, kinds, every).assign(snapshots=snapshots))
    assert row["total_snapshots"] == sum(snapshots)
    assert row["arbitrary_ratio"] == pytest.approx(due)


def test_client_rounds_between_two_evaluations_are_counted_too() -> None:
    # FSL over SAFARI: the evaluated rounds 2 and 5 of six were the server's alone.
    frame = rows([0.1] * 2, ["server", "server"], every=3).assign(snapshots=[0, 1])
    frame["trained"] = [[True, True, False], [False, True, False]]
    assert summarise(frame)["arbitrary_ratio"] == pytest.approx((3 - 1) / 6)


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
