"""Whose code a file or a module is: the user's, or anybody else's.

Tracebacks and what travels by value go by it. (Which classes are checked as the user's own
is wider, see `raysafl.core.component.is_users_class`.) It needs nothing but Python
itself, because every command imports it.
"""

import re
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from types import CodeType

# Installers put packages into folders of these names, whichever way Python finds them:
# in its own environment, in another one (`--system-site-packages`, a `.pth` file), or in
# the user's home (`--user`).
INSTALLED = {"site-packages", "dist-packages"}
OURS = Path(__file__).parents[1]
STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
# The names of the module in which a program starts. The classes of code that is executed
# without a module's name are in `builtins`.
WITHOUT_A_NAME = {"__main__", "__mp_main__", "builtins"}


def is_users_file(file: str) -> bool:
    """Return whether a line of a traceback is in a Python file of the user.

    The file itself need not exist here: an error may come from another machine.

    Args:
        file: the name that the traceback gives. It is no path where code has no file
            (`<string>`), and a relative one in compiled packages.
    """
    path = Path(file)
    return (
        path.suffix == ".py"
        and path.is_absolute()
        and not _lies_among_packages(path)
        and not path.is_relative_to(OURS)
        and not path.is_relative_to(STANDARD_LIBRARY)
    )


def is_users_module(name: str) -> bool:
    """Return whether the user wrote a module: it is not raysafl's, Python's or installed.

    A module that has no file is the user's: a notebook, or code given as a text. So is
    the one in which the program starts, even if that is `python -m PROGRAM` with an
    installed program. Nobody can import its classes by their names.

    Args:
        name: the name of a module.
    """
    top = name.partition(".")[0]
    if top in WITHOUT_A_NAME:
        return True
    if top == "raysafl" or top in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is None or not _lies_among_packages(Path(file))


def codes_inside(code: object) -> Iterator[CodeType]:
    """Yield the code of a function and of all functions that are defined inside it."""
    if isinstance(code, CodeType):
        yield code
        for constant in code.co_consts:
            yield from codes_inside(constant)


def _lies_among_packages(path: Path) -> bool:
    """Return whether a file was installed, by the folders in which it lies."""
    if not INSTALLED.isdisjoint(path.parts):
        return True
    # `pip install --target` puts packages into a folder of any name, perhaps among the
    # user's own files.
    folders = {Path(folder).absolute() for folder in sys.path if folder}
    return any(
        path.relative_to(folder).parts[0] in _installed_in(folder)
        for folder in folders.intersection(path.parents)
    )


@cache
def _installed_in(folder: Path) -> frozenset[str]:
    """Return the files and folders in a folder that installers say they have put there."""
    records = folder.glob("*.dist-info/RECORD")
    lines = chain.from_iterable(
        record.read_text("utf-8").splitlines() for record in records
    )
    return frozenset(re.split("[/,]", line, maxsplit=1)[0] for line in lines)
