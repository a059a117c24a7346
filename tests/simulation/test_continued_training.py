"""Training that goes on from round to round, against FAST's clients as torch objects."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from helpers.fast_authors import AuthorsClient
from helpers.gpu_program import trains_as_on_a_gpu
from helpers.tasks import Task, columns

import raysafl as fl
from raysafl.participation import Cyclic
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Simulation
from raysafl.training import ContinuedTraining
from raysafl.training.engines import ENGINES
from raysafl.training.inputs import Held, StepCounts, batch_width, draw_plan
from raysafl.training.optimizer import plain_steps

ROUNDS = 6
IN_ORDER = ContinuedTraining(
    lr=0.05, batch_size=30, steps=2, momentum=0.9, shuffle=False
)
KINDS = [
    IN_ORDER,
    IN_ORDER.replace(weight_decay=0.01),
    IN_ORDER.replace(momentum=0.0, keep_optimizer=False),
    IN_ORDER.replace(optimizer="adam", momentum=0.0, lr=1e-3),
]


def optimizer_of(
    local: fl.LocalTraining, parameters: Iterator[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    if local.optimizer == "adam":
        return torch.optim.Adam(parameters, local.lr, weight_decay=local.weight_decay)
    return torch.optim.SGD(
        parameters, local.lr, local.momentum, weight_decay=local.weight_decay
    )


@pytest.mark.parametrize("as_gpu", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("local", KINDS, ids=repr)
def test_rounds_of_one_client_equal_torch_objects_that_no_round_resets(
    tiny: fl.Run,
    local: ContinuedTraining,
    engine: str,
    as_gpu: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    linear = engine in ("linear", "fused")
    if engine == "fused" and as_gpu:
        return  # compiled loops are for CPUs
    model: fl.Model = fl.Logistic(zero_init=False) if linear else fl.MLP(hidden=[12])
    run = tiny.replace(
        model=model,
        algorithm=fl.FedAvg(),
        participation=Cyclic(groups=[[0]]),
        local=local,
        replicates=1,
        rounds=ROUNDS,
        eval_every=1,
    )
    dataset = run.data.load()
    rounds = []
    steps = []
    work = Worker(run.cells, dataset, run.model, device="cpu", engine=engine)
    if as_gpu:
        trains_as_on_a_gpu(work.trainer, monkeypatch)
    simulation = Simulation(run, work)
    (own,) = simulation.replicates
    while not simulation.done:
        before_P = own.state.w_P.clone()
        (record,) = simulation.step()
        rounds.append((before_P, own.state.w_P.clone(), own.standing.progress[0]))
        steps.append(record.steps)

    held = work.population.splits[0].of(0)
    train = dataset.train
    x = torch.from_numpy(train.x[held]) * train.scale + train.shift
    module = model.build(tuple(x.shape[1:]), dataset.num_classes)
    theirs = AuthorsClient(
        module,
        optimizer_of(local, module.parameters()),
        x,
        torch.from_numpy(train.y[held]),
        local.batch_size,
    )
    for before_P, after_P, progress in rounds:
        expected_P, running = theirs.participate(before_P, most=2)
        torch.testing.assert_close(after_P, expected_P, rtol=0, atol=1e-6)
        assert progress.hits / progress.seen == pytest.approx(running)
    # A pass has five mini-batches.
    assert steps == [2, 2, 1, 2, 2, 1]


def test_a_pass_shows_each_sample_once_and_the_next_one_in_another_order() -> None:
    local = ContinuedTraining(lr=0.1, batch_size=10, steps=3, momentum=0.5)
    held = np.arange(100, 147)
    samples = Held.of([held])
    task = Task(0, 4, torch.empty(0), local, 7, 0, 1, None, 0.0)
    passes: list[list[int]] = [[], []]
    before = 0
    for round, steps in enumerate([3, 2, 3, 2]):
        # The round in which a client comes changes nothing.
        one = columns([task._replace(round=11 * round, before=before)])
        steps_T = StepCounts.of(one, samples.samples_T)
        plan = draw_plan(one, samples, steps_T).index_NB
        assert plan.shape == (steps, batch_width(len(held), local))
        passes[round // 2] += plan[plan >= 0].tolist()
        before += steps
    assert sorted(passes[0]) == sorted(passes[1]) == held.tolist()
    assert passes[0] != passes[1] != held.tolist()


def test_whole_passes_with_a_fresh_optimizer_equal_plain_training_bitwise(
    tiny: fl.Run,
) -> None:
    epochs = {"lr": 0.1, "batch_size": 16, "epochs": 2, "momentum": 0.9}
    again = ContinuedTraining(**epochs, keep_optimizer=False)
    ends = []
    for local in (fl.LocalTraining(**epochs), again):
        run = tiny.replace(local=local, algorithm=fl.SAFARI(client_prob=0.7))
        simulation = Simulation(run, Worker(run.cells, run.data.load(), run.model))
        while not simulation.done:
            simulation.step()
        ends.append([own.state.w_P for own in simulation.replicates])
    assert all(map(torch.equal, *ends))


@pytest.mark.parametrize(("before", "steps"), [(0, 3), (1, 4), (25, 2)])
def test_steps_with_a_kept_momentum_count_as_the_gradients_that_they_move_along(
    before: int, steps: int
) -> None:
    # The gradient is 1 in every step.
    buffer = moved = 0.0
    for k in range(before + steps):
        buffer = 0.9 * buffer + 1
        moved += buffer if k >= before else 0.0
    local = ContinuedTraining(lr=0.1, batch_size=8, steps=5, momentum=0.9)
    task = Task(0, 0, torch.empty(0), local, 0, 0, 1, None, 0.0, before=before)
    kept = task._replace(moments=(torch.empty(0),))
    found = plain_steps(columns([kept]), np.array([steps]))
    assert float(found) == pytest.approx(moved, rel=1e-6)


def test_what_cannot_go_on_is_refused(tiny: fl.Run) -> None:
    with pytest.raises(ValueError, match="SGD without momentum has nothing to keep"):
        ContinuedTraining(lr=0.1, batch_size=8, steps=2)
    with pytest.raises(ValueError, match="is for the clients of a run, as its `local`"):
        tiny.replace(algorithm=fl.SAFARI(client_prob=0.5, server_update=IN_ORDER))


@pytest.mark.parametrize("adapt", [1.0, 7.0])
def test_q_follows_the_cohorts_mean_of_the_accuracies_since_passes_began(
    tiny: fl.Run, adapt: float
) -> None:
    uniform = fl.Uniform(m=4)
    policy = fl.Snapshot(base=uniform, uniform=uniform, adapt=adapt, accuracy="pass")
    local = IN_ORDER.replace(batch_size=10, lr=0.01)
    run = tiny.replace(
        participation=policy, local=local, rounds=30, eval_every=1, replicates=1
    )
    simulation = Simulation(run, Worker(run.cells, run.data.load(), run.model))
    q = before = 0.0
    seen = []
    while not simulation.done:
        (record,) = simulation.step()
        assert record.enforce_prob == pytest.approx(q, abs=1e-12)
        progress = simulation.replicates[0].standing.progress
        own = [progress[i].hits / progress[i].seen for i in record.cohorts[0]]
        now = sum(own) / len(own)
        assert record.train_accuracy == pytest.approx(now)
        q = min(1.0, max(0.0, q + adapt * (before - now)))
        before = now
        seen.append(q)
    assert len(set(seen)) > 10
    with pytest.raises(ValueError, match="give local=ContinuedTraining"):
        run.replace(local=fl.LocalTraining(lr=0.1, batch_size=8, steps=2))
