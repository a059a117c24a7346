"""The quantities of the papers' theorems, computed from gradients: dissimilarity and noise.

The first four functions take gradients of a machine's samples; the others are pure, and
the caller provides the gradients. F is the mean of the objectives of ALL clients with equal
weights, and f0 is the server's objective. The papers are those of docs/papers.md#safari,
#fsl and #fast.

The suffix _J stands for mini-batches; the others are in docs/glossary.md.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.randomness import Key
from raysafl.runtime.in_process import Worker
from raysafl.training.inputs import Batch
from raysafl.training.trainer import LocalTrainer

# Samples of a row in one pass of `gradients`.
GRADIENT_BATCH = 250


@torch.no_grad()
def gradients(
    trainer: LocalTrainer, w_TP: Tensor, indices: Sequence[NDArray[np.int64]]
) -> Tensor:
    """Return the gradients [T, P] of mean losses, without dropout, on the CPU.

    Row t is the gradient at w_TP[t] of the mean loss over the training samples indices[t],
    at least one.
    """
    stack = trainer.engine.max_stack(GRADIENT_BATCH)
    rows = [
        _gradients(trainer, w_TP[t : t + stack], indices[t : t + stack])
        for t in range(0, len(indices), stack)
    ]
    return torch.cat(rows).cpu()


def _gradients(
    trainer: LocalTrainer, w_TP: Tensor, indices: Sequence[NDArray[np.int64]]
) -> Tensor:
    """Compute the `gradients` of one stack, a batch of each row at a time."""
    w_TP = w_TP.to(trainer.device)
    counts_T1 = torch.tensor([[len(rows)] for rows in indices], device=trainer.device)
    most = int(counts_T1.max())
    total_TP = torch.zeros_like(w_TP)
    for start in range(0, most, GRADIENT_BATCH):
        width = min(GRADIENT_BATCH, most - start)
        index_TB = torch.full((len(indices), width), -1)
        for t, rows in enumerate(indices):
            part = torch.from_numpy(rows[start : start + width])
            index_TB[t, : len(part)] = part
        index_TB = index_TB.to(trainer.device)
        x_TB, y_TB = trainer.inputs.at(index_TB.clamp_min(0))
        weight_TB = (index_TB >= 0) / counts_T1
        batch = Batch(w_TP, x_TB, y_TB, weight_TB, None)
        total_TP += trainer.engine.gradients(batch).g_TP
    return total_TP


def client_gradients(work: Worker, w_NP: Tensor) -> Tensor:
    """Return the full gradient [N, P] of each client i's mean loss at w_NP[i]."""
    return gradients(work.trainer, w_NP, work.population.splits[0].clients)


def server_gradient(work: Worker, w_P: Tensor) -> Tensor | None:
    """Return the full gradient [P] of the server's mean loss, None without data."""
    held = work.population.splits[0].server
    return gradients(work.trainer, w_P[None], [held])[0] if len(held) else None


def batch_gradients(
    work: Worker, client: int, w_P: Tensor, size: int, draws: int, key: Key
) -> Tensor:
    """Return the gradients [draws, P] of independent mini-batches of one client.

    Args:
        work: holds the samples of the first cell.
        client: the client's id, or SERVER.
        w_P: the parameters at which gradients are taken.
        size: samples per mini-batch, drawn without replacement (all, if there are fewer).
        draws: the number of mini-batches.
        key: the source of randomness.
    """
    held = work.population.splits[0].of(client)
    rng = key("gradient noise", client)
    picks = [
        rng.choice(held, min(size, len(held)), replace=False) for _ in range(draws)
    ]
    return gradients(work.trainer, w_P.expand(draws, -1), picks)


def square(v_P: Tensor) -> float:
    """Return |v|^2, summed in float64."""
    return float(v_P.double().square().sum())


def server_gap(server_P: Tensor, clients_NP: Tensor) -> float:
    """Return xi^2 = |grad f0 - grad F|^2 (FSL, assumption 3 and figure 9).

    SAFARI and FAST have no such term: their server gradient is unbiased for grad F, xi
    = 0.
    """
    return square(server_P - clients_NP.mean(0))


def dissimilarity(clients_NP: Tensor) -> Tensor:
    """Return |grad f_i - grad F|^2 of each client, [N] float64.

    Its mean is FSL's G_t^2 (assumption 2, figure 9); its maximum is the least sigma_G^2
    that SAFARI's assumption 5 (FAST's 3: "for every i") allows at this point.
    """
    return (clients_NP - clients_NP.mean(0)).double().square().sum(1)


def gradient_noise(batches_JP: Tensor, full_P: Tensor) -> float:
    """Estimate E|g_B - grad f|^2 without bias, from gradients of J mini-batches of one size.

    It is the mean square around the full gradient. The sigma^2 of SAFARI's assumption 4
    and FAST's assumption 2 bounds it for every client at every point.

    Args:
        batches_JP: the gradients of the mini-batches.
        full_P: the full gradient.
    """
    return float((batches_JP - full_P).double().square().sum(1).mean())


def path_noise(sigma2: float, steps: int, samples: int, batch_size: int) -> float:
    """Return E|sum of K mini-batch gradients - K grad f|^2 for batches cut from permutations.

    A whole pass over the samples sums to the full gradient without noise. The k batches
    of an unfinished pass have the noise k sigma^2 (n - k B) / (n - B). The K sigma^2 of
    the proofs (SAFARI, eq. 44) is for independent batches. A short last batch of a
    pass, which weighs as much as a whole one, is neglected.

    Args:
        sigma2: the variance sigma^2 of the gradient of one mini-batch.
        steps: the number K of local steps.
        samples: the number n of samples of the client.
        batch_size: the size B of a mini-batch.
    """
    k = steps % -(-samples // batch_size)
    return (
        k * sigma2 * (samples - k * batch_size) / (samples - batch_size) if k else 0.0
    )


def smoothness(
    gradient: Callable[[Tensor], Tensor],
    w_P: Tensor,
    start_NP: Tensor,
    steps: int = 10,
    eps: float = 1e-2,
) -> Tensor:
    """Estimate the largest |eigenvalue| of each client's Hessian at w by power iteration, [N].

        H v = (grad f(w + eps v) - grad f(w - eps v)) / (2 eps)
        v  <- H v / |H v|

    This is a LOWER estimate of the L of the assumptions (SAFARI 3, FAST 1): it grows
    towards the largest curvature at this one point, while L bounds all points.

    Args:
        gradient: maps parameters [N, P], one row per client, to the clients' gradients
            there.
        w_P: the point.
        start_NP: the first v of each client.
        steps: the number of iterations.
        eps: the step of the finite difference.
    """
    v_NP = start_NP / start_NP.norm(dim=1, keepdim=True)
    size_N1 = torch.zeros_like(v_NP[:, :1])
    for _ in range(steps):
        v_NP = (gradient(w_P + eps * v_NP) - gradient(w_P - eps * v_NP)) / (2 * eps)
        size_N1 = v_NP.norm(dim=1, keepdim=True)
        v_NP = v_NP / size_N1.clamp_min(1e-30)
    return size_N1[:, 0]
