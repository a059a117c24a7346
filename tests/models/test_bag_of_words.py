"""`BagOfWords` is logistic regression on the dense bag of words, in float64 by numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

import raysafl as fl
from raysafl import Model
from raysafl.algorithms import Key
from raysafl.data import Samples
from raysafl.models import BagOfWords, FlatModel, Logistic
from raysafl.objectives import MultiLabel
from raysafl.training.engines import make_engine
from raysafl.training.inputs import Batch

WORDS = 7


def dense(x: NDArray[np.int64]) -> NDArray[np.float64]:
    """The share of each word among a text's words, counted word by word."""
    bags = np.zeros((len(x), WORDS))
    for bag, tokens in zip(bags, x.tolist(), strict=True):
        text = [token for token in tokens if token != 0]
        for token in text:
            if 1 <= token <= WORDS:
                bag[token - 1] += 1 / len(text)
    return bags


@given(st.integers(0, 10_000), st.integers(1, 12))
@settings(max_examples=25)
def test_the_outputs_are_those_of_the_dense_bag(seed: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    # padding, words, and words that are not known: -1, and above WORDS
    x = rng.integers(-1, WORDS + 3, (6, length))
    module = BagOfWords(words=WORDS).build((length,), 3)
    weight, bias = rng.normal(size=(3, WORDS)), rng.normal(size=3)
    w_P = torch.tensor(np.append(weight.T, bias), dtype=torch.float32)
    nn.utils.vector_to_parameters(w_P, module.parameters())
    expected = dense(x) @ weight.T + bias
    np.testing.assert_allclose(
        module(torch.tensor(x)).detach(), expected, rtol=1e-4, atol=1e-5
    )


def test_it_starts_at_zero() -> None:
    assert not FlatModel(BagOfWords(words=WORDS), (5,), 3).init(Key(0)).any()


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_its_gradients_are_those_of_logistic_regression_on_the_dense_bag(
    engine: str,
) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-1, WORDS + 3, (12, 9))
    y = (rng.random((12, 6)) < 0.4).astype(np.float32)
    weight, bias = rng.normal(size=(2, 6, WORDS)), rng.normal(size=(2, 6))
    parts: list[tuple[Model, Samples, NDArray[np.float64]]] = [
        (BagOfWords(words=WORDS), Samples(x, y), weight.transpose(0, 2, 1)),
        (Logistic(), Samples(dense(x).astype(np.float32), y), weight),
    ]
    found = []
    for model, samples, own in parts:
        w_TP = torch.tensor(np.hstack([own.reshape(2, -1), bias])).float()
        flat = FlatModel(model, samples.x.shape[1:], 6)
        x_TB = torch.tensor(samples.x).view(2, 6, -1)
        y_TB = torch.tensor(samples.y).view(2, 6, -1)
        batch = Batch(w_TP, x_TB, y_TB, torch.full((2, 6), 1 / 6), None)
        made = make_engine(engine, flat, MultiLabel())
        weight_TP, bias_TP = made.gradients(batch).g_TP.split([6 * WORDS, 6], 1)
        grid = weight_TP.view(own.shape)
        words_first = grid if isinstance(model, BagOfWords) else grid.mT
        found.append(torch.cat([words_first.flatten(1), bias_TP], 1))
    torch.testing.assert_close(found[0], found[1])
    assert found[0].abs().max() > 1e-3


def test_inputs_that_are_no_tokens_are_refused() -> None:
    digits = fl.Digits().load()
    flat = FlatModel.on(BagOfWords(), digits, fl.objectives.Classification())
    with pytest.raises(ValueError, match=r"BagOfWords.build .* tokens must be int64"):
        flat.try_on(torch.zeros(2, 1, 8, 8))
