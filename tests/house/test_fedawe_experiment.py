"""FedAWE's table: its partition, availability, rates and network are the authors'."""

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from helpers.experiments import forget_experiments

import raysafl as fl
from raysafl.algorithms import State, Update
from raysafl.core.randomness import Key

CLIENTS = 100
DYNAMICS = ("stationary", "staircase", "sine", "interleaved", "sine-0.2", "sine-0.1")


@pytest.fixture(scope="module")
def table() -> Iterator[Any]:
    """The module of the experiment."""
    forget_experiments()
    yield importlib.import_module("experiments.fedawe.table2_cifar10")
    forget_experiments()


@pytest.fixture(scope="module")
def data(table: Any) -> fl.Federation:
    """The federation of the experiment, on samples without pixels."""
    y = np.arange(20_000) % 10
    source = fl.from_arrays(np.zeros((len(y), 1)), y, test_share=0.01)
    partition = table.LabelShares()
    return fl.Federation(
        dataset=source, clients=CLIENTS, partition=partition, seed=None
    )


def authors_formula(dynamic: str, p_N: Any, t: int) -> Any:
    """p_it in the six settings of `fluctuate` of the authors' program."""
    if dynamic == "stationary":
        return p_N
    if dynamic == "staircase":
        return 0.4 * p_N if t // 10 % 2 == 1 else p_N
    g = {"sine-0.2": 0.2, "sine-0.1": 0.1}.get(dynamic, 0.3)
    value_N = (g * np.sin(2 * np.pi / 20 * t) + 1 - g) * p_N
    return np.where(value_N < 0.1, 0, value_N) if dynamic == "interleaved" else value_N


@pytest.mark.parametrize("dynamic", DYNAMICS)
def test_clients_are_available_as_often_as_the_authors_formula_says(
    dynamic: str, table: Any
) -> None:
    policy, seed = table.AVAILABILITY[dynamic], 1
    p_N = table.base_rates(CLIENTS, seed)
    # In these rounds all clients have the same chance again.
    for phase in (0, 5, 13):
        expected_N = authors_formula(dynamic, p_N, phase)
        rounds = range(phase, 20 * 150, 20)
        present_N = np.zeros(CLIENTS)
        for t in rounds:
            probs_N = policy.for_seed(CLIENTS, seed).probs(CLIENTS, t)
            np.testing.assert_allclose(probs_N, expected_N, rtol=1e-9)
            cohort = policy.pick(None, CLIENTS, Key(seed, t), None)[1]
            present_N[cohort.ids] += 1
        error_N = np.sqrt(len(rounds) * expected_N * (1 - expected_N))
        assert (abs(present_N - len(rounds) * expected_N) <= 5 * error_N).all()
        assert (present_N[expected_N == 0] == 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_rates_follow_the_labels_of_the_seed_s_own_partition(
    seed: int, table: Any, data: fl.Federation
) -> None:
    rates_N = table.base_rates(CLIENTS, seed)
    by_labels = fl.participation.rates_by_labels(data, seed)
    np.testing.assert_allclose(rates_N, by_labels, atol=0.01)
    assert np.ptp(rates_N) > 0.3


def test_each_sample_has_one_client_and_each_class_is_cut_by_dirichlet_shares(
    table: Any, data: fl.Federation
) -> None:
    dataset = data.load()
    clients = data.split(dataset, 4).clients
    every = np.concatenate(list(clients))
    assert sorted(every) == list(range(len(dataset.train)))
    held_NC = np.array(
        [np.bincount(dataset.train.y[own], minlength=10) for own in clients]
    )
    share_NC = Key(4)("partition").dirichlet(np.full(10, 0.1), CLIENTS)
    expected_NC = share_NC / share_NC.sum(0) * held_NC.sum(0)
    assert abs(held_NC - expected_NC).max() <= 1


def test_the_rate_falls_as_in_the_authors_loop(table: Any) -> None:
    for method, (_, eta) in table.METHODS.items():
        run = table.SWEEP.labelled()[method, "sine"]
        expected = [eta / np.sqrt(t / 10 + 1) for t in range(2000)]
        np.testing.assert_allclose(
            [run.local.rate(t) for t in range(2000)], expected, rtol=1e-12
        )


@pytest.mark.parametrize("dynamic", DYNAMICS)
def test_f3ast_selects_as_many_as_are_available_on_average(
    dynamic: str, table: Any
) -> None:
    policy = table.AVAILABILITY[dynamic]
    available = [
        len(policy.pick(None, CLIENTS, Key(seed, t), None)[1].ids)
        for seed in range(3)
        for t in range(200)
    ]
    run = table.SWEEP.labelled()["F3AST", dynamic]
    assert run.algorithm.m == pytest.approx(np.mean(available), abs=1)


def test_known_probabilities_divide_the_updates(table: Any) -> None:
    key, ids = Key(seed=2, round=13), [1, 4, 7]
    algorithm = table.KnownFedAvg(availability=table.AVAILABILITY["sine"])
    state: State = algorithm.init(torch.ones(3), CLIENTS)
    turn = algorithm.round(state, ids, key)
    asked = next(turn)
    assert asked == fl.Train(state.w_P, ids)
    delta_MP = torch.tensor([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])
    nothing_M = torch.zeros(3)
    with pytest.raises(StopIteration) as end:
        turn.send(Update(delta_MP, *[nothing_M] * 5))
    p_N = authors_formula("sine", table.base_rates(CLIENTS, 2), 13)
    expected_P = 1 - (delta_MP.numpy() / p_N[ids, None]).sum(0) / CLIENTS
    np.testing.assert_allclose(end.value.value.w_P.numpy(), expected_P, rtol=1e-6)


def test_over_all_counts_absent_clients_as_zero(table: Any) -> None:
    algorithm, _ = table.METHODS["FedAvg over all"]
    state = algorithm.init(torch.zeros(2, dtype=torch.float64), CLIENTS)
    total_P = torch.zeros(2, dtype=torch.float64)
    # Client 3 is away for a round, which changes no weight.
    for t, ids in enumerate(([0, 3], [0], [3, 9])):
        delta_MP = torch.rand(len(ids), 2, dtype=torch.float64)
        turn = algorithm.round(state, ids, Key(0, t))
        next(turn)
        with pytest.raises(StopIteration) as end:
            turn.send(Update(delta_MP, *[torch.zeros(len(ids))] * 5))
        state = end.value.value
        total_P += delta_MP.sum(0)
        torch.testing.assert_close(state.w_P, -total_P / CLIENTS)


def test_the_network_has_the_layers_of_the_paper_s_table_6(table: Any) -> None:
    net = table.SmallNet().build((3, 32, 32), 10)
    sizes = [tuple(p.shape) for p in net.parameters() if p.ndim > 1]
    assert sizes == [(32, 3, 3, 3), (32, 32, 3, 3), (256, 2048), (64, 256), (10, 64)]
    assert sum(p.numel() for p in net.parameters()) == 551_786
