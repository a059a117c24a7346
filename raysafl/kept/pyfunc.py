"""Kept models for MLflow: their signature, and the loader that `mlflow.pyfunc` calls.

The artifact `model` of a run in MLflow names this module. So raysafl must be installed
where the model is loaded, and a model of a class of the user's own needs that class to
be imported before.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysafl.kept.content import read_model
from raysafl.kept.load import LoadedModel, model_in

# How MLflow calls the types in which classes are predicted.
TYPES = {"str": "string", "bool": "boolean", "int64": "long", "float64": "double"}


def _load_pyfunc(
    path: str, model_config: Mapping[str, Any] | None = None
) -> LoadedModel:
    """Return the model of a file, whose `predict` MLflow calls.

    Args:
        path: The folder with the file of each replicate that has a model, `<number>.safetensors`.
        model_config: `replicate`, the number of the replicate; by default the first
            that has a model.
    """
    replicate = (model_config or {}).get("replicate")
    files = {int(file.stem): file for file in Path(path).glob("*.safetensors")}
    number = min(files) if replicate is None else int(replicate)
    if number not in files:
        raise ValueError(
            f"no model of replicate {number} was kept, but of {sorted(files)}; there is none of "
            "a replicate that diverged before it had one"
        )
    return model_in(files[number].read_bytes())


def signature_of(content: bytes) -> Any:
    """Return what the models of a file take and predict, as a `ModelSignature` of MLflow."""
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types.schema import AnyType, ColSpec, Schema, TensorSpec

    kept, _ = read_model(content)
    # As "double", MLflow would refuse a column that happens to hold whole numbers.
    number: Any = AnyType
    inputs: list[Any] = [ColSpec(number(), name) for name in kept.features]
    if not inputs:
        inputs = [TensorSpec(np.dtype(kept.input_type), (-1, *kept.input_shape))]
    classes = TYPES[kept.class_type if kept.classes else "int64"]
    kind = classes if kept.num_classes else "float"
    outputs: list[Any] = [ColSpec(kind, name) for name in kept.targets or [None]]
    return ModelSignature(Schema(inputs), Schema(outputs))
