"""Memory of an algorithm per client: one row of P numbers for each client that has come.

Clients that have never come have no row, so that a large population costs nothing.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from raysafl.core.algorithm import State


def without_rows(w_P: Tensor, num_clients: int, mean: str) -> State:
    """Return the state before round 0, in which all rows and their mean are zero.

    Args:
        w_P: the initial parameters.
        num_clients: the number of all clients, which the server's state keeps.
        mean: the name of the mean in the server's state.
    """
    # A state holds tensors only, so that it can be stored as a checkpoint.
    count = torch.tensor(float(num_clients))
    return State(w_P, {mean: torch.zeros_like(w_P), "num_clients": count})


def recall(state: State, ids: Sequence[int]) -> Tensor:
    """Return the rows of the clients in `ids`, [M, P]; zeros for clients without a row."""
    zero_P = torch.zeros_like(state.w_P)
    rows = [state.clients.get(i, zero_P) for i in ids]
    return torch.stack(rows) if rows else zero_P.new_empty(0, len(zero_P))


def remember(state: State, ids: Sequence[int], row_MP: Tensor) -> dict[int, Tensor]:
    """Return all clients' rows, with those of the clients in `ids` replaced.

    Args:
        state: the state before; it is left as it is.
        ids: the clients of the cohort, [M].
        row_MP: their new rows.
    """
    # Rows are copied, because a view would keep the whole cohort's tensor in memory.
    return {
        **state.clients,
        **{i: row.clone() for i, row in zip(ids, row_MP, strict=True)},
    }
