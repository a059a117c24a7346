"""What is asked of a real GPU: launches, copies and waits, and what stays on it."""

import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from helpers.gpu_program import Counts, counting
from helpers.small_runs import assert_equal_in_float32, play, small_run

import raysafl as fl
from raysafl.algorithms import SCAFFOLD, Key, MeanUpdate, State
from raysafl.cluster.gpus import machine_here
from raysafl.core.algorithm import Round, Update
from raysafl.data import Digits, IidServer
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Lockstep, Simulation
from raysafl.training.gpu_training import GpuTraining
from raysafl.training.resident import Resident

# One client comes, and the server holds as many samples as it does: so a pack has one
# task a run, whoever trains, and they all are in one stack.
RUN = fl.Run(
    data=fl.Federation(dataset=Digits(), clients=99, server=IidServer(n0=14)),
    model=fl.Logistic(),
    participation=fl.Uniform(m=1),
    local=fl.LocalTraining(lr=0.1, batch_size=14, epochs=1),
    algorithm=fl.FedAvg(),
    rounds=4,
    eval_every=2,
)
ALGORITHMS: Sequence[fl.Algorithm] = (
    fl.FedAvg(),
    fl.SAFARI(client_prob=0.5, server_update=RUN.local),
    fl.FSL(),
    SCAFFOLD(),
)


def rounds_of(algorithms: Sequence[fl.Algorithm], size: int) -> list[Counts]:
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
    work = Worker(cells, RUN.data.load(), RUN.model, "cuda", "linear")
    pack = {i: Simulation(run, work, i) for i, run in enumerate(runs)}
    found = []
    for _ in range(RUN.rounds):
        with counting() as counts:
            outcomes = Lockstep[int](work).advance(pack)
        assert all(isinstance(records, list) for records in outcomes.values())
        found.append(counts)
    return found[2:]


@pytest.mark.parametrize("size", [4, 1000])
def test_a_round_of_a_mixed_pack_launches_waits_and_copies_as_often_for_4_as_for_1000(
    size: int,
) -> None:
    for counts, evaluated in zip(rounds_of(ALGORITHMS, size), (0, 1), strict=True):
        assert counts.launches <= 40 + 20 * evaluated
        assert counts.uploads + counts.downloads <= 18 + 4 * evaluated
        # One vector of 650 numbers goes up and down for each run, and some numbers.
        assert counts.download_bytes < 2 * 4 * 650 * size + 1000


def test_the_training_of_a_stack_does_not_wait_for_the_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train = GpuTraining.train
    trained = []

    def without_waiting(self: GpuTraining, *args: Any) -> Update:
        if len(trained) < 2:  # the first stacks record their steps
            trained.append(train(self, *args))
            return trained[-1]
        torch.cuda.set_sync_debug_mode("error")
        try:
            trained.append(train(self, *args))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return trained[-1]

    monkeypatch.setattr(GpuTraining, "train", without_waiting)
    play(RUN.replace(rounds=6), "cuda", "linear")
    assert len(trained) > 4


@pytest.mark.parametrize(
    ("model", "engine"),
    [("logistic", "linear"), ("CNN", "graph"), ("dropout", "graph")],
)
def test_engines_trainers_and_models_are_gone_with_their_last_user(
    model: str, engine: str, no_gc: None
) -> None:
    run = small_run(model)
    work = Worker(
        run.cells, run.data.load(), run.model, "cuda", engine, resident=Resident()
    )
    Simulation(run, work).step()
    local = work.trainer
    refs = [weakref.ref(part) for part in (local, local.engine, local.evaluator)]
    del local, work
    assert [ref() for ref in refs] == [None] * 3


class InPlace(fl.Algorithm):
    """FedAvg that asks twice, and changes the parameters where they are."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Take two steps from one tensor."""
        for _ in range(2):
            update: MeanUpdate = yield fl.TrainMean(state.w_P, ids)
            torch.sub(state.w_P, update.delta_P, out=state.w_P)
        return state


def test_parameters_that_an_algorithm_changes_in_place_are_uploaded_again() -> None:
    run = RUN.replace(algorithm=InPlace(), eval_every=1)
    expected = play(run, "cpu", "loop")
    assert_equal_in_float32(play(run, "cuda", "linear"), expected)


def test_the_memory_of_the_smallest_gpu_is_known() -> None:
    totals = [
        torch.cuda.get_device_properties(i).total_memory
        for i in range(torch.cuda.device_count())
    ]
    machine = machine_here(float(len(totals)))
    assert (machine.gpu_memory, machine.problem) == (min(totals), "")
