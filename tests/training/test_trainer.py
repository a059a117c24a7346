"""Local training against torch.optim, and engines and batching against each other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.evaluation import evaluated
from helpers.tasks import Task, Trainer, draw_batches

from raysafl import CNN, MLP, LocalTraining, Logistic, Model
from raysafl.algorithms import Key
from raysafl.core.problem import SERVER
from raysafl.data import Dataset, Samples
from raysafl.models import FlatModel
from raysafl.training.engines import ENGINES
from raysafl.training.inputs import Batch, Gradients
from raysafl.training.trainer import LocalTrainer

# ragged: several batches, a short one, less than one
SIZES = {0: 40, 1: 23, 2: 7, SERVER: 30}
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}  # float32, a few dozen steps


def small_images(
    n: int = 120, shape: tuple[int, ...] = (1, 8, 8), classes: int = 4
) -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (n, *shape), dtype=np.uint8)
    part = Samples(x, rng.integers(0, classes, n), 1 / 255, -0.5)
    return Dataset("noise", part, part, classes)


DATASET = small_images()
HELD = {}
_start = 0
for _client, _size in SIZES.items():
    HELD[_client] = np.arange(_start, _start + _size)
    _start += _size


def trainer(model: Model, engine: str) -> LocalTrainer:
    flat = FlatModel(model, (1, 8, 8), 4)
    return Trainer(flat, DATASET, lambda r, client: HELD[client], engine=engine)


def tasks(
    flat: FlatModel, sgd: LocalTraining, prox: float = 0.0, offset: bool = False
) -> list[Task]:
    rng = torch.Generator().manual_seed(1)
    return [
        Task(
            cell=r,
            client=client,
            w_P=flat.init(Key(r)),
            local=sgd,
            seed=r,
            round=3,
            call=1,
            offset_P=0.01 * torch.randn(flat.num_parameters, generator=rng)
            if offset
            else None,
            prox=prox,
        )
        for r in (0, 1)
        for client in SIZES
    ]


def with_torch_optim(flat: FlatModel, task: Task, model: Model) -> torch.Tensor:
    """The same local training as a user would write it, with torch.optim.SGD."""
    module = model.build((1, 8, 8), 4)
    torch.nn.utils.vector_to_parameters(task.w_P.clone(), module.parameters())
    optimiser = torch.optim.SGD(module.parameters(), lr=task.local.lr)
    held = HELD[task.client]
    x = (
        torch.from_numpy(DATASET.train.x[held]) * DATASET.train.scale
        + DATASET.train.shift
    )
    y = torch.from_numpy(DATASET.train.y[held])
    for batch in draw_batches(
        len(held), task.local, Key(task.seed, task.round)("batches 1", task.client)
    ):
        rows = batch[batch >= 0]
        loss = F.cross_entropy(module(x[rows]), y[rows])
        w_P = torch.nn.utils.parameters_to_vector(module.parameters())
        loss = loss + task.prox / 2 * (w_P - task.w_P).square().sum()
        if task.offset_P is not None:
            loss = loss + task.offset_P @ w_P
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return task.w_P - torch.nn.utils.parameters_to_vector(module.parameters()).detach()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "sgd",
    [
        LocalTraining(lr=0.1, batch_size=16, epochs=2),
        LocalTraining(lr=0.05, batch_size=10, steps=9),
    ],
    ids=repr,
)
@pytest.mark.parametrize(("prox", "offset"), [(0.0, False), (0.3, True)])
def test_every_engine_equals_a_loop_with_torch_optim_on_ragged_clients(
    engine: str, sgd: LocalTraining, prox: float, offset: bool
) -> None:
    model = (
        Logistic(zero_init=False) if engine in ("linear", "fused") else MLP(hidden=[12])
    )
    local = trainer(model, engine)
    asked = tasks(local.model, sgd, prox, offset)
    update = local.train(asked)
    for task, delta_P, steps in zip(
        asked, update.delta_MP, update.steps_M, strict=True
    ):
        torch.testing.assert_close(
            delta_P, with_torch_optim(local.model, task, model), **TOLERANCE
        )
        assert steps == sgd.num_steps(SIZES[task.client])


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_convolutions_equal_a_loop_with_torch_optim(engine: str) -> None:
    model = CNN(channels=[4, 6], hidden=10)
    local = trainer(model, engine)
    asked = tasks(local.model, LocalTraining(lr=0.1, batch_size=16, epochs=1))
    for task, delta_P in zip(asked, local.train(asked).delta_MP, strict=True):
        torch.testing.assert_close(
            delta_P, with_torch_optim(local.model, task, model), **TOLERANCE
        )


ALONE: list[tuple[str, Model]] = [
    *((engine, Logistic(zero_init=False)) for engine in ("loop", "linear", "fused")),
    *(("vmap", MLP(hidden=[units])) for units in (12, 200)),
    # For convolutions of few tasks, torch has other kernels.
    *(("vmap", CNN(channels=c, hidden=10)) for c in ([4, 6], [16, 20], [2, 8])),
    ("vmap", CNN(channels=[4], hidden=10, precision="bfloat16")),
]


@pytest.mark.parametrize(("engine", "model"), ALONE, ids=repr)
def test_a_task_in_a_stack_of_any_size_has_the_same_bits(
    engine: str, model: Model
) -> None:
    local = trainer(model, engine)
    asked = tasks(local.model, LocalTraining(lr=0.1, batch_size=16, epochs=2))
    together = local.train(asked)
    for size in (1, 2, 3, 5):
        for start in range(0, len(asked), size):
            some = slice(start, start + size)
            few = local.train(asked[some])
            assert all(
                torch.equal(a, b[some]) for a, b in zip(few, together, strict=True)
            )


@pytest.mark.parametrize(("batch", "most"), [(20, 32), (500, 8), (5000, 1)])
def test_stacked_steps_have_a_bounded_number_of_samples(
    batch: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat, stacks = FlatModel(Logistic(), (1, 8, 8), 4), list[int]()

    def counted(batch_of_tasks: Batch) -> Gradients:
        stacks.append(len(batch_of_tasks.w_TP))
        return plain(batch_of_tasks)

    local = Trainer(flat, DATASET, lambda r, c: np.arange(batch) % 120, engine="vmap")
    plain = local.engine.gradients
    monkeypatch.setattr(local.engine, "gradients", counted)
    task = tasks(flat, LocalTraining(lr=0.1, batch_size=batch, steps=1))[0]
    local.train([task._replace(client=client) for client in range(33)])
    assert max(stacks) == most and sum(stacks) == 33


def test_tasks_with_different_rates_and_batch_sizes_keep_their_own() -> None:
    local = trainer(Logistic(), "fused")
    mixed = [
        task._replace(
            local=LocalTraining(
                lr=0.1 * (i + 1), batch_size=8 if i % 2 else 16, epochs=1
            )
        )
        for i, task in enumerate(
            tasks(local.model, LocalTraining(lr=1, batch_size=1, steps=1))
        )
    ]
    together = local.train(mixed)
    for i, task in enumerate(mixed):
        assert torch.equal(local.train([task]).delta_MP[0], together.delta_MP[i])


def test_training_loss_and_accuracy_are_means_over_the_samples_seen() -> None:
    local = trainer(Logistic(), "fused")  # from zero: the first step's loss is log 4
    update = local.train(
        tasks(local.model, LocalTraining(lr=1e-9, batch_size=64, epochs=1))
    )
    torch.testing.assert_close(
        update.loss_M, torch.full((8,), np.log(4), dtype=torch.float64)
    )
    assert update.samples_M.tolist() == [*SIZES.values()] * 2
    # argmax of ties
    first = [np.mean(DATASET.train.y[held] == 0) for held in HELD.values()]
    np.testing.assert_allclose(update.accuracy_M, first * 2)


@pytest.mark.parametrize("engine", ENGINES)
def test_evaluation_equals_a_plain_forward_pass(engine: str) -> None:
    local = trainer(Logistic(zero_init=False), engine)
    w_RP = torch.stack([local.model.init(Key(r)) for r in range(3)])
    measured = evaluated(local.evaluator, w_RP)
    x = torch.from_numpy(DATASET.test.x) * DATASET.test.scale + DATASET.test.shift
    y = torch.from_numpy(DATASET.test.y)
    for r in range(3):
        logits = local.model.logits(w_RP[r], x)
        assert measured[r] == {
            "accuracy": pytest.approx((logits.argmax(-1) == y).float().mean().item()),
            "loss": pytest.approx(F.cross_entropy(logits, y).item(), rel=1e-5),
        }


@pytest.mark.parametrize("label", [-1, 4])
def test_labels_that_are_no_class_are_refused(label: int) -> None:
    part = replace(DATASET.train, y=np.full(120, label))
    with pytest.raises(
        ValueError, match=rf"labels of 'noise' must be 0 to 3, not {label}"
    ):
        Trainer(
            FlatModel(Logistic(), (1, 8, 8), 4),
            Dataset("noise", part, DATASET.test, 4),
            lambda r, client: HELD[client],
        )


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float64])
def test_samples_may_be_stored_in_any_order_and_precision(dtype: type) -> None:
    whole = trainer(Logistic(zero_init=False), "fused")
    x = np.asfortranarray(DATASET.train.x.astype(dtype))
    part = replace(DATASET.train, x=x)
    dataset = Dataset("noise", part, part, 4)
    other = Trainer(
        whole.model, dataset, lambda r, client: HELD[client], engine="fused"
    )
    asked = tasks(whole.model, LocalTraining(lr=0.1, batch_size=16, epochs=1))
    torch.testing.assert_close(
        other.train(asked).delta_MP, whole.train(asked).delta_MP, **TOLERANCE
    )


def test_a_read_only_dataset_is_used_without_a_copy() -> None:
    x = DATASET.train.x.copy()
    x.flags.writeable = False
    frozen = Dataset("frozen", Samples(x, DATASET.train.y), DATASET.test, 4)
    local = Trainer(FlatModel(Logistic(), (1, 8, 8), 4), frozen, lambda r, c: HELD[c])
    assert local.inputs.x.data_ptr() == x.ctypes.data
    local.train(tasks(local.model, LocalTraining(lr=0.1, batch_size=16, epochs=1)))
    assert np.array_equal(x, DATASET.train.x)


@pytest.mark.parametrize("model", [Logistic(), MLP(hidden=[3])])
def test_classes_may_be_stored_as_shorter_integers(model: Model) -> None:
    short = replace(DATASET.train, y=DATASET.train.y.astype(np.int16))
    dataset = Dataset("short", short, DATASET.test, 4)
    flat = FlatModel(model, (1, 8, 8), 4)
    local = Trainer(flat, dataset, lambda r, c: HELD[c])
    asked = tasks(flat, LocalTraining(lr=0.1, batch_size=16, epochs=1))
    same = Trainer(flat, DATASET, lambda r, c: HELD[c]).train(asked)
    assert torch.equal(local.train(asked).delta_MP, same.delta_MP)
