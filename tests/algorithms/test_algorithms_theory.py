"""Where algorithms settle on least squares whose clients differ in optimum and curvature."""

import pytest
import torch
from helpers.quadratics import ALL, LOCAL, ONE_STEP, drift_point, halves, optimum, play

from raysafl import Algorithm, FedAvg, LocalTraining
from raysafl.algorithms import MIFA, SCAFFOLD, FedAU, FedAvgM, FedDyn, FedVARP, State

EXACT = {"rtol": 0, "atol": 1e-8}
# arbitrary: client 0 comes always, the others in turn
CYCLE = [[0, 1], [0], [0, 2], [0, 3]]


def near(state: State, point: torch.Tensor) -> float:
    return float((state.w_P - point).norm())


@pytest.mark.parametrize("algorithm", [FedAvg(lr=0.5), FedAvgM(momentum=0.5)])
def test_fedavg_with_everyone_settles_where_updates_balance_and_misses_the_optimum(
    algorithm: Algorithm,
) -> None:
    state = play(algorithm, [ALL] * 300)
    torch.testing.assert_close(state.w_P, drift_point(), **EXACT)
    assert near(state, optimum()) > 0.05


@pytest.mark.parametrize("algorithm", [SCAFFOLD(), FedDyn(alpha=1.0)], ids=repr)
def test_scaffold_and_feddyn_reach_the_optimum_of_which_fedavg_stays_away(
    algorithm: Algorithm,
) -> None:
    torch.testing.assert_close(play(algorithm, halves(2000)).w_P, optimum(), **EXACT)
    for rounds in (300, 301, 302, 303):
        assert near(play(FedAvg(), halves(rounds)), optimum()) > 0.05


@pytest.mark.parametrize("local", [ONE_STEP, LOCAL], ids=["1 step", "5 steps"])
def test_mifa_settles_under_cyclic_participation_where_fedavg_does_with_everyone(
    local: LocalTraining,
) -> None:
    mifa = play(MIFA(lr=0.5), CYCLE * 300, local)
    torch.testing.assert_close(mifa.w_P, drift_point(local), **EXACT)
    assert near(play(FedAvg(lr=0.5), CYCLE * 300, local), drift_point(local)) > 0.2


def test_fedvarp_loses_the_noise_of_sampling_that_fedavg_keeps() -> None:
    torch.testing.assert_close(play(FedVARP(), halves(600)).w_P, drift_point(), **EXACT)
    assert near(play(FedAvg(), halves(600)), drift_point()) > 0.05


def test_fedau_takes_away_the_bias_of_cyclic_participation_at_small_rates() -> None:
    slow = LocalTraining(lr=0.005, batch_size=1, steps=1)
    fedau, fedavg = (play(a, CYCLE * 1000, slow) for a in (FedAU(), FedAvg()))
    # client 0 has 2.5 of 4 weights, the others 0.5
    often = optimum([0, 0, 0, 0, 0, 1, 2, 3])
    assert near(fedau, optimum()) < 0.03 and near(fedavg, often) < 0.03
    assert float((often - optimum()).norm()) > 0.2
