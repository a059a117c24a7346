"""What a wrong call is told: an argument that is unknown, missing, or has no name."""

import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import wraps
from inspect import Parameter, isclass, signature
from typing import Any, TypeVar, get_args

from raysafl.core.text import closest, in_brief, nearest

Made = TypeVar("Made", bound=Callable[..., Any])
# What every sweep is written with, beside the components that it chooses.
COMMON = (
    *("Federation", "LocalTraining", "Run", "Runner", "Sweep"),
    *("from_pandas", "grid"),
)
# Above it, a name is a slip for its nearest one, whoever else takes such a name.
SLIP = 0.85


def explained(make: Made) -> Made:
    """Let a function, or the constructor of a class, tell a wrong call in a sentence.

    Raises:
        ValueError: the decorated call, if its arguments do not fit the signature.
    """
    inner: Any = make.__init__ if isclass(make) else make
    takes = signature(inner)

    @wraps(inner)
    def call(*values: Any, **fields: Any) -> Any:
        try:
            takes.bind(*values, **fields)
        except TypeError:
            given = values[1:] if isclass(make) else values
            raise ValueError(wrong_call(make, given, fields)) from None
        return inner(*values, **fields)

    if not isclass(make):
        return call  # type: ignore[return-value]
    type.__setattr__(make, "__init__", call)
    return make


def wrong_call(
    make: Callable[..., Any], values: Collection[Any], fields: Mapping[str, Any]
) -> str:
    """Say what is wrong with the arguments of a call, and how to give them."""
    what = make.__name__
    takes = signature(make).parameters.values()
    is_open = any(p.kind is Parameter.VAR_KEYWORD for p in takes)
    refused = [n for n in fields if n not in _names(make)]
    if refused and not is_open:
        return f"{what} takes no '{refused[0]}': {no_argument(make, refused[0])}"
    bare = [p.name for p in takes if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    named = [p.name for p in takes if p.kind is Parameter.KEYWORD_ONLY]
    if len(values) > len(bare):
        free = [name for name in named if name not in fields]
        rest = [*values][len(bare) :]
        shown = [
            *(["..."] if bare else []),
            *(f"{n}={in_brief(v)}" for n, v in zip(free, rest, strict=False)),
        ]
        return (
            f"{what} takes {' and '.join(bare) or 'nothing'} without a name, but "
            f"{len(values)} values were given so; give {what}({', '.join(shown)})"
        )
    needed = [p.name for p in takes if p.default is Parameter.empty]
    missing = [n for n in needed if n in {*bare, *named}.difference(fields)]
    missing = [n for n in missing if n not in bare[: len(values)]]
    if missing:
        return f"{what} needs {' and '.join(missing)}; give {missing[0]}=..."
    twice = [name for name in bare[: len(values)] if name in fields]
    return f"{what} is given {twice[0]} twice, with a name and without; give it once"


def refuse_unknown(
    make: Callable[..., Any], given: Iterable[str], *others: Callable[..., Any]
) -> None:
    """Refuse arguments that neither a function nor those that it hands them to take.

    Raises:
        ValueError: one is unknown; the message says what may be meant.
    """
    for name in given:
        if not any(name in _names(taker) for taker in (make, *others)):
            hint = no_argument(make, name, *others)
            raise ValueError(f"{make.__name__} takes no '{name}': {hint}")


def no_argument(
    make: Callable[..., Any], name: str, *others: Callable[..., Any]
) -> str:
    """Say what is meant by a name that something does not take, as the end of a message.

    It is a slip for a name that it takes, or it belongs elsewhere.

    Args:
        make: the class or function.
        name: the unknown name.
        others: to what it hands further arguments.
    """
    known = sorted({known for taker in (make, *others) for known in _names(taker)})
    slip = closest(name, known, SLIP)
    if slip:
        return f"did you mean '{slip}'?"
    homes = [f"{home}({name}=...)" for home in _takers(name, make)]
    if not homes:
        return nearest(name, known)
    return f"it belongs in {' or '.join(homes)}"


def _names(make: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that something takes."""
    fields = getattr(make, "model_fields", None)
    if fields is not None:
        return list(fields)
    loose = (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
    return [p.name for p in signature(make).parameters.values() if p.kind not in loose]


def _takers(name: str, asked: Callable[..., Any]) -> list[str]:
    """Return what takes an argument of this name, as near as possible to what was asked.

    Nearest are the components that are its own fields, then what is common to all sweeps,
    then components that may be its fields, then those of a first sweep, then all others.
    """
    # Imported here, because components ask this module.
    from raysafl.core.component import Component

    top = importlib.import_module("raysafl")
    makes = {**Component.kinds(), **{own: getattr(top, own) for own in COMMON}}
    fields = getattr(asked, "model_fields", {}).values()
    parts = tuple(part for field in fields for part in _classes(field.annotation))

    def distance(own: str) -> tuple[bool, ...]:
        make = makes[own]
        may_be = isclass(make) and issubclass(make, parts)
        return make not in parts, own not in COMMON, not may_be, own not in top.__all__

    found = sorted(own for own, make in makes.items() if name in _names(make))
    least = min(map(distance, found), default=None)
    return [own for own in found if distance(own) == least]


def _classes(annotation: Any) -> Iterator[type]:
    """Yield the classes that a type is made of."""
    if isclass(annotation):
        yield annotation
    for inside in get_args(annotation):
        yield from _classes(inside)
