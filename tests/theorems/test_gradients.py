"""Diagnostics against closed forms, autograd, enumeration and numbers by hand."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.tasks import Trainer
from torch import Tensor

from experiments.theorems.gradients import (
    GRADIENT_BATCH,
    batch_gradients,
    client_gradients,
    dissimilarity,
    gradient_noise,
    gradients,
    path_noise,
    server_gap,
    server_gradient,
    smoothness,
)
from experiments.theorems.premises import least_snapshot_prob, most_client_prob
from raysafl import CNN, MLP, Logistic, Model, Run
from raysafl.algorithms import Key
from raysafl.core.problem import SERVER
from raysafl.core.work import Cell
from raysafl.data import Dataset, Samples
from raysafl.models import FlatModel
from raysafl.runtime.in_process import Worker
from raysafl.training.trainer import LocalTrainer

SIZES = [GRADIENT_BATCH + 40, 23, 7]  # more than one batch, less than one


def trainer(model: Model, engine: str) -> tuple[LocalTrainer, list[np.ndarray]]:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (sum(SIZES), 1, 8, 8), dtype=np.uint8)
    part = Samples(x, rng.integers(0, 4, sum(SIZES)), 1 / 255, -0.5)
    cuts = np.cumsum(SIZES)[:-1]
    held = np.split(rng.permutation(sum(SIZES)), cuts)
    flat = FlatModel(model, (1, 8, 8), 4)
    data = Dataset("noise", part, part, 4)
    return Trainer(flat, data, lambda r, client: held[client], engine=engine), held


def by_autograd(t: LocalTrainer, w_P: Tensor, rows: np.ndarray) -> Tensor:
    leaf_P = w_P.clone().requires_grad_()
    x, y = t.inputs.at(torch.from_numpy(rows))
    (g_P,) = torch.autograd.grad(F.cross_entropy(t.model.logits(leaf_P, x), y), leaf_P)
    return g_P


@pytest.mark.parametrize(
    ("model", "engine"),
    [
        (Logistic(zero_init=False), "linear"),
        (Logistic(zero_init=False), "loop"),
        (MLP(hidden=[8]), "vmap"),
        (CNN(channels=[4], hidden=8), "loop"),
    ],
)
def test_full_gradients_equal_autograd_on_all_samples(
    model: Model, engine: str
) -> None:
    t, held = trainer(model, engine)
    w_TP = torch.stack([t.model.init(Key(seed)) for seed in range(3)])
    got = gradients(t, w_TP, held)
    for row, w_P, rows in zip(got, w_TP, held, strict=True):
        torch.testing.assert_close(row, by_autograd(t, w_P, rows), rtol=2e-5, atol=2e-6)


def test_a_worker_gives_the_gradients_of_clients_and_server(tiny: Run) -> None:
    work = Worker(tiny.cells[:1], tiny.data.load(), Logistic(zero_init=False))
    w_P = work.init(0)
    clients_NP = client_gradients(work, w_P.expand(10, -1))
    # each client weighed by its samples: the gradient over all samples together
    held = work.population.splits[0].clients
    weight_N = torch.tensor([float(len(rows)) for rows in held])
    expected = by_autograd(work.trainer, w_P, np.concatenate(held))
    torch.testing.assert_close(
        weight_N @ clients_NP / weight_N.sum(), expected, rtol=1e-4, atol=1e-6
    )
    server_P = server_gradient(work, w_P)
    assert server_P is not None
    torch.testing.assert_close(
        server_P,
        by_autograd(work.trainer, w_P, work.population.splits[0].server),
        rtol=1e-4,
        atol=1e-6,
    )
    without = Worker(
        [Cell(tiny.data.replace(server=None), 0)], tiny.data.load(), tiny.model
    )
    assert server_gradient(without, w_P) is None
    whole = batch_gradients(work, SERVER, w_P, 10**6, 2, Key(0))
    torch.testing.assert_close(whole, server_P.expand(2, -1))


def test_gap_and_dissimilarity_by_hand() -> None:
    clients_NP = torch.tensor([[1.0, 0.0], [3.0, 4.0]])  # mean (2, 2)
    assert server_gap(torch.tensor([2.0, -1.0]), clients_NP) == 9
    assert dissimilarity(clients_NP).tolist() == [5, 5]
    uneven_NP = torch.tensor([[0.0], [0.0], [3.0]])
    assert dissimilarity(uneven_NP).tolist() == [1, 1, 4]


def test_noise_is_unbiased_by_enumerating_all_batches() -> None:
    points_nP = torch.tensor(
        [[0.0, 1.0], [2.0, 2.0], [5.0, -1.0], [-3.0, 0.5]]
    ).double()
    n, size = 4, 2
    full_P = points_nP.mean(0)
    means = [
        points_nP[list(pick)].mean(0) for pick in itertools.combinations(range(n), size)
    ]
    spread = float((points_nP - full_P).square().sum(1).mean())
    exact = spread / size * (n - size) / (n - 1)  # drawn without replacement
    assert gradient_noise(torch.stack(means), full_P) == pytest.approx(exact)


def test_the_noise_of_a_path_by_enumerating_all_orders() -> None:
    points_n = torch.tensor([0.0, 2.0, 5.0, -3.0, 1.0, 7.0]).double()
    n, size, full = 6, 2, points_n.mean()
    orders = torch.tensor(list(itertools.permutations(range(n))))
    batches = points_n[orders].view(-1, n // size, size).mean(2)  # [orders, 3]
    sigma2 = float((batches[:, 0] - full).square().mean())
    for steps in (1, 2, 3):
        exact = float((batches[:, :steps].sum(1) - steps * full).square().mean())
        for passes in (0, 2):
            found = path_noise(sigma2, steps + passes * n // size, n, size)
            assert found == pytest.approx(exact, abs=1e-9)
    assert path_noise(sigma2, 4, samples=3, batch_size=10) == 0


def test_smoothness_of_quadratics_is_their_largest_curvature() -> None:
    curves_NPP = torch.diag_embed(torch.tensor([[1.0, 5.0, 2.0], [0.5, -7.0, 3.0]]))
    target_P = torch.tensor([1.0, -2.0, 0.5])

    def gradient(w_NP: Tensor) -> Tensor:
        return (curves_NPP @ (w_NP - target_P)[..., None])[..., 0]

    start_NP = torch.ones(2, 3)
    got = smoothness(gradient, torch.tensor([0.3, 0.1, 0.2]), start_NP, steps=40)
    torch.testing.assert_close(got, torch.tensor([5.0, 7.0]), rtol=1e-3, atol=0)
    assert (smoothness(gradient, target_P, start_NP, steps=2) <= got + 1e-3).all()
    zero = smoothness(lambda w_NP: 0 * w_NP, target_P, start_NP)
    assert zero.tolist() == [0, 0]


def test_safari_q_by_hand() -> None:
    # L eta_s = 1/4, K = 2: 4*3 - 4*2*(1/8 - 2/4/4) = 12 - 8*(1/8 - 1/8) = 12; (3/4)*4 =
    # 3
    bound = most_client_prob(sigma_g2=3, g1=4, g2=2, L=1, eta_s=0.25, K=2)
    assert bound.value == pytest.approx(1 / (12 / 3 + 1))


def test_safari_q_satisfies_the_inequality_of_the_proof_with_equality() -> None:
    s2, g1, g2, L, eta, K, q = 3.0, 4.0, 5.0, 0.7, 0.2, 3, 0.0
    q = most_client_prob(s2, g1, g2, L, eta, K).value or 0  # eq. 55, both sides over R
    right = (1 - q) * (1 - L * eta) * g1 + q * (2 / K**2 - 8 * L * eta / K**2) * g2
    assert 4 * q * s2 == pytest.approx(right)


def test_fast_q_by_hand_and_by_the_inequality_of_the_proof() -> None:
    # 2 L K eta = 0.4: A = -0.6*5 + 2*4*1 = 5; B = 3 - 0.4*2.5 = 2
    bound = least_snapshot_prob(sigma_g2=1, g1=3, g2=5, g3=2.5, L=1, eta_c=0.1, K=2)
    assert bound.value == pytest.approx(5 / 7)
    q, K, eta = bound.value or 0, 2, 0.1
    left = q * (-2 / K**2 * 3 + 4 * eta / K * 2.5) + (1 - q) * (
        -(2 / K**2 - 4 * eta / K) * 5 + 4
    )
    assert left == pytest.approx(0)
