"""bfloat16: close to float32, and nothing that is kept or sent becomes coarse."""

import pytest
import torch
from helpers.torch_loop import gradients_by_torch

from raysafl import CNN, Logistic
from raysafl.algorithms import Key
from raysafl.models import FlatModel
from raysafl.training.engines import ENGINES
from raysafl.training.inputs import Batch

SHAPE = (1, 8, 8)


X_TB = torch.rand(2, 16, *SHAPE, generator=torch.Generator().manual_seed(0))
Y_TB = torch.arange(32).view(2, 16) % 4


def ours(engine: str) -> torch.Tensor:
    flat = FlatModel(CNN(precision="bfloat16"), SHAPE, 4)
    w_TP = torch.stack([flat.init(Key(r)) for r in range(2)])
    weight_TB = torch.full((2, 16), 1 / 16)
    batch = Batch(w_TP, X_TB, Y_TB, weight_TB, torch.arange(2))
    return ENGINES[engine](flat).gradients(batch).g_TP


def as_a_user_would(half: bool) -> torch.Tensor:
    """The same gradients from a module under torch.autocast."""
    flat = FlatModel(CNN(), SHAPE, 4)
    w_TP = torch.stack([flat.init(Key(r)) for r in range(2)])
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        return gradients_by_torch(CNN().build(SHAPE, 4), w_TP, X_TB, Y_TB)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_bfloat16_gradients_are_float32_numbers_and_as_near_as_autocasts(
    engine: str,
) -> None:
    found = ours(engine)
    reference = as_a_user_would(half=True)
    fine = as_a_user_would(half=False)
    assert found.dtype == torch.float32
    # the reference is coarse indeed
    assert not torch.allclose(reference, fine, rtol=1e-4)
    assert 0 < (found - fine).norm() < 1.5 * (reference - fine).norm()


def test_bfloat16_is_part_of_the_run_and_float32_is_the_default() -> None:
    assert CNN().precision == "float32"
    assert CNN().digest() != CNN(precision="bfloat16").digest()
    with pytest.raises(ValueError, match="bfloat16"):
        CNN(precision="half")


def test_a_linear_model_in_bfloat16_is_not_done_by_hand() -> None:
    assert FlatModel(Logistic(precision="bfloat16"), SHAPE, 4).linear_shape is None
    assert FlatModel(Logistic(), SHAPE, 4).linear_shape == (4, 64)
