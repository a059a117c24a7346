"""Text for people: nearest names, numbers of bytes, types of fields, no control characters."""

import difflib
import inspect
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

if TYPE_CHECKING:
    from pydantic import BaseModel

# Characters that move a terminal's cursor, change its title or turn text round.
CONTROL = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]"
)
# The largest number of characters by which `in_brief` describes a value.
LONGEST = 120


def printable(text: str) -> str:
    """Return a text without the control characters that a stranger may have put into it."""
    return CONTROL.sub("", text)


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest a known name for one that is unknown, as the end of an error message.

    Args:
        name: the name that was given.
        known: all names that would have been right.

    Returns:
        The most similar name, if one is similar enough, and all known names, each once.

    Example:
        >>> nearest("fedavgg", ["FedAvg", "FedProx"])
        "did you mean 'FedAvg'? (known: FedAvg, FedProx)"
        >>> nearest("xyz", ["FedAvg", "FedProx"])
        'known are FedAvg, FedProx'
    """
    names = sorted(set(known))
    there = ", ".join(names) or "none"
    if close := closest(name, names):
        return f"did you mean '{close}'? (known: {there})"
    return f"known {'is' if len(names) == 1 else 'are'} {there}"


def closest(name: str, known: Iterable[str], least: float = 0.55) -> str:
    """Return the known name that is most similar; empty if none is."""
    by_lower_case = {known_name.lower(): known_name for known_name in known}
    given = name.lower()
    close = [given] if given in by_lower_case else []
    # Numbers with the same digits are no slips of the pen.
    if not any(map(str.isdigit, given)):
        close += [own for own in by_lower_case if sorted(own) == sorted(given)]
    close += difflib.get_close_matches(given, by_lower_case, n=1, cutoff=least)
    return by_lower_case[close[0]] if close else ""


def format_bytes(count: float) -> str:
    """Write a number of bytes with three digits and a unit, in decimal multiples.

    Example:
        >>> format_bytes(3_400_000)
        '3.4 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float) -> str:
    """Write seconds as `41.3 s`, `12 min 5 s` or `3 h 20 min`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def about(seconds: float) -> str:
    """Write an estimated time in seconds as `about 45 s`, `about 3 min` or `about 2.5 h`."""
    if seconds < 90:
        return f"about {max(5, 5 * round(seconds / 5))} s"
    if seconds < 90 * 60:
        return f"about {round(seconds / 60)} min"
    return f"about {seconds / 3600:.1f} h"


def count(n: int, noun: str) -> str:
    """Write a number of things, such as `1 entry` or `2 entries`."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{n} {noun if n == 1 else plural}"


def were(runs: int) -> str:
    """Write `1 run was` or `2 runs were`."""
    return "1 run was" if runs == 1 else f"{runs} runs were"


def class_name(kind: type) -> str:
    """Name a class, with its file and line if they are known, as `Median (mine.py:12)`."""
    try:
        file = Path(inspect.getfile(kind)).name
        return f"{kind.__name__} ({file}:{inspect.getsourcelines(kind)[1]})"
    # A class of a text that Python has executed has no file.
    except (OSError, TypeError):
        return kind.__name__


def first_of(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """Write some names; of too many the first, and how many more there are.

    Example:
        >>> first_of(["a", "b", "c", "d"], 2)
        'a, b and 2 more'
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


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


def describe_fields(kind: "type[BaseModel]") -> dict[str, dict[str, str]]:
    """Describe each field of a component by its type, its default and what it means."""
    return {
        name: {
            "type": type_name(field.annotation),
            "default": "(required)"
            if field.is_required()
            else repr(field.get_default(call_default_factory=True)),
            "description": field.description or "",
        }
        for name, field in kind.model_fields.items()
    }


def type_name(annotation: Any) -> str:
    """Write a type as people do, without modules and without what checks it.

    Example:
        >>> type_name(list[int] | None), type_name(Literal["sgd", "adam"])
        ('list[int] | None', "'sgd' | 'adam'")
    """
    origin = get_origin(annotation)
    inside = get_args(annotation)
    if origin is Annotated:
        return type_name(inside[0])
    if origin in (Union, UnionType):
        return " | ".join(map(type_name, inside))
    if origin is Literal:
        return " | ".join(map(repr, inside))
    if annotation in (None, NoneType, ...):
        return "..." if annotation is ... else "None"
    name = getattr(origin or annotation, "__name__", str(annotation))
    return f"{name}[{', '.join(map(type_name, inside))}]" if inside else name
