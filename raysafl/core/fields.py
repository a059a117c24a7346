"""What the fields of a component are, in words, for `raysafl list`."""

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel


def describe_fields(kind: type[BaseModel]) -> dict[str, dict[str, str]]:
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
