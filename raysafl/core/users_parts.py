"""Which parts of a configuration are the user's own, and where their code stands."""

from pathlib import Path
from typing import Any

from raysafl.core.component import Component

# The largest number of characters by which `in_brief` describes a value.
LONGEST = 120


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


def in_brief(value: object) -> str:
    """Describe a value that was not expected, on one line of an error message.

    Example:
        >>> import torch
        >>> in_brief(None), in_brief([1, 2]), in_brief(torch.zeros(2, 3))
        ('None', '[1, 2]', 'a Tensor of shape [2, 3]')
    """
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"a {type(value).__name__} of shape {list(shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
