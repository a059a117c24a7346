"""Vectors of clients, of many replicates, in one matrix.

An algorithm that remembers clients (`State.remember`) keeps a vector [P] for each client that
has trained. Where many replicates take their rounds together, those of all of them are rows of
one matrix, so that a round reads and writes them by one operator each.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from raysafl.core.work import Ints


class ClientTable:
    """The matrix, which grows. Row 0 is zero: it is that of clients without a vector.

    Args:
        num_parameters: The number P of the matrix's columns.
    """

    def __init__(self, num_parameters: int) -> None:
        self.rows_SP = torch.zeros(1, num_parameters)
        self._free: list[int] = []

    def read(self, owners: "Sequence[ClientRows]", ids_RM: Ints) -> Tensor:
        """Return the vectors [R, M, P] of clients of some replicates; zeros without one."""
        rows = [
            owner.row_of[i] if i in owner.row_of else 0
            for owner, ids_M in zip(owners, ids_RM.tolist(), strict=True)
            for i in ids_M
        ]
        row_TP = self.rows_SP[torch.tensor(rows, dtype=torch.int64)]
        return row_TP.view(*ids_RM.shape, row_TP.shape[1])

    def write(
        self, owners: "Sequence[ClientRows]", ids_RM: Ints, vector_RMP: Tensor
    ) -> None:
        """Write the vectors of distinct clients of some replicates."""
        pairs = [
            (owner.row_of, i)
            for owner, ids_M in zip(owners, ids_RM.tolist(), strict=True)
            for i in ids_M
        ]
        new = [pair for pair in pairs if pair[1] not in pair[0]]
        if len(new) > len(self._free):
            self._grow(len(new) - len(self._free))
        for (row_of, i), row in zip(new, self._free, strict=False):
            row_of[i] = row
        del self._free[: len(new)]
        rows = torch.tensor([row_of[i] for row_of, i in pairs], dtype=torch.int64)
        self.rows_SP.index_copy_(0, rows, vector_RMP.flatten(0, 1))

    def free(self, owner: "ClientRows") -> None:
        """Let the rows of a replicate be those of other clients."""
        self._free += owner.row_of.values()
        owner.row_of = {}

    def _grow(self, rows: int) -> None:
        """Make room for at least so many rows more."""
        before = self.rows_SP
        size = len(before) + max(rows, len(before) // 2)
        self.rows_SP = before.new_empty(size, before.shape[1])
        self.rows_SP[: len(before)] = before
        self._free += range(len(before), size)


class ClientRows(Mapping[int, Tensor]):
    """The vectors of one replicate's clients in a table: a mapping from ids to vectors.

    Args:
        table: The table.
        vectors: The vectors that are put into it.

    Attributes:
        row_of: The row of each client that has one, in the order in which they got it.
    """

    def __init__(self, table: ClientTable, vectors: Mapping[int, Tensor]) -> None:
        self.table = table
        self.row_of: dict[int, int] = {}
        if vectors:
            ids_1M = np.array([list(vectors)])
            table.write([self], ids_1M, torch.stack([*vectors.values()])[None])

    def __getitem__(self, client: int) -> Tensor:
        return self.table.rows_SP[self.row_of[client]].clone()

    def __iter__(self) -> Iterator[int]:
        return iter(self.row_of)

    def __len__(self) -> int:
        return len(self.row_of)

    def taken_out(self) -> dict[int, Tensor]:
        """Return the vectors as a dictionary of its own, and give their rows back."""
        vectors = dict(self)
        self.table.free(self)
        return vectors
