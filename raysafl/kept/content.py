"""The file of a kept model: that of one cell, which is one seed of a run.

The file is a `raysafl.core.tensor_file`. Trained parameters have the names
`trained/<name>`, frozen parameters and buffers `frozen/<name>`. Features of a table were
standardised by `features/mean` and `features/std` [D]. The JSON values are the cell's id and
configuration, which model was kept, and what inputs and outputs mean.
"""

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from raysafl.core import tensor_file
from raysafl.core.problem import Features

TRAINED = "trained"
FROZEN = "frozen"
FEATURES = "features"


class AboutModel(BaseModel):
    """What the metadata of a file say of its model.

    Args:
        cell: The id of the cell.
        run: Its configuration as JSON values, with its seed.
        keep: Which model was kept, the run's `keep`.
        column: The column of the results by which it was chosen; empty for the last.
        round: The number of the round, from 0, after which the model was taken.
        value: The value of `column` in that round; None if the last model was kept.
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
    """

    model_config = ConfigDict(frozen=True)

    cell: str
    run: dict[str, Any]
    keep: str
    column: str
    round: int
    value: float | None
    input_shape: tuple[int, ...]
    input_type: str
    scale: float
    shift: float
    features: tuple[str, ...]
    num_outputs: int
    num_classes: int
    classes: tuple[str, ...]
    class_type: str
    targets: tuple[str, ...]


def dump(
    trained: Mapping[str, Tensor],
    frozen: Mapping[str, Tensor],
    features: Features,
    about: AboutModel,
) -> bytes:
    """Return the content of a file.

    Args:
        trained: The trained parameters by name.
        frozen: The frozen parameters and buffers by name.
        features: How the features became inputs.
        about: The metadata.
    """
    named = {f"{TRAINED}/{name}": value for name, value in trained.items()}
    named |= {f"{FROZEN}/{name}": value for name, value in frozen.items()}
    for name in ("mean", "std") if features.mean else ():
        named[f"{FEATURES}/{name}"] = torch.DoubleTensor(vars(features)[name])
    return tensor_file.to_bytes(about.model_dump(), named)


def read_model(content: bytes) -> tuple[AboutModel, dict[str, Tensor]]:
    """Return the metadata and the tensors by their names in the file.

    Raises:
        ValueError: The content is damaged, or was not written by `dump`.
    """
    try:
        values, tensors = tensor_file.from_bytes(content)
        return AboutModel.model_validate(values), tensors
    except tensor_file.DAMAGE as error:
        raise ValueError(f"the file of a kept model cannot be read: {error}") from error


def tensors_of(group: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of `TRAINED`, `FROZEN` or `FEATURES`, by their names there."""
    prefix = f"{group}/"
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
