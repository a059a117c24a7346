"""The advice of `raysafl advise` as tables for a terminal."""

from typing import Any

from rich.console import Group
from rich.table import Table

from raysafl.theory.advice import CAVEATS, Advice, over

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
        advice: from `raysafl.theory.advice.advise`.
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
