"""`raysafl.grid`: the sweep of all combinations of some values, in one line."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from raysafl.core.component import Component
from raysafl.core.text import in_brief, nearest
from raysafl.simulation.run import Run
from raysafl.storage.manifest import Label
from raysafl.sweep.check import check_run, path_of, without_numpy
from raysafl.sweep.definition import Sweep


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
