"""Rows that are kept per client: only of clients that came, so that 10,000 cost nothing before."""

from collections.abc import Sequence

import torch
from torch import Tensor

from raysafl.core.algorithm import State


def recall(state: State, ids: Sequence[int]) -> Tensor:
    """The clients' rows [M, P]; zero for who is seen for the first time."""
    zero_P = torch.zeros_like(state.w_P)
    return torch.stack([state.clients.get(i, zero_P) for i in ids])


def remember(state: State, ids: Sequence[int], row_MP: Tensor) -> dict[int, Tensor]:
    """All clients' rows after these. Copies: a view would keep the whole cohort's tensor."""
    return {**state.clients, **{i: row.clone() for i, row in zip(ids, row_MP, strict=True)}}
