"""The compiled loop for linear models against batched products and against itself."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.commands import checked_output
from helpers.evaluation import evaluated
from helpers.tasks import Task, Trainer
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raysafl import LocalTraining, Logistic
from raysafl.algorithms import Key
from raysafl.data import Dataset, Samples
from raysafl.models import FlatModel
from raysafl.training.trainer import LocalTrainer

ROOT = Path(__file__).parents[2]


def trainer(
    engine: str, classes: int, inputs: int, stored: str, n: int = 90
) -> LocalTrainer:
    rng = np.random.default_rng(classes * inputs)
    x = rng.integers(0, 255, (n, 1, 1, inputs), dtype=np.uint8)
    y = rng.integers(0, classes, n)
    part = (
        Samples(x, y, 1 / 255, -0.5)
        if stored == "uint8"
        else Samples((x / 255 - 0.5).astype(np.float32), y)
    )
    flat = FlatModel(Logistic(zero_init=False), (1, 1, inputs), classes)
    held = [np.arange(40), np.arange(40, 47), np.arange(47, 90)]
    dataset = Dataset("noise", part, part, classes)
    return Trainer(flat, dataset, lambda _, client: held[client], engine=engine)


def tasks(local: LocalTrainer, sgd: LocalTraining, prox: float = 0.0) -> list[Task]:
    w_P = local.model.init(Key(1))
    offset_P = torch.linspace(-0.01, 0.01, len(w_P))
    return [
        Task(0, i, w_P, sgd, 0, 2, 1, offset_P if i == 1 else None, prox)
        for i in range(3)
    ]


@settings(max_examples=30, deadline=None)
@given(
    classes=st.integers(2, 23),
    inputs=st.integers(1, 40),
    batch=st.integers(1, 50),
    prox=st.sampled_from([0.0, 0.4]),
    decay=st.sampled_from([0.0, 0.1]),
    stored=st.sampled_from(["uint8", "float32"]),
)
def test_the_compiled_loop_equals_batched_products_whatever_the_shape(
    classes: int, inputs: int, batch: int, prox: float, decay: float, stored: str
) -> None:
    sgd = LocalTraining(lr=0.1, batch_size=batch, epochs=2, weight_decay=decay)
    found, expected = (
        local.train(tasks(local, sgd, prox))
        for local in (
            trainer(engine, classes, inputs, stored) for engine in ("fused", "linear")
        )
    )
    for name, a, b in zip(expected._fields, found, expected, strict=True):
        tight = (
            {"rtol": 1e-4, "atol": 1e-5}
            if a.is_floating_point()
            else {"rtol": 0, "atol": 0}
        )
        torch.testing.assert_close(
            a, b, msg=lambda text, name=name: f"{name}: {text}", **tight
        )


def test_momentum_and_adam_are_left_to_the_batched_products_bitwise() -> None:
    for sgd in (
        LocalTraining(lr=0.1, batch_size=8, epochs=1, momentum=0.9),
        LocalTraining(lr=0.1, batch_size=8, epochs=1, optimizer="adam"),
    ):
        found, expected = (
            local.train(tasks(local, sgd))
            for local in (
                trainer(engine, 10, 12, "uint8") for engine in ("fused", "linear")
            )
        )
        assert torch.equal(found.delta_MP, expected.delta_MP)


def test_a_task_is_the_same_alone_and_behind_one_that_diverges() -> None:
    sgd = LocalTraining(lr=0.1, batch_size=8, epochs=2)
    local = trainer("fused", 7, 12, "uint8")
    first, bad, last = tasks(local, sgd)
    bad = bad._replace(w_P=torch.full_like(bad.w_P, torch.inf), prox=0.3)
    together = local.train([first, bad, last._replace(prox=0.2)])
    assert not together.delta_MP[1].isfinite().any()
    for i, task in ((0, first), (2, last._replace(prox=0.2))):
        alone = local.train([task])
        assert all(
            torch.equal(a[0], b[i]) for a, b in zip(alone, together, strict=True)
        )


@settings(max_examples=40, deadline=None)
@given(
    classes=st.integers(2, 23),
    inputs=st.integers(1, 130),
    batch=st.integers(1, 40),
    engine=st.sampled_from(["fused", "linear"]),
)
@example(classes=10, inputs=64, batch=8, engine="linear")
@example(classes=10, inputs=64, batch=1, engine="linear")
@example(classes=16, inputs=1, batch=25, engine="linear")
def test_no_bit_of_a_task_or_of_a_score_depends_on_the_tasks_beside_it(
    classes: int, inputs: int, batch: int, engine: str
) -> None:
    sgd = LocalTraining(lr=0.1, batch_size=batch, epochs=2, momentum=0.9)
    # The last batch of samples that are evaluated has one sample.
    local = trainer(engine, classes, inputs, "float32", n=251)
    asked = tasks(local, sgd)
    together = local.train(asked)
    scores = evaluated(local.evaluator, together.delta_MP)
    for i, task in enumerate(asked):
        alone = local.train([task])
        for one, all_of_them in zip(alone, together, strict=True):
            assert torch.equal(one[0], all_of_them[i])
        assert evaluated(local.evaluator, alone.delta_MP) == [scores[i]]


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(threads: int) -> None:
    sgd, before = LocalTraining(lr=0.1, batch_size=8, epochs=2), torch.get_num_threads()
    local = trainer("fused", 10, 64, "uint8")
    one = local.train(tasks(local, sgd))
    try:
        torch.set_num_threads(threads)
        several = local.train(tasks(local, sgd))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(one, several, strict=True))


@pytest.mark.acceptance
def test_a_loop_from_the_disk_gives_the_bits_of_one_just_compiled(
    tmp_path: Path,
) -> None:
    code = """
import hashlib
from test_linear import LocalTraining, evaluated, tasks, trainer
from raysafl.kernels.linear import descend
local = trainer("fused", 10, 784, "uint8")
sgd = LocalTraining(lr=0.1, batch_size=8, epochs=3)
update = local.train(tasks(local, sgd, prox=0.1))
scores = [[*own.values()] for own in evaluated(local.evaluator, update.delta_MP)]
bits = b"".join(column.numpy().tobytes() for column in update) + repr(scores).encode()
print(sum(descend.stats.cache_hits.values()), hashlib.sha256(bits).hexdigest())
"""
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": paths}
    command = [sys.executable, "-c", code]
    fresh, kept = (checked_output(command, env=env).split() for _ in range(2))
    assert (fresh[0], kept[0]) == ("0", "1")
    assert fresh[1] == kept[1]
