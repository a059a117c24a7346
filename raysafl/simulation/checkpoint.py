"""Save a simulation between two rounds as one safetensors file, and restore it.

The file holds the replicates' tensors by name, and everything else as JSON in its
metadata, with a SHA-256 of both. The JSON names the run by its id, so that another run,
whose tensors may have the same shapes, does not continue from it.
"""

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, BinaryIO

import numpy as np
import safetensors
import safetensors.torch
import torch

from raysafl.core.algorithm import State
from raysafl.simulation.per_client import ClientHistory
from raysafl.simulation.simulation import Counts, KeptModel, Replicate, Simulation

# Everything that reading a damaged file may raise.
DAMAGE = (
    safetensors.SafetensorError,
    LookupError,
    TypeError,
    ValueError,
    RecursionError,
)
# The bytes of the longest header that safetensors reads.
MOST_HEADER = 100_000_000
# The fields of a replicate that go into the JSON as they are.
PLAIN_FIELDS = [
    f.name
    for f in fields(Replicate)
    if f.name not in ("state", "counts", "reached", "clients", "best_model")
]


def dump(simulation: Simulation, **extra: Any) -> bytes:
    """Return the whole state of a simulation as the content of a file.

    Args:
        simulation: The simulation.
        extra: JSON-like values that `restore` gives back.
    """
    tensors: dict[str, torch.Tensor] = {}
    replicates = []
    for r, replicate in enumerate(simulation.replicates):
        state = replicate.state
        tensors[f"{r}/w"] = state.w_P
        tensors |= {f"{r}/server/{name}": value for name, value in state.server.items()}
        tensors |= {f"{r}/client/{i}": row for i, row in state.clients.items()}
        tensors |= _tensors_of(replicate.clients, r)
        plain = {name: getattr(replicate, name) for name in PLAIN_FIELDS}
        reached = sorted(replicate.reached)
        saved = plain | {"counts": vars(replicate.counts), "reached": reached}
        if replicate.best_model is not None:
            tensors[f"{r}/best"] = replicate.best_model.w_P
            saved["best_model"] = [
                replicate.best_model.round,
                replicate.best_model.value,
            ]
        replicates.append(saved)

    content = {
        "run": simulation.run.id,
        "round": simulation.round,
        "replicates": replicates,
        "extra": extra,
    }
    text = json.dumps(content)
    # safetensors refuses tensors that share memory.
    copies = {name: value.contiguous().clone() for name, value in tensors.items()}
    metadata = {"raysafl": text, "sha256": _checksum(text, copies)}
    return safetensors.torch.save(copies, metadata=metadata)


def restore(simulation: Simulation, content: bytes) -> dict[str, Any]:
    """Give a simulation of the same run the state that `dump` saved.

    Args:
        simulation: A simulation of the run that was saved.
        content: What `dump` returned.

    Returns:
        The `extra` that was given to `dump`.

    Raises:
        ValueError: The content is damaged or belongs to another run.
    """
    try:
        saved, tensors = _unpacked(content)
        seeds = [replicate["seed"] for replicate in saved["replicates"]]
        if seeds != simulation.run.seeds:
            raise ValueError(
                f"it holds seeds {seeds}, the run has {simulation.run.seeds}"
            )
        if saved["run"] != simulation.run.id:
            raise ValueError(
                f"it belongs to run {saved['run']}, and this is run {simulation.run.id}"
            )
        # The user may have edited the model since.
        size, expected = (
            len(w_P) for w_P in (tensors["0/w"], simulation.replicates[0].state.w_P)
        )
        if size != expected:
            raise ValueError(
                f"it holds {size} parameters, the model now trains {expected}"
            )
        replicates = [
            Replicate(
                state=_state_of(tensors, r),
                counts=Counts(**replicate["counts"]),
                reached=set(replicate["reached"]),
                clients=_history_of(tensors, r) if before.clients else None,
                best_model=_best_model_of(tensors, r, replicate.get("best_model")),
                **{name: replicate[name] for name in PLAIN_FIELDS},
            )
            for r, (replicate, before) in enumerate(
                zip(saved["replicates"], simulation.replicates, strict=True)
            )
        ]
    except DAMAGE as error:
        raise ValueError(f"the checkpoint cannot be used: {error}") from error

    simulation.round = saved["round"]
    simulation.replicates = replicates
    extra: dict[str, Any] = saved["extra"]
    return extra


def _unpacked(content: bytes) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the JSON and the tensors of a checkpoint, whose checksum must fit."""
    tensors = safetensors.torch.load(content)
    metadata = metadata_of(io.BytesIO(content))
    if metadata["sha256"] != _checksum(metadata["raysafl"], tensors):
        raise ValueError("its checksum does not fit its content")
    return json.loads(metadata["raysafl"]), tensors


def metadata_of(source: BinaryIO) -> dict[str, str]:
    """Read the metadata in the header of a safetensors file."""
    # The file begins with the header's length (8 bytes) and the header (JSON).
    header_size = int.from_bytes(source.read(8), "little")
    if header_size > MOST_HEADER:
        raise ValueError(f"its header would have {header_size} bytes")
    metadata: dict[str, str] = json.loads(source.read(header_size))["__metadata__"]
    return metadata


def _checksum(text: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of everything in a checkpoint, by which damage is noticed."""
    sums = hashlib.sha256(text.encode())
    for name, value in sorted(tensors.items()):
        sums.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        sums.update(value.cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sums.hexdigest()


def _tensors_of(history: ClientHistory | None, r: int) -> dict[str, torch.Tensor]:
    """Return what replicate r knows of its clients, as tensors by name."""
    if history is None:
        return {}
    shape = (0, len(ClientHistory.COLUMNS), len(history.participations_N))
    tables = np.stack(history.tables) if history.tables else np.empty(shape)
    return {
        f"{r}/clients/participations": torch.from_numpy(history.participations_N),
        f"{r}/clients/rounds": torch.tensor(history.rounds, dtype=torch.int64),
        f"{r}/clients/tables": torch.from_numpy(tables),
    }


def _history_of(tensors: Mapping[str, torch.Tensor], r: int) -> ClientHistory:
    """Return what replicate r knows of its clients, from the tensors' names."""
    return ClientHistory(
        participations_N=tensors[f"{r}/clients/participations"].numpy(),
        rounds=tensors[f"{r}/clients/rounds"].tolist(),
        tables=list(tensors[f"{r}/clients/tables"].numpy()),
    )


def _best_model_of(
    tensors: Mapping[str, torch.Tensor], r: int, saved: tuple[int, float] | None
) -> KeptModel | None:
    """Return replicate r's best model; None if the checkpoint has none."""
    if saved is None:
        return None
    round, value = saved
    return KeptModel(round, value, tensors[f"{r}/best"])


def _state_of(tensors: Mapping[str, torch.Tensor], r: int) -> State:
    """Return replicate r's state from the tensors' names."""
    server = {}
    clients = {}
    for name, value in tensors.items():
        match name.split("/"):
            case [replicate, "server", key] if replicate == str(r):
                server[key] = value
            case [replicate, "client", key] if replicate == str(r):
                clients[int(key)] = value
    return State(tensors[f"{r}/w"], server, clients)
