"""Runs of models with frozen parameters: traffic, actors, and runs that are continued."""

from dataclasses import asdict, replace
from typing import Any

import helpers.frozen
import pytest
import ray
import torch
from helpers.checkpoints import dump, restore
from helpers.frozen import Backbone, FrozenBias

from raysafl import Hardware, Run
from raysafl.core.algorithm import LocalTraining, State
from raysafl.runtime.client_actor import Clients, PackSetup
from raysafl.runtime.in_process import Worker
from raysafl.runtime.on_actors import host_pack, start_actors
from raysafl.simulation.simulation import Simulation

# Of digits, 1 x 8 x 8, in 10 classes: the convolution has 3 channels, pooling halves.
HEAD = (3 * 4 * 4 + 1) * 10
FACTS = ("replicate", "round", "test_accuracy", "test_loss", "bytes_up", "bytes_down")


@pytest.fixture
def frozen(tiny: Run) -> Run:
    """`tiny` with frozen convolutions."""
    local = LocalTraining(lr=0.1, batch_size=32, steps=2)
    return tiny.replace(model=Backbone(), local=local)


def worker(run: Run) -> Worker:
    """The run's work in this process, with the engine that is the same everywhere."""
    return Worker(run.cells, run.data.load(), run.model, engine="loop")


def rows(simulation: Simulation) -> list[dict[str, Any]]:
    """Run the rounds that are left, and return what does not depend on the clock."""
    records = []
    while not simulation.done:
        records += [asdict(record) for record in simulation.step()]
    return [{name: record[name] for name in FACTS} for record in records]


def test_only_the_head_moves_and_counts_and_the_backbone_stays(frozen: Run) -> None:
    work = worker(frozen)
    backbone = {
        name: value.clone() for name, value in work.trainer.model.frozen.items()
    }
    simulation = Simulation(frozen, work)
    before = [replicate.state.w_P for replicate in simulation.replicates]
    for row in rows(simulation):
        assert row["bytes_up"] == row["bytes_down"] == 3 * HEAD * 4
    for replicate, w_P in zip(simulation.replicates, before, strict=True):
        assert w_P.shape == (HEAD,) and not torch.equal(replicate.state.w_P, w_P)
    for name, value in work.trainer.model.frozen.items():
        assert torch.equal(value, backbone[name]) and value.any()


@pytest.mark.acceptance
@pytest.mark.usefixtures("ray_local")
def test_frozen_models_on_actors_give_the_rows_of_one_process(frozen: Run) -> None:
    # Ray's workers cannot import it.
    ray.cloudpickle.register_pickle_by_value(helpers.frozen)
    expected = Simulation(frozen, worker(frozen))
    expected_rows = rows(expected)
    pool = start_actors(Hardware(actors=2, cpus=0.5))
    try:
        data = ray.put(frozen.data.load())
        setup = PackSetup(frozen.cells, data, frozen.model, "loop")
        simulation = Simulation(frozen, host_pack(pool, setup)[0])
        assert rows(simulation) == expected_rows
    finally:
        pool.kill()
    for one, other in zip(simulation.replicates, expected.replicates, strict=True):
        assert torch.equal(one.state.w_P, other.state.w_P)


@pytest.mark.acceptance
def test_client_actors_take_the_frozen_parameters_that_they_are_sent(
    frozen: Run,
) -> None:
    run = frozen.replace(model=FrozenBias())
    sent = {"1.bias": torch.arange(10.0) * 2}
    clients, dataset = Clients(), run.data.load()
    clients.configure(PackSetup(run.cells, dataset, run.model, "loop", frozen=sent))
    (found_P,) = clients.worker.trainer.model.frozen.values()
    assert torch.equal(found_P, sent["1.bias"])


def test_a_checkpoint_that_holds_frozen_parameters_too_is_refused(frozen: Run) -> None:
    simulation = Simulation(frozen, worker(frozen))
    # Earlier versions trained the 3 x 9 weights and 3 biases of the convolution as well.
    for replicate in simulation.replicates:
        state = State(torch.zeros(HEAD + 30))
        replicate.stand(replace(replicate.standing, state=state))
    with pytest.raises(ValueError, match="520 parameters, the model now trains 490"):
        restore(Simulation(frozen, worker(frozen)), dump(simulation))
