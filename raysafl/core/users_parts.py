"""Which parts of a configuration are the user's own, and where their code stands."""

from pathlib import Path
from typing import Any

from raysafl.core.component import Component


def is_users_class(kind: type) -> bool:
    """Return whether a class was defined outside of raysafl."""
    return kind.__module__.partition(".")[0] != "raysafl"


def users_parts(component: Component, family: type[Component]) -> list[Any]:
    """Return the outermost components of the user's own classes.

    A component of the user's may hold further ones. What these must do is the user's
    own business, so they are not returned.

    Args:
        component: the component that is looked through, itself included.
        family: the base class of what is looked for.

    Example:
        >>> from raysafl.core.participation import Participation
        >>> class Nobody(Component):
        ...     pass
        >>> users_parts(Nobody(), Participation)
        []
    """
    if is_users_class(type(component)):
        return [component] if isinstance(component, family) else []
    found = []
    for _, value in component:
        for part in value if isinstance(value, list | tuple) else [value]:
            if isinstance(part, Component):
                found += users_parts(part, family)
    return found


def method_name(component: Component, family: type[Component], method: str) -> str:
    """Name a method, with its file and line, as `Median.round (mine.py:12)`.

    Args:
        component: has the method. If it is not the user's own but holds a component of
            the family that is, the user's method is named.
        family: the base class that declares the method.
        method: the method's name.
    """
    (owner, *_) = [*users_parts(component, family), component]
    code = getattr(getattr(type(owner), method), "__code__", None)
    name = f"{type(owner).__name__}.{method}"
    if code is None:
        return name
    return f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"
