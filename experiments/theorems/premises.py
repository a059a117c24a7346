"""What the theorems of SAFARI and FAST demand of the learning rates and probabilities.

Sources: SAFARI, theorems 4 and 5 (docs/papers.md#safari), and FAST, theorems 1 and 2
(docs/papers.md#fast). Theorem 5 and FAST's theorem 2 are for strongly convex objectives.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Premise:
    """One premise of a theorem: given <= limit, or given == limit.

    Attributes:
        name: the premise as a formula.
        given: the value of its left side.
        limit: the value of its right side.
        equal: whether both must be equal.
    """

    name: str
    given: float
    limit: float
    equal: bool = False

    @property
    def holds(self) -> bool:
        """Return whether the premise holds, up to a relative error of 1e-6."""
        if self.equal:
            return math.isclose(self.given, self.limit, rel_tol=1e-6)
        return self.given <= self.limit * (1 + 1e-6)


@dataclass(frozen=True)
class Bound:
    """A bound on a probability.

    Attributes:
        value: the bound; None where the theorem says nothing.
        meaning: what the bound says, or why there is none.
    """

    value: float | None
    meaning: str


def safari_rates(L: float, eta_c: float, eta_s: float, K: float) -> list[Premise]:
    """Return the premises of SAFARI's theorem 4 on the rates of clients and server, K local steps.

    Printed: eta_c <= 1/(4 sqrt(30 L K)), the root over all. The proof (before eq. 47)
    needs 1/2 - 30 L^2 K^2 eta_c^2 >= 1/4, that is eta_c <= 1/(2 sqrt(30) L K); units
    tell too that L K stands outside the root. Here: the printed 4, L K outside, which is
    sufficient, and twice as strict as the proof needs. Both imply 1/(8 L K), used at eq. 41.
    eta_s <= 1/L keeps the factor 1 - L eta_s of eq. 54 from changing sign.
    """
    limit = 1 / (4 * math.sqrt(30) * L * K)
    return [
        Premise("eta_c <= 1/(4 sqrt(30) L K)", eta_c, limit),
        Premise("eta_c = 2 eta_s / K", eta_c, 2 * eta_s / K, equal=True),
        Premise("eta_s <= 1/L", eta_s, 1 / L),
    ]


def most_client_prob(
    sigma_g2: float, g1: float, g2: float, L: float, eta_s: float, K: float
) -> Bound:
    """SAFARI, theorem 4: clients may come with probability at most this q.

    q <= 1 / ((4 sigma_G^2 - 4 G_2 (1/(2 K^2) - 2 L eta_s / K^2)) / ((1 - L eta_s) G_1)
    + 1)

    with G_1 = max over server rounds of |grad F(x_r)|^2 and G_2 = max over client
    rounds of |1/m sum_i sum_k grad F_i(x_rk^i)|^2. The theorem prints eta_s^2 where eq.
    54-55, the last line of the proof and section A.1 have eta_s; eta_s follows from eq.
    50 and is used here. Eq. 55 puts maxima where the sums of eq. 54 need means: with maxima
    the bound is necessary for eq. 54, with means over rounds sufficient. The caller
    chooses by what is passed as g1 and g2.

    Assumes L-smooth f_i, unbiased gradients of bounded variance (the server's for F
    itself), and |grad f_i - grad F|^2 <= sigma_G^2 for every i.
    """
    if L * eta_s >= 1:
        return Bound(
            None, f"says nothing: L eta_s = {L * eta_s:.3g}, and it needs less than 1"
        )
    need = 4 * sigma_g2 - 4 * g2 * (1 / (2 * K**2) - 2 * L * eta_s / K**2)
    gain = (1 - L * eta_s) * g1
    if need <= 0:
        return Bound(1.0, "no limit: client rounds descend by themselves")
    return Bound(gain / (gain + need), "client rounds with at most this probability")


def fast_rates(L: float, eta_c: float, K: float, m: float) -> list[Premise]:
    """Return the premises of FAST's theorem 1 on the clients' learning rate.

    eta_c <= min(1/(8 L K), 1/(5 m L K)), where m clients come in each round. In print, the
    second term is (n q + m (1 - q)) / (5 m n L K), for m clients in a snapshot and n in
    other rounds, which is the same for n = m. The proof needs
    eta_c <= 1/(2 sqrt(30) L K) too: before eq. 22, where K L stands under the root.
    (Before eq. 11 it needs 1/(2 sqrt(15) L K), which is more.) This is stricter than
    the first term, and not in the theorem's statement.
    """
    return [
        Premise("eta_c <= 1/(8 L K)", eta_c, 1 / (8 * L * K)),
        Premise("eta_c <= 1/(5 m L K)", eta_c, 1 / (5 * m * L * K)),
        Premise(
            "eta_c <= 1/(2 sqrt(30) L K) (proof)",
            eta_c,
            1 / (2 * math.sqrt(30) * L * K),
        ),
    ]


def least_snapshot_prob(
    sigma_g2: float, g1: float, g2: float, g3: float, L: float, eta_c: float, K: float
) -> Bound:
    """FAST, theorem 1: snapshots (uniform rounds) with probability at least this q.

    q >= A / (A + B),  A = (2 L K eta_c - 1) G_2 + 2 K^2 sigma_G^2,  B = G_1 - 2 L K
    eta_c G_3

    with, by appendix A.2 after eq. 24, the maxima over rounds of |1/s sum_i sum_k grad
    F_i|^2: G_1 over all M clients and G_3 over the m of a snapshot, in snapshot rounds;
    G_2 over the n that come, in arbitrary rounds. It is (1 - q) A <= q B solved for q,
    which the ratio is only where A + B > 0; the other cases are told apart here. As in
    SAFARI's eq. 55 the proof needs means for G_1 and G_2 where it has maxima.

    Assumes L-smooth F and f_i, unbiased client gradients of bounded variance,
    |grad f_i - grad F|^2 <= sigma_G^2 for every i, and snapshots that are uniform.
    """
    a = (2 * L * K * eta_c - 1) * g2 + 2 * K**2 * sigma_g2
    b = g1 - 2 * L * K * eta_c * g3
    if a <= 0:
        return Bound(
            0.0, "no snapshot demanded: arbitrary rounds descend by themselves"
        )
    if b < 0:
        return Bound(
            None, "says nothing: no q satisfies it, since G_1 < 2 L K eta_c G_3"
        )
    return Bound(a / (a + b), "snapshots with at least this probability")


def convex_rates(
    L: float, mu: float, eta_c: float, eta_s: float, K: float, m: float
) -> list[Premise]:
    """Return the premises on the rates of SAFARI's theorem 5 (three) and FAST's 2 (the last).

    The third is not printed; a lemma of the proof needs it. m is FAST's larger cohort.
    """
    return [
        Premise("eta_s <= 2/(L + mu)", eta_s, 2 / (L + mu)),
        Premise(
            "eta_s = eta_c K (L + mu)/(4 L)",
            eta_s,
            eta_c * K * (L + mu) / (4 * L),
            True,
        ),
        Premise("eta_c <= 1/(8 L K) (proof)", eta_c, 1 / (8 * L * K)),
        Premise("eta_c <= 1/(20 m L K)", eta_c, 1 / (20 * m * L * K)),
    ]


def most_client_prob_convex(
    g3: float, g4: float, L: float, mu: float, eta_c: float, K: float
) -> Bound:
    """SAFARI, theorem 5: in a round with G_3 and G_4, q may be at most this.

    q <= 1 / (1 + (A G_3 - 4 G_4 / mu) / (B G_3))

    with e = eta_c K mu / 2, A = 16 e / mu^2 (1 + 30 L e / mu (1 + 2 L e / mu)),
    B = 1 / (L mu) - (L + mu)^2 e / (4 L^2 mu^2), G_3 = |grad F(x_r)|^2 and G_4 =
    1/m sum_i F_i(x_r) - F_i(x_*) over the cohort. In print, A has 4 for 16, but eq. 78 has
    4 q eta_c^2 K^2, and eta_c K = 2 e / mu; B has 1/(L + mu) for 1/(L mu), which is the
    product of eq. 81's (L + mu)/(2 L mu) and 2/(L + mu).

    Assumes L-smooth and mu-strongly convex f_i; the rest is that of theorem 4.
    """
    e = eta_c * K * mu / 2
    a = 16 * e / mu**2 * (1 + 30 * L * e / mu * (1 + 2 * L * e / mu))
    need = a * g3 - 4 / mu * g4
    gain = (1 / (L * mu) - (L + mu) ** 2 * e / (2 * L * mu) ** 2) * g3
    if gain < 0:
        return Bound(None, "says nothing: eta_s is above 2/(L + mu)")
    if need <= 0:
        return Bound(1.0, "no limit: client rounds approach the optimum by themselves")
    return Bound(gain / (gain + need), "client rounds with at most this probability")


def least_g4(g3: float, sigma_g2: float, L: float, mu: float) -> float:
    """Return a lower bound on theorem 5's G_4 that needs no optimum x_*.

    By strong convexity and |grad f_i(x_*)| <= sigma_G, G_4 is at least mu d^2 / 2 - sigma_G
    d at the distance d = |x_r - x_*|, which lies between sqrt(G_3) / L and sqrt(G_3) / mu.
    """
    steep = math.sqrt(g3)
    sigma = math.sqrt(sigma_g2)
    d = min(max(sigma / mu, steep / L), steep / mu)
    return mu * d**2 / 2 - sigma * d


def least_snapshot_prob_convex(
    sigma_g2: float, L: float, mu: float, eta_c: float, K: float
) -> Bound:
    """FAST, theorem 2: snapshots with probability at least this q.

    q >= 1 - (mu K eta_c - 16 L^2 K^2 eta_c^2) / (4 sigma_G^2), as in the main text, where
    eq. 38 has epsilon = sigma_G^2 / (K eta_c). The appendix has 1 / (K eta_c), another bound.

    Assumes mu-strongly convex f_i; the rest is that of theorem 1.
    """
    allowed = mu * K * eta_c - 16 * (L * K * eta_c) ** 2
    if allowed < 0:
        return Bound(None, "says nothing: eta_c is above mu/(16 L^2 K)")
    least = 1 - allowed / max(4 * sigma_g2, allowed)
    return Bound(least, "snapshots with at least this probability")
