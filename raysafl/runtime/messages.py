"""What travels between a pack's coordinator and its client actors, and in which form.

- `PackSetup` goes to every actor once per pack.
- `TaskMessage` goes to an actor with its share of the tasks of a round.
- `TaskReply` comes back: the share's result.

`TaskMessage` and `TaskReply` are encoded by hand, because a round of small models takes
a few milliseconds, of which pickling would be the larger part. A message consists of
one pickled header and of vectors: each start once, however many tasks start from it,
and the offsets. Ray takes about a millisecond to store an array and to find it again,
so vectors are sent as `bytes` of up to `LARGE`, each of them inside a message, unless
they are too many or too large.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import ray
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.objective import Objective
from raysafl.core.problem import Dataset, Model
from raysafl.core.work import Cell, Task
from raysafl.objectives import PLAIN
from raysafl.runtime.exact_mean import ShareResult, complete_cells
from raysafl.training.inputs import as_tensor

Array = NDArray[Any]
# The form in which some vectors are sent: as bytes, or as one array in Ray's store.
Sent: TypeAlias = Array | bytes
# Ray sends larger arguments and results through its object store.
LARGE = 100_000
# Vectors of up to so many bytes together are cut into parts that are not large.
MOST_IN_PARTS = 10 * LARGE
START = Task._fields.index("w_P")
OFFSET = Task._fields.index("offset_P")


@dataclass(frozen=True)
class PackSetup:
    """What a client actor needs to know of a pack's runs before their first round.

    Args:
        cells: The cells, one for each replicate of each run.
        dataset: The training and test samples, or a reference to them in Ray's object
            store.
        model: The recipe of the model.
        engine: The engine's name, or "auto" for the one that is chosen for the model.
        frozen: The values of the model's frozen parameters by name, or a reference to
            them. They replace those that the actor's own build gives, which may differ
            in the last digits on another kind of processor.
        objective: What the model is trained for, and by what it is judged.
    """

    cells: Sequence[Cell]
    dataset: "Dataset | ray.ObjectRef[Dataset]"
    model: Model
    engine: str
    frozen: "Mapping[str, Tensor] | ray.ObjectRef[Mapping[str, Tensor]]" = field(
        default_factory=dict
    )
    objective: Objective = PLAIN


@dataclass(frozen=True)
class TaskMessage:
    """An actor's share of a round.

    Args:
        tasks: The tasks to train.
        counts: For each cell that is averaged, its number of tasks on all actors.
    """

    tasks: Sequence[Task]
    counts: Mapping[int, int]

    @property
    def num_reply_parts(self) -> int:
        """The number of parts of the reply."""
        return 1 + sum(_reply_parts(self))

    def encode(self, stored: dict[Any, Any]) -> tuple[Any, ...]:
        """Return the arguments of `Clients.train`.

        Args:
            stored: See `sent_models`.
        """
        starts = {id(task.w_P): task.w_P for task in self.tasks}
        index_of = {name: index for index, name in enumerate(starts)}

        # A task is pickled as a plain tuple with its vectors replaced: the start by its
        # index among those sent, the offset by whether there is one.
        bare_tasks = []
        offsets = []
        for task in self.tasks:
            bare = list(task)
            bare[START] = index_of[id(task.w_P)]
            bare[OFFSET] = task.offset_P is not None
            bare_tasks.append(tuple(bare))
            if task.offset_P is not None:
                offsets.append(task.offset_P)

        sent = sent_models(list(starts.values()), stored)
        header = ray.cloudpickle.dumps((bare_tasks, self.counts, len(sent)))
        return header, *sent, *(sent_models(offsets, stored) if offsets else ())

    @classmethod
    def decode(
        cls, header: bytes, vectors: Sequence[Sent], num_parameters: int
    ) -> "TaskMessage":
        """Return the message from the arguments of `Clients.train`."""
        bare_tasks, counts, num_starts = ray.cloudpickle.loads(header)
        starts = models_of(vectors[:num_starts], num_parameters)
        offsets = iter(models_of(vectors[num_starts:], num_parameters))
        tasks = list[Task]()
        for bare in bare_tasks:
            fields = list(bare)
            fields[START] = starts[bare[START]]
            fields[OFFSET] = next(offsets) if bare[OFFSET] else None
            tasks.append(Task._make(fields))
        return cls(tasks, counts)


def encode_reply(result: ShareResult) -> tuple[Sent, ...]:
    """Return the parts of an actor's answer to a `TaskMessage`."""
    float32s = [*result.rows, *result.means.values()]
    return (
        _sent(result.columns_5T),
        *_parts(np.stack(float32s) if float32s else np.empty((0, 1), np.float32)),
        *_parts(np.stack([*result.sums.values()]) if result.sums else np.empty((0, 1))),
    )


def decode_reply(message: TaskMessage, parts: Sequence[Sent]) -> ShareResult:
    """Return the answer to a message from its parts."""
    complete, partial = complete_cells(message.tasks, message.counts)
    num_parameters = message.tasks[0].w_P.numel()
    num_float32_parts, _ = _reply_parts(message)
    columns, *vectors = parts
    float32s = _vectors(vectors[:num_float32_parts], num_parameters, np.float32)
    float64s = _vectors(vectors[num_float32_parts:], num_parameters, np.float64)
    num_rows = len(float32s) - len(complete)
    return ShareResult(
        columns_5T=_array(columns, np.float64).reshape(5, -1),
        rows=float32s[:num_rows],
        means=dict(zip(complete, float32s[num_rows:], strict=True)),
        sums=dict(zip(partial, float64s, strict=True)),
    )


def sent_models(
    models: Sequence[Tensor], stored: dict[tuple[int, ...], list[Any]]
) -> list[Any]:
    """Return float32 vectors [P] in the form in which an actor is sent them.

    Args:
        models: The vectors, at least one.
        stored: What was sent before, to another actor, by the vectors' Python ids. The
            same vectors are not put into Ray's store twice.
    """
    key = tuple(map(id, models))
    if key not in stored:
        parts = _parts(np.stack([w_P.numpy() for w_P in models]))
        stored[key] = [
            part if isinstance(part, bytes) else ray.put(part) for part in parts
        ]
    return stored[key]


def models_of(vectors: Sequence[Sent], num_parameters: int) -> list[Tensor]:
    """Return the vectors that `sent_models` has sent; nobody may write to them."""
    return [
        w_P
        for part in vectors
        for w_P in as_tensor(_array(part, np.float32)).view(-1, num_parameters)
    ]


def _reply_parts(message: TaskMessage) -> tuple[int, int]:
    """Return into how many parts float32 and float64 vectors of the reply are cut."""
    complete, partial = complete_cells(message.tasks, message.counts)
    rows = sum(task.cell not in message.counts for task in message.tasks)
    num_parameters = message.tasks[0].w_P.numel()
    return (
        _num_parts(rows + len(complete), 4 * num_parameters),
        _num_parts(len(partial), 8 * num_parameters),
    )


def _num_parts(rows: int, row_bytes: int) -> int:
    """Return into how many parts vectors of some length are cut."""
    rows_per_part = LARGE // row_bytes
    if rows_per_part and rows * row_bytes <= MOST_IN_PARTS:
        return -(-rows // rows_per_part)
    return min(rows, 1)


def _parts(array_VP: Array) -> list[Sent]:
    """Cut vectors into parts that are sent; each has about as many."""
    count = _num_parts(len(array_VP), array_VP[:1].nbytes or 1)
    step = -(-len(array_VP) // max(count, 1))
    return [_sent(array_VP[i : i + step]) for i in range(0, len(array_VP), step or 1)]


def _vectors(parts: Sequence[Sent], length: int, dtype: type) -> Sequence[Array]:
    """Return the vectors that `_parts` has cut."""
    return [row for part in parts for row in _array(part, dtype).reshape(-1, length)]


def _sent(array: Array) -> Sent:
    """Return an array in the form in which it travels: a small one as its bytes.

    Ray packs bytes in a third of the time that an array takes.
    """
    return array if array.nbytes > LARGE else array.tobytes()


def _array(sent: Sent, dtype: type) -> Array:
    """Return the array that was sent, flat; `dtype` says what bytes are to become."""
    return np.frombuffer(sent, dtype) if isinstance(sent, bytes) else sent.reshape(-1)
