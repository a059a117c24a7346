"""A user's own objective, from a file, on Ray: the same bits as in one process."""

from pathlib import Path

import pytest
import ray
from helpers.own_objective import own_objective
from helpers.packs import alone, assert_same, cells_of, mixed, together

from raysafl import MLP, Hardware, Run
from raysafl.cluster.actors import Actors
from raysafl.core.objective import Objective
from raysafl.objectives import Classification, NextToken
from raysafl.runtime.client_actor import Clients
from raysafl.runtime.messages import PackSetup
from raysafl.runtime.on_actors import host_pack
from raysafl.simulation.simulation import Lockstep
from raysafl.sweep.code import ship_user_code
from raysafl.sweep.experiment_file import load_sweep

pytestmark = pytest.mark.usefixtures("ray_local")


def check(pool: Actors, runs: dict[str, Run], engine: str) -> None:
    """The runs together on actors equal each run alone."""
    first = next(iter(runs.values()))
    setup = PackSetup(
        *(cells_of(runs), ray.put(first.data.load()), first.model, engine),
        objective=first.objective,
    )
    work, _, _ = host_pack(pool, setup)
    results, failed = together(runs, Lockstep(work))
    assert not failed
    for name, run in runs.items():
        assert_same(results[name], alone(run, engine))


@pytest.mark.acceptance
def test_any_objective_has_the_same_bits_on_actors_in_a_pack_and_alone(
    tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A file whose name no other test has: modules are known by their names.
    file = tmp_path / "own_objective_on_actors.py"
    file.write_text(own_objective())
    sweep = load_sweep(file)
    own = dict(sweep.labelled())
    ship_user_code(part for run in own.values() for part in run.components())
    by_tau: dict[float, dict[str, Run]] = {}
    for (tau, name), run in own.items():
        by_tau.setdefault(float(tau), {})[name] = run

    objectives: list[Objective] = [
        Classification(class_weights=[1, 2] * 5, metrics=["f1", "confusion"]),
        NextToken(),
    ]
    pool = Actors(Clients, Hardware(actors=2, cpus=0.5))
    try:
        for runs in by_tau.values():
            check(pool, runs, "loop")
        for objective in objectives:
            mix = mixed(tiny.replace(objective=objective), MLP(hidden=[8]))
            check(pool, mix, "loop")
    finally:
        pool.kill()
