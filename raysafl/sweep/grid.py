"""Which runs a sweep has: all combinations of some values, or what is drawn from a space."""

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from raysafl.core.component import Component
from raysafl.core.needs import need
from raysafl.core.text import in_brief, nearest
from raysafl.simulation.run import Run
from raysafl.storage.manifest import Label, Manifest
from raysafl.sweep.definition import Sweep
from raysafl.sweep.measures import check_labels, check_run, path_of, without_numpy

# The same command draws the same configurations, whose results are then recognised.
SEED = 0
AS_RESULTS_COME = "a search algorithm asks for its runs as results come"
# So many configurations are drawn, if need be, to find one that stands for a search.
MOST_TRIED = 20


def grid(
    base: Run,
    values: Mapping[str, Iterable[Any]],
    *,
    seeds: int | None = None,
    name: str = "sweep",
    names: Mapping[str, str] | None = None,
    **others: Any,
) -> Sweep:
    """Return the sweep of all combinations of some fields' values, which needs no Ray.

    Each field is an axis. Its name is the end of its path, as long as it takes to be that of
    no other field of `base` and of no other axis: `client_prob`, but `local.lr`. `names`
    calls it otherwise in tables, files and labels.

    Example:
        >>> import raysafl as fl
        >>> from raysafl.quickstart import BASE
        >>> base = BASE.replace(algorithm=fl.SAFARI())
        >>> sweep = fl.grid(base, {"client_prob": [0.5, 1.0], "local.lr": [0.1]}, seeds=3)
        >>> sweep
        Sweep 'sweep': 2 runs over client_prob, local.lr
        >>> [(key, run.replicates) for key, run in sweep.labelled().items()]
        [((0.5, 0.1), 3), ((1.0, 0.1), 3)]

    Args:
        base: the run that all others are like.
        values: by field, the values that it takes, or a mapping from labels to values.
            A field is a dotted path in the run, such as `algorithm.client_prob`, or its
            last part, if one component alone has such a field.
        seeds: the number of replicates of each run, of which the first has the seed
            `base.seed` and each other one the next; None: that of `base`.
        name: the name of the sweep, which is also that of its folder.
        names: by field, as in `values`, another name of its axis: a paper's, for example,
            {"client_prob": "q"}.
        others: further arguments of `Sweep`, such as `title` or `table`.

    Raises:
        ValueError: a field is not there or in several components, or has no list of
            different values; or a value is out of range; or `names` names no axis.
    """
    check_run(base, "base")
    if seeds is not None:
        if not isinstance(seeds, int) or seeds < 1:
            raise ValueError(
                f"seeds is {seeds!r}; give the number of seeds, such as seeds=3 for the seeds "
                "0, 1 and 2; base.replace(seed=...) says which is the first"
            )
        base = base.replace(replicates=seeds)
    given = values if isinstance(values, Mapping) else {}
    paths = {path_of(base, field): own for field, own in given.items()}
    every = {*base.flat(), *paths}
    if not paths or len(paths) < len(given):
        raise ValueError(
            "a grid needs an axis or several different ones, such as "
            f"{{'rounds': [50, 100]}}, but has {[*given] or in_brief(values)}"
        )
    for field in names or {}:
        if field not in given:
            raise ValueError(f"names has '{field}', but {nearest(field, given)}")
    axes = [
        (names or {}).get(field) or _unique_end(path, every)
        for field, path in zip(given, paths, strict=True)
    ]
    labelled = [_labelled(path, own).items() for path, own in paths.items()]
    runs = {
        tuple(label for label, _ in point): base.replace(
            dict(zip(paths, [value for _, value in point], strict=True))
        )
        for point in itertools.product(*labelled)
    }
    return Sweep(name, runs, axes, **others)


def _unique_end(path: str, every: Iterable[str]) -> str:
    """Return the shortest end of a path that is the end of no other one."""
    parts = path.split(".")
    ends = (".".join(parts[i:]) for i in range(len(parts) - 1, 0, -1))
    others = [f".{other}" for other in every if other != path]
    return next((e for e in ends if not any(o.endswith(f".{e}") for o in others)), path)


def _labelled(path: str, values: Any) -> dict[Any, Any]:
    """Return the values of an axis by their labels: a component's is its class."""
    if isinstance(values, Mapping):
        return dict(values)
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"'{path}' is given {values!r}; give a list of its values")
    found = list(values)
    labels = [_label_of(value) for value in found]
    if not found or len(set(labels)) < len(labels):
        raise ValueError(
            f"'{path}' needs values with different labels, but has {labels}; give each "
            "value once, or a mapping from labels of your own to values"
        )
    return dict(zip(labels, found, strict=True))


def _label_of(value: Any) -> Label:
    value = without_numpy(value)
    if isinstance(value, Label):
        return value
    return type(value).__name__ if isinstance(value, Component) else str(value)


def known_runs(sweep: Sweep) -> tuple[Manifest, dict[str, Run], dict[str, Run]]:
    """Return what is known of a sweep before anything runs.

    Returns:
        What the sweep is, with an entry for each run that is known. Then these runs, by
        id; there are none if a search algorithm asks for them as results come. Then, in that
        case alone, the run of a configuration that was drawn at random, by its id: it stands
        for all of them where something is tried or estimated beforehand.

    Raises:
        ValueError: a run cannot be made (of a search, none of `MOST_TRIED`): the message
            names the line of the user's code. Or two labels name the same run, runs that were
            drawn have the same labels, or Ray is not
            installed, which draws the configurations of a search space.
    """
    if sweep.is_grid:
        labelled = sweep.labelled()
        return sweep.manifest(labelled), {r.id: r for r in labelled.values()}, {}
    runs: dict[str, Run] = {}
    labels: dict[str, tuple[Label, ...]] = {}
    drawn = draw(sweep.space, MOST_TRIED if sweep.is_searched else sweep.num_samples)
    for config in drawn:
        try:
            run = sweep.build(config)
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
        if sweep.is_searched:
            return sweep.manifest({}, [run]), {}, {run.id: run}
        # A run that was drawn twice bears the labels of the first draw.
        runs.setdefault(run.id, run)
        labels.setdefault(run.id, tuple(labels_of(config).values()))
    check_labels(sweep.axis_names, list(labels.values()))
    return sweep.manifest({labels[i]: run for i, run in runs.items()}), runs, {}


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
    """Return the labels of a run that was made of a configuration.

    Plain values are labels as they are. A component is its class with the fields that it was
    given, and anything else is JSON text.
    """
    return {name: _text_of(without_numpy(value)) for name, value in config.items()}


def _text_of(value: Any) -> Label:
    if isinstance(value, Component):
        given = [f"{n}={own!r}" for n, own in value if n in value.model_fields_set]
        return type(value).__name__ + (f"({', '.join(given)})" if given else "")
    return value if isinstance(value, Label) else json.dumps(value, default=repr)
