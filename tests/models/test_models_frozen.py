"""Constants that are no part of the flat vector: frozen parameters, and buffers."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers.frozen import Backbone, FrozenBias, Masked, plain_module
from torch import Tensor, nn

from raysafl import CNN, Model
from raysafl.algorithms import Key
from raysafl.models import FlatModel

SHAPE = (1, 8, 8)
HEAD = (3 * 4 * 4 + 1) * 4
CACHED = nn.Linear(64, 4)


class Embedded(nn.Module):
    """Tokens through a frozen embedding and an LSTM whose first biases are frozen."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, 3).requires_grad_(False)
        self.lstm = nn.LSTM(3, 5, batch_first=True)
        self.lstm.bias_ih_l0.requires_grad_(False)
        self.out = nn.Linear(5, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.lstm(self.embedding(x))[0][:, -1])
        return out


class Tied(nn.Module):
    """A frozen weight under two names."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, inputs)
        self.first.weight.requires_grad_(False)
        self.second = nn.Linear(inputs, inputs)
        self.second.weight = self.first.weight
        self.out = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.second(self.first(x.flatten(1)).tanh()))
        return out


class Case(Model):
    """A user's model, by the name of a case below."""

    case: str

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        cases: dict[str, Any] = {
            "embedded": lambda: Embedded(num_classes),
            "tied": lambda: Tied(64, num_classes),
            "all frozen": lambda: nn.Sequential(
                nn.Flatten(), nn.Linear(64, num_classes)
            ).requires_grad_(False),
            "no parameters": nn.Flatten,
            "numpy": self._numpy,
            "kept": lambda: nn.Sequential(nn.Flatten(), CACHED),
        }
        module: nn.Module = cases[self.case]()
        return module

    def _numpy(self) -> nn.Module:
        frozen = torch.from_numpy(np.random.default_rng().normal(size=(4, 64))).float()
        layer = nn.Linear(64, 4)
        layer.weight = nn.Parameter(frozen, requires_grad=False)
        return nn.Sequential(nn.Flatten(), layer)


def test_the_flat_vector_holds_the_trainable_parameters_only() -> None:
    flat = FlatModel(Backbone(), SHAPE, 4)
    assert flat.num_parameters == HEAD == flat.init(Key(0)).numel()
    assert list(flat.shapes) == ["2.weight", "2.bias"]
    assert list(flat.frozen) == ["0.0.weight", "0.0.bias"]
    assert not FlatModel(CNN(), SHAPE, 4).frozen


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Backbone(), SHAPE),
        (FrozenBias(), SHAPE),
        (Masked(), SHAPE),
        (Case(case="tied"), SHAPE),
        (Case(case="embedded"), (6,)),
    ],
    ids=repr,
)
def test_logits_are_those_of_a_module_with_the_same_frozen_parameters(
    model: Model, shape: tuple[int, ...]
) -> None:
    rng = torch.Generator().manual_seed(1)
    flat = FlatModel(model, shape, 4)
    x_B = torch.randn(5, *shape, generator=rng)
    if len(shape) == 1:
        x_B = torch.randint(4, (5, *shape), generator=rng)
    w_P = torch.randn(flat.num_parameters, generator=rng)
    module = plain_module(flat, w_P)
    torch.testing.assert_close(flat.logits(w_P, x_B), module(x_B).detach())
    joined = torch.cat([part.flatten() for part in flat.named_parameters(w_P).values()])
    assert torch.equal(joined, w_P)


def test_frozen_parameters_are_the_same_at_every_build_and_replicate() -> None:
    first = FlatModel(Backbone(), SHAPE, 4)
    torch.rand(7)
    before = torch.random.get_rng_state()
    second = FlatModel(Backbone(), SHAPE, 4)
    heads = [second.init(Key(seed)) for seed in (0, 1)]
    assert not torch.equal(*heads)
    assert first.frozen["0.0.weight"].any()
    for name, value in first.frozen.items():
        assert torch.equal(second.frozen[name], value)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_frozen_parameters_take_the_values_that_they_are_given() -> None:
    flat = FlatModel(FrozenBias(), SHAPE, 4)
    flat.load_frozen({"1.bias": torch.full((4,), 7.0)})
    w_P = torch.zeros(flat.num_parameters)
    assert torch.equal(flat.logits(w_P, torch.ones(1, *SHAPE)), torch.full((1, 4), 7.0))


@pytest.mark.parametrize("case", ["all frozen", "no parameters"])
def test_a_model_without_anything_to_train_is_refused(case: str) -> None:
    with pytest.raises(ValueError, match="model Case has no parameter to train"):
        FlatModel(Case(case=case), SHAPE, 64)


def test_frozen_parameters_that_change_from_build_to_build_are_refused() -> None:
    text = r"frozen parameters or buffers \(1.weight\) other values at each build"
    with pytest.raises(ValueError, match=text):
        FlatModel(Case(case="numpy"), SHAPE, 4)


def test_buffers_that_training_does_not_change_are_constants() -> None:
    torch.rand(3)
    before = torch.random.get_rng_state()
    flat = FlatModel(Masked(), SHAPE, 4)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert flat.num_parameters == (64 + 1) * 4
    assert list(flat.frozen) == ["mask", "factor"]
    assert flat.key == FlatModel(Masked(), SHAPE, 4).key
    given = torch.full((64,), 2.0)
    flat.load_frozen({"factor": given})
    assert torch.equal(flat.frozen["factor"], given)
    assert flat.key != FlatModel(Masked(), SHAPE, 4).key


class Counting(nn.Module):
    """A layer, on numbers or on tokens, with a buffer that changes in train mode."""

    def __init__(self, tokens: bool) -> None:
        super().__init__()
        self.first = nn.Embedding(4, 2) if tokens else nn.Linear(64, 2)
        self.head = nn.Linear(2, 4)
        self.register_buffer("passes", torch.tensor(0))
        self.register_buffer("constant", torch.tensor(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.passes = self.passes + self.constant
        hidden_BD = self.first(x)
        out: Tensor = self.head(hidden_BD.mean(1) if hidden_BD.ndim == 3 else hidden_BD)
        return out


@pytest.mark.parametrize("tokens", [False, True], ids=["numbers", "tokens"])
def test_a_buffer_that_training_changes_is_refused_by_its_name(tokens: bool) -> None:
    class Counted(Model):
        def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
            return Counting(tokens)

    with pytest.raises(ValueError, match=r"Counted holds buffers \(passes\)"):
        FlatModel(Counted(), (64,), 4)


def test_a_module_that_the_user_keeps_stays_trainable() -> None:
    first = FlatModel(Case(case="kept"), SHAPE, 4)
    assert CACHED.weight.requires_grad
    second = FlatModel(Case(case="kept"), SHAPE, 4)
    assert first.num_parameters == second.num_parameters == 65 * 4
    assert second.init(Key(0)).numel() == 65 * 4
