"""The bounds of SAFARI's, FAST's and FSL's theorems beside measured curves, on quadratics.

Sources: SAFARI, theorems 4 and 5 (docs/papers.md#safari); FAST, theorems 1 and 2
(docs/papers.md#fast); FSL, theorems 1 and 2 (docs/papers.md#fsl). Run it from the
repository's root; it takes two core minutes:

    python -m experiments.theorems.rates [--out DIR]

Bounds are worst cases, so a curve far below one says little. Two things can be tested: whether
a bound is ever crossed, and how the error that remains (the floor) scales.

The one-sided problem: there are ten clients; the minima of the first six are at -0.4 and of
the last four at +0.6 along one axis, so the optimum of F is at 0. The last four never come
by themselves. K = 2, no noise of mini-batches. The start is at +0.85, where |grad F|^2 is
twice sigma_G^2.

PREDICTED before the measurement:

1. The premises on q of SAFARI's theorem 4 and of FAST's theorem 1, which hold the largest
   gradients of all rounds against sigma_G^2, hold at q = 0.5 because of the first rounds. But
   the errors of `limits.py` do not vanish, so for small rates and many rounds the measured
   means of |grad F|^2 exceed both bounds. They do not as long as the premise holds with means
   in place of maxima, which is what the proofs use.
2. The premise of SAFARI's theorem 5, taken for every round, fails after some rounds; after
   that, the bound on |x_R - x_*|^2 is exceeded, too.
3. The floor of |x_R - x_*|^2 is below the bounds and falls in proportion to the learning rate
   (slope 1) for FAST with q = 1, where theorem 2's premise holds, and for SAFARI with q = 0.5
   if nobody is absent and one client comes per round. For FAST with q = 0.5, outside
   theorem 2's premise, the slope is 0.
4. FSL: the floor of |grad F~|^2 is below the bound of theorem 2; its slope over the step
   K_0 eta_0 is 1 for cohorts of 2 of 10 clients, and 2 if all clients come, where the
   bound's term Psi vanishes. Over rho_s / S its slope is 1.
5. FSL, theorem 1: the decrease of F~ in one round is at least that of the bound, and the ratio
   of both tends to (1 + gamma) / (gamma + 1/2) as the step falls.
"""

import numpy as np

import raysafl as fl
from experiments.theorems import bounds
from experiments.theorems.output import (
    label,
    options,
    publish,
    slope,
    ticks,
    with_interval,
)
from experiments.theorems.premises import (
    least_snapshot_prob,
    most_client_prob,
    most_client_prob_convex,
)
from experiments.theorems.problem import MU, D, L, follow, quadratic
from raysafl.report.figures.style import colours, new_figure, style_axes

N, K, COME, Q = 10, 2, 6, 0.5
START = 0.85
REPLICATES = 2
# Learning rates of the three runs that exceed their bounds.
ETA_S4, ETA_C5, ETA_C1 = 0.02, 0.0025, 0.01
STEPS = (0.05, 0.025, 0.0125)  # K eta_c, at most 1 / (20 L) as FAST's theorem 2 needs
FSL_STEPS = (
    0.05,
    0.025,
    0.0125,
)  # K_0 eta_0; for larger ones h, and the bound, may be < 0
COHORTS = (1, 2, 5)
WHO = {
    "present": fl.Absent(s=N - COME, m=COME),
    "one": fl.Uniform(m=1),
    "arbitrary": fl.Snapshot(
        base=fl.Absent(s=N - COME, m=1), uniform=fl.Uniform(m=1), snapshot_prob=Q
    ),
}


def one_sided():
    """Return the problem of the docstring, moved so that runs start at 0, and its constants."""
    b = np.zeros((N, 4))
    b[:, 3] = np.where(np.arange(N) < COME, -0.4, 0.6) - START
    unlike = np.square(D * (b - b.mean(0))).sum(-1)
    return quadratic(b), bounds.Constants(
        L, MU, sigma_g2=unlike.max(), g2=unlike.mean()
    )


def safari(problem, eta_c, eta_s, who, **fields):
    """Return a run of SAFARI with q = 0.5."""
    algorithm = fl.SAFARI(client_prob=Q, server_update=problem.local(eta_s, holder=-1))
    return problem.run(
        algorithm=algorithm,
        participation=WHO[who],
        local=problem.local(eta_c, K),
        **fields,
    )


def fast(problem, eta_c, who, **fields):
    """Return a run of FAST; "one" is q = 1."""
    return problem.run(participation=WHO[who], local=problem.local(eta_c, K), **fields)


def fsl(problem, step, S, gamma=1.0, **fields):
    """Return a run of FSL with K_0 = K and the clients' global rate eta_g = 1."""
    algorithm = fl.FSL(
        inner=fl.FedAvg(), gamma=gamma, epochs=K, batch_size=1, rate=step / K / S**0.5
    )
    return problem.run(
        algorithm=algorithm,
        participation=fl.Uniform(m=S),
        local=problem.local(step / K, K),
        **fields,
    )


def drawn(name, replicates, rounds, prob):
    """Return [rounds, replicates] whether the draws of a run that starts with seed 0 are below."""
    return np.array(
        [
            [
                fl.algorithms.Key(seed, r)(name).random() < prob
                for seed in range(replicates)
            ]
            for r in range(rounds)
        ]
    )


def squares(rows):
    """Return the squared length of vectors [..., 4]."""
    return np.square(rows).sum(-1)


def crossed(measured, bound):
    """Return the least R from which on the measured curve is above the bound, or None.

    Both curves begin with R = 1.
    """
    below = np.flatnonzero(measured <= bound)
    last_below = 0 if not len(below) else int(below[-1]) + 1
    return None if last_below == len(bound) else last_below + 1


def gradients2(problem, path):
    """Return |grad F|^2 before each round, [rounds, replicates]."""
    return squares(problem.gradients(path[:-1])[..., :-1, :].mean(-2))


def holds_until(rounds, holds):
    """Return the last multiple of ten at which a premise holds, or 0."""
    return max((r for r in range(10, rounds, 10) if holds(r)), default=0)


def against_safari4(problem, c, path):
    """Return (rounds, curve, bound) of the mean |grad F|^2, and the premise's row."""
    grad2 = gradients2(problem, path)
    path2 = squares(np.diff(path, axis=0) / (2 * ETA_S4 / K))
    client = drawn("safari", *grad2.shape[::-1], Q)
    at = np.arange(1, len(grad2) + 1)
    bound = bounds.safari4(c, START**2 / 2, at, ETA_S4, K, COME, Q)
    curve = np.cumsum(grad2.mean(1)) / at

    def most(stop, how):
        g1, g2 = grad2[:stop][~client[:stop]], path2[:stop][client[:stop]]
        return most_client_prob(c.sigma_g2, how(g1), how(g2), L, ETA_S4, K).value

    last = holds_until(len(at), lambda r: most(r, np.mean) >= Q)
    premise = f"q <= {most(len(at), np.max):.2f}"
    return (at, curve, bound), [premise, f"up to round {last}"]


def against_fast1(problem, c, path):
    """Return (rounds, curve, bound) of the mean |grad F|^2, and the premise's row."""
    grad2 = gradients2(problem, path)
    path2 = squares(np.diff(path, axis=0) / ETA_C1)
    shrink = (1 - (1 - ETA_C1 * D) ** K) / ETA_C1  # K steps of all clients sum to this
    all2 = squares(shrink * (path[:-1] - problem.optimum))
    snap = drawn("snapshot", *grad2.shape[::-1], Q)
    at = np.arange(1, len(grad2) + 1)
    bound = bounds.fast1(c, START**2 / 2, at, ETA_C1, K, 1, 1, Q)
    curve = np.cumsum(grad2.mean(1)) / at

    def least(stop, how):
        now = snap[:stop]
        parts = (all2[:stop][now], path2[:stop][~now], path2[:stop][now])
        found = least_snapshot_prob(c.sigma_g2, *map(how, parts), L, ETA_C1, K)
        return 1.0 if found.value is None else found.value

    last = holds_until(len(at), lambda r: least(r, np.mean) <= Q)
    premise = f"q >= {least(len(at), np.max):.2f}"
    return (at, curve, bound), [premise, f"up to round {last}"]


def against_safari5(problem, c, path):
    """Return (rounds, curve, bound) of |x_R - x_*|^2, and the premise's row."""
    apart = path - problem.optimum
    at = np.arange(1, len(path))
    bound = bounds.safari5(c, START**2, at, ETA_C5, K, COME, Q)
    g3 = squares(D * apart[:, 0])
    # The clients that come have one minimum, so G_4 is F_p(x_r) - F_p(x_*).
    come = problem.minimum(np.arange(N) < COME)
    now, then = path[:, 0] - come, problem.optimum - come
    g4 = (D * (np.square(now) - np.square(then))).sum(-1) / 2
    found = [
        most_client_prob_convex(*pair, L, MU, ETA_C5, K).value
        for pair in zip(g3, g4, strict=True)
    ]
    fails = next((r for r, q in enumerate(found) if q is None or q < Q), len(found))
    return (at, squares(apart).mean(1)[1:], bound), [
        "in each round",
        f"up to round {fails}",
    ]


def exceeding(quick):
    """Return the three curves that should exceed their bounds, and a table on the premises."""
    problem, c = one_sided()
    rounds, many = (20, 30) if quick else (4000, 6000)
    rates4 = (2 * ETA_S4 / K, ETA_S4)
    rates5 = (ETA_C5, bounds.safari5_server_rate(c, ETA_C5, K))
    several = {"replicates": REPLICATES, "who": "present"}
    paths = follow(
        {
            4: safari(problem, *rates4, rounds=rounds, **several),
            5: safari(problem, *rates5, rounds=many, **several),
            1: fast(problem, ETA_C1, "arbitrary", rounds=many, replicates=REPLICATES),
        }
    )
    judged = {
        "SAFARI, theorem 4": against_safari4(problem, c, paths[4]),
        "FAST, theorem 1": against_fast1(problem, c, paths[1]),
        "SAFARI, theorem 5": against_safari5(problem, c, paths[5]),
    }
    table = [
        [
            "theorem",
            "premise as printed",
            "in the proof's form it holds",
            "bound exceeded",
        ]
    ]
    for name, ((_, curve, bound), row) in judged.items():
        since = crossed(curve, bound)
        table.append([name, *row, f"from round {since} on" if since else "never"])
    return {name: curves for name, (curves, _) in judged.items()}, table


def floors(quick):
    """Return by name steps, floors [steps, replicates] and bounds of E|x_R - x_*|^2."""
    problem, c = one_sided()
    rounds = 10 if quick else 1200
    runs = {}
    for step in STEPS:
        eta = step / K
        fields = {"rounds": rounds, "replicates": 8}
        eta_s = bounds.safari5_server_rate(c, eta, K)
        runs["FAST, q = 1", step] = fast(problem, eta, "one", **fields)
        runs["FAST, q = 0.5", step] = fast(problem, eta, "arbitrary", **fields)
        runs["SAFARI, nobody absent", step] = safari(
            problem, eta, eta_s, "one", **fields
        )
    paths = follow(runs)
    found = {}
    for name in dict.fromkeys(name for name, _ in runs):
        late = [
            squares(paths[name, step][rounds // 2 :] - problem.optimum).mean(0)
            for step in STEPS
        ]
        some = {
            "FAST, q = 1": lambda e: bounds.fast2(c, START**2, rounds, e, K, 1, 1, 1),
            "FAST, q = 0.5": lambda e: bounds.fast2(c, START**2, rounds, e, K, 1, 1, Q),
        }.get(name, lambda e: bounds.safari5(c, START**2, rounds, e, K, 1, Q))
        found[name] = (np.stack(late), [some(step / K) for step in STEPS])
    return found


def fsl_problem(gamma=1.0):
    """Return a problem with a server of its own, its constants, and the minimum of F~."""
    rng = np.random.default_rng(5)
    b, b0 = rng.normal(size=(N, 4)) + 1, rng.normal(size=4)
    c = bounds.Constants(
        L,
        MU,
        g2=squares(D * (b - b.mean(0))).mean(),
        xi2=squares(D * (b0 - b.mean(0))),
    )
    problem = quadratic(b, b0)
    return problem, c, problem.minimum(np.full(N, 1 / N), gamma)


def fsl_floors(quick):
    """Return FSL's floors [., replicates] of |grad F~|^2 and bounds, over steps and over S."""
    problem, c, end = fsl_problem()
    rounds = 10 if quick else 2000
    asked = [(step, 2) for step in FSL_STEPS] + [(step, N) for step in FSL_STEPS]
    asked += [(0.05, S) for S in COHORTS if S != 2]
    paths = follow(
        {
            a: fsl(problem, *a, rounds=rounds, replicates=6 if a[1] < N else 2)
            for a in asked
        }
    )
    gap = (D * np.square(end)).sum() / 2

    def group(keys):
        late = [squares(D * (paths[k][rounds // 2 :] - end)).mean(0) for k in keys]
        bound = [bounds.fsl2(c, gap, rounds, step, K, K, S, N, 1.0) for step, S in keys]
        return np.stack(late), bound

    return {
        "FSL, S = 2": group([(step, 2) for step in FSL_STEPS]),
        "FSL, S = N": group([(step, N) for step in FSL_STEPS]),
        "FSL over rho_s/S": group([(0.05, S) for S in COHORTS]),
    }


def fsl_round(quick):
    """Return the table on one round of FSL: measured decrease of F~ beside theorem 1's."""
    table = [["gamma", "step", "decrease", "bound", "ratio", "its limit"]]
    for gamma in (0.5, 1.0, 2.0):
        problem, c, end = fsl_problem(gamma)
        largest = min(1 / gamma, 8 / 9) / (4 * L)
        for step in (largest, largest / 8, largest / 64):
            run = fsl(problem, step, 2, gamma, rounds=1, replicates=4 if quick else 400)
            w = follow({0: run})[0] - end
            value = (D * np.square(w)).sum(-1).mean(1) / 2
            grad2 = squares(D * end)
            bound = bounds.fsl1(c, grad2, step, K, K, 2, N, gamma)
            numbers = [value[0] - value[1], -bound, (value[0] - value[1]) / -bound]
            row = [f"{gamma:g}", f"{step:.4f}", *(f"{v:.4f}" for v in numbers)]
            table.append([*row, f"{(1 + gamma) / (gamma + 0.5):.3f}"])
    return table


def draw(curves, groups):
    """Draw the curves that exceed bounds above, and the floors over the step below."""
    figure = new_figure(10, 6.8)
    above, below = figure.subplots(2, 3)
    blue, red, green = colours(3)
    for axes, (name, (at, curve, bound)) in zip(above, curves.items(), strict=True):
        axes.loglog(at, curve, color=blue, label="measured")
        axes.loglog(at, bound, "--", color=red, label="bound of the theorem")
        what = (
            "mean |∇F|² so far" if "5" not in name else "squared distance (units of w²)"
        )
        style_axes(axes)
        label(axes, "rounds R", what, f"{name}, q = 0.5")
    shown = (
        (
            STEPS,
            ("FAST, q = 1", "FAST, q = 0.5"),
            "K η_c",
            "squared distance (units of w²)",
        ),
        (STEPS, ("SAFARI, nobody absent",), "K η_c", "squared distance (units of w²)"),
        (FSL_STEPS, ("FSL, S = 2", "FSL, S = N"), "K₀ η₀", "|∇F̃|²"),
    )
    titles = ("FAST, theorem 2", "SAFARI, theorem 5", "FSL, theorem 2")
    for axes, (x, names, what, how), title in zip(below, shown, titles, strict=True):
        for name, colour in zip(names, (blue, green), strict=False):
            values, bound = groups[name]
            axes.loglog(x, values.mean(1), "o-", color=colour, markersize=4, label=name)
            axes.loglog(x, bound, "--", color=colour, label="its bound")
        style_axes(axes)
        ticks(axes, x)
        axes.set_ylim(bottom=axes.get_ylim()[0] / 20)  # room for the legend
        label(axes, f"step {what}", how, f"{title}: floors")
    return figure


def main(arguments=None):
    """Run all, print the tables, and write them and the figure."""
    asked = options("rates", arguments)
    curves, premises = exceeding(asked.quick)
    groups = floors(asked.quick) | fsl_floors(asked.quick)
    table = [["floor", "over", "measured", "bounds", "slope", "slope of the bounds"]]
    for name, (values, bound) in groups.items():
        x = STEPS if not name.startswith("FSL") else FSL_STEPS
        if name.endswith("rho_s/S"):
            x = [(N - S) / (N - 1) / S for S in COHORTS]
        of_bound = np.polyfit(np.log(x), np.log(bound), 1)[0]
        table.append(
            [
                name,
                ", ".join(f"{v:.3g}" for v in x),
                ", ".join(f"{v:.2g}" for v in values.mean(1)),
                ", ".join(f"{v:.2g}" for v in bound),
                with_interval(slope(x, values)),
                f"{of_bound:.2f}",
            ]
        )
    tables = {
        "Premises on q, and the round from which on the bound is exceeded": premises,
        "Floors (mean over the later half of the rounds)": table,
        "FSL, theorem 1: decrease of F~ in the first round, S = 2": fsl_round(
            asked.quick
        ),
    }
    publish(asked.out, tables, draw(curves, groups), "rates")


if __name__ == "__main__":
    main()
