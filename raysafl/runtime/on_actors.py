"""`Work` on Ray actors, each of which can train any client of the run.

One round takes one message to each actor and one reply from it (see
`raysafl.runtime.messages`). Tasks are distributed by `raysafl.runtime.placement`.
Results do not depend on that distribution: sums are exact
(`raysafl.runtime.exact_mean`), and rows are put back into the order of the tasks.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from raysafl.core.work import Scores, Task, Trained
from raysafl.runtime.actor_pool import ActorPool, Call
from raysafl.runtime.client_actor import Clients
from raysafl.runtime.exact_mean import combine_shares, count_averaged
from raysafl.runtime.hardware import Hardware
from raysafl.runtime.in_process import Worker
from raysafl.runtime.messages import RunSetup, SentParameters, TaskMessage, TaskReply
from raysafl.runtime.pending_evaluations import PendingEvaluations
from raysafl.runtime.placement import assign_replicates
from raysafl.training.evaluation import scores_of_sums, span_starts
from raysafl.training.inputs import as_tensor

# In samples times parameters: a round with less work is trained by one actor, because a
# second message would take longer than it saves.
MIN_WORK_TO_SHARE = 10**5

# About so many samples are tested in the time that training on one sample takes.
TESTED_PER_TRAINED = 3


def start_actors(hardware: Hardware) -> ActorPool:
    """Start client actors; those of a trial land in the trial's placement group."""
    return ActorPool(Clients, hardware)


def should_piggyback(engine: str) -> bool:
    """Return whether evaluations with this engine should be sent with trainings.

    That saves a message, some 2 ms a round. It does not pay for engines whose
    evaluations allocate large tensors: such an evaluation runs in a thread of its own,
    where the C library returns every large block to the system, which costs more.
    """
    return engine == "fused"


def agree_on_engine(actors: ActorPool, setup: RunSetup) -> tuple[str, str]:
    """Wait until all actors are configured, and let one engine train the whole run.

    Engines agree to float32 tolerance only, and with "auto" each machine measures which
    is its fastest. The first actor's choice becomes every actor's, including those that
    replace a lost one later.

    Args:
        actors: Actors that are being configured with `setup`.
        setup: The setup of the run.

    Returns:
        The first actor's device, and the engine.
    """
    replies = actors.ready()
    device, engine = replies[0]
    setup = replace(setup, engine=engine)
    if any(other != engine for _, other in replies):
        actors.configure(setup)
        actors.ready()
    actors.configure_replacements(setup)
    return device, engine


class OnActors:
    """`Work` on client actors that have been configured for the run.

    Args:
        actors: The client actors.
        reference: The same work in this process. Initial parameters and the numbers
            and bytes of samples are taken from it; it trains nothing.
        piggyback: Whether evaluations are sent with trainings, see `should_piggyback`.
    """

    def __init__(
        self, actors: ActorPool, reference: Worker, piggyback: bool = False
    ) -> None:
        self.actors = actors
        self.reference = reference
        self.init = reference.init
        self.sizes = reference.sizes
        self.shared_bytes = reference.shared_bytes
        self.parameters = SentParameters()
        self.pending = PendingEvaluations(actors, self.parameters, piggyback)

    def train(self, tasks: Sequence[Task], averaged: Collection[int] = ()) -> Trained:
        """Carry out the tasks; see `Work.train`."""
        counts = count_averaged(tasks, averaged)
        shares = {i: share for i, share in enumerate(self._distribute(tasks)) if share}
        self.parameters.forget()

        # One message for each actor that has tasks; its evaluations may go with it.
        evaluations = self.pending.take_piggybacked(shares)
        messages = {
            i: TaskMessage(
                tasks=[tasks[k] for k in share],
                counts=counts,
                evaluation=evaluations[i].request if i in evaluations else None,
            )
            for i, share in shares.items()
        }
        tensors = [w_P for message in messages.values() for w_P in message.tensors()]
        sendable = dict(zip(map(id, tensors), self.parameters.of(tensors), strict=True))
        for part in evaluations.values():
            part.sent = [sendable[id(w_P)] for w_P in part.request.w]

        # All messages are sent before the first reply is waited for.
        calls = [self._send(i, message, sendable) for i, message in messages.items()]
        self.pending.send_waiting()
        self.parameters.forget()
        replies = [
            TaskReply.decode(message, parts)
            for message, parts in zip(
                messages.values(), self.actors.get(calls), strict=True
            )
        ]

        for reply in replies:
            self.pending.receive(reply.evaluation)
        results = [reply.result for reply in replies]
        return combine_shares(tasks, counts, list(shares.values()), results)

    def evaluate(self, w: Mapping[int, Tensor]) -> Callable[[], Scores]:
        """Begin to evaluate each replicate's parameters; see `Work.evaluate`.

        The spans of the test set are divided among the actors. They evaluate after the
        next training, in the time in which they would wait for the other actors and for
        the coordinator.
        """
        num_samples = len(self.reference.trainer.test.y)
        starts = span_starts(num_samples)
        num_actors = len(self.actors)
        spans_of = [
            starts[i::num_actors] for i in range(num_actors) if starts[i::num_actors]
        ]
        cost = len(w) * num_samples // len(spans_of) // TESTED_PER_TRAINED
        models = list(w.values())
        parts = [
            self.pending.add(i, spans, models, cost) for i, spans in enumerate(spans_of)
        ]

        def scores() -> Scores:
            sums = self.pending.sums(parts)
            # Span k was the (k // num_actors)-th span of actor k % num_actors.
            in_order = [
                as_tensor(sums[k % num_actors][k // num_actors])
                for k in range(len(starts))
            ]
            pairs_R2 = scores_of_sums(in_order, num_samples).T.tolist()
            return {
                r: (accuracy, loss)
                for r, (accuracy, loss) in zip(w, pairs_R2, strict=True)
            }

        return scores

    def train_accuracy(
        self, w: Mapping[int, Tensor], ids: Mapping[int, Sequence[int]]
    ) -> dict[int, float]:
        """Return each replicate's accuracy (in [0, 1]) on some clients' samples.

        Every actor counts an equal share of the samples.
        """
        arrays = self.parameters.of([w[r] for r in ids])
        num_actors = len(self.actors)
        calls = [
            self.actors.send(i, "count_correct", dict(ids), i, num_actors, *arrays)
            for i in range(num_actors)
        ]
        counts = map(sum, zip(*self.actors.get(calls), strict=True))
        return {
            r: correct / self.reference.samples(r, ids[r])
            for r, correct in zip(ids, counts, strict=True)
        }

    def _distribute(self, tasks: Sequence[Task]) -> list[list[int]]:
        """Return the indices of each actor's tasks."""
        costs = [self._cost(task) for task in tasks]
        loads = self.pending.take_loads()
        if (
            sum(costs) * self.reference.trainer.model.num_parameters
            <= MIN_WORK_TO_SHARE
        ):
            loads = loads[:1]
        return assign_replicates([task.replicate for task in tasks], costs, loads)

    def _cost(self, task: Task) -> int:
        """Return about how many samples a task will see."""
        samples = self.reference.splits[task.replicate].size(task.client)
        return task.local.num_steps(samples) * min(samples, task.local.batch_size)

    def _send(
        self, actor: int, message: TaskMessage, sendable: Mapping[int, object]
    ) -> Call:
        arguments = message.encode(sendable)
        return self.actors.send(
            actor, "train", *arguments, parts=message.num_reply_parts
        )
