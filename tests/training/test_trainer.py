"""Local training against torch.optim, and engines and batching against each other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.evaluation import evaluated
from helpers.frozen import Backbone, FrozenBias, Masked, plain_module
from helpers.tasks import Dropping, Task, Trainer, columns
from helpers.torch_loop import by_torch, of_rows

from raysafl import CNN, MLP, LocalTraining, Logistic, Model
from raysafl.algorithms import Key
from raysafl.core.problem import SERVER
from raysafl.data import Dataset, Samples
from raysafl.models import FlatModel
from raysafl.training import StepRate
from raysafl.training.engines import ENGINES
from raysafl.training.inputs import Batch, Gradients, Inputs
from raysafl.training.optimizer import plain_steps
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


BASE = LocalTraining(lr=0.05, batch_size=10, epochs=2)
KINDS = [
    BASE.replace(momentum=0.9),
    BASE.replace(weight_decay=0.1),
    BASE.replace(
        momentum=0.5,
        weight_decay=0.01,
        schedule=StepRate(milestones=[2, 3, 4], decay=0.1),
    ),
    BASE.replace(optimizer="adam", lr=0.01),
    BASE.replace(optimizer="adam", lr=0.01, weight_decay=0.1),
    BASE.replace(clip_norm=0.5),
    BASE.replace(clip_norm=0.5, momentum=0.5, weight_decay=0.1),
    BASE.replace(clip_norm=0.5, optimizer="adam", lr=0.01),
]
# Adam divides by sqrt(g^2): round-off of small g grows
PRECISE = {"rtol": 1e-3, "atol": 5e-5}
TERMS = [(0.0, False), (0.3, True)]
LINEAR, DENSE = Logistic(zero_init=False), MLP(hidden=[12])
FROZEN = (Backbone(), FrozenBias(), Masked())
CASES: list[tuple[Model, str, LocalTraining, float, bool]] = [
    *(
        (LINEAR if engine in ("linear", "fused") else DENSE, engine, sgd, *terms)
        for engine in ENGINES
        for sgd in (BASE, BASE.replace(epochs=None, steps=9), *KINDS)
        for terms in TERMS
    ),
    *(
        (model, engine, BASE, *TERMS[0])
        for model in (CNN(channels=[4, 6], hidden=10), Dropping())
        for engine in ("loop", "vmap")
    ),
    *(
        (model, engine, sgd, *TERMS[1])
        for model in FROZEN
        for engine in ("loop", "vmap", "graph")
        for sgd in (BASE, KINDS[2], KINDS[3])
    ),
]


@pytest.mark.parametrize(("model", "engine", "sgd", "prox", "offset"), CASES, ids=repr)
def test_every_engine_trains_ragged_clients_as_a_loop_with_torch_optim(
    model: Model, engine: str, sgd: LocalTraining, prox: float, offset: bool
) -> None:
    local = trainer(model, engine)
    frozen = {name: value.clone() for name, value in local.model.frozen.items()}
    assert bool(frozen) == (model in FROZEN)
    asked = tasks(local.model, sgd, prox, offset)
    tolerance = PRECISE if sgd.optimizer == "adam" else TOLERANCE
    update = local.train(asked)
    for task, delta_P in zip(asked, update.delta_MP, strict=True):
        expected, _ = by_torch(local.model, task, DATASET.train, HELD[task.client])
        torch.testing.assert_close(delta_P, expected, **tolerance)
    steps = [sgd.num_steps(SIZES[task.client]) for task in asked]
    assert update.steps_M.tolist() == steps
    rate = sgd.lr * (0.01 if sgd.schedule else 1)
    pushed = [
        sum(sgd.momentum**j for k in range(n) for j in range(k + 1)) for n in steps
    ]
    np.testing.assert_allclose(update.rate_M, [rate * n for n in pushed], rtol=1e-6)
    for name, value in local.model.frozen.items():
        assert torch.equal(value, frozen[name])


ALONE: list[tuple[str, Model]] = [
    *((engine, Logistic(zero_init=False)) for engine in ("loop", "linear", "fused")),
    *(("vmap", MLP(hidden=[units])) for units in (12, 200)),
    # For convolutions of few tasks, torch has other kernels.
    *(("vmap", CNN(channels=c, hidden=10)) for c in ([4, 6], [16, 20], [2, 8])),
    ("vmap", CNN(channels=[4], hidden=10, precision="bfloat16")),
    ("loop", Dropping()),
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


@pytest.mark.parametrize(
    ("model", "engine"),
    [
        *((LINEAR, engine) for engine in ENGINES),
        *((model, engine) for model in FROZEN for engine in ("loop", "vmap")),
        *((Dropping(), engine) for engine in ("loop", "vmap")),
    ],
    ids=repr,
)
def test_evaluation_equals_a_plain_forward_pass(model: Model, engine: str) -> None:
    local = trainer(model, engine)
    local.train(tasks(local.model, BASE)[:1])  # which leaves the module in train mode
    rng = torch.Generator().manual_seed(2)
    w_RP = torch.randn(3, local.model.num_parameters, generator=rng)
    x_B, y_B = of_rows(DATASET.test, np.arange(120))
    for w_P, measured in zip(w_RP, evaluated(local.evaluator, w_RP), strict=True):
        logits_BC = plain_module(local.model, w_P).eval()(x_B).detach()
        hits_B = (logits_BC.argmax(-1) == y_B).double()
        loss = F.cross_entropy(logits_BC, y_B).item()
        assert measured["accuracy"] == hits_B.mean()
        assert measured["loss"] == pytest.approx(loss, rel=1e-5)


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


@pytest.mark.parametrize("engine", ["loop", "linear", "fused"])
def test_tasks_with_different_optimizers_keep_their_own_bitwise(engine: str) -> None:
    local = trainer(Logistic(zero_init=False), engine)
    other = BASE.replace(lr=0.2, batch_size=8, steps=3, epochs=None)
    kinds = [BASE, *KINDS, other, KINDS[0].replace(lr=0.3)]
    mixed = [
        task._replace(local=sgd, prox=0.1 * (i % 3))
        for i, (task, sgd) in enumerate(
            zip(2 * tasks(local.model, BASE), kinds, strict=False)
        )
    ]
    together = local.train(mixed)
    for i, task in enumerate(mixed):
        alone = local.train([task])
        assert all(
            torch.equal(a[0], b[i]) for a, b in zip(alone, together, strict=True)
        )


@pytest.mark.parametrize("engine", ["loop", "linear"])
def test_a_limit_that_no_gradient_reaches_changes_no_bit(engine: str) -> None:
    local = trainer(Logistic(zero_init=False), engine)
    free, limited = (
        local.train(tasks(local.model, sgd)).delta_MP
        for sgd in (BASE, BASE.replace(clip_norm=1e9))
    )
    assert torch.equal(free, limited)


def test_buffers_do_not_outlive_a_round() -> None:
    local = trainer(Logistic(), "linear")
    asked = tasks(local.model, KINDS[0])
    assert torch.equal(local.train(asked).delta_MP, local.train(asked).delta_MP)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"optimizer": "adam", "momentum": 0.5}, "momentum=0.5 has no meaning"),
        ({"optimizer": "rmsprop"}, "optimizer: Input should be 'sgd' or 'adam'"),
        ({"momentum": 1.0}, "momentum: Input should be less than 1"),
        ({"clip_norm": 0.0}, "clip_norm: Input should be greater than 0"),
    ],
)
def test_what_has_no_meaning_is_refused(fields: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        LocalTraining(lr=0.1, batch_size=1, steps=1, **fields)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_delta_over_rate_is_the_gradient_where_it_is_constant(momentum: float) -> None:
    """w - w_K = rate * g for K steps on a constant g, whatever the momentum."""
    sgd = LocalTraining(lr=0.05, batch_size=8, steps=7, momentum=momentum)
    task = Task(0, 0, torch.zeros(1), sgd, 0, 0, 1, None, 0.0)
    w, buffer = 0.0, 0.0
    for _ in range(7):
        buffer = momentum * buffer + 3.0
        w -= 0.05 * buffer
    rate = 0.05 * plain_steps(columns([task]), np.array([7])).item()
    assert -w / rate == pytest.approx(3.0)


@pytest.mark.parametrize("engine", ["linear", "fused"])
def test_engines_for_logistic_regression_refuse_a_frozen_bias(engine: str) -> None:
    with pytest.raises(ValueError, match=r"without frozen .* not for FrozenB"):
        trainer(FrozenBias(), engine).train(
            tasks(trainer(FrozenBias(), "loop").model, BASE)
        )


@pytest.mark.parametrize("model", FROZEN, ids=repr)
def test_auto_takes_vmap_for_a_model_with_frozen_parameters(model: Model) -> None:
    assert trainer(model, "auto").engine_name == "vmap"


def test_tokens_stay_integers_and_unscaled() -> None:
    x = np.random.default_rng(0).integers(0, 90, (12, 80))
    inputs = Inputs(
        Samples(x, np.arange(12), scale=1 / 255, shift=-0.5), torch.device("cpu")
    )
    index_TB = torch.tensor([[3, 0], [11, 3]])
    x_TB, y_TB = inputs.at(index_TB)
    assert x_TB.dtype == torch.int64 and x_TB.shape == (2, 2, 80)
    assert np.array_equal(x_TB, x[index_TB.numpy()]) and torch.equal(y_TB, index_TB)
    assert np.array_equal(inputs.span(4, 9)[0], x[4:9])
