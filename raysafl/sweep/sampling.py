"""The runs of a sweep that are known before anything runs: given, or drawn at random."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raysafl.core.needs import need
from raysafl.simulation.run import Run
from raysafl.storage.manifest import Label, Manifest
from raysafl.sweep.check import without_numpy
from raysafl.sweep.definition import Sweep

# The same command draws the same configurations, whose results are then recognised.
SEED = 0
AS_RESULTS_COME = "a search algorithm asks for its runs as results come"
# So many configurations are drawn, if need be, to find one that stands for a search.
MOST_TRIED = 20


def known_runs(sweep: Sweep) -> tuple[Manifest, dict[str, Run], dict[str, Run]]:
    """Return what is known of a sweep before anything runs.

    Returns:
        What the sweep is, with an entry for each run that is known. Then these runs, by
        id; there are none if a search algorithm asks for them as results come. Then, in that
        case alone, the run of a configuration that was drawn at random, by its id: it stands
        for all of them where something is tried or estimated beforehand.

    Raises:
        ValueError: a run cannot be made, two labels name the same run, or Ray is not
            installed, which draws the configurations of a search space.
    """
    if sweep.is_grid:
        labelled = sweep.labelled()
        return sweep.manifest(labelled), {r.id: r for r in labelled.values()}, {}
    drawn = draw(sweep.space, MOST_TRIED if sweep.is_searched else sweep.num_samples)
    made = _made(sweep, drawn)
    if sweep.is_searched:
        run, _ = made[0]
        return sweep.manifest({}, [run]), {}, {run.id: run}
    # A run that was drawn twice bears the labels of the first draw.
    runs = {run.id: run for run, _ in made}
    labels = {run.id: tuple(labels_of(config).values()) for run, config in made[::-1]}
    return sweep.manifest({labels[i]: run for i, run in runs.items()}), runs, {}


def _made(
    sweep: Sweep, drawn: Sequence[dict[str, Any]]
) -> list[tuple[Run, dict[str, Any]]]:
    """Return the runs of configurations, of a search the first, each with its configuration.

    Raises:
        ValueError: one cannot be made, of a search none; the message names the line of the
            user's code.
    """
    made: list[tuple[Run, dict[str, Any]]] = []
    for config in drawn:
        try:
            made.append((sweep.build(config), config))
            if sweep.is_searched:
                break
        # The user's own function may raise anything.
        except (Exception, SystemExit) as error:
            if sweep.is_searched and config is not drawn[-1]:
                continue
            # Imported here, because a run that can be made needs it not.
            from raysafl.sweep.user_errors import describe_error

            raise ValueError(
                f"sweep '{sweep.name}': no run can be made of {config}, which was drawn: "
                f"{describe_error(error)}"
            ) from error
    return made


def draw(space: Mapping[str, Any], num_samples: int) -> list[dict[str, Any]]:
    """Return configurations of a search space of Ray Tune, in the order of its drawing.

    They are those that Tune's own random sampler with the random state 0 draws.

    Args:
        space: the search space; `tune.grid_search` in it is expanded for each sample.
        num_samples: the number of samples.

    Raises:
        ValueError: Ray is not installed.

    Example:
        >>> from ray import tune
        >>> [c["x"] for c in draw({"x": tune.grid_search([1, 2])}, 1)]
        [1, 2]
        >>> draw({"x": tune.uniform(0, 1)}, 2) == draw({"x": tune.uniform(0, 1)}, 2)
        True
    """
    # Imported here, because a grid needs no Ray, whose import takes a second.
    need("ray", "a search space")
    from ray.tune.search.variant_generator import generate_variants

    rng = np.random.default_rng(SEED)
    return [
        dict(spec["config"])
        for _ in range(num_samples)
        for _, spec in generate_variants({"config": dict(space)}, random_state=rng)
    ]


def labels_of(config: Mapping[str, Any]) -> dict[str, Label]:
    """Return the labels of a run that was made of a configuration."""
    return {name: _label(value) for name, value in config.items()}


def _label(value: Any) -> Label:
    """Return a value as a label: plain values stay, others become JSON text."""
    value = without_numpy(value)
    return value if isinstance(value, Label) else json.dumps(value, default=str)
