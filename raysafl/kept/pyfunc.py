"""The loader of kept models for MLflow: `mlflow.pyfunc.load_model` calls it.

The artifact `model` of a run in MLflow names this module. So raysafl must be installed
where the model is loaded, and a model of a class of the user's own needs that class to
be imported before.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from raysafl.kept.content import load
from raysafl.kept.load import module_of


class Predictor:
    """A kept model that predicts from arrays and tables.

    Args:
        module: The module, in eval mode.
        input_shape: The shape of one sample.
    """

    def __init__(self, module: nn.Module, input_shape: tuple[int, ...]) -> None:
        self.module = module
        self.input_shape = input_shape
        layers = [type(part) for part in module.modules()]
        self._takes_tokens = nn.Embedding in layers

    def predict(self, model_input: Any, params: Any = None) -> NDArray[Any]:
        """Return the model's outputs [B, ...], for classes the logits.

        Args:
            model_input: Inputs [B, *input_shape] as the model saw them in training, as
                an array or as a DataFrame with one row for each sample and one column
                for each of its numbers.
            params: Nothing; MLflow passes it.
        """
        values = np.asarray(model_input)
        # Only tokens, which an embedding looks up, are whole numbers.
        number = np.int64 if self._takes_tokens else np.float32
        x_B = torch.from_numpy(np.ascontiguousarray(values, dtype=number))
        with torch.no_grad():
            outputs: NDArray[Any] = self.module(x_B.view(-1, *self.input_shape)).numpy()
        return outputs


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> Predictor:
    """Return the model of a file, as MLflow asks for it.

    Args:
        path: The file of kept models.
        model_config: `replicate`, the number of the replicate; by default the first
            that has a model.
    """
    content = Path(path).read_bytes()
    about, _ = load(content)
    replicate = (model_config or {}).get("replicate")
    if replicate is None:
        replicate = about.replicates[0].replicate
    return Predictor(module_of(content, int(replicate)), about.input_shape)
