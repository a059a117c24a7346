"""What components and the module say of themselves, and of the commonest slips."""

import inspect
import pydoc
import re
from typing import Any

import pytest

import raysafl as fl
from raysafl import SAFARI, Absent, FedAvg, Federation, LocalTraining, Run, Uniform
from raysafl.core.fields import describe_fields, type_name
from raysafl.training import StepRate


def told(make: Any, *args: Any, **fields: Any) -> str:
    with pytest.raises(ValueError) as caught:
        make(*args, **fields)
    return str(caught.value)


def test_values_without_names_are_told_with_the_names_that_they_would_have() -> None:
    text = told(Absent, 4, 5)
    assert "2 values were given without one; give Absent(s=4, m=5) (its" in text
    assert "give Uniform(m=1) (its fields are m)" in told(Uniform, 1, 2, 3)


def test_a_misspelt_name_of_the_module_leads_to_the_nearest() -> None:
    with pytest.raises(AttributeError, match="did you mean 'FedAvg'"):
        getattr(fl, "FedAvgg")  # noqa: B009
    with pytest.raises(AttributeError, match=r"did you mean 'algorithms\.SCAFFOLD'"):
        getattr(fl, "Scafold")  # noqa: B009
    with pytest.raises(AttributeError, match=r"dir\(raysafl\) lists its names"):
        getattr(fl, "zzzzzzzz")  # noqa: B009
    assert not hasattr(fl, "__wrapped__") and fl.FedAvg is FedAvg


@pytest.mark.parametrize(
    ("kind", "said"),
    [(FedAvg, "FedAvg()"), (SAFARI, "SAFARI()"), (Absent, "Absent(...)")],
)
def test_a_class_in_place_of_an_instance_is_told_how_to_make_one(
    kind: type, said: str, tiny: Run
) -> None:
    field = "participation" if kind is Absent else "algorithm"
    text = told(tiny.replace, {field: kind})
    assert f"{kind.__name__} is a class; give one of its kind: {said}" in text


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        (LocalTraining, "learning_rate", "lr"),
        (LocalTraining, "eta", "lr"),
        (LocalTraining, "local_epochs", "epochs"),
        (Federation, "num_clients", "clients"),
        (Run, "num_rounds", "rounds"),
        (Run, "seeds", "replicates"),
        # It has no field `clients`, so that there is nothing to lead to.
        (Uniform, "users", ""),
    ],
)
def test_a_common_name_of_a_field_leads_to_ours(
    kind: type, name: str, meant: str
) -> None:
    text = told(kind, **{name: 1})
    assert (f"did you mean '{meant}'?" in text) == bool(meant)


def test_a_space_is_led_to_the_field_as_well(tiny: Run) -> None:
    space = {"local.learning_rate": {"grid_search": [0.1]}}
    assert "did you mean 'lr'?" in told(fl.Sweep, "x", space=space, base=tiny)


class Holds(fl.Model):
    """Has a field that can be anything."""

    what: Any = None

    def build(self, input_shape: Any, num_classes: int) -> Any:
        return None


class Remembers(fl.Algorithm):
    """Keeps what it remembers in the wrong place."""

    def round(self, state: Any, ids: Any, key: Any) -> Any:
        self.v = 1


class Counts(fl.Participation):
    """Keeps what it remembers in the wrong place."""

    def pick(self, state: Any, num_clients: int, key: Any, accuracy: Any) -> Any:
        self.v = 1


def test_a_function_as_a_field_names_the_class_its_line_and_the_field(
    tiny: Run,
) -> None:
    line = inspect.getsourcelines(Holds)[1]
    text = told(lambda: tiny.replace(model=Holds(what=lambda x: x)).id)
    assert text.startswith(f"Holds (test_told.py:{line}): the field what is <function")
    assert "has no JSON" in text and "a method of the class" in text


def test_what_is_remembered_in_the_instance_is_led_to_where_it_belongs() -> None:
    assert "belongs in the State that `round` returns" in told(
        Remembers().round, None, [], None
    )
    assert "in the state that `pick` returns" in told(
        Counts().pick, None, 1, None, None
    )
    assert "Take .replace(client_prob=...)" in told(
        setattr, SAFARI(), "client_prob", 1.0
    )


def test_a_signature_has_every_field_with_a_plain_type_and_its_default() -> None:
    shown = str(inspect.signature(Absent))
    assert shown == "(*, s: int, m: int, clients: list[int] | None = None)"
    for kind in (Run, LocalTraining, Federation, SAFARI):
        signature = inspect.signature(kind)
        assert list(signature.parameters) == list(kind.model_fields)
        assert "Annotated" not in str(signature) and "raysafl." not in str(signature)
    assert inspect.signature(SAFARI).parameters["client_prob"].default == 0.8


@pytest.mark.parametrize("kind", [Absent, Run, LocalTraining, fl.Dirichlet, SAFARI])
def test_help_shows_each_field_with_its_type_default_and_description(
    kind: Any,
) -> None:
    shown = pydoc.plain(pydoc.render_doc(kind))
    plain = " ".join(re.sub(r"^ \|", "", shown, flags=re.MULTILINE).split())
    for name, field in describe_fields(kind).items():
        assert field["description"] and " ".join(field["description"].split()) in plain
        assert f"{name} ({field['type']}" in plain
        assert (
            field["default"] == "(required)" or f"default {field['default']}" in plain
        )


def test_a_class_without_a_docstring_shows_its_parents_and_its_own_fields() -> None:
    class Mine(Absent):
        extra: float = 0.5

    shown = inspect.getdoc(Mine) or ""
    assert shown.startswith("s clients never come")
    assert "    extra (float; default 0.5)" in shown


def test_types_are_written_without_modules_and_checks() -> None:
    field = StepRate.model_fields["milestones"]
    assert type_name(field.annotation) == "list[int]"
    assert type_name(dict[str, tuple[int, ...]]) == "dict[str, tuple[int, ...]]"
