"""The base class of every piece of a configuration.

A `Run` is built from components: a dataset, a policy, an algorithm and so on. A
component checks its fields when it is made, is written as JSON with the name of its
class in the field `kind`, and is read back from that JSON. Your own class can be used
as soon as it is defined; there is nothing to register.

The JSON has the names that Python uses, and every field, also where it has its default
(but for later fields, with `exclude_if`). A run's id is a hash of it.
"""

import hashlib
import importlib
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticSerializationError

from raysafl.core.text import class_name, closest, in_brief, nearest

# The namespaces that hold the built-in components.
BUILT_IN = (
    "raysafl.algorithms",
    "raysafl.data",
    "raysafl.models",
    "raysafl.objectives",
    "raysafl.participation",
    "raysafl.training",
)
# What holds several values where one is expected.
SEVERAL = (list, tuple, np.ndarray)


class Component(BaseModel):
    """A checked, immutable piece of configuration that can be written as JSON.

    Example:
        >>> class Decay(Component):
        ...     rate: float = 0.5
        >>> Decay(rate=0.1).to_json()
        '{"kind":"Decay","rate":0.1}'
        >>> Component.from_json('{"kind": "Decay"}') == Decay()
        True

    Raises:
        ValueError: a field is unknown (the nearest name is given), missing or out of
            range.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    # True for base classes such as `Algorithm`, which no configuration can name.
    abstract: ClassVar[bool] = False
    # Where a class of the user's keeps what it remembers, for a message; empty: nowhere.
    _memory: ClassVar[str] = ""
    # What makes a component of a family, or what one makes, for a message.
    _made_by: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        typed = inspect.get_annotations(cls).keys() | vars(cls)["__class_vars__"]
        for name, value in vars(cls).items():
            is_own = name not in typed and name[0] != "_" and name != "model_config"
            if is_own and isinstance(value, int | float | str | list | tuple | dict):
                kind = type(value).__name__
                raise ValueError(
                    f"{class_name(cls)}: `{name} = {value!r}` has no type; write `{name}: "
                    f"{kind} = {value!r}` for a setting, or `{name}: ClassVar[{kind}] = "
                    f"{value!r}` for a constant"
                )

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        if "kind" in cls.model_fields:
            raise ValueError(
                f"{class_name(cls)}: no field can be called `kind`, by which JSON and "
                "tables name the class; call the field otherwise"
            )

    def __new__(cls, /, *values: Any, **fields: Any) -> Self:
        """Refuse values without names, and to make one of a class that lacks a method."""
        if values and cls.__init__ is Component.__init__:
            raise ValueError(
                f"{cls.__name__} takes each value by its name, as in "
                f"{cls.__name__}({next(iter(cls.model_fields), 'name')}=...), but "
                f"{in_brief(values[0])} has none: {nearest('', cls.model_fields)}"
            )
        for method in sorted(cls.__abstractmethods__):
            slip = closest(method, [name for name in vars(cls) if name[0] != "_"])
            hint = f"rename its '{slip}'" if slip else "define it"
            raise ValueError(f"{class_name(cls)} has no method '{method}': {hint}")
        return super().__new__(cls)

    def __init__(self, /, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise ValueError(f"{type(self).__name__}: {explain(error)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except ValidationError:
            kind = type(self).__name__
            copy = f"Take .replace({name}=...) for a changed copy"
            raise ValueError(
                f"{kind}.{name} cannot be set: a {kind} never changes after it was made. "
                f"{copy if name in type(self).model_fields else self._memory or copy}"
            ) from None

    @classmethod
    def kinds(cls) -> dict[str, type[Self]]:
        """Return the classes of this family that a configuration can name, by name.

        These are the built-in ones and those that were defined since.
        """
        # A class is known once its module is imported.
        for name in BUILT_IN:
            importlib.import_module(name)
        return cls._defined()

    @classmethod
    def _defined(cls) -> dict[str, type[Self]]:
        this = {} if cls.__dict__.get("abstract") else {cls.__name__: cls}
        return this | {
            k: v for sub in cls.__subclasses__() for k, v in sub._defined().items()
        }

    @model_serializer(mode="wrap")
    def _name_kind(
        self, serialize: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        name = {"kind": type(self).__name__}
        fields = serialize(self)
        # raysafl's own classes say `SerializeAsAny` where it is needed, which is faster.
        if info.mode == "json" and is_users_class(type(self)):
            for own, value in vars(self).items():
                if own in fields and isinstance(value, _HOLDERS):
                    fields[own] = _whole(value, fields[own])
        # It comes first, and a computed field of this name does not replace it.
        return {**name, **fields, **name}

    @model_validator(mode="wrap")
    @classmethod
    def _from_kind(cls, value: Any, build: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(value, type) and issubclass(value, Component):
            raise ValueError(
                f"{value.__name__} is a class; give one of its kind: {value.__name__}(...)"
            )
        if isinstance(value, cls):
            return build(value)
        if not isinstance(value, Mapping):
            name = value if isinstance(value, str) else ""
            raise ValueError(
                f"{in_brief(value)} is no {cls.__name__}{cls._made_by}: "
                f"{nearest(name, cls.kinds())}"
            )
        fields = {
            k: v.item() if isinstance(v, np.generic) else v for k, v in value.items()
        }
        kind = fields.pop("kind", None)
        if kind not in (None, cls.__name__) or cls.__dict__.get("abstract"):
            known = cls.kinds()
            if kind is None:
                names = ", ".join(sorted(known))
                raise ValueError(f"no kind is given; add 'kind' (known: {names})")
            if str(kind) not in known:
                raise ValueError(f"unknown kind '{kind}': {nearest(str(kind), known)}")
            return known[str(kind)].model_validate({"kind": kind, **fields})
        for name in fields.keys() - cls.model_fields.keys():
            raise ValueError(
                f"unknown field '{name}': {nearest(str(name), cls.model_fields)}"
            )
        return build(fields)

    def replace(
        self, changes: Mapping[str, Any] | None = None, /, **fields: Any
    ) -> Self:
        """Return a checked copy with some fields changed.

        Args:
            changes: new values by field. A dotted name reaches a field of a component
                inside: `{"algorithm.client_prob": 0.5}`.
            fields: the same as keyword arguments.

        Raises:
            ValueError: there is no such field, or a value is out of range.
        """
        direct: dict[str, Any] = {}
        inner: dict[str, dict[str, Any]] = {}
        for path, value in {**(changes or {}), **fields}.items():
            head, _, rest = path.partition(".")
            if rest:
                inner.setdefault(head, {})[rest] = value
            else:
                direct[head] = value
        for head, parts in inner.items():
            part = direct.get(head, getattr(self, head, None))
            if not isinstance(part, Component):
                known = [
                    n
                    for n in type(self).model_fields
                    if isinstance(getattr(self, n), Component)
                ]
                why = f"no part '{head}' to change: {nearest(head, known)}"
                if head in type(self).model_fields and part is None:
                    why = f"{head}=None; give a whole {head} first"
                raise ValueError(f"{type(self).__name__} has {why}")
            direct[head] = part.replace(parts)
        return type(self)(**{**dict(self), **direct})

    def components(self) -> Iterator["Component"]:
        """Yield this component and all components inside it, at any depth."""
        yield self
        for value in vars(self).values():
            if isinstance(value, Component):
                yield from value.components()
            elif isinstance(value, list | tuple | dict):
                for part in value.values() if isinstance(value, dict) else value:
                    if isinstance(part, Component):
                        yield from part.components()

    def to_json(self) -> str:
        """Write canonical JSON: equal components give equal text.

        Its keys are sorted and it has no spaces. A run's id is a hash of this text.
        """
        try:
            tree = self.model_dump(mode="json")
        except PydanticSerializationError as error:
            # The innermost part that cannot be written names itself.
            for part in list(self.components())[1:]:
                part.to_json()
            raise ValueError(
                f"{type(self).__name__} holds what has no JSON ({error}), and a run's id is "
                "a hash of its JSON; give numbers, texts, lists or components, and write a "
                "function as a method of the class"
            ) from None
        return json.dumps(tree, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the component that `to_json` wrote.

        Raises:
            ValueError: the text is no JSON, or no component of this family.
        """
        try:
            return cls.model_validate(json.loads(text))
        except ValidationError as error:
            raise ValueError(f"{cls.__name__}: {explain(error)}") from None

    def digest(self) -> str:
        """Return the first 12 hexadecimal digits of the JSON's SHA-256: a run's id."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:12]

    def flat(self) -> dict[str, Any]:
        """Return the fields at all depths by dotted name: `{"algorithm.client_prob": 0.8, ...}`."""
        return flatten(self.model_dump(mode="json"))


# What is, or may hold, a component, and what has no order.
_HOLDERS = (Component, list, tuple, dict, set, frozenset)


def _whole(value: Any, given: Any) -> Any:
    """Return a field's JSON as pydantic writes it, completed and in a fixed order.

    Of a component, pydantic leaves out the fields that the class in the annotation lacks.
    """
    if isinstance(value, Component):
        is_whole = type(value).model_fields.keys() <= given.keys()
        return given if is_whole else value.model_dump(mode="json")
    if isinstance(value, dict) and isinstance(given, dict):
        return dict(
            zip(given, _whole([*value.values()], [*given.values()]), strict=True)
        )
    if isinstance(value, set | frozenset):
        # Its order changes from process to process.
        return sorted(given, key=repr)
    if not isinstance(given, list) or len(given) != len(value):
        # A serializer of the user's own has made something else of it.
        return given
    return [
        _whole(own, part) if isinstance(own, _HOLDERS) else part
        for own, part in zip(value, given, strict=True)
    ]


def public_names() -> dict[str, str]:
    """Map each name of `import raysafl` to itself, as `SCAFFOLD` to `algorithms.SCAFFOLD`."""
    spaced = {
        name: f"{space}.{name}".removeprefix("raysafl.")
        for space in BUILT_IN
        for name in importlib.import_module(space).__all__
    }
    return spaced | {n: n for n in importlib.import_module("raysafl").__all__}


def nearest_name(name: str, space: str = "raysafl") -> str:
    """Say what an unknown name of a namespace is nearest to, in `import raysafl as fl`."""
    known = public_names()
    close = known.get(closest(name, known))
    hint = f"did you mean 'fl.{close}'?" if close else f"dir({space}) lists its names"
    return f"{space} has no '{name}': {hint}"


def tell_missing_names(space: str) -> None:
    """Let a namespace tell the nearest name to one that it does not have."""

    def missing(name: str) -> Any:
        # Python itself asks for names with underscores.
        raise AttributeError(name if name[0] == "_" else nearest_name(name, space))

    vars(sys.modules[space])["__getattr__"] = missing


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested mappings into one, whose keys are joined by dots.

    The `kind` of a component becomes the value of the component's own key.

    Example:
        >>> flatten({"rounds": 5, "algorithm": {"kind": "FedAvg", "lr": 1.0}})
        {'rounds': 5, 'algorithm': 'FedAvg', 'algorithm.lr': 1.0}
    """
    out: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            out |= flatten(value, f"{prefix}{key}.")
        elif key == "kind":
            out[prefix.rstrip(".") or key] = value
        else:
            out[f"{prefix}{key}"] = value
    return out


def explain(error: ValidationError) -> str:
    """Describe a validation error of pydantic for a user: one line for each field."""
    lines = []
    for item in error.errors(include_url=False, include_context=False):
        where = ".".join(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        given = item.get("input")
        is_told = not message.startswith(repr(given))
        is_told &= isinstance(given, str | int | float)
        plain = f" (given: {given!r})" if is_told else ""
        if item["type"] in ("float_type", "int_type") and isinstance(given, SEVERAL):
            axis = f"{{'{where}': {in_brief(np.asarray(given).tolist())}}}"
            plain = f"; several values are an axis of a grid: fl.grid(base, {axis})"
        lines.append(f"{where + ': ' if where else ''}{message}{plain}")
    return "\n".join(lines)


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
