"""user_code."""

import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import ray
import ray.cloudpickle

from raysafl.core.component import Component
from raysafl.simulation.run import Run
from raysafl.sweep.definition import Sweep
from raysafl.sweep.experiment_file import outermost_package


def _bases(part: Component) -> list[type[Component]]:
    return [kind for kind in type(part).__mro__ if issubclass(kind, Component)]


def ship(sweep: Sweep, runs: Iterable[Run]) -> None:
    """Send the user's own classes and functions to Ray's workers by value.

    Modules that are installed (site-packages) are imported there; a script, an experiment file
    and the modules beside it, or in the same package, need not exist on the workers.
    """
    owners: list[Any] = [
        sweep.make,
        *(kind for run in runs for c in run.components() for kind in _bases(c)),
    ]
    modules = (sys.modules.get(getattr(owner, "__module__", "")) for owner in owners)
    files = [file for module in modules if (file := _own_file(module))]
    folders = {outermost_package(file) or file.parent for file in files}
    for module in list(sys.modules.values()):
        file = _own_file(module)
        if file and any(file.is_relative_to(folder) for folder in folders):
            ray.cloudpickle.register_pickle_by_value(module)


def _own_file(module: ModuleType | None) -> Path | None:
    """The file of a module of the user's; None for the script, ours and installed ones."""
    file, name = getattr(module, "__file__", None), getattr(module, "__name__", "")
    top = name.partition(".")[0]
    if not file or top in ("__main__", "__mp_main__", "raysafl", *sys.stdlib_module_names):
        return None
    installed = "site-packages" in file or "dist-packages" in file
    return None if installed else Path(file).resolve()
