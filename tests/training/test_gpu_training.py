"""The program that trains on a GPU, on the CPU: results, recorded steps, and memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers.evaluation import evaluated
from helpers.frozen import Backbone
from helpers.gpu_program import GIB, counting, trains_as_on_a_gpu
from helpers.tasks import Dropping, Task, Trainer, columns
from test_trainer import BASE, DATASET, HELD, TOLERANCE, small_images, tasks
from torch import Tensor

from benchmarks.workloads import STANDARD
from raysafl import CNN, MLP, LocalTraining, Logistic, Model
from raysafl.algorithms import Key
from raysafl.core.work import COLUMNS, Tasks, TooLargeError
from raysafl.data import Dataset
from raysafl.models import FlatModel
from raysafl.training import resident
from raysafl.training.engines import ENGINES, Vmap
from raysafl.training.gpu_training import MOST_STACKED, GpuMemory, GpuTraining
from raysafl.training.inputs import Batch, Gradients
from raysafl.training.resident import Parameters, Resident
from raysafl.training.trainer import LocalTrainer

MakeTrainer = Callable[..., LocalTrainer]


def on_cpu(
    model: Model,
    engine: str,
    resident: Resident | None = None,
    dataset: Dataset = DATASET,
) -> LocalTrainer:
    flat = FlatModel(model, (1, 8, 8), 4)
    held = lambda cell, client: HELD[client]  # noqa: E731
    return Trainer(flat, dataset, held, "cpu", engine, resident=resident)


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> MakeTrainer:
    """Makes trainers that train by the program for GPUs."""

    def make(*args: Any, **kwargs: Any) -> LocalTrainer:
        local = on_cpu(*args, **kwargs)
        trains_as_on_a_gpu(local, monkeypatch)
        return local

    return make


def tasks_of_one_client(model: Model, count: int) -> list[Task]:
    some = tasks(FlatModel(model, (1, 8, 8), 4), BASE)
    return (count * [task for task in some if task.client == 0])[:count]


MODELS: list[tuple[Model, str]] = [
    (Logistic(zero_init=False), "linear"),
    (CNN(channels=[4], hidden=8), "graph"),
    (Dropping(), "graph"),
    (MLP(hidden=[12]), "vmap"),
    (MLP(hidden=[12]), "loop"),
]


@pytest.mark.parametrize(("model", "engine"), MODELS[:3], ids=repr)
def test_a_local_step_is_one_launch_and_nothing_waits(
    trainer: MakeTrainer, model: Model, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a stack, and not of a step, are its uploads, its begin and its results."""
    train = GpuTraining.train
    counted = []

    def counting_train(self: GpuTraining, *args: object) -> object:
        with counting() as counts:
            found = train(self, *args)  # type: ignore[arg-type]
        counted.append(counts)
        return found

    monkeypatch.setattr(GpuTraining, "train", counting_train)
    local = trainer(model, engine)
    sgd = LocalTraining(lr=0.1, batch_size=40, steps=3)
    few = [task for task in tasks(local.model, sgd) if task.client == 0]
    many = [task._replace(local=sgd.replace(steps=33)) for task in few]
    local.train(few)
    counted.clear()
    for asked in (few, many):
        local.train(asked)
    assert [counts.replays for counts in counted] == [3, 33]
    assert counted[1].launches - counted[0].launches == 30
    assert counted[0].launches <= 3 + 18
    # One operator looks at the momentum of the tasks, which is on the host.
    assert [counts.waits for counts in counted] == [1, 1]


@pytest.mark.parametrize(
    ("name", "engine", "most"),
    [("W1", "linear", 33), ("W2", "graph", 120), ("W4", "linear", 33)],
)
def test_a_recorded_step_of_a_workload_has_at_most_so_many_operators(
    name: str, engine: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU takes at least the time of a node for each (docs/gpu.md).

    Convolutions have more operators on a CPU, 115 a step where a GPU has 84.
    """
    run = STANDARD[name].run
    shape = (3, 32, 32) if name == "W2" else (1, 28, 28)
    flat = FlatModel(run.model, shape, 10)
    local = Trainer(
        flat, small_images(120, shape, 10), lambda cell, i: HELD[1], "cpu", engine
    )
    trains_as_on_a_gpu(local, monkeypatch)
    sgd = LocalTraining(lr=0.1, batch_size=5, steps=4)
    asked = [Task(0, i, flat.init(Key(0)), sgd, 0, 0, 1) for i in range(3)]
    local.train(asked)
    with counting() as counts:
        local.train(asked)
    assert counts.replays == 4 and 0 < counts.nodes <= 4 * most


def test_a_recorded_step_serves_later_trainers_with_an_equal_model(
    trainer: MakeTrainer,
) -> None:
    shared = Resident()
    first = trainer(MLP(hidden=[12]), "graph", shared)
    asked = tasks(first.model, BASE)
    expected = first.train(asked).delta_MP
    steps = len(shared.steps)
    again = trainer(MLP(hidden=[12]), "graph", shared)
    assert again.inputs is first.inputs
    assert torch.equal(again.train(asked).delta_MP, expected)
    assert len(shared.steps) == steps > 0
    # Another model needs its own.
    other = trainer(MLP(hidden=[11]), "graph", shared)
    other.train(tasks(other.model, BASE))
    assert len(shared.steps) == 2 * steps


def test_models_that_differ_in_their_frozen_parameters_share_no_recorded_step(
    trainer: MakeTrainer,
) -> None:
    shared = Resident()
    first, second = (trainer(Backbone(), "graph", shared) for _ in range(2))
    asked = tasks(first.model, BASE)
    before = first.train(asked).delta_MP
    zeros = {name: torch.zeros_like(p) for name, p in second.model.frozen.items()}
    with torch.no_grad():
        second.model.load_frozen(zeros)
    after = second.train(asked).delta_MP
    weights = second.model.num_parameters - 4
    assert not after[:, :weights].any() and before[:, :weights].any()


def test_another_dataset_drops_the_samples_and_the_steps_that_read_them(
    trainer: MakeTrainer,
) -> None:
    shared = Resident()
    first = trainer(MLP(hidden=[12]), "graph", shared)
    asked = tasks(first.model, BASE)
    first.train(asked)
    samples = first.inputs
    other = small_images(150)
    second = trainer(MLP(hidden=[12]), "graph", shared, dataset=other)
    assert len(shared.steps) == 0 and second.inputs is not samples
    expected = on_cpu(MLP(hidden=[12]), "vmap", dataset=other)
    torch.testing.assert_close(
        second.train(asked).delta_MP, expected.train(asked).delta_MP, **TOLERANCE
    )


def test_recorded_steps_are_bounded_and_the_least_recently_used_goes_first(
    trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "RECORDED", 3)
    shared = Resident()
    local = trainer(Logistic(zero_init=False), "linear", shared)
    some = [task for task in 4 * tasks(local.model, BASE) if task.client == 0]
    expected = on_cpu(Logistic(zero_init=False), "linear").train(some).delta_MP
    for count in (1, 2, 4, 1, 8, 2, 1):
        found = local.train(some[:count]).delta_MP
        torch.testing.assert_close(found, expected[:count], **TOLERANCE)
        assert len(shared.steps) <= 3
    shared.most_bytes = 1
    local.train(some[:2])
    assert len(shared.steps) == 3
    local.train([*some, *some])
    assert len(shared.steps) == 1


def test_stacks_fit_into_a_share_of_the_whole_memory() -> None:
    memory = GpuMemory(total=GIB, sample_bytes=1000, num_parameters=1000)
    assert memory.most_tasks(width=8) == MOST_STACKED
    # Of a quarter of a GiB a task needs 2 x 1000 x 1000 bytes for its activations, 64 x
    # 1000 x 24 for its plan, and 10 x 4 x 1000 for vectors.
    assert memory.most_tasks(width=1000) == 64
    assert memory._replace(total=GIB // 4).most_tasks(width=1000) == 16
    assert memory._replace(total=1).most_tasks(width=1000) == 1
    assert memory.most_models(samples=2500) == 32


@pytest.mark.parametrize(
    ("model", "count", "size"),
    [
        (MLP(hidden=[12]), 10, 10),
        (MLP(hidden=[12]), 1025, 513),
        (MLP(hidden=[12]), 10_000, 1000),
        # At most 2,048 samples of 40 are convolved together.
        (CNN(channels=[4], hidden=8), 10, 10),
        (CNN(channels=[4], hidden=8), 64, 32),
    ],
)
def test_tasks_are_divided_evenly_among_stacks(
    trainer: MakeTrainer, model: Model, count: int, size: int
) -> None:
    training = trainer(model, "graph")._gpu
    assert training is not None and training.stack_size(40, count) == size


def refuse_many(patch: pytest.MonkeyPatch, engine: type, most: int) -> list[int]:
    """Let memory run out where more tasks than `most` are stacked; returns how many were."""
    gradients = engine.gradients  # type: ignore[attr-defined]
    refused = list[int]()

    def greedy(self: object, batch: Batch) -> Gradients:
        if len(batch.w_TP) > most:
            refused.append(len(batch.w_TP))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 TiB")
        found: Gradients = gradients(self, batch)
        return found

    patch.setattr(engine, "gradients", greedy)
    return refused


@pytest.mark.parametrize(("model", "engine"), MODELS[:4], ids=repr)
def test_a_stack_that_does_not_fit_is_halved_and_trained_all_the_same(
    trainer: MakeTrainer,
    model: Model,
    engine: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = tasks_of_one_client(model, 16)
    expected = on_cpu(model, "vmap" if engine == "graph" else engine).train(asked)
    kind = next(k for k in ENGINES[engine].__mro__ if "gradients" in vars(k))
    refused = refuse_many(monkeypatch, kind, most=4)
    local = trainer(model, engine)
    found = local.train(asked).delta_MP
    assert set(refused) == {16, 8}
    assert "clients stacked" in caplog.text
    caplog.clear()
    local.train(asked)
    assert "clients stacked" not in caplog.text
    torch.testing.assert_close(found, expected.delta_MP, **TOLERANCE)


def test_a_task_that_does_not_fit_alone_says_what_to_change(
    trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = trainer(MLP(hidden=[12]), "graph")
    refuse_many(monkeypatch, Vmap, most=0)
    with pytest.raises(MemoryError, match=r"\d+ samples .* smaller batch_size.*9 TiB"):
        local.train(tasks(local.model, BASE))


@pytest.mark.parametrize("count", [1, 2])
def test_starts_without_room_are_tried_again_and_then_refused_by_their_number(
    trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Several are no lack for one alone: whoever asked divides its work."""
    tried = list[int]()

    def starts(self: Parameters, tasks: Tasks) -> None:
        tried.append(len(tasks))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 TiB")

    monkeypatch.setattr(Parameters, "starts", starts)
    model = MLP(hidden=[12])
    local = trainer(model, "graph")
    expected = rf"out of memory: .* {count} times \d+ numbers.* fewer clients .*9 TiB"
    with pytest.raises(MemoryError, match=expected) as refused:
        local.train(columns(tasks_of_one_client(model, count)))
    assert isinstance(refused.value, TooLargeError) == (count == 1)
    assert tried == [count, count]


def test_evaluation_halves_the_models_that_do_not_fit_until_one_alone_does_not(
    trainer: MakeTrainer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, most = MLP(hidden=[50]), 8
    local = trainer(model, "vmap")
    w_RP = torch.stack([local.model.init(Key(r)) for r in range(30)])
    expected = evaluated(on_cpu(model, "vmap").evaluator, w_RP)
    assert local.evaluator.most_models > 30
    logits = Vmap.logits

    def greedy(self: Vmap, w_RP: Tensor, x_B: Tensor) -> Tensor:
        if len(w_RP) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return logits(self, w_RP, x_B)

    monkeypatch.setattr(Vmap, "logits", greedy)
    found = evaluated(local.evaluator, w_RP)
    assert "at most 7 models are evaluated together" in caplog.text
    for mine, other in zip(found, expected, strict=True):
        assert mine == pytest.approx(other, rel=1e-5)
    most = 0
    with pytest.raises(MemoryError, match="out of memory: the outputs of one model"):
        evaluated(local.evaluator, w_RP)


def test_rounds_start_from_the_matrices_that_were_evaluated_where_they_are() -> None:
    rng = torch.Generator().manual_seed(0)
    blocks = [torch.randn(rows, 5, generator=rng) for rows in (3, 1, 2)]
    parameters = Parameters(torch.device("cpu"), most_bytes=10**6)
    evaluated_VP = parameters.evaluated(blocks)
    assert torch.equal(evaluated_VP, torch.cat(blocks))
    first, second, third = blocks
    chosen = [third, first[:], second]
    row_T = np.array([5, 1, 0, 2, 4, 3])
    columns_T = np.zeros(len(row_T), COLUMNS)
    columns_T["start"] = row_T
    w_VP, own_T = parameters.starts(Tasks(columns_T, [BASE], chosen))
    assert w_VP is evaluated_VP
    assert torch.equal(w_VP[own_T], torch.cat(chosen)[row_T])
    # Another matrix of the same values was not evaluated.
    w_VP, own_T = parameters.starts(
        Tasks(columns_T, [BASE], [third, first.clone(), second])
    )
    assert w_VP is not evaluated_VP
    assert torch.equal(w_VP[own_T], torch.cat(chosen)[row_T])
    assert torch.equal(
        parameters.evaluated([second, third]), torch.cat([second, third])
    )
