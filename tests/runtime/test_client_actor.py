"""The code of a client actor, run in this process, and the messages that it gets."""

import torch

from raysafl import LocalTraining, Run
from raysafl.core.work import Task
from raysafl.runtime import Clients, Worker
from raysafl.runtime.messages import (
    EvaluationRequest,
    EvaluationSums,
    RunSetup,
    TaskMessage,
    TaskReply,
)
from raysafl.training.inputs import as_tensor


def test_a_message_arrives_as_it_was_sent() -> None:
    local = LocalTraining(lr=0.1, batch_size=8, epochs=1)
    w = [torch.arange(3.0), torch.ones(3)]
    tasks = [
        Task(0, 4, w[0], local, 7, 2, 1, None, 0.0),
        Task(0, 5, w[0], local, 7, 2, 1, torch.tensor([1.0, 2.0, 3.0]), 0.5),
        Task(1, 4, w[1], local, 8, 2, 3, torch.zeros(3), 0.0),
    ]
    message = TaskMessage(tasks, {0: 2}, EvaluationRequest(9, [0, 2500], [w[1]]))
    header, offsets, *starts = message.encode(
        {id(w_P): w_P.numpy().tobytes() for w_P in w}
    )
    assert len(starts) == 2  # a start goes once, however many tasks have it
    received = TaskMessage.decode(header, offsets, starts)
    for task, original in zip(received.tasks, tasks, strict=True):
        for value, expected in zip(task, original, strict=True):
            same = (
                torch.equal
                if isinstance(expected, torch.Tensor)
                else lambda a, b: a == b
            )
            assert same(value, expected)
    assert received.counts == {0: 2} and message.num_reply_parts == 3
    assert received.evaluation
    assert (received.evaluation.number, received.evaluation.spans) == (9, [0, 2500])
    assert torch.equal(received.evaluation.w[0], w[1])


def test_client_actors_evaluate_once_what_came_with_a_training(tiny: Run) -> None:
    clients, dataset = Clients(), tiny.data.load()
    clients.configure(RunSetup(tiny.data, dataset, tiny.model, tiny.seeds, "auto"))
    assert clients.worker is not None
    reference, made = Worker(tiny.cells, dataset, tiny.model), list[int]()
    sums = clients.worker.trainer.evaluator.span_sums

    def noted(w_RP: torch.Tensor, start: int) -> torch.Tensor:
        made.append(len(w_RP))
        return sums(w_RP, start)

    clients.worker.trainer.evaluator.span_sums = noted  # type: ignore[method-assign]
    w = reference.init()
    expected = reference.trainer.evaluator.span_sums(torch.stack(w), 0).numpy()
    tasks = [
        Task(r, 3, w_P, tiny.local, tiny.seeds[r], 0, 1, None, 0.0)
        for r, w_P in enumerate(w)
    ]
    sent = {id(w_P): w_P.numpy().tobytes() for w_P in w}

    def train(number: int) -> EvaluationSums | None:
        message = TaskMessage(tasks, {}, EvaluationRequest(number, [0], w))
        reply = TaskReply.decode(message, clients.train(*message.encode(sent)))
        rows_TP = as_tensor(reply.result.rows_TP)
        torch.testing.assert_close(rows_TP, reference.train(tasks).rows.delta_MP)
        return reply.evaluation

    assert train(1) is None
    found = train(2)
    assert found and found.number == 1 and (found.sums.reshape(2, 2) == expected).all()
    (asked,) = clients.evaluate(2, [0], *sent.values())
    assert (asked == expected).all() and made == [2, 2]
    # another actor had it, and is lost
    (anew,) = clients.evaluate(1, [0], *sent.values())
    assert (anew == expected).all() and made == [2, 2, 2]
    assert train(3) is None
    assert clients.count_correct({0: [3]}, 0, 1, sent[id(w[0])])
    found = train(4)
    # counting samples has not taken it
    assert found and found.number == 3
    clients.configure(RunSetup(tiny.data, dataset, tiny.model, tiny.seeds, "auto"))
    assert train(1) is None  # another run's evaluation is none of ours


def test_client_actors_train_and_evaluate_what_they_are_given(tiny: Run) -> None:
    clients = Clients()  # the actor's body, here
    dataset = tiny.data.load()
    device, engine = clients.configure(
        RunSetup(tiny.data, dataset, tiny.model, tiny.seeds, "auto")
    )
    assert (device, engine) == ("cpu", "fused")
    reference = Worker(tiny.cells, dataset, tiny.model)
    w = reference.init()
    # one span is the whole test set here
    (sums_2R,) = clients.evaluate(1, [0], w[1].numpy())
    correct, loss = (sums_2R[:, 0] / len(dataset.test)).tolist()
    assert {1: (correct, loss)} == reference.evaluate({1: w[1]})()
