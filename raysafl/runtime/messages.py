"""What travels between a run's coordinator and its client actors, and in which form.

- `RunSetup` goes to every actor once per run.
- `TaskMessage` goes to an actor once per round: its share of the round's tasks, and,
  where that saves a message, what it is to evaluate after them (an
  `EvaluationRequest`).
- `TaskReply` comes back: the share's result, and the `EvaluationSums` of the evaluation
  that came with the round before.

`TaskMessage` and `TaskReply` are encoded by hand, because a round of small models takes
a few milliseconds, of which pickling would be the larger part. A message consists of
one pickled header, the offsets, and each start vector once, however many tasks start
from it. Arrays of up to `LARGE` bytes are sent as `bytes`, which Ray packs in a third
of the time that an array takes. Larger arrays go through Ray's object store.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.problem import Dataset, FederatedData, Model
from raysafl.core.work import Task
from raysafl.runtime.exact_mean import ShareResult, count_averaged
from raysafl.training.inputs import as_tensor

Array = NDArray[Any]
Sent: TypeAlias = Array | bytes
# Ray sends larger arguments and results through its object store.
LARGE = 100_000
START = Task._fields.index("w_P")
OFFSET = Task._fields.index("offset_P")


@dataclass(frozen=True)
class RunSetup:
    """What a client actor needs to know of a run before its first round.

    Args:
        data: How the dataset is split among clients and server.
        dataset: The training and test samples, or a reference to them in Ray's object
            store.
        model: The recipe of the model.
        seeds: One seed for each replicate.
        engine: The engine's name, or "auto" to measure which is the fastest.
        batch_size: The usual batch size, for which an engine is chosen with "auto".
        frozen: The values of the model's frozen parameters by name, or a reference to
            them. They replace those that the actor's own build gives, which may differ
            in the last digits on another kind of processor.
    """

    data: FederatedData
    dataset: "Dataset | ray.ObjectRef[Dataset]"
    model: Model
    seeds: list[int]
    engine: str
    batch_size: int = 32
    frozen: "Mapping[str, Tensor] | ray.ObjectRef[Mapping[str, Tensor]]" = field(
        default_factory=dict
    )


@dataclass(frozen=True)
class EvaluationRequest:
    """Models that an actor is to evaluate on spans of the test set.

    Args:
        number: Tells this evaluation apart from every other one.
        spans: Where the spans begin (see `raysafl.training.evaluation`).
        w: The parameters [P] of each model.
    """

    number: int
    spans: Sequence[int]
    w: Sequence[Tensor]


@dataclass(frozen=True)
class EvaluationSums:
    """The answer to an `EvaluationRequest`.

    Args:
        number: The request's number.
        sums: For each span and model the number of correct samples and the summed loss
            (see `Evaluator.span_sums`): [spans, 2, R], or flat after it was sent.
    """

    number: int
    sums: Array


@dataclass(frozen=True)
class TaskMessage:
    """An actor's share of a round.

    Args:
        tasks: The tasks to train.
        counts: For each replicate that is averaged, its number of tasks on all actors.
        evaluation: What to evaluate once the tasks are trained, if anything.
    """

    tasks: Sequence[Task]
    counts: Mapping[int, int]
    evaluation: EvaluationRequest | None = None

    @property
    def num_reply_parts(self) -> int:
        """The number of parts of the reply: columns, rows, and one for each mean."""
        return 2 + len(count_averaged(self.tasks, self.counts))

    def tensors(self) -> list[Tensor]:
        """Return the parameters that the message refers to, with repetitions."""
        models = self.evaluation.w if self.evaluation else ()
        return [*(task.w_P for task in self.tasks), *models]

    def encode(self, sendable: Mapping[int, Any]) -> tuple[Any, ...]:
        """Return the arguments of `Clients.train`.

        Args:
            sendable: The form in which each of `tensors()` is sent, by Python's id of
                it.
        """
        used = list(dict.fromkeys(map(id, self.tensors())))
        index_of = {name: index for index, name in enumerate(used)}

        # A task is pickled as a plain tuple with its vectors replaced: the start by its
        # index among those sent, the offset by whether there is one.
        bare_tasks = []
        for task in self.tasks:
            bare = list(task)
            bare[START] = index_of[id(task.w_P)]
            bare[OFFSET] = task.offset_P is not None
            bare_tasks.append(tuple(bare))

        evaluation = None
        if self.evaluation:
            models = [index_of[id(w_P)] for w_P in self.evaluation.w]
            evaluation = (self.evaluation.number, self.evaluation.spans, models)

        header = ray.cloudpickle.dumps((bare_tasks, self.counts, evaluation))
        offsets = [
            task.offset_P.numpy() for task in self.tasks if task.offset_P is not None
        ]
        offset_TP = sent_form(np.stack(offsets)) if offsets else b""
        return header, offset_TP, *(sendable[name] for name in used)

    @classmethod
    def decode(cls, header: bytes, offset_TP: Sent, w: Sequence[Sent]) -> "TaskMessage":
        """Return the message from the arguments of `Clients.train`."""
        starts = [as_tensor(array_of(w_P)) for w_P in w]
        offsets = iter(as_tensor(array_of(offset_TP).reshape(-1, len(starts[0]))))
        bare_tasks, counts, evaluation = ray.cloudpickle.loads(header)

        tasks = list[Task]()
        for bare in bare_tasks:
            fields = list(bare)
            fields[START] = starts[bare[START]]
            fields[OFFSET] = next(offsets) if bare[OFFSET] else None
            tasks.append(Task._make(fields))

        if evaluation is None:
            return cls(tasks, counts)
        number, spans, models = evaluation
        request = EvaluationRequest(number, spans, [starts[index] for index in models])
        return cls(tasks, counts, request)


@dataclass(frozen=True)
class TaskReply:
    """An actor's answer to a `TaskMessage`.

    Args:
        result: The result of the share of tasks.
        evaluation: The sums of the evaluation that came with the message before, if
            any.
    """

    result: ShareResult
    evaluation: EvaluationSums | None

    def encode(self) -> tuple[Sent, ...]:
        """Return the parts of the reply; small ones each travel inside a message."""
        columns = self.result.columns_5T
        if self.evaluation:
            columns = np.append(
                columns, [self.evaluation.number, *self.evaluation.sums.ravel()]
            )
        return tuple(
            map(sent_form, (columns, self.result.rows_TP, *self.result.means_or_sums))
        )

    @classmethod
    def decode(cls, message: TaskMessage, parts: Sequence[Sent]) -> "TaskReply":
        """Return the reply to a message from its parts."""
        columns, rows, *means = parts
        num_tasks = len(message.tasks)
        num_parameters = message.tasks[0].w_P.numel()
        columns_5T, evaluation = np.split(
            array_of(columns, np.float64), [5 * num_tasks]
        )

        present = count_averaged(message.tasks, message.counts)
        complete = [count == message.counts[r] for r, count in present.items()]
        result = ShareResult(
            columns_5T=columns_5T.reshape(5, -1),
            rows_TP=array_of(rows).reshape(-1, num_parameters),
            means_or_sums=[
                array_of(mean, np.float32 if whole else np.float64)
                for mean, whole in zip(means, complete, strict=True)
            ],
        )
        if not evaluation.size:
            return cls(result, None)
        return cls(result, EvaluationSums(int(evaluation[0]), evaluation[1:]))


class SentParameters:
    """Parameters in the form in which Ray sends them.

    Large vectors are put into Ray's object store, where all actors of a machine read
    them. The vectors of the last call are remembered, so that one that is sent again at
    once (with another actor's tasks, or to be evaluated) is not stored twice.
    """

    def __init__(self) -> None:
        # By Python's id; the tensor is held too, so that its id stays its own.
        self._last: dict[int, tuple[Tensor, Any]] = {}

    def of(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Return the form in which each of these vectors is sent."""
        before = self._last
        self._last = {}
        for w_P in tensors:
            if id(w_P) not in self._last:
                self._last[id(w_P)] = before.get(id(w_P)) or (w_P, self._stored(w_P))
        return [self._last[id(w_P)][1] for w_P in tensors]

    def forget(self) -> None:
        """Forget the last call, as algorithms may change their tensors in place."""
        self._last = {}

    def _stored(self, w_P: Tensor) -> Any:
        assert w_P.dtype == torch.float32
        sent = sent_form(w_P.numpy())
        return sent if isinstance(sent, bytes) else ray.put(sent)


def sent_form(array: Array) -> Sent:
    """Return an array in the form in which it travels: small ones as their bytes."""
    return array if array.nbytes > LARGE else array.tobytes()


def array_of(sent: Sent, dtype: type = np.float32) -> Array:
    """Return the array that was sent, flat; `dtype` says what bytes are to become."""
    return np.frombuffer(sent, dtype) if isinstance(sent, bytes) else sent.reshape(-1)
