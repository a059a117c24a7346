"""Runs that advance together on client actors equal the same runs alone in one process."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import ray
import torch
from helpers.packs import Played, alone, assert_same, cells_of, judged, mixed, together

from raysafl import CNN, MLP, Hardware, Logistic, Model, Run
from raysafl.cluster import actors as of_ray
from raysafl.cluster.actors import Actors, LostActorsError
from raysafl.participation import Full
from raysafl.runtime.client_actor import Clients
from raysafl.runtime.messages import PackSetup, Sent, unpacked
from raysafl.runtime.on_actors import OnActors, host_pack
from raysafl.simulation.simulation import Lockstep

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


class KilledByClients(Killed):
    """Is killed when it is to train more than five clients of a cell."""

    def call(self, setup: Any, method: str, message: Sent) -> Sent:
        """Die of too many clients."""
        if method == "train_share":
            (tasks,) = unpacked(message)
            if tasks.cells()[1].max() > 5:
                self.refuse()
        return Clients.call(self, setup, method, message)


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


@pytest.mark.acceptance
def test_a_run_that_kills_its_actors_by_itself_fails_alone(
    tiny: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without another try, a call would fail that comes while Ray starts the actor again.
    monkeypatch.setattr(of_ray, "RETRIES", 1)
    large = tiny.replace(replicates=1, rounds=2, participation=Full())
    runs = {"large": large, "small": tiny}
    with pool_of(KilledByClients, 1) as pool:
        results, failed = together(runs, Lockstep(host(pool, runs, "fused")))
    assert list(failed) == ["large"] and isinstance(failed["large"], LostActorsError)
    assert_same(results["small"], alone(tiny, "fused"))
