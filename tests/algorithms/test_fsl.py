"""FSL: the paper's defaults by hand, its limits, and its two forms of server learning."""

import math

import pytest
import torch
from helpers.quadratics import ALL, LOCAL, SERVER_A, drift_point, play

from raysafl import FSL, Algorithm, FedAvg, LocalTraining
from raysafl.algorithms import MIFA, SCAFFOLD, FedAvgM, FSLParallel, Setting
from raysafl.training import ContinuedTraining

COHORTS = [[0, 1], [1, 2], [3], [1, 2, 3]]
SETTING = Setting(num_clients=4, client_samples=1, server_samples=1, local=LOCAL)


def ready(algorithm: FSL) -> FSL:
    return algorithm.prepare(SETTING)


@pytest.mark.parametrize(
    ("num_clients", "samples", "n0", "batch", "epochs", "k", "k0"),
    [
        (10, 5000, 500, 50, 10, 100, 100),  # CIFAR-10, scenario 1
        (45, 2400, 225, 50, 11, 48, 55),  # EMNIST, scenario 1: ceil(10.67) epochs
        (1000, 50, 500, 10, 1, 5, 50),  # CIFAR-10, scenario 2
        (450, 240, 450, 50, 1, 5, 9),  # EMNIST, scenario 2
        (10, 50.4, 500, 50, 1, 2, 10),  # a mean just above one batch: two batches
    ],
)
def test_defaults_are_those_of_section_4a(
    num_clients: int, samples: float, n0: int, batch: int, epochs: int, k: int, k0: int
) -> None:
    setting = Setting(
        num_clients, samples, n0, LocalTraining(lr=0.01, batch_size=batch, epochs=1)
    )
    fsl = FSL().prepare(setting)
    assert (fsl.epochs, fsl.batch_size) == (epochs, batch)
    assert fsl.rate == pytest.approx(0.01 * k / k0)
    assert isinstance(fsl.inner, FedAvg) and fsl.inner.lr is None  # sqrt(S)


@pytest.mark.parametrize(
    ("samples", "batch", "steps", "epochs"),
    [
        (50, 4096, 5, 5),  # five batches of 50 samples: ceil(250 / 60)
        (120, 50, 4, 3),  # batches of 50, 50, 20 and 50 samples: ceil(170 / 60)
        (120, 50, 2, 2),  # 50 and 50 samples: ceil(100 / 60)
        (49.5, 4096, 4, 4),  # the mean over clients: ceil(4 * 49.5 / 60)
    ],
)
def test_steps_count_the_samples_that_a_client_trains_on(
    samples: float, batch: int, steps: int, epochs: int
) -> None:
    local = LocalTraining(lr=0.01, batch_size=batch, steps=steps)
    fsl = FSL().prepare(Setting(10, samples, 60, local))
    server_steps = epochs * math.ceil(60 / batch)
    assert fsl.epochs == epochs
    assert fsl.rate == pytest.approx(0.01 * steps / server_steps)


def test_a_client_that_stops_at_its_passs_end_trains_on_its_samples_once() -> None:
    kept = ContinuedTraining(lr=0.01, batch_size=32, steps=10, keep_optimizer=False)
    fsl = FSL().prepare(Setting(10, 100, 20, kept))
    # Four batches of 32, 32, 32 and 4 samples: E_s = 100 / 20, with one batch a pass.
    assert fsl.epochs == 5 and fsl.rate == pytest.approx(0.01 * 4 / 5)


@pytest.mark.parametrize("kind", [FSL, FSLParallel])
@pytest.mark.parametrize("inner", [FedAvg(), FedAvgM(), SCAFFOLD(), MIFA()], ids=repr)
def test_gamma_0_is_the_inner_algorithm_bitwise(
    kind: type[FSL], inner: Algorithm
) -> None:
    fsl = kind(inner=inner, gamma=0)
    a, b = play(ready(fsl), COHORTS), play(inner, COHORTS)
    assert torch.equal(a.w_P, b.w_P) and a.server.keys() == b.server.keys()
    assert not fsl.uses_server_data and kind(inner=inner).uses_server_data


def test_server_learning_draws_the_limit_towards_the_servers_optimum() -> None:
    line = [
        play(ready(FSL(inner=FedAvg(), gamma=gamma)), [ALL] * 200).w_P
        for gamma in (0.0, 0.1, 0.4, 1.5)
    ]
    torch.testing.assert_close(line[0], drift_point())
    away = [float((w_P - SERVER_A).norm()) for w_P in line]
    assert away == sorted(away, reverse=True) and away[-1] < away[0] / 2
