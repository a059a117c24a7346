"""Sending the user's own classes and functions to the workers."""

import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from raysafl.core.component import Component
from raysafl.core.users_code import is_users_module
from raysafl.simulation.run import Run
from raysafl.sweep.definition import Sweep


def ship_user_code(sweep: Sweep, runs: Iterable[Run]) -> None:
    """Make Ray send the user's own classes and functions to its workers by value.

    What is sent by value need not exist on a worker: a script, an experiment file and
    the modules in its folder. Installed packages (site-packages) are imported there
    instead.

    Which modules are the user's? Take the modules that define the sweep's function
    `make` and the classes of the runs' components. Every module in their folders, or
    below these folders, is the user's.

    Args:
        sweep: its function `make` may be the user's.
        runs: their components may be the user's.
    """
    # Imported here, because runs in this process need no Ray.
    import ray.cloudpickle

    components = [component for run in runs for component in run.components()]
    classes = [
        kind for component in components for kind in _component_classes(component)
    ]
    owners: list[Any] = [sweep.make, *classes]
    modules = (sys.modules.get(getattr(owner, "__module__", "")) for owner in owners)
    folders = {file.parent for module in modules if (file := _user_file(module))}

    for module in list(sys.modules.values()):
        file = _user_file(module)
        if file and any(file.is_relative_to(folder) for folder in folders):
            ray.cloudpickle.register_pickle_by_value(module)


def _component_classes(component: Component) -> list[type[Component]]:
    """Return the component's class and its base classes that are components too."""
    return [kind for kind in type(component).__mro__ if issubclass(kind, Component)]


def _user_file(module: ModuleType | None) -> Path | None:
    """Return the file of a module that the user wrote.

    Returns:
        None for the script that runs (Ray sends it by value in any case), for raysafl,
        for the standard library and for installed packages.
    """
    file = getattr(module, "__file__", None)
    name = getattr(module, "__name__", "")
    is_script = name.partition(".")[0] in ("__main__", "__mp_main__")
    if not file or is_script or not is_users_module(name):
        return None
    return Path(file).resolve()
