"""Dropout: the frequencies and independence of its masks, and what they depend on."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysafl import Model
from raysafl.models import Dropout, FlatModel
from raysafl.models.layers import RandomWords, drawing_from

SEEDS = torch.randint(2**62, (4,), generator=torch.Generator().manual_seed(0))


class Own(Model):
    """A user's model with random layers, by the name of a case below."""

    case: str = "plain"

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        same = nn.Dropout(0.5)
        cases: dict[str, Any] = {
            "plain": lambda: [nn.Dropout(0.5)],
            "inside": lambda: [nn.Sequential(nn.Sequential(nn.Dropout(0.5)))],
            "twice": lambda: [same, nn.Identity(), same],
            "two": lambda: [nn.Dropout(0.5), nn.Dropout(0.5)],
            "none": lambda: [nn.Dropout(0)],
            "all": lambda: [nn.Dropout(1)],
            "channels": lambda: [nn.Dropout2d(0.5)],
            "alpha": lambda: [nn.AlphaDropout(0.5)],
            "slope": lambda: [nn.RReLU()],
            "lstm": lambda: [nn.LSTM(2, 2, 2, dropout=0.3)],
            "attention": lambda: [nn.MultiheadAttention(4, 2, dropout=0.1)],
        }
        module = nn.Sequential(*cases[self.case]())
        # A model needs something to train; nothing here uses it.
        module.register_parameter("unused", nn.Parameter(torch.zeros(1)))
        return module


def mask(p: float, seed: Tensor, *shape: int) -> Tensor:
    with drawing_from(seed):
        return Dropout(p)(torch.ones(shape))


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_an_entry_is_dropped_with_probability_p_and_the_mean_is_kept(p: float) -> None:
    n = 1_000_000
    out = mask(p, SEEDS[0], 100, n // 100)
    assert out.unique().tolist() == pytest.approx([0, 1 / (1 - p)])
    assert (out == 0).float().mean() == pytest.approx(
        p, abs=5 * (p * (1 - p) / n) ** 0.5
    )


def signs(seed: Tensor, count: int, n: int = 400_000) -> Tensor:
    """+-1 rows of several dropouts of one forward pass."""
    with drawing_from(seed):
        return torch.stack([Dropout(0.5)(torch.ones(n)) - 1 for _ in range(count)])


def test_masks_of_seeds_layers_and_positions_are_uncorrelated() -> None:
    near = torch.tensor([0, 1, 2, 1 << 16, 1 << 31, 1 << 32, 1 << 33, 2**62 - 1])
    rows = torch.cat([signs(seed, 3) for seed in [*near, *SEEDS]])
    n = rows.shape[1]
    correlation = (rows @ rows.T / n).fill_diagonal_(0)
    assert correlation.abs().max() < 5.5 / n**0.5  # 36 rows, 630 pairs
    for lag in (1, 2, 3, 7, 8, 64, 128, 169, 1000, 65536):  # neighbours, channels, rows
        along = (rows[:, lag:] * rows[:, :-lag]).mean(1)
        assert along.abs().max() < 5.5 / (n - lag) ** 0.5


def word(seed: int, count: int, position: int) -> int:
    """The hash in Python's own integers."""

    def mix(x: int) -> int:
        x = (x ^ x >> 16) * 0x7FEB352D % 2**32
        x = (x ^ x >> 15) * 0x45D9F3B % 2**32
        return x ^ x >> 16

    first = mix((position * 0x9E3779B9 + seed % 2**31) % 2**32)
    return mix(first ^ seed >> 31 ^ count * 0x9E3779B9 % 2**31)


@pytest.mark.parametrize("n", [1, 7, 64, 1003])  # vector code and its remainders
def test_the_bits_are_the_hash_in_plain_integers(n: int) -> None:
    for seed in SEEDS:
        draws = RandomWords(seed)
        for count in (1, 2):
            ours = draws.words(torch.empty(n)).long() % 2**32
            assert ours.tolist() == [word(int(seed), count, i) for i in range(n)]


def test_a_mask_does_not_depend_on_the_batch_nor_on_what_ran_before() -> None:
    few, many = mask(0.5, SEEDS[0], 3, 20), mask(0.5, SEEDS[0], 8, 20)
    assert torch.equal(few, many[:3])
    before = torch.random.get_rng_state()
    mask(0.5, SEEDS[1], 5)
    assert torch.equal(mask(0.5, SEEDS[0], 3, 20), few)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_masks_under_vmap_are_those_of_a_loop() -> None:
    stacked = torch.func.vmap(lambda seed: mask(0.3, seed, 16, 30))(SEEDS)
    looped = [mask(0.3, seed, 16, 30) for seed in SEEDS]
    assert torch.equal(stacked, torch.stack(looped))


@pytest.mark.parametrize("case", ["plain", "inside"])
def test_torchs_dropout_in_a_users_module_becomes_ours(case: str) -> None:
    flat = FlatModel(Own(case=case), (32,), 32)
    x_B, w_P = torch.ones(5, 32), torch.zeros(1)
    assert flat.has_dropout
    assert torch.equal(flat.logits(w_P, x_B, SEEDS[0]), mask(0.5, SEEDS[0], 5, 32))
    assert torch.equal(flat.logits(w_P, x_B), x_B)  # evaluation
    assert torch.equal(flat.logits(w_P, x_B, SEEDS[0]), mask(0.5, SEEDS[0], 5, 32))


@pytest.mark.parametrize("case", ["twice", "two"])
def test_every_use_of_dropout_in_a_pass_draws_anew(case: str) -> None:
    flat = FlatModel(Own(case=case), (1000,), 1000)
    out = flat.logits(torch.zeros(1), torch.ones(100, 1000), SEEDS[0])
    assert (out > 0).float().mean() == pytest.approx(0.25, abs=0.01)


def test_limits_of_p() -> None:
    x_B, w_P = torch.ones(3, 4), torch.zeros(1)
    none, every = (FlatModel(Own(case=case), (4,), 4) for case in ("none", "all"))
    assert not none.has_dropout and every.has_dropout
    assert torch.equal(none.logits(w_P, x_B, SEEDS[0]), x_B)
    assert not every.logits(w_P, x_B, SEEDS[0]).any()


@pytest.mark.parametrize(
    ("case", "what"),
    [
        ("channels", "Dropout2d(p=0.5"),
        ("alpha", "AlphaDropout(p=0.5"),
        ("slope", "RReLU("),
        ("lstm", "LSTM(dropout=0.3)"),
        ("attention", "MultiheadAttention(dropout=0.1)"),
    ],
)
def test_other_random_layers_are_refused_with_the_way_out(case: str, what: str) -> None:
    with pytest.raises(ValueError) as caught:
        FlatModel(Own(case=case), (4,), 4)
    assert f"model Own draws random numbers in 0: {what}" in str(caught.value)
    assert "Use nn.Dropout layers" in str(caught.value)


class Recurrent(Model):
    """A recurrent layer with dropout after it."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Sequential(nn.LSTM(2, num_classes, batch_first=True))
                self.dropped = nn.Dropout(0.5)

            def forward(self, x: Tensor) -> Tensor:
                return self.dropped(self.inner(x)[0][:, -1])

        return Net()


def test_recurrent_layers_are_in_train_mode_while_gradients_are_recorded() -> None:
    """cuDNN computes their gradients in no other mode. Nothing is dropped in it."""
    model = FlatModel(Recurrent(), (3, 2), 4)
    layer = model.module.get_submodule("inner.0")
    w_P, x_B = torch.ones(model.num_parameters), torch.ones(5, 3, 2)
    with torch.no_grad():
        evaluated = model.logits(w_P, x_B)
    assert not layer.training
    assert torch.equal(model.logits(w_P, x_B), evaluated)
    assert layer.training and not model.module.training
    model.logits(w_P, x_B, torch.tensor(1))
    assert layer.training and model.module.training
    with torch.no_grad():
        assert torch.equal(model.logits(w_P, x_B), evaluated)
    assert not layer.training
