"""Sending the user's own classes and functions to other processes."""

import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from raysafl.core.component import Component
from raysafl.core.users_code import WITHOUT_A_NAME, is_users_module


def ship_user_code(components: Iterable[Component], pickler: Any = None) -> None:
    """Make a pickler send the user's own classes and functions by value.

    What is sent by value need not exist on a worker of Ray's: a script, an experiment file and
    the modules in its folder. Installed packages (site-packages) are imported there
    instead.

    Which modules are the user's? Take the modules that define the classes of the
    components. Every module in their folders, or below these folders, is the user's.

    Args:
        components: the components of the runs, whose classes may be the user's.
        pickler: the module cloudpickle; None for Ray's copy of it.
    """
    if pickler is None:
        # Imported here, because runs in this process need no Ray.
        import ray.cloudpickle as pickler

    kinds = {type(component) for component in components}
    names = {owner.__module__ for kind in kinds for owner in kind.__mro__}
    files = (_user_file(sys.modules.get(name)) for name in names)
    folders = {file.parent for file in files if file}

    for module in list(sys.modules.values()):
        file = _user_file(module)
        if file and any(file.is_relative_to(folder) for folder in folders):
            pickler.register_pickle_by_value(module)


def _user_file(module: ModuleType | None) -> Path | None:
    """Return the file of a module that the user wrote.

    Returns:
        None for the script that runs (Ray sends it by value in any case), for raysafl,
        for the standard library and for installed packages.
    """
    file = getattr(module, "__file__", None)
    name = getattr(module, "__name__", "")
    is_script = name.partition(".")[0] in WITHOUT_A_NAME
    if not file or is_script or not is_users_module(name):
        return None
    return Path(file).resolve()
