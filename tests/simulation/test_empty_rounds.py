"""Rounds without participants: the model stays, and what else an algorithm does is done."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from helpers.matrix import EVERY, WRAPPERS
from helpers.packs import play

import raysafl as fl
from raysafl.algorithms import (
    MIFA,
    Centralised,
    Compressed,
    FedLaAvg,
    FSLParallel,
    Key,
    PowerOfChoice,
    Round,
    ScheduledServer,
    Selected,
    ServerOnly,
    State,
    TopK,
    Update,
)
from raysafl.training import StepRate

# In an empty round these train at the server, step or by what they remember.
ACTIVE = (fl.FSL, FSLParallel, fl.SAFARI, ServerOnly, Centralised, FedLaAvg, MIFA)
COHORTS = [[0, 1], [], [2, 3], [], [], [1]]


class Holes(fl.Participation):
    """The cohorts above, over and over."""

    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, fl.Cohort]:
        """Whose turn it is."""
        return state, fl.Cohort(COHORTS[key.round % len(COHORTS)])


@pytest.mark.parametrize("algorithm", EVERY, ids=lambda a: type(a).__name__)
def test_the_model_stays_in_a_round_without_participants(
    algorithm: fl.Algorithm, tiny: fl.Run
) -> None:
    run = tiny.replace(
        algorithm=algorithm, participation=Holes(), rounds=6, replicates=1, eval_every=1
    )
    records = play(run)[1]
    assert [r.cohorts for r in records] == [[ids] for ids in COHORTS]
    for before, record in itertools.pairwise(records):
        if record.cohorts[-1]:
            continue
        assert record.bytes_up == record.bytes_down == record.snapshots == 0
        if not isinstance(algorithm, ACTIVE):
            assert record.kind == "nobody" and record.steps == 0
            assert record.test_loss == before.test_loss
            assert record.train_loss == before.train_loss


class Stacks(fl.Algorithm):
    """Stacks a vector for each client before it asks them to train."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Clients start from their own rows."""
        w_MP = torch.stack([state.w_P for _ in ids])
        update: Update = yield fl.Train(state.w_P, ids, w_MP=w_MP)
        return replace(state, w_P=state.w_P - update.delta_MP.mean(0))


@pytest.mark.parametrize("around", [None, *WRAPPERS])
def test_an_algorithm_that_does_not_say_so_is_never_asked_for_a_round_without_clients(
    around: str | None, tiny: fl.Run
) -> None:
    algorithm = Stacks() if around is None else WRAPPERS[around](Stacks())
    run = tiny.replace(algorithm=algorithm, participation=Holes(), rounds=6)
    assert [r.round for r in play(run.replace(replicates=1, eval_every=1))[1]] == [
        *range(6)
    ]


@pytest.mark.parametrize(
    "around",
    [
        fl.SAFARI(inner=MIFA(), client_prob=1),
        fl.FSL(inner=MIFA(), gamma=0),
        Compressed(inner=MIFA(), compression=TopK(fraction=1)),
        Selected(inner=MIFA(), by=PowerOfChoice(m=9, d=9)),
        ScheduledServer(inner=MIFA(), schedule=StepRate(milestones=[99])),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_an_algorithm_that_acts_without_clients_does_so_inside_another_one(
    around: fl.Algorithm, tiny: fl.Run
) -> None:
    run = tiny.replace(participation=Holes(), rounds=6, replicates=1, eval_every=1)
    alone, inside = (
        [record.test_loss for record in play(run.replace(algorithm=algorithm))[1]]
        for algorithm in (MIFA(), around)
    )
    assert inside == pytest.approx(alone, rel=1e-5)
    assert alone[0] != alone[1]


class Acts(Stacks):
    """Says that it acts without clients, and asks nobody to train all the same."""

    acts_without_clients: ClassVar[bool] = True

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Ask the cohort, which may be empty."""
        update: Update = yield fl.Train(state.w_P, ids)
        return replace(state, w_P=state.w_P - update.delta_MP.mean(0))


def test_an_algorithm_that_says_so_is_asked_and_must_not_ask_nobody(
    tiny: fl.Run,
) -> None:
    run = tiny.replace(algorithm=Acts(), participation=Holes(), rounds=6)
    with pytest.raises(ValueError, match="in round 1 its ids are"):
        play(run)[1]


@pytest.mark.parametrize("accuracy", ["local", "cohort", "clients"])
def test_an_adaptive_policy_goes_on_with_the_accuracy_of_before(
    accuracy: str, tiny: fl.Run
) -> None:
    policy = fl.Snapshot(
        base=Holes(), uniform=fl.Uniform(m=2), adapt=0.7, accuracy=accuracy
    )
    run = tiny.replace(participation=policy, rounds=18, eval_every=1, replicates=1)
    records = play(run)[1]
    empty = [k for k in range(1, 17) if records[k].cohorts == [[]]]
    for k in empty:
        assert records[k].train_accuracy == records[k - 1].train_accuracy
        assert records[k + 1].enforce_prob == records[k].enforce_prob
    assert any(records[k].enforce_prob for k in empty)
