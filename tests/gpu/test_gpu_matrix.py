"""Every algorithm on every kind of model by every engine, on a real GPU."""

import functools

import pytest
import torch
from helpers.matrix import EVERY
from helpers.packs import PACKS, Played, alone, assert_same, different, pack_on
from helpers.small_runs import (
    ENGINES,
    assert_equal_in_float32,
    gradient,
    play,
    small_run,
)

from raysafl import Model, Run
from raysafl.cli.doctor import check_gpu

EACH = [(model, engine) for model, engines in ENGINES.items() for engine in engines]


@functools.cache
def on_cpu(number: int, model: str) -> Played:
    """What the loop computes on the CPU for the algorithm of this number."""
    return play(small_run(model, EVERY[number]), "cpu", "loop")


@pytest.mark.parametrize(("model", "engine"), EACH)
@pytest.mark.parametrize(
    "number", range(len(EVERY)), ids=[type(a).__name__ for a in EVERY]
)
def test_every_engine_on_a_gpu_equals_the_loop_on_the_cpu(
    number: int, model: str, engine: str
) -> None:
    found = play(small_run(model, EVERY[number]), "cuda", engine)
    assert_equal_in_float32(found, on_cpu(number, model))


@pytest.mark.parametrize(("model", "engine"), EACH)
def test_the_same_training_twice_gives_the_same_bits(model: str, engine: str) -> None:
    first, second = (play(small_run(model), "cuda", engine) for _ in range(2))
    assert_same(first, second)


@pytest.mark.parametrize(("model", "engine"), EACH)
def test_gradients_without_dropout_are_those_on_the_cpu(
    model: str, engine: str
) -> None:
    found, expected = (
        gradient(small_run(model), *where)
        for where in (("cuda", engine), ("cpu", "loop"))
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("engine", "model"), PACKS, ids=repr)
def test_a_pack_of_runs_that_differ_in_all_they_can_equals_each_alone_on_the_cpu(
    tiny: Run, engine: str, model: Model
) -> None:
    runs = different(tiny, model)
    results, again = (pack_on(runs, "cuda", engine) for _ in range(2))
    for name, run in runs.items():
        assert_same(results[name], again[name])
        assert_same(results[name], alone(run, "loop"), exact=False)


def test_the_doctor_finds_that_every_gpu_trains_as_the_cpu_does() -> None:
    for index in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_properties(index).name
        assert check_gpu(index).startswith(f"{name}, ")
