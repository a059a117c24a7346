"""Estimate a run's gradients and say which q the papers' theorems allow, as a script.

Run it from the repository's root, for the first run of an experiment file or the first
with some labels:

    python -m experiments.theorems.advise FILE [--only AXIS=LABEL ...] [--rounds N]

The run is simulated in this process with its first seed. In a few rounds, the
quantities of the theorems are estimated at the global parameters; maxima over these
points stand for the theorems' suprema. The bounds are worst cases, and the estimates
are from below: see `CAVEATS`.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console, Group
from rich.table import Table
from torch import Tensor

from experiments.theorems.gradients import (
    batch_gradients,
    client_gradients,
    dissimilarity,
    gradient_noise,
    path_noise,
    server_gap,
    server_gradient,
    smoothness,
    square,
)
from experiments.theorems.premises import (
    Bound,
    Premise,
    convex_rates,
    fast_rates,
    least_g4,
    least_snapshot_prob,
    least_snapshot_prob_convex,
    most_client_prob,
    most_client_prob_convex,
    safari_rates,
)
from raysafl.core.algorithm import LocalTraining
from raysafl.core.problem import SERVER
from raysafl.core.randomness import Key
from raysafl.core.work import Tasks, Training
from raysafl.runtime.in_process import Worker
from raysafl.simulation.run import Run
from raysafl.simulation.simulation import Simulation
from raysafl.storage.manifest import run_name
from raysafl.sweep.experiment_file import load_sweep
from raysafl.sweep.grid import known_runs

# Rounds in which estimates are made, the first and the last among them.
PROBES = 5
# Mini-batches per client from which the noise is estimated.
DRAWS = 16
# Steps of the power iteration for the smoothness.
POWER_STEPS = 10
# The number of the request of the probing tasks. No round has so many requests, so
# their batches are those of no round.
CALL = 10**6
CAVEATS = (
    "The bounds are worst cases over all problems with these constants, not optimal choices.",
    "sigma_G^2, sigma^2, L are maxima over a few points of one seed: LOWER estimates of suprema.",
    "L is the largest client's curvature at these points (power iteration on gradients).",
    "G_1, G_2, G_3 are maxima over the probed points, whatever kind of round was run there; "
    "path gradients come from mini-batches, less the noise of an unfinished pass.",
    "The rates called largest allowed use G_1, G_2, G_3 as measured at the run's own rates.",
    "The theorems assume plain averaging (global rate 1), equal K, one SGD step per server round.",
    "Theorem 4 assumes the server's gradient unbiased for F (xi = 0); xi^2 tells how far it is.",
    "The proofs need means over rounds for G_1, G_2 where they put maxima: both are shown.",
    "m is the mean cohort of the simulated rounds, empty ones too, but at least 1, in snapshots "
    "and in other rounds alike (FAST's n).",
    "mu is the clients' weight decay: for a convex loss only, such as that of logistic regression.",
    "SAFARI 5 is for the least gradient; its G_4 is bounded from below, which needs no x_*.",
)


@dataclass(frozen=True)
class Probe:
    """The estimates before one round. F is the mean of the f_i, with the clients' weight decay."""

    round: int
    grad2: float  # |grad F|^2
    # |grad f0 - grad F|^2, None without server data.
    xi2: float | None
    mean_dissimilarity: float  # FSL's G_t^2
    # max_i |grad f_i - grad F|^2.
    sigma_g2: float
    # max_i E|g_B - grad f_i|^2.
    sigma2: float
    server_sigma2: float | None
    L: float
    # |1/m sum_i sum_k grad f_i|^2 over the cohort.
    path_cohort: float
    # Over all clients.
    path_all: float
    # Over m clients drawn uniformly.
    path_uniform: float


@dataclass(frozen=True)
class Advice:
    """The estimates of all probes, the theorems' premises, and their bounds."""

    probes: list[Probe]
    K: float
    # The number of clients that came in each simulated round, and its mean.
    cohorts: Sequence[int]
    m: float
    eta_c: float
    eta_s: float
    # False: it was set by theorem 4's eta_c = 2 eta_s / K.
    eta_s_given: bool
    # The run's probability of a client round, if it has one.
    client_prob: float | None
    safari_rates: list[Premise]
    safari: dict[str, Bound]
    fast_rates: list[Premise]
    fast: dict[str, Bound]
    # The clients' weight decay. If it is 0, there is nothing on strongly convex objectives:
    # SAFARI's theorem 5 and FAST's theorem 2, to which the last premise belongs.
    mu: float = 0.0
    convex_rates: Sequence[Premise] = ()
    safari_convex: dict[str, Bound] = field(default_factory=dict)
    fast_convex: dict[str, Bound] = field(default_factory=dict)
    # Why the run ended early; empty if it did not.
    stopped: str = ""


def over(probes: Sequence[Probe], name: str, how: str = "maxima") -> float:
    """Return the maximum or the mean of an estimate over the probes."""
    values = [float(getattr(probe, name)) for probe in probes]
    return max(values) if how == "maxima" else sum(values) / len(values)


def advise(run: Run, rounds: int = 20) -> Advice:
    """Simulate the first seed of a run for some rounds, and estimate what the theorems need.

    Args:
        run: the run.
        rounds: the number of rounds, at most the run's.

    Raises:
        ValueError: rounds < 1; the clients train otherwise than by plain SGD; or the
            run's data or model do not fit.
    """
    if rounds < 1:
        raise ValueError(f"advice needs at least one round, not {rounds}")
    local = run.local
    if local.optimizer != "sgd" or local.momentum or local.clip_norm:
        raise ValueError(
            "the theorems are for plain SGD; for advice give the run local.optimizer="
            '"sgd", local.momentum=0 and local.clip_norm=None (given: '
            f'"{local.optimizer}", {local.momentum} and {local.clip_norm})'
        )
    run = run.replace(replicates=1)
    work = Worker(run.cells, run.data.load(), run.model, objective=run.objective)
    sim = Simulation(run, work)
    last = min(rounds, run.rounds)
    # The rounds in which estimates are made lie evenly between the first and the last.
    due = {round(i * last / (PROBES - 1)) for i in range(PROBES)}
    probes = []
    cohorts = list[list[int]]()
    while True:
        if sim.round in due and not sim.replicates[0].diverged:
            probes.append(probe_at(run, work, sim))
        if sim.done or sim.round >= last:
            first = sim.replicates[0]
            sizes = [len(ids) for ids in cohorts + first.standing.counts.cohorts]
            return conclude(run, work, probes, sizes, first.diverged or first.stopped)
        # A round that is evaluated ends what the replicate counts.
        for record in sim.step():
            cohorts += record.cohorts


def probe_at(run: Run, work: Worker, sim: Simulation) -> Probe:
    """Make all estimates at the simulation's present parameters, without changing it."""
    w_P = sim.replicates[0].state.w_P
    key = Key(run.seed, sim.round)
    clients_NP = client_gradients(work, w_P.expand(run.data.clients, -1))
    server_P = server_gradient(work, w_P)
    unlike_N = dissimilarity(clients_NP)
    noise = [
        _noise(work, i, w_P, run.local.batch_size, full_P, key)
        for i, full_P in enumerate(clients_NP)
    ]
    start_NP = torch.randn(clients_NP.shape, generator=key.torch("advice smoothness"))
    L_N = smoothness(
        lambda w_NP: client_gradients(work, w_NP), w_P, start_NP, POWER_STEPS
    )
    rep = sim.replicates[0]
    _, cohort = rep.participation.pick(
        rep.standing.policy, run.data.clients, key, rep.standing.train_accuracy
    )
    uniform = key("advice uniform").choice(
        run.data.clients, len(cohort.ids), replace=False
    )
    paths_NP, extra_N = paths(run, work, w_P, sim.round, torch.tensor(noise))
    server_noise = None
    if server_P is not None:
        size = (server_update(run) or run.local).batch_size
        server_noise = _noise(work, SERVER, w_P, size, server_P, key)
    return Probe(
        round=sim.round,
        grad2=square(clients_NP.mean(0) + run.local.weight_decay * w_P),
        xi2=None if server_P is None else server_gap(server_P, clients_NP),
        mean_dissimilarity=float(unlike_N.mean()),
        sigma_g2=float(unlike_N.max()),
        sigma2=max(noise),
        server_sigma2=server_noise,
        L=float(L_N.max()) + run.local.weight_decay,
        path_cohort=_mean_square(paths_NP, extra_N, cohort.ids),
        path_all=_mean_square(paths_NP, extra_N, range(run.data.clients)),
        path_uniform=_mean_square(paths_NP, extra_N, uniform.tolist()),
    )


def paths(
    run: Run, work: Worker, w_P: Tensor, at: int, noise_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Return each client's sum of K mini-batch gradients along its local steps, and its noise.

    Args:
        run: the run.
        work: what trains the clients.
        w_P: the parameters from which all clients start.
        at: the round.
        noise_N: the variance of one mini-batch gradient of each client.
    """
    local = run.local.over(run.rounds)
    asked = Training(
        cells_R=np.array([0]),
        seeds_R=np.array([run.seed], np.uint64),
        round=at,
        call=CALL,
        clients_RM=np.arange(run.data.clients)[None],
        w=w_P[None],
        locals=[local],
    )
    update = work.trainer.train(Tasks.of([asked]))
    rate = local.rate(at)
    extra = [
        path_noise(float(noise), int(steps), n, run.local.batch_size)
        for noise, steps, n in zip(
            noise_N, update.steps_M, work.sizes(0)[0], strict=True
        )
    ]
    return update.delta_MP / rate, torch.tensor(extra)


def _mean_square(paths_NP: Tensor, extra_N: Tensor, ids: Sequence[int]) -> float:
    """Return |mean of some rows|^2 less its noise, but at least zero; without rows, zero."""
    rows = list(ids)
    if not rows:
        return 0.0
    noise = float(extra_N[rows].sum()) / len(rows) ** 2
    return max(0.0, square(paths_NP[rows].mean(0)) - noise)


def _noise(
    work: Worker, client: int, w_P: Tensor, size: int, full_P: Tensor, key: Key
) -> float:
    """Estimate the variance of a mini-batch gradient of a client or of the server."""
    return gradient_noise(batch_gradients(work, client, w_P, size, DRAWS, key), full_P)


def server_update(run: Run) -> LocalTraining | None:
    """Return with what rate and batches the server trains; None if it does not."""
    given = [
        getattr(part, "server_update", None)
        for part in run.algorithm.components()
        if hasattr(part, "server_update")
    ]
    return (given[0] or run.local) if given else None


def conclude(
    run: Run,
    work: Worker,
    probes: list[Probe],
    cohorts: Sequence[int],
    stopped: str = "",
) -> Advice:
    """Derive premises and bounds, at the run's learning rates and at the largest allowed."""
    sizes = work.sizes(0)[0]
    K = sum(run.local.num_steps(n) for n in sizes) / len(sizes)
    local = server_update(run)
    eta_c = run.local.lr
    eta_s = K * eta_c / 2 if local is None else local.lr
    m = max(1.0, sum(cohorts) / len(cohorts))
    # The bounds divide by L, which is 0 for a constant loss.
    L = max(over(probes, "L"), 1e-12)
    mu = run.local.weight_decay
    prob = getattr(run.algorithm, "client_prob", None)
    advice = Advice(
        probes=probes,
        K=K,
        cohorts=cohorts,
        m=m,
        eta_c=eta_c,
        eta_s=eta_s,
        eta_s_given=local is not None,
        client_prob=prob if isinstance(prob, float) else None,
        safari_rates=safari_rates(L, eta_c, eta_s, K),
        safari={},
        fast_rates=fast_rates(L, eta_c, K, m),
        fast={},
        stopped=stopped,
        mu=mu,
        convex_rates=convex_rates(L, mu, eta_c, eta_s, K, m) if mu else [],
    )
    for how in ("maxima", "means"):
        _bounds(advice, L, how)
    if mu:
        _convex_bounds(advice, L)
    return advice


def _convex_bounds(advice: Advice, L: float) -> None:
    """Fill in the bounds for strongly convex objectives.

    Theorem 5's bound is least for the least gradient. It is loosest for rates near 0, and
    FAST's for mu / (32 L^2 K), unless its premise on the rates is stricter.
    """
    s2 = over(advice.probes, "sigma_g2")
    g3 = min(p.grad2 for p in advice.probes)
    shape = (L, advice.mu)
    K = advice.K
    best = min(advice.convex_rates[-1].limit, advice.mu / (32 * L**2 * K))
    for how, eta5, eta2 in (
        ("as configured", advice.eta_c, advice.eta_c),
        ("most favourable", 0.0, best),
    ):
        g4 = least_g4(g3, s2, *shape)
        advice.safari_convex[how] = most_client_prob_convex(g3, g4, *shape, eta5, K)
        advice.fast_convex[how] = least_snapshot_prob_convex(s2, *shape, eta2, K)


def _bounds(advice: Advice, L: float, how: str) -> None:
    """Fill in both theorems' bounds, with G_1 and G_2 as maxima or as means."""
    probes = advice.probes
    K = advice.K
    s2 = over(probes, "sigma_g2")
    g1, g2, all_ = (
        over(probes, name, how) for name in ("grad2", "path_cohort", "path_all")
    )
    g3 = over(probes, "path_uniform")
    most_s = K * advice.safari_rates[0].limit / 2
    most_c = min(c.limit for c in advice.fast_rates)
    for rates, eta_s, eta_c in (
        ("as configured", advice.eta_s, advice.eta_c),
        ("largest allowed", most_s, most_c),
    ):
        advice.safari[f"{rates}, {how}"] = most_client_prob(s2, g1, g2, L, eta_s, K)
        advice.fast[f"{rates}, {how}"] = least_snapshot_prob(
            s2, all_, g2, g3, L, eta_c, K
        )


ROWS = (
    ("|grad F|^2 (G_1 of theorem 4)", "grad2"),
    ("sigma_G^2 = max_i |grad f_i - grad F|^2", "sigma_g2"),
    ("G_t^2 = mean_i of the same (FSL)", "mean_dissimilarity"),
    ("xi^2 = |grad f0 - grad F|^2 (FSL)", "xi2"),
    ("sigma^2, clients' mini-batches", "sigma2"),
    ("sigma_s^2, server's mini-batches", "server_sigma2"),
    ("L, largest curvature of a client", "L"),
    ("path gradients^2, cohort (G_2)", "path_cohort"),
    ("path gradients^2, all (FAST's G_1)", "path_all"),
    ("path gradients^2, m uniform (FAST's G_3)", "path_uniform"),
)


def advice_table(advice: Advice, title: str = "") -> Group:
    """Write estimates, premises and bounds as three tables, with the caveats below them.

    Args:
        advice: from `advise`.
        title: the title of the first table.
    """
    estimates = Table("estimate", title=title or None)
    for p in advice.probes:
        estimates.add_column(f"round {p.round}", justify="right")
    for label, name in ROWS:
        estimates.add_row(
            label, *(_three_digits(getattr(p, name)) for p in advice.probes)
        )
    premises = Table("theorem", "premise on the rates", "given", "limit", "holds")
    bounds = Table("theorem", "rates, G over the points", "bound", "meaning")
    theorems = [
        ("SAFARI 4", advice.safari_rates, "client_prob <=", advice.safari),
        ("FAST 1", advice.fast_rates, "snapshot_prob >=", advice.fast),
        ("SAFARI 5", advice.convex_rates[:-1], "client_prob <=", advice.safari_convex),
        ("FAST 2", advice.convex_rates[-1:], "snapshot_prob >=", advice.fast_convex),
    ]
    for theorem, rates, sign, found in theorems:
        if theorem.startswith("SAFARI") and advice.probes[0].xi2 is None:
            continue
        for c in rates:
            said = "yes" if c.holds else "NO"
            premises.add_row(
                theorem, c.name, _three_digits(c.given), _three_digits(c.limit), said
            )
        for how, b in found.items():
            value = "-" if b.value is None else f"{sign} {b.value:.4g}"
            bounds.add_row(theorem, how, value, b.meaning)
    given = "" if advice.eta_s_given else " (not given: set to K eta_c / 2)"
    own = (
        "" if advice.client_prob is None else f", client_prob = {advice.client_prob:g}"
    )
    least = min(advice.cohorts)
    most = max(advice.cohorts)
    sizes = "" if least == most else f" (the mean of cohorts of {least} to {most})"
    rates_line = (
        f"K = {advice.K:g}, m = {round(advice.m, 2):g}{sizes}, eta_c = {advice.eta_c:g}, "
        f"eta_s = {advice.eta_s:g}{given}{own}"
    )
    lines = [
        rates_line,
        *([f"The run ended early: {advice.stopped}"] if advice.stopped else []),
    ]
    notes = ["Caveats:", *(f"- {caveat}" for caveat in CAVEATS)]
    return Group(estimates, *lines, premises, bounds, *suggestion(advice), *notes)


def suggestion(advice: Advice) -> list[str]:
    """Say in words what follows from the advice."""
    out = []
    xi2 = [p.xi2 for p in advice.probes if p.xi2 is not None]
    if not xi2:
        out.append("The server holds no data: theorems 4 and 5 of SAFARI do not apply.")
    elif not all(c.holds for c in advice.safari_rates):
        out.append(
            "Theorem 4's premises do not hold at these rates: its bound guarantees nothing here "
            "and is a hint at most."
        )
    within = advice.safari["largest allowed, means"]
    if xi2 and within.value is not None:
        out.append(
            f"At rates it allows, theorem 4 needs client_prob <= {within.value:.3g}: "
            f"server rounds at least {1 - within.value:.3g} of the time."
        )
    if xi2 and max(xi2) > over(advice.probes, "sigma_g2"):
        out.append(
            "xi^2 exceeds sigma_G^2: the server's data is no better than one client's."
        )
    if not advice.mu:
        out.append(
            "Without weight decay, SAFARI's theorem 5 and FAST's 2 do not apply."
        )
    if not all(c.holds for c in advice.fast_rates):
        out.append("The premises of FAST's theorem 1 do not hold at this rate.")
    return out


def _three_digits(value: Any) -> str:
    """Write a number with three digits, or a dash if there is none."""
    return "-" if value is None else f"{value:.3g}"


def main(argv: Sequence[str] | None = None) -> None:
    """Print the advice on the run that the command line names."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("file", type=Path, help="the experiment file")
    parser.add_argument("--only", action="append", default=[], metavar="AXIS=LABEL")
    parser.add_argument("--rounds", type=int, default=20, help="rounds to simulate")
    options = parser.parse_args(argv)
    only = dict(text.partition("=")[::2] for text in options.only)
    manifest, runs, _ = known_runs(load_sweep(options.file))
    first = manifest.select(only)[0]
    name = run_name(manifest.labels()[first], first)
    Console().print(advice_table(advise(runs[first], options.rounds), name))


if __name__ == "__main__":
    main()
