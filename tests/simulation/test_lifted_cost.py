"""What a round of many replicates costs, and what is said of an algorithm that costs more."""

import gc
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType

import pytest
from helpers.lifted import Pack, assert_equal_to_themselves_alone

import raysafl as fl
from raysafl.algorithms import (
    MIFA,
    SCAFFOLD,
    FedAdam,
    FedAvgM,
    FedDyn,
    FedProx,
    FedVARP,
    Key,
    Round,
    State,
)

MOST_CALLS = 700
# Rounds with next to no work: two clients take one step on one sample, and nothing is evaluated.
EMPTY = fl.Run(
    data=fl.Federation(clients=1337, partition=fl.Iid(), server=fl.IidServer(n0=100)),
    model=fl.Logistic(),
    algorithm=fl.FedAvg(),
    participation=fl.Uniform(m=2),
    local=fl.LocalTraining(lr=0.1, batch_size=1, steps=1),
    rounds=1000,
    eval_every=1000,
)


def group_of(algorithm: fl.Algorithm, count: int) -> dict[str, fl.Run]:
    """So many runs of empty rounds, which differ in their seeds only."""
    run = EMPTY.replace(algorithm=algorithm)
    return {str(seed): run.replace(seed=seed) for seed in range(count)}


def calls_of_a_round(runs: dict[str, fl.Run]) -> int:
    """Count the calls of functions, in Python and in C, that one round of a warm pack makes."""
    pack = Pack(runs)
    pack.advance(rounds=3)
    # The garbage collector may call functions at any time.
    gc.collect()
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.disable()
    sys.setprofile(count)
    try:
        outcomes = pack.lockstep.advance(pack.simulations)
    finally:
        sys.setprofile(None)
        gc.enable()
    assert all(outcome == [] for outcome in outcomes.values())
    return calls


def test_a_round_of_1000_runs_makes_at_most_700_calls_of_functions() -> None:
    assert calls_of_a_round(group_of(fl.FedAvg(), 1000)) <= MOST_CALLS


@pytest.mark.parametrize(
    "algorithm",
    [SCAFFOLD(), fl.SAFARI(), fl.FSL(inner=FedAdam())],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_the_calls_of_a_round_do_not_grow_with_the_number_of_runs(
    algorithm: fl.Algorithm,
) -> None:
    few = calls_of_a_round(group_of(algorithm, 30))
    many = calls_of_a_round(group_of(algorithm, 300))
    assert many <= 1.5 * few


class Median(fl.Algorithm):
    """That of the README."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.Train(state.w_P, ids)
        return replace(state, w_P=state.w_P - update.delta_MP.median(0).values)


class OneOfTheIds(fl.Algorithm):
    """Looks at single ids."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.Train(state.w_P, [max(ids)])
        return replace(state, w_P=state.w_P - update.delta_MP[0])


class OneOfTheValues(fl.Algorithm):
    """Branches on a value of a tensor."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        update = yield fl.Train(state.w_P, ids)
        factor = 1 if update.loss_M[0] > update.loss_M[1] else 2
        return replace(state, w_P=state.w_P - factor * update.delta_MP[0])


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the simulation has logged."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("raysafl.simulation")
    ]


def test_the_log_says_once_which_class_is_carried_out_for_each_replicate_and_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs = {
        f"{type(algorithm).__name__} {seed}": run
        for algorithm in (OneOfTheIds(), Median(), OneOfTheValues(), fl.FedAvg())
        for seed, run in group_of(algorithm, 3).items()
    }
    # Another policy makes another group.
    others = [run.replace(participation=fl.Uniform(m=3)) for run in runs.values()]
    runs |= {f"other {number}": run for number, run in enumerate(others)}
    with caplog.at_level("INFO", logger="raysafl.simulation"):
        Pack(runs).advance(rounds=4)
    lines = lines_of(caplog)
    assert len(lines) == 2
    for name, reason in (("OneOfTheIds", "id"), ("OneOfTheValues", "value")):
        (line,) = (line for line in lines if name in line)
        assert reason in line.replace(name, "")


@pytest.mark.parametrize(
    "algorithm",
    [
        fl.FedAvg(),
        fl.FedAvg(weighted=True, lr=None),
        FedProx(prox=0.1),
        FedAvgM(momentum=0.9),
        FedAdam(weighted=True),
        FedDyn(),
        FedVARP(),
        MIFA(),
        SCAFFOLD(),
        fl.FSL(inner=FedAdam()),
        fl.SAFARI(inner=FedAvgM(), client_prob=0.5),
        fl.SAFARI(inner=SCAFFOLD(), client_prob=0.5),
        Median(),
        fl.SAFARI(inner=Median(), client_prob=0.5),
    ],
    ids=repr,
)
def test_an_algorithm_that_keeps_the_rules_is_carried_out_once_for_a_group(
    algorithm: fl.Algorithm, caplog: pytest.LogCaptureFixture
) -> None:
    runs = {
        name: run.replace(rounds=8, eval_every=8)
        for name, run in group_of(algorithm, 6).items()
    }
    with caplog.at_level("INFO", logger="raysafl.simulation"):
        assert_equal_to_themselves_alone(runs)
    assert not lines_of(caplog)
