"""Every algorithm on every kind of model by every engine, on the emulated device."""

import functools
from typing import Any

import pytest
import torch
from helpers.cuda_matrix import no_sync_in_training
from helpers.emulated_cuda import ForbiddenSync, emulated_cuda
from helpers.matrix import EVERY
from helpers.packs import PACKS, alone, assert_same, different, pack_on
from helpers.small_runs import (
    ENGINES,
    assert_equal_in_float32,
    gradient,
    play,
    small_run,
)
from torch import Tensor, nn
from torch.nn import functional as F

from raysafl import Algorithm, Model, Run
from raysafl.core.work import Tasks
from raysafl.data import Samples
from raysafl.training.engines import Batch, Gradients, Vmap
from raysafl.training.inputs import Inputs
from raysafl.training.linear import Linear
from raysafl.training.local_step import LocalStep
from raysafl.training.resident import Starts

# By default the algorithms have the models in turn: an engine sees tasks, and few kinds of
# them.
CASES = [
    pytest.param(
        *(algorithm, model),
        marks=[] if k == i % len(ENGINES) else [pytest.mark.acceptance],
        id=f"{type(algorithm).__name__}-{model}",
    )
    for i, algorithm in enumerate(EVERY)
    for k, model in enumerate(ENGINES)
]
# What is recorded is what is stacked.
OF_PACKS = [
    pytest.param(*one, marks=[pytest.mark.acceptance] if one[0] == "vmap" else [])
    for one in PACKS
]


@pytest.mark.parametrize(("algorithm", "model"), CASES)
def test_every_engine_on_the_device_equals_the_loop_on_the_cpu(
    algorithm: Algorithm, model: str
) -> None:
    run = small_run(model, algorithm)
    expected = play(run, "cpu", "loop")
    for engine in ENGINES[model]:
        with emulated_cuda() as device, no_sync_in_training(device):
            found = play(run, "cuda", engine)
        assert_equal_in_float32(found, expected)


@pytest.mark.parametrize("model", ENGINES)
def test_gradients_without_dropout_are_those_on_the_cpu(model: str) -> None:
    expected = gradient(small_run(model), "cpu", "loop")
    for engine in ENGINES[model]:
        with emulated_cuda():
            found = gradient(small_run(model), "cuda", engine)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("engine", "model"), OF_PACKS)
def test_a_pack_of_runs_that_differ_in_all_they_can_equals_each_alone_on_the_cpu(
    tiny: Run, engine: str, model: Model
) -> None:
    runs = different(tiny, model)
    with emulated_cuda() as device, no_sync_in_training(device):
        results = pack_on(runs, "cuda", engine)
    for name, run in runs.items():
        assert_same(results[name], alone(run, "loop"), exact=False)


@pytest.mark.parametrize("model", ["CNN", "dropout"])
def test_the_engine_that_is_chosen_is_right(model: str) -> None:
    run = small_run(model)
    with emulated_cuda():
        found = play(run, "cuda", "auto")
    assert_equal_in_float32(found, play(run, "cpu", "loop"))


class OfGlobalGenerator(Model):
    """One layer under torch's own dropout."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build the layer."""

        class Dropped(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return F.dropout(super().forward(x.flatten(1)), 0.5, self.training)

        return Dropped(36, num_classes)


def test_dropout_from_the_generator_of_the_device_is_noticed() -> None:
    run = small_run("logistic").replace(model=OfGlobalGenerator())
    with emulated_cuda(), pytest.raises(ValueError, match=r"use nn.Dropout layers"):
        play(run, "cuda", "loop")


# What the matrix is for: each of these mistakes must be found.


def test_targets_that_were_left_on_the_cpu_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    init = Inputs.__init__

    def forgetful(self: Inputs, samples: Samples, device: torch.device) -> None:
        init(self, samples, device)
        self.y = self.y.cpu()

    monkeypatch.setattr(Inputs, "__init__", forgetful)
    with emulated_cuda(), pytest.raises(RuntimeError, match="same device"):
        play(small_run("logistic"), "cuda", "linear")


@pytest.mark.parametrize("engine", ["linear", "vmap", "graph"])
def test_a_local_step_that_waits_for_the_device_is_found(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waiting(self: Any, batch: Batch, original: Any) -> Gradients:
        assert float(batch.w_TP.sum()) < 1e9
        return original(self, batch)

    for kind in (Linear, Vmap):
        one = functools.partialmethod(waiting, original=kind.gradients)
        monkeypatch.setattr(kind, "gradients", one)
    with (
        emulated_cuda() as device,
        no_sync_in_training(device),
        pytest.raises(ForbiddenSync, match="_local_scalar_dense"),
    ):
        play(small_run("logistic"), "cuda", engine)


def test_a_number_of_python_that_changes_from_step_to_step_is_found_in_a_recorded_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Vmap.gradients
    calls = 0

    def fading(*args: Any) -> Gradients:
        nonlocal calls
        calls += 1
        found = original(*args)
        return found._replace(g_TP=found.g_TP / calls)

    monkeypatch.setattr(Vmap, "gradients", fading)
    run = small_run("logistic")
    with emulated_cuda():
        one_by_one = play(run, "cuda", "vmap")
    calls = 0
    with emulated_cuda():
        recorded = play(run, "cuda", "graph")
    with pytest.raises(AssertionError):
        assert_equal_in_float32(recorded, one_by_one)


def test_parameters_that_moved_after_a_step_was_recorded_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = LocalStep.begin

    def moving(self: LocalStep, tasks: Tasks, starts: Starts) -> None:
        begin(self, tasks, starts)
        self.w_TP = self.w_TP.clone()

    monkeypatch.setattr(LocalStep, "begin", moving)
    with emulated_cuda(), pytest.raises(RuntimeError, match="memory that was freed"):
        play(small_run("logistic"), "cuda", "graph")
