"""What algorithms keep of clients, what they send, and what they are told of samples."""

from typing import Any

import pytest
import torch
from helpers.played import final, played, simulation
from helpers.quadratics import START, play

from raysafl import Algorithm, Dirichlet, FedAvg, Run, TrainMean
from raysafl.algorithms import (
    AFL,
    EVERYONE,
    MIFA,
    SCAFFOLD,
    Centralised,
    CountSamples,
    FedAdagrad,
    FedAdam,
    FedAmplify,
    FedAU,
    FedAvgM,
    FedDyn,
    FedProx,
    FedVARP,
    FedYogi,
    Key,
    State,
)
from raysafl.core.algorithm import Round
from raysafl.core.problem import SERVER
from raysafl.core.record import Record

RULES: list[Algorithm] = [
    *(
        FedAvg(),
        FedAvgM(momentum=0.5),
        FedProx(prox=0.1),
        FedAdagrad(lr=0.1),
        FedAdam(),
        FedYogi(),
    ),
    *(FedDyn(alpha=0.1), SCAFFOLD(), MIFA(), MIFA(over="seen"), FedVARP(), FedAU(K=4)),
    *(FedAmplify(P=3, eta=1.5), AFL(lr=15.0), AFL(lr=15.0, max_delay=2)),
    AFL(lr=15.0, max_delay=2, memory=True),
]


@pytest.mark.parametrize(
    "rule", [SCAFFOLD(), FedDyn(), MIFA(), FedVARP(), AFL(memory=True)], ids=repr
)
def test_memory_is_kept_only_of_clients_seen_and_of_each_its_own(
    rule: Algorithm,
) -> None:
    state = rule.init(START, 10_000)
    assert not state.clients
    for t, ids in enumerate([[0, 1], [1, 3], [3, 0]]):
        state = play(rule, [ids], state=state, first=t)
    assert set(state.clients) == {0, 1, 3}
    for row in state.clients.values():  # no view that keeps a whole cohort's tensor
        assert row.untyped_storage().nbytes() == START.untyped_storage().nbytes()


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_ten_thousand_clients_cost_at_most_three_numbers_each_before_they_come(
    rule: Algorithm,
) -> None:
    state = rule.init(START, 10_000)
    assert sum(t.numel() for t in state.server.values()) <= 3 * 10_000 + 8
    assert not state.clients


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_round_leaves_the_state_it_started_from_as_it_was(rule: Algorithm) -> None:
    state = play(rule, [[0, 1]])
    kept = {name: t.clone() for name, t in state.server.items()}
    rows = {i: row.clone() for i, row in state.clients.items()}
    w_P = state.w_P.clone()
    play(rule, [[1, 2]], state=state, first=1)
    assert torch.equal(state.w_P, w_P) and state.clients.keys() == rows.keys()
    assert all(torch.equal(state.server[name], t) for name, t in kept.items())
    assert all(torch.equal(state.clients[i], row) for i, row in rows.items())


def last_row(algorithm: Algorithm, run: Run) -> Record:
    run = run.replace(algorithm=algorithm, replicates=1, eval_every=run.rounds)
    return played(run)[1][-1]


def test_scaffold_doubles_the_bytes_both_ways_and_feddyn_and_mifa_do_not(
    tiny: Run,
) -> None:
    once = last_row(FedAvg(), tiny)
    for algorithm, times in ((SCAFFOLD(), 2), (FedDyn(), 1), (MIFA(), 1)):
        row = last_row(algorithm, tiny)
        bytes_of_both = (row.bytes_up, row.bytes_down)
        assert bytes_of_both == (times * once.bytes_up, times * once.bytes_down)


def test_centralised_trains_on_the_union_sends_nothing_and_is_recorded_as_central(
    tiny: Run,
) -> None:
    row = last_row(Centralised(), tiny)
    split = tiny.data.split(tiny.data.load(), tiny.seed)
    union = split.of(EVERYONE)
    assert sorted(union) == sorted(i for held in split.clients for i in held)
    assert row.kind == "central" and row.train_accuracy is not None
    assert (row.bytes_up, row.bytes_down, row.server_rounds) == (0, 0, 0)
    assert row.steps == tiny.rounds * tiny.local.num_steps(len(union))


class Counting(Algorithm):
    """Keeps the numbers of samples that it is told."""

    def init(self, w_P: torch.Tensor, num_clients: int) -> State:
        return State(w_P, {"counts": torch.zeros(4, dtype=torch.int64)})

    def round(self, state: State, ids: list[int], key: Key) -> Round:
        counts = yield CountSamples([3, 0, SERVER, EVERYONE])
        yield TrainMean(state.w_P, ids)
        return State(state.w_P, {"counts": counts})


def test_an_algorithm_is_told_how_many_samples_clients_hold(tiny: Run) -> None:
    skewed = Dirichlet(alpha=0.1, balanced=False)
    data = tiny.data.replace(partition=skewed, partition_seeds=2)
    run = tiny.replace(data=data, algorithm=Counting(), rounds=1)
    sim = simulation(run)
    sim.step()
    worker: Any = sim.work
    assert worker.sizes(0) != worker.sizes(1)
    for cell, replicate in enumerate(sim.replicates):
        sizes, server = worker.sizes(cell)
        expected = [sizes[3], sizes[0], server, sum(sizes)]
        assert replicate.state.server["counts"].tolist() == expected


class Asking(Algorithm):
    """Asks for the samples of a client."""

    client: int = 10

    def round(self, state: State, ids: list[int], key: Key) -> Round:
        yield CountSamples([self.client])
        yield TrainMean(state.w_P, ids)
        return state


class Weighing(Algorithm):
    """Gives the cohort's clients weights."""

    weights: list[float]

    def round(self, state: State, ids: list[int], key: Key) -> Round:
        yield TrainMean(state.w_P, ids, weight_M=torch.tensor(self.weights))
        return state


@pytest.mark.parametrize(
    ("algorithm", "text"),
    [
        (Asking(), r"asked for \[10\], which do not exist"),
        (Weighing(weights=[1, 2]), r"must be a tensor of shape \[3\]"),
        (Weighing(weights=[1, -1, 2]), "weight_M is"),
        (Weighing(weights=[0, 0, 0]), "weight_M is"),
    ],
)
def test_a_request_that_makes_no_sense_is_explained(
    algorithm: Algorithm, text: str, tiny: Run
) -> None:
    with pytest.raises(ValueError, match=text):
        final(tiny.replace(algorithm=algorithm))
