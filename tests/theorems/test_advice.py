"""The advice on a run: estimates against their definitions, and what the user is told."""

import io
from pathlib import Path

import pytest
import torch
from helpers.commands import EXPERIMENT
from rich.console import Console

from experiments.theorems.advise import DRAWS, advice_table, advise, main, paths
from experiments.theorems.gradients import (
    batch_gradients,
    client_gradients,
    dissimilarity,
    gradient_noise,
    server_gradient,
    square,
)
from experiments.theorems.premises import least_g4, most_client_prob_convex
from raysafl import LocalTraining, Run
from raysafl.algorithms import Key
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Simulation


def text(advice_of: Run, rounds: int = 2) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(advice_table(advise(advice_of, rounds), "a run"))
    return console.export_text()


def test_the_estimates_at_the_start_are_their_definitions(tiny: Run) -> None:
    advice = advise(tiny, 4)
    assert [p.round for p in advice.probes] == [0, 1, 2, 3, 4]
    work = Worker(tiny.cells[:1], tiny.data.load(), tiny.model)
    w_P = work.init(0)
    clients_NP = client_gradients(work, w_P.expand(10, -1))
    first = advice.probes[0]
    assert first.grad2 == pytest.approx(square(clients_NP.mean(0)))
    assert first.sigma_g2 == pytest.approx(float(dissimilarity(clients_NP).max()))
    assert first.mean_dissimilarity == pytest.approx(
        float(dissimilarity(clients_NP).mean())
    )
    assert first.sigma_g2 >= first.mean_dissimilarity
    server_P = server_gradient(work, w_P)
    assert server_P is not None
    assert first.xi2 == pytest.approx(square(server_P - clients_NP.mean(0)))
    assert 0 < first.L < 20 and first.sigma2 > 0


def test_one_full_batch_step_makes_the_path_the_gradient(tiny: Run) -> None:
    run = tiny.replace(local=LocalTraining(lr=0.05, batch_size=500, steps=1))
    work = Worker(run.cells[:1], run.data.load(), run.model)
    w_P = work.init(0)
    rows_NP, noise_N = paths(run, work, w_P, 0, torch.ones(10))
    expected = client_gradients(work, w_P.expand(10, -1))
    torch.testing.assert_close(rows_NP, expected, rtol=1e-3, atol=1e-5)
    assert noise_N.tolist() == [0] * 10  # the batch is all there is
    start = advise(run, 1).probes[0]
    assert start.sigma2 == pytest.approx(0, abs=1e-8)  # the batch is all there is
    assert start.path_all == pytest.approx(start.grad2, rel=1e-3)


def test_the_paths_of_a_cohort_are_summed_and_freed_of_their_noise(tiny: Run) -> None:
    run = tiny.replace(local=LocalTraining(lr=0.1, batch_size=32, steps=2))
    start = advise(run, 1).probes[0]
    work = Worker(run.cells[:1], run.data.load(), run.model)
    w_P, key = work.init(0), Key(run.seed)
    sigma2_N = torch.tensor(
        [
            gradient_noise(batch_gradients(work, i, w_P, 32, DRAWS, key), full_P)
            for i, full_P in enumerate(client_gradients(work, w_P.expand(10, -1)))
        ]
    )
    rows_NP, noise_N = paths(run, work, w_P, 0, sigma2_N)
    # Absent(s=4, m=3): clients 6 to 9 never participate.
    cohort = key("cohort").choice(6, 3, replace=False)
    uniform = key("advice uniform").choice(10, 3, replace=False)
    assert {*cohort} != {*uniform}
    for found, ids in ((start.path_cohort, cohort), (start.path_uniform, uniform)):
        # The mean of three independent paths has a ninth of the sum of their noise.
        noise = float(noise_N[ids].sum()) / 9
        assert found == pytest.approx(square(rows_NP[ids].mean(0)) - noise, rel=1e-4)
        assert found > 0 < noise


def test_the_probed_rounds_are_those_of_the_run_itself(tiny: Run) -> None:
    work = Worker(tiny.cells[:1], tiny.data.load(), tiny.model)
    sim = Simulation(tiny.replace(replicates=1), work)
    for _ in range(4):
        sim.step()
    end_P = sim.replicates[0].state.w_P
    expected = square(client_gradients(work, end_P.expand(10, -1)).mean(0))
    # 100: at most the run's
    assert advise(tiny, 100).probes[-1].grad2 == pytest.approx(expected)


def test_weight_decay_belongs_to_the_objectives_and_brings_the_convex_theorems(
    tiny: Run,
) -> None:
    run = tiny.replace({"local.weight_decay": 0.2})
    advice, plain = advise(run, 1), advise(tiny, 1)
    assert advice.mu == 0.2 and plain.mu == 0 and not plain.safari_convex
    assert advice.probes[0].L == pytest.approx(plain.probes[0].L + 0.2)
    work = Worker(run.cells[:1], run.data.load(), run.model)
    sim = Simulation(run.replace(replicates=1), work)
    sim.step()
    w_P = sim.replicates[0].state.w_P
    descent_P = client_gradients(work, w_P.expand(10, -1)).mean(0) + 0.2 * w_P
    last = advice.probes[-1]
    assert last.grad2 == pytest.approx(square(descent_P))
    L, s2 = (max(getattr(p, n) for p in advice.probes) for n in ("L", "sigma_g2"))
    g3 = min(p.grad2 for p in advice.probes)
    bound = most_client_prob_convex(g3, least_g4(g3, s2, L, 0.2), L, 0.2, 0, advice.K)
    assert advice.safari_convex["most favourable"] == bound
    least = [b.value for b in advice.fast_convex.values()]
    assert least[0] is None and least[1] is not None and 0.9 < least[1] < 1
    assert [p.holds for p in advice.convex_rates][-1] is False
    said = text(run)
    assert "SAFARI 5" in said and "FAST 2" in said and "SAFARI 5  " not in text(tiny)


def test_the_script_advises_on_the_run_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(EXPERIMENT)
    main([str(tmp_path / "mine.py"), "--rounds", "1", "--only", "method=SAFARI"])
    said = capsys.readouterr().out
    assert "method=SAFARI" in said and "client_prob = 0.5" in said
