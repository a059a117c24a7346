"""The code of a client actor, run in this process, and the messages that it gets."""

import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import ray
import torch

from raysafl import MLP, LocalTraining, Regression, Run
from raysafl.core.work import Task
from raysafl.runtime.client_actor import Clients
from raysafl.runtime.exact_mean import ShareResult
from raysafl.runtime.in_process import Worker
from raysafl.runtime.messages import (
    LARGE,
    PackSetup,
    TaskMessage,
    decode_reply,
    encode_reply,
)
from raysafl.runtime.spans import TEST, Span


def test_a_message_arrives_as_it_was_sent() -> None:
    local = LocalTraining(lr=0.1, batch_size=8, epochs=1)
    w = [torch.arange(3.0), torch.ones(3)]
    tasks = [
        Task(0, 4, w[0], local, 7, 2, 1, None, 0.0),
        Task(0, 5, w[0], local, 7, 2, 1, torch.tensor([1.0, 2.0, 3.0]), 0.5),
        Task(1, 4, w[1], local, 8, 2, 3, torch.zeros(3), 0.0),
    ]
    message = TaskMessage(tasks, {0: 2})
    header, *vectors = message.encode({})
    # A start goes once, however many tasks have it.
    assert list(map(len, vectors)) == [2 * 12, 2 * 12]
    received = TaskMessage.decode(header, vectors, 3)
    for task, original in zip(received.tasks, tasks, strict=True):
        for value, expected in zip(task, original, strict=True):
            same = (
                torch.equal
                if isinstance(expected, torch.Tensor)
                else lambda a, b: a == b
            )
            assert same(value, expected)
    assert received.counts == {0: 2} and message.num_reply_parts == 2


@pytest.mark.parametrize("num_parameters", [5, 7850, LARGE // 4, LARGE // 4 + 1])
@pytest.mark.parametrize("clients", [1, 3, 40])
def test_a_reply_arrives_as_it_was_sent_in_as_many_parts_as_are_expected(
    num_parameters: int, clients: int
) -> None:
    local, w_P = (
        LocalTraining(lr=0.1, batch_size=8, epochs=1),
        torch.ones(num_parameters),
    )
    cells = [cell for cell in range(3) for _ in range(clients)]
    tasks = [Task(cell, 0, w_P, local, 0, 0, 1, None, 0.0) for cell in cells]
    rng = np.random.default_rng(0)
    # All of cell 0, none of cell 1, and a part of cell 2 is averaged here.
    message = TaskMessage(tasks, {0: clients, 2: clients + 1})
    result = ShareResult(
        columns_5T=rng.random((5, len(tasks))),
        rows=list(rng.random((clients, num_parameters), np.float32)),
        means={0: rng.random(num_parameters, np.float32)},
        sums={2: rng.random(num_parameters)},
    )
    parts = encode_reply(result)
    assert len(parts) == message.num_reply_parts
    received = decode_reply(message, parts)
    assert (received.columns_5T == result.columns_5T).all()
    assert (np.stack(received.rows) == np.stack(result.rows)).all()
    for name in ("means", "sums"):
        mine, theirs = getattr(received, name), getattr(result, name)
        assert mine.keys() == theirs.keys()
        assert all((mine[cell] == theirs[cell]).all() for cell in theirs)


def test_client_actors_train_and_evaluate_what_they_are_given(tiny: Run) -> None:
    clients = Clients()  # the actor's body, here
    dataset = tiny.data.load()
    device, engine = clients.configure(
        PackSetup(tiny.cells, dataset, tiny.model, "auto")
    )
    assert (device, engine) == ("cpu", "fused")
    reference = Worker(tiny.cells, dataset, tiny.model)
    w = [reference.init(cell) for cell in (0, 1)]
    tasks = [
        Task(cell, 3, w_P, tiny.local, tiny.seeds[cell], 0, 1, None, 0.0)
        for cell, w_P in enumerate(w)
    ]
    message = TaskMessage(tasks, {})
    reply = decode_reply(message, clients.train(*message.encode({})))
    for mine, theirs in zip(reply.rows, reference.train(tasks).values(), strict=True):
        assert torch.equal(torch.from_numpy(mine.copy()), theirs[0][0])
    # one span is the whole test set here
    sums_2R = clients.evaluate([Span(TEST, 0, [0])], w[1].numpy())
    correct, loss = (sums_2R[:, 0] / len(dataset.test)).tolist()
    scores = {"test_accuracy": correct, "test_loss": loss}
    assert {1: scores} == reference.evaluate({1: w[1]})
    assert clients.count_correct({0: [3]}, 0, 1, w[0].numpy()) == [
        reference.count_correct(0, w[0], [3])
    ]


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
    for _ in range(20):
        clients.configure(PackSetup(tiny.cells, dataset, model, engine))
        assert [part() for part in before if part() is not None] == []
        w_P = clients.worker.init(0)
        task = Task(0, 3, w_P, tiny.local, 0, 0, 1, None, 0.0)
        for counts in ({}, {0: 1}):
            clients.train(*TaskMessage([task], counts).encode({}))
        clients.evaluate([Span(TEST, 0, [0])], w_P.numpy())
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


def test_a_pack_that_is_refused_leaves_an_actor_ready_for_the_next(tiny: Run) -> None:
    clients = Clients()
    setup = PackSetup(tiny.cells, tiny.data.load(), tiny.model, "fused")
    clients.configure(setup)
    with pytest.raises(ValueError, match="Regression"):
        clients.configure(replace(setup, objective=Regression()))
    assert clients.configure(setup) == ("cpu", "fused")
