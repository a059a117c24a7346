"""Models with frozen parameters, and plain torch beside them."""

import math

import torch
from torch import Tensor, nn

from raysafl import Model
from raysafl.models import FlatModel


class Backbone(Model):
    """Frozen convolutions that are drawn at random, under a head that is trained."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build the convolutions, with a ReLU and a pooling, then the head."""
        depth, height, width = input_shape
        backbone = nn.Sequential(
            nn.Conv2d(depth, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
        )
        head = nn.Linear(3 * (height // 2) * (width // 2), num_classes)
        return nn.Sequential(backbone.requires_grad_(False), nn.Flatten(), head)


class FrozenBias(Model):
    """One linear layer, whose bias stays as it is."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build the layer with the frozen bias 0, 1, 2, ..."""
        layer = nn.Linear(math.prod(input_shape), num_classes)
        nn.init.zeros_(layer.weight)
        layer.bias = nn.Parameter(torch.arange(num_classes) / 1.0, requires_grad=False)
        return nn.Sequential(nn.Flatten(), layer)


class Masking(nn.Module):
    """Inputs times two constant buffers, a mask and random factors, under one layer."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("mask", torch.arange(inputs) % 3 > 0)
        self.register_buffer("factor", torch.rand(inputs), persistent=False)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of the layer."""
        out: Tensor = self.head(x.flatten(1) * self.mask * self.factor)
        return out


class Masked(Model):
    """A model with buffers that training does not change."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build the module."""
        return Masking(math.prod(input_shape), num_classes)


def plain_module(flat: FlatModel, w_P: Tensor) -> nn.Module:
    """Return a module of plain torch with these trainable parameters.

    Its frozen ones are set by name to those of the flat model. Beside the recipe, that is all
    that it takes from there.
    """
    module = flat._recipe.build(*flat._arguments)
    named = dict(module.named_parameters())
    trained = [p for p in named.values() if p.requires_grad]
    nn.utils.vector_to_parameters(w_P.clone(), trained)
    for name, p in (*named.items(), *module.named_buffers()):
        if not p.requires_grad:
            p.copy_(flat.frozen[name])
    return module
