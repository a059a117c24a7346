"""A simulation between two rounds as one safetensors file: tensors, and JSON for the rest."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import safetensors
import safetensors.torch
import torch

from raysafl.core.algorithm import State
from raysafl.simulation.simulation import Counts, Replicate, Simulation

DAMAGE = (safetensors.SafetensorError, LookupError, TypeError, ValueError, RecursionError)


def dump(simulation: Simulation, **extra: Any) -> bytes:
    """The whole state; `extra` (JSON) comes back from `restore`."""
    assert simulation.settled, "records that wait for an evaluation would be lost"
    tensors: dict[str, torch.Tensor] = {}
    rest = []
    for r, rep in enumerate(simulation.replicates):
        tensors[f"{r}/w"] = rep.state.w_P
        tensors |= {f"{r}/server/{name}": value for name, value in rep.state.server.items()}
        tensors |= {f"{r}/client/{i}": row for i, row in rep.state.clients.items()}
        fields = {k: v for k, v in vars(rep).items() if k not in ("state", "counts")}
        rest.append(fields | {"counts": asdict(rep.counts)})
    meta = json.dumps({"round": simulation.round, "replicates": rest, "extra": extra})
    copies = {name: value.contiguous().clone() for name, value in tensors.items()}
    told = {"raysafl": meta, "sha256": _digest(meta, copies)}
    return safetensors.torch.save(copies, metadata=told)


def restore(simulation: Simulation, content: bytes) -> dict[str, Any]:
    """Put a simulation of the same run where it was; returns `extra`.

    Raises:
        ValueError: the content is damaged or belongs to another run.
    """
    try:
        tensors = safetensors.torch.load(content)
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        told = header["__metadata__"]
        if told["sha256"] != _digest(told["raysafl"], tensors):
            raise ValueError("its sum does not fit its content")
        meta = json.loads(told["raysafl"])
        seeds = [fields["seed"] for fields in meta["replicates"]]
        if seeds != simulation.run.seeds:
            raise ValueError(f"it holds seeds {seeds}, the run has {simulation.run.seeds}")
        replicates = [
            Replicate(state=_state(tensors, r), **{**fields, "counts": Counts(**fields["counts"])})
            for r, fields in enumerate(meta["replicates"])
        ]
    except DAMAGE as error:
        raise ValueError(f"the checkpoint cannot be used: {error}") from error
    simulation.round, simulation.replicates = meta["round"], replicates
    extra: dict[str, Any] = meta["extra"]
    return extra


def _digest(meta: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """A fingerprint of all that is in a checkpoint, by which damage is noticed."""
    sums = hashlib.sha256(meta.encode())
    for name, value in sorted(tensors.items()):
        sums.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        sums.update(value.cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sums.hexdigest()


def _state(tensors: dict[str, torch.Tensor], r: int) -> State:
    server, clients = {}, {}
    for name, value in tensors.items():
        match name.split("/"):
            case [replicate, "server", key] if replicate == str(r):
                server[key] = value
            case [replicate, "client", key] if replicate == str(r):
                clients[int(key)] = value
    return State(tensors[f"{r}/w"], server, clients)
