"""Local training with dropout: masks depend on the task and step, not on batching."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.evaluation import evaluated
from helpers.tasks import Task, columns, draw_batches
from test_trainer import DATASET, HELD, SIZES, TOLERANCE, tasks, trainer
from torch import Tensor, nn

from raysafl import LocalTraining, Model
from raysafl.algorithms import Key
from raysafl.models.layers import drawing_from
from raysafl.training.inputs import step_seeds
from raysafl.training.trainer import LocalTrainer

LOCAL = LocalTraining(lr=0.1, batch_size=16, epochs=2)


class Dropping(Model):
    """Two layers, two dropouts; what is dropped is seen in the gradient."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        return nn.Sequential(
            *(
                nn.Flatten(),
                nn.Dropout(0.25),
                nn.Linear(64, 12),
                nn.ReLU(),
                nn.Dropout(0.5),
            ),
            nn.Linear(12, num_classes),
        )


class Branching(Dropping):
    """What vmap cannot do: a branch on data."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        class Branch(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                x = super().forward(x.flatten(1))
                return x if x.sum() > 0 else 2 * x

        return Branch(64, num_classes)


class Hidden(Dropping):
    """Dropout that no layer shows."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        class Functional(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return F.dropout(super().forward(x.flatten(1)), 0.5, self.training)

        return Functional(64, num_classes)


def explicit(local: LocalTrainer, task: Task) -> Tensor:
    """The same training with torch.optim, on torch's module with exchanged masks."""
    module = local.model.module.train()
    torch.nn.utils.vector_to_parameters(task.w_P.clone(), module.parameters())
    module.requires_grad_()
    optimiser = torch.optim.SGD(module.parameters(), lr=task.local.lr)
    held = HELD[task.client]
    x = (
        torch.from_numpy(DATASET.train.x[held]) * DATASET.train.scale
        + DATASET.train.shift
    )
    y = torch.from_numpy(DATASET.train.y[held])
    key = Key(task.seed, task.round)
    plan = draw_batches(len(held), task.local, key(f"batches {task.call}", task.client))
    seeds = key(f"dropout {task.call}", task.client).integers(2**62, size=len(plan))
    for batch, seed in zip(plan, seeds, strict=True):
        rows = batch[batch >= 0]
        with drawing_from(torch.tensor(seed)):
            loss = F.cross_entropy(module(x[rows]), y[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    module.requires_grad_(False)
    return task.w_P - torch.nn.utils.parameters_to_vector(module.parameters())


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_training_with_dropout_equals_torch_optim_with_the_same_masks(
    engine: str,
) -> None:
    local = trainer(Dropping(), engine)
    asked = tasks(local.model, LOCAL)
    for task, delta_P in zip(asked, local.train(asked).delta_MP, strict=True):
        torch.testing.assert_close(delta_P, explicit(local, task), **TOLERANCE)


def test_a_task_with_dropout_alone_equals_itself_among_others_bitwise() -> None:
    local = trainer(Dropping(), "loop")
    asked = tasks(local.model, LOCAL)
    together = local.train(asked)
    for i, task in enumerate(asked):
        alone = local.train([task])
        assert all(
            torch.equal(a[0], b[i]) for a, b in zip(alone, together, strict=True)
        )


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("field", ["seed", "round", "call"])
def test_masks_depend_on_seed_round_and_call(engine: str, field: str) -> None:
    local = trainer(Dropping(), engine)
    # the whole dataset
    (task, *_) = tasks(local.model, LocalTraining(lr=0.1, batch_size=64, epochs=1))
    other = task._replace(**{field: 9})
    same, first, second = local.train([task, task, other]).delta_MP
    assert torch.equal(same, first) and (second - first).norm() > 0.1 * first.norm()


def test_every_step_draws_another_mask_and_every_client_too() -> None:
    local = trainer(Dropping(), "loop")
    asked = tasks(local.model, LOCAL)
    plan = draw_batches(SIZES[0], LOCAL, np.random.default_rng(0))
    seeds_KT = step_seeds(columns(asked), np.full(len(asked), len(plan)))
    # two passes of 40 samples in batches of 16; 2 x 4 clients
    assert seeds_KT.shape == (6, 8)
    assert seeds_KT.size == len(np.unique(seeds_KT)) and seeds_KT.min() >= 0


def test_evaluation_drops_nothing() -> None:
    local = trainer(Dropping(), "loop")
    asked = tasks(local.model, LOCAL)
    local.train(asked)  # leaves the module in train mode
    w_P = asked[0].w_P
    measured = evaluated(local.evaluator, torch.stack([w_P, w_P]))
    x = torch.from_numpy(DATASET.test.x) * DATASET.test.scale + DATASET.test.shift
    w0_P, b0_P, w1_P, b1_P = local.model.named_parameters(w_P).values()
    hidden = F.relu(F.linear(x.flatten(1), w0_P, b0_P))
    loss = F.cross_entropy(
        F.linear(hidden, w1_P, b1_P), torch.from_numpy(DATASET.test.y)
    )
    assert [own["loss"] for own in measured] == pytest.approx([float(loss)] * 2, 1e-5)


def test_a_module_that_vmap_cannot_run_names_the_engine_that_can() -> None:
    asked = tasks(trainer(Branching(), "loop").model, LOCAL)
    assert trainer(Branching(), "loop").train(asked).steps_M.tolist()[0] == 2 * -(
        -SIZES[0] // 16
    )
    with pytest.raises(
        ValueError, match=r"engine vmap.* give engine='loop', .*\(torch says: "
    ):
        trainer(Branching(), "vmap").train(asked)


@pytest.mark.parametrize(
    ("engine", "text"),
    [("loop", "use nn.Dropout layers"), ("vmap", "random operation")],
)
def test_dropout_from_the_global_generator_is_noticed(engine: str, text: str) -> None:
    local = trainer(Hidden(), engine)
    with pytest.raises(ValueError, match=text):
        local.train(tasks(local.model, LOCAL))
    (measured,) = evaluated(local.evaluator, torch.zeros(1, local.model.num_parameters))
    assert measured["loss"] == pytest.approx(1.3863, rel=1e-4)
