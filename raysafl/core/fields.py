"""What the fields of a component are, in words: for `help`, signatures and `raysafl list`."""

import inspect
import textwrap
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

WIDTH = 88
# Pydantic has no public name for it, so that mypy cannot know it.
METACLASS: Any = type(BaseModel)


def describe_fields(kind: type[BaseModel]) -> dict[str, dict[str, str]]:
    """Describe each field of a component by its type, its default and what it means."""
    return {
        name: {
            "type": type_name(field.annotation),
            "default": "(required)" if field.is_required() else repr(_default(field)),
            "description": field.description or "",
        }
        for name, field in kind.model_fields.items()
    }


def _default(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True)


class TellsFields(METACLASS):  # type: ignore[misc]
    """The class of all components, which tells their fields to `help` and to signatures.

    It does so when somebody asks; most processes never do.
    """

    @property
    def __doc__(cls) -> str:
        texts = (vars(base).get("__doc__") for base in cls.__mro__)
        lines = [inspect.cleandoc(next(text for text in texts if text))]
        # While a class is being made, its fields are not known yet.
        if vars(cls).get("__pydantic_fields__"):
            fields = describe_fields(cls).items()
            lines += ["", "Args:", *(_told(name, own) for name, own in fields)]
        return "\n".join(lines)

    @__doc__.setter
    def __doc__(cls, text: str) -> None:
        """Set the text alone: so a class arrives that was sent to another process."""
        vars(type)["__doc__"].__set__(cls, text)

    def __dir__(cls) -> list[str]:
        """Leave out what pydantic brings, for `help` and completion."""
        names = (name for name in super().__dir__() if not name.startswith("__"))
        return [name for name in names if name not in vars(BaseModel)]

    @property
    def __signature__(cls) -> inspect.Signature:
        empty = inspect.Parameter.empty
        return inspect.Signature(
            [
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=empty if field.is_required() else _default(field),
                    annotation=_Plain(type_name(field.annotation)),
                )
                for name, field in cls.model_fields.items()
            ]
        )

    @__signature__.setter
    def __signature__(cls, _: object) -> None:
        """Take none from pydantic, whose types are full of what checks them."""


# For mypy, to which components are of pydantic's own class.
TELLS_FIELDS: Any = TellsFields


def _told(name: str, field: dict[str, str]) -> str:
    """Write a field as an entry of a docstring."""
    default = f"default {field['default']}".replace("default (required)", "required")
    text = f"{name} ({field['type']}; {default}): {field['description']}"
    return textwrap.fill(
        text.removesuffix(": "),
        WIDTH,
        initial_indent="    ",
        subsequent_indent="        ",
    )


class _Plain(str):
    """A type's name, which a signature shows without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


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
