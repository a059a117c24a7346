"""Linear speed-up: how the error of FedAvg falls with clients m, local steps K and rounds R.

Sources: FAST, corollary 2 (docs/papers.md#fast); SAFARI, corollary 1 (docs/papers.md#safari);
FSL, corollary 1 (docs/papers.md#fsl). Run it from the repository's root; it takes a core
minute:

    python -m experiments.theorems.speed_up [--out DIR]

The corollaries say: with the learning rate eta_c = c sqrt(m / (K R)), the mean of |grad F|^2
over R rounds is O(1 / sqrt(m K R)). This is FedAvg with m of 64 clients, drawn uniformly
(FAST with q = 1), on quadratics with noisy mini-batches of one sample, c = 1/4. One of m, K
and R is varied at a time, from 4, 4 and 400. FSL's corollary 1 has a further term for clients
that differ, of the order G^2 sqrt(K / (m R)), which comes from drawing m of them. FAST's and
SAFARI's corollaries have none.

PREDICTED before the measurement:

1. Clients with equal objectives: the slopes on logarithmic axes over m, K and R are -1/2 each.
2. Clients that differ much (G^2 is 20 times sigma^2 or more): over m and R -1/2 as well, but over
   K the slope is positive, near +1/2. So there is no speed-up in K, as FSL's corollary has it
   and FAST's has not.

The exact values below come from the recursion of the mean square for quadratics. Measured
slopes should agree with the slopes of these within their 95 % intervals.

AFTER the measurement the recursion was refined: mini-batches are drawn without replacement, so
K of n have (n - K)/(n - 1) of the variance that the first version gave them.
"""

import numpy as np

import raysafl as fl
from experiments.theorems.output import (
    label,
    options,
    panels,
    publish,
    slope,
    ticks,
    with_interval,
)
from experiments.theorems.problem import D, follow, quadratic
from raysafl.report.figures.style import colours

N, SAMPLES = 64, 64
BASE = {"m": 4, "K": 4, "R": 400}
VALUES = {"m": (1, 2, 4, 8), "K": (1, 2, 4, 8), "R": (100, 200, 400, 800)}
REPLICATES = 8
START = np.full(4, 0.5)  # where the optimum lies; runs start at 0
# Standard deviations of the clients' minima, and of the samples around them.
SPREADS = {"equal clients": (0.0, 3.0), "clients that differ": (5.0, 0.7)}


def rate(m, K, R):
    """Return the corollaries' learning rate."""
    return 0.25 * (m / (K * R)) ** 0.5


def minima(spread):
    """Return the clients' minima [N, 4], whose mean is `START` and whose variance is exact."""
    b = np.random.default_rng(6).normal(size=(N, 4))
    b -= b.mean(0)
    return START + spread * b / b.std(0)


def exact(spread, noise, m, K, R):
    """Return the expected mean of |grad F|^2 over R rounds."""
    kept = 1 - rate(m, K, R) * D  # of the distance, in one local step
    local = noise**2 * (1 - kept) ** 2 * sum(kept ** (2 * k) for k in range(K))
    local *= (SAMPLES - K) / (SAMPLES - 1)
    sampled = spread**2 * (1 - kept**K) ** 2 * (N - m) / (N - 1)
    apart = START**2
    total = 0.0
    for _ in range(R):
        total += (D**2 * apart).sum()
        apart = kept ** (2 * K) * apart + (local + sampled) / m
    return total / R


def measure(spread, noise, quick):
    """Return by (m, K, R) the means of |grad F|^2 over R rounds, one for each replicate."""
    problem = quadratic(minima(spread), noise=noise, samples=SAMPLES)
    asked = {
        tuple((BASE | {name: value}).values()): None
        for name in VALUES
        for value in VALUES[name]
    }
    runs = {
        (m, K, R): problem.run(
            participation=fl.Uniform(m=m),
            local=problem.local(rate(m, K, R), K, batch_size=1),
            rounds=R // 50 if quick else R,
            replicates=REPLICATES,
        )
        for m, K, R in asked
    }
    return {
        key: np.square(D * (path[:-1] - START)).sum(-1).mean(0)
        for key, path in follow(runs).items()
    }


def draw(found):
    """Draw the measured errors over m, K and R, and the exact ones as lines."""
    figure, axes = panels(3, 10, 3.8)
    for one, name in zip(axes, VALUES, strict=True):
        for (kind, values), colour in zip(found.items(), colours(2), strict=True):
            keys = [tuple((BASE | {name: v}).values()) for v in VALUES[name]]
            means = [values[key].mean() for key in keys]
            lines = [exact(*SPREADS[kind], *key) for key in keys]
            one.loglog(VALUES[name], means, "o", color=colour, label=kind)
            one.loglog(VALUES[name], lines, color=colour, label="exact")
        ticks(one, VALUES[name])
        meaning = {"m": "clients m", "K": "local steps K", "R": "rounds R"}[name]
        label(one, meaning, "mean |∇F|²", f"error over {meaning}")
    return figure


def main(arguments=None):
    """Run all, print the table, and write it and the figure."""
    asked = options("speed_up", arguments)
    found = {kind: measure(*spreads, asked.quick) for kind, spreads in SPREADS.items()}
    table = [["clients", "over", "mean |∇F|²", "slope", "exact slope", "corollary"]]
    for kind, values in found.items():
        for name, x in VALUES.items():
            keys = [tuple((BASE | {name: v}).values()) for v in x]
            rows = np.stack([values[key] for key in keys])
            lines = [exact(*SPREADS[kind], *key) for key in keys]
            table.append(
                [
                    kind,
                    f"{name} = {', '.join(map(str, x))}",
                    ", ".join(f"{v:.3g}" for v in rows.mean(1)),
                    with_interval(slope(x, rows)),
                    f"{np.polyfit(np.log(x), np.log(lines), 1)[0]:.2f}",
                    "-0.50",
                ]
            )
    publish(asked.out, {"Mean of |∇F|² over R rounds": table}, draw(found), "speed_up")


if __name__ == "__main__":
    main()
