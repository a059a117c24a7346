"""Algorithms that are one and the same in special cases, and SAFARI's server rounds.

How each is defined: `tests/algorithms/test_definitions.py`.
"""

import pytest
import torch
from helpers.quadratics import ALL, LOCAL, ONE_STEP, START, play

from raysafl import SAFARI, Algorithm, FedAvg, LocalTraining
from raysafl.algorithms import (
    AFL,
    MIFA,
    SCAFFOLD,
    FedAmplify,
    FedAU,
    FedLaAvg,
    FedVARP,
    Key,
    ScheduledServer,
    ServerOnly,
)
from raysafl.core.algorithm import Setting
from raysafl.training import ContinuedTraining, ListedRate

COHORTS = [[0, 1], [1, 2], [3, 0], [1, 2, 3]]
K = 5  # local steps


IDENTITIES: list[tuple[Algorithm, Algorithm]] = [
    (MIFA(lr=0.7), FedAvg(lr=0.7)),
    (MIFA(over="seen"), FedAvg()),
    (FedVARP(lr=0.7), FedAvg(lr=0.7)),
    (FedAU(lr=0.7), FedAvg(lr=0.7)),
    (FedAvg(lr=None), FedAvg(lr=2.0)),
    (SCAFFOLD(lr=None), SCAFFOLD(lr=2.0)),
]


@pytest.mark.parametrize(("one", "other"), IDENTITIES, ids=repr)
def test_at_full_participation_two_algorithms_are_one(
    one: Algorithm, other: Algorithm
) -> None:
    torch.testing.assert_close(play(one, [ALL] * 6).w_P, play(other, [ALL] * 6).w_P)


SAME: list[tuple[Algorithm, Algorithm]] = [
    (FedAmplify(P=2, eta=1.0), FedAvg()),
    (ServerOnly(server_update=ONE_STEP), SAFARI(client_prob=0, server_update=ONE_STEP)),
    (SAFARI(client_prob=1, server_update=ONE_STEP), FedAvg()),
    (ScheduledServer(schedule=ListedRate(factors=[0.5])), FedAvg(lr=0.5)),
    (
        ScheduledServer(inner=MIFA(lr=0.6), schedule=ListedRate(factors=[0.5])),
        MIFA(lr=0.3),
    ),
]


@pytest.mark.parametrize(("one", "other"), SAME, ids=repr)
def test_two_algorithms_are_one_bitwise(one: Algorithm, other: Algorithm) -> None:
    assert torch.equal(play(one, COHORTS).w_P, play(other, COHORTS).w_P)


def test_afl_without_delay_and_of_equal_steps_is_fedavg_at_a_rate_per_step() -> None:
    ours = play(AFL(lr=K * 0.7), COHORTS).w_P
    torch.testing.assert_close(ours, play(FedAvg(lr=0.7), COHORTS).w_P)
    ours = play(AFL(lr=K * 0.7, memory=True), COHORTS).w_P
    torch.testing.assert_close(ours, play(MIFA(lr=0.7), COHORTS).w_P)


def test_fedlaavg_of_all_available_clients_is_mifa() -> None:
    ours = play(FedLaAvg(lr=0.7, local=LOCAL), COHORTS).w_P
    torch.testing.assert_close(ours, play(MIFA(lr=0.7), COHORTS).w_P)
    ours = play(FedLaAvg(lr=0.7, K=1, local=LOCAL), COHORTS).w_P
    # Those who have not participated for the longest time are selected.
    chosen = [[0], [1], [3], [2]]
    torch.testing.assert_close(ours, play(MIFA(lr=0.7), chosen).w_P)


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
