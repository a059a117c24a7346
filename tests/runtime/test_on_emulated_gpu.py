"""Work on an emulated GPU: what travels between it and the host, and when it is waited for."""

import copy
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from helpers.emulated_cuda import emulated_cuda
from helpers.evaluation import scored
from helpers.tasks import Task, columns
from numpy.typing import NDArray

from raysafl import MLP, LocalTraining, Run
from raysafl.core.algorithm import Update
from raysafl.core.work import CLASSES, OWN, TEST, Rows, Tasks, Training
from raysafl.runtime import exact_mean
from raysafl.runtime.exact_mean import reduce_share
from raysafl.runtime.in_process import Worker
from raysafl.runtime.rows import Unit
from raysafl.training.resident import Resident

LOCAL = LocalTraining(lr=0.1, batch_size=32, epochs=1)
P = 1000
CELLS = 3
CLIENTS = 8


def tasks_of(cells: int, clients: int, averaged: Iterable[int]) -> Tasks:
    """Tasks of many clients, cell after cell."""
    w_P = torch.zeros(P)
    tasks = [
        Task(cell, i, w_P, LOCAL, 0, 0, 1)
        for cell in range(cells)
        for i in range(clients)
    ]
    return columns(tasks, averaged)


def updates_of(tasks: Tasks, stacks: int) -> list[tuple[NDArray[np.int64], Update]]:
    """Random updates of tasks, in stacks of tasks of all cells."""
    rng = torch.Generator().manual_seed(0)
    found = []
    for part in range(stacks):
        positions = np.arange(part, len(tasks), stacks)
        size = len(positions)
        delta_TP = torch.randn(size, P, generator=rng)
        count_T = torch.full((size,), 4)
        seen_T = torch.rand(size, generator=rng, dtype=torch.float64)
        found.append(
            (positions, Update(delta_TP, count_T, count_T / 2, count_T, seen_T, seen_T))
        )
    return found


def on_device(update: Update) -> Update:
    """The update where a GPU has computed it: three columns remain on the CPU."""
    return update._replace(
        delta_MP=update.delta_MP.to("cuda"),
        loss_M=update.loss_M.to("cuda"),
        accuracy_M=update.accuracy_M.to("cuda"),
    )


@pytest.mark.parametrize("stacks", [1, 4])
def test_updates_on_a_gpu_are_summed_there_and_waited_for_once(stacks: int) -> None:
    tasks = tasks_of(CELLS, CLIENTS, range(CELLS))
    updates = updates_of(tasks, stacks)
    theirs = reduce_share(tasks, copy.deepcopy(updates))
    with emulated_cuda() as device:
        moved = [(positions, on_device(update)) for positions, update in updates]
        before = device.counts.copy()
        mine = reduce_share(tasks, moved)
        found = device.counts.since(before)
    for cell in range(CELLS):
        np.testing.assert_array_equal(mine.means[cell], theirs.means[cell], strict=True)
    np.testing.assert_array_equal(mine.columns_5T, theirs.columns_5T, strict=True)
    assert found.syncs == 1
    # One vector for each cell, and two numbers for each task.
    assert found.download_bytes == 4 * P * CELLS + 2 * 8 * len(tasks)
    assert found.downloads <= 3
    # However many tasks there are.
    assert found.launches <= 6 * stacks + 6
    assert found.uploads <= stacks + 1


def test_the_float64_rows_of_updates_are_made_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = 8 * P
    monkeypatch.setattr(exact_mean, "ADDED_BYTES", 4 * row)
    tasks = tasks_of(1, 100, [0])
    with emulated_cuda() as device:
        moved = [(at, on_device(update)) for at, update in updates_of(tasks, 1)]
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        reduce_share(tasks, moved)
    # Beside the sum, its mean, and small columns there are 4 rows, perhaps twice.
    assert device.memory.peak_on[0] - before < 16 * row


def test_an_evaluation_of_many_models_needs_the_memory_of_as_many_as_fit(
    tiny: Run,
) -> None:
    model = MLP(hidden=[500])
    peaks = []
    for count in (4, 64):
        # A sixteenth of the memory holds 26 of the models, and the first pass four.
        with emulated_cuda(total_memory=2**26) as device:
            worker = Worker(tiny.cells, tiny.data.load(), model, "cuda", "vmap")
            worker.trainer.evaluator.most_models = 4
            models = [worker.init(0).clone() for _ in range(count)]
            cells = tuple(range(count))
            unit = Unit(TEST, cells, 0, 0, len(worker.population.dataset.test))
            worker.unit_sums(dict(zip(cells, models, strict=True)), [unit])
            peaks.append(device.memory.peak_on[0])
    few, many = peaks
    assert few <= many < few + models[0].nbytes


def test_rows_of_other_cells_leave_a_gpu_without_being_waited_for_each() -> None:
    tasks = tasks_of(CELLS, CLIENTS, [1])
    updates = updates_of(tasks, 4)
    theirs = reduce_share(tasks, copy.deepcopy(updates))
    with emulated_cuda() as device:
        moved = [(positions, on_device(update)) for positions, update in updates]
        before = device.counts.copy()
        mine = reduce_share(tasks, moved)
        found = device.counts.since(before)
    np.testing.assert_array_equal(mine.rows, theirs.rows, strict=True)
    np.testing.assert_array_equal(mine.means[1], theirs.means[1], strict=True)
    assert found.syncs == 1
    assert found.downloads <= 4 + 3


def test_a_worker_on_a_gpu_trains_and_evaluates_as_one_on_the_cpu(tiny: Run) -> None:
    model = MLP(hidden=[8])
    dataset = tiny.data.load()
    cells = tiny.replace({"data.own_tests": 0.2}).cells
    expected = Worker(cells, dataset, model, "cpu", "vmap")
    w = {cell: expected.init(cell) for cell in (0, 1)}
    asked = [Training(cell, range(4), w[cell], LOCAL, cell, 0, 1) for cell in (0, 1)]
    with emulated_cuda():
        worker = Worker(cells, dataset, model, "cuda", "vmap")
        assert worker.trainer.inputs.x.is_cuda
        for averaged in ((0, 1), (0,), ()):
            some = [own._replace(averaged=own.cell in averaged) for own in asked]
            theirs = expected.train(some)
            for cell, found in worker.train(some).items():
                for mine, other in zip(found.update, theirs[cell].update, strict=True):
                    assert not mine.is_cuda
                    torch.testing.assert_close(mine, other)
                assert found[1:] == pytest.approx(theirs[cell][1:], rel=1e-5)
        over = {0: [TEST, CLASSES, OWN], 1: [TEST, Rows("train", (3, 4))]}
        summed = expected.sums(w, over)
        for cell, groups in worker.sums(w, over).items():
            for rows, (size_G, sums_Gn) in groups.items():
                assert (size_G == summed[cell][rows].size_G).all()
                sums = summed[cell][rows].sums_Gn
                np.testing.assert_allclose(sums_Gn, sums, rtol=1e-5)
        weighted = [(OWN._replace(groups=(i,)), (1.0,)) for i in [*range(4)] * 2]
        personal = expected.personal_sums(asked, weighted)
        for cell, sums_Mn in worker.personal_sums(asked, weighted).items():
            np.testing.assert_allclose(sums_Mn, personal[cell], rtol=1e-5)


def test_an_evaluation_on_a_gpu_is_copied_to_the_host_once(tiny: Run) -> None:
    worker = Worker(tiny.cells, tiny.data.load(), tiny.model)
    w = {cell: worker.init(cell) for cell in (0, 1)}
    with emulated_cuda() as device:
        worker = Worker(tiny.cells, tiny.data.load(), tiny.model, "cuda", "linear")
        scored(worker, w)
        before = device.counts.copy()
        scored(worker, w)
        found = device.counts.since(before)
        # The same parameters once more, and then others.
        assert (found.uploads, found.downloads, found.syncs) == (0, 1, 1)
        before = device.counts.copy()
        scored(worker, {cell: w_P.clone() for cell, w_P in w.items()})
        found = device.counts.since(before)
    assert (found.uploads, found.downloads, found.syncs) == (1, 1, 1)


def test_personal_models_on_a_gpu_are_waited_for_once(tiny: Run) -> None:
    syncs = []
    for clients in (2, 6):
        with emulated_cuda() as device:
            worker = Worker(tiny.cells, tiny.data.load(), tiny.model, "cuda", "linear")
            asked = [Training(0, range(clients), worker.init(0), LOCAL, 0, 0, 0)]
            weighted = [(CLASSES, (1.0,) * 10)] * clients
            worker.personal_sums(asked, weighted)
            with device.counting() as counts:
                worker.personal_sums(asked, weighted)
        syncs.append(counts.syncs)
    assert syncs == [1, 1]


@pytest.mark.parametrize("engine", ["loop", "vmap", "graph"])
def test_packs_one_after_the_other_leave_a_gpu_with_no_more_than_the_first(
    tiny: Run, engine: str, no_gc: None
) -> None:
    """What stays is the dataset's samples and the recorded steps, once."""
    dataset = tiny.data.load()
    resident = Resident()
    held = []
    with emulated_cuda() as device:
        for _ in range(5):
            worker = Worker(
                tiny.cells,
                dataset,
                MLP(hidden=[8]),
                "cuda",
                engine,
                resident=resident,
            )
            w_P = worker.init(0)
            worker.train([Training(0, [3], w_P, LOCAL, 0, 0, 1, averaged=True)])
            scored(worker, {0: w_P})
            uploaded = device.counts.upload_bytes
            held.append(device.memory.bytes)
            del worker
    assert len(set(held[1:])) == 1
    assert uploaded < 2 * dataset.train.x.nbytes
