"""Save simulations of one seed between two rounds as one file, and restore them.

The file (`raysafl.core.tensor_file`) holds the states of a pack of cells as columns. Vectors
of one shape and type are the rows of one tensor, whichever cell they belong to; everything
else is JSON, which says for each cell in which rows its vectors are. So what a cell costs is
the copying of its vectors, and not a tensor for each of them.
"""

import itertools
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raysafl.core import tensor_file
from raysafl.core.algorithm import State
from raysafl.simulation.per_client import ClientHistory
from raysafl.simulation.replicate import (
    Counts,
    KeptModel,
    Progress,
    Replicate,
    Standing,
)

# What goes into the JSON of a replicate as it is.
OF_STANDING = ("round", "train_accuracy", "train_loss")
OF_REPLICATE = ("diverged", "best", "best_round", "stopped")


class SavedReplicate(NamedTuple):
    """A replicate between two rounds.

    Args:
        values: JSON-like values.
        tensors: its tensors by name.
    """

    values: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def round(self) -> int:
        """How many rounds it has taken part in."""
        return int(self.values["round"])


def dump(cells: Mapping[str, SavedReplicate]) -> bytes:
    """Return the states of replicates as the content of a file.

    Args:
        cells: what `save` returned of each, by the id of its cell.
    """
    values = {}
    columns: dict[str, list[Tensor]] = {}
    for cell, saved in cells.items():
        places = {}
        for name, tensor in saved.tensors.items():
            kind = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            column = columns.setdefault(kind, [])
            places[name] = [kind, len(column)]
            column.append(tensor)
        values[cell] = [saved.values, places]
    stacked = {kind: torch.stack(column) for kind, column in columns.items()}
    return tensor_file.to_bytes({"cells": values}, stacked)


def load(
    content: bytes, cells: Collection[str] | None = None
) -> dict[str, SavedReplicate]:
    """Return what a file holds of some cells, or of all, by their ids.

    Raises:
        ValueError: the content is damaged.
    """
    try:
        saved, columns = tensor_file.from_bytes(content)
        return {
            cell: SavedReplicate(
                values,
                {name: columns[kind][row] for name, (kind, row) in places.items()},
            )
            for cell, (values, places) in saved["cells"].items()
            if cells is None or cell in cells
        }
    except tensor_file.DAMAGE as error:
        raise ValueError(f"the checkpoint cannot be used: {error}") from error


def save(replicate: Replicate) -> SavedReplicate:
    """Return the state of a replicate between two rounds."""
    standing = replicate.standing
    state = standing.state
    tensors = {
        "w": state.w_P,
        **{f"server/{name}": value for name, value in state.server.items()},
        **{f"client/{i}": row for i, row in state.clients.items()},
        **_tensors_of(replicate.clients),
        **{
            f"moments/{i}/{v}": moment_P
            for i, own in standing.progress.items()
            for v, moment_P in enumerate(own.moments)
        },
    }
    values: dict[str, Any] = {name: getattr(standing, name) for name in OF_STANDING}
    values |= {name: getattr(replicate, name) for name in OF_REPLICATE}
    values["policy"] = standing.policy
    values["counts"] = vars(standing.counts)
    # A file gives its tensors in no certain order, and sums depend on their order.
    values["server"] = list(state.server)
    values["clients"] = list(state.clients)
    values["reached"] = sorted(standing.reached)
    # A client's numbers without its moments, which are tensors.
    values["progress"] = [(i, own[:-1]) for i, own in standing.progress.items()]
    if replicate.best_model is not None:
        tensors["best"] = replicate.best_model.w_P
        values["best_model"] = [replicate.best_model.round, replicate.best_model.value]
    return SavedReplicate(values, tensors)


def restore(replicate: Replicate, saved: SavedReplicate) -> None:
    """Give a replicate of the same configuration and seed a state that was saved.

    Args:
        replicate: the replicate, before its first round.
        saved: what `save` or `load` returned.

    Raises:
        ValueError: the content is damaged, or the model trains another number of parameters:
            the user may have edited it since.
    """
    values, tensors = saved
    try:
        size = len(tensors["w"])
        if size != len(replicate.state.w_P):
            raise ValueError(
                f"it holds {size} parameters, the model now trains "
                f"{len(replicate.state.w_P)}"
            )
        standing = Standing(
            state=State(
                tensors["w"],
                {name: tensors[f"server/{name}"] for name in values["server"]},
                {i: tensors[f"client/{i}"] for i in values["clients"]},
            ),
            policy=values["policy"],
            counts=Counts(**values["counts"]),
            reached=set(values["reached"]),
            progress={
                i: Progress(steps, hits, seen, _moments_of(tensors, i))
                for i, (steps, hits, seen) in values["progress"]
            },
            **{name: values[name] for name in OF_STANDING},
        )
        attributes = {name: values[name] for name in OF_REPLICATE}
        attributes["clients"] = _history_of(tensors) if replicate.clients else None
        attributes["best_model"] = None
        if "best_model" in values:
            round, value = values["best_model"]
            attributes["best_model"] = KeptModel(round, value, tensors["best"])
    except tensor_file.DAMAGE as error:
        raise ValueError(f"the checkpoint cannot be used: {error}") from error
    replicate.stand(standing)
    vars(replicate).update(attributes)


def _tensors_of(history: ClientHistory | None) -> dict[str, Tensor]:
    """Return what a replicate knows of its clients, as tensors by name."""
    if history is None:
        return {}
    shape = (0, len(ClientHistory.COLUMNS), len(history.participations_N))
    tables = np.stack(history.tables) if history.tables else np.empty(shape)
    return {
        "clients/participations": torch.from_numpy(history.participations_N),
        "clients/rounds": torch.tensor(history.rounds, dtype=torch.int64),
        "clients/tables": torch.from_numpy(tables),
    }


def _history_of(tensors: Mapping[str, Tensor]) -> ClientHistory:
    """Return what a replicate knows of its clients, from its tensors."""
    return ClientHistory(
        participations_N=tensors["clients/participations"].numpy(),
        rounds=tensors["clients/rounds"].tolist(),
        tables=list(tensors["clients/tables"].numpy()),
    )


def _moments_of(tensors: Mapping[str, Tensor], client: int) -> tuple[Tensor, ...]:
    """Return what a client keeps of its optimizer, none or some."""
    names = (f"moments/{client}/{v}" for v in itertools.count())
    return tuple(
        tensors[name] for name in itertools.takewhile(tensors.__contains__, names)
    )
