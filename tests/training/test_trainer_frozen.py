"""Training with frozen parameters against torch.optim on the trainable ones."""

import pytest
import torch
import torch.nn.functional as F
from helpers.evaluation import evaluated
from helpers.frozen import Backbone, FrozenBias, Masked, plain_module
from helpers.tasks import Task, draw_batches
from test_trainer import DATASET, HELD, TOLERANCE, tasks, trainer
from test_trainer_optimizer import PRECISE

from experiments.theorems.gradients import gradients
from raysafl import LocalTraining, Model
from raysafl.algorithms import Key
from raysafl.models import FlatModel

ENGINES = ("loop", "vmap", "graph")
SGD = LocalTraining(lr=0.1, batch_size=10, epochs=2)


def inputs(rows: torch.Tensor) -> torch.Tensor:
    """The samples of DATASET as the model sees them."""
    return (
        torch.from_numpy(DATASET.train.x)[rows] * DATASET.train.scale
        + DATASET.train.shift
    )


def with_torch_optim(flat: FlatModel, task: Task, model: Model) -> torch.Tensor:
    """The same local training of the trainable parameters, with torch.optim."""
    module, local = plain_module(flat, model, task.w_P), task.local
    trained = [p for p in module.parameters() if p.requires_grad]
    optimiser: torch.optim.Optimizer = torch.optim.SGD(
        trained, local.lr, local.momentum, weight_decay=local.weight_decay
    )
    if local.optimizer == "adam":
        optimiser = torch.optim.Adam(trained, local.lr)
    held = torch.from_numpy(HELD[task.client])
    rng = Key(task.seed, task.round)("batches 1", task.client)
    for batch in draw_batches(len(held), local, rng):
        rows = held[batch[batch >= 0]]
        y_B = torch.from_numpy(DATASET.train.y)[rows]
        w_P = torch.nn.utils.parameters_to_vector(trained)
        loss = F.cross_entropy(module(inputs(rows)), y_B)
        loss = loss + task.prox / 2 * (w_P - task.w_P).square().sum()
        if task.offset_P is not None:
            loss = loss + task.offset_P @ w_P
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return task.w_P - torch.nn.utils.parameters_to_vector(trained).detach()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", [Backbone(), FrozenBias(), Masked()], ids=repr)
@pytest.mark.parametrize(
    "sgd",
    [
        SGD,
        SGD.replace(momentum=0.5, weight_decay=0.1),
        SGD.replace(optimizer="adam", lr=0.01),
    ],
    ids=repr,
)
def test_every_engine_equals_torch_optim_on_the_trainable_parameters(
    engine: str, model: Model, sgd: LocalTraining
) -> None:
    local = trainer(model, engine)
    frozen = {name: value.clone() for name, value in local.model.frozen.items()}
    asked = tasks(local.model, sgd, prox=0.3, offset=True)
    tolerance = PRECISE if sgd.optimizer == "adam" else TOLERANCE
    update = local.train(asked)
    assert len(frozen) and update.delta_MP.shape == (8, local.model.num_parameters)
    for task, delta_P in zip(asked, update.delta_MP, strict=True):
        expected = with_torch_optim(local.model, task, model)
        torch.testing.assert_close(delta_P, expected, **tolerance)
    for name, value in local.model.frozen.items():
        assert torch.equal(value, frozen[name])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", [Backbone(), FrozenBias(), Masked()], ids=repr)
def test_evaluation_uses_the_frozen_parameters(engine: str, model: Model) -> None:
    local = trainer(model, engine)
    w_P = torch.randn(local.model.num_parameters, generator=torch.manual_seed(2))
    module = plain_module(local.model, model, w_P)
    rows = torch.arange(len(DATASET.test.y))
    logits_BC = module(inputs(rows)).detach()
    y_B = torch.from_numpy(DATASET.test.y)
    (measured,) = evaluated(local.evaluator, w_P[None])
    assert measured["accuracy"] == (logits_BC.argmax(-1) == y_B).double().mean()
    expected = F.cross_entropy(logits_BC, y_B).item()
    assert measured["loss"] == pytest.approx(expected, 1e-5)


@pytest.mark.parametrize("engine", ["linear", "fused"])
def test_engines_for_logistic_regression_refuse_a_frozen_bias(engine: str) -> None:
    with pytest.raises(ValueError, match="without frozen parameters, not for FrozenB"):
        trainer(FrozenBias(), engine).train(
            tasks(trainer(FrozenBias(), "loop").model, SGD)
        )


@pytest.mark.parametrize("model", [Backbone(), FrozenBias(), Masked()], ids=repr)
def test_auto_takes_vmap_for_a_model_with_frozen_parameters(model: Model) -> None:
    assert trainer(model, "auto").engine_name == "vmap"


def test_gradients_are_those_of_the_trainable_parameters() -> None:
    local = trainer(Backbone(), "loop")
    w_P = local.model.init(Key(0))
    (g_P,) = gradients(local, w_P[None], [HELD[0]])
    module = plain_module(local.model, Backbone(), w_P)
    rows = torch.from_numpy(HELD[0])
    y_B = torch.from_numpy(DATASET.train.y)[rows]
    F.cross_entropy(module(inputs(rows)), y_B).backward()
    expected = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
    torch.testing.assert_close(g_P, torch.cat(expected), **TOLERANCE)
