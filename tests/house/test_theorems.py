"""The scripts of experiments/theorems run, and their parts are what their docstrings say."""

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.theorems.gradients import client_gradients, server_gradient
from experiments.theorems.learnability import learnt
from experiments.theorems.output import slope
from experiments.theorems.problem import follow, logistic, quadratic
from experiments.theorems.speed_up import exact, rate
from raysafl.sweep.simulate import worker_of

# A row that each script prints, by its name.
SCRIPTS = {
    "limits": "| logistic | FSL | 4 |",
    "rates": "| FSL over rho_s/S |",
    "speed_up": "| clients that differ | K = 1, 2, 4, 8 |",
    "learnability": "| D misses 1/2, n_T = 20 |",
}
MINIMA = np.arange(12.0).reshape(3, 4) - np.array([1.0, 2, 0, 5])


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_script_prints_its_tables_and_draws(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = importlib.import_module(f"experiments.theorems.{name}")
    script.main(["--quick", "--out", str(tmp_path)])
    tables, last = capsys.readouterr().out.split("\nWritten: ")
    assert SCRIPTS[name] in tables and tables == (tmp_path / "table.md").read_text()
    assert last == f"{tmp_path / name}.png and table.md\n"
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "problem",
    [quadratic(MINIMA, MINIMA[0] + 1, noise=1.0, samples=5), logistic(3, 6)],
    ids=["quadratic", "logistic"],
)
def test_the_gradients_of_a_problem_are_those_of_the_platform(problem) -> None:
    run = problem.run(local=problem.local(0.1), rounds=1)
    work = worker_of([run], run.data.load())
    w_P = torch.tensor([0.3, -1.0, 2.0, 0.5])
    expected = problem.gradients(w_P.double().numpy()) - problem.decay * w_P.numpy()
    server_P = server_gradient(work, w_P)
    assert server_P is not None
    found = torch.vstack([client_gradients(work, w_P.expand(3, -1)), server_P])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert np.allclose(problem.gradients(problem.optimum)[:-1].mean(0), 0, atol=1e-9)


def test_runs_that_advance_together_start_at_zero_and_take_their_steps() -> None:
    problem = quadratic(MINIMA)
    paths = follow({R: problem.run(local=problem.local(0.5), rounds=R) for R in (1, 3)})
    assert [path.shape for path in paths.values()] == [(2, 1, 4), (4, 1, 4)]
    # one step of gradient descent on F, whose curvatures are 1/4 to 1
    first = 0.5 * np.array([0.25, 0.5, 0.75, 1.0]) * MINIMA.mean(0)
    for path in paths.values():
        np.testing.assert_allclose(path[:2, 0], [np.zeros(4), first], rtol=1e-6)


def test_the_learnt_threshold_has_the_least_empirical_risk() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        x, y = rng.random(9), rng.choice([-1, 1], 9)
        edges = np.concatenate([[0], np.sort(x), [1]])
        risks = [
            np.mean(np.where(x > t, 1, -1) != y) for t in (edges[:-1] + edges[1:]) / 2
        ]
        assert np.mean(np.where(x > learnt(x, y), 1, -1) != y) == min(risks)


def test_the_slope_of_a_power_law_is_its_exponent() -> None:
    x = np.array([1.0, 2, 4])
    found, half = slope(x, x[:, None] ** -0.5 * np.array([1.0, 2, 5]))
    assert found == pytest.approx(-0.5) and half == pytest.approx(0, abs=1e-9)


def test_the_exact_error_without_noise_is_that_of_gradient_descent() -> None:
    m, K, R = 2, 3, 2
    d = np.array([0.25, 0.5, 0.75, 1.0])
    kept = (1 - rate(m, K, R) * d) ** K
    by_hand = (d**2 * 0.25 * (1 + kept**2)).sum() / 2
    assert exact(0, 0, m, K, R) == pytest.approx(by_hand)
    # the clients' minima add their variance, over m and without replacement
    more = (d**2 * (1 - kept) ** 2 * 9 * (64 - m) / 63 / m).sum() / 2
    assert exact(3, 0, m, K, R) == pytest.approx(by_hand + more)
