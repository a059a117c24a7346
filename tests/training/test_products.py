"""Convolutions as products of matrices, against torch's own."""

from typing import Any

import pytest
import torch
from torch import nn

from raysafl.training import products
from raysafl.training.products import ConvolutionsAsProducts

IMAGES = torch.randn(3, 4, 9, 7, generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"padding": 1},
        {"padding": (2, 0), "stride": (2, 1)},
        {"padding": "same"},
        {"padding": "valid", "bias": False},
        {"padding": 1, "padding_mode": "circular"},
        {"groups": 2},
        {"dilation": 2},
        {"padding": "same", "dilation": 2},
    ],
)
@pytest.mark.parametrize("kernel", [3, (2, 4), 1])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_outputs_and_gradients_are_those_of_torch(kernel: Any, more: Any) -> None:
    layer = nn.Conv2d(4, 6, kernel, **more).double()
    found, expected = [], []
    for results, mode in ((expected, False), (found, True)):
        x = IMAGES.clone().requires_grad_()
        if mode:
            with ConvolutionsAsProducts():
                out = layer(x)
        else:
            out = layer(x)
        weights = torch.arange(out.numel()).view(out.shape).double().cos()
        grads = torch.autograd.grad((out * weights).sum(), [x, *layer.parameters()])
        results += [out, *grads]
    torch.testing.assert_close(found, expected)


def test_an_image_without_a_batch_is_left_to_torch() -> None:
    layer = nn.Conv2d(4, 6, 3).double()
    expected = layer(IMAGES[0])
    with ConvolutionsAsProducts():
        assert torch.equal(layer(IMAGES[0]), expected)


def test_what_is_computed_is_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_convolved", lambda *_: "a product")
    with ConvolutionsAsProducts():
        assert nn.Conv2d(4, 6, 3).double()(IMAGES) == "a product"
