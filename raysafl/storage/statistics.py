"""The statistics of a run: numbers that summarise the rows of one replicate."""

import math
from typing import Any

import numpy as np
import pandas as pd

from raysafl.core.record import COLUMNS, Summary, columns_with

# Name -> how many of the last rows.
MEANS = {"last5": 5, "last10": 10, "rolling20": 20}
# Test accuracies in per cent.
TARGETS = (10, 20, 30, 40, 50, 60, 70, 80, 90, 95)
TOTALS = columns_with(Summary.SUM)
# Statistics of a run, which are columns of runs.parquet: name -> meaning.
STATISTICS = {
    "rounds": "rounds run",
    "final": "test accuracy of the last evaluated round",
    "last5": "mean test accuracy of the last five evaluated rounds (FAST)",
    "last5_std": "standard deviation of the last five test accuracies (FAST's spread)",
    "last10": "mean test accuracy of the last ten evaluated rounds",
    "rolling20": "mean test accuracy of the last twenty evaluated rounds (FSL)",
    "best": "highest test accuracy of all rounds",
    "best5": "mean over the five offsets of the highest test accuracy of every fifth round",
    "best_round": "first round with the highest test accuracy, from 0",
    "after_server": "mean test accuracy right after the rounds of the server alone",
    "rise_time": "rounds until the test accuracy is at 90 % of the final",
    "rise_time20": "the same on the accuracy's rolling mean over twenty evaluations (FSL)",
    **{
        f"rounds_to_{t}": f"rounds until the test accuracy is at {t} %" for t in TARGETS
    },
    "rounds_to_50_rolling20": "rounds until the accuracy's rolling mean over twenty "
    "evaluations is at 50 % (FSL's T_0.5, smoothed)",
    "final_loss": "test loss of the last evaluated round",
    "arbitrary_ratio": "share of rounds in which clients trained and which were no "
    "snapshots (FAST's Ratio)",
    **{f"total_{name}": COLUMNS[name].total for name in TOTALS},
    "total_bytes": "bytes to and from clients",
}

ACCURACIES = (
    "final",
    "last5",
    "last10",
    "rolling20",
    "best",
    "best5",
    "after_server",
)
# Tables show these statistics in per cent.
FRACTIONS = (
    *ACCURACIES,
    "last5_std",
    "arbitrary_ratio",
)


def rounds_until(
    rows: pd.DataFrame, accuracy: "pd.Series[float]", target: float
) -> float:
    """Return how many rounds were run when the accuracy first reached a target.

    Args:
        rows: the rows of one replicate, in order of rounds.
        accuracy: one value for each row.
        target: the accuracy to reach.

    Returns:
        The number of rounds, exact to the run's `eval_every`; NaN if the target was not
        reached.
    """
    reached = np.flatnonzero(accuracy.to_numpy() >= target)
    return float(rows["round"].iloc[reached[0]]) + 1 if len(reached) else math.nan


def count_client_rounds(rows: pd.DataFrame) -> float:
    """Return in how many of the rounds that were run clients trained.

    Rounds of the server alone (SAFARI's server rounds) and of centralised training do
    not count. A row tells who trained in its own round (`kind`), and in how many rounds
    since the row before the server trained, alone or beside clients (`server_rounds`).
    The number is therefore exact if every round was evaluated, and also if the server
    always trained alone, or always beside clients. If it did both (FSL over SAFARI) and
    not every round was evaluated, the share of the evaluated rounds stands for that of
    all rounds.

    Args:
        rows: the rows of one replicate, in order of rounds.
    """
    kinds = rows["kind"].astype(str)
    has_clients = kinds.str.contains("client")
    # The number of rounds since the row before; round 0 is the first one.
    spans = rows["round"].diff().fillna(rows["round"] + 1)
    if (spans == 1).all():
        return float(has_clients.sum())
    if (kinds == "client+server").any():
        return float(spans.sum() * has_clients.mean())
    server_rounds = rows["server_rounds"].where(kinds != "central", spans)
    return float((spans - server_rounds).sum())


def best_of_every_fifth_round(
    rows: pd.DataFrame, accuracy: "pd.Series[float]"
) -> float:
    """Return the highest accuracy that is seen if only every fifth round is evaluated.

    Which of five rounds is the first to be evaluated, the offset, is not known, so the
    result is the mean over the offsets. The highest of fewer evaluations is lower, the
    more so the more the accuracy goes up and down from round to round.

    Args:
        rows: the rows of one replicate, in order of rounds.
        accuracy: one value for each row.

    Returns:
        The mean of five highest accuracies, or of fewer if the run was not evaluated at
        some offset: a run with `eval_every=5` has one offset, and the result is the
        highest of all its accuracies. NaN if there is no accuracy.
    """
    highest = accuracy.groupby(rows["round"] % 5).max()
    return float(highest.mean())


def summarise(rows: pd.DataFrame) -> dict[str, Any]:
    """Compute the `STATISTICS` of one replicate.

    Args:
        rows: the rows of the replicate, in order of rounds, with the columns of
            `Record`.

    Returns:
        Name to value, in the order of `STATISTICS`. What cannot be computed is NaN.

    Accuracies are fractions in [0, 1]. With a(t) the test accuracy at evaluated round
    t, and its rolling mean b(t) = mean of a over the last 20 evaluated rounds up to t
    (fewer at the start),

    last5, last10, rolling20   means over the last 5, 10, 20 evaluated rounds
    last5_std                  standard deviation (n - 1) over the last five of them
    best5                      mean over o = 0, ..., 4 of the highest a(t) with t mod 5 = o:
                               the best accuracy of evaluations every fifth round
    rise_time                  1 + the first t with a(t) >= 0.9 a(end)
    rise_time20                1 + the first t with b(t) >= 0.9 b(end): FSL smooths its
                               accuracies, and does not say whether before taking the
                               rise time
    rounds_to_X                1 + the first t with a(t) >= X/100, NaN if there is none;
                               FSL calls rounds_to_50 T_0.5
    rounds_to_50_rolling20     1 + the first t with b(t) >= 0.5: T_0.5, should FSL have
                               taken it from its smoothed accuracies
    after_server               mean over the rounds in which only the server trained
                               (SAFARI's server rounds), NaN if there were none
    arbitrary_ratio            (client rounds - snapshots) / rounds. FAST defines its
                               Ratio as "Rounds with ACP / Total rounds" (section 5),
                               ACP being arbitrary client participation. Rounds in which
                               no client trains are therefore not arbitrary, but are
                               among all rounds. `count_client_rounds` counts the others
    """
    accuracy: pd.Series[float] = rows["test_accuracy"].astype(float)
    smooth = accuracy.rolling(20, min_periods=1).mean()
    final, smooth_final = (
        float(x.iloc[-1]) if len(x) else math.nan for x in (accuracy, smooth)
    )
    rounds = int(rows["round"].max()) + 1 if len(rows) else 0
    sums = rows.reindex(columns=TOTALS).sum()
    totals = {f"total_{name}": int(sums[name]) for name in TOTALS}
    best = (
        int(rows["round"].iloc[accuracy.argmax()])
        if accuracy.notna().any()
        else math.nan
    )
    # An estimate of the client rounds may fall below the snapshots, which are counted.
    arbitrary = max(0.0, count_client_rounds(rows) - totals["total_snapshots"])
    found = {
        "rounds": rounds,
        "final": final,
        **{name: float(accuracy.tail(k).mean()) for name, k in MEANS.items()},
        "last5_std": float(accuracy.tail(5).std()),
        "best": float(accuracy.max()),
        "best5": best_of_every_fifth_round(rows, accuracy),
        "best_round": float(best),
        "after_server": float(accuracy[rows["kind"] == "server"].mean()),
        "rise_time": rounds_until(rows, accuracy, 0.9 * final),
        "rise_time20": rounds_until(rows, smooth, 0.9 * smooth_final),
        **{f"rounds_to_{t}": rounds_until(rows, accuracy, t / 100) for t in TARGETS},
        "rounds_to_50_rolling20": rounds_until(rows, smooth, 0.5),
        "final_loss": float(rows["test_loss"].iloc[-1]) if len(rows) else math.nan,
        "arbitrary_ratio": arbitrary / rounds if rounds else math.nan,
        **totals,
        "total_bytes": totals["total_bytes_down"] + totals["total_bytes_up"],
    }
    return {name: found[name] for name in STATISTICS}
