"""Whole runs against the algorithms' definitions in float64 (`helpers.definitions`).

Every algorithm alone and inside every wrapper, on clients of 2 to 89 samples. They come at
random, and in some rounds nobody does.
"""

import numpy as np
import pytest
from helpers.definitions import (
    COMPRESSIONS,
    DEFINITIONS,
    SELECTIONS,
    WRAPPERS,
    Lab,
    trajectory,
)
from helpers.families import built_in
from helpers.matrix import ALGORITHMS, EVERY

import raysafl as fl
from raysafl.algorithms import (
    AFL,
    F3AST,
    FOCUS,
    MIFA,
    SCAFFOLD,
    CAFed,
    Compressed,
    Compression,
    FedAdam,
    FedAU,
    FedAvgM,
    FedAWE,
    FedLaAvg,
    FedProx,
    FedYogi,
    FSLParallel,
    Oort,
    PowerOfChoice,
    Quantised,
    Selected,
    Selection,
    TopK,
)
from raysafl.data import ByUser, Dataset, Samples, ServerData
from raysafl.data.sources import Source
from raysafl.participation import Bernoulli
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Simulation
from raysafl.training import StepRate

# 32.2 in the mean: three batches of 16, of which the last is not a whole sample
SIZES = [2, 5, 11, 40, 89, 46]


def samples(users: list[int], seed: int) -> Samples:
    """Two or three of three classes for each user, so that no two updates tie."""
    user = np.repeat(np.arange(len(users)), users)
    y = (np.concatenate([np.arange(size) for size in users]) + user) % 3
    noise = np.random.default_rng(seed).normal(0, 1, (len(y), 4))
    return Samples((np.eye(3, 4)[y] + noise).astype(np.float32), y, users=user)


class Unequal(Source):
    """Users of SIZES samples."""

    def load(self) -> Dataset:
        """Return them."""
        return Dataset("unequal", samples(SIZES, 0), samples([12], 1), 3)


class Apart(ServerData):
    """Samples that are nobody else's."""

    def outside(self, dataset: Dataset) -> Samples:
        """Return 40 of them."""
        return samples([40], 2)


RUN = fl.Run(
    data=fl.Federation(
        dataset=Unequal(), clients=len(SIZES), partition=ByUser(), server=Apart()
    ),
    model=fl.Logistic(),
    algorithm=fl.FedAvg(),
    participation=Bernoulli(rate=0.25),
    # The learning rate falls in round 6; clients take 2 to 12 steps.
    local=fl.LocalTraining(
        lr=0.2, batch_size=16, epochs=2, schedule=StepRate(milestones=[6])
    ),
    rounds=9,
    replicates=3,
    seed=5,
)
WORKER = Worker(RUN.cells, RUN.data.load(), RUN.model)
COARSE = Quantised(bits=3)
WRAP = {
    "safari": lambda a: fl.SAFARI(
        inner=a,
        client_prob=0.6,
        server_update=fl.LocalTraining(lr=0.1, batch_size=32, epochs=1),
    ),
    "fsl": lambda a: fl.FSL(inner=a, gamma=0.5),
    "fsl pretrained": lambda a: fl.FSL(inner=a, gamma=1.5, pretrain=3),
    "fsl-p": lambda a: FSLParallel(inner=a, gamma=0.5),
    "top k": lambda a: Compressed(inner=a, compression=TopK(fraction=0.3)),
    "quantised": lambda a: Compressed(inner=a, compression=COARSE),
    "nearest": lambda a: Compressed(
        inner=a, compression=COARSE.replace(stochastic=False), error_feedback=False
    ),
    "power of choice": lambda a: Selected(inner=a, by=PowerOfChoice(m=1, d=2)),
}
INNER = [
    *ALGORITHMS,
    *(fl.FedAvg(weighted=True), fl.FedAvg(lr=None), FedAdam(weighted=True)),
    *(FedProx(weighted=True), FedAvgM(weighted=True), FedYogi(weighted=True)),
    *(FedAWE(clip_norm=0.05), FOCUS(lr=0.02), FedLaAvg(K=1, lr=0.5)),
    CAFed(bias=0.3, tolerance=0.001),
    CAFed(bias=0.2, prior_rounds=9, over_all_rounds=True),
    F3AST(m=1, beta=0.3, divided_by_m=True),
    *(Selected(by=PowerOfChoice(m=1, d=3, loss=loss)) for loss in ("batch", "last")),
    *(Selected(by=Oort(m=m, exploration=0.5, cut_off=0.4)) for m in (1, 2)),
    *(MIFA(over="seen"), AFL(max_delay=2, memory=True), FedAU(K=2), SCAFFOLD(lr=None)),
    # Wrappers, which are put into wrappers.
    *(wrap(SCAFFOLD()) for wrap in WRAP.values()),
]


def refusal(wrapper: str, inner: fl.Algorithm) -> str:
    """How the error begins if a pair has no meaning; else nothing."""
    outer, parts = WRAP[wrapper](fl.FedAvg()), inner.components()
    if isinstance(outer, Compressed):
        # Updates that are compressed must be sent as they are.
        for part in parts:
            if isinstance(part, (Compressed, FOCUS)):
                return f"{type(part).__name__} cannot be compressed"
    if isinstance(outer, Selected):
        if any(isinstance(part, Selected) for part in parts):
            return "Selected: clients that were selected cannot be selected again"
    if isinstance(outer, fl.FSL):
        for part in parts:
            if isinstance(part, fl.FSL) and part.pretrain:
                return f"pretrain={part.pretrain} of an inner FSL"
    return ""


PAIRS = [(wrapper, inner) for inner in INNER for wrapper in WRAP]
COMPOSED = [WRAP[name](inner) for name, inner in PAIRS if not refusal(name, inner)]


@pytest.mark.parametrize("algorithm", [*INNER, *COMPOSED], ids=repr)
def test_the_model_after_each_round_is_that_of_the_definition_in_float64(
    algorithm: fl.Algorithm,
) -> None:
    run = RUN
    simulation = Simulation(run.replace(algorithm=algorithm), WORKER)
    found, cohorts = [], []
    while not simulation.done:
        cohorts.append([record.cohorts[-1] for record in simulation.step()])
        found.append([own.state.w_P.numpy() for own in simulation.replicates])
    train = WORKER.trainer.inputs
    for r, seed in enumerate(RUN.seeds):
        lab = Lab(
            train.x.double().numpy(),
            train.y.numpy(),
            lambda who, r=r: WORKER.population.splits[r].of(who),
            seed,
            RUN.local,
            len(SIZES),
        )
        came = [cohort[r] for cohort in cohorts]
        expected = np.array([*trajectory(algorithm, lab, np.zeros(15), came)])
        ours = np.array([w[r] for w in found])
        off = np.abs(ours - expected).max() / np.abs(expected).max()
        assert off < 1e-5, f"replicate {r} is {off:.1e} off"


def test_each_replicate_has_rounds_without_participants_one_at_the_start() -> None:
    simulation = Simulation(RUN, WORKER)
    cohorts = [
        [own.cohorts[-1] for own in simulation.step()] for _ in range(RUN.rounds)
    ]
    for came in zip(*cohorts, strict=True):
        assert [] in came and max(map(len, came)) > 1
    assert [] in cohorts[0]
    held = [len(WORKER.population.splits[0].of(i)) for i in range(len(SIZES))]
    assert held == SIZES


@pytest.mark.parametrize(
    ("wrapper", "inner"), [pair for pair in PAIRS if refusal(*pair)], ids=repr
)
def test_what_cannot_be_composed_is_refused(wrapper: str, inner: fl.Algorithm) -> None:
    with pytest.raises(ValueError, match=refusal(wrapper, inner)):
        WRAP[wrapper](inner)


def test_every_built_in_algorithm_and_compression_has_a_definition() -> None:
    assert {*built_in(fl.Algorithm)} == {*DEFINITIONS}
    assert {*built_in(fl.Algorithm)} == {type(a) for a in [*ALGORITHMS, *EVERY]}
    assert {*built_in(Compression)} == {*COMPRESSIONS}
    assert {*built_in(Selection)} == {*SELECTIONS}
    assert {type(wrap(fl.FedAvg())) for wrap in WRAP.values()} >= {*WRAPPERS}
