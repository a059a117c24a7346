"""ReLU and pooling in one pass: bitwise what torch does in two."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from raysafl import CNN, Model
from raysafl.algorithms import Key
from raysafl.models import FlatModel
from raysafl.models.layers import PooledSequential, fuse_pooling


def both(
    x: Tensor, g: Tensor | None, channels_last: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Values and gradients of our one pass and of torch's two."""
    net = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    (pooled,) = fuse_pooling(net)
    found = []
    for pooled.fused in (True, False):
        leaf = x.clone()
        if channels_last:
            leaf = leaf.contiguous(memory_format=torch.channels_last)
        leaf.requires_grad_()
        out = net(leaf)
        assert (type(out.grad_fn).__name__ == "_FusedReluPoolBackward") == pooled.fused
        out.backward(torch.ones_like(out) if g is None else g)
        found.append([out.detach(), leaf.grad])
    return found[0], found[1]


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(
        st.integers(1, 3), st.integers(1, 37), st.integers(2, 9), st.integers(2, 9)
    ),
    coarse=st.booleans(),
    half=st.booleans(),
    channels_last=st.booleans(),
    seed=st.integers(0, 99),
)
def test_values_and_gradients_equal_those_of_torch_bitwise(
    shape: tuple[int, ...], coarse: bool, half: bool, channels_last: bool, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=rng)
    x = x.round() if coarse else x  # many equal maxima
    g = torch.randn(*shape[:2], shape[2] // 2, shape[3] // 2, generator=rng)
    dtype = torch.bfloat16 if half else torch.float32
    ours, torchs = both(x.to(dtype), g.to(dtype), channels_last)
    assert all(torch.equal(a, b) for a, b in zip(ours, torchs, strict=True))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_a_number_comes_through(dtype: torch.dtype, sign: int) -> None:
    x = torch.randn(2, 5, 6, 6, generator=torch.Generator().manual_seed(0))
    x[0, :, 1, 2], x[1, 2], x[1, 3, 0, 0] = torch.nan, torch.nan, torch.inf
    x[0, :, 1, 2] = torch.copysign(x[0, :, 1, 2], torch.tensor(float(sign)))
    ours, torchs = both(x.to(dtype), None, channels_last=True)
    assert ours[0].isnan().any()
    for a, b in zip(ours, torchs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_the_modules_of_a_sequence_stay_what_they_were_when_used_directly() -> None:
    layers = [nn.Conv2d(3, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.ReLU()]
    layers += [nn.Conv2d(2, 2, 3)]
    net, plain = nn.Sequential(*layers), nn.Sequential(*layers)
    names = list(dict(net.named_parameters()))
    (pooled,) = fuse_pooling(net)
    assert type(net) is PooledSequential and pooled is net and net.pairs == {1}
    assert list(dict(net.named_parameters())) == names and list(net) == layers
    x = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    x = x.contiguous(memory_format=torch.channels_last)
    net.fused = True
    expected = plain(x)
    assert torch.equal(net(x), expected)
    assert torch.equal(net[2:](net[:2](x)), expected)
    for layer in net:
        x = layer(x)
    assert torch.equal(x, expected)


def test_images_too_small_to_be_pooled_are_left_to_torch() -> None:
    net = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    (pooled,) = fuse_pooling(net)
    pooled.fused = True
    with pytest.raises(RuntimeError, match="too small"):
        net(torch.randn(2, 3, 1, 4))


@pytest.mark.parametrize(
    "pool",
    [
        *(nn.MaxPool2d(3), nn.MaxPool2d(2, padding=1), nn.MaxPool2d(2, stride=1)),
        *(nn.MaxPool2d(2, ceil_mode=True), nn.MaxPool2d((2, 4)), nn.AvgPool2d(2)),
    ],
    ids=repr,
)
def test_other_poolings_are_left_alone(pool: nn.Module) -> None:
    assert fuse_pooling(nn.Sequential(nn.ReLU(), pool)) == []


def test_a_network_computes_the_same_with_and_without_it() -> None:
    flat = FlatModel(CNN(channels=[4, 6], hidden=10), (3, 8, 8), 4)
    w_P = flat.init(Key(0))
    x_B = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    x_B = x_B.contiguous(memory_format=torch.channels_last)
    assert [len(pool.pairs) for pool in flat.pools] == [2]
    assert torch.equal(flat.logits(w_P, x_B), flat.logits(w_P, x_B, stacked=True))


class Same(Model):
    """Returns the module that it has built before."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        return ONCE


ONCE = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 4))


def test_a_module_that_is_fused_already_is_found_again() -> None:
    first, second = (FlatModel(Same(), (1, 8, 8), 4) for _ in range(2))
    assert first.pools == second.pools == [ONCE]
