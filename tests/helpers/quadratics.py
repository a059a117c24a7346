"""`Work` for clients with f_i(w) = 1/2 (w - a_i)^T H_i (w - a_i), in float64 and without noise.

Curvatures differ, so clients drift: K local steps at the rate eta shrink w - a_i by the
matrix (I - eta H_i)^K, and where the shrunk pulls balance is not where the gradients
do.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from raysafl import Algorithm, LocalTraining, TrainMean
from raysafl.algorithms import EVERYONE, SERVER, Key, MeanUpdate, State, Update
from raysafl.core.algorithm import CountSamples, Request

H = torch.stack(
    [
        torch.tensor(h, dtype=torch.float64)
        for h in (
            [[2, 0], [0, 0.5]],
            [[0.5, 0.2], [0.2, 1]],
            [[1, -0.3], [-0.3, 2]],
            [[1, 0], [0, 1]],
        )
    ]
)
A = torch.tensor([[1, 0], [0, 3], [5, -1], [-2, 2]], dtype=torch.float64)
SERVER_A = torch.tensor([2.0, 2.0], dtype=torch.float64)  # its curvature is I
START = torch.tensor([4.0, 4.0], dtype=torch.float64)
LOCAL = LocalTraining(lr=0.1, batch_size=1, steps=5)
ONE_STEP = LocalTraining(lr=0.1, batch_size=1, steps=1)
ALL = [0, 1, 2, 3]
SAMPLES = torch.tensor([10, 20, 30, 5])  # of each client


def optimum(clients: Sequence[int] = ALL) -> Tensor:
    """Where the gradients of these clients sum to zero."""
    pick = list(clients)
    return torch.linalg.solve(H[pick].sum(0), (H[pick] @ A[pick, :, None]).sum(0))[:, 0]


def drift_point(local: LocalTraining = LOCAL, clients: Sequence[int] = ALL) -> Tensor:
    """Where the updates of K local steps sum to zero: FedAvg's limit."""
    eye = torch.eye(2, dtype=torch.float64)
    pull = torch.stack(
        [
            eye - torch.linalg.matrix_power(eye - local.lr * H[i], local.num_steps(1))
            for i in clients
        ]
    )
    return torch.linalg.solve(pull.sum(0), (pull @ A[list(clients), :, None]).sum(0))[
        :, 0
    ]


def gradient(client: int, w: Tensor) -> Tensor:
    if client == SERVER:
        return w - SERVER_A
    if client == EVERYONE:
        return torch.stack([H[i] @ (w - A[i]) for i in ALL]).mean(0)
    return H[client] @ (w - A[client])


def train_locally(
    client: int,
    w: Tensor,
    local: LocalTraining = LOCAL,
    offset: Tensor | float = 0.0,
    prox: float = 0.0,
) -> Tensor:
    """Where a client ends that starts at w."""
    start = w
    for _ in range(local.num_steps(1)):
        w = w - local.lr * (gradient(client, w) + offset + prox * (w - start))
    return w


def answer(request: Request | CountSamples, local: LocalTraining = LOCAL) -> Any:
    if isinstance(request, CountSamples):
        return SAMPLES[list(request.ids)]
    local = request.local or local
    rows = []
    for k, client in enumerate(request.ids):
        start = request.w_P if request.w_MP is None else request.w_MP[k]
        offset = 0.0 if request.offset_MP is None else request.offset_MP[k]
        rows.append(start - train_locally(client, start, local, offset, request.prox))
    ones = torch.ones(len(rows))
    steps = ones.long() * local.num_steps(1)
    columns = (steps, steps * local.lr, ones, ones, ones)
    if isinstance(request, TrainMean):
        weight_M = ones if request.weight_M is None else request.weight_M
        weight_M1 = weight_M[:, None] / weight_M.sum()
        return MeanUpdate((weight_M1 * torch.stack(rows)).sum(0), *columns)
    return Update(torch.stack(rows), *columns)


def play(
    algorithm: Algorithm,
    cohorts: Sequence[Sequence[int]],
    local: LocalTraining = LOCAL,
    state: State | None = None,
    first: int = 0,
) -> State:
    """The state after these cohorts, from the start or from `state` before round `first`."""
    state = algorithm.init(START, len(A)) if state is None else state
    for t, ids in enumerate(cohorts, first):
        turn = algorithm.turn(state, ids, Key(0, t))
        reply: Any = None
        try:
            while True:
                reply = answer(turn.send(reply), local)
        except StopIteration as end:
            state = end.value
    return state


def halves(rounds: int) -> list[list[int]]:
    """Two of four clients a round, uniformly."""
    return [Key(5, t)("cohort").permutation(4)[:2].tolist() for t in range(rounds)]
