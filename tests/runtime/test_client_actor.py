"""The code of a client actor, run in this process, and the messages that it gets."""

import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import ray
import torch
from helpers.evaluation import scored
from helpers.tasks import Task, columns, training

from raysafl import MLP, LocalTraining, Run
from raysafl.core.work import TEST, Evaluation, Tasks, chosen_rows
from raysafl.objectives import Regression
from raysafl.runtime.client_actor import (
    LARGE,
    SHARED,
    Clients,
    PackSetup,
    packed,
    unpacked,
)
from raysafl.runtime.exact_mean import ShareResult
from raysafl.runtime.in_process import Worker
from raysafl.training import ContinuedTraining

LOCAL = LocalTraining(lr=0.1, batch_size=8, epochs=1)


def test_tasks_arrive_as_they_were_sent_with_the_vectors_that_they_need_alone() -> None:
    w_P = torch.arange(3.0)
    offset_MP = torch.eye(3)[:2]
    adam = ContinuedTraining(lr=0.1, batch_size=8, steps=2, optimizer="adam")
    moments_V = (torch.full((3,), 4.0), torch.full((3,), 5.0))
    first, second = (
        Task(0, 4 + i, w_P, LOCAL, 7, 2, 1, offset_P, 0.5)
        for i, offset_P in enumerate(offset_MP)
    )
    goes_on = Task(1, 3, 2 * w_P, adam, 8, 2, 3, before=9, moments=moments_V)
    one, other = (
        Task(2, 1 - i, 3 * start_P, LOCAL, 9, 2, 1, weight=0.5 + i)
        for i, start_P in enumerate(offset_MP)
    )
    plain = training([first, second])._replace(w=w_P[None])
    means = training([one, other], averaged=True)
    whole = Tasks.of([plain, training([goes_on]), means])
    expected = {
        1: ([[0, 1, 2]], [[0, 1, 0]], [-1], [0]),
        2: ([[0, 2, 4]], [[0, 0, 0]], [0], [0]),
        4: ([[0, 3, 0]], [[0, 0, 0]], [-1], [2]),
    }
    for t, (start_TP, offset_TP, moments_T, averaged_T) in expected.items():
        (part,) = unpacked(packed(whole[[t]].alone()))
        assert part.stacked("start").tolist() == start_TP
        assert part.stacked("offset").tolist() == offset_TP
        assert (part.columns["moments"] >= 0).tolist() == [m >= 0 for m in moments_T]
        assert part.columns["averaged"].tolist() == averaged_T
        for name in "cell client seed round call before weight prox".split():
            assert part.columns[name][0] == whole.columns[name][t]
        first = part.columns["moments"][0]
        kept = [] if first < 0 else chosen_rows(part.moments, first + np.arange(2))
        blocks = [*part.starts, *part.offsets, *part.moments]
        assert sum(map(len, blocks)) == {1: 2, 2: 3, 4: 1}[t]
        assert all(map(torch.equal, kept, moments_V))
    assert whole.columns["client"].tolist() == [4, 5, 3, 1, 0]


@pytest.mark.parametrize("first", ["adam", "sgd"])
def test_tasks_with_unequally_many_moments_take_along_those_that_are_theirs(
    first: str,
) -> None:
    w_P = torch.zeros(2)
    adam = ContinuedTraining(lr=0.1, batch_size=8, steps=2, optimizer="adam")
    sgd = ContinuedTraining(lr=0.1, batch_size=8, steps=2, momentum=0.9)
    kept = {"adam": (torch.ones(2), 2 * torch.ones(2)), "sgd": (3 * torch.ones(2),)}
    locals = {"adam": adam, "sgd": sgd}
    names = [first, *({"adam", "sgd"} - {first})]
    asked = [
        training([Task(c, c, w_P, locals[n], 7, 2, 1, before=4, moments=kept[n])])
        for c, n in enumerate(names)
    ]
    whole = Tasks.of(asked)
    for t, name in enumerate(names):
        part = whole[[t]].alone()
        assert part.columns["moments"].tolist() == [0]
        assert [len(block) for block in part.starts] == [1]
        (moments_VP,) = part.moments
        assert torch.equal(moments_VP, torch.stack(kept[name]))


@pytest.mark.parametrize("num_parameters", [5, 7850, LARGE // 4, LARGE // 4 + 1])
@pytest.mark.parametrize("clients", [1, 3, 40])
def test_a_result_arrives_as_it_was_sent_and_only_small_ones_as_bytes(
    num_parameters: int, clients: int
) -> None:
    rng = np.random.default_rng(0)
    result = ShareResult(
        columns_5T=rng.random((5, 3)),
        rows_TP=rng.random((clients, num_parameters), np.float32),
        sums_CP=rng.random((1, num_parameters)),
        moments_VP=np.empty((0, 0), np.float32),
    )
    sent = packed(result)
    size = sum(array.nbytes for array in vars(result).values())
    assert isinstance(sent, bytes) == (size + 2000 < LARGE)
    (received,) = unpacked(sent)
    for name, array in vars(result).items():
        np.testing.assert_array_equal(getattr(received, name), array, strict=True)


def test_a_large_start_of_several_messages_is_stored_once(ray_local: None) -> None:
    w_P = torch.arange(SHARED / 4)
    tasks = columns([Task(0, 4, w_P, LOCAL, 7, 2, 1)])
    stored: dict[int, Any] = {}
    sent = [packed(tasks, stored=stored) for _ in range(3)]
    assert len(stored) == 1
    for message in sent:
        (received,) = unpacked(message)
        assert torch.equal(received.starts[0][0], w_P)


def test_client_actors_train_and_evaluate_what_they_are_given(
    tiny: Run, ray_local: None
) -> None:
    clients = Clients()  # the actor's body, here
    dataset = tiny.data.load()
    setup = [ray.put(PackSetup(tiny.cells, dataset, tiny.model, "auto"))]

    def call(method: str, *values: Any) -> Any:
        return unpacked(clients.call(setup, method, packed(*values)))[0]

    assert call("describe") == ("cpu", "fused")
    reference = Worker(tiny.cells, dataset, tiny.model)
    w = [reference.init(cell) for cell in (0, 1)]
    tasks = [
        Task(cell, 3, w_P, tiny.local, tiny.seeds[cell], 0, 1, None, 0.0)
        for cell, w_P in enumerate(w)
    ]
    reply = call("train_share", columns(tasks))
    expected = reference.trainer.train(columns(tasks)).delta_MP
    for mine, theirs in zip(reply.rows_TP, expected, strict=True):
        assert torch.equal(torch.from_numpy(mine.copy()), theirs)
    # one unit is the whole test set here
    w_1P = w[1][None]
    units = reference.population.units([Evaluation(np.array([1]), w_1P, [[TEST]])])
    sums_2R = call("unit_sums", [w_1P], units)
    correct, loss = (sums_2R[:, 0] / len(dataset.test)).tolist()
    scores = {"test_accuracy": correct, "test_loss": loss}
    assert {1: scores} == scored(reference, {1: w[1]})


def test_an_actor_that_refused_a_setup_refuses_it_again_and_takes_the_next(
    tiny: Run, ray_local: None
) -> None:
    clients = Clients()
    good = PackSetup(tiny.cells, tiny.data.load(), tiny.model, "fused")
    bad = [ray.put(replace(good, objective=Regression()))]
    for _ in range(2):
        with pytest.raises(ValueError, match="Regression"):
            clients.call(bad, "describe", packed())
    told = clients.call([ray.put(good)], "describe", packed())
    assert unpacked(told) == (("cpu", "fused"),)


def parts_of(worker: Worker) -> list[weakref.ref[Any]]:
    """What a worker holds, and whatever of it is on its device."""
    trainer = worker.trainer
    model = trainer.model
    held = [worker, worker.population, trainer, trainer.engine, trainer.evaluator]
    held += [model, model.module, *model.module.parameters()]
    return [weakref.ref(part) for part in held]


@pytest.mark.parametrize("engine", ["linear", "fused", "loop", "vmap", "graph"])
def test_an_actor_holds_nothing_of_the_packs_before(
    tiny: Run, engine: str, no_gc: None
) -> None:
    model = tiny.model if engine in ("linear", "fused") else MLP(hidden=[8])
    dataset = tiny.data.load()
    clients = Clients()
    before: list[weakref.ref[Any]] = []
    for _ in range(4):
        clients.configure(PackSetup(tiny.cells, dataset, model, engine))
        assert [part() for part in before if part() is not None] == []
        w_P = clients.worker.init(0)
        task = Task(0, 3, w_P, tiny.local, 0, 0, 1, None, 0.0)
        for averaged in ([], [0]):
            packed(clients.worker.train_share(columns([task], averaged)))
        asked = Evaluation(np.array([0]), w_P[None], [[TEST]])
        units = clients.worker.population.units([asked])
        clients.worker.unit_sums([asked.w_RP], units)
        before = parts_of(clients.worker)


def test_packs_with_the_same_dataset_share_its_samples_on_the_device(
    tiny: Run, ray_local: None
) -> None:
    clients = Clients()
    reference = ray.put(tiny.data.load())
    setup = PackSetup(tiny.cells, reference, tiny.model, "fused")
    clients.configure(setup)
    samples = [clients.worker.trainer.inputs, clients.worker.trainer.test]
    # The next pack's message holds another object for the same reference.
    again = ray.ObjectRef(reference.binary())
    clients.configure(replace(setup, cells=tiny.cells[:1], dataset=again))
    assert clients.worker.trainer.inputs is samples[0]
    assert clients.worker.trainer.test is samples[1]


def test_another_dataset_takes_the_place_of_the_one_before(
    tiny: Run, ray_local: None, no_gc: None
) -> None:
    clients = Clients()
    setup = PackSetup(tiny.cells, ray.put(tiny.data.load()), tiny.model, "fused")
    clients.configure(setup)
    trainer = clients.worker.trainer
    before = [weakref.ref(samples) for samples in (trainer.inputs, trainer.test)]
    del trainer
    clients.configure(replace(setup, dataset=ray.put(tiny.data.load())))
    assert [samples() for samples in before] == [None, None]
