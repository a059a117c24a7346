"""What the papers' theorems speak of, from gradients: dissimilarity, noise, bounds on q.

Pure functions. Where the gradients come from is the caller's affair. F is the mean of ALL
clients' objectives, each weighing the same; f0 is the server's. SAFARI is Yang et al. (ICML
2024), FSL is Mai, La and Zhang, FAST is the paper on snapshots.

Suffixes: _N clients, _P flat parameters, _J mini-batches.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def square(v_P: Tensor) -> float:
    """|v|^2, summed in float64."""
    return float(v_P.double().square().sum())


def server_gap(server_P: Tensor, clients_NP: Tensor) -> float:
    """xi^2 = |grad f0 - grad F|^2 (FSL, assumption 3 and figure 9).

    SAFARI and FAST have no such term: their server gradient is unbiased for grad F, xi = 0.
    """
    return square(server_P - clients_NP.mean(0))


def dissimilarity(clients_NP: Tensor) -> Tensor:
    """|grad f_i - grad F|^2 of each client, [N] float64.

    Its mean is FSL's G_t^2 (assumption 2, figure 9); its maximum is the least sigma_G^2 that
    SAFARI's assumption 5 (FAST's 3: "for every i") allows at this point.
    """
    return (clients_NP - clients_NP.mean(0)).double().square().sum(1)


def gradient_noise(batches_JP: Tensor, full_P: Tensor | None = None) -> float:
    """Unbiased estimate of E|g_B - grad f|^2 from gradients of J mini-batches of one size.

    With the full gradient the mean square around it; without, the sample variance (J - 1), for
    which the batches must be drawn independently of each other. The sigma^2 of SAFARI's
    assumption 4 and FAST's 2 bounds this for every client and at every point.
    """
    if full_P is not None:
        return float((batches_JP - full_P).double().square().sum(1).mean())
    if len(batches_JP) < 2:
        raise ValueError("gradient noise without the full gradient needs two mini-batches or more")
    return float((batches_JP - batches_JP.mean(0)).double().square().sum() / (len(batches_JP) - 1))


def path_noise(sigma2: float, steps: int, samples: int, batch_size: int) -> float:
    """E|sum of K mini-batch gradients - K grad f|^2 at one point, batches cut from permutations.

    A whole pass over the samples sums to the full gradient, without noise; the k batches of an
    unfinished pass have k sigma^2 (n - k B) / (n - B), with sigma^2 that of one batch. The K
    sigma^2 of the proofs (SAFARI eq. 44) is for independent batches. A short last batch of a
    pass, which weighs as much as a whole one, is neglected.
    """
    k = steps % -(-samples // batch_size)
    return k * sigma2 * (samples - k * batch_size) / (samples - batch_size) if k else 0.0


def smoothness(
    gradient: Callable[[Tensor], Tensor],
    w_P: Tensor,
    start_NP: Tensor,
    steps: int = 10,
    eps: float = 1e-2,
) -> Tensor:
    """Largest |eigenvalue| of each client's Hessian at w, [N]: power iteration.

    v <- H v / |H v| with H v = (grad f(w + eps v) - grad f(w - eps v)) / (2 eps), from the rows
    of `start_NP`; `gradient` maps [N, P], row i parameters of client i, to [N, P]. This is a
    LOWER estimate of the L of the assumptions (SAFARI 3, FAST 1): it grows towards the largest
    curvature at this one point, and L bounds all points.
    """
    v_NP = start_NP / start_NP.norm(dim=1, keepdim=True)
    size_N1 = torch.zeros_like(v_NP[:, :1])
    for _ in range(steps):
        v_NP = (gradient(w_P + eps * v_NP) - gradient(w_P - eps * v_NP)) / (2 * eps)
        size_N1 = v_NP.norm(dim=1, keepdim=True)
        v_NP = v_NP / size_N1.clamp_min(1e-30)
    return size_N1[:, 0]
