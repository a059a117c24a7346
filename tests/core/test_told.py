"""What components and the module say of themselves, and of the commonest slips."""

import inspect
from typing import Any

import pytest
from torch import nn

import raysafl as fl
import raysafl.algorithms
from raysafl import SAFARI, Absent, FedAvg, Run
from raysafl.core.text import type_name
from raysafl.training import StepRate


def told(make: Any, *args: Any, **fields: Any) -> str:
    with pytest.raises(ValueError) as caught:
        make(*args, **fields)
    return str(caught.value)


def test_a_misspelt_name_of_the_module_leads_to_the_nearest() -> None:
    with pytest.raises(AttributeError, match=r"did you mean 'fl\.FedAvg'"):
        getattr(fl, "FedAvgg")  # noqa: B009
    with pytest.raises(AttributeError, match=r"mean 'fl\.algorithms\.SCAFFOLD'"):
        getattr(fl, "Scafold")  # noqa: B009
    with pytest.raises(AttributeError, match=r"dir\(raysafl\) lists its names"):
        getattr(fl, "zzzzzzzz")  # noqa: B009
    assert not hasattr(fl, "__wrapped__") and fl.FedAvg is FedAvg


@pytest.mark.parametrize(
    ("space", "name", "said"),
    [
        ("algorithms", "Absent", "did you mean 'fl.Absent'?"),
        ("data", "MNIST", "did you mean 'fl.data.Mnist'?"),
        ("training", "CosinRate", "did you mean 'fl.training.CosineRate'?"),
        ("training", "zzzzzzzz", "dir(raysafl.training) lists its names"),
    ],
)
def test_a_misspelt_name_of_a_namespace_leads_to_the_nearest_of_all(
    space: str, name: str, said: str
) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(getattr(fl, space), name)
    assert str(caught.value) == f"raysafl.{space} has no '{name}': {said}"
    assert not hasattr(getattr(fl, space), "__wrapped__")


def test_values_without_names_are_told_the_names(tiny: Run) -> None:
    assert told(Absent, 4, 5) == (
        "Absent takes each value by its name, as in Absent(s=...), but 4 has none: "
        "known are clients, m, s"
    )


def test_a_class_in_place_of_an_instance_is_told_how_to_make_one(tiny: Run) -> None:
    text = told(tiny.replace, algorithm=FedAvg)
    assert "FedAvg is a class; give one of its kind: FedAvg(...)" in text


def test_a_runner_of_a_run_is_told_how_a_run_becomes_a_sweep(tiny: Run) -> None:
    text = told(fl.Runner, tiny)
    assert text == (
        "a Runner takes a Sweep, not a Run: one of fl.grid(run, {'rounds': [50, 100]}), or "
        "fl.Sweep('name', runs=[run])"
    )


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "only",
            "n0=20",
            "only is 'n0=20'; give a mapping from axis to label, such as ",
        ),
        ("resume", "no", "resume is 'no'; give True or False"),
        ("out", 5, "out is 5; give a folder or a URI as text, or a Path"),
        (
            "track",
            "curve",
            "track='curve' is none of the choices: did you mean 'curves'?",
        ),
    ],
)
def test_an_argument_of_a_runner_that_is_of_another_kind_is_told_what_it_may_be(
    name: str, value: Any, said: str, tiny: fl.Run
) -> None:
    sweep = fl.Sweep("x", runs=[tiny])
    assert said in told(lambda: fl.Runner(sweep, **{name: value}).forecast())


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("data.server", 100, "server: 100 is no ServerData: known are "),
        ("algorithm", "scaffold", "no Algorithm: did you mean 'SCAFFOLD'?"),
        ("model", nn.Linear(64, 10), "is no Model, a class whose method `build"),
        ("data.dataset", "x.csv", "'x.csv' is no Source, which fl.from_arrays, "),
    ],
)
def test_what_is_no_component_is_told_with_those_that_there_are(
    field: str, value: Any, said: str, tiny: Run
) -> None:
    text = told(tiny.replace, {field: value})
    assert said in text and "\n" not in text and "given:" not in text


def test_a_space_is_led_to_the_field_as_well(tiny: Run) -> None:
    space = {"local.lrr": {"grid_search": [0.1]}}
    assert "did you mean 'lr'?" in told(fl.Sweep("x", space=space, base=tiny).manifest)
    base = tiny.replace(algorithm=SAFARI(client_prob=0.5))
    text = told(fl.Sweep, "x", space={"client_prob": 0.1}, base=base)
    assert "did you mean 'algorithm.client_prob'?" in text


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


def test_an_attribute_without_a_type_is_told_how_it_would_have_one() -> None:
    def define() -> None:
        class Mine(fl.Algorithm):
            remembers_clients = True
            lr = 1.0

    line = inspect.getsourcelines(define)[1] + 1
    assert told(define) == (
        f"Mine (test_told.py:{line}): `lr = 1.0` has no type; write `lr: float = 1.0` for a "
        "setting, or `lr: ClassVar[float] = 1.0` for a constant"
    )


def test_a_field_called_kind_is_refused_where_the_class_is_defined() -> None:
    def define() -> None:
        class Slow(fl.FedAvg):
            kind: str = "FedAvg"

    line = inspect.getsourcelines(define)[1] + 1
    assert told(define) == (
        f"Slow (test_told.py:{line}): no field can be called `kind`, by which JSON and "
        "tables name the class; call the field otherwise"
    )


def test_a_class_without_its_method_is_told_which_to_rename() -> None:
    class Mine(fl.Algorithm):
        def rounds(self, state: Any, ids: Any, key: Any) -> Any:
            return state

    class Never(fl.Participation):
        """Has nothing."""

    line = inspect.getsourcelines(Mine)[1]
    assert told(Mine) == (
        f"Mine (test_told.py:{line}) has no method 'round': rename its 'rounds'"
    )
    assert told(Never).endswith("has no method 'pick': define it")


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


def test_types_are_written_without_modules_and_checks() -> None:
    field = StepRate.model_fields["milestones"]
    assert type_name(field.annotation) == "list[int]"
    assert type_name(dict[str, tuple[int, ...]]) == "dict[str, tuple[int, ...]]"
