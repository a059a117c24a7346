"""The settings of papers in experiments/authors.py: their constants, and a round of each."""

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.experiments import forget_experiments

import raysafl as fl


@pytest.fixture(scope="module")
def authors() -> Iterator[Any]:
    """The module of the settings."""
    forget_experiments()
    yield importlib.import_module("experiments.authors")
    forget_experiments()


# What each paper or program has: N, batch, steps a round, rounds, local rate.
CONSTANTS = {
    "fedawe": (100, 128, 10, 2000, 0.1),
    "focus": (32, 128, 2, 10_000, 0.002),
    "amplified_scaffold": (250, 32, 5, 12_000, 6.67e-4),
    "cafed": (24, 64, 2, 150, 0.001),
    # It has no number of steps, but one epoch.
    "f3ast": (500, 20, None, 1000, 0.1),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_setting_has_the_constants_of_its_paper(name: str, authors: Any) -> None:
    run = getattr(authors, name)()
    local = run.local
    found = (run.data.clients, local.batch_size, local.steps, run.rounds, local.lr)
    assert found == CONSTANTS[name]
    assert fl.Run.from_json(run.to_json()) == run


def test_algorithms_have_the_constants_of_their_papers(authors: Any) -> None:
    assert authors.fedawe("sine").algorithm == fl.algorithms.FedAWE(clip_norm=0.5)
    rates = {}
    for method in authors.AMPLIFIED:
        run = authors.amplified_scaffold(method)
        assert run.rounds * run.local.steps == 60_000
        rates[method] = run.local.lr
    # From the lowest to the highest, the authors' rates differ 67-fold.
    assert max(rates.values()) / min(rates.values()) == pytest.approx(66.7)
    assert authors.cafed().algorithm == fl.algorithms.CAFed(lr=0.1)
    f3ast = authors.f3ast().algorithm
    assert (f3ast.m, f3ast.beta, f3ast.lr) == (10, 0.001, 3.162)


def test_clients_are_available_as_the_papers_say(authors: Any) -> None:
    cyclic = authors.amplified_scaffold().participation
    state, seen = None, []
    for t in range(50):
        state, cohort = cyclic.pick(state, 250, fl.algorithms.Key(1, t), None)
        assert len(cohort.ids) == 10
        seen.append({i // 50 for i in cohort.ids})
    # Each fifth is available for ten rounds of a period of fifty.
    assert [seen.count({group}) for group in range(5)] == [10] * 5
    varying = authors.f3ast().participation
    day = np.array([varying.probs(500, t) for t in range(24)])
    x = 2 * np.pi * np.arange(24) / 23
    np.testing.assert_allclose(day.max(1), 0.4 * np.sin(x) + 0.5)
    rate_N = np.array(authors.focus().participation.rate)
    assert rate_N.min() >= 0.1 and rate_N.max() <= 0.9
    assert 2 <= (rate_N > 0.3).sum() <= 4


@pytest.mark.parametrize("name", [*CONSTANTS, "FedAvg", "FedProx", "SCAFFOLD"])
def test_a_round_of_a_setting_runs_on_digits(name: str, authors: Any) -> None:
    known: Callable[[], fl.Run] | None = getattr(authors, name, None)
    run = (known or partial(authors.amplified_scaffold, name))()
    small: dict[str, Any] = {
        **{"data.dataset": fl.Digits(), "rounds": 1, "replicates": 1},
        "local.batch_size": 4,
        # Of 1,437 images, some of 100 clients would hold none.
        **({"data.clients": 10} if name == "fedawe" else {}),
        # Images of 8x8 pixels are too small without, and ResNet-18 takes long.
        **({"model.padding": 4} if name == "focus" else {}),
        **({"model": fl.models.ResNet20()} if name == "f3ast" else {}),
    }
    frame = fl.simulate(run.replace(small))
    (row,) = frame.to_dict("records")
    assert row["kind"] == "client" and row["steps"] > 0
    assert np.isfinite(row["test_loss"])
