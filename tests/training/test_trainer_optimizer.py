"""Momentum, weight decay, Adam and rate schedules against torch.optim."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.tasks import Task, columns, draw_batches
from test_trainer import DATASET, HELD, SIZES, TOLERANCE, tasks, trainer

from raysafl import MLP, LocalTraining, Logistic, Model
from raysafl.algorithms import Key
from raysafl.training import StepRate
from raysafl.training.engines import ENGINES
from raysafl.training.optimizer import plain_steps

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


def with_torch_optim(task: Task, model: Model) -> torch.Tensor:
    """The same local training as a user of torch.optim would write it."""
    module, sgd = model.build((1, 8, 8), 4), task.local
    torch.nn.utils.vector_to_parameters(task.w_P.clone(), module.parameters())
    optimiser: torch.optim.Optimizer
    # the tasks are of round 3: milestones 2 and 3 passed
    scale = 0.01 if sgd.schedule else 1.0
    if sgd.optimizer == "adam":
        optimiser = torch.optim.Adam(
            module.parameters(), lr=sgd.lr * scale, weight_decay=sgd.weight_decay
        )
    else:
        optimiser = torch.optim.SGD(
            module.parameters(),
            sgd.lr * scale,
            sgd.momentum,
            weight_decay=sgd.weight_decay,
        )
    held = HELD[task.client]
    x = (
        torch.from_numpy(DATASET.train.x[held]) * DATASET.train.scale
        + DATASET.train.shift
    )
    y = torch.from_numpy(DATASET.train.y[held])
    for batch in draw_batches(
        len(held), sgd, Key(task.seed, task.round)("batches 1", task.client)
    ):
        rows = batch[batch >= 0]
        w_P = torch.nn.utils.parameters_to_vector(module.parameters())
        terms = task.prox / 2 * (w_P - task.w_P).square().sum()
        if task.offset_P is not None:
            terms = terms + task.offset_P @ w_P
        optimiser.zero_grad()
        F.cross_entropy(module(x[rows]), y[rows]).backward()
        if sgd.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), sgd.clip_norm)
        # the gradients of the terms are added to those of the loss
        terms.backward()
        optimiser.step()
    return task.w_P - torch.nn.utils.parameters_to_vector(module.parameters()).detach()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("sgd", KINDS, ids=repr)
@pytest.mark.parametrize(("prox", "offset"), [(0.0, False), (0.3, True)])
def test_every_engine_equals_torch_optim(
    engine: str, sgd: LocalTraining, prox: float, offset: bool
) -> None:
    model = (
        Logistic(zero_init=False) if engine in ("linear", "fused") else MLP(hidden=[12])
    )
    local = trainer(model, engine)
    asked = tasks(local.model, sgd, prox, offset)
    tolerance = PRECISE if sgd.optimizer == "adam" else TOLERANCE
    update = local.train(asked)
    for task, delta_P in zip(asked, update.delta_MP, strict=True):
        torch.testing.assert_close(delta_P, with_torch_optim(task, model), **tolerance)
    rate = sgd.lr * (0.01 if sgd.schedule else 1)
    steps = [sgd.num_steps(SIZES[task.client]) for task in asked]
    pushed = [
        sum(sgd.momentum**j for k in range(n) for j in range(k + 1)) for n in steps
    ]
    expected = [rate * n for n in pushed]
    np.testing.assert_allclose(update.rate_M, expected, rtol=1e-6)


@pytest.mark.parametrize("engine", ["loop", "linear", "fused"])
def test_tasks_with_different_optimizers_keep_their_own_bitwise(engine: str) -> None:
    local = trainer(Logistic(zero_init=False), engine)
    kinds = [
        BASE,
        *KINDS,
        BASE.replace(lr=0.2, steps=3, epochs=None),
        KINDS[0].replace(lr=0.3),
    ]
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


def test_a_limit_makes_the_step_of_plain_sgd_at_most_as_long() -> None:
    local = trainer(Logistic(zero_init=False), "fused")
    one_step = LocalTraining(lr=0.5, batch_size=10, steps=1, clip_norm=0.01)
    delta_MP = local.train(tasks(local.model, one_step)).delta_MP
    assert delta_MP.norm(dim=1).max() <= 0.5 * 0.01 * (1 + 1e-6)
    assert delta_MP.norm(dim=1).min() > 0.5 * 0.01 * (1 - 1e-3)


def test_buffers_do_not_outlive_a_round() -> None:
    local = trainer(Logistic(), "linear")
    asked = tasks(local.model, KINDS[0])
    assert torch.equal(local.train(asked).delta_MP, local.train(asked).delta_MP)


def test_the_rate_halves_at_the_milestones() -> None:
    # FAST: halved at round 5,000
    halved = StepRate(milestones=[5000])
    fast = LocalTraining(lr=0.1, batch_size=1, steps=1, schedule=halved)
    assert [fast.rate(t) for t in (0, 4999, 5000, 9999)] == [0.1, 0.1, 0.05, 0.05]
    thrice = fast.replace(schedule=StepRate(milestones=[2, 4, 4], decay=0.1))
    assert [thrice.rate(t) for t in (1, 2, 3, 4)] == pytest.approx(
        [0.1, 0.01, 0.01, 0.0001]
    )
    assert BASE.rate(10**6) == BASE.lr


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
