"""Selection among the available clients: cases made by hand, and real runs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from helpers.played import played
from torch import Tensor

import raysafl as fl
from raysafl.algorithms import (
    FOCUS,
    SCAFFOLD,
    CAFed,
    Compressed,
    CountSamples,
    Key,
    KnowsLocalTraining,
    MeanUpdate,
    Oort,
    PowerOfChoice,
    Selected,
    Selection,
    State,
    TopK,
)
from raysafl.algorithms.selection import Memory, Told
from raysafl.participation import Full, Markov

LOCAL = fl.LocalTraining(lr=0.5, batch_size=8, epochs=2, momentum=0.9)
P = 650  # parameters of logistic regression on digits


def select(
    by: Selection,
    ids: Sequence[int],
    memory: Mapping[str, Tensor] | None = None,
    samples: Mapping[int, int] | None = None,
    losses: Mapping[int, float] | None = None,
    key: Key | None = None,
) -> tuple[list[int], list[Any]]:
    """The selected clients, and what was asked of clients with such samples and losses."""
    losses_of = partial(FOCUS(local=LOCAL).losses, torch.ones(2))
    choice = by.select(ids, memory or {}, key or Key(seed=0), losses_of)
    asked: list[Any] = []
    answer: Any = None
    while True:
        try:
            request = choice.send(answer)
        except StopIteration as end:
            return list(end.value), asked
        asked.append(request)
        if isinstance(request, CountSamples):
            answer = torch.tensor([(samples or {}).get(i, 1) for i in request.ids])
        else:
            loss_M = torch.tensor([(losses or {}).get(i, 0.0) for i in request.ids])
            answer = MeanUpdate(torch.zeros(2), loss_M, loss_M, loss_M, loss_M, loss_M)


def told(ids: list[int], losses: list[float], samples: list[int], round: int) -> Told:
    return Told(torch.tensor(ids), torch.tensor(losses), torch.tensor(samples), round)


@pytest.mark.parametrize("loss", ["all", "batch"])
def test_power_of_choice_takes_the_candidates_with_the_largest_losses(
    loss: str,
) -> None:
    by = PowerOfChoice.model_validate({"m": 2, "d": 9, "loss": loss})
    losses = {1: 0.1, 3: 0.9, 4: 0.3, 8: 0.5}
    chosen, (count, probe) = select(by, [1, 3, 4, 8], losses=losses)
    assert chosen == [3, 8]
    assert isinstance(count, CountSamples) and isinstance(probe, fl.TrainMean)
    assert sorted(probe.ids) == [1, 3, 4, 8] and probe.up_bytes == 4
    assert probe.local is not None
    taken = probe.local.steps, probe.local.epochs
    assert taken == ((1, None) if loss == "batch" else (None, 1))
    # Of two candidates, the one with the larger loss is taken.
    by = by.replace(m=1, d=2)
    for seed in range(8):
        (one,), (_, probe) = select(by, [1, 3, 4, 8], losses=losses, key=Key(seed))
        assert one == max(probe.ids, key=lambda i: losses[i]) and len(probe.ids) == 2


def test_power_of_choice_selects_nobody_where_nobody_has_samples() -> None:
    chosen, asked = select(
        PowerOfChoice(m=1, d=2), [0, 2, 5], samples={0: 0, 2: 0, 5: 0}
    )
    assert chosen == [] and len(asked) == 1


def test_power_of_choice_by_last_losses_takes_untrained_clients_first() -> None:
    by = PowerOfChoice(m=2, d=4, loss="last")
    memory = by.learn(by.init(5), told([0, 2, 3], [0.2, 0.7, 0.4], [8, 8, 8], 0))
    chosen, asked = select(by, [0, 1, 2, 3], memory)
    assert chosen == [1, 2] and len(asked) == 1
    chosen, _ = select(by, [0, 2, 3], memory)
    assert chosen == [2, 3]


def trained(by: Oort, last: Mapping[int, tuple[float, int, int]]) -> Memory:
    """What Oort remembers of clients with these losses, samples seen, and rounds."""
    memory = by.init(12)
    for i, (loss, seen, round) in last.items():
        memory = by.learn(memory, told([i], [loss], [seen], round))
    return memory


def test_oort_explores_less_and_less_but_always_a_minimum() -> None:
    by = Oort(m=5, exploration=0.8, decay=0.9, minimum=0.3)
    memory = trained(by, {i: (1.0, 8, 0) for i in range(6)})
    explored = []
    # epsilon is 0.65, 0.43, 0.3 and 0.3; 6 clients have trained and 6 have not.
    for round in (1, 5, 9, 39):
        chosen, _ = select(by, list(range(12)), memory, key=Key(0, round))
        explored.append(sum(i >= 6 for i in chosen))
        assert len(set(chosen)) == 5
    assert explored == [4, 3, 2, 2]
    # Without new clients, all are exploited; with too few old ones, more are explored.
    chosen, _ = select(by, list(range(6)), memory, key=Key(0, 1))
    assert len(set(chosen)) == 5 and max(chosen) < 6
    chosen, _ = select(
        Oort(m=5, exploration=0), [0, 7, 8, 9, 10, 11], memory, key=Key(0, 1)
    )
    assert 0 in chosen and len(set(chosen)) == 5


def test_oort_takes_the_clients_of_the_largest_utility() -> None:
    by = Oort(m=2, exploration=0.0, minimum=0.0, cut_off=1.0, clip=1.0)
    # U = |B_i| loss_i: 8, 30, 5 * 4 = 20 (it has 5 samples only), and 2.
    last = {0: (1.0, 8, 3), 1: (3.0, 10, 3), 2: (4.0, 50, 3), 3: (2.0, 1, 3)}
    samples = {0: 90, 1: 90, 2: 5, 3: 90}
    memory = trained(by, last)
    chosen, _ = select(by, [0, 1, 2, 3], memory, samples, key=Key(0, 4))
    assert chosen == [1, 2]
    # A client that has not trained for long is preferred among equals.
    memory = trained(by, {0: (1.0, 8, 40), 1: (1.0, 8, 0), 2: (1.0, 8, 9)})
    chosen, _ = select(by, [0, 1, 2], memory, {0: 9, 1: 9, 2: 9}, key=Key(0, 50))
    assert chosen == [1, 2]


def test_oort_draws_above_the_cut_off_and_clips_outliers() -> None:
    by = Oort(m=1, exploration=0.0, minimum=0.0, cut_off=0.5, clip=1.0)
    # Before round 2, ln(t) = 0 and s_i is U_i scaled: 0, 0.4, 0.6 and 1; the cut is 0.5.
    losses = (0.0, 0.4, 0.6, 1.0)
    memory = trained(by, {i: (loss, 1, 0) for i, loss in enumerate(losses)})
    # Clipped at 0.6, the last two are alike, and 0.4 / 0.6 is above the cut.
    for clip, able in ((1.0, {2, 3}), (0.5, {1, 2, 3})):
        drawn = [
            select(by.replace(clip=clip), [0, 1, 2, 3], memory, key=Key(seed))[0][0]
            for seed in range(60)
        ]
        assert {*drawn} == able


def test_traffic_counts_the_candidates_and_the_selected(tiny: fl.Run) -> None:
    run = tiny.replace(participation=Full(), replicates=1)
    vector = 4 * P
    for loss, down, up in (
        ("all", 7 * vector, 4 * 5),
        ("batch", 7 * vector, 4 * 5),
        ("last", 2 * vector, 0),
    ):
        by = PowerOfChoice.model_validate({"m": 2, "d": 5, "loss": loss})
        _, records = played(run.replace(algorithm=Selected(by=by)))
        assert [r.bytes_down for r in records] == [down] * 4
        assert [r.bytes_up for r in records] == [2 * vector + up] * 4
        # The cohorts are those that are available.
        assert [r.cohorts for r in records] == [[list(range(10))]] * 4


def test_clients_that_send_their_losses_alone_have_not_trained(tiny: fl.Run) -> None:
    run = tiny.replace(
        algorithm=Selected(by=PowerOfChoice(m=2, d=5)),
        participation=Full(),
        eval_clients=fl.PerClient(every=4),
    )
    for own in played(run)[0].replicates:
        assert own.clients is not None
        # In each of 4 rounds, 5 clients send a loss, and 2 of them train.
        assert own.clients.participations_N.sum() == 4 * 2


def test_a_round_in_which_ca_fed_keeps_nobody_says_that_nobody_trained(
    tiny: fl.Run,
) -> None:
    run = tiny.replace(
        algorithm=CAFed(bias=0.0),
        participation=Markov(mean=0.4, correlation=0.5),
        rounds=12,
        eval_every=1,
    )
    _, records = played(run)
    kinds = set()
    for record in records:
        ((ids,), (trained,)) = record.cohorts, record.trained
        # Each available client sends its loss; only who trains sends a vector as well.
        assert trained == (record.bytes_up > 4 * len(ids))
        assert record.kind == ("client" if trained else "nobody")
        kinds |= {record.kind} if ids else set()
    assert kinds == {"client", "nobody"}


def test_clients_whose_update_is_as_short_as_a_loss_have_trained(tiny: fl.Run) -> None:
    class Terse(fl.FedAvg):
        def round(self, state: State, ids: Sequence[int], key: Key) -> Any:
            update = yield fl.Train(state.w_P, ids, up_bytes=4)
            return replace(state, w_P=state.w_P - update.delta_MP.mean(0))

    run = tiny.replace(
        algorithm=Terse(), participation=Full(), eval_clients=fl.PerClient(every=4)
    )
    for own in played(run)[0].replicates:
        assert own.clients is not None
        assert own.clients.participations_N.tolist() == [4] * 10


def test_a_selection_learns_nothing_of_clients_that_send_their_losses_alone(
    tiny: fl.Run,
) -> None:
    class Asking(KnowsLocalTraining):
        def round(self, state: State, ids: Sequence[int], key: Key) -> Any:
            yield from self.losses(state.w_P, ids)
            return state

    by = PowerOfChoice(m=3, d=3, loss="last")
    sim, _ = played(tiny.replace(algorithm=Selected(inner=Asking(), by=by)))
    for own in sim.replicates:
        assert own.state.server["~loss"].isinf().all()


def test_where_at_most_m_are_available_the_inner_algorithm_runs_bitwise(
    tiny: fl.Run,
) -> None:
    by = PowerOfChoice(m=3, d=3)
    for inner in (fl.FedAvg(), SCAFFOLD()):
        mine, theirs = (
            played(tiny.replace(algorithm=own))[0]
            for own in (Selected(inner=inner, by=by), inner)
        )
        for a, b in zip(mine.replicates, theirs.replicates, strict=True):
            assert torch.equal(a.state.w_P, b.state.w_P)
            assert a.state.server.keys() == b.state.server.keys() | {"~loss"}


def test_compressed_updates_are_selected_by_losses_that_are_sent_whole(
    tiny: fl.Run,
) -> None:
    top = TopK(fraction=0.1)
    by = PowerOfChoice(m=2, d=5)
    run = tiny.replace(participation=Full(), replicates=1)
    inside = Selected(inner=Compressed(compression=top), by=by)
    outside = Compressed(inner=Selected(by=by), compression=top)
    for algorithm in (inside, outside):
        _, records = played(run.replace(algorithm=algorithm))
        assert [r.bytes_up for r in records] == [2 * top.num_bytes(P) + 4 * 5] * 4


def test_what_cannot_be_selected_is_refused() -> None:
    with pytest.raises(ValueError, match="give a d of at least m"):
        PowerOfChoice(m=5, d=4)
    by = PowerOfChoice(m=1, d=2)
    with pytest.raises(ValueError, match="cannot be selected again"):
        Selected(inner=fl.FSL(inner=Selected(by=by)), by=by)
