"""A kept model, which takes raw rows and images and predicts classes and numbers."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raysafl.core.problem import Features
from raysafl.core.text import in_brief
from raysafl.data.own_columns import (
    as_float32,
    check_columns,
    columns_as_float32,
    refuse_not_finite,
)
from raysafl.kept.content import AboutModel


class LoadedModel(nn.Module):
    """A module that a run has trained, and what its inputs and outputs mean.

    Args:
        module: What `Model.build` returned, with the weights that were kept.
        about: What the file of models says of them.
        features: How the features of a table became inputs.
    """

    def __init__(
        self, module: nn.Module, about: AboutModel, features: Features
    ) -> None:
        super().__init__()
        self.module = module
        self.about = about
        self.features = features

    def forward(self, x: Tensor) -> Any:
        """Return the module's outputs [B, ...] for what `inputs` returns."""
        return self.module(x)

    def inputs(self, data: Any) -> Tensor:
        """Return raw inputs as the module saw them in training: scaled or standardised.

        Args:
            data: A DataFrame with the columns of the features, in any order and among
                others; or an array [B, *input_shape] of numbers as they were before
                anything was done to them, such as uint8 images.

        Returns:
            Inputs [B, *input_shape], float32; tokens are int64.

        Raises:
            ValueError: A column is missing (the nearest name is given) or holds no
                numbers; or the shape is another, or a value is none that the data had.
        """
        import pandas as pd

        is_table = isinstance(data, pd.DataFrame)
        x = self._columns(data) if is_table else self._array(data)
        if self.about.input_type == "int64":
            return torch.from_numpy(x)
        x_B = torch.from_numpy(self.features.standardised(x)).float()
        return x_B * self.about.scale + self.about.shift

    @torch.no_grad()
    def predict(self, data: Any) -> NDArray[Any]:
        """Return what the model predicts for raw inputs, in the units of the targets.

        Args:
            data: A DataFrame or an array, see `inputs`.

        Returns:
            Classes [B], or [B, L] for L per sample: those with the largest outputs, as
            the dataset had them: text, booleans or whole numbers (int64); by number if
            they have no names. Or numbers, float32 [B], or [B, K] for K per sample.
            Outputs that are not one for each class, which only an objective of your own
            can read, are returned as they are.

        Raises:
            ValueError: The data do not fit, see `inputs`.
        """
        # All layers of very many samples would fill the memory.
        outputs = torch.cat([self(x_B) for x_B in self.inputs(data).split(1000)])
        numbers: NDArray[Any] = outputs.float().numpy()
        if not self.about.num_classes:
            return numbers[:, 0] if numbers.shape[1:] == (1,) else numbers
        # A network may have further outputs, for classes that do not exist.
        numbers = outputs[..., : self.about.num_classes].argmax(-1).numpy()
        if not self.about.classes:
            return numbers
        classes = np.array(self.about.classes)
        if self.about.class_type == "bool":
            classes = np.array([name == "True" for name in self.about.classes])
        return classes.astype(self.about.class_type).take(numbers)

    def _columns(self, frame: Any) -> NDArray[np.float32]:
        """Return the features [B, D] of a table."""
        names = self.features.names
        if not names:
            raise ValueError("the model's inputs have no names; give an array")
        # A single row that was taken out of a table holds numbers as objects.
        table = frame.rename(columns=str).infer_objects()
        check_columns(table, names, "")
        return columns_as_float32(table[list(names)], "feature")

    def _array(self, data: Any) -> NDArray[Any]:
        """Return an array in the type of the dataset, if it can be a part of that."""
        array = np.asarray(data)
        shape = self.about.input_shape
        kind = np.dtype(self.about.input_type)
        if array.dtype.kind not in "fiub" or not array.ndim or array.shape[1:] != shape:
            given = (
                f"{array.dtype} {list(array.shape)}" if array.ndim else in_brief(data)
            )
            names = in_brief(list(self.features.names))
            table = f"; give a DataFrame of {names}, such as pd.DataFrame([row])"
            raise ValueError(
                f"the model takes numbers [B, {', '.join(map(str, shape))}] for B samples, "
                f"not {given}{table if self.features.names else ''}"
            )
        if kind.kind == "f":
            numbers = as_float32(array)
            refuse_not_finite(numbers, ["the input"])
            return numbers
        with np.errstate(invalid="ignore"):
            whole = array.astype(kind)
        if (whole != array).any():
            raise ValueError(
                f"the model's dataset holds {kind} numbers, and {array[whole != array][0]} "
                "is none; give inputs as they are there, neither scaled nor standardised"
            )
        return whole
