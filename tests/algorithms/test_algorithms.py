"""Update rules against closed forms on quadratics and against their limits.

`Quadratics` is `Work` for clients with f_i(w) = 1/2 |w - a_i|^2: K gradient steps from
w leave w_i = a_i + (1 - lr)^K (w - a_i), which makes every rule computable by hand.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raysafl import SAFARI, Algorithm, FedAvg, LocalTraining, TrainMean
from raysafl.algorithms import SERVER, FedAvgM, FedProx, Key, MeanUpdate, State, Update
from raysafl.core.algorithm import Request

OPTIMA = torch.tensor([[1.0, 0.0], [0.0, 3.0], [5.0, -1.0]], dtype=torch.float64)
SERVER_OPTIMUM = torch.tensor([2.0, 2.0], dtype=torch.float64)
LOCAL = LocalTraining(lr=0.5, batch_size=1, steps=3)
ONE_STEP = LocalTraining(lr=0.25, batch_size=1, steps=1)
START = torch.tensor([4.0, 4.0], dtype=torch.float64)


def answer(request: Request) -> Any:
    local = request.local or LOCAL
    rows = []
    for i, client in enumerate(request.ids):
        w = request.w_P.clone()
        for _ in range(local.num_steps(1)):
            g = w - (SERVER_OPTIMUM if client == SERVER else OPTIMA[client])
            g = g + request.prox * (w - request.w_P)
            g = g if request.offset_MP is None else g + request.offset_MP[i]
            w = w - local.lr * g
        rows.append(request.w_P - w)
    ones = torch.ones(len(rows))
    steps = ones * local.num_steps(1)
    columns = (steps, steps * local.lr, ones, ones, ones)
    if isinstance(request, TrainMean):
        return MeanUpdate(torch.stack(rows).mean(0), *columns)
    return Update(torch.stack(rows), *columns)


def play(
    algorithm: Algorithm, cohorts: Sequence[Sequence[int]], seed: int = 0
) -> State:
    state = algorithm.init(START, len(OPTIMA))
    for t, ids in enumerate(cohorts):
        turn = algorithm.round(state, ids, Key(seed, t))
        reply: Any = None
        try:
            while True:
                reply = answer(turn.send(reply))
        except StopIteration as end:
            state = end.value
    return state


COHORTS = [[0, 1], [1, 2], [0, 2], [0, 1, 2]]


def test_fedavg_at_full_participation_converges_to_the_mean_of_the_optima() -> None:
    w_P = play(FedAvg(), [[0, 1, 2]] * 60).w_P
    torch.testing.assert_close(w_P, OPTIMA.mean(0))  # equal curvature: no drift


def test_without_client_2_fedavg_settles_away_from_the_optimum_and_safari_alternates() -> (
    None
):
    alone = play(FedAvg(), [[0, 1]] * 200).w_P
    # biased, however long it runs
    torch.testing.assert_close(alone, OPTIMA[:2].mean(0))
    # both kinds of round contract by 1/8
    full = LocalTraining(lr=0.5, batch_size=1, steps=3)
    ends = [
        play(SAFARI(client_prob=0.5, server_update=full), [[0, 1]] * 60, seed).w_P
        for seed in range(400)
    ]
    middle = (
        OPTIMA[:2].mean(0) + SERVER_OPTIMUM
    ) / 2  # the stationary mean of that mixture
    torch.testing.assert_close(torch.stack(ends).mean(0), middle, rtol=0, atol=0.1)


@pytest.mark.parametrize(
    "inner", [FedAvg(), FedAvgM(momentum=0.5), FedProx(prox=0.2)], ids=repr
)
def test_safari_with_q_1_is_its_inner_algorithm(inner: Algorithm) -> None:
    a, b = play(SAFARI(inner=inner, client_prob=1), COHORTS), play(inner, COHORTS)
    assert torch.equal(a.w_P, b.w_P) and a.server.keys() == b.server.keys()


def test_safari_takes_client_rounds_with_frequency_q() -> None:
    safari, n = SAFARI(client_prob=0.8, server_update=ONE_STEP), 4000
    state = safari.init(START, 3)
    asked = [next(safari.round(state, [0], Key(7, t))).ids for t in range(n)]
    clients = sum(ids == [0] for ids in asked)
    # four standard deviations
    assert abs(clients - 0.8 * n) < 4 * (n * 0.8 * 0.2) ** 0.5


@given(lr=st.floats(0.1, 1.0), momentum=st.floats(0, 0.9), prox=st.floats(0, 1))
def test_variants_are_fedavg_with_their_parameter_at_zero_and_only_then(
    lr: float, momentum: float, prox: float
) -> None:
    plain = play(FedAvg(lr=lr), COHORTS).w_P
    assert torch.equal(play(FedAvgM(lr=lr, momentum=0), COHORTS).w_P, plain)
    assert torch.equal(play(FedProx(lr=lr, prox=0), COHORTS).w_P, plain)
    for variant, size in (
        (FedAvgM(lr=lr, momentum=momentum), momentum),
        (FedProx(lr=lr, prox=prox), prox),
    ):
        if size > 0.05:
            assert not torch.allclose(play(variant, COHORTS).w_P, plain)


@pytest.mark.parametrize("q", [-0.1, 1.1])
def test_q_outside_0_to_1_is_refused_with_what_is_allowed(q: float) -> None:
    with pytest.raises(
        ValueError, match=rf"client_prob: .*than or equal to [01] \(given: {q}\)"
    ):
        SAFARI(client_prob=q)
