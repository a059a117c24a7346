"""The advice on a run: estimates against their definitions, and what the user is told."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.commands import EXPERIMENT
from rich.console import Console

from experiments.theorems.advise import (
    DRAWS,
    Probe,
    advice_table,
    advise,
    conclude,
    main,
    paths,
)
from experiments.theorems.gradients import (
    batch_gradients,
    dissimilarity,
    gradient_noise,
    server_gradient,
    square,
)
from experiments.theorems.premises import (
    least_g4,
    most_client_prob,
    most_client_prob_convex,
)
from raysafl import (
    SAFARI,
    Cohort,
    FedAvg,
    Federation,
    Iid,
    LocalTraining,
    Logistic,
    Participation,
    Run,
    Uniform,
)
from raysafl.algorithms import Key
from raysafl.core.problem import SERVER
from raysafl.data import Dataset, Samples, Source
from raysafl.objectives import Regression
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Simulation


def text(advice_of: Run, rounds: int = 2) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(advice_table(advise(advice_of, rounds), "a run"))
    return console.export_text()


def made_up(**fields: float) -> Probe:
    values: dict[str, float] = dict.fromkeys(Probe.__dataclass_fields__, 0.0)
    return Probe(**{**values, "L": 1.0, **fields})  # type: ignore[arg-type]


def test_the_estimates_at_the_start_are_their_definitions(tiny: Run) -> None:
    advice = advise(tiny, 4)
    assert [p.round for p in advice.probes] == [0, 1, 2, 3, 4]
    work = Worker(tiny.cells[:1], tiny.data.load(), tiny.model)
    w_P = work.init(0)
    clients_NP = work.gradients(0, w_P.expand(10, -1))
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
    expected = work.gradients(0, w_P.expand(10, -1))
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
            for i, full_P in enumerate(work.gradients(0, w_P.expand(10, -1)))
        ]
    )
    rows_NP, noise_N = paths(run, work, w_P, 0, sigma2_N)
    # Absent(s=4, m=3): clients 6 to 9 never come.
    cohort = key("cohort").choice(6, 3, replace=False)
    uniform = key("advice uniform").choice(10, 3, replace=False)
    assert {*cohort} != {*uniform}
    for found, ids in ((start.path_cohort, cohort), (start.path_uniform, uniform)):
        # The mean of three independent paths has a ninth of the sum of their noise.
        noise = float(noise_N[ids].sum()) / 9
        assert found == pytest.approx(square(rows_NP[ids].mean(0)) - noise, rel=1e-4)
        assert found > 0 < noise


def test_a_whole_pass_has_no_noise_and_a_part_of_one_has(tiny: Run) -> None:
    for local, noisy in (
        (tiny.local, False),
        (LocalTraining(lr=0.1, batch_size=32, steps=2), True),
    ):
        run = tiny.replace(local=local)
        work = Worker(run.cells[:1], run.data.load(), run.model)
        assert min(work.sizes(0)[0]) > 64
        _, noise_N = paths(run, work, work.init(0), 0, torch.ones(10))
        assert bool((noise_N > 0).all()) is noisy and noise_N.any() == noisy


def test_the_probed_rounds_are_those_of_the_run_itself(tiny: Run) -> None:
    work = Worker(tiny.cells[:1], tiny.data.load(), tiny.model)
    sim = Simulation(tiny.replace(replicates=1), work)
    for _ in range(4):
        sim.step()
    end_P = sim.replicates[0].state.w_P
    expected = square(work.gradients(0, end_P.expand(10, -1)).mean(0))
    # 100: at most the run's
    assert advise(tiny, 100).probes[-1].grad2 == pytest.approx(expected)


def test_iid_clients_differ_less_than_clients_of_one_class(tiny: Run) -> None:
    one, iid = advise(tiny, 1), advise(tiny.replace({"data.partition": Iid()}), 1)
    assert iid.probes[0].sigma_g2 < one.probes[0].sigma_g2 / 10
    least, most = (a.safari["largest allowed, means"].value for a in (one, iid))
    assert least is not None and most is not None and least < most


def test_the_rates_and_q_are_those_of_the_run(tiny: Run) -> None:
    plain = advise(tiny, 1)
    assert not plain.eta_s_given and plain.eta_s == pytest.approx(plain.K * 0.1 / 2)
    assert plain.client_prob is None and plain.m == 3 and plain.safari_rates[1].holds
    safari = tiny.replace(
        algorithm=SAFARI(
            client_prob=0.7, server_update=LocalTraining(lr=0.3, batch_size=5, steps=1)
        )
    )
    advice = advise(safari, 1)
    assert advice.eta_s_given and advice.eta_s == 0.3 and advice.client_prob == 0.7
    work = Worker(safari.cells[:1], safari.data.load(), safari.model)
    sizes = work.sizes(0)[0]
    assert advice.K == pytest.approx(sum(-(-n // 32) for n in sizes) / 10)


def test_maxima_and_means_go_into_the_bounds(tiny: Run) -> None:
    work = Worker(tiny.cells[:1], tiny.data.load(), tiny.model)
    probes = [made_up(grad2=1.0, sigma_g2=2.0), made_up(grad2=3.0, sigma_g2=1.0)]
    run = tiny.replace(local=LocalTraining(lr=0.2, batch_size=32, steps=2))
    advice = conclude(run, work, probes, [3])
    assert advice.K == 2 and advice.eta_s == pytest.approx(0.2)
    for how, g1 in (("maxima", 3.0), ("means", 2.0)):  # eta_s L = 0.2: 8 / (0.8 G_1)
        bound = advice.safari[f"as configured, {how}"].value
        assert bound == pytest.approx(1 / (8 / (0.8 * g1) + 1))
        assert bound == most_client_prob(2.0, g1, 0, L=1, eta_s=0.2, K=2).value


def test_without_server_data_it_says_so(tiny: Run) -> None:
    run = tiny.replace({"data.server": None})
    assert advise(run, 1).probes[0].xi2 is None
    said = text(run)
    assert "The server holds no data: theorems 4 and 5 of SAFARI do not apply." in said
    decayed = text(run.replace({"local.weight_decay": 0.2}))
    for shown, left in ((said, ["FAST 1"]), (decayed, ["FAST 1", "FAST 2"])):
        named = set(re.findall("(?:SAFARI|FAST) [0-9]", shown.partition("Caveats")[0]))
        assert named == {*left} and "client_prob <=" not in shown


class Varying(Participation):
    """Cohorts of 5, 4, no, 2 and 1 clients."""

    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, Cohort]:
        return state, Cohort(list(range([5, 4, 0, 2, 1][key.round % 5])))


def test_m_is_the_mean_cohort_of_the_simulated_rounds(tiny: Run) -> None:
    run = tiny.replace(participation=Varying(), rounds=5, eval_every=2)
    advice = advise(run.replace({"local.weight_decay": 0.1}))
    assert advice.m == (5 + 4 + 0 + 2 + 1) / 5
    L = max(probe.L for probe in advice.probes)
    for found, divisor in (
        (advice.fast_rates[1], 5),
        (advice.convex_rates[-1], 20),
    ):
        assert found.limit == pytest.approx(1 / (divisor * 2.4 * L * advice.K))
    assert "m = 2.4 (the mean of cohorts of 0 to 5)" in text(run, 5)
    assert advise(run, 2).m == 4.5 and "m = 3, eta_c" in text(tiny)


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
    descent_P = work.gradients(0, w_P.expand(10, -1)).mean(0) + 0.2 * w_P
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


def test_a_run_that_diverges_is_still_reported(tiny: Run) -> None:
    advice = advise(tiny.replace({"local.lr": 1e38}), 4)
    assert [p.round for p in advice.probes] == [0]
    assert "lower the learning rates" in advice.stopped


@pytest.mark.parametrize(
    "change", [{"momentum": 0.5}, {"optimizer": "adam"}, {"clip_norm": 1.0}], ids=str
)
def test_it_is_refused_where_the_change_is_no_sum_of_gradients(
    change: dict[str, Any], tiny: Run
) -> None:
    with pytest.raises(ValueError, match=r"are for plain SGD; for advice give the run"):
        advise(tiny.replace(local=tiny.local.replace(change)), 1)


def test_mini_batches_for_the_noise_differ_between_rounds_and_between_clients(
    tiny: Run,
) -> None:
    work = Worker(tiny.cells[:1], tiny.data.load(), tiny.model)
    w_P = work.init(0)
    first, again, later, other = (
        batch_gradients(work, client, w_P, 4, 3, Key(0, at))
        for client, at in ((SERVER, 0), (SERVER, 0), (SERVER, 1), (0, 0))
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, later) and not torch.equal(first, other)


def test_the_script_advises_on_the_run_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(EXPERIMENT)
    main([str(tmp_path / "mine.py"), "--rounds", "1", "--only", "method=SAFARI"])
    said = capsys.readouterr().out
    assert "method=SAFARI" in said and "client_prob = 0.5" in said


class Line(Source):
    """Numbers to predict."""

    def load(self) -> Dataset:
        x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
        part = Samples(x, x.sum(1) + 1)
        return Dataset("line", part, part, num_classes=0)


def test_the_gradients_are_those_of_the_runs_objective() -> None:
    run = Run(
        data=Federation(dataset=Line(), clients=4, partition=Iid()),
        model=Logistic(),
        objective=Regression(),
        algorithm=FedAvg(),
        participation=Uniform(m=2),
        local=LocalTraining(lr=0.01, batch_size=5, epochs=1),
        rounds=2,
    )
    first = advise(run, 2).probes[0]
    # At zero, the gradient of (w x + b - y)^2 is -2 y (x, 1).
    train = Line().load().train
    ones = np.ones((40, 1), np.float32)
    gradient = (-2 * train.y[:, None] * np.hstack([train.x, ones])).mean(0)
    assert first.grad2 == pytest.approx(np.square(gradient).sum(), rel=1e-4)
