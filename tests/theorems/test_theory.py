"""SAFARI's theorem 1: the claim on frequencies, its closed form, and the way out of it."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from experiments.safari import theorem1
from experiments.safari.induced_distributions import (
    CONSISTENT,
    LEARNERS,
    TheoremOutcome,
    World,
    errors,
    experiment,
    lower,
)
from raysafl.algorithms import Key

TRIALS = 1000


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("omega", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("samples", [1, 50])
def test_every_learner_errs_as_the_theorem_says(
    learner: str, omega: float, samples: int
) -> None:
    # (1 - omega) M n >= 1 is what the proof's Chernoff bound needs
    world = World(clients=10, come=round(10 * omega), samples=samples)
    (found,) = experiment([world], TRIALS, learners=[learner])
    assert world.eps == pytest.approx((1 - omega) / 8)
    assert lower(found) > 1 / 20


@pytest.mark.parametrize("learner", CONSISTENT)
def test_server_data_helps_at_the_rate_of_the_closed_form(learner: str) -> None:
    sizes = (0, 1, 3, 6, 12, 40)
    found = experiment([World(server=n) for n in sizes], TRIALS, learners=[learner])
    at_none = 1 / 2 if learner == "memorise" else 1
    for n, f in zip(sizes, found, strict=True):
        # x_2, of mass 4 eps = 1/4, is in none of n_T samples
        expected = at_none * 0.75**n
        assert abs(f.frequency - expected) < 4 * math.sqrt(0.25 / TRIALS) + 1e-9
    means = [f.errors_T.mean() for f in found]
    assert all(a > b for a, b in itertools.pairwise(means))
    assert means[-1] < 0.001


def test_the_errors_of_the_two_targets_add_up_to_the_hidden_mass() -> None:
    # eqs. 2 to 4 of the proof, for a learner without coins of its own
    world = World(rare=5)
    both = errors("ERM", world, 50, Key(3))
    np.testing.assert_allclose(both.sum(0), 4 * world.eps)
    nobody_hidden = errors("ERM", World(server=2000, rare=5), 50, Key(3))
    assert not nobody_hidden.any()


def test_the_lower_limit_by_hand() -> None:
    found = TheoremOutcome("ERM", World(), np.array([0.25] * 80 + [0.0] * 20))
    assert lower(found, 0.95) == pytest.approx(0.8 - math.sqrt(math.log(40) / 200))
    assert lower(TheoremOutcome("ERM", World(), np.zeros(10))) == 0


def test_the_script_prints_its_table_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theorem1.main(["--out", str(tmp_path), "--trials", "20"])
    said = capsys.readouterr().out
    assert all(learner in said for learner in LEARNERS)
    assert (tmp_path / "safari_theorem1.png").read_bytes().startswith(b"\x89PNG")
