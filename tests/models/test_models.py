"""Models as flat vectors: sizes by hand, and the module's own forward pass."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from raysafl import CNN, MLP, Logistic, Model
from raysafl.algorithms import Key
from raysafl.data import Samples
from raysafl.models import CharLSTM, FlatModel
from raysafl.sweep.prepare import first_inputs


class Doubled(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Halved(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 2


class OwnModule(Model):
    """A user's model: any module, by the name of a case below."""

    case: str

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        inputs = input_shape[0] * input_shape[1] * input_shape[2]
        linear, flatten = nn.Linear(inputs, num_classes), nn.Flatten()
        cases: dict[str, Any] = {
            "plain": lambda: nn.Sequential(flatten, linear),
            "no bias": lambda: nn.Sequential(
                flatten, nn.Linear(inputs, num_classes, bias=False)
            ),
            "own forward": lambda: Doubled(flatten, linear),
            "own layer": lambda: nn.Sequential(flatten, Halved(inputs, num_classes)),
            "other flatten": lambda: nn.Sequential(
                nn.Flatten(2), nn.Linear(input_shape[1] * input_shape[2], num_classes)
            ),
            "relu after": lambda: nn.Sequential(flatten, linear, nn.ReLU()),
            "relu before": lambda: nn.Sequential(flatten, nn.ReLU(), linear),
            "constant": lambda: self._constant(linear),
            "tied": lambda: self._tied(linear),
            "tied and named twice": lambda: self._tied(linear, is_other=True),
            "group norm": lambda: nn.Sequential(
                nn.GroupNorm(1, input_shape[0]), flatten, linear
            ),
            "batch norm": lambda: nn.Sequential(
                nn.BatchNorm2d(input_shape[0]), flatten, nn.Linear(inputs, num_classes)
            ),
            "batch norm in eval mode": lambda: nn.Sequential(
                nn.BatchNorm2d(input_shape[0]).eval(), flatten, linear
            ),
        }
        return cases[self.case]()

    def _constant(self, linear: nn.Linear) -> nn.Module:
        last = nn.Linear(linear.out_features, linear.out_features, bias=False)
        for value, part in enumerate(
            (linear.weight, linear.bias, last.weight), start=1
        ):
            nn.init.constant_(part, value)
        return nn.Sequential(nn.Flatten(), linear, last)

    def _tied(self, linear: nn.Linear, is_other: bool = False) -> nn.Module:
        square = nn.Linear(linear.in_features, linear.in_features)
        other = nn.Linear(linear.in_features, linear.in_features)
        other.weight = square.weight
        between = other if is_other else nn.ReLU()
        return nn.Sequential(nn.Flatten(), square, between, square, linear)


MODELS: list[Model] = [
    Logistic(),
    Logistic(zero_init=False),
    MLP(hidden=[9, 5]),
    CNN(channels=[3, 4], hidden=6),
    *(
        OwnModule(case=case)
        for case in (
            *("plain", "no bias", "own forward", "group norm"),
            *("tied", "tied and named twice"),
        )
    ),
]


@pytest.mark.parametrize(
    ("model", "shape", "classes", "size"),
    [
        (Logistic(), (1, 28, 28), 10, 7850),
        (MLP(hidden=[30, 20]), (3, 4, 5), 7, 61 * 30 + 31 * 20 + 21 * 7),
        # 9 x 6 -> 4 x 3 pixels
        (CNN(channels=[4], hidden=5), (3, 9, 6), 2, 28 * 4 + 49 * 5 + 6 * 2),
    ],
    ids=repr,
)
def test_parameter_counts_by_hand(
    model: Model, shape: tuple[int, ...], classes: int, size: int
) -> None:
    flat = FlatModel(model, shape, classes)
    assert flat.num_parameters == size == flat.init(Key(0)).numel()
    assert flat.logits(flat.init(Key(0)), torch.zeros(2, *shape)).shape == (2, classes)


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_logits_of_the_flat_vector_are_the_modules_own(model: Model) -> None:
    shape, rng = (2, 8, 8), torch.Generator().manual_seed(0)
    flat = FlatModel(model, shape, 4)
    w_P = torch.randn(flat.num_parameters, generator=rng)
    x_B = torch.randn(5, *shape, generator=rng)
    module = model.build(shape, 4)
    nn.utils.vector_to_parameters(w_P, module.parameters())
    for _ in range(2):
        torch.testing.assert_close(flat.logits(w_P, x_B), module(x_B).detach())
    joined = torch.cat([part.flatten() for part in flat.named_parameters(w_P).values()])
    assert torch.equal(joined, w_P)


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_initial_parameters_are_a_function_of_the_key(model: Model) -> None:
    flat = FlatModel(model, (2, 8, 8), 4)
    before = torch.random.get_rng_state()
    first = flat.init(Key(3))
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(7)
    assert torch.equal(flat.init(Key(3)), first)
    assert torch.equal(FlatModel(model, (2, 8, 8), 4).init(Key(3)), first)
    assert torch.equal(flat.init(Key(4)), first) == (model == Logistic())


def test_initial_parameters_are_torchs_default_unless_zero_is_asked() -> None:
    assert not FlatModel(Logistic(), (1, 8, 8), 10).init(Key(0)).any()
    w_P = FlatModel(Logistic(zero_init=False), (1, 8, 8), 10).init(Key(0))
    # uniform on +-1/sqrt(64)
    assert w_P.abs().max() <= 1 / 8 and 0.9 / 8 < w_P.abs().max()


def test_initial_parameters_are_those_that_the_module_starts_with() -> None:
    flat = FlatModel(OwnModule(case="constant"), (1, 2, 2), 3)
    named = flat.named_parameters(flat.init(Key(0)))
    assert {name: set(part.flatten().tolist()) for name, part in named.items()} == {
        "1.weight": {1.0},
        "1.bias": {2.0},
        "2.weight": {3.0},
    }


class Embeds(Model):
    """One token, or one after each of the tokens, is predicted."""

    last: bool = True

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        table = nn.Embedding(num_classes, num_classes)
        return nn.Sequential(table, *[Last()] * self.last)


class Last(nn.Module):
    def forward(self, x_BLV: Tensor) -> Tensor:
        return x_BLV[:, -1]


def test_tokens_of_another_type_are_told_which_it_must_be() -> None:
    for type_ in (np.int32, np.float32):
        few = Samples(np.ones((4, 12), type_), np.zeros(4, np.int64))
        with pytest.raises(ValueError, match="tokens must be int64 in fl"):
            FlatModel(Embeds(), (12,), 80).try_on(first_inputs(few, 2))
    tokens = Samples(np.ones((4, 12), np.int64), few.y)
    assert FlatModel(Embeds(), (12,), 80).try_on(first_inputs(tokens, 2)).shape == (
        2,
        80,
    )


def test_a_model_of_one_output_a_sample_is_told_which_targets_that_needs() -> None:
    x = torch.zeros(2, 12, dtype=torch.int64)
    for model in (Embeds(), CharLSTM()):
        with pytest.raises(
            ValueError,
            match=re.escape(
                "[B, 12, num_classes], for this batch [2, 12, 80]; it returned a Tensor of "
                "shape [2, 80], for which targets are [n], not [n, 12]"
            ),
        ):
            FlatModel(model, (12,), 80, (12, 80)).try_on(x)
    each = FlatModel(Embeds(last=False), (12,), 80, (12, 80))
    assert each.try_on(x).shape == (2, 12, 80)


@pytest.mark.parametrize("case", ["batch norm", "batch norm in eval mode"])
def test_batch_norm_is_refused_with_the_way_out(case: str) -> None:
    text = r"OwnModule holds buffers \(0.running_mean, .* use GroupNorm or LayerNorm"
    with pytest.raises(ValueError, match=text):
        FlatModel(OwnModule(case=case), (2, 8, 8), 4)


@pytest.mark.parametrize("shape", [(1, 3, 8), (1, 8, 3), (64,)], ids=repr)
def test_a_cnn_refuses_images_that_it_cannot_halve(shape: tuple[int, ...]) -> None:
    text = f"CNN needs images of at least 4 pixels.*{re.escape(str(list(shape)))}"
    with pytest.raises(ValueError, match=text):
        FlatModel(CNN(channels=[2, 2]), shape, 4)


def test_one_linear_layer_is_recognised() -> None:
    assert FlatModel(Logistic(), (1, 28, 28), 10).linear_shape == (10, 784)
    assert FlatModel(OwnModule(case="plain"), (2, 3, 5), 4).linear_shape == (4, 30)


@pytest.mark.parametrize(
    "model",
    [
        MLP(),
        CNN(channels=[2]),
        *(
            OwnModule(case=case)
            for case in (
                *("no bias", "own forward", "own layer", "other flatten"),
                *("relu after", "relu before", "tied", "group norm"),
            )
        ),
    ],
    ids=repr,
)
def test_any_other_module_is_not_taken_for_a_linear_one(model: Model) -> None:
    assert FlatModel(model, (1, 8, 8), 4).linear_shape is None
