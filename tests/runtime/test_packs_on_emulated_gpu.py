"""What a round of a pack asks of a GPU, however many runs the pack has."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest
import torch
from helpers.emulated_cuda import Counts, emulated_cuda
from helpers.small_runs import assert_equal_in_float32, play

from raysafl import (
    FSL,
    SAFARI,
    Algorithm,
    FedAvg,
    Federation,
    LocalTraining,
    Logistic,
    Run,
    TrainMean,
)
from raysafl.algorithms import SCAFFOLD, Key, MeanUpdate, State
from raysafl.core.algorithm import Round
from raysafl.data import Digits, IidServer
from raysafl.participation import Uniform
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Lockstep, Simulation

# One client comes, and the server holds as many samples as it does: so a pack has one
# task a run, whoever trains, and they all are in one stack.
RUN = Run(
    data=Federation(dataset=Digits(), clients=99, server=IidServer(n0=14)),
    model=Logistic(),
    participation=Uniform(m=1),
    local=LocalTraining(lr=0.1, batch_size=14, epochs=1),
    algorithm=FedAvg(),
    rounds=4,
    eval_every=2,
)
P = 650


class Asked(NamedTuple):
    """What a round asks of a device.

    Args:
        launches: Operators, and replays of recorded steps.
        syncs: How often the host waits.
        copies: Copies to the device and from it.
        vectors_up: How many vectors [P] are uploaded for a run, rounded down.
        vectors_down: How many are downloaded.
    """

    launches: int
    syncs: int
    copies: int
    vectors_up: int
    vectors_down: int

    @classmethod
    def of(cls, counts: Counts, runs: int) -> "Asked":
        """What was counted in a round of so many runs."""
        vector_bytes = 4 * P * runs
        return cls(
            counts.launches,
            counts.syncs,
            counts.uploads + counts.downloads,
            counts.upload_bytes // vector_bytes,
            counts.download_bytes // vector_bytes,
        )


# Of the third round, which is not evaluated, and of the fourth, which is. The third starts
# from what was evaluated after the second.
ROUNDS: Mapping[str, Sequence[Asked]] = {
    "FedAvg": (Asked(15, 1, 6, 0, 1), Asked(31, 2, 9, 2, 1)),
    "SAFARI": (Asked(15, 1, 6, 0, 1), Asked(31, 2, 9, 2, 1)),
    "FSL": (Asked(31, 2, 13, 1, 2), Asked(47, 3, 16, 3, 2)),
    "SCAFFOLD": (Asked(16, 1, 8, 1, 1), Asked(32, 2, 11, 3, 1)),
}
ALGORITHMS: Sequence[Algorithm] = (
    FedAvg(),
    SAFARI(client_prob=0.5, server_update=RUN.local),
    FSL(),
    SCAFFOLD(),
)
# FSL's server rounds come after the other tasks.
MIXED = (Asked(32, 2, 15, 0, 1), Asked(48, 3, 18, 2, 1))


def rounds_of(algorithms: Sequence[Algorithm], size: int) -> tuple[Asked, ...]:
    """Count the third and the fourth round of a pack, in which nothing is set up.

    Its runs have these algorithms in turn, and differ in their learning rates.
    """
    runs = [
        RUN.replace(
            {"local.lr": 0.1 + 0.1 * i / size},
            algorithm=algorithms[i % len(algorithms)],
        )
        for i in range(size)
    ]
    cells = [cell for run in runs for cell in run.cells]
    found = []
    with emulated_cuda() as device:
        work = Worker(cells, RUN.data.load(), RUN.model, "cuda", "linear")
        pack = {i: Simulation(run, work, i) for i, run in enumerate(runs)}
        for _ in range(RUN.rounds):
            with device.counting() as counts:
                outcomes = Lockstep[int](work).advance(pack)
            assert all(isinstance(records, list) for records in outcomes.values())
            found.append(Asked.of(counts, size))
    return tuple(found[2:])


@pytest.mark.parametrize(
    "size", [1, 64, pytest.param(1000, marks=pytest.mark.acceptance)]
)
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda own: type(own).__name__)
def test_a_round_launches_waits_and_copies_as_often_whatever_the_pack(
    algorithm: Algorithm, size: int
) -> None:
    assert rounds_of([algorithm], size) == ROUNDS[type(algorithm).__name__]


@pytest.mark.parametrize("size", [4, 1000])
def test_a_round_of_a_mixed_pack_launches_waits_and_copies_as_often_for_4_as_for_1000(
    size: int,
) -> None:
    assert rounds_of(ALGORITHMS, size) == MIXED


class InPlace(Algorithm):
    """FedAvg that asks twice, and changes the parameters where they are."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Take two steps from one tensor."""
        for _ in range(2):
            update: MeanUpdate = yield TrainMean(state.w_P, ids)
            torch.sub(state.w_P, update.delta_P, out=state.w_P)
        return state


def test_parameters_that_an_algorithm_changes_in_place_are_uploaded_again() -> None:
    run = RUN.replace(algorithm=InPlace(), eval_every=1)
    expected = play(run, "cpu", "loop")
    with emulated_cuda():
        found = play(run, "cuda", "linear")
    assert_equal_in_float32(found, expected)
