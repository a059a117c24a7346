"""The classes of a family of components that raysafl itself defines."""

import sys
from typing import TypeVar

from raysafl.core.component import Component

C = TypeVar("C", bound=Component)


def built_in(family: type[C]) -> list[type[C]]:
    """Return the built-in classes of a family, without those that tests have defined.

    The examples in docstrings define classes whose `__module__` is one of raysafl's, so
    a class counts only if its module still has it.
    """
    return [
        kind
        for kind in family.kinds().values()
        if kind.__module__.startswith("raysafl.")
        and getattr(sys.modules[kind.__module__], kind.__qualname__, None) is kind
    ]
