"""The content of a run's kept models: one file for all replicates.

The file is a `raysafl.core.tensor_file`. The tensors have the names
`<replicate>/<name of the parameter>`, and frozen parameters and buffers, which all
replicates share, `frozen/<name>`. Features of a table were standardised by `features/mean`
and `features/std` [D]. The JSON values are the run's id and configuration, what was kept,
what inputs and outputs mean, and for each replicate that has a model its seed, the round
after which the model was taken, and the value by which it was chosen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from raysafl.core import tensor_file
from raysafl.core.problem import Features

FROZEN = "frozen"
FEATURES = "features"


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
        input_type: The type of raw inputs: `uint8`, `float32`, or `int64` for tokens.
        scale: The factor of each raw input, or of each that was standardised.
        shift: What is added to each input after scaling.
        features: The names of the features of a table, in the order of the inputs.
        num_outputs: The `num_classes` with which `Model.build` was called.
        num_classes: The number of classes, if there is one output for each; otherwise 0.
        classes: The names of the classes, if they are known.
        class_type: The type in which the model predicts them, see `Dataset`.
        targets: The names of the columns of the target, if it has any.
        replicates: The replicates that have a model.
    """

    model_config = ConfigDict(frozen=True)

    run_id: str
    run: dict[str, Any]
    keep: str
    column: str
    input_shape: tuple[int, ...]
    input_type: str
    scale: float
    shift: float
    features: tuple[str, ...]
    num_outputs: int
    num_classes: int
    classes: tuple[str, ...]
    class_type: str = "str"
    targets: tuple[str, ...]
    replicates: list[KeptReplicate]


def dump(
    parameters: Sequence[Mapping[str, Tensor]],
    frozen: Mapping[str, Tensor],
    features: Features,
    about: KeptModels,
) -> bytes:
    """Return the content of a file.

    Args:
        parameters: The trained parameters by name, for each replicate of `about`.
        frozen: The frozen parameters and buffers by name.
        features: How the features became inputs.
        about: The metadata.
    """
    named = {f"{FROZEN}/{name}": value for name, value in frozen.items()}
    for name in ("mean", "std") if features.mean else ():
        named[f"{FEATURES}/{name}"] = torch.DoubleTensor(vars(features)[name])
    for kept, trained in zip(about.replicates, parameters, strict=True):
        named |= {f"{kept.replicate}/{name}": p for name, p in trained.items()}
    values = about.model_dump()
    values["replicates"] = [asdict(replicate) for replicate in about.replicates]
    return tensor_file.to_bytes(values, named)


def read_models(content: bytes) -> tuple[KeptModels, dict[str, Tensor]]:
    """Return the metadata and the tensors by their names in the file.

    Raises:
        ValueError: The content is damaged, or was not written by `dump`.
    """
    try:
        values, tensors = tensor_file.from_bytes(content)
        return KeptModels.model_validate(values), tensors
    except tensor_file.DAMAGE as error:
        raise ValueError(f"the file of models cannot be read: {error}") from error


def tensors_of(owner: int | str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a replicate, of `FROZEN` or of `FEATURES`, by their names there."""
    prefix = f"{owner}/"
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
