"""SAFARI's theorems 2 and 3: with server data, learning from clients is possible again.

Source: docs/papers.md#safari, theorems 2 and 3. Run it from the repository's root; it takes
ten core seconds:

    python -m experiments.theorems.learnability [--out DIR]

The hypotheses are all thresholds on [0, 1] (VC dimension 1), and the learner minimises the
empirical risk on Q: n_S samples of clients from D together with n_T of the server from P,
which is uniform, with the best threshold at 1/2. Labels are right with probability
1/2 + 1/2 |2x - 1|^k. So k = 0 is no noise, and the noise condition (assumption 1) holds with
beta_Q = 1/(k + 1) where D has mass around 1/2. Theorem 2 bounds the excess error on P by

    (1 / n)^(1 / (2 - beta_Q)) + (1 / n)^(beta / (2 - beta_Q)),   n = n_S + n_T,

up to logarithms and to a constant that contains alpha of assumption 2 (|eps_P - eps_Q| <= alpha
eps_Q^beta). Rates are what would show the theorem; so would an error that does not fall.

PREDICTED before the measurement, as slopes of the excess error over n on logarithmic axes:

1. D uniform on [0.3, 0.9], a tenth of the samples at the server: beta = 1. The slopes are -1
   for k = 0, -2/3 for k = 1, and -3/5 for k = 2.
2. D with the density 2 |2x - 1|, which vanishes at the threshold, k = 0, no server data:
   beta = 1/2, beta_Q = 1; the slope is -1/2. With a tenth of the samples at the server, it is
   steeper and tends to -1.
3. D uniform on [0, 0.4], which never shows the threshold, n_T = 20 fixed, n_S growing: the slope
   is 0. This does not contradict theorem 2: alpha is of the order n_S / n_T, and cancels n.
   So the bound's n_T + n_S promises nothing that 20 server samples alone would not give.
4. Theorem 3. Clients label by the threshold 1/2 + delta instead, n_S = 50 n_T, k = 0. Its
   condition is eps_P(h_Q) = delta = O(1 / n_T). The error of learning from both, divided by that
   of the server alone, depends on delta n_T only. It is below 1 where delta n_T is well below
   1/2, and above 1 where it is well above: then SA-FL is worse than the server alone.
"""

import numpy as np

from experiments.theorems.output import (
    label,
    options,
    panels,
    publish,
    slope,
    with_interval,
)
from raysafl.algorithms import Key
from raysafl.report.figures.style import MARKS, colours

BEST = 0.5
SIZES = (100, 300, 1000, 3000, 10000, 30000)
TRIALS = 200
SERVER = 20
SHIFTS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)  # delta n_T
SERVERS = (20, 80, 320)


def interval(low, high):
    """Return the distribution function's inverse of the uniform distribution on [low, high]."""
    return lambda u: low + (high - low) * u


def vanishing(u):
    """Return the inverse of the distribution function of the density 2 |2x - 1|."""
    return BEST + np.sign(u - 0.5) * np.sqrt(np.abs(2 * u - 1)) / 2


# By name: D, the noise exponent k, the number n_T for a total n, and the predicted slope.
CASES = {
    "D covers 1/2, k = 0": (interval(0.3, 0.9), 0, lambda n: n // 10, "-1"),
    "D covers 1/2, k = 1": (interval(0.3, 0.9), 1, lambda n: n // 10, "-0.67"),
    "D covers 1/2, k = 2": (interval(0.3, 0.9), 2, lambda n: n // 10, "-0.60"),
    "D vanishes at 1/2, n_T = 0": (vanishing, 0, lambda n: 0, "-0.50"),
    "D vanishes at 1/2, n_T = n/10": (vanishing, 0, lambda n: n // 10, "-0.5 to -1"),
    "D misses 1/2, n_T = 20": (interval(0.0, 0.4), 0, lambda n: SERVER, "0"),
}


def learnt(x, y):
    """Return the threshold of least empirical risk, the middle of the best gap between samples.

    Args:
        x: the positions [n].
        y: the labels [n], -1 or 1; a threshold t predicts 1 above t.
    """
    order = np.argsort(x)
    # risk[j]: errors, up to a constant, if the threshold is below the j-th position.
    risk = np.append(0, np.cumsum(y[order]))
    edges = np.concatenate([[0.0], x[order], [1.0]])
    best = np.flatnonzero(risk == risk.min())
    j = best[len(best) // 2]
    return (edges[j] + edges[j + 1]) / 2


def labels(x, threshold, k, rng):
    """Draw the labels of samples whose best threshold is given."""
    right = rng.random(len(x)) < 0.5 + 0.5 * np.abs(2 * (x - threshold)).clip(0, 1) ** k
    return np.where(right, 1, -1) * np.where(x > threshold, 1, -1)


def excess(threshold, k):
    """Return the excess error on P, the integral of |2x - 1|^k from 1/2 to the threshold."""
    away = abs(threshold - BEST)
    return (2 * away) ** k * away / (k + 1)


def trial(rng, clients, n_s, n_t, k, shift=0.0):
    """Return the excess errors on P of learning from all samples, and from the server's alone."""
    x = np.append(clients(rng.random(n_s)), rng.random(n_t))
    y = np.append(labels(x[:n_s], BEST + shift, k, rng), labels(x[n_s:], BEST, k, rng))
    return [excess(learnt(x[start:], y[start:]), k) for start in (0, n_s)]


def theorem2(trials):
    """Return by case the excess errors [sizes, trials]."""
    return {
        name: np.array(
            [
                [
                    trial(
                        Key(t, n)(f"theorem 2 {name}"), draw, n - share(n), share(n), k
                    )[0]
                    for t in range(trials)
                ]
                for n in SIZES
            ]
        )
        for name, (draw, k, share, _) in CASES.items()
    }


def theorem3(trials):
    """Return by n_T the ratio of mean errors, SA-FL over server alone, for each shift."""
    found = {}
    for n_t in SERVERS:
        for shift in SHIFTS:
            errors = [
                trial(
                    Key(t, n_t)(f"theorem 3 {shift}"),
                    interval(0, 1),
                    50 * n_t,
                    n_t,
                    0,
                    shift / n_t,
                )
                for t in range(trials)
            ]
            both, alone = np.mean(errors, 0)
            found.setdefault(n_t, []).append(both / alone)
    return found


def figure_of(errors, ratios):
    """Draw the errors of theorem 2 over n, and the ratios of theorem 3 over delta n_T."""
    figure, (left, right) = panels(2, 10, 4.2)
    for (name, values), colour, mark in zip(
        errors.items(), colours(len(errors)), MARKS, strict=False
    ):
        left.loglog(
            SIZES,
            values.mean(1),
            marker=mark,
            markersize=4,
            color=colour,
            label=f"{name}: predicted slope {CASES[name][3]}",
        )
    left.set_ylim(bottom=values.mean() / 1e5)
    label(left, "samples n = n_S + n_T", "excess error on P", "Theorem 2")
    for (n_t, values), colour in zip(ratios.items(), colours(3), strict=True):
        right.loglog(SHIFTS, values, "o-", color=colour, label=f"n_T = {n_t}")
    right.axhline(1, color="black", linewidth=0.8)
    right.axvline(0.5, color="black", linewidth=0.8, linestyle="--")
    label(
        right,
        "δ n_T (shift of the clients' threshold times n_T)",
        "error of clients and server / server alone",
        "Theorem 3 (dashed: δ n_T = 1/2)",
    )
    return figure


def main(arguments=None):
    """Run all, print the tables, and write them and the figure."""
    asked = options("learnability", arguments)
    trials = 4 if asked.quick else TRIALS
    errors, ratios = theorem2(trials), theorem3(trials)
    table = [["case", *(f"n={n}" for n in SIZES), "slope", "predicted"]]
    for name, values in errors.items():
        means = [f"{v:.2g}" for v in values.mean(1)]
        table.append(
            [name, *means, with_interval(slope(SIZES, values)), CASES[name][3]]
        )
    other = [["n_T", *(f"δ n_T={s:g}" for s in SHIFTS)]]
    other += [[str(n), *(f"{v:.2f}" for v in row)] for n, row in ratios.items()]
    tables = {
        "Theorem 2: mean excess error on P": table,
        "Theorem 3: error of learning from both, over that of the server alone": other,
    }
    publish(asked.out, tables, figure_of(errors, ratios), "learnability")


if __name__ == "__main__":
    main()
