"""Algorithms against their limits, on the clients of `helpers.quadratics`."""

import pytest
import torch
from helpers.quadratics import ONE_STEP, START, play
from hypothesis import given
from hypothesis import strategies as st

from raysafl import SAFARI, FedAvg, LocalTraining
from raysafl.algorithms import FedAvgM, FedProx, Key, ServerOnly
from raysafl.core.algorithm import Setting
from raysafl.training import ContinuedTraining

COHORTS = [[0, 1], [1, 2], [0, 2], [0, 1, 2]]


@pytest.mark.parametrize("kind", [SAFARI, ServerOnly])
def test_the_server_trains_as_the_clients_do_in_five_passes_unless_told_otherwise(
    kind: type[SAFARI | ServerOnly],
) -> None:
    usual = {"lr": 0.2, "batch_size": 8, "momentum": 0.9, "clip_norm": 1.0}
    for local in (
        LocalTraining(epochs=2, **usual),
        ContinuedTraining(steps=3, keep_optimizer=True, **usual),
    ):
        setting = Setting(10, 100, 20, local)
        five = LocalTraining(epochs=5, **usual)
        assert kind().prepare(setting).server_update == five
        given = kind(server_update=ONE_STEP)
        assert given.prepare(setting).server_update == ONE_STEP


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
