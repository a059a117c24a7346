"""Replicates that take a round together compute what each computes alone, to the last bit."""

from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.lifted import (
    Pack,
    alone,
    assert_equal_to_themselves_alone,
    differences,
    together,
)
from helpers.matrix import ALGORITHMS, SERVER, WRAPPERS, policies
from helpers.objectives import REGRESSION

import raysafl as fl
from raysafl.algorithms import (
    AFL,
    MIFA,
    SCAFFOLD,
    Compressed,
    FedAdam,
    FedAmplify,
    FedAU,
    FedAvgM,
    FedProx,
    FSLParallel,
    Quantised,
    ScheduledServer,
)
from raysafl.participation import Absent, Bernoulli, Cyclic
from raysafl.training import ContinuedTraining, CosineRate, StepRate, WarmUpRate

SGD = fl.LocalTraining(lr=0.1, batch_size=32, epochs=1)
QUANTISED = Quantised(bits=3)
MORE_ALGORITHMS = [
    *(
        wrap(inner)
        for wrap in WRAPPERS.values()
        for inner in (fl.FedAvg(weighted=True), SCAFFOLD())
    ),
    AFL(max_delay=1, memory=True),
    MIFA(over="seen"),
    fl.FedAvg(lr=None),
    fl.FSL(inner=FedAdam(weighted=True), pretrain=2),
    FSLParallel(inner=SCAFFOLD()),
    fl.SAFARI(inner=Compressed(inner=FedAvgM(momentum=0.9), compression=QUANTISED)),
    fl.SAFARI(inner=fl.FSL(inner=FedAU(K=2)), client_prob=0.6),
    ScheduledServer(inner=SCAFFOLD(lr=1.0), schedule=StepRate(milestones=[1])),
]
LOCALS = [
    SGD,
    SGD.replace(batch_size=7, epochs=2),
    fl.LocalTraining(lr=0.05, batch_size=8, steps=3, momentum=0.9),
    fl.LocalTraining(lr=0.01, batch_size=16, epochs=1, optimizer="adam"),
    SGD.replace(clip_norm=0.5, schedule=CosineRate()),
    SGD.replace(weight_decay=0.01, schedule=WarmUpRate(rounds=2)),
    ContinuedTraining(lr=0.05, batch_size=8, steps=3, momentum=0.9, shuffle=False),
    ContinuedTraining(lr=0.01, batch_size=16, epochs=1, optimizer="adam"),
    ContinuedTraining(lr=0.1, batch_size=16, steps=4, keep_optimizer=False),
]
DATA: list[dict[str, Any]] = [
    {},
    {"data.partition": fl.Dirichlet(alpha=0.5, balanced=False)},
    {"data.partition": fl.Iid(), "data.seed": None},
    {"data.share": 0.5},
    {"data.validation": fl.Validation(server=0.2, clients=0.1), "keep": "best_val"},
    {"data.own_tests": 0.2, "eval_clients": fl.PerClient(every=6, on="own")},
]
JUDGED: list[dict[str, Any]] = [
    {"rounds": 5, "eval_every": 3},
    {"rounds": 4},
    {"rounds": 6, "patience": fl.Patience(rounds=1, min_delta=0.2)},
    {
        "rounds": 3,
        "eval_every": 2,
        "eval_clients": fl.PerClient(every=2, personal_steps=2),
    },
    {"rounds": 5, "keep": "best"},
]
# The factors of a grid of learning rates, and of what else is a field of an algorithm.
FACTORS = [1.0, 0.5, 0.3, 0.8]
GRIDS = ("lr", "momentum", "alpha", "eta", "prox", "gamma", "client_prob", "tau")
NUMBER_OF_SETTINGS = 72


def settings(base: fl.Run, folder: Path) -> list[fl.Run]:
    """Runs that differ in algorithm, policy, training, data, and in how they are judged."""
    base = base.replace(replicates=1)
    axes = zip(
        cycle([*ALGORITHMS, *MORE_ALGORITHMS]),
        cycle(policies(folder).values()),
        cycle(LOCALS),
        cycle(DATA),
        cycle(JUDGED),
        range(NUMBER_OF_SETTINGS),
        strict=False,
    )
    return [
        base.replace(
            {
                "algorithm": algorithm,
                "participation": policy,
                "local": local,
                **data,
                **judged,
            }
        )
        for algorithm, policy, local, data, judged, _ in axes
    ]


def grid_of(run: fl.Run, count: int) -> list[fl.Run]:
    """So many runs that differ in their seeds and in numbers that are fields."""
    fields = type(run.algorithm).model_fields
    numbers = [name for name in GRIDS if name in fields]
    runs = []
    for seed in range(count):
        factor = FACTORS[seed % len(FACTORS)]
        changes: dict[str, Any] = {"seed": seed, "local.lr": run.local.lr * factor}
        for name in numbers:
            value = getattr(run.algorithm, name)
            if value is not None:
                changes[f"algorithm.{name}"] = value * factor
        runs.append(run.replace(changes))
    return runs


def packs_of(
    chosen: Sequence[fl.Run], size: int, count: int
) -> list[dict[str, fl.Run]]:
    """Packs of at most `size` runs, which are `count` runs of each setting."""
    packs = []
    step = size // count
    for first in range(0, len(chosen), step):
        some = chosen[first : first + step]
        packs.append(
            {
                f"{first + i} {type(run.algorithm).__name__} seed {one.seed}": one
                for i, run in enumerate(some)
                for one in grid_of(run, count)
            }
        )
    return packs


@pytest.mark.parametrize(
    ("size", "count", "some"),
    [
        (1, 1, slice(0, None, 4)),
        (3, 3, slice(1, None, 3)),
        (64, 8, slice(2, None, 4)),
        pytest.param(1000, 13, slice(None), marks=pytest.mark.acceptance),
    ],
    ids=["1", "3", "64", "1000"],
)
def test_runs_that_differ_in_everything_equal_themselves_alone_in_packs_of(
    size: int, count: int, some: slice, tiny: fl.Run, tmp_path: Path
) -> None:
    for runs in packs_of(settings(tiny, tmp_path)[some], size, count):
        assert_equal_to_themselves_alone(runs)


@pytest.mark.parametrize(
    ("engine", "model"),
    [("linear", None), ("vmap", fl.MLP(hidden=[6])), ("loop", fl.MLP(hidden=[6]))],
)
def test_every_engine_trains_the_clients_of_a_group_as_those_of_one_run(
    engine: str, model: fl.Model | None, tiny: fl.Run, tmp_path: Path
) -> None:
    base = tiny.replace(model=model or tiny.model)
    chosen = settings(base, tmp_path)[::24]
    runs = {
        f"{i} seed {one.seed}": one
        for i, run in enumerate(chosen)
        for one in grid_of(run.replace(rounds=3), 3)
    }
    assert_equal_to_themselves_alone(runs, engine)


def test_a_group_with_an_objective_of_numbers_equals_its_runs_alone() -> None:
    algorithms = [fl.FedAvg(), SCAFFOLD(), FedAdam(), MIFA()]
    judged: list[dict[str, Any]] = [
        {"patience": fl.Patience(metric="test_mae", rounds=1)},
        {"data.validation": fl.Validation(clients=0.2), "keep": "best_val"},
    ]
    runs = {
        f"{type(algorithm).__name__} {i} seed {one.seed}": one
        for algorithm in algorithms
        for i, changes in enumerate(judged)
        for one in grid_of(
            REGRESSION.replace({"algorithm": algorithm, "replicates": 1, **changes}), 3
        )
    }
    assert_equal_to_themselves_alone(runs)


@pytest.mark.parametrize("accuracy", ["local", "pass", "cohort", "clients"])
def test_snapshots_that_follow_an_accuracy_follow_each_run_s_own(
    accuracy: str, tiny: fl.Run
) -> None:
    run = tiny.replace(
        replicates=1,
        rounds=8,
        algorithm=MIFA(),
        participation=fl.Snapshot(
            base=Absent(s=4, m=3), uniform=fl.Uniform(m=5), adapt=8.0, accuracy=accuracy
        ),
        local=ContinuedTraining(lr=0.5, batch_size=16, steps=3, keep_optimizer=False),
    )
    runs = {str(one.seed): one for one in grid_of(run, 12)}
    ended = together(runs)
    assert differences(ended, alone(runs)) == {}
    last = {result.rows[-1]["enforce_prob"] for result in ended.values()}
    assert len(last) > 1, "the runs do not differ, so that the test shows nothing"


def test_runs_of_a_group_end_by_their_rounds_by_patience_or_diverged_and_others_go_on(
    tiny: fl.Run,
) -> None:
    """Each for itself, also where all had the same cohorts and forks before."""
    run = tiny.replace(
        replicates=1, algorithm=fl.SAFARI(inner=SCAFFOLD(), client_prob=0.5), rounds=9
    )
    patience = fl.Patience(rounds=1, min_delta=0.1)
    wild = fl.LocalTraining(lr=300.0, batch_size=32, steps=2, weight_decay=1.0)
    kinds = {
        "short": run.replace(rounds=4),
        "patient": run.replace(patience=patience),
        "wild": run.replace(local=wild),
        "long": run,
    }
    runs = {
        f"{kind} {seed}": one.replace(seed=seed)
        for seed in range(8)
        for kind, one in kinds.items()
    }
    ended = together(runs)
    assert differences(ended, alone(runs)) == {}
    rounds = {
        kind: {ended[name].round for name in ended if kind in name} for kind in kinds
    }
    assert rounds["short"] == {4} and rounds["long"] == {9}
    assert len(rounds["patient"]) > 1 and len(rounds["wild"]) > 1
    assert all(ended[name].reason for name in ended if "wild" in name)


def test_rounds_without_participants_in_some_runs_of_a_group_are_theirs_alone(
    tiny: fl.Run,
) -> None:
    rare = Bernoulli(rate=0.07)
    uneven = Cyclic(groups=[[0, 1, 2], [3], [4, 5, 6, 7]])
    runs = {
        f"{type(algorithm).__name__} {type(policy).__name__} {seed}": tiny.replace(
            algorithm=algorithm, participation=policy, replicates=1, rounds=5, seed=seed
        )
        for algorithm in (
            fl.FedAvg(),
            fl.FedAvg(lr=None),
            FedAU(K=2),
            SCAFFOLD(),
            fl.FSL(),
            fl.SAFARI(client_prob=0.5, server_update=SERVER),
        )
        for policy in (rare, uneven)
        for seed in range(6)
    }
    ended = together(runs)
    assert differences(ended, alone(runs)) == {}
    kinds = {row["kind"] for result in ended.values() for row in result.rows}
    assert {"nobody", "client", "server", "client+server"} <= kinds


def test_runs_go_on_from_checkpoints_in_other_packs_as_if_nothing_had_been(
    tiny: fl.Run, tmp_path: Path
) -> None:
    (runs, *_) = packs_of(settings(tiny, tmp_path)[:24], 72, 3)
    expected = alone(runs)
    first = Pack(runs)
    first.advance(rounds=2)
    names = [name for name, one in first.simulations.items() if not one.done]
    assert len(names) > 50
    # Groups are torn apart and put together anew.
    for chosen in (names[::2], names[1::2]):
        second = Pack({name: runs[name] for name in chosen})
        first.go_on_in(second)
        second.advance(rounds=1)
        third = Pack({name: runs[name] for name in chosen[::-1]})
        second.go_on_in(third)
        third.advance()
        ended = third.ended()
        assert differences(ended, {name: expected[name] for name in ended}) == {}


def test_any_of_the_runs_may_advance_and_the_others_wait(
    tiny: fl.Run, tmp_path: Path
) -> None:
    """As where an error has made a session give up packs, or a run is advanced by itself."""
    (runs, *_) = packs_of(settings(tiny, tmp_path)[36:48], 48, 4)
    pack = Pack(runs)
    draw = np.random.default_rng(0)
    while running := pack.running():
        some = {name: one for name, one in running.items() if draw.random() < 0.6}
        pack.advance_some(some)
        for name, simulation in running.items():
            if name not in some and draw.random() < 0.3:
                pack.records[name] += simulation.step()
    assert differences(pack.ended(), alone(runs)) == {}


def test_numbers_that_are_zero_or_none_in_some_runs_leave_the_others_theirs(
    tiny: fl.Run,
) -> None:
    """A term of weight 0 is computed with another sign of zero, or not at all."""
    schedule = StepRate(milestones=[1])
    kinds: dict[str, list[fl.Algorithm]] = {
        "prox": [FedProx(prox=prox) for prox in (0.0, 0.1, 1.0)],
        "rate": [fl.FedAvg(lr=lr) for lr in (None, 1.0, 0.1)],
        "momentum": [FedAvgM(momentum=momentum) for momentum in (0.0, 0.5)],
        "beta": [FedAdam(beta1=beta1) for beta1 in (0.0, 0.9)],
        "q": [fl.SAFARI(client_prob=q, inner=FedAvgM()) for q in (0.0, 0.5, 1.0)],
        "gamma": [fl.FSL(gamma=gamma) for gamma in (0.0, 0.5)],
        "pretrain": [fl.FSL(pretrain=pretrain) for pretrain in (0, 2)],
        "amplified": [FedAmplify(P=P, eta=1.5) for P in (1, 2)],
        "scheduled": [
            ScheduledServer(inner=fl.FedAvg(lr=lr), schedule=schedule)
            for lr in (None, 1.0, 0.5)
        ],
    }
    locals_ = [
        SGD,
        SGD.replace(weight_decay=0.1),
        SGD.replace(momentum=0.9),
        SGD.replace(clip_norm=0.1),
        SGD.replace(schedule=WarmUpRate(rounds=2)),
    ]
    runs = {
        f"{kind} {i} {seed}": tiny.replace(
            algorithm=algorithm,
            local=locals_[(i + seed) % len(locals_)],
            participation=Bernoulli(rate=0.3),
            seed=seed,
            replicates=1,
        )
        for kind, algorithms in kinds.items()
        for i, algorithm in enumerate(algorithms)
        for seed in range(5)
    }
    assert_equal_to_themselves_alone(runs)


def another_seed(pack: Pack) -> None:
    """Let the last run have another seed than it should."""
    pack.simulations["5"].replicates[0].seed += 1


def a_nudge(pack: Pack) -> None:
    """Move one parameter of the first run by 1e-6."""
    with torch.no_grad():
        pack.simulations["0"].replicates[0].state.w_P[7] += 1e-6


@pytest.mark.parametrize(
    ("algorithm", "spoil", "name"),
    [
        (fl.FedAvg(), another_seed, "5"),
        (fl.FedAvg(), a_nudge, "0"),
        (SCAFFOLD(), a_nudge, "0"),
    ],
)
def test_the_comparison_sees_another_seed_and_a_nudge_of_a_millionth(
    algorithm: Any, spoil: Callable[[Pack], None], name: str, tiny: fl.Run
) -> None:
    run = tiny.replace(
        algorithm=algorithm, replicates=1, rounds=3, participation=fl.Uniform(m=3)
    )
    runs = {str(seed): run.replace(seed=seed) for seed in range(6)}
    pack = Pack(runs)
    spoil(pack)
    pack.advance()
    found = differences(pack.ended(), alone(runs))
    assert list(found) == [name] and "parameters" in found[name]
