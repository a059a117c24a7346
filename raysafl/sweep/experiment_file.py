"""Loading of experiment files: ordinary Python that defines `SWEEP` and is executed."""

import importlib.util
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType

from raysafl.core.component import nearest_name
from raysafl.core.text import nearest
from raysafl.sweep.definition import Sweep


def load_sweep(path: Path) -> Sweep:
    """Execute an experiment file and return its `SWEEP`.

    The file may import the modules of its own folder by their plain names. If that
    folder is a package (it holds `__init__.py`), the file may also import by full
    names, such as `from experiments.safari.setting import entry_run`, whatever the
    working directory is.

    Raises:
        ValueError: the file is missing, fails to import (with the line), or defines no
            sweep.
    """
    if not path.is_file():
        folder = path if path.is_dir() else path.parent
        near = [str(file) for file in folder.glob("*.py")]
        hint = f": {nearest(str(path), near)}" if near else ""
        raise ValueError(f"there is no experiment file {path}{hint}")
    module = _run_file(path)
    sweep = getattr(module, "SWEEP", None)
    if not isinstance(sweep, Sweep):
        found = sorted(
            name for name, value in vars(module).items() if isinstance(value, Sweep)
        )
        hint = f" (it defines {', '.join(found)}: rename one)" if found else ""
        raise ValueError(f"{path} defines no sweep: it needs SWEEP = Sweep(...){hint}")
    return sweep


def outermost_package(file: Path) -> Path | None:
    """Return the folder of the outermost package that holds a file, or None."""
    package = None
    for folder in file.resolve().parents:
        if not (folder / "__init__.py").is_file():
            break
        package = folder
    return package


def _run_file(path: Path) -> ModuleType:
    name = f"raysafl_experiment_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    before = list(sys.path)
    package = outermost_package(path)
    folders = [path.parent.resolve(), *([package.parent] if package else [])]
    sys.path[:0] = map(str, folders)
    try:
        spec.loader.exec_module(module)
    # Ctrl-C is no error of the file. Everything else is, such as SystemExit.
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [
            frame.lineno for frame in frames if Path(frame.filename) == path.absolute()
        ]
        where = f"{path}:{lines[-1]}" if lines else f"{path}"
        raise ValueError(f"{where} does not import: {_say(error)}") from error
    finally:
        sys.path[:] = before
    return module


def _say(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return (
            f"it ends the program (SystemExit: {error.code}); put the exit below "
            "`if __name__ == '__main__':`"
        )
    missing = re.match(r"cannot import name '(\w+)' from '(raysafl[.\w]*)'", str(error))
    if missing:
        return nearest_name(missing[1], missing[2])
    # These name their line, or are sentences of ours.
    if isinstance(error, ValueError | SyntaxError):
        return str(error)
    return f"{type(error).__name__}: {error}"
