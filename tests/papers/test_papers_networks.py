"""The papers' networks against their printed tables, and a small task of each."""

import numpy as np
import pytest
import torch
from helpers.evaluation import evaluated
from helpers.tasks import Trainer
from torch import Tensor, nn

from experiments.fast.networks import FastCifarNet, FastFashionNet
from experiments.fsl.networks import FslCifarNet, FslEmnistNet
from raysafl import Model
from raysafl.algorithms import Key
from raysafl.data import Dataset, Samples
from raysafl.models import FlatModel

Row = tuple[str, tuple[int, ...], int]

# FSL, tables II and III: layer, output shape (here channels first), parameters
TABLE_2: list[Row] = [
    ("Conv2d", (32, 28, 28), 320),
    ("Conv2d", (64, 26, 26), 18_496),
    ("MaxPool2d", (64, 13, 13), 0),
    ("Dropout", (64, 13, 13), 0),
    ("Flatten", (10_816,), 0),
    ("Linear", (128,), 1_384_576),
    ("Dropout", (128,), 0),
    ("Linear", (45,), 5_805),
]
TABLE_3: list[Row] = [
    ("Conv2d", (32, 32, 32), 896),
    ("MaxPool2d", (32, 16, 16), 0),  # printed (13, 13, 64): a misprint
    ("Conv2d", (64, 16, 16), 18_496),
    ("MaxPool2d", (64, 8, 8), 0),
    ("Dropout", (64, 8, 8), 0),
    ("Flatten", (4_096,), 0),
    ("Linear", (128,), 524_416),
    ("Dropout", (128,), 0),
    ("Linear", (10,), 1_290),
]
PRINTED = [
    pytest.param(FslEmnistNet(), (1, 28, 28), 45, TABLE_2, 1_409_197, id="table II"),
    pytest.param(FslCifarNet(), (3, 32, 32), 10, TABLE_3, 545_098, id="table III"),
]


@pytest.mark.parametrize(("model", "shape", "classes", "table", "total"), PRINTED)
def test_fsls_networks_are_the_printed_tables(
    model: Model, shape: tuple[int, ...], classes: int, table: list[Row], total: int
) -> None:
    net = model.build(shape, classes)
    x: Tensor = torch.zeros(1, *shape)
    rows = []
    for layer in net.children():
        x = layer(x)
        count = sum(p.numel() for p in layer.parameters())
        rows.append((type(layer).__name__, tuple(x.shape[1:]), count))
    assert [row for row in rows if row[0] != "ReLU"] == table
    relus = [rows[i - 1][0] for i, row in enumerate(rows) if row[0] == "ReLU"]
    assert relus == ["Conv2d", "Conv2d", "Linear"]
    assert [m.p for m in net.modules() if isinstance(m, nn.Dropout)] == [0.25, 0.5]
    assert FlatModel(model, shape, classes).num_parameters == total


@pytest.mark.parametrize(("model", "shape", "classes", "table", "total"), PRINTED)
def test_fsls_networks_start_as_keras_does_or_as_torch_does(
    model: Model, shape: tuple[int, ...], classes: int, table: list[Row], total: int
) -> None:
    named = FlatModel(model, shape, classes)
    for name, part in named.named_parameters(named.init(Key(0))).items():
        if name.endswith("bias"):
            assert not part.any()
        else:  # Glorot: uniform with variance 2 / (fan_in + fan_out)
            field = part[0, 0].numel() if part.ndim == 4 else 1
            variance = 2 / ((part.shape[0] + part.shape[1]) * field)
            assert part.var() == pytest.approx(variance, rel=0.15)
            assert part.abs().max() <= (3 * variance) ** 0.5
    torchs = FlatModel(model.replace(start="torch"), shape, classes)
    assert torchs.named_parameters(torchs.init(Key(0)))["0.bias"].all()


@pytest.mark.parametrize(
    ("model", "shape", "kinds", "size"),
    [
        (
            FastFashionNet(),
            (1, 28, 28),
            "Conv2d ReLU Conv2d ReLU MaxPool2d Dropout(0.25) Flatten Linear ReLU "
            "Dropout(0.5) Linear",
            1_206_590,
        ),
        (
            FastCifarNet(),
            (3, 32, 32),
            "Conv2d ReLU MaxPool2d Conv2d ReLU MaxPool2d Conv2d ReLU MaxPool2d "
            "Flatten Dropout(0.25) Linear ReLU Dropout(0.25) Linear",
            541_094,
        ),
    ],
    ids=["Fashion-MNIST", "CIFAR-10"],
)
def test_fasts_networks_have_the_layers_and_sizes_of_the_authors_code(
    model: Model, shape: tuple[int, ...], kinds: str, size: int
) -> None:
    names = [
        f"Dropout({layer.p})" if isinstance(layer, nn.Dropout) else type(layer).__name__
        for layer in model.build(shape, 10).children()
    ]
    assert " ".join(names) == kinds
    assert FlatModel(model, shape, 10).num_parameters == size


def test_outputs_of_no_class_take_part_in_the_loss_and_are_never_right() -> None:
    flat = FlatModel(FastFashionNet(channels=[2], hidden=4), (1, 8, 8), 10)
    dataset = images((1, 8, 8), 10)
    everything = np.arange(len(dataset.train))
    local = Trainer(flat, dataset, lambda r, client: everything)
    w_P = flat.init(Key(0))
    x_B, y_B = local.inputs.at(torch.arange(8))
    logits_B = flat.logits(w_P, x_B)
    assert logits_B.shape == (8, 62)
    (measured,) = evaluated(local.evaluator, w_P[None])
    expected = nn.functional.cross_entropy(logits_B, y_B)
    assert measured["loss"] == pytest.approx(float(expected), rel=1e-5)
    right = (logits_B.argmax(1) == y_B).double().mean()
    assert measured["accuracy"] == pytest.approx(float(right))


def images(shape: tuple[int, ...], classes: int) -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (8, *shape), dtype=np.uint8)
    part = Samples(x, rng.integers(0, classes, 8), 1 / 255, -0.5)
    return Dataset("noise", part, part, classes)


@pytest.mark.parametrize(
    ("model", "least"),
    [
        (FslEmnistNet(), 4),
        (FslCifarNet(), 4),
        (FastFashionNet(), 6),
        (FastCifarNet(), 8),
    ],
)
def test_what_is_no_image_is_refused_and_the_smallest_image_is_taken(
    model: Model, least: int
) -> None:
    text = f"{type(model).__name__} needs images of at least {least} pixels"
    for shape in ((80,), (1, 3, 8)):
        with pytest.raises(ValueError, match=text):
            model.build(shape, 10)
    smallest = model.build((1, least + 1, least), 10)
    assert smallest(torch.zeros(1, 1, least + 1, least)).isfinite().all()
