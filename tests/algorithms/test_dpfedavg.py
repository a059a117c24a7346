"""DP-FedAvg against its formula, and its accountant against the library's own numbers."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from raysafl import (
    FSL,
    SAFARI,
    Absent,
    Algorithm,
    FedAvg,
    Participation,
    Patience,
    PerClient,
    Run,
    Snapshot,
    Uniform,
    Validation,
)
from raysafl.algorithms import DPFedAvg, FSLParallel, Key
from raysafl.data import FromClients
from raysafl.participation import Bernoulli, Full, Markov
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Simulation


def accounting() -> Any:
    pytest.importorskip("dp_accounting", reason="needs dp-accounting")
    import dp_accounting
    import dp_accounting.rdp

    return dp_accounting


def final(run: Run) -> torch.Tensor:
    sim = Simulation(run, Worker(run.cells, run.data.load(), run.model))
    while not sim.done:
        sim.step()
    return sim.replicates[0].state.w_P


def test_without_noise_and_with_a_wide_limit_it_is_fedavg_bitwise(tiny: Run) -> None:
    run = tiny.replace(replicates=1, participation=Uniform(m=3))
    free = run.replace(algorithm=DPFedAvg(clip=1e9, noise=0.0))
    assert torch.equal(final(free), final(run.replace(algorithm=FedAvg())))


def test_the_sum_is_divided_by_the_expected_number_and_not_by_those_that_came(
    tiny: Run,
) -> None:
    run = tiny.replace(replicates=1, rounds=1, participation=Bernoulli(rate=0.25))
    free = run.replace(algorithm=DPFedAvg(clip=1e9, noise=0.0))
    _, cohort = run.participation.pick(None, 10, Key(run.seed), None)
    assert len(cohort.ids) not in (0, 2)
    # The model starts at zero, so its end is a step: the mean, or the sum over 2.5.
    expected = final(run.replace(algorithm=FedAvg())) * len(cohort.ids) / 2.5
    torch.testing.assert_close(final(free), expected)


def test_the_noise_has_the_standard_deviation_of_the_paper(tiny: Run) -> None:
    run = tiny.replace(replicates=1, rounds=1, participation=Uniform(m=4))
    quiet, noisy = (
        final(run.replace(algorithm=DPFedAvg(clip=0.3, noise=z))) for z in (0.0, 1.5)
    )
    noise = noisy - quiet
    count = len(noise)  # 650 parameters
    expected = 1.5 * 0.3 / 4
    assert abs(noise.mean()) < 4 * expected / count**0.5
    assert float(noise.std()) == pytest.approx(expected, rel=4 / (2 * count) ** 0.5)


CLIENTS, ROUNDS, Z, DELTA = 1000, 50, 1.1, 1e-5


def test_epsilon_of_independent_clients_is_that_of_the_library() -> None:
    library = accounting()
    accountant = library.rdp.RdpAccountant()
    event = library.PoissonSampledDpEvent(0.1, library.GaussianDpEvent(Z))
    accountant.compose(event, ROUNDS)
    mine = DPFedAvg(clip=1.0, noise=Z).epsilon(
        ROUNDS, CLIENTS, Bernoulli(rate=0.1), DELTA
    )
    assert mine == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-9)


def test_epsilon_of_a_fixed_cohort_is_that_of_sampling_without_replacement() -> None:
    library = accounting()
    relation = library.NeighboringRelation.REPLACE_ONE
    accountant = library.rdp.RdpAccountant(neighboring_relation=relation)
    gaussian = library.GaussianDpEvent(Z / 2)
    event = library.SampledWithoutReplacementDpEvent(CLIENTS, 100, gaussian)
    accountant.compose(event, ROUNDS)
    mine = DPFedAvg(clip=1.0, noise=Z).epsilon(ROUNDS, CLIENTS, Uniform(m=100), DELTA)
    assert mine == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-9)


@pytest.mark.parametrize(
    "policy",
    [Full(), Absent(s=10, m=100), Markov(mean=0.1, correlation=0.5)],
    ids=lambda policy: type(policy).__name__,
)
def test_other_policies_do_not_amplify_privacy(policy: Participation) -> None:
    library = accounting()
    accountant = library.rdp.RdpAccountant()
    accountant.compose(library.GaussianDpEvent(Z), ROUNDS)
    mine = DPFedAvg(clip=1.0, noise=Z, cohort=100).epsilon(
        ROUNDS, CLIENTS, policy, DELTA
    )
    assert mine == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-9)


def test_epsilon_falls_with_noise_and_grows_with_rounds_and_rate() -> None:
    accounting()

    def epsilon(z: float = Z, rounds: int = ROUNDS, rate: float = 0.1) -> float:
        policy = Bernoulli(rate=rate)
        return DPFedAvg(clip=1.0, noise=z).epsilon(rounds, CLIENTS, policy)

    assert epsilon(z=2.0) < epsilon() < epsilon(rounds=500)
    assert epsilon(rate=0.05) < epsilon() < math.inf


def test_rounds_in_which_nobody_comes_must_be_unlikely() -> None:
    accounting()
    with pytest.raises(ValueError, match="rounds in which nobody comes are too likely"):
        policy = Bernoulli(rate=0.3, at_least_one=True)
        DPFedAvg(clip=1.0, noise=1.0).epsilon(100, 10, policy)
    # Where such a round adds the noise alone, it is a part of what is analysed.
    assert DPFedAvg(clip=1.0, noise=1.0).epsilon(100, 10, Bernoulli(rate=0.3)) > 0


def test_the_probability_that_nobody_would_come_is_taken_from_delta() -> None:
    """With (e, d) for rounds as they are analysed, ours are (e, d + (1 + exp(e)) t)."""
    library = accounting()
    event = library.PoissonSampledDpEvent(0.02, library.GaussianDpEvent(Z))
    accountant = library.rdp.RdpAccountant()
    accountant.compose(event, ROUNDS)
    nobody = ROUNDS * 0.98 ** (CLIENTS - 1)
    policy = Bernoulli(rate=0.02, at_least_one=True)
    mine = DPFedAvg(clip=1.0, noise=Z).epsilon(ROUNDS, CLIENTS, policy, DELTA)
    left = DELTA - (1 + math.exp(mine)) * nobody
    assert 0.5 * DELTA < left < 0.99 * DELTA
    # Its first estimate of e, at half of delta, is larger, so d is a little smaller.
    assert accountant.get_epsilon(left) <= mine <= accountant.get_epsilon(DELTA / 2)


@pytest.mark.parametrize(
    ("rounds", "clients", "delta"),
    [(0, 10, 0.1), (1, 0, 0.1), (1, 10, 1.0), (1, 0, None), (1, -2, None)],
)
def test_arguments_that_make_no_sense_are_refused(
    rounds: int, clients: int, delta: float | None
) -> None:
    with pytest.raises(ValueError, match=r"must be at least 1|between 0 and 1"):
        DPFedAvg(clip=1.0, noise=1.0).epsilon(rounds, clients, Full(), delta)


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ValueError, match=r"pip install dp-accounting$"):
        DPFedAvg(clip=1.0, noise=1.0).epsilon(1, 10, Full())


@pytest.mark.parametrize(
    "policy",
    [
        Absent(s=2, m=3),
        Snapshot(base=Uniform(m=2), uniform=Uniform(m=2), snapshot_prob=0.5),
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_a_policy_without_an_expected_cohort_needs_one_from_the_user(
    policy: Participation, tiny: Run
) -> None:
    run = tiny.replace(participation=Uniform(m=3), algorithm=DPFedAvg(clip=1, noise=1))
    with pytest.raises(ValueError, match=r"does not tell.*give DPFedAvg\(cohort="):
        run.replace(participation=policy)
    fixed = DPFedAvg(clip=1, noise=1, cohort=3)
    assert run.replace(participation=policy, algorithm=fixed).algorithm == fixed


@pytest.mark.parametrize(
    ("policy", "cohort"),
    [
        (Uniform(m=3), 3),
        (Full(), 10),
        (Bernoulli(rate=0.25), 2.5),
        (Bernoulli(rate=0.25, m=2), None),
        (Bernoulli(rate=[0.25] * 10), None),
        (Absent(s=2, m=3), None),
    ],
    ids=str,
)
def test_policies_that_treat_all_alike_tell_their_expected_cohort(
    policy: Participation, cohort: float | None
) -> None:
    sampling = policy.sampling(10)
    assert (sampling and sampling.cohort) == cohort


@pytest.mark.parametrize(
    "make",
    [
        lambda: DPFedAvg(clip=0.0, noise=1.0),
        lambda: DPFedAvg(clip=1.0, noise=-1.0),
        lambda: DPFedAvg(clip=1.0, noise=1.0, cohort=0),
    ],
)
def test_fields_out_of_range_are_refused(make: Callable[[], DPFedAvg]) -> None:
    with pytest.raises(ValueError, match="Input should be greater than"):
        make()


PRIVATE = DPFedAvg(clip=1.0, noise=1.0, cohort=3)


@pytest.mark.parametrize("wrap", [FSL, SAFARI], ids=lambda kind: kind.__name__)
def test_a_server_that_trains_on_clients_samples_is_refused(
    wrap: type[FSL] | type[SAFARI], tiny: Run
) -> None:
    with pytest.raises(ValueError, match="does not hold where the server trains"):
        tiny.replace(
            {
                "algorithm": wrap(inner=PRIVATE),
                "data.server": FromClients(c=2, per_client=3),
                "participation": Uniform(m=3),
            }
        )
    run = tiny.replace(algorithm=wrap(inner=PRIVATE), participation=Uniform(m=3))
    assert not run.data.server_has_clients_samples
    # Nothing is refused where the server's samples are not used.
    tiny.replace({"algorithm": PRIVATE, "data.server": FromClients(c=2, per_client=3)})


@pytest.mark.parametrize("accuracy", ["local", "cohort", "clients"])
def test_a_policy_that_goes_by_an_accuracy_on_clients_data_is_refused(
    accuracy: str, tiny: Run
) -> None:
    policy = Snapshot(
        base=Uniform(m=3), uniform=Uniform(m=3), adapt=3.0, accuracy=accuracy
    )
    with pytest.raises(ValueError, match="does not hold under Snapshot"):
        tiny.replace(algorithm=PRIVATE, participation=policy)
    tiny.replace(
        algorithm=PRIVATE,
        participation=Snapshot(base=Uniform(m=3), uniform=Uniform(m=3), every=2),
    )


@pytest.mark.parametrize("wrap", [FSL, FSLParallel], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "inner", [PRIVATE, SAFARI(inner=PRIVATE)], ids=["it", "SAFARI"]
)
def test_a_servers_rate_that_tells_how_many_came_is_refused(
    wrap: type[FSL], inner: Algorithm, tiny: Run
) -> None:
    by_chance = tiny.replace(participation=Bernoulli(rate=0.3))
    with pytest.raises(ValueError, match="depends on how many clients came"):
        by_chance.replace(algorithm=wrap(inner=inner))
    by_chance.replace(algorithm=wrap(inner=inner, gamma=0))
    by_chance.replace(algorithm=wrap(inner=FedAvg()))
    by_chance.replace(algorithm=wrap(inner=inner), participation=Full())


OF_CLIENTS = {"data.validation": Validation(clients=0.1)}
OF_GIVEN = {
    "data.validation": Validation(server=0.5),
    "data.server": FromClients(c=2, per_client=9),
}


@pytest.mark.parametrize(
    ("metric", "changes"),
    [
        ("train_loss", {}),
        ("val_loss", OF_CLIENTS),
        ("val_loss", OF_GIVEN),
        ("clients_std_accuracy", {"eval_clients": PerClient()}),
        ("test_loss", {**OF_CLIENTS, "keep": "best_val"}),
    ],
    ids=str,
)
def test_what_depends_on_clients_samples_must_not_choose_a_private_model(
    metric: str, changes: dict[str, Any], tiny: Run
) -> None:
    run = tiny.replace({**changes, "patience": Patience(metric=metric)})
    with pytest.raises(
        ValueError, match=r"not hold where \w+, which depends on clients'"
    ):
        run.replace(algorithm=PRIVATE)


def test_samples_that_no_client_holds_may_choose_a_private_model(tiny: Run) -> None:
    run = tiny.replace({"data.validation": Validation(server=0.5), "keep": "best_val"})
    for metric in ("val_loss", "test_loss"):
        chosen = run.replace(algorithm=PRIVATE, patience=Patience(metric=metric))
        assert chosen.algorithm == PRIVATE
