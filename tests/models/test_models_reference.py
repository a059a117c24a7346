"""Networks against references: torchvision's, and plain formulas in float64."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision.models as tv
from helpers.evaluation import evaluated
from helpers.tasks import Task, Trainer
from helpers.torch_loop import gradients_by_torch
from torch import Tensor, nn

import raysafl as fl
from raysafl import LocalTraining, Model
from raysafl.algorithms import Key
from raysafl.data import Dataset, Samples
from raysafl.models import CharLSTM, FlatModel, LeNet, ResNet18, ResNet20
from raysafl.training.engines import make_engine
from raysafl.training.inputs import Batch


def given(model: Model, shape: tuple[int, ...]) -> tuple[nn.Module, Tensor, Tensor]:
    """A module with random parameters (norms too) in float64, those in order, and inputs."""
    rng = torch.Generator().manual_seed(0)
    module = model.build(shape, 10).double()
    sizes = [p.numel() for p in module.parameters()]
    w_P = 0.1 * torch.randn(sum(sizes), generator=rng, dtype=torch.float64)
    nn.utils.vector_to_parameters(w_P, module.parameters())
    return module, w_P, torch.rand(2, *shape, generator=rng, dtype=torch.float64)


def lenet(w: Iterator[Tensor], x: Tensor, padding: int) -> Tensor:
    x = F.max_pool2d(F.conv2d(x, next(w), next(w), padding=padding).relu(), 2)
    x = F.max_pool2d(F.conv2d(x, next(w), next(w)).relu(), 2).flatten(1)
    for _ in range(2):
        x = F.linear(x, next(w), next(w)).relu()
    return F.linear(x, next(w), next(w))


@pytest.mark.parametrize(
    ("shape", "padding", "size"),
    # LeCun's 32x32 with one channel: the dense layers see 16 x 5 x 5 numbers.
    [((3, 32, 32), 0, 62_006), ((1, 28, 28), 2, 61_706), ((1, 28, 28), 0, 44_426)],
)
def test_lenet_has_the_outputs_and_the_size_of_mifas_program(
    shape: tuple[int, ...], padding: int, size: int
) -> None:
    module, w_P, x_B = given(LeNet(padding=padding), shape)
    assert w_P.numel() == size
    expected = lenet(iter(module.parameters()), x_B, padding)
    torch.testing.assert_close(module(x_B), expected)


@pytest.mark.parametrize("groups", [2, 8])
def test_resnet18_equals_torchvisions_with_a_small_first_layer(groups: int) -> None:
    shape = (3, 8, 8)
    module, w_P, x_B = given(ResNet18(groups=groups), shape)
    assert w_P.numel() == 11_173_962
    norm = partial(nn.GroupNorm, groups)
    torchvisions = tv.resnet18(num_classes=10, norm_layer=norm)
    torchvisions.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    torchvisions.maxpool = nn.Identity()
    torchvisions.double()
    nn.utils.vector_to_parameters(w_P, torchvisions.parameters())
    torch.testing.assert_close(module(x_B), torchvisions(x_B))


def normed(w: Iterator[Tensor], x: Tensor, groups: int, stride: int = 1) -> Tensor:
    """A 3x3 convolution, then each group of channels of a sample gets mean 0, variance 1."""
    x = F.conv2d(x, next(w), stride=stride, padding=1)
    grouped = x.unflatten(1, (groups, -1)).flatten(2)
    spread = grouped.var(2, correction=0, keepdim=True)
    grouped = (grouped - grouped.mean(2, keepdim=True)) / (spread + 1e-5).sqrt()
    return grouped.view(x.shape) * next(w).view(-1, 1, 1) + next(w).view(-1, 1, 1)


def resnet20(w: Iterator[Tensor], x: Tensor, groups: int) -> Tensor:
    """He et al., section 4.2 with option A."""
    x = normed(w, x, groups).relu()
    for width in (16, 32, 64):
        for _ in range(3):
            halves = x.shape[1] < width
            short = x
            if halves:
                zeros = torch.zeros_like(x[:, :, ::2, ::2])
                short = torch.cat([x[:, :, ::2, ::2], zeros], 1)
            long = normed(w, x, groups, 2 if halves else 1).relu()
            x = (normed(w, long, groups) + short).relu()
    return F.linear(x.mean((2, 3)), next(w), next(w))


@pytest.mark.parametrize(("groups", "side"), [(2, 16), (4, 9)])
def test_resnet20_has_the_outputs_and_the_size_of_he_et_al(
    groups: int, side: int
) -> None:
    module, w_P, x_B = given(ResNet20(groups=groups), (3, side, side))
    assert w_P.numel() == 269_722  # "0.27M" in their table 6
    expected = resnet20(iter(module.parameters()), x_B, groups)
    torch.testing.assert_close(module(x_B), expected)


def test_resnets_start_as_torchvisions_do() -> None:
    flat = FlatModel(ResNet20(), (3, 32, 32), 10)
    for name, part in flat.named_parameters(flat.init(Key(0))).items():
        if part.ndim == 4:
            variance = 2 / (part.shape[0] * 9)
            assert part.var() == pytest.approx(variance, rel=0.2)
        elif not name.startswith("14."):  # a norm: scale 1, shift 0
            assert set(part.tolist()) == {float(name.endswith("weight"))}


@pytest.mark.parametrize(
    ("model", "shape"),
    [(LeNet(), (3, 16, 16)), (ResNet20(), (3, 16, 16)), (ResNet18(), (3, 8, 8))],
    ids=repr,
)
def test_engines_train_two_tasks_as_a_loop_of_torch_does(
    model: Model, shape: tuple[int, ...]
) -> None:
    flat = FlatModel(model, shape, 4)
    plain = model.build(shape, 4)
    rng = torch.Generator().manual_seed(0)
    w_TP = torch.stack([flat.init(Key(t)) for t in range(2)])
    x_TB = torch.randn(2, 4, *shape, generator=rng)
    y_TB = torch.randint(4, (2, 4), generator=rng)
    expected_TP = gradients_by_torch(plain, w_TP, x_TB, y_TB)
    batch = Batch(w_TP, x_TB, y_TB, torch.full((2, 4), 1 / 4), torch.arange(2))
    for name in ("loop", "vmap"):
        found = make_engine(name, flat).gradients(batch).g_TP
        # In float32 a ReLU may be on the other side of 0, so that a few entries differ.
        error_T = (found - expected_TP).norm(dim=1) / found.norm(dim=1)
        assert error_T.max() < 0.02


def test_what_does_not_fit_is_refused() -> None:
    for model, least in ((LeNet(), 16), (LeNet(padding=2), 12), (ResNet20(), 8)):
        text = f"{type(model).__name__} needs images of at least {least} pixels"
        for shape in ((80,), (1, least, least - 1)):
            with pytest.raises(ValueError, match=text):
                model.build(shape, 10)
        x = torch.zeros(1, 1, least, least)
        assert model.build((1, least, least), 10)(x).shape == (1, 10)
    with pytest.raises(ValueError, match="groups"):
        ResNet20.from_json('{"groups":3,"kind":"ResNet20"}')
    with pytest.raises(ValueError, match="divisible"):
        ResNet20(groups=32).build((3, 8, 8), 10)


@pytest.mark.parametrize("model", [LeNet(padding=4), ResNet20()], ids=repr)
def test_a_replicate_has_the_same_bits_alone_and_in_a_pack(model: Model) -> None:
    data = fl.Federation(
        dataset=fl.data.Subset(dataset=fl.Digits(), train=60, test=20), clients=4
    )
    run = fl.Run(
        data=data,
        model=model,
        algorithm=fl.FedAvg(),
        participation=fl.Uniform(m=2),
        local=fl.LocalTraining(lr=0.1, batch_size=8, steps=2),
        rounds=2,
    )
    columns = ["seed", "round", "test_loss", "test_accuracy"]
    pack = fl.simulate(run.replace(replicates=3))[columns]
    assert pack.test_loss.nunique() == len(pack) == 6
    for seed, rows in pack.groupby("seed"):
        alone = fl.simulate(run.replace(seed=seed))[columns]
        assert alone.to_dict("list") == rows.to_dict("list")


def text(period: int, length: int, n: int) -> Dataset:
    """Next-character prediction on a text that repeats: 0 1 2 ... period-1 0 1 ..."""
    x = (np.arange(n)[:, None] + np.arange(length)) % period
    part = Samples(x, (x[:, -1] + 1) % period)
    return Dataset("period", part, part, period)


def test_the_char_lstm_has_leafs_sizes_and_takes_tokens() -> None:
    flat = FlatModel(CharLSTM(), (80,), 90)
    lstm = 4 * 256 * (8 + 256 + 2) + 4 * 256 * (256 + 256 + 2)
    assert flat.num_parameters == 90 * 8 + lstm + (256 + 1) * 90
    assert FlatModel(CharLSTM(), (80,), 65).num_parameters == 819_920
    assert flat.has_dropout and flat.is_recurrent
    tokens = torch.randint(90, (3, 80), generator=torch.Generator().manual_seed(0))
    w_P = flat.init(Key(0))
    net = CharLSTM().build((80,), 90).eval()
    nn.utils.vector_to_parameters(w_P, net.parameters())
    torch.testing.assert_close(flat.logits(w_P, tokens), net(tokens).detach())


def test_the_char_lstm_learns_a_text_that_repeats() -> None:
    flat = FlatModel(CharLSTM(hidden=24, dropout=0.2, vocabulary=6), (10,), 6)
    sgd = LocalTraining(lr=0.02, batch_size=16, steps=80, optimizer="adam")
    everything = np.arange(48)
    local = Trainer(flat, text(6, 10, 48), lambda r, client: everything)
    task = Task(0, 0, flat.init(Key(0)), sgd, 0, 0, 1, None, 0.0)
    update = local.train([task])
    (measured,) = evaluated(local.evaluator, (task.w_P - update.delta_MP[0])[None])
    assert all(
        part.any() for part in flat.named_parameters(update.delta_MP[0]).values()
    )
    # chance: log 6, 1/6
    assert measured["loss"] < 0.2 * np.log(6) and measured["accuracy"] == 1
