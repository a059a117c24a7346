"""The recurrent network for text: LEAF's sizes, and a small task."""

import numpy as np
import torch
from helpers.evaluation import evaluated
from helpers.tasks import Task, Trainer
from torch import nn

from raysafl import LocalTraining
from raysafl.algorithms import Key
from raysafl.data import Dataset, Samples
from raysafl.models import CharLSTM, FlatModel


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
