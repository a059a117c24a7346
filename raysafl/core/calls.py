"""What a wrong call is told: an argument that is unknown, missing, or has no name."""

import importlib
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from inspect import Parameter, isclass, ismodule, signature
from typing import Any, TypeVar

from raysafl.core.text import closest, in_brief, nearest

Made = TypeVar("Made", bound=Callable[..., Any])
# So many names of arguments are listed beside what a wrong one may mean.
FEW = 12
# What every sweep is written with.
COMMON = "Federation LocalTraining Run Runner Sweep from_pandas grid".split()


def checked_call(make: Made) -> Made:
    """Let a function, or a class when it makes one, tell a wrong call by a ValueError."""
    inner: Any = make.__init__ if isclass(make) else make

    @wraps(inner)
    def call(*values: Any, **fields: Any) -> Any:
        refuse_unnamed(make, values[isclass(make) :])
        if Parameter.VAR_KEYWORD not in _kinds(make):
            refuse_unknown(make, fields)
        try:
            signature(inner).bind(*values, **fields)
        except TypeError as error:
            raise ValueError(f"{make.__name__}: {error}") from None
        return inner(*values, **fields)

    if not isclass(make):
        return call  # type: ignore[return-value]
    type.__setattr__(make, "__init__", call)
    return make


def refuse_unnamed(make: Callable[..., Any], values: Collection[Any]) -> None:
    """Raise a ValueError if more values are given without a name than may be."""
    if not values:  # To ask for a signature takes longer than to make a component.
        return
    most = _kinds(make).count(Parameter.POSITIONAL_OR_KEYWORD)
    if len(values) > most:
        free = [*signature(make).parameters][most:]
        pairs = zip(free, [*values][most:], strict=False)
        named = ", ".join(f"{name}={in_brief(value)}" for name, value in pairs)
        raise ValueError(
            f"{make.__name__} takes {most} values without a name, and {len(values)} are "
            f"given{f'; give others by name, such as {named}' if named else ''}"
        )


def refuse_unknown(
    make: Callable[..., Any], given: Iterable[str], *others: Callable[..., Any]
) -> None:
    """Raise a ValueError if neither a function nor what it hands them to takes arguments."""
    known = {name for taker in (make, *others) for name in signature(taker).parameters}
    for name in given:
        if name not in known:
            raise ValueError(f"{make.__name__} takes no '{name}': {meant(name, known)}")


def meant(name: str, known: Collection[str]) -> str:
    """Say what is meant by an unknown argument: a known one, or where it belongs."""
    # What is as similar as this is a slip, whoever else takes an argument of that name.
    slip = closest(name, known, 0.85)
    if slip:
        return f"did you mean '{slip}'?"
    homes = [f"{home}({name}=...)" for home in _takers(name)]
    if not homes:
        return nearest(name, known)
    here = f" (known here: {', '.join(sorted(known))})" if len(known) <= FEW else ""
    return f"it belongs in {' or '.join(homes)}{here}"


def _kinds(make: Callable[..., Any]) -> list[Any]:
    return [parameter.kind for parameter in signature(make).parameters.values()]


def _takers(name: str) -> list[str]:
    """Return what takes an argument of this name: of all, what first sweeps need most."""
    top = importlib.import_module("raysafl")
    spaces = [top, *filter(ismodule, (getattr(top, own) for own in top.__all__))]
    every = {own: getattr(space, own) for space in spaces for own in space.__all__}
    # A configuration consists of components, which have fields.
    makes = {
        own: make
        for own, make in every.items()
        if own in COMMON or (isclass(make) and hasattr(make, "model_fields"))
    }
    found = sorted(k for k, make in makes.items() if name in signature(make).parameters)
    in_top = [own for own in found if own in top.__all__]
    return [own for own in found if own in COMMON] or in_top or found
