"""messages."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import ray
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.work import Task
from raysafl.runtime.exact_mean import ShareResult, count_averaged
from raysafl.training.inputs import as_tensor

Array = NDArray[Any]
Sent: TypeAlias = Array | bytes
LARGE = 100_000  # bytes that Ray does not send inside a message


class Asked(NamedTuple):
    """Models to be evaluated over spans of the test set; numbers tell evaluations apart."""

    number: int
    spans: Sequence[int]
    w: Sequence[Tensor]


class Found(NamedTuple):
    """The sums of the evaluation of this number, [spans, 2, R] (see `Evaluator.span_sums`).

    They travel flat.
    """

    number: int
    sums: Array


def sent_form(array: Array) -> Sent:
    """A small array as its bytes, which Ray sends in a third of the time."""
    return array if array.nbytes > LARGE else array.tobytes()


def array_of(sent: Sent, kind: type = np.float32) -> Array:
    """The array that was sent, in one dimension; `kind` is what bytes are."""
    return np.frombuffer(sent, kind) if isinstance(sent, bytes) else sent.reshape(-1)


def pack(
    tasks: Sequence[Task], counts: Mapping[int, int], sent: Mapping[int, Any], asked: Asked
) -> tuple[Any, ...]:
    """The arguments of `Clients.train`; `sent` are parameters by id, each of which goes once."""
    used = dict.fromkeys(map(id, (*(task.w_P for task in tasks), *asked.w)))
    at = {name: k for k, name in enumerate(used)}
    bare = [
        (*task[:2], at[id(task.w_P)], *task[3:7], task[7] is not None, *task[8:]) for task in tasks
    ]
    offsets = [task.offset_P.numpy() for task in tasks if task.offset_P is not None]
    offset_KP = sent_form(np.stack(offsets)) if offsets else b""
    also = asked.number, asked.spans, [at[id(w_P)] for w_P in asked.w]
    return ray.cloudpickle.dumps((bare, counts, also)), offset_KP, *(sent[name] for name in used)


def _unpack(
    message: bytes, offset_KP: Sent, sent: Sequence[Sent]
) -> tuple[list[Task], Mapping[int, int], Asked]:
    """The tasks that were packed, the counts, and the evaluation."""
    w = [as_tensor(array_of(w_P)) for w_P in sent]
    offsets = iter(as_tensor(array_of(offset_KP).reshape(-1, len(w[0]))))
    bare, counts, (number, spans, models) = ray.cloudpickle.loads(message)
    tasks = list[Task]()
    for r, client, start, *more, offset, prox in bare:
        offset_P = next(offsets) if offset else None
        tasks.append(Task._make((r, client, w[start], *more, offset_P, prox)))
    return tasks, counts, Asked(number, spans, [w[k] for k in models])


def unpack_reply(
    tasks: Sequence[Task], parts: Sequence[Sent], counts: Mapping[int, int]
) -> tuple[ShareResult, Found | None]:
    """The reply to a share of the tasks, and the evaluation that came with the training before."""
    (first, delta, *means), size = parts, tasks[0].w_P.numel()
    columns_5T, late = np.split(array_of(first, np.float64), [5 * len(tasks)])
    kinds = [
        np.float32 if n == counts[r] else np.float64
        for r, n in count_averaged(tasks, counts).items()
    ]
    reply = ShareResult(
        columns_5T.reshape(5, -1),
        array_of(delta).reshape(-1, size),
        [array_of(mean, kind) for mean, kind in zip(means, kinds, strict=True)],
    )
    return reply, Found(int(late[0]), late[1:]) if late.size else None
