"""Training on an emulated GPU: launches, recorded steps, memory, and what is kept."""

import weakref
from collections.abc import Iterator

import pytest
import torch
from helpers.emulated_cuda import GIB, EmulatedCuda, emulated_cuda
from helpers.evaluation import evaluated
from helpers.small_runs import Uploading
from helpers.tasks import Task, Trainer, columns
from test_trainer import DATASET, HELD, TOLERANCE, small_images, tasks
from test_trainer_dropout import Dropping
from test_trainer_optimizer import BASE, KINDS, PRECISE
from torch import Tensor, nn

from raysafl import CNN, MLP, LocalTraining, Logistic, Model
from raysafl.algorithms import Key
from raysafl.core.work import Tasks, TooLargeError
from raysafl.data import Dataset
from raysafl.models import FlatModel
from raysafl.training import resident
from raysafl.training.engines import Batch, Gradients, Vmap
from raysafl.training.memory import MOST_STACKED, GpuMemory, bytes_per_sample
from raysafl.training.resident import Parameters, Resident
from raysafl.training.trainer import LocalTrainer


@pytest.fixture
def gpu() -> Iterator[EmulatedCuda]:
    with emulated_cuda() as device:
        yield device


def trainer(
    model: Model,
    engine: str,
    resident: Resident | None = None,
    device: str = "cuda",
    dataset: Dataset = DATASET,
) -> LocalTrainer:
    return Trainer(
        FlatModel(model, (1, 8, 8), 4),
        dataset,
        lambda cell, client: HELD[client],
        device,
        engine,
        resident=resident,
    )


def on_cpu(model: Model, engine: str, asked: list[Task]) -> Tensor:
    return trainer(model, engine, device="cpu").train(asked).delta_MP


MODELS: list[tuple[Model, str]] = [
    (Logistic(zero_init=False), "linear"),
    (CNN(channels=[4], hidden=8), "graph"),
    (Dropping(), "graph"),
    (MLP(hidden=[12]), "vmap"),
    (MLP(hidden=[12]), "loop"),
]


# All kinds where steps are computed by hand and where they are recorded, some elsewhere.
TRAINED = [
    (*model, sgd)
    for model in MODELS
    for sgd in [BASE, *KINDS]
    if model in MODELS[:2] or sgd in (BASE, KINDS[2], KINDS[7])
]


@pytest.mark.parametrize(("model", "engine", "sgd"), TRAINED, ids=repr)
def test_a_gpu_trains_as_a_cpu_does(
    model: Model, engine: str, sgd: LocalTraining
) -> None:
    on_cpu = trainer(model, engine, device="cpu")
    asked = tasks(on_cpu.model, sgd, prox=0.1, offset=True)
    expected = on_cpu.train(asked).delta_MP
    tolerance = PRECISE if sgd.optimizer == "adam" else TOLERANCE
    with emulated_cuda():
        on_gpu = trainer(model, engine)
        for _ in range(2):
            found = on_gpu.train(asked).delta_MP
            torch.testing.assert_close(found, expected, **tolerance)


@pytest.mark.parametrize(("model", "engine"), MODELS[:3], ids=repr)
def test_a_local_step_is_one_launch_and_nothing_waits(
    gpu: EmulatedCuda, model: Model, engine: str
) -> None:
    """Of a stack, and not of a step, are its uploads, its begin and its results."""
    local = trainer(model, engine)
    sgd = LocalTraining(lr=0.1, batch_size=40, steps=3)
    few = [task for task in tasks(local.model, sgd) if task.client == 0]
    many = [task._replace(local=sgd.replace(steps=33)) for task in few]
    local.train(few)
    launches = []
    for asked in (few, many):
        with gpu.counting() as counts, gpu.no_sync():
            list(local.train_stacks(asked))
        launches.append(counts.launches)
        assert counts.replays == asked[0].local.steps
    assert launches[1] - launches[0] == 30
    assert launches[0] <= 3 + 14


def test_tasks_with_one_start_upload_it_once_in_all_their_stacks(
    gpu: EmulatedCuda,
) -> None:
    local = trainer(MLP(hidden=[500]), "graph")
    w_P = local.model.init(Key(0))
    asked = [task._replace(w_P=w_P, local=BASE) for task in tasks(local.model, BASE)]
    assert len(list(local.train_stacks(asked))) > 1
    with gpu.counting() as counts:
        list(local.train_stacks(asked))
    assert w_P.nbytes <= counts.upload_bytes < 1.2 * w_P.nbytes


def test_a_recorded_step_serves_later_trainers_with_an_equal_model(
    gpu: EmulatedCuda,
) -> None:
    kept = Resident()
    first = trainer(MLP(hidden=[12]), "graph", kept)
    asked = tasks(first.model, BASE)
    expected = first.train(asked).delta_MP
    steps = len(kept.steps)
    again = trainer(MLP(hidden=[12]), "graph", kept)
    assert again.inputs is first.inputs
    assert torch.equal(again.train(asked).delta_MP, expected)
    assert len(kept.steps) == steps > 0
    # Another model, another objective's numbers and another kind of step need their own.
    trainer(MLP(hidden=[11]), "graph", kept).train(
        tasks(FlatModel(MLP(hidden=[11]), (1, 8, 8), 4), BASE)
    )
    assert len(kept.steps) == 2 * steps


class SeededBackbone(Model):
    """A frozen layer before the trained one."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        frozen = nn.Linear(64, 6).requires_grad_(False)
        return nn.Sequential(nn.Flatten(), frozen, nn.Linear(6, num_classes))


def test_models_that_differ_in_their_frozen_parameters_share_no_recorded_step(
    gpu: EmulatedCuda,
) -> None:
    kept = Resident()
    first = trainer(SeededBackbone(), "graph", kept)
    asked = tasks(first.model, BASE)
    before = first.train(asked).delta_MP
    second = trainer(SeededBackbone(), "graph", kept)
    zeros = {name: torch.zeros_like(p) for name, p in second.model.frozen.items()}
    with torch.no_grad():
        second.model.load_frozen(zeros)
    after = second.train(asked).delta_MP
    weights = second.model.num_parameters - 4
    assert not after[:, :weights].any() and before[:, :weights].any()


def test_another_dataset_drops_the_samples_and_the_steps_that_read_them(
    gpu: EmulatedCuda,
) -> None:
    kept = Resident()
    first = trainer(MLP(hidden=[12]), "graph", kept)
    asked = tasks(first.model, BASE)
    first.train(asked)
    samples = weakref.ref(first.inputs)
    del first
    other = small_images(150)
    second = trainer(MLP(hidden=[12]), "graph", kept, dataset=other)
    assert len(kept.steps) == 0 and samples() is None
    expected = trainer(MLP(hidden=[12]), "vmap", device="cpu", dataset=other)
    torch.testing.assert_close(
        second.train(asked).delta_MP, expected.train(asked).delta_MP, **TOLERANCE
    )


def test_recorded_steps_are_bounded_and_the_least_recently_used_goes_first(
    gpu: EmulatedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "RECORDED", 3)
    kept = Resident()
    local = trainer(Logistic(zero_init=False), "linear", kept)
    some = [task for task in 4 * tasks(local.model, BASE) if task.client == 0]
    expected = on_cpu(Logistic(zero_init=False), "linear", some)
    for count in (1, 2, 4, 1, 8, 2, 1):
        found = local.train(some[:count]).delta_MP
        torch.testing.assert_close(found, expected[:count], **TOLERANCE)
        assert len(kept.steps) <= 3
    kept.most_bytes = 1
    local.train(some[:2])
    assert len(kept.steps) == 3
    local.train([*some, *some])
    assert len(kept.steps) == 1


@pytest.mark.parametrize(("model", "engine"), MODELS, ids=repr)
def test_engines_trainers_and_models_are_gone_with_their_last_user(
    gpu: EmulatedCuda, model: Model, engine: str, no_gc: None
) -> None:
    kept = Resident()
    local = trainer(model, engine, kept)
    local.train(tasks(local.model, BASE))
    evaluated(local.evaluator, local.model.init(Key(0))[None])
    parts = [local, local.engine, local.model, local.evaluator]
    refs = [weakref.ref(part) for part in parts]
    del parts, local
    assert [ref() for ref in refs] == [None] * 4


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
    gpu: EmulatedCuda, model: Model, count: int, size: int
) -> None:
    training = trainer(model, "graph")._gpu
    assert training is not None and training.stack_size(40, count) == size


def test_the_bytes_of_a_sample_do_not_hold_those_of_the_parameters() -> None:
    local = trainer(MLP(hidden=[1000]), "loop", device="cpu")
    found = bytes_per_sample(local.model, local.objective, local.inputs)
    # 64 inputs, 1,000 activations saved by the ReLU and by the layer, and 4 outputs.
    assert 4 * (64 + 1000) <= found <= 3 * 4 * (64 + 1000 + 4)


@pytest.mark.parametrize(("model", "engine"), MODELS[:4], ids=repr)
def test_a_stack_that_does_not_fit_is_halved_and_trained_all_the_same(
    model: Model, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    flat = FlatModel(model, (1, 8, 8), 4)
    asked = [task for task in 16 * tasks(flat, BASE) if task.client == 0]
    # The samples fit, and the parameters of 8 tasks; those of all 32 do not.
    limit = max(8 * 4 * flat.num_parameters, DATASET.train.x.nbytes, 32 * 8 * 10 * 8)
    with emulated_cuda(largest_allocation=limit):
        local = trainer(model, engine)
        found = local.train(asked).delta_MP
        assert "clients stacked" in caplog.text
        caplog.clear()
        local.train(asked)
        assert "clients stacked" not in caplog.text
    torch.testing.assert_close(found, on_cpu(model, engine, asked), **TOLERANCE)


def test_a_task_that_does_not_fit_alone_says_what_to_change(
    gpu: EmulatedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gradients(self: Vmap, *_: Tensor) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 TiB")

    local = trainer(MLP(hidden=[12]), "graph")
    monkeypatch.setattr(Vmap, "gradients", gradients)
    with pytest.raises(
        MemoryError,
        match=r"out of memory: .* of \d+ samples .* smaller batch_size.*9 TiB",
    ):
        local.train(tasks(local.model, BASE))


@pytest.mark.parametrize("count", [1, 2])
def test_starts_without_room_are_tried_again_and_then_refused_by_their_number(
    gpu: EmulatedCuda, monkeypatch: pytest.MonkeyPatch, count: int
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
    for ask in (local.train, local.starts):
        tried.clear()
        with pytest.raises(MemoryError, match=expected) as refused:
            ask(columns(tasks_of_one_client(model, count)))
        assert isinstance(refused.value, TooLargeError) == (count == 1)
        assert tried == [count, count]


@pytest.mark.parametrize(
    "text", ["CUDA error: out of memory", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"]
)
def test_no_engine_is_blamed_for_a_lack_of_memory(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    local = trainer(MLP(hidden=[12]), "vmap", device="cpu")

    def no_memory(*_: Tensor) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(local.engine, "_stacked_gradients", no_memory)
    with pytest.raises(RuntimeError, match=text):
        local.train(tasks(local.model, BASE))


@pytest.mark.parametrize("ends", [False, True])
def test_a_stack_that_does_not_fit_while_it_is_recorded_is_halved(
    ends: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """torch may say so by its own error, or by that of a recording that has failed."""
    gradients = Vmap.gradients
    refused = list[int]()
    limit = 2**20

    def greedy(self: Vmap, batch: Batch) -> Gradients:
        tasks = len(batch.w_TP)
        if torch.cuda.is_current_stream_capturing() and tasks > 4:
            refused.append(tasks)
            torch.empty(limit + 1, dtype=torch.uint8, device=batch.w_TP.device)
        return gradients(self, batch)

    model = MLP(hidden=[12])
    asked = tasks_of_one_client(model, 16)
    expected = on_cpu(model, "vmap", asked)
    monkeypatch.setattr(Vmap, "gradients", greedy)
    with emulated_cuda(largest_allocation=limit, lack_ends_recordings=ends):
        found = trainer(model, "graph").train(asked).delta_MP
    assert set(refused) == {16, 8}
    assert "clients stacked" in caplog.text
    torch.testing.assert_close(found, expected, **TOLERANCE)


def tasks_of_one_client(model: Model, count: int) -> list[Task]:
    some = tasks(FlatModel(model, (1, 8, 8), 4), BASE)
    return (count * [task for task in some if task.client == 0])[:count]


def test_what_was_recorded_before_makes_no_stack_smaller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = MLP(hidden=[500])
    asked = tasks_of_one_client(model, 64)
    with emulated_cuda() as device:
        expected = trainer(model, "graph").train(asked).delta_MP
        needed = device.memory.peak_on[0]
    with emulated_cuda() as device:
        kept = Resident()
        local = trainer(model, "graph", kept)
        local.train(asked[:40])
        assert len(kept.steps) == 1
        device.fraction = 1.1 * needed / device.total_memory
        found = local.train(asked).delta_MP
        # There was no room for both.
        assert len(kept.steps) == 1
    assert torch.equal(found, expected)
    assert "clients stacked" not in caplog.text


def test_recordings_of_many_shapes_leave_no_more_memory_than_one_does(
    gpu: EmulatedCuda,
) -> None:
    """They are all made on one stream: the libraries keep memory for each."""
    model = MLP(hidden=[12])
    kept = Resident()
    local = trainer(model, "graph", kept)
    held = []
    for count in (1, 2, 3, 5, 8):
        local.train(tasks_of_one_client(model, count))
        kept.forget_steps()
        held.append(torch.cuda.memory_allocated())
    assert gpu.recordings == 5
    assert len(set(held)) == 1


def test_a_recording_that_fails_names_engines_and_the_process_records_others(
    gpu: EmulatedCuda,
) -> None:
    asked = tasks(FlatModel(Uploading(), (1, 8, 8), 4), BASE)
    with pytest.raises(ValueError, match=r"cannot be recorded .* --engine vmap"):
        trainer(Uploading(), "graph").train(asked)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()

    model = MLP(hidden=[12])
    asked = tasks(FlatModel(model, (1, 8, 8), 4), BASE)
    found = trainer(model, "graph").train(asked).delta_MP
    torch.testing.assert_close(found, on_cpu(model, "vmap", asked), **TOLERANCE)


def test_evaluation_halves_the_models_that_do_not_fit(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MLP(hidden=[50])
    flat = FlatModel(model, (1, 8, 8), 4)
    w_RP = torch.stack([flat.init(Key(r)) for r in range(30)])
    expected = evaluated(trainer(model, "vmap", device="cpu").evaluator, w_RP)
    # The parameters fit, the activations for 120 samples do not.
    with emulated_cuda(largest_allocation=w_RP.nbytes):
        local = trainer(model, "vmap")
        assert local.evaluator.most_models > 30
        found = evaluated(local.evaluator, w_RP)
    assert "models are evaluated together" in caplog.text
    for own, other in zip(found, expected, strict=True):
        assert own == pytest.approx(other, rel=1e-5)


def test_evaluation_of_one_model_that_does_not_fit_says_so(
    gpu: EmulatedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def logits(self: Vmap, *_: Tensor) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    local = trainer(MLP(hidden=[12]), "vmap")
    evaluator = local.evaluator
    monkeypatch.setattr(Vmap, "logits", logits)
    with pytest.raises(MemoryError, match="out of memory: the outputs of one model"):
        evaluated(evaluator, local.model.init(Key(0)).repeat(3, 1))
