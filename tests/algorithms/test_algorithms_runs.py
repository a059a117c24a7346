"""Every algorithm on real data, inside the others, from a checkpoint, and with many clients."""

from collections.abc import Sequence

import pytest
import torch
from helpers.checkpoints import dump, restore
from helpers.quadratics import START, answer

from raysafl import (
    FSL,
    SAFARI,
    Algorithm,
    FedAvg,
    Federation,
    IidServer,
    LocalTraining,
    Logistic,
    Run,
    Uniform,
)
from raysafl.algorithms import (
    AFL,
    EVERYONE,
    MIFA,
    SCAFFOLD,
    Centralised,
    FedAdagrad,
    FedAdam,
    FedAmplify,
    FedAU,
    FedAvgM,
    FedDyn,
    FedProx,
    FedVARP,
    FedYogi,
    FSLParallel,
    Key,
    ServerOnly,
)
from raysafl.core.algorithm import State
from raysafl.core.record import Record
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Simulation

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
OTHERS: list[Algorithm] = [
    *(
        FSL(),
        FSL(pretrain=5),
        FSLParallel(),
        SAFARI(inner=FSL(inner=SCAFFOLD(), pretrain=2)),
    ),
    *(
        FSL(inner=SAFARI(client_prob=0.5)),
        ServerOnly(),
        Centralised(),
        Centralised(local=LocalTraining(lr=0.1, batch_size=64, steps=5)),
    ),
]
RUN = Run(
    data=Federation(server=IidServer(n0=100)),
    model=Logistic(),
    algorithm=FedAvg(),
    participation=Uniform(m=4),
    local=LocalTraining(lr=0.1, batch_size=16, epochs=2),
    rounds=8,
    eval_every=8,
    replicates=2,
)
WORKER = Worker(RUN.cells, RUN.data.load(), RUN.model)


def simulation(algorithm: Algorithm) -> Simulation:
    return Simulation(RUN.replace(algorithm=algorithm), WORKER)


def steps(sim: Simulation, rounds: int) -> list[Record]:
    return [record for _ in range(rounds) for record in sim.step()]


@pytest.mark.parametrize("algorithm", [*RULES, *OTHERS], ids=repr)
def test_every_algorithm_learns_and_goes_on_bitwise_from_any_checkpoint(
    algorithm: Algorithm,
) -> None:
    whole, first = simulation(algorithm), simulation(algorithm)
    records = steps(whole, RUN.rounds)
    assert [r.test_accuracy > 0.4 for r in records] == [True, True]  # chance is 0.1
    for cut in (0, 3, 5):
        steps(first, cut - first.round)
        again = simulation(algorithm)
        restore(again, dump(first))
        steps(again, RUN.rounds - cut)
        for a, b in zip(whole.replicates, again.replicates, strict=True):
            assert torch.equal(a.state.w_P, b.state.w_P)
            for x, y in (
                (a.state.server, b.state.server),
                (a.state.clients, b.state.clients),
            ):
                assert x.keys() == y.keys()
                assert all(torch.equal(x[k], y[k]) for k in x)  # type: ignore[index]


def one_round(algorithm: Algorithm, state: State, ids: Sequence[int], t: int) -> State:
    turn = algorithm.round(state, ids, Key(0, t))
    request = next(turn)
    try:
        while True:
            request = turn.send(answer(request))
    except StopIteration as end:
        done: State = end.value
    return done


@pytest.mark.parametrize(
    "rule",
    [SCAFFOLD(), FedDyn(), MIFA(), FedVARP(), AFL(memory=True)],
    ids=repr,
)
def test_memory_is_kept_only_of_clients_seen_and_of_each_its_own(
    rule: Algorithm,
) -> None:
    state = rule.init(START, 10_000)
    assert not state.clients
    for t, ids in enumerate([[0, 1], [1, 3], [3, 0]]):
        state = one_round(rule, state, ids, t)
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
    state = one_round(rule, rule.init(START, 4), [0, 1], 0)
    kept = {name: t.clone() for name, t in state.server.items()}
    rows = {i: row.clone() for i, row in state.clients.items()}
    w_P = state.w_P.clone()
    one_round(rule, state, [1, 2], 1)
    assert torch.equal(state.w_P, w_P) and state.clients.keys() == rows.keys()
    assert all(torch.equal(state.server[name], t) for name, t in kept.items())
    assert all(torch.equal(state.clients[i], row) for i, row in rows.items())


def test_scaffold_doubles_the_bytes_both_ways_and_feddyn_and_mifa_do_not() -> None:
    fedavg, scaffold, feddyn, mifa = (
        steps(simulation(a), RUN.rounds)[0]
        for a in (FedAvg(), SCAFFOLD(), FedDyn(), MIFA())
    )
    assert scaffold.bytes_up == 2 * fedavg.bytes_up
    assert scaffold.bytes_down == 2 * fedavg.bytes_down
    for same in (feddyn, mifa):
        assert (same.bytes_up, same.bytes_down) == (fedavg.bytes_up, fedavg.bytes_down)


def test_centralised_trains_on_the_union_sends_nothing_and_is_recorded_as_central() -> (
    None
):
    record = steps(simulation(Centralised()), RUN.rounds)[0]
    split = WORKER.population.splits[0]
    union = split.of(EVERYONE)
    assert sorted(union) == sorted(i for held in split.clients for i in held)
    assert record.kind == "central" and record.train_accuracy is not None
    assert (record.bytes_up, record.bytes_down, record.server_rounds) == (0, 0, 0)
    assert record.steps == RUN.rounds * 2 * -(-len(union) // 16)
