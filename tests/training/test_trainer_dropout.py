"""Local training with dropout: masks depend on the task and step, not on batching."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.evaluation import evaluated
from helpers.tasks import Dropping, columns, draw_batches
from test_trainer import SIZES, tasks, trainer
from torch import Tensor, nn

from raysafl import LocalTraining
from raysafl.training.inputs import step_seeds

LOCAL = LocalTraining(lr=0.1, batch_size=16, epochs=2)


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


def test_a_module_that_vmap_cannot_run_names_the_engine_that_can() -> None:
    asked = tasks(trainer(Branching(), "loop").model, LOCAL)
    assert trainer(Branching(), "loop").train(asked).steps_M.tolist()[0] == 2 * -(
        -SIZES[0] // 16
    )
    with pytest.raises(ValueError, match=r"give engine='loop', .*\(torch says: "):
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
