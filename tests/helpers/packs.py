"""Runs that advance together, and the same runs alone."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pytest
import torch

import raysafl as fl
from helpers.checkpoints import dump, restore
from raysafl.algorithms import (
    MIFA,
    SCAFFOLD,
    Compressed,
    FedAvgM,
    FedProx,
    Quantised,
    TopK,
)
from raysafl.core.record import Record
from raysafl.core.work import Cell, Work
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Lockstep, Simulation
from raysafl.training import ContinuedTraining, CosineRate, WarmUpRate

# Models, and the engines for GPUs that a pack is tried with.
PACKS: list[tuple[str, fl.Model]] = [
    ("linear", fl.Logistic()),
    ("vmap", fl.MLP(hidden=[8])),
    ("graph", fl.MLP(hidden=[8])),
]

Played = tuple[list[dict[str, Any]], list[torch.Tensor]]
"""The records of a run without the wall time, and each replicate's parameters.

After these follow the parameters that the run keeps.
"""


def mixed(base: fl.Run, model: fl.Model) -> dict[str, fl.Run]:
    """Runs of one dataset and model that differ in whatever else runs may differ in."""
    momentum = fl.LocalTraining(lr=0.05, batch_size=8, steps=3, momentum=0.9)
    adam = fl.LocalTraining(lr=0.01, batch_size=16, epochs=1, optimizer="adam")
    pass_by_pass = ContinuedTraining(
        lr=0.05, batch_size=8, steps=3, momentum=0.9, shuffle=False
    )
    kept_adam = ContinuedTraining(lr=0.01, batch_size=16, steps=2, optimizer="adam")
    decay = fl.LocalTraining(lr=0.2, batch_size=64, epochs=2, weight_decay=0.01)
    adaptive = fl.Snapshot(
        base=fl.Uniform(m=3), uniform=fl.Uniform(m=4), adapt=3.0, accuracy="clients"
    )
    few = {"data.clients": 6, "data.partition.p": 2, "participation": fl.Uniform(m=2)}
    changes: dict[str, dict[str, Any]] = {
        "FedAvg": {
            "algorithm": FedAvgM(momentum=0.5),
            "eval_every": 2,
            "rounds": 5,
            "data.validation": fl.Validation(server=0.2),
            "keep": "best_val",
        },
        "SAFARI": {
            "algorithm": fl.SAFARI(client_prob=0.5),
            "data.server.n0": 30,
            "replicates": 1,
            "rounds": 3,
        },
        "SCAFFOLD": {
            **few,
            "algorithm": SCAFFOLD(),
            "local": momentum,
            "seed": 5,
            "data.validation": fl.Validation(server=0.2, clients=0.1),
        },
        "FAST": {
            "algorithm": MIFA(),
            "participation": adaptive,
            "local": decay,
            "data.validation": fl.Validation(clients=0.1),
            "keep": "best",
        },
        "FedProx": {
            "algorithm": FedProx(prox=0.1),
            "local": adam,
            "eval_every": 3,
            "devices": fl.Devices(
                step_seconds=0.1, spread=1, dropout=0.2, deadline=2, report=2
            ),
        },
        "pass by pass": {
            "algorithm": fl.SAFARI(client_prob=0.7),
            "local": pass_by_pass,
            "rounds": 5,
        },
        "kept Adam": {"algorithm": MIFA(), "local": kept_adam, "seed": 2},
        "shared": {
            "data.share": 0.5,
            "data.partition_seeds": 3,
            "replicates": 3,
            "rounds": 2,
        },
    }
    return {
        name: base.replace({"model": model, **change})
        for name, change in changes.items()
    }


def judged(base: fl.Run, model: fl.Model) -> dict[str, fl.Run]:
    """Runs that evaluate their clients one by one, in different ways."""
    changes: dict[str, dict[str, Any]] = {
        "by label": {
            "eval_clients": fl.PerClient(every=2, personal_steps=2),
            "rounds": 3,
        },
        "own tests": {
            "data.own_tests": 0.2,
            "eval_clients": fl.PerClient(every=3, on="own", personal_steps=1),
            "seed": 8,
        },
    }
    return {
        name: base.replace({"model": model, **change})
        for name, change in changes.items()
    }


def fair(base: fl.Run) -> dict[str, fl.Run]:
    """Runs with weighted, clipped, noisy or compressed updates, schedules and patience."""
    clipped = base.local.replace(clip_norm=0.5, schedule=CosineRate())
    warm = base.local.replace(schedule=WarmUpRate(rounds=2), momentum=0.5)
    top = TopK(fraction=0.1)
    changes: dict[str, dict[str, Any]] = {
        "plain": {"rounds": 6},
        "weighted": {"algorithm": fl.FedAvg(weighted=True), "local": clipped},
        "warm": {"participation": fl.Uniform(m=4), "local": warm},
        "top k": {"algorithm": Compressed(inner=MIFA(), compression=top)},
        "quantised": {
            "algorithm": Compressed(
                inner=fl.FedAvg(weighted=True), compression=Quantised(bits=3)
            ),
            "patience": fl.Patience(metric="test_accuracy", rounds=2, min_delta=0.2),
            "rounds": 9,
            "replicates": 3,
        },
    }
    return {name: base.replace(change) for name, change in changes.items()}


def different(base: fl.Run, model: fl.Model) -> dict[str, fl.Run]:
    """Runs of one dataset and model that differ in all they can."""
    base = base.replace(model=model)
    return {**mixed(base, model), **judged(base, model), **fair(base)}


def cells_of(runs: Mapping[str, fl.Run]) -> list[Cell]:
    """The cells of all runs, one run after the other."""
    return [cell for run in runs.values() for cell in run.cells]


def simulations(runs: Mapping[str, fl.Run], work: Work) -> dict[str, Simulation]:
    """A simulation for each run on work that has the `cells_of` these runs."""
    found, first_cell = {}, 0
    for name, run in runs.items():
        found[name] = Simulation(run, work, first_cell)
        first_cell += run.replicates
    return found


def played(records: Sequence[Any], simulation: Simulation) -> Played:
    """What does not depend on the clock."""
    rows = [asdict(record) for record in records]
    for row in rows:
        del row["seconds"]
    kept = [own.w_P for own in simulation.kept().values()]
    return rows, [*(replicate.state.w_P for replicate in simulation.replicates), *kept]


def play(
    run: fl.Run, work: Work | None = None, interrupted: bool = False
) -> tuple[Simulation, list[Record]]:
    """A run to its end, and its records; if interrupted, from a checkpoint after each round."""
    work = work or worker_of({"": run})
    simulation, records = Simulation(run, work), list[Record]()
    while not simulation.done:
        records += simulation.step()
        if interrupted:
            content = dump(simulation)
            simulation = Simulation(run, work)
            restore(simulation, content)
    return simulation, records


def worker_of(
    runs: Mapping[str, fl.Run], engine: str = "auto", kind: type[Worker] = Worker
) -> Any:
    """What trains the cells of runs of one dataset, model and objective in this process."""
    first = next(iter(runs.values()))
    return kind(
        cells_of(runs),
        first.data.load(),
        first.model,
        engine=engine,
        objective=first.objective,
    )


def alone(run: fl.Run, engine: str) -> Played:
    """A run that is played by itself, in this process."""
    simulation, records = play(run, worker_of({"": run}, engine))
    return played(records, simulation)


def together(
    runs: Mapping[str, fl.Run], lockstep: Lockstep[str]
) -> tuple[dict[str, Played], dict[str, BaseException]]:
    """Runs that are played in lock-step, and the errors of those that failed."""
    pack = simulations(runs, lockstep.work)
    records: dict[str, list[Any]] = {name: [] for name in pack}
    failed: dict[str, BaseException] = {}
    while running := {
        name: one for name, one in pack.items() if not one.done and name not in failed
    }:
        for name, outcome in lockstep.advance(running).items():
            if isinstance(outcome, BaseException):
                failed[name] = outcome
            else:
                records[name] += outcome
    return {name: played(records[name], pack[name]) for name in pack}, failed


def pack_on(runs: Mapping[str, fl.Run], device: str, engine: str) -> dict[str, Played]:
    """Runs that are played in lock-step on a device; none of them may fail."""
    first = next(iter(runs.values()))
    work = Worker(
        cells_of(runs), first.data.load(), first.model, device=device, engine=engine
    )
    results, failed = together(runs, Lockstep[str](work))
    assert not failed
    return results


def assert_same(one: Played, other: Played, exact: bool = True) -> None:
    """The same records and parameters, bitwise or to float32 tolerance."""
    (rows, w), (other_rows, other_w) = one, other
    assert len(rows) == len(other_rows) > 0
    tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-4, "atol": 1e-5}
    for w_P, other_w_P in zip(w, other_w, strict=True):
        torch.testing.assert_close(w_P, other_w_P, **tolerance)
    for row, other_row in zip(rows, other_rows, strict=True):
        if exact:
            assert row == other_row
        else:
            row, other_row = (
                {**own, **own["metrics"], "metrics": None} for own in (row, other_row)
            )
            floats = {name for name, value in row.items() if isinstance(value, float)}
            for name in row.keys() - floats:
                assert row[name] == other_row[name]
            for name in floats:
                # One of the 360 test images may be at the border between two classes.
                near = {"abs": 1 / 350} if "accuracy" in name else {"rel": 1e-3}
                expected = pytest.approx(other_row[name], **{"abs": 1e-6, **near})
                assert row[name] == expected, name
