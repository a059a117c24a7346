"""Rounds: lock-step replicates, checkpoints, limits, divergence, counting."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import dump
from helpers.four_clients import FOUR
from helpers.frozen import Backbone
from helpers.objectives import REGRESSION
from helpers.packs import play, worker_of

import raysafl as fl
from raysafl.algorithms import SCAFFOLD, FedAvgM, Key
from raysafl.core.algorithm import (
    Algorithm,
    ContinuedTraining,
    MeanUpdate,
    Round,
    State,
    Train,
    TrainMean,
)
from raysafl.core.problem import SERVER
from raysafl.core.record import Record
from raysafl.participation import Bernoulli
from raysafl.simulation.checkpoint import load
from raysafl.simulation.columns import finite_rows
from raysafl.simulation.simulation import Simulation

SERVER_SGD = fl.LocalTraining(lr=0.1, batch_size=16, epochs=2)


def records_of(run: fl.Run) -> list[Record]:
    return play(run)[1]


def facts(records: Sequence[Record], replicate: int = 0) -> list[dict[str, object]]:
    """Everything of one replicate but its number and the wall time."""
    rows = [asdict(r) for r in records if r.replicate == replicate]
    return [
        {k: v for k, v in row.items() if k not in ("replicate", "seconds")}
        for row in rows
    ]


def test_a_replicate_of_several_partitions_equals_a_run_on_its_partition(
    tiny: fl.Run,
) -> None:
    run = tiny.replace({"data.partition_seeds": 2, "replicates": 4})
    first = run.data.split_seed(0)
    assert run.partition_seeds == [first, first + 1, first, first + 1]
    records = records_of(run)
    for r, seed in enumerate(run.partition_seeds):
        changes = {"data.seed": seed, "data.partition_seeds": 1, "replicates": 1}
        alone = run.replace({**changes, "seed": run.seed + r})
        assert facts(records, r) == facts(records_of(alone))


def test_partitions_have_equally_many_replicates(tiny: fl.Run) -> None:
    some = tiny.replace({"data.partition_seeds": 8, "replicates": 3})
    assert len(set(some.partition_seeds)) == 3
    with pytest.raises(ValueError, match=r"replicates .* let .* a multiple of 8"):
        some.replace(replicates=10)


GOES_ON = ContinuedTraining(lr=0.01, batch_size=16, steps=2, optimizer="adam")
SAMPLED = fl.SAFARI(client_prob=0.5)
DEVICES = fl.Devices(step_seconds=0.1, spread=0.8, dropout=0.2, deadline=1.5, report=3)
# Runs that keep different things between rounds.
KEEPS: dict[str, tuple[fl.Run | None, dict[str, Any]]] = {
    "momentum": (None, {"algorithm": FedAvgM(momentum=0.5), "eval_every": 2}),
    "vectors of clients": (None, {"algorithm": SCAFFOLD(), "eval_every": 3}),
    "passes": (None, {"algorithm": SAMPLED, "local": GOES_ON, "eval_every": 2}),
    "samples of the server": (None, {"algorithm": SAMPLED, "data.share": 0.5}),
    "patience": (
        None,
        {
            "rounds": 40,
            "eval_every": 2,
            "local.lr": 0.5,
            "patience": fl.Patience(metric="test_accuracy", rounds=6, min_delta=0.02),
        },
    ),
    "the best model": (None, {"rounds": 6, "keep": "best"}),
    "seconds of devices": (
        None,
        {
            "devices": DEVICES,
            "participation": fl.Uniform(m=5),
            "rounds": 6,
            "eval_every": 3,
        },
    ),
    "clients": (
        FOUR,
        {"eval_clients": fl.PerClient(every=2, on="own", personal_steps=1)},
    ),
    "no accuracy": (REGRESSION, {}),
    "frozen parameters": (None, {"model": Backbone()}),
    "no participants": (None, {"participation": Bernoulli(rate=0.1), "eval_every": 3}),
    "an accuracy": (
        None,
        {
            "participation": fl.Snapshot(
                base=fl.Uniform(m=3),
                uniform=fl.Uniform(m=4),
                adapt=3.0,
                accuracy="clients",
            )
        },
    ),
}


@pytest.mark.parametrize("name", KEEPS)
def test_a_run_that_is_interrupted_after_each_round_equals_the_undisturbed_one_bitwise(
    name: str, tiny: fl.Run
) -> None:
    base, changes = KEEPS[name]
    run = (base or tiny).replace(changes)
    whole, records = play(run)
    again, resumed = play(run, interrupted=True)
    for r, (a, b) in enumerate(zip(whole.replicates, again.replicates, strict=True)):
        assert facts(records, r) == facts(resumed, r)
        assert torch.equal(a.state.w_P, b.state.w_P)
        assert (a.round, a.stopped) == (b.round, b.stopped)
        assert (a.best, a.best_round) == (b.best, b.best_round)
        if a.clients and b.clients:
            assert a.clients.rounds == b.clients.rounds
            np.testing.assert_array_equal(a.clients.tables, b.clients.tables)
    kept, same = whole.kept(), again.kept()
    assert kept.keys() == same.keys()
    for r, model in kept.items():
        assert (model.round, model.value) == (same[r].round, same[r].value)
        assert torch.equal(model.w_P, same[r].w_P)


def test_seeds_that_a_column_of_results_cannot_hold_are_refused(tiny: fl.Run) -> None:
    assert tiny.replace(seed=2**63 - 2, replicates=2).seeds[-1] == 2**63 - 1
    with pytest.raises(ValueError, match=r"up to 2\^63 - 1; give a smaller seed"):
        tiny.replace(seed=2**63 - 1, replicates=2)


def test_a_checkpoint_holds_no_cell_of_another_run_and_a_damaged_one_is_refused(
    tiny: fl.Run,
) -> None:
    content = dump(Simulation(tiny, worker_of({"": tiny})))
    lr = fl.LocalTraining(lr=0.9, batch_size=32, epochs=1)
    for other in (tiny.replace(seed=5), tiny.replace(local=lr)):
        assert not load(content, other.cell_ids)
    # The second seed of one run is the first of another.
    assert list(load(content, tiny.replace(seed=1).cell_ids)) == tiny.cell_ids[1:]
    for damaged in (content[:100], b"", b"\x00" * 200):
        with pytest.raises(ValueError, match="the checkpoint cannot be used"):
            load(damaged)


def test_only_every_kth_round_and_the_last_are_evaluated_and_counts_add_up(
    tiny: fl.Run,
) -> None:
    every = records_of(tiny.replace(rounds=7, replicates=1))
    sparse = records_of(tiny.replace(rounds=7, replicates=1, eval_every=3))
    assert [r.round for r in sparse] == [2, 5, 6]
    for name in ("steps", "bytes_up", "bytes_down", "server_rounds"):
        assert sum(getattr(r, name) for r in sparse) == sum(
            getattr(r, name) for r in every
        )
    assert sparse[-1].test_accuracy == every[-1].test_accuracy


def test_traffic_is_four_bytes_per_parameter_and_client_and_none_in_server_rounds(
    tiny: fl.Run,
) -> None:
    records = records_of(
        tiny.replace(algorithm=fl.SAFARI(client_prob=0.5), rounds=12, replicates=1)
    )
    kinds = {r.kind for r in records}
    assert kinds == {"client", "server"}
    for r in records:
        moved = 3 * 650 * 4 if r.kind == "client" else 0
        assert (r.bytes_up, r.bytes_down) == (moved, moved)
        assert r.server_rounds == (r.kind == "server")


class Both(Algorithm):
    """Clients with an offset, then the server, in one round."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        offset = torch.zeros(len(ids), len(state.w_P))
        update = yield Train(state.w_P, ids, offset, extra_down=1)
        w_P = state.w_P - update.delta_MP.mean(0)
        update = yield Train.server(w_P, SERVER_SGD)
        return State(w_P - update.delta_MP[0])


def test_a_users_round_may_ask_clients_and_server_and_an_extra_vector_doubles_what_goes_down(
    tiny: fl.Run,
) -> None:
    run = tiny.replace(algorithm=Both(), rounds=1, replicates=1)
    (record,) = records_of(run)
    assert record.kind == "client+server"
    assert record.bytes_down == 2 * record.bytes_up == 2 * 3 * 650 * 4
    # all clients hold equally many
    held = tiny.data.split(tiny.data.load(), 0).clients[0]
    assert record.steps == 3 * -(-len(held) // 32) + 2 * -(-50 // 16)


class SmallUploads(Algorithm):
    """A mean of updates that weigh 100 bytes each, and one more vector."""

    up_bytes: int | None = 100

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """One client round."""
        mean: MeanUpdate = yield TrainMean(
            state.w_P, ids, extra_up=1, up_bytes=self.up_bytes
        )
        return State(state.w_P - mean.delta_P)


def test_an_update_weighs_what_the_algorithm_declares_and_nothing_else_changes(
    tiny: fl.Run,
) -> None:
    dense, small, none = (
        records_of(tiny.replace(algorithm=SmallUploads(up_bytes=up)))
        for up in (None, 100, 0)
    )
    vector = 650 * 4
    assert {r.bytes_up for r in dense} == {3 * 2 * vector}
    assert {r.bytes_up for r in small} == {3 * (100 + vector)}
    assert {r.bytes_up for r in none} == {3 * vector}
    for a, b in zip(facts(dense), facts(small), strict=True):
        assert a | {"bytes_up": 0} == b | {"bytes_up": 0}


@pytest.mark.parametrize("wrong", [-1, 0.5, math.nan, "100", None])
def test_the_weight_of_an_update_is_a_whole_number_of_bytes(wrong: Any) -> None:
    w_P = torch.zeros(3)
    if wrong is None:
        assert Train(w_P, [0], up_bytes=np.int64(7)).up_bytes == 7
        return
    with pytest.raises(ValueError, match=r"up_bytes=.* give a whole number"):
        Train(w_P, [0], up_bytes=wrong)


@pytest.mark.parametrize(("share", "samples"), [(1.0, 50), (0.5, 25), (0.0, 0)])
def test_under_data_sharing_a_client_is_sent_its_samples_in_the_round_it_first_trains(
    tiny: fl.Run, share: float, samples: int
) -> None:
    algorithm = fl.SAFARI(client_prob=0.5)
    run = tiny.replace(algorithm=algorithm, rounds=12, eval_every=2)
    run = run.replace(data=run.data.replace(share=share))
    records = records_of(run)
    model = 650 * 4
    # Digits have 64 pixels of one byte and a label of eight bytes.
    each = samples * (64 * run.data.load().train.x.itemsize + 8)
    every = records_of(run.replace(eval_every=1))
    for replicate in range(2):
        met = set[int]()
        expected = 0
        for record in (r for r in every if r.replicate == replicate):
            if record.kind == "client":
                expected += 3 * model + len(set(record.cohorts[-1]) - met) * each
                met |= set(record.cohorts[-1])
        assert 3 < len(met) <= 6
        down = sum(r.bytes_down for r in records if r.replicate == replicate)
        assert down == expected
        up = sum(r.bytes_up for r in records if r.replicate == replicate)
        rounds = sum(r.kind == "client" for r in every if r.replicate == replicate)
        assert up == 3 * model * rounds


def test_training_scores_of_one_step_are_those_of_the_start_on_the_clients_samples(
    tiny: fl.Run,
) -> None:
    one_step = fl.LocalTraining(lr=0.1, batch_size=10_000, steps=1)
    model = fl.Logistic(zero_init=False)
    run = tiny.replace(local=one_step, model=model, participation=fl.Uniform(m=1))
    run = run.replace(rounds=1, replicates=1)
    w_P = worker_of({"": run}).init(0).numpy().astype(np.float64)
    (record,) = records_of(run)
    dataset = run.data.load()
    own = run.data.split(dataset, run.seed).clients[record.cohorts[-1][0]]
    train = dataset.train
    x = (train.x[own] * train.scale + train.shift).reshape(len(own), -1)
    logits = x @ w_P[:640].reshape(10, 64).T + w_P[640:]
    assert record.train_accuracy == (logits.argmax(1) == train.y[own]).mean()
    own_logits = logits[np.arange(len(own)), train.y[own]]
    loss = np.log(np.exp(logits).sum(1)) - own_logits
    assert record.train_loss == pytest.approx(loss.mean(), rel=1e-5)


def test_training_accuracy_stays_through_server_rounds_and_changes_in_others(
    tiny: fl.Run,
) -> None:
    run = tiny.replace(algorithm=fl.SAFARI(client_prob=0.5), rounds=12, replicates=1)
    records = records_of(run)
    for before, after in itertools.pairwise(records):
        if after.kind == "server":
            assert after.train_accuracy == before.train_accuracy
        elif before.train_accuracy is not None:
            assert after.train_loss != before.train_loss


def test_losses_of_clients_are_their_own_where_the_server_trained_with_them_diverges(
    tiny: fl.Run,
) -> None:
    class Together(Algorithm):
        """The server, if asked too, starts where its loss is not finite."""

        who: tuple[int, ...] = ()

        def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
            w_MP = state.w_P.repeat(len(ids) + len(self.who), 1)
            w_MP[len(ids) :] = math.inf
            update = yield Train(state.w_P, [*ids, *self.who], w_MP=w_MP)
            return State(state.w_P - update.delta_MP[: len(ids)].mean(0))

    alone, together = (
        records_of(tiny.replace(algorithm=Together(who=who), rounds=2))
        for who in ((), (SERVER,))
    )
    for own, due in zip(together, alone, strict=True):
        assert (own.train_loss, own.train_accuracy) == pytest.approx(
            (due.train_loss, due.train_accuracy)
        )


@pytest.mark.parametrize(
    ("numbers", "finite"),
    [
        ([1.0, -2.0], True),
        ([3e38, 3e38], True),
        ([math.inf, -math.inf], False),
        ([math.nan], False),
    ],
)
def test_parameters_are_finite_if_each_of_them_is(
    numbers: list[float], finite: bool
) -> None:
    assert finite_rows(torch.tensor([numbers, [0.0] * len(numbers)])).tolist() == [
        finite,
        True,
    ]


def test_partition_and_model_do_not_change_with_the_global_random_state(
    tiny: fl.Run,
) -> None:
    np.random.seed(1)
    torch.manual_seed(1)
    first = facts(records_of(tiny.replace(model=fl.MLP(), rounds=1)))
    np.random.seed(2)
    torch.manual_seed(2)
    assert facts(records_of(tiny.replace(model=fl.MLP(), rounds=1))) == first
