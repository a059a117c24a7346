"""Client actors that are killed (SIGKILL) in the middle of a round, on a real local Ray."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import ray
import ray.cloudpickle
from helpers.actors import kill_actor
from helpers.evaluation import scored
from helpers.packs import alone, assert_same, play, played
from helpers.sweeps_here import go
from torch import Tensor, nn

from raysafl import SAFARI, Hardware, Logistic, Run, Sweep
from raysafl.cluster.actors import Actors
from raysafl.core.problem import Dataset
from raysafl.runtime.client_actor import PackSetup
from raysafl.runtime.on_actors import host_pack, start_actors
from raysafl.storage.store import Store

pytestmark = pytest.mark.usefixtures("ray_local")


class Dies(nn.Flatten):
    """Kills the client actor that it is in, in its third step, so many times in all."""

    def __init__(self, folder: str, times: int) -> None:
        super().__init__()
        self.folder, self.times, self.steps = Path(folder), times, 0

    def forward(self, x: Tensor) -> Tensor:
        context = ray.get_runtime_context()
        if context.get_actor_id() and context.get_task_name() == "train":
            self.steps += 1
            if self.steps == 3 and self._takes_a_death():
                os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)

    def _takes_a_death(self) -> bool:
        """Takes one of the numbered deaths, which no two actors can take together."""
        for death in range(self.times):
            with contextlib.suppress(FileExistsError):
                (self.folder / str(death)).touch(exist_ok=False)
                return True
        return False


class Deadly(Logistic):
    """Logistic regression on flattened inputs, once the actors have died often enough."""

    folder: str
    times: int

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        layers = list(super().build(input_shape, num_classes).children())
        return nn.Sequential(Dies(self.folder, self.times), *layers[1:])


@pytest.fixture(autouse=True)
def _by_value() -> Iterator[None]:
    module = sys.modules[__name__]
    ray.cloudpickle.register_pickle_by_value(module)
    yield
    ray.cloudpickle.unregister_pickle_by_value(module)


def deadly(tiny: Run, folder: Path, times: int) -> Run:
    folder.mkdir()
    return tiny.replace(
        model=Deadly(folder=str(folder), times=times), algorithm=SAFARI(client_prob=0.6)
    )


def setup_of(run: Run, dataset: Dataset, engine: str) -> PackSetup:
    return PackSetup(run.cells, ray.put(dataset), run.model, engine)


@contextlib.contextmanager
def started(actors: int) -> Iterator[Actors]:
    """So many client actors."""
    pool = start_actors(Hardware(actors=actors, cpus=0.5))
    try:
        yield pool
    finally:
        pool.kill()


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("actors", "deaths", "engine"), [(1, 1, "vmap"), (2, 3, "loop")]
)
def test_actors_that_die_in_mid_round_change_no_bit(
    tiny: Run, tmp_path: Path, actors: int, deaths: int, engine: str
) -> None:
    mortal = deadly(tiny, tmp_path / "deaths", deaths)
    with started(actors) as pool:
        work, _, used = host_pack(pool, setup_of(mortal, tiny.data.load(), engine))
        assert used == engine
        simulation, records = play(mortal, work)
    assert len(list((tmp_path / "deaths").iterdir())) == deaths
    immortal = deadly(tiny, tmp_path / "none", 0)
    assert_same(played(records, simulation), alone(immortal, engine))


@pytest.mark.acceptance
def test_an_idle_actor_that_dies_is_replaced_and_configured(tiny: Run) -> None:
    dataset = tiny.data.load()
    with started(2) as pool:
        work, *_ = host_pack(pool, setup_of(tiny, dataset, "auto"))
        w = {cell: work.init(cell) for cell in (0, 1)}
        before = scored(work, w)
        kill_actor(pool.handles[0])
        assert scored(work, w) == before
        kill_actor(pool.handles[1])  # while nothing is asked: the next pack needs it
        work, *what = host_pack(pool, setup_of(tiny, dataset, "loop"))
        assert what == ["cpu", "loop"]
        assert scored(work, w) == before


@pytest.mark.acceptance
def test_a_run_that_kills_its_actors_fails_alone_and_one_that_loses_some_is_not_tried_again(
    tiny: Run, tmp_path: Path
) -> None:
    # Of more than one seed, each half would be tried again.
    one = tiny.replace(replicates=1)
    runs = {
        ("whole",): one.replace(algorithm=SAFARI(client_prob=0.6)),
        ("unlucky",): deadly(one, tmp_path / "two", 2),
        ("deadly",): deadly(one, tmp_path / "all", 100),
    }
    sweep = Sweep("losses", runs, axes=("fate",))
    hardware = Hardware(actors=1, cpus=0.5, trials=1)
    options = {"hardware": hardware, "executor": "ray", "engine": "loop"}
    outcome, said = go(sweep, tmp_path / "s", **options)
    by_fate = outcome.runs.set_index("label.fate")
    assert by_fate["status"].groupby(level=0).agg(set).to_dict() == {
        "whole": {"finished"},
        "unlucky": {"finished"},
        "deadly": {"failed"},
    }
    reason = str(by_fate.loc["deadly", "reason"])
    assert reason.startswith(
        "LostActorsError: the client actor that was to train was lost, and so it was in 3 further"
    )
    assert reason in " ".join(said.split())
    assert len(list((tmp_path / "two").iterdir())) == 2
    rows = {name: Store(tmp_path / "s").rounds(run.id) for (name,), run in runs.items()}
    columns = "replicate round kind test_accuracy test_loss train_accuracy".split()
    pd.testing.assert_frame_equal(rows["unlucky"][columns], rows["whole"][columns])
    assert rows["deadly"].empty
