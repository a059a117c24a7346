"""Loads the datasets of runs, and tries their parts on them, before anything runs."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from raysafl.core.component import method_name, users_parts
from raysafl.core.objective import (
    UNKNOWN_OUTPUTS,
    Objective,
    check_targets,
    hits_of,
    measure_clients,
)
from raysafl.core.problem import Dataset, Model, Samples
from raysafl.models import FlatModel
from raysafl.runtime.population import Population
from raysafl.simulation.per_client import PerClient
from raysafl.simulation.run import Run
from raysafl.sweep.batch_checks import try_model, try_objective
from raysafl.sweep.user_errors import errors_described
from raysafl.training.engines import make_engine
from raysafl.training.inputs import Inputs

LOG = logging.getLogger(__name__)


def prepare(
    runs: Iterable[Run],
    engine: str = "auto",
    loaded: Mapping[str, Dataset] | None = None,
) -> dict[str, Dataset]:
    """Load each dataset once, and try partitions, server data, models and objectives.

    Args:
        runs: the runs to do.
        engine: the engine that computes gradients; "auto" is not tried.
        loaded: datasets that need not be loaded, by `source_key`.

    Returns:
        The datasets, by the `source_key` of the data that load them.

    Raises:
        ValueError: a file is missing, or a part of a run does not fit the data.
    """
    datasets = dict(loaded or {})
    seen: set[str] = set()
    for run in runs:
        with errors_described():
            _prepare_one(run, engine, datasets, seen)
    return datasets


def _prepare_one(
    run: Run, engine: str, datasets: dict[str, Dataset], seen: set[str]
) -> None:
    """Load a run's dataset, and try its parts on it, unless that was done before.

    Args:
        run: the run.
        engine: see `prepare`.
        datasets: the datasets so far, by `source_key`; the run's is added.
        seen: JSON of the parts that were tried; the run's are added.
    """
    name = run.data.source_key
    dataset = dataset_of(run, datasets)
    if (split := run.data.to_json()) not in seen:
        run.data.split(dataset, run.seed)
    run.policy_on(dataset)
    tested = f"{split} {run.eval_clients} {run.objective.to_json()}"
    if run.eval_clients is not None and tested not in seen:
        _try_clients(run, run.eval_clients, dataset)
    model = f"{name} {run.model.to_json()} {run.objective.to_json()}"
    if model not in seen:
        _try_model_and_objective(run, engine, dataset)
    seen |= {split, tested, model}


def _try_clients(run: Run, judged: PerClient, dataset: Dataset) -> None:
    """Say how many clients have no test samples, and try what is measured of clients."""
    population = Population(run.cells[:1], dataset)
    counts = population.client_tests(0, judged.on).tests_N
    if unjudged := int((counts == 0).sum()):
        LOG.warning(
            "%d of %d clients have no test samples of their own, so that they are "
            "not judged: their entries are empty",
            unjudged,
            len(counts),
        )
    measure_clients(run.objective, np.linspace(0.1, 1.0, run.data.clients))


def _try_model_and_objective(run: Run, engine: str, dataset: Dataset) -> None:
    """Build a run's model, and compute with it and with the objective on few samples."""
    objective = run.objective
    check_targets(objective, dataset)
    flat = FlatModel.on(run.model, dataset, objective)
    if engine != "auto":
        make_engine(engine, flat, objective)
    out_B = flat.try_on(first_inputs(dataset.train, 2))
    if users_parts(run.model, Model):
        try_model(run.model, flat, dataset)
    if users_parts(objective, Objective):
        try_objective(objective, flat, dataset)
    # Of ours, those with an accuracy compute the cross-entropy.
    elif hits_of(objective, UNKNOWN_OUTPUTS) is not None:
        _warn_of_softmax(run.model, out_B)


def _warn_of_softmax(model: Model, out_B: Tensor) -> None:
    """Say that a model's outputs are probabilities, if they are, where logits belong."""
    ones_B = out_B.sum(-1)
    if (out_B >= 0).all() and torch.allclose(
        ones_B, torch.ones_like(ones_B), atol=1e-4
    ):
        LOG.warning(
            "%s makes outputs that are probabilities, as after a Softmax; the cross-entropy "
            "takes logits and has a softmax of its own, so that the model would hardly "
            "learn: leave the last Softmax out",
            method_name(model, Model, "build"),
        )


def dataset_of(run: Run, datasets: dict[str, Dataset]) -> Dataset:
    """Return a run's dataset, which is loaded and added to the others if need be."""
    name = run.data.source_key
    if name not in datasets:
        datasets[name] = run.data.load()
    return datasets[name]


def first_inputs(samples: Samples, count: int) -> Tensor:
    """Return the first inputs of some samples, as a model sees them.

    Args:
        samples: the samples.
        count: the number of inputs.
    """
    few = replace(samples, x=samples.x[:count], y=samples.y[:count], users=None)
    return Inputs(few, torch.device("cpu")).span(0, count)[0]
