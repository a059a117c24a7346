"""The content of a run's kept models: one safetensors file for all replicates.

The tensors have the names `<replicate>/<name of the parameter>`, and frozen parameters,
which all replicates share, `frozen/<name of the parameter>`. The metadata hold a JSON
text under the name `raysafl`: the run's id and configuration, what was kept, what
`Model.build` was called with, and for each replicate that has a model its seed, the
round after which the model was taken, and the value by which it was chosen.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import safetensors.torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from raysafl.simulation.checkpoint import DAMAGE, metadata_of

FROZEN = "frozen"


@dataclass(frozen=True)
class KeptReplicate:
    """A replicate's model, without its parameters.

    Args:
        replicate: The number of the replicate.
        seed: Its seed.
        round: The number of the round, from 0, after which the model was taken.
        value: The value of `column` in that round; None if the last model was kept.
    """

    replicate: int
    seed: int
    round: int
    value: float | None


class KeptModels(BaseModel):
    """What the metadata of a file say of its models.

    Args:
        run_id: The run's id.
        run: The run's configuration as JSON values.
        keep: Which models were kept, the run's `keep`.
        column: The column of the results by which they were chosen; empty for the last.
        input_shape: The shape of one sample.
        num_outputs: The `num_classes` with which `Model.build` was called.
        replicates: The replicates that have a model.
    """

    model_config = ConfigDict(frozen=True)

    run_id: str
    run: dict[str, Any]
    keep: str
    column: str
    input_shape: tuple[int, ...]
    num_outputs: int
    replicates: list[KeptReplicate]


def dump(
    parameters: Sequence[Mapping[str, Tensor]],
    frozen: Mapping[str, Tensor],
    about: KeptModels,
) -> bytes:
    """Return the content of a file.

    Args:
        parameters: The trained parameters by name, for each replicate of `about`.
        frozen: The frozen parameters by name.
        about: The metadata.
    """
    named = {f"{FROZEN}/{name}": value for name, value in frozen.items()}
    for kept, own in zip(about.replicates, parameters, strict=True):
        named |= {f"{kept.replicate}/{name}": value for name, value in own.items()}
    # safetensors refuses tensors that share memory.
    copies = {name: v.detach().cpu().clone() for name, v in named.items()}
    copies = {name: value.contiguous() for name, value in copies.items()}
    text = json.dumps(
        about.model_dump() | {"replicates": [asdict(r) for r in about.replicates]}
    )
    return safetensors.torch.save(copies, metadata={"raysafl": text})


def load(content: bytes) -> tuple[KeptModels, dict[str, Tensor]]:
    """Return the metadata and the tensors by their names in the file.

    Raises:
        ValueError: The content is damaged, or was not written by `dump`.
    """
    try:
        tensors = safetensors.torch.load(content)
        return about(content), tensors
    except DAMAGE as error:
        raise ValueError(f"the file of models cannot be read: {error}") from error


def about(content: bytes) -> KeptModels:
    """Return the metadata of a file."""
    text = metadata_of(io.BytesIO(content))["raysafl"]
    return KeptModels.model_validate_json(text)


def parameters_of(tensors: Mapping[str, Tensor], replicate: int) -> dict[str, Tensor]:
    """Return a replicate's parameters by name, with the frozen ones."""
    found = {}
    for name, value in tensors.items():
        owner, _, parameter = name.partition("/")
        if owner in (FROZEN, str(replicate)):
            found[parameter] = value
    return found
