"""The choice of an engine: a rule, and never a wrong one."""

import threading
import time
from collections.abc import Callable

import pytest
import torch
from test_trainer_dropout import Branching

from raysafl import CNN, MLP, Logistic, Model
from raysafl.models import CharLSTM, FlatModel
from raysafl.training.engines import ENGINES, Loop, choose_engine, make_engine
from raysafl.training.inputs import Batch, Gradients
from raysafl.training.linear import Fused

X_NB = torch.rand(3, 5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y_NB = torch.arange(15).view(3, 5) % 4


def flat(model: Model) -> FlatModel:
    return FlatModel(model, (1, 8, 8), 4)


IMAGES = torch.rand(2, 2, 1, 12, 12, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([[0, 1], [2, 3]])


@pytest.mark.parametrize(
    ("model", "on_small", "on_large"),
    [
        (Logistic(), "fused", "fused"),
        (MLP(hidden=[4]), "vmap", "vmap"),
        (CNN(channels=[2], hidden=4), "vmap", "loop"),
        (CNN(channels=[2], hidden=4, precision="bfloat16"), "vmap", "loop"),
    ],
)
def test_the_engine_follows_from_the_model_and_the_size_of_images(
    model: Model, on_small: str, on_large: str
) -> None:
    assert choose_engine(flat(model), X_NB, Y_NB) == on_small
    larger = FlatModel(model, (1, 12, 12), 4)
    assert choose_engine(larger, IMAGES, LABELS) == on_large


def refuse_in_this_thread(patch: pytest.MonkeyPatch, owner: object, clock: str) -> None:
    """Refuse the clock to this thread; those that Ray left running may read it."""
    own_thread = threading.get_ident()
    read: Callable[..., float] = getattr(owner, clock)

    def refuse(*args: object) -> float:
        if threading.get_ident() == own_thread:
            raise AssertionError("the choice of an engine reads a clock")
        return read(*args)

    patch.setattr(owner, clock, refuse)


def test_the_choice_reads_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        for clock in ("time", "perf_counter", "monotonic", "process_time"):
            refuse_in_this_thread(patch, time, clock)
            refuse_in_this_thread(patch, time, f"{clock}_ns")
        assert choose_engine(flat(CNN(channels=[2], hidden=4)), X_NB, Y_NB) == "vmap"


@pytest.mark.parametrize(
    ("model", "width", "tasks"),
    [
        (MLP(hidden=[8]), 128, 32),
        (MLP(hidden=[8]), 1000, 4),  # 4096 samples in a step
        (MLP(hidden=[100]), 32, 13),  # 2^20 parameters, of 79,510 each
        (MLP(hidden=[2000]), 32, 1),
        (CNN(hidden=1000), 32, 4),  # fewer convolutions at once have other bits
        (CNN(hidden=1000), 5000, 1),
    ],
    ids=repr,
)
def test_a_stack_has_a_million_parameters_and_as_many_samples_as_memory_allows(
    model: Model, width: int, tasks: int
) -> None:
    large = FlatModel(model, (1, 28, 28), 10)
    assert make_engine("vmap", large).max_stack(width) == tasks


def test_recurrent_layers_are_trained_in_a_loop() -> None:
    tokens = torch.zeros(1, 2, 80, dtype=torch.int64)
    model = FlatModel(CharLSTM(), (80,), 90)
    assert choose_engine(model, tokens, Y_NB[:1, :2]) == "loop"


def test_an_engine_with_wrong_gradients_is_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(Loop):
        def gradients(self, batch: Batch) -> Gradients:
            y_TB = batch.y_TB
            zero_TP = torch.zeros_like(batch.w_TP)
            return Gradients(zero_TP, torch.zeros(y_TB.shape), y_TB == 0)

    monkeypatch.setitem(ENGINES, "vmap", Wrong)
    assert choose_engine(flat(CNN()), X_NB, Y_NB) == "loop"


def test_gradients_that_are_no_numbers_leave_the_loop() -> None:
    assert choose_engine(flat(MLP()), X_NB * float("nan"), Y_NB) == "loop"


def test_a_model_that_vmap_cannot_run_is_trained_in_a_loop() -> None:
    assert choose_engine(flat(Branching()), X_NB, Y_NB) == "loop"


def test_an_engine_that_is_unknown_or_not_for_the_model_is_refused() -> None:
    with pytest.raises(ValueError, match="'fusd'; did you mean 'fused'"):
        make_engine("fusd", flat(Logistic()))
    with pytest.raises(ValueError, match="is for float32 models of one linear layer"):
        make_engine("fused", flat(MLP(hidden=[4])))
    assert isinstance(make_engine("fused", flat(Logistic())), Fused)
