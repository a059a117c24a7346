"""Vectors of clients, of many replicates, in one matrix.

An algorithm that remembers clients (`State.remember`) keeps a vector [P] for each client that
has come. Where many replicates take their rounds together, those of all of them are rows of
one matrix, so that a round reads and writes them by one operator each.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysafl.core.work import Ints


class ClientTable:
    """The matrix, which grows. Row 0 is zero: it is that of clients without a vector.

    The rows of one owner, a replicate, are found by numbers: each owner has a range of them,
    in the middle of which its client 0 is, as ids may be negative (`State.clients`).

    Args:
        num_parameters: The number P of the matrix's columns.
        num_clients: The number of clients.
    """

    def __init__(self, num_parameters: int, num_clients: int) -> None:
        self.rows_SP = torch.zeros(1, num_parameters)
        self.num_clients = num_clients
        self._owners = 0
        # The numbers of clients that have a row, ascending, and these rows.
        self._numbers = np.empty(0, np.int64)
        self._places = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self._numbers)

    def new_owner(self) -> int:
        """Return the number of a further owner."""
        self._owners += 1
        return self._owners - 1

    def ids(self, owner: int) -> Ints:
        """Return the clients of an owner that have a row, in the order in which they came."""
        middle = self._number(owner)
        range_2 = (middle - self.num_clients, middle + self.num_clients)
        begin, end = np.searchsorted(self._numbers, range_2)
        # Rows are given one after the other.
        order = np.argsort(self._places[begin:end])
        ids: Ints = self._numbers[begin:end][order] - middle
        return ids

    def read(self, owner_R: Ints, ids_RM: Ints) -> Tensor:
        """Return the vectors [R, M, P] of clients of some owners; zeros without one."""
        places = self._found((self._number(owner_R)[:, None] + ids_RM).ravel())
        row_TP = self.rows_SP[torch.from_numpy(places)]
        return row_TP.view(*ids_RM.shape, row_TP.shape[1])

    def write(self, owner_R: Ints, ids_RM: Ints, vector_RMP: Tensor) -> None:
        """Write the vectors of distinct clients of some owners."""
        numbers = (self._number(owner_R)[:, None] + ids_RM).ravel()
        places = self._found(numbers)
        is_new = places == 0
        if is_new.any():
            first = len(self._numbers) + 1
            places[is_new] = np.arange(first, first + is_new.sum())
            merged = np.concatenate([self._numbers, numbers[is_new]])
            order = np.argsort(merged, kind="stable")
            self._numbers = merged[order]
            self._places = np.concatenate([self._places, places[is_new]])[order]
            self._grow(len(merged) + 1)
        self.rows_SP.index_copy_(0, torch.from_numpy(places), vector_RMP.flatten(0, 1))

    def _number(self, owner: Any) -> Any:
        """Return the number of client 0 of an owner, or of each of several."""
        return (2 * owner + 1) * self.num_clients

    def _found(self, numbers: Ints) -> Ints:
        """Return the rows of numbers; 0 for one without a row."""
        if not len(self._numbers):
            return np.zeros_like(numbers)
        at = np.searchsorted(self._numbers, numbers).clip(max=len(self._numbers) - 1)
        return np.where(self._numbers[at] == numbers, self._places[at], 0)

    def _grow(self, rows: int) -> None:
        """Have at least so many rows."""
        before = self.rows_SP
        if rows > len(before):
            self.rows_SP = before.new_empty(2 * rows, before.shape[1])
            self.rows_SP[: len(before)] = before


class ClientRows(Mapping[int, Tensor]):
    """The vectors of one replicate's clients in a table: a mapping from ids to vectors.

    Args:
        table: The table.
        vectors: The vectors that are put into it.
    """

    def __init__(self, table: ClientTable, vectors: Mapping[int, Tensor]) -> None:
        self.table = table
        self.owner = table.new_owner()
        if vectors:
            ids_1M = np.array([list(vectors)], np.int64)
            vector_1MP = torch.stack(list(vectors.values())).unsqueeze(0)
            table.write(np.array([self.owner]), ids_1M, vector_1MP)

    def __getitem__(self, client: int) -> Tensor:
        if client not in self.table.ids(self.owner):
            raise KeyError(client)
        ids_11 = np.array([[client]], np.int64)
        return self.table.read(np.array([self.owner]), ids_11)[0, 0]

    def __iter__(self) -> Iterator[int]:
        return iter(self.table.ids(self.owner).tolist())

    def __len__(self) -> int:
        return len(self.table.ids(self.owner))

    def copied(self) -> dict[int, Tensor]:
        """Return the vectors as a dictionary of its own."""
        ids = self.table.ids(self.owner)
        row_MP = self.table.read(np.array([self.owner]), ids[None])[0]
        return dict(zip(ids.tolist(), row_MP.clone().unbind(), strict=True))
