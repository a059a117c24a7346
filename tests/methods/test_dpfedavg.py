"""DP-FedAvg against its formula, and its epsilon against the library's own numbers."""

import numpy as np
import pytest
import torch
from helpers.played import final

from experiments.methods.dpfedavg import DPFedAvg
from raysafl import FedAvg, Run, Uniform
from raysafl.algorithms import Key
from raysafl.participation import Bernoulli, Markov


def test_without_noise_and_with_a_wide_limit_it_is_fedavg(tiny: Run) -> None:
    run = tiny.replace(replicates=1, participation=Uniform(m=3))
    free = run.replace(algorithm=DPFedAvg(clip=1e9, noise=0.0, cohort=3))
    torch.testing.assert_close(final(free), final(run.replace(algorithm=FedAvg())))


def test_no_update_is_longer_than_the_limit(tiny: Run) -> None:
    run = tiny.replace(replicates=1, rounds=1, participation=Uniform(m=1))
    step_P = final(run.replace(algorithm=DPFedAvg(clip=1e-3, noise=0.0, cohort=1)))
    assert float(step_P.norm()) == pytest.approx(1e-3, rel=1e-4)


def test_the_sum_is_divided_by_the_expected_number_and_not_by_those_that_came(
    tiny: Run,
) -> None:
    run = tiny.replace(replicates=1, rounds=1, participation=Bernoulli(rate=0.25))
    free = run.replace(algorithm=DPFedAvg(clip=1e9, noise=0.0, cohort=2.5))
    _, cohort = run.participation.pick(None, 10, Key(run.seed), None)
    assert len(cohort.ids) not in (0, 2)
    # The model starts at zero, so its end is a step: the mean, or the sum over 2.5.
    expected = final(run.replace(algorithm=FedAvg())) * len(cohort.ids) / 2.5
    torch.testing.assert_close(final(free), expected)


def test_the_noise_has_the_standard_deviation_of_the_paper(tiny: Run) -> None:
    run = tiny.replace(replicates=1, rounds=1, participation=Uniform(m=4))
    quiet, noisy = (
        final(run.replace(algorithm=DPFedAvg(clip=0.3, noise=z, cohort=4)))
        for z in (0.0, 1.5)
    )
    noise = noisy - quiet
    expected = 1.5 * 0.3 / 4
    assert abs(noise.mean()) < 4 * expected / len(noise) ** 0.5
    relative = 4 / (2 * len(noise)) ** 0.5
    assert float(noise.std()) == pytest.approx(expected, rel=relative)


def test_sampling_amplifies_privacy_and_noise_brings_more_of_it() -> None:
    pytest.importorskip("dp_accounting", reason="needs dp-accounting")

    def epsilon(noise: float, policy: object) -> float:
        algorithm = DPFedAvg(clip=1.0, noise=noise, cohort=50)
        return algorithm.epsilon(50, 1000, policy, 1e-5)  # type: ignore[arg-type]

    every = epsilon(1.1, Markov(mean=0.5, correlation=0.1))
    # Rényi order a of the Gaussian: a T / (2 z^2), so epsilon has this closed form.
    orders = np.arange(1.01, 64, 0.01)
    rdp = orders * 50 / (2 * 1.1**2)
    least = (rdp + np.log1p(-1 / orders) - np.log(1e-5 * orders) / (orders - 1)).min()
    assert every == pytest.approx(least, rel=0.01)
    sampled = epsilon(1.1, Bernoulli(rate=0.05, at_least_one=False))
    assert epsilon(2.0, Bernoulli(rate=0.05, at_least_one=False)) < sampled < every
    assert epsilon(1.1, Uniform(m=50)) < every == epsilon(1.1, Uniform(m=1000))
    # Where clients are not alike or not independent, nothing is amplified.
    for policy in (
        Bernoulli(rate=0.05, at_least_one=True),
        Bernoulli(rate=0.05, m=5),
        Bernoulli(rate=[0.05] * 1000),
    ):
        assert epsilon(1.1, policy) == every
