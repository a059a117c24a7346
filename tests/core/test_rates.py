"""Learning-rate schedules against torch's, and what they are refused for."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from raysafl import FSL, FedAvg, LocalTraining, Run
from raysafl.algorithms import ScheduledServer
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Simulation
from raysafl.training import CosineRate, ListedRate, RateSchedule, StepRate, WarmUpRate

LR, ROUNDS = 0.4, 12
BASE = LocalTraining(lr=LR, batch_size=8, epochs=1)


def torch_rates(schedule: Callable[[torch.optim.Optimizer], Any]) -> list[float]:
    """The learning rate of each round, if a round is a step of the scheduler."""
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR)
    scheduler = schedule(optimiser)
    rates = []
    for _ in range(ROUNDS):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return rates


def warmed_up(optimiser: torch.optim.Optimizer) -> lr_scheduler.SequentialLR:
    return lr_scheduler.SequentialLR(
        optimiser,
        [
            lr_scheduler.LinearLR(optimiser, start_factor=1 / 4, total_iters=3),
            lr_scheduler.CosineAnnealingLR(optimiser, T_max=ROUNDS - 4),
        ],
        milestones=[4],
    )


@pytest.mark.parametrize(
    ("local", "theirs"),
    [
        (
            BASE.replace(schedule=CosineRate(end=0.1)),
            lambda o: lr_scheduler.CosineAnnealingLR(o, ROUNDS, eta_min=0.1 * LR),
        ),
        (
            BASE.replace(schedule=WarmUpRate(rounds=4)),
            lambda o: lr_scheduler.LinearLR(o, start_factor=1 / 4, total_iters=3),
        ),
        (BASE.replace(schedule=WarmUpRate(rounds=4, then=CosineRate())), warmed_up),
        (
            BASE.replace(schedule=StepRate(milestones=[3, 7], decay=0.2)),
            lambda o: lr_scheduler.MultiStepLR(o, [3, 7], gamma=0.2),
        ),
        (
            BASE.replace(schedule=ListedRate(factors=[1, 0.5, 0.3])),
            lambda o: lr_scheduler.LambdaLR(o, lambda t: [1, 0.5, 0.3][min(t, 2)]),
        ),
    ],
    ids=["cosine", "warm-up", "warm-up and cosine", "milestones", "list"],
)
def test_a_schedule_gives_the_rates_of_torchs_scheduler(
    local: LocalTraining, theirs: Callable[[torch.optim.Optimizer], Any]
) -> None:
    local = local.over(ROUNDS)
    rates = [local.rate(t) for t in range(ROUNDS)]
    assert rates == pytest.approx(torch_rates(theirs), rel=1e-6)


def test_a_schedule_goes_to_json_and_back() -> None:
    local = BASE.replace(schedule=WarmUpRate(rounds=2, then=CosineRate(end=0.1)))
    assert LocalTraining.from_json(local.to_json()) == local


def test_a_run_fills_in_its_number_of_rounds_and_keeps_its_json(tiny: Run) -> None:
    local = tiny.local.replace(schedule=CosineRate())
    run = tiny.replace(local=local)
    assert '"rounds":null' in run.to_json()
    assert local.over(run.rounds).schedule == CosineRate(rounds=run.rounds)


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (CosineRate(rounds=2), r"learning rate of round 3 is 0\.0, so that nothing"),
        (WarmUpRate(rounds=1, then=CosineRate(rounds=2)), r"of round 3 is 0\.0"),
    ],
)
def test_a_rate_that_becomes_zero_is_refused_before_anything_runs(
    tiny: Run, schedule: RateSchedule, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        tiny.replace(local=tiny.local.replace(schedule=schedule))


def test_a_cosine_without_rounds_says_what_to_give() -> None:
    with pytest.raises(ValueError, match=r"give rounds=\.\.\., or take schedule\.over"):
        BASE.replace(schedule=CosineRate()).rate(0)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ListedRate(factors=[]), "factors: List should have at least 1 item"),
        (lambda: ListedRate(factors=[1, 0]), "factors.1: Input should be greater than"),
        (lambda: CosineRate(end=1.5), "end: Input should be less than or equal to 1"),
    ],
)
def test_what_has_no_meaning_is_refused(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def test_the_servers_schedule_lasts_the_rounds_of_the_run(tiny: Run) -> None:
    run = tiny.replace(algorithm=ScheduledServer(schedule=CosineRate()), rounds=7)
    worker = Worker(run.cells, run.data.load(), run.model)
    (prepared, *_) = [own.algorithm for own in Simulation(run, worker).replicates]
    assert prepared.schedule == CosineRate(rounds=7)  # type: ignore[attr-defined]
    ends = run.replace({"algorithm.schedule": CosineRate(rounds=6)})
    with pytest.raises(ValueError, match="rate of the last of 7 rounds is not above 0"):
        Simulation(ends, worker)


def test_an_algorithm_without_a_server_rate_has_none_to_schedule() -> None:
    with pytest.raises(ValueError, match="FSL has no server rate `lr`; take another"):
        ScheduledServer(inner=FSL(), schedule=CosineRate())
    FSL(inner=ScheduledServer(inner=FedAvg(lr=None), schedule=CosineRate()))
