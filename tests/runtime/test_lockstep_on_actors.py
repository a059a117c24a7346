"""Runs that advance together on client actors equal the same runs alone in one process."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from helpers.own_objective import own_objective
from helpers.packs import Played, alone, assert_same, cells_of, judged, mixed, together

from raysafl import CNN, MLP, SAFARI, FedAvg, Hardware, Logistic, Model, Run
from raysafl.algorithms import AFL, SCAFFOLD, Compressed, Key, Quantised
from raysafl.cluster import actors as of_ray
from raysafl.cluster.actors import Actors
from raysafl.core.algorithm import Round, State, Train
from raysafl.objectives import Classification, NextToken
from raysafl.runtime.client_actor import LARGE, Clients, PackSetup, Sent, unpacked
from raysafl.runtime.on_actors import OnActors, host_pack
from raysafl.simulation.simulation import Lockstep
from raysafl.sweep.code import ship_user_code
from raysafl.sweep.experiment_file import load_sweep

pytestmark = pytest.mark.usefixtures("ray_local")
# Ray's workers cannot import this file.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

ENGINES: list[tuple[str, Model]] = [
    ("fused", Logistic()),
    ("linear", Logistic()),
    ("loop", MLP(hidden=[8])),
    ("vmap", MLP(hidden=[8])),
    ("vmap", CNN(channels=[3], hidden=8)),
]

ACCEPTANCE = pytest.mark.acceptance


class Doubled(FedAvg):
    """FedAvg in double precision, which changes its parameters in place once they were sent."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Parameters and offsets in float64."""
        w_P = state.w_P.double()
        offset_MP = 0.01 * torch.ones(len(ids), w_P.numel(), dtype=torch.float64)
        update = yield Train(w_P, ids, offset_MP=offset_MP)
        w_P.sub_(update.delta_MP.double().mean(0))
        return State(w_P)


# A mean and a server's row; rows and offsets; rows and a start of each client's own; and means
# of weighted and of compressed updates.
ALGORITHMS = (
    SAFARI(client_prob=0.6),
    SCAFFOLD(),
    AFL(max_delay=2),
    FedAvg(weighted=True),
    Compressed(compression=Quantised(bits=4)),
    Doubled(),
)


def host(pool: Actors, runs: dict[str, Run], engine: str) -> OnActors:
    first = next(iter(runs.values()))
    data = ray.put(first.data.load())
    setup = PackSetup(
        *(cells_of(runs), data, first.model, engine), objective=first.objective
    )
    return host_pack(pool, setup)[0]


@contextmanager
def pool_of(kind: type, actors: int) -> Iterator[Actors]:
    pool = Actors(kind, Hardware(actors=actors, cpus=0.5))
    try:
        yield pool
    finally:
        pool.kill()


@cache
def expected(text: str, engine: str) -> Played:
    """The run with this JSON by itself."""
    return alone(Run.from_json(text), engine)


# By default one engine alone.
@pytest.mark.parametrize(
    ("actors", "engines"),
    [(2, ENGINES[:1]), pytest.param(3, ENGINES, marks=ACCEPTANCE)],
)
def test_runs_on_actors_equal_themselves_alone_in_one_process(
    tiny: Run, actors: int, engines: list[tuple[str, Model]]
) -> None:
    with pool_of(Clients, actors) as pool:
        for engine, model in engines:
            runs = {**mixed(tiny, model), **judged(tiny, model)}
            results, failed = together(runs, Lockstep(host(pool, runs, engine)))
            assert not failed
            for name, run in runs.items():
                assert_same(results[name], expected(run.to_json(), engine))


@pytest.mark.acceptance
def test_every_kind_of_request_has_the_bits_of_one_process_on_three_actors(
    tiny: Run,
) -> None:
    runs = {
        repr(algorithm): tiny.replace(algorithm=algorithm, replicates=5)
        for algorithm in ALGORITHMS
    }
    # Its parameters are too large for a message.
    large = {"large": tiny.replace(model=MLP(hidden=[512]), rounds=2)}
    with pool_of(Clients, 3) as pool:
        for some in (runs, large):
            work = host(pool, some, "auto")
            results, failed = together(some, Lockstep(work))
            assert not failed
            for name, run in some.items():
                assert_same(results[name], alone(run, "auto"))
    assert work.init(0).nbytes > LARGE


@pytest.mark.acceptance
def test_any_objective_has_the_same_bits_on_actors_in_a_pack_and_alone(
    tiny: Run, tmp_path: Path
) -> None:
    # A file whose name no other test has: modules are known by their names.
    file = tmp_path / "own_objective_on_actors.py"
    file.write_text(own_objective())
    own = dict(load_sweep(file).labelled())
    ship_user_code(part for run in own.values() for part in run.components())
    packs: dict[str, dict[str, Run]] = {}
    for (tau, name), run in own.items():
        packs.setdefault(str(tau), {})[name] = run
    for objective in (
        Classification(class_weights=[1, 2] * 5, metrics=["f1", "confusion"]),
        NextToken(),
    ):
        base = tiny.replace(objective=objective)
        packs[repr(objective)] = mixed(base, MLP(hidden=[8]))
    with pool_of(Clients, 2) as pool:
        for runs in packs.values():
            results, failed = together(runs, Lockstep(host(pool, runs, "loop")))
            assert not failed
            for name, run in runs.items():
                assert_same(results[name], alone(run, "loop"))


class Cramped(Clients):
    """Has no memory for more than four cells."""

    def call(self, setup: Any, method: str, message: Sent) -> Sent:
        """Refuse to train more."""
        if method == "train_share":
            (tasks,) = unpacked(message)
            if len(tasks.cells()[0]) > 4:
                self.refuse()
        return super().call(setup, method, message)

    def refuse(self) -> None:
        """Say so as torch does."""
        raise torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB")


class Killed(Cramped):
    """Is killed, as by Linux when memory runs out, when it is to train more."""

    def refuse(self) -> None:
        """Die."""
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Cramped, "CUDA out of memory. Tried 2 GiB"),
        (Killed, "to train was lost, and so it was in 1 further tries"),
    ],
)
def test_actors_that_run_out_of_memory_are_asked_for_less(
    tiny: Run, kind: type, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without another try, a call would fail that comes while Ray starts the actor again.
    monkeypatch.setattr(of_ray, "RETRIES", 1)
    runs = mixed(tiny, Logistic())
    with pool_of(kind, 1) as pool:
        lockstep = Lockstep[str](host(pool, runs, "fused"))
        results, failed = together(runs, lockstep)
    assert not failed and lockstep.most in (2, 3, 4)
    assert lockstep.most_reason.startswith(
        f"replicates are computed at most {lockstep.most} at a time"
    )
    assert said in lockstep.most_reason
    for name, run in runs.items():
        assert_same(results[name], alone(run, "fused"))
