"""Forming packs: which runs a trial carries out together, by work, memory and kind."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import raysafl as fl
from raysafl.algorithms import SCAFFOLD
from raysafl.cluster.hardware import usable_cores
from raysafl.core.problem import Dataset, Model
from raysafl.models import FlatModel
from raysafl.objectives import Classification
from raysafl.quickstart import BASE
from raysafl.sweep.packs import (
    MEMORY_OF_PACK,
    MOST_RUNS,
    WORK_OF_ROUND,
    Pack,
    estimate,
    form_packs,
    multiplications,
)

NODES = [{"CPU": 2.0, "memory": 8e9}, {"CPU": 3.0, "GPU": 1.0, "memory": 9e9}]
PARAMETERS = 650
# Logistic regression multiplies once by each of its parameters.
SIZE = PARAMETERS, PARAMETERS


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return BASE.data.load()


def formed(
    runs: Sequence[fl.Run],
    dataset: Dataset,
    pack: str | int = "auto",
    trials: int = 2,
    memory: float = 1e12,
) -> list[Pack]:
    """Packs of all cells of the runs, whose vectors may take so much memory."""
    hardware = fl.Hardware(pack=pack)
    datasets = {BASE.data.source_key: dataset}
    todo = [run.split() for run in runs]
    return form_packs(todo, datasets, hardware, trials, memory / MEMORY_OF_PACK)


def seeds(count: int) -> list[fl.Run]:
    return [BASE.replace(seed=10 * k, replicates=1) for k in range(count)]


@given(
    rounds=st.lists(st.integers(1, 400), min_size=1, max_size=40),
    pack=st.one_of(st.just("auto"), st.integers(1, 50)),
    trials=st.integers(1, 5),
    runs_in_memory=st.integers(1, 60),
)
def test_every_run_is_in_one_pack_and_no_pack_is_larger_than_its_bounds(
    rounds: list[int], pack: str | int, trials: int, runs_in_memory: int
) -> None:
    dataset = BASE.data.load()
    one = BASE.replace(replicates=1)
    runs = [one.replace(seed=k, rounds=n) for k, n in enumerate(rounds)]
    need = estimate(one, dataset, *SIZE)
    memory = (runs_in_memory + 0.5) * need.memory
    packs = formed(runs, dataset, pack, trials, memory)
    assert sorted(run.id for p in packs for run in p.runs) == sorted(
        run.id for run in runs
    )
    most = min(MOST_RUNS if pack == "auto" else pack, runs_in_memory)
    assert all(1 <= len(p.runs) <= most for p in packs)


def test_runs_of_little_work_make_one_pack_for_each_trial(digits: Dataset) -> None:
    assert [len(p.runs) for p in formed(seeds(18), digits)] == [9, 9]
    assert [len(p.runs) for p in formed(seeds(1), digits)] == [1]


def test_runs_of_other_models_objectives_or_batch_sizes_are_in_other_packs(
    digits: Dataset,
) -> None:
    one, *more = seeds(3)
    coarse = one.replace({"model": fl.Logistic(precision="bfloat16")})
    wide = one.replace({"local.batch_size": 64})
    smooth = one.replace(objective=Classification(label_smoothing=0.1))
    packs = formed([one, coarse, wide, smooth, *more], digits, pack=64)
    assert sorted(len(p.runs) for p in packs) == [1, 1, 1, 3]


def test_the_cells_of_a_run_stay_together_and_count_as_one(digits: Dataset) -> None:
    runs = [BASE.replace(seed=10 * k, replicates=3) for k in range(4)]
    packs = formed(runs, digits, pack=2)
    cells = [[cell.id for cell in p.runs] for p in packs]
    both = [run.cell_ids for run in runs]
    assert cells == [[*both[0], *both[1]], [*both[2], *both[3]]]


def test_the_first_packs_have_the_runs_with_the_most_work(digits: Dataset) -> None:
    runs = [BASE.replace(seed=k, rounds=k + 1) for k in range(9)]
    packs = formed(runs, digits, pack=4)
    rounds = [run.rounds for p in packs for run in p.runs]
    assert rounds == sorted(rounds, reverse=True)


def test_the_work_of_a_run_is_its_samples_times_their_multiplications_and_its_rounds(
    digits: Dataset,
) -> None:
    run = BASE.replace(
        {
            "participation": fl.Uniform(m=4),
            "local": fl.LocalTraining(lr=0.1, batch_size=16, steps=3),
            "rounds": 10,
            "replicates": 2,
            "eval_every": 5,
        }
    )
    need = estimate(run, digits, *SIZE)
    trained = 4 * 3 * 16
    tested = len(digits.test) / 5 / 3
    of_round = (trained + tested) * PARAMETERS + WORK_OF_ROUND
    assert need.work == pytest.approx(10 * 2 * of_round)
    assert need.memory == 2 * (6 + 4 * 4) * PARAMETERS * 4
    # SCAFFOLD remembers a vector for each client, of which all may have taken part.
    remembered = estimate(run.replace(algorithm=SCAFFOLD()), digits, *SIZE).memory
    assert remembered - need.memory == 2 * 2.5 * BASE.data.clients * PARAMETERS * 4


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (fl.Logistic(), 65 * 10),
        # At each of 8 x 8 pixels 4 channels have 9 weights and a bias; pooling leaves
        # 4 x 4 pixels; two layers follow.
        (fl.CNN(channels=[4], hidden=5), 64 * 4 * 10 + 5 * (4 * 16 + 1) + 10 * (5 + 1)),
    ],
)
def test_a_convolution_multiplies_by_each_of_its_parameters_at_every_pixel(
    model: Model, expected: int, digits: Dataset
) -> None:
    flat = FlatModel.on(model, digits, BASE.objective)
    assert multiplications(flat, digits) == expected


def test_a_pack_is_halved_down_to_single_runs_without_those_that_ended() -> None:
    runs = tuple(seeds(5))
    halves = Pack(runs).halves(ended=[runs[1].id])
    assert [[run.seed for run in half.runs] for half in halves] == [[0, 20], [30, 40]]
    assert [len(half.runs) for half in Pack(runs[:1]).halves()] == [1]
    assert Pack(runs).halves([run.id for run in runs]) == []


@pytest.mark.parametrize(
    ("hardware", "expected"),
    [
        (fl.Hardware(), 5),
        (fl.Hardware(actors=2), 2),
        (fl.Hardware(cpus=0.5, trials=3), 3),
        (fl.Hardware(gpus=0.5), 2),
        (fl.Hardware(actors=9), 1),
        (fl.Hardware(autoscale=True), 64),
        (fl.Hardware(autoscale=True, trials=9), 9),
    ],
)
def test_trials_at_once_are_those_that_fit_the_nodes(
    hardware: fl.Hardware, expected: int
) -> None:
    assert hardware.trials_at_once(NODES) == expected


def test_a_trial_has_the_memory_of_its_cores_on_the_node_with_the_least() -> None:
    hardware = fl.Hardware(actors=2, cpus=0.5)
    head_without_cores = {"memory": 1e9}
    assert hardware.memory_of_trial(NODES) == pytest.approx(3e9)
    assert hardware.memory_of_trial([*NODES, head_without_cores]) == pytest.approx(3e9)
    assert hardware.memory_of_trial([head_without_cores]) == pytest.approx(1e9)


def test_a_trial_with_gpus_has_their_share_of_the_memory_if_that_is_more() -> None:
    node = {"CPU": 96.0, "GPU": 8.0, "memory": 96e9}
    assert fl.Hardware(gpus=1).memory_of_trial([node]) == pytest.approx(12e9)
    assert fl.Hardware(gpus=0.5).memory_of_trial([node]) == pytest.approx(6e9)
    assert fl.Hardware(gpus=1, cpus=24).memory_of_trial([node]) == pytest.approx(24e9)
    head = {"CPU": 8.0, "memory": 4e9}
    assert fl.Hardware(gpus=1).memory_of_trial([head, node]) == pytest.approx(12e9)
    # It lies on several nodes, and has the memory of one.
    few = {"CPU": 16.0, "GPU": 1.0, "memory": 64e9}
    assert fl.Hardware(actors=4, gpus=1).memory_of_trial([few] * 4) == 64e9
    # Nodes with GPUs will be added.
    assert fl.Hardware(gpus=1).memory_of_trial([head]) == pytest.approx(0.5e9)


def test_a_container_may_use_as_many_cores_as_its_processor_time_is_worth(
    tmp_path: Path,
) -> None:
    quota = tmp_path / "cpu.max"
    cores = len(os.sched_getaffinity(0))
    for text, expected in (
        ("150000 100000\n", 1),
        ("50000 100000\n", 1),
        ("max 100000\n", cores),
        ("900000000 100000\n", cores),
    ):
        quota.write_text(text)
        assert usable_cores(quota) == expected
    assert usable_cores(tmp_path / "none") == cores
