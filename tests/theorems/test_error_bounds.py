"""The bounds of the theorems, by hand and against the inequalities of their proofs."""

import math

import pytest

from experiments.theorems import bounds
from experiments.theorems.premises import (
    convex_rates,
    least_g4,
    least_snapshot_prob_convex,
    most_client_prob_convex,
)

C = bounds.Constants(L=2, mu=1, sigma_g2=3, sigma2=5, sigma_s2=8)


def test_safari_4_by_hand() -> None:
    # 2 gap / (R eta); L eta (1 - q) 8; 80 q L^2 eta^2 / K (5 + 6 * 2 * 3); 8 L q eta / (m K) 5
    by_hand = 8 + 0.8 + 0.8 * 41 + 0.4
    found = bounds.safari4(C, gap=4, rounds=10, eta_s=0.1, K=2, m=5, q=0.5)
    assert found == pytest.approx(by_hand)


def test_safari_5_by_hand() -> None:
    assert bounds.safari5_server_rate(C, 0.1, 2) == pytest.approx(0.075)
    # eta_bar = .1; the drift is 5 K eta^2 (5 + 6 * 2 * 3) = 4.1
    by_hand = 0.9 * 9 + 2.4 + 0.1 + 5.6 * 4.1 + 0.375 * 0.075 * 8
    found = bounds.safari5(C, start2=9, rounds=1, eta_c=0.1, K=2, m=5, q=0.5)
    assert found == pytest.approx(by_hand)


def test_fast_1_by_hand() -> None:
    # 4 * 4 / (2 * 10 * .1), 4 * 7.5 / 50 * L eta 5, 90 (L K eta)^2 3
    by_hand = 8 + 0.6 + 90 * 0.16 * 3
    found = bounds.fast1(C, gap=4, rounds=10, eta_c=0.1, K=2, m=5, n=10, q=0.5)
    assert found == pytest.approx(by_hand)


def test_fast_2_by_hand() -> None:
    by_hand = 9 * math.exp(-2) + 0.05 + 4.8 + 0.15
    found = bounds.fast2(C, start2=9, rounds=10, eta_c=0.1, K=2, m=5, n=10, q=0.5)
    assert found == pytest.approx(by_hand)


def test_fsl_by_hand() -> None:
    c = bounds.Constants(L=2, g2=6, xi2=3, sigma2=8, sigma_s2=4)
    shape = {"K": 2, "K0": 4, "S": 5, "N": 21, "gamma": 1.0, "eta_g": 2.0}
    # rho_s = .8, kappa = 4, Psi = 1 + 8.8 / 5, Phi = Psi + 2 / 5 * 8.8 + (12 + 4) / 4
    h = 1.5 - 0.02 * (6 + 16 * 4 * 0.02)
    floor = 5 * 0.02 * 2.76 + 8 * 0.0004 * (6 + 10.28)
    one = bounds.fsl1(c, grad2=2, step=0.01, **shape)
    assert one == pytest.approx(0.01 * (floor - 2 * h))
    many = bounds.fsl2(c, gap=5, rounds=100, step=0.01, **shape)
    assert many == pytest.approx((5 + floor) / h)


def test_the_convex_bounds_on_q_by_hand() -> None:
    # e = .1, A = 1.6 * 9.4 = 15.04, B = 1/2 - 9 * .1 / 16 = .44375
    q = most_client_prob_convex(2, 1, L=2, mu=1, eta_c=0.1, K=2).value
    assert q == pytest.approx(0.8875 / (0.8875 + 30.08 - 4))
    assert most_client_prob_convex(1, 9, L=2, mu=1, eta_c=0.1, K=2).value == 1
    assert most_client_prob_convex(1, 0, L=2, mu=1, eta_c=2.0, K=2).value is None
    # mu K eta = .01, 16 (L K eta)^2 = .0064
    q = least_snapshot_prob_convex(2, L=1, mu=0.5, eta_c=0.01, K=2).value
    assert q == pytest.approx(1 - 0.0036 / 8)
    assert least_snapshot_prob_convex(2, L=1, mu=0.5, eta_c=0.1, K=2).value is None
    assert least_snapshot_prob_convex(1e-4, L=1, mu=0.5, eta_c=0.01, K=2).value == 0


def test_at_theorem_5s_q_the_terms_that_its_proof_drops_cancel() -> None:
    """They are those of G_3 and G_4 in equations 78 to 80."""
    L, mu, eta_c, K, g3, g4 = 1.3, 0.4, 0.02, 3, 0.7, -0.2
    eta_s = eta_c * K * (L + mu) / (4 * L)
    q = most_client_prob_convex(g3, g4, L, mu, eta_c, K).value
    assert q is not None and 0 < q < 1
    step = eta_c * K
    clients = 4 * step**2 * (1 + 15 * step * L * (1 + step * L)) * g3 - 2 * step * g4
    server = eta_s * (eta_s - 2 / (L + mu)) * g3
    assert q * clients + (1 - q) * server == pytest.approx(0, abs=1e-12)


def test_at_fast_2s_q_the_distance_shrinks_as_its_proof_says() -> None:
    """Equation 39 with epsilon = sigma_G^2 / (K eta_c)."""
    L, mu, eta_c, K, sigma_g2 = 1.3, 0.4, 0.004, 2, 0.3
    q = least_snapshot_prob_convex(sigma_g2, L, mu, eta_c, K).value
    assert q is not None and 0 < q < 1
    step = eta_c * K
    shrink = -1.5 * mu * step + (1 - q) * 2 * sigma_g2 + 8 * (L * step) ** 2
    assert shrink == pytest.approx(-mu * step)


@pytest.mark.parametrize(
    ("sigma_g2", "bound"), [(1, -0.5), (9, 2 - 6), (0.0625, 0.5 - 0.25)]
)
def test_the_lower_bound_on_g4_by_hand(sigma_g2: float, bound: float) -> None:
    # the distance lies between 1 and 2
    assert least_g4(4, sigma_g2, L=2, mu=1) == pytest.approx(bound)


def test_the_convex_rates_by_hand() -> None:
    rates = convex_rates(L=2, mu=1, eta_c=0.1, eta_s=0.075, K=2, m=5)
    assert [p.limit for p in rates] == pytest.approx([2 / 3, 0.075, 1 / 32, 1 / 400])
    assert [p.holds for p in rates] == [True, True, False, False]
