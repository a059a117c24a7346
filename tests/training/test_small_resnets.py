"""Small ResNets with GroupNorm, by every engine, against plain torch.

The gradients are computed in a child process, since torch's convolutions can overwrite
memory (`raysafl.models.flat._has_small_strided`), which would end pytest as a whole.
"""

import itertools
import os
import sys

import pytest
import torch
import torch.nn.functional as F
from helpers.commands import checked_output
from helpers.torch_loop import gradients_by_torch
from torch import Tensor, nn

from raysafl import Model
from raysafl.algorithms import Key
from raysafl.models import FlatModel
from raysafl.training.engines import make_engine
from raysafl.training.inputs import Batch

CLASSES = 4


class Block(nn.Module):
    """A residual block, whose shortcut is a 1x1 convolution with stride 2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.long = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False),
            nn.GroupNorm(4, 2 * width),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False),
            nn.GroupNorm(4, 2 * width),
        )
        self.short = nn.Conv2d(width, 2 * width, 1, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.long(x) + self.short(x))


class SmallResNet(Model):
    width: int

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(input_shape[0], self.width, 3, padding=1, bias=False),
            nn.GroupNorm(4, self.width),
            nn.ReLU(),
            nn.MaxPool2d(2),  # which is computed together with the ReLU elsewhere
            Block(self.width),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(2 * self.width, num_classes),
        )


def compare(channels: int, width: int) -> None:
    """Compare outputs and gradients of two tasks with a plain loop of torch."""
    shape = (channels, 28, 28)
    recipe = SmallResNet(width=width)
    flat = FlatModel(recipe, shape, CLASSES)
    plain = recipe.build(shape, CLASSES)
    rng = torch.Generator().manual_seed(0)
    w_TP = torch.stack([flat.init(Key(t)) for t in range(2)])
    x_TB = torch.randn(2, 8, *shape, generator=rng)
    y_TB = torch.randint(CLASSES, (2, 8), generator=rng)
    expected_TP = gradients_by_torch(plain, w_TP, x_TB, y_TB)
    outputs = []
    for w_P in w_TP:
        nn.utils.vector_to_parameters(w_P, plain.parameters())
        outputs.append(plain(x_TB[0]).detach())
    batch = Batch(w_TP, x_TB, y_TB, torch.full((2, 8), 1 / 8), torch.arange(2))
    for name in (*["loop"] * 5, "vmap", "graph"):
        engine = make_engine(name, flat)
        g_TP = engine.gradients(batch).g_TP
        torch.testing.assert_close(g_TP, expected_TP, rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            logits = engine.logits(w_TP, x_TB[0])
        torch.testing.assert_close(logits, torch.stack(outputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.acceptance)])
def test_every_engine_trains_small_resnets_as_plain_torch_does(threads: int) -> None:
    command = [sys.executable, __file__, str(threads)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # Where memory was overwritten, two threads may wait for each other for ever.
    checked_output(command, timeout=300, env=env)


@pytest.mark.parametrize(
    ("convolution", "allowed"),
    [
        (nn.Conv2d(4, 8, 1, stride=2), False),
        (nn.Conv2d(4, 8, 1, stride=(1, 2)), False),
        (nn.Conv2d(16, 8, 1, stride=2), True),
        (nn.Conv2d(4, 8, 1), True),
        (nn.Conv2d(4, 8, 3, stride=2), True),
    ],
    ids=repr,
)
def test_channels_last_is_avoided_only_for_1x1_convolutions_that_overwrite_memory(
    convolution: nn.Module, allowed: bool
) -> None:
    class One(Model):
        def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
            pooled = (nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1))
            return nn.Sequential(convolution, *pooled, nn.Flatten(), nn.Linear(8, 4))

    depth = next(convolution.parameters()).shape[1]
    flat = FlatModel(One(), (depth, 8, 8), CLASSES)
    assert (flat.is_channels_last, bool(flat.pools)) == (allowed, allowed)


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    for channels, width in itertools.product((1, 3), (4, 8)):
        compare(channels, width)
