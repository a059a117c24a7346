"""The right-hand sides of the theorems on convergence, as the papers print them.

Sources: SAFARI, theorems 4 and 5 (docs/papers.md#safari); FAST, theorems 1 and 2
(docs/papers.md#fast); FSL, theorems 1 and 2 (docs/papers.md#fsl). The bounds on q are in
`experiments/theorems/advise.py`. `tests/theorems/test_error_bounds.py` compares each with a
value that was computed by hand.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """What the theorems assume of a problem.

    Args:
        L: smoothness of all objectives.
        mu: strong convexity of all objectives; 0 if there is none.
        sigma_g2: the largest |grad f_i - grad F|^2 of a client.
        g2: the mean |grad f_i - grad F|^2 over the clients (FSL).
        xi2: |grad f_0 - grad F|^2 of the server (FSL).
        sigma2: the variance of a client's stochastic gradient.
        sigma_s2: the variance of the server's stochastic gradient.
    """

    L: float
    mu: float = 0.0
    sigma_g2: float = 0.0
    g2: float = 0.0
    xi2: float = 0.0
    sigma2: float = 0.0
    sigma_s2: float = 0.0


def safari4(c, gap, rounds, eta_s, K, m, q):
    """SAFARI, theorem 4: bound on the mean over the rounds of E|grad F|^2.

    Args:
        c: the constants.
        gap: F(x_0) - F(x_*).
        rounds: the number of rounds R.
        eta_s: the server's learning rate; the clients' is 2 eta_s / K.
        K: the number of local steps.
        m: the number of clients in a cohort.
        q: the probability of a client round.
    """
    drift = 80 * q * c.L**2 * eta_s**2 / K * (c.sigma2 + 6 * K * c.sigma_g2)
    noise = 8 * c.L * q * eta_s / (m * K) * c.sigma2
    server = c.L * eta_s * (1 - q) * c.sigma_s2
    return 2 * gap / (rounds * eta_s) + server + drift + noise


def safari5(c, start2, rounds, eta_c, K, m, q):
    """SAFARI, theorem 5: bound on E|x_R - x_*|^2; the server's rate is `safari5_server_rate`.

    Args:
        c: the constants.
        start2: |x_0 - x_*|^2.
        rounds: the number of rounds R.
        eta_c: the clients' learning rate.
        K: the number of local steps.
        m: the number of clients in a cohort.
        q: the probability of a client round.
    """
    eta_s = safari5_server_rate(c, eta_c, K)
    drift = 5 * K * eta_c**2 * (c.sigma2 + 6 * K * c.sigma_g2)
    delta = (
        8 * q * eta_c * K / c.mu * c.sigma_g2
        + 2 * q * eta_c / (c.mu * m) * c.sigma2
        + 4 * q * c.L * (1 + K * eta_c * c.L) / c.mu * drift
        + (1 - q) * (c.L + c.mu) / (2 * c.L * c.mu) * eta_s * c.sigma_s2
    )
    return (1 - eta_c * K * c.mu / 2) ** rounds * start2 + delta


def safari5_server_rate(c, eta_c, K):
    """SAFARI, theorem 5: eta_s, from eta_c K mu / 2 = 2 eta_s L mu / (L + mu)."""
    return eta_c * K * (c.L + c.mu) / (4 * c.L)


def fast1(c, gap, rounds, eta_c, K, m, n, q):
    """FAST, theorem 1: bound on the mean over the rounds of E|grad F|^2.

    Args:
        c: the constants.
        gap: F(x_0) - F(x_*).
        rounds: the number of rounds R.
        eta_c: the clients' learning rate.
        K: the number of local steps.
        m: the number of clients in a snapshot.
        n: the number of clients in other rounds.
        q: the probability of a snapshot.
    """
    noise = 4 * (q * n + (1 - q) * m) / (m * n) * c.L * eta_c * c.sigma2
    drift = (120 * (1 - q) + 60 * q) * (c.L * K * eta_c) ** 2 * c.sigma_g2
    return 4 * gap / (K * rounds * eta_c) + noise + drift


def fast2(c, start2, rounds, eta_c, K, m, n, q):
    """FAST, theorem 2: bound on E|x_R - x_*|^2.

    This is the version of the main text, whose premise on q has sigma_G^2. The appendix has
    that factor in the second term here instead (equation 25).

    Args:
        c: the constants.
        start2: |x_0 - x_*|^2.
        rounds: the number of rounds R.
        eta_c: the clients' learning rate.
        K: the number of local steps.
        m: the number of clients in a snapshot.
        n: the number of clients in other rounds.
        q: the probability of a snapshot.
    """
    absent = (1 - q) / (2 * c.mu) * K * eta_c
    unlike = 8 / c.mu * K * eta_c * c.sigma_g2
    noise = 2 * (q * n + (1 - q) * m) / (m * n * c.mu) * eta_c * c.sigma2
    return math.exp(-c.mu * K * rounds * eta_c) * start2 + absent + unlike + noise


def fsl1(c, grad2, step, K, K0, S, N, gamma, eta_g=1.0):
    """FSL, theorem 1: bound on E F~(x_{t+1}) - F~(x_t), with F~ = (F + gamma f_0)/(1 + gamma).

    Args:
        c: the constants.
        grad2: |grad F~(x_t)|^2.
        step: K eta_l eta_g = K_0 eta_0.
        K: the number of the clients' local steps.
        K0: the number of the server's steps.
        S: the number of clients in a cohort.
        N: the number of clients.
        gamma: the weight of the server's objective.
        eta_g: the server's rate for the clients' mean update.
    """
    h, floor = _fsl(c, step, K, K0, S, N, gamma, eta_g)
    return -step * h * grad2 + step * floor


def fsl2(c, gap, rounds, step, K, K0, S, N, gamma, eta_g=1.0):
    """FSL, theorem 2: bound on the least E|grad F~(x_t)|^2 of the first rounds.

    Args:
        c: the constants.
        gap: F~(x_0) - min F~.
        rounds: the number of rounds T.
        step: K eta_l eta_g = K_0 eta_0.
        K: the number of the clients' local steps.
        K0: the number of the server's steps.
        S: the number of clients in a cohort.
        N: the number of clients.
        gamma: the weight of the server's objective.
        eta_g: the server's rate for the clients' mean update.
    """
    h, floor = _fsl(c, step, K, K0, S, N, gamma, eta_g)
    return (gap / (rounds * step) + floor) / h


def _fsl(c, step, K, K0, S, N, gamma, eta_g):
    """Return h of theorem 1, and what the bound adds to the gradient's term, over `step`."""
    rho = (N - S) / (N - 1)
    kappa = max(4 * gamma**3, 2 / eta_g**2 + 3 * gamma**2)
    sampled = c.sigma2 / K + rho * c.g2
    psi = gamma**2 * c.sigma_s2 / K0 + sampled / S
    phi = (
        gamma**2 * psi
        + 2 * gamma**2 / S * sampled
        + (2 * c.g2 + c.sigma2 / K) / eta_g**2
    )
    curved = step * c.L
    h = gamma + 1 / 2 - curved * (1 + gamma) / 2 * (3 * gamma + 3 + 16 * kappa * curved)
    drift = 8 * curved**2 * (gamma * kappa / (1 + gamma) * c.xi2 + phi)
    return h, 5 * curved * psi + drift
