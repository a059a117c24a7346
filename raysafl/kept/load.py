"""`raysafl.load_model`: a kept model as a module of torch, which predicts from raw rows."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raysafl.core.problem import FROZEN_SEED, Features, Model
from raysafl.core.text import in_brief
from raysafl.data.own_columns import (
    as_float32,
    check_columns,
    columns_as_float32,
    refuse_not_finite,
)
from raysafl.kept.content import (
    FEATURES,
    FROZEN,
    TRAINED,
    AboutModel,
    read_model,
    tensors_of,
)
from raysafl.simulation.run import Run
from raysafl.storage.paths import parse_location
from raysafl.storage.store import Store


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


def load_model(
    folder: str | Path,
    run: Run | str | Mapping[str, Any],
    replicate: int = 0,
) -> LoadedModel:
    """Return the model that a run kept (`Run.keep`), with its weights, in eval mode.

    Its method `predict` takes raw rows of a table, or an array, and returns classes by
    name, or numbers in the target's units. Called itself, it takes inputs as the model saw
    them in training, which its method `inputs` makes, and returns the outputs of its
    `module`, which the run's `Model.build` makes. It computes in float32, also where the
    run trained with bfloat16 or, on a GPU, with TF32.

    Args:
        folder: The sweep's folder or URI.
        run: The run: itself, its id, or labels that it alone has.
        replicate: The number of the replicate, from 0.

    Returns:
        The model, a module on the CPU.

    Raises:
        ValueError: There is no such run, or it kept no model of this replicate, or the
            file is missing or damaged, or the class of the model is not known here.

    Example:
        >>> import tempfile
        >>> import torch
        >>> import raysafl as fl
        >>> from raysafl.quickstart import BASE
        >>> run = BASE.replace(rounds=2, keep="last")
        >>> folder = f"{tempfile.mkdtemp()}/kept"
        >>> sweep = fl.Sweep("kept", [run])
        >>> runner = fl.Runner(sweep, folder, executor="here", track="none", quiet=True)
        >>> runner.run().ok
        True
        >>> model = fl.load_model(folder, run)
        >>> model(torch.zeros(1, 1, 8, 8)).shape
        torch.Size([1, 10])
        >>> images = run.data.load().test.x[:3]
        >>> images.dtype, model.predict(images).tolist()
        (dtype('uint8'), ['7', '6', '3'])
    """
    store = Store(parse_location(folder))
    run_id = _run_id(store, run)
    found = store.read(run_id).runs.get(run_id)
    if found is None or not found.has_begun:
        raise ValueError(
            f"run {run_id} of {store.path} has not ended, or the sweep has no such run. "
            "`raysafl results` shows the runs with their ids and labels; models are written "
            "when a seed of a run ends"
        )
    if not 0 <= replicate < len(found.cells):
        raise ValueError(
            f"run {run_id} of {store.path} has no replicate {replicate}: give 0 to "
            f"{len(found.cells) - 1}"
        )
    end = found.cells[replicate]
    if not end.kept:
        why = f" ({end.reason})" if end.reason else ""
        raise ValueError(
            f"replicate {replicate} of run {run_id} of {store.path} has no model: it is "
            f"{end.status}{why}, and its field `keep` is {found.config.get('keep')!r}. A seed "
            "that finishes keeps a model with keep='last', 'best' or 'best_val', unless the "
            "number by which it chooses was always missing; with another `keep` a run is a "
            "new one, which is computed from its first round"
        )
    try:
        return model_in(store.model(end.cell).read_bytes())
    except ValueError as error:
        raise ValueError(f"{store.path}, cell {end.cell}: {error}") from error


def model_in(content: bytes) -> LoadedModel:
    """Return the model from the content of the file of a kept model.

    Raises:
        ValueError: The file is damaged, or the model's class is not known here or builds
            other parameters.
    """
    about, tensors = read_model(content)
    module = _built(about)
    values = tensors_of(FROZEN, tensors) | tensors_of(TRAINED, tensors)
    parameters = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    shapes = {name: tuple(p.shape) for name, p in parameters.items()}
    stored = {name: tuple(value.shape) for name, value in values.items()}
    if different := {name for name, _ in shapes.items() ^ stored.items()}:
        raise ValueError(
            f"the model {about.run['model']['kind']} builds other parameters than those "
            f"that were kept ({', '.join(sorted(different))}), so its code has changed since; "
            "use the code with which the run was made"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(values[name])
    scales = {k: tuple(v.tolist()) for k, v in tensors_of(FEATURES, tensors).items()}
    return LoadedModel(module, about, Features(about.features, **scales)).eval()


def _built(about: AboutModel) -> nn.Module:
    """Build the module of the run's recipe, whose parameters are then replaced."""
    recipe = about.run["model"]
    if recipe["kind"] not in Model.kinds():
        raise ValueError(
            f"the class of the model, {recipe['kind']}, is not known here; import the "
            "file that defines it first, or define it again. The known models are: "
            f"{', '.join(sorted(Model.kinds()))}"
        )
    model = Model.from_json(json.dumps(recipe))
    with torch.random.fork_rng(devices=[]):
        # A tensor that is neither a parameter nor a buffer is drawn as for the training.
        torch.default_generator.manual_seed(FROZEN_SEED)
        return model.build(about.input_shape, about.num_outputs)


def _run_id(store: Store, run: Run | str | Mapping[str, Any]) -> str:
    """Return the id of the run that is meant."""
    if isinstance(run, Run):
        return run.id
    if isinstance(run, str):
        return run
    if not isinstance(run, Mapping):
        raise ValueError(
            f"a run is given as itself, by its id or by its labels, not as {run!r}; labels are "
            f"a mapping from {' and '.join(store.manifest().axes) or 'an axis'}"
        )
    selected = store.manifest().select({axis: str(v) for axis, v in run.items()})
    if len(selected) != 1:
        given = ", ".join(f"{axis}={value}" for axis, value in run.items())
        raise ValueError(
            f"{len(selected)} runs of {store.path} have the labels {given or '(none)'}; "
            "give labels that one run alone has, or its id"
        )
    return selected[0]
