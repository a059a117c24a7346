"""Every component is exported, described and exemplified, so that a newcomer can look it up."""

import doctest
import importlib
import inspect
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
from helpers.commands import checked_output
from helpers.families import built_in

import raysafl as fl
from raysafl.cli.catalogue import FAMILIES
from raysafl.core.component import BUILT_IN, Component
from raysafl.quickstart import BASE

ROOT = Path(__file__).parents[2]
OTHERS: tuple[type[Component], ...] = (
    fl.Run,
    fl.LocalTraining,
    fl.Devices,
    fl.Patience,
    fl.PerClient,
    fl.Hardware,
    fl.Table,
    fl.Validation,
)


def components() -> list[type[Component]]:
    """Every component of the package that a user can build."""
    return [*(kind for base in FAMILIES.values() for kind in built_in(base)), *OTHERS]


@pytest.mark.parametrize("kind", components(), ids=lambda kind: kind.__name__)
def test_every_field_of_a_component_is_described(kind: type[Component]) -> None:
    silent = [
        name for name, field in kind.model_fields.items() if not field.description
    ]
    assert not silent, f"{kind.__name__}: give {silent} a Field(description=...)"


@pytest.mark.parametrize("kind", components(), ids=lambda kind: kind.__name__)
def test_the_json_has_the_names_that_python_accepts(kind: type[Component]) -> None:
    if kind is fl.data.InMemory:
        made = fl.from_arrays([[1.0], [2.0]], [0, 1], test=([[1.0]], [0]))
    elif kind is fl.Run:
        made = BASE.replace(devices=fl.Devices(step_seconds=1))
    else:
        required = [n for n, field in kind.model_fields.items() if field.is_required()]
        made = kind.model_construct(**dict.fromkeys(required))
    written = made.model_dump(mode="json", warnings=False)
    name = written.pop("kind")
    spaces = [fl, *(importlib.import_module(space) for space in BUILT_IN)]
    own = {getattr(space, name, kind) for space in spaces if name in space.__all__}
    assert own == {kind}
    accepted = inspect.signature(kind).parameters.values()
    named = {p.name for p in accepted if p.kind is not p.VAR_KEYWORD}
    # Fields that were added later are left out where they have their default.
    fields = kind.model_fields.items()
    written |= {n: None for n, f in fields if f.exclude_if and f.exclude_if(f.default)}
    # Where files lie is no part of a configuration.
    assert written.keys() == named - {"files"}


@pytest.mark.parametrize("kind", components(), ids=lambda kind: kind.__name__)
def test_a_field_of_a_family_keeps_what_the_users_own_class_adds(
    kind: type[Component],
) -> None:
    """Completed is only the JSON of classes of the user's own: see `Component`."""
    hints = get_type_hints(kind, include_extras=True)
    text = " ".join(str(hints[name]) for name in kind.model_fields)
    for base in (*FAMILIES.values(), fl.LocalTraining):
        name = f"{base.__module__}.{base.__qualname__}"
        assert text.count(f"Annotated[{name}, SerializeAsAny()]") == text.count(name)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_an_example(family: str) -> None:
    base = FAMILIES[family]
    kinds = [base, *base.kinds().values()]
    assert any(">>>" in (inspect.getdoc(kind) or "") for kind in kinds)


EXAMPLES = sorted(
    str(path.relative_to(ROOT / "raysafl"))
    for path in (ROOT / "raysafl").rglob("*.py")
    if ">>>" in path.read_text()
)


@pytest.mark.parametrize("file", EXAMPLES)
def test_every_example_prints_what_it_says(file: str) -> None:
    name = "raysafl." + file.removesuffix(".py").replace("/", ".")
    module = importlib.import_module(name)
    # The names that an example needs and does not import are those of its module.
    found = doctest.testmod(module)
    assert found.attempted and not found.failed, f"{name} prints something else"


def test_the_generated_exports_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / ".ci" / "exports.py"), "--check"]
    checked_output(command, cwd=ROOT)
