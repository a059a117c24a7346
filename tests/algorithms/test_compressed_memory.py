"""What clients remember under compression, against the definitions in float64."""

import torch
from helpers.quadratics import ALL, LOCAL, START, play, train_locally
from torch import Tensor

from raysafl import SCAFFOLD, Algorithm, Compressed, FedDyn, TopK

# Random cohorts of one to four clients, as a trace gives them.
COHORTS = [[0, 1, 2, 3], [1, 3], [2], [0, 2, 3], [1], [0, 1, 2, 3], [0], [1, 2]] * 4


def largest(vector: Tensor) -> Tensor:
    """The larger of two numbers, and zero for the other."""
    return torch.where(vector.abs() == vector.abs().max(), vector, 0.0)


def compressed(rows: dict[int, Tensor], residual: dict[int, Tensor]) -> Tensor:
    """What arrives of the clients' updates [M, P]; what does not stays in their residuals."""
    sent = []
    for i, delta in rows.items():
        whole = delta + residual[i]
        sent.append(largest(whole))
        residual[i] = whole - sent[-1]
    return torch.stack(sent)


def scaffold() -> Tensor:
    """SCAFFOLD with option II, each c_i of the client's own update."""
    w, c = START, torch.zeros_like(START)
    own = {i: torch.zeros_like(START) for i in ALL}
    residual = {i: torch.zeros_like(START) for i in ALL}
    rate = LOCAL.lr * LOCAL.num_steps(1)
    for cohort in COHORTS:
        rows = {i: w - train_locally(i, w, offset=c - own[i]) for i in cohort}
        change = {i: rows[i] / rate - c for i in cohort}
        w = w - compressed(rows, residual).mean(0)
        c = c + sum(change.values()) / len(ALL)
        own |= {i: own[i] + change[i] for i in cohort}
    return w


def feddyn(alpha: float) -> Tensor:
    """FedDyn: each h_i of the client's own update, h of what arrives."""
    w, h = START, torch.zeros_like(START)
    own = {i: torch.zeros_like(START) for i in ALL}
    residual = {i: torch.zeros_like(START) for i in ALL}
    for cohort in COHORTS:
        rows = {i: w - train_locally(i, w, offset=-own[i], prox=alpha) for i in cohort}
        sent = compressed(rows, residual)
        own |= {i: own[i] + alpha * rows[i] for i in cohort}
        h = h + alpha * sent.sum(0) / len(ALL)
        w = w - sent.mean(0) - h / alpha
    return w


def end(inner: Algorithm) -> Tensor:
    algorithm = Compressed(inner=inner, compression=TopK(fraction=0.5))
    return play(algorithm, COHORTS).w_P


def test_scaffold_s_control_variates_are_those_of_the_clients_own_updates() -> None:
    torch.testing.assert_close(end(SCAFFOLD()), scaffold(), rtol=1e-9, atol=1e-9)


def test_feddyn_s_clients_remember_their_own_updates() -> None:
    found = end(FedDyn(alpha=0.3))
    torch.testing.assert_close(found, feddyn(0.3), rtol=1e-9, atol=1e-9)
