"""Says before a sweep what its kept models take, and refuses models that cannot be kept."""

from collections.abc import Iterable, Mapping

import safetensors
import safetensors.torch

from raysafl.core.problem import Dataset, Model
from raysafl.core.text import count, format_bytes
from raysafl.core.users_parts import method_name
from raysafl.models import FlatModel
from raysafl.simulation.run import Run


def keeping_note(
    runs: Iterable[Run], datasets: Mapping[str, Dataset], copies: int = 1
) -> str:
    """Say how many bytes the models that runs keep will take; empty if none keeps any.

    A file has the trained parameters of each replicate and, once, frozen ones and buffers.

    Args:
        runs: The runs to do.
        datasets: The loaded datasets, by the `source_key` of the data that load them.
        copies: How many runs are made like each of these.

    Raises:
        ValueError: A model has parameters of a type that cannot be written.
    """
    sizes: dict[tuple[str, ...], tuple[int, int]] = {}
    models = 0
    total = 0
    for run in runs:
        if run.keep is None:
            continue
        parts = (run.model.to_json(), run.objective.to_json())
        key = (run.data.source_key, *parts)
        if key not in sizes:
            sizes[key] = _sizes(run, datasets[run.data.source_key])
        trained, frozen = sizes[key]
        models += copies * run.replicates
        total += copies * (run.replicates * trained + frozen)
    if not models:
        return ""
    named = count(models, "model")
    return f"{named} will be kept in models/, about {format_bytes(total)} together"


def _sizes(run: Run, dataset: Dataset) -> tuple[int, int]:
    """Return the bytes of a model's trained and of its frozen parameters in a file.

    Raises:
        ValueError: They cannot be written.
    """
    flat = FlatModel.on(run.model, dataset, run.objective)
    try:
        frozen = {
            name: value.detach().clone().contiguous()
            for name, value in flat.frozen.items()
        }
        content = len(safetensors.torch.save(frozen)) if frozen else 0
    except (safetensors.SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"keep={run.keep!r}: the model of {method_name(run.model, Model, 'build')} "
            f"cannot be written as safetensors ({error}); give its frozen parameters "
            "and buffers a type such as float32, or leave keep out"
        ) from error
    return 4 * flat.num_parameters, content
