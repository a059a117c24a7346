"""Memory of an algorithm: one row of P numbers for each client that has participated.

Clients that have never participated have no row, so a large population costs nothing.
"""

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
