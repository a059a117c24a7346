"""What components and the module say of themselves, and of the commonest slips."""

import inspect
import pydoc
import re
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import raysafl as fl
import raysafl.algorithms
from raysafl import SAFARI, Absent, FedAvg, Federation, LocalTraining, Run, Uniform
from raysafl.core.fields import describe_fields, type_name
from raysafl.training import StepRate


def told(make: Any, *args: Any, **fields: Any) -> str:
    with pytest.raises(ValueError) as caught:
        make(*args, **fields)
    return str(caught.value)


def test_values_without_names_are_told_with_the_names_that_they_would_have() -> None:
    text = told(Absent, 4, 5)
    assert text == (
        "Absent takes 0 values without a name, and 2 are given; give others by name, such "
        "as s=4, m=5"
    )
    assert told(fl.participation.Full, 1).endswith("and 1 are given")
    assert told(Uniform, 1, 2, 3).endswith(
        "and 3 are given; give others by name, such as m=1"
    )


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
        ("algorithms", "Scaffold", "did you mean 'fl.algorithms.SCAFFOLD'?"),
        ("algorithms", "Absent", "did you mean 'fl.Absent'?"),
        ("data", "MNIST", "did you mean 'fl.data.Mnist'?"),
        ("models", "cnn", "did you mean 'fl.CNN'?"),
        ("objectives", "Regresion", "did you mean 'fl.objectives.Regression'?"),
        ("participation", "Markoff", "did you mean 'fl.participation.Markov'?"),
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


@pytest.mark.parametrize(
    ("kind", "said"),
    [(FedAvg, "FedAvg()"), (SAFARI, "SAFARI()"), (Absent, "Absent(s=..., m=...)")],
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


@pytest.mark.parametrize(
    ("kind", "name", "home"),
    [
        (Run, "lr", "LocalTraining"),
        (Run, "batch_size", "LocalTraining"),
        (Run, "epochs", "LocalTraining"),
        (Run, "s", "Absent"),
        (Run, "m", "Absent(m=...) or Uniform"),
        (Run, "client_prob", "SAFARI"),
        (Run, "n0", "IidServer"),
        (Run, "validation", "Federation"),
        (Run, "clients", "Federation"),
        (Run, "partition", "Federation"),
        (Run, "executor", "Runner"),
        (LocalTraining, "rounds", "Run"),
        (FedAvg, "client_prob", "SAFARI"),
        (fl.grid, "keep", "Run"),
        (fl.grid, "executor", "Runner"),
        (fl.Runner, "seeds", "grid"),
        (fl.Runner, "gpus", "Hardware"),
        (fl.Sweep, "executor", "Runner"),
    ],
)
def test_an_argument_that_belongs_elsewhere_is_led_there(
    kind: Any, name: str, home: str, tiny: Run
) -> None:
    given = (tiny, {"rounds": [1]}) if kind is fl.grid else ()
    text = told(kind, *given, **{name: 1})
    place = f"it belongs in {home}({name}=...)"
    assert text.startswith(f"{kind.__name__}") and f"'{name}': {place}" in text


def test_what_a_subset_is_drawn_from_is_its_dataset() -> None:
    text = told(fl.data.Subset, source=fl.Digits())
    assert text == "Subset: unknown field 'source': did you mean 'dataset'?"


def test_arguments_that_are_misspelt_missing_or_without_a_name_are_told(
    tiny: Run,
) -> None:
    axes = {"rounds": [1]}
    assert told(fl.grid, tiny, axes, replicates=5) == (
        "grid takes no 'replicates': did you mean 'seeds'?"
    )
    assert told(fl.grid, tiny, {}, 5) == (
        "grid takes 2 values without a name, and 3 are given; give others by name, such "
        "as seeds=5"
    )
    assert told(fl.grid, tiny) == "grid: missing a required argument: 'values'"
    assert told(fl.Runner) == "Runner: missing a required argument: 'sweep'"
    assert told(fl.Sweep, "x", titel=1).startswith(
        "Sweep takes no 'titel': did you mean 'title'?"
    )
    assert fl.grid(tiny, axes, title="Mine").title == "Mine"


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
        (
            "hardware",
            {"actors": 2},
            "hardware is {'actors': 2}; give a Hardware, such as ",
        ),
        ("resume", "no", "resume is 'no'; give True or False"),
        ("out", 5, "out is 5; give a folder or a URI as text, or a Path"),
        ("flush_seconds", "30", "flush_seconds is '30'; give a number of seconds"),
        ("tracking_uri", Path("x.db"), "give text"),
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
        ("data.server", 100, "server: 100 is no ServerData; give "),
        ("data.server", 100, ", or IidServer(n0=...), or "),
        ("data.server", fl.Iid(), "server: Iid() is no ServerData; give "),
        ("data.validation", 0.1, "0.1 is no Validation; give Validation(server=..., "),
        ("algorithm", "FedAvg", "'FedAvg' is no Algorithm; did you mean FedAvg()?"),
        ("algorithm", "scaffold", "no Algorithm; did you mean SCAFFOLD()?"),
        (
            "model",
            nn.Linear(64, 10),
            "bias=True) is no Model, a class whose method `build",
        ),
        ("model", "cnn", "shows how to write one); did you mean CNN()?"),
        ("local", None, "None is no LocalTraining; give "),
        ("participation", "absent", "did you mean Absent(s=..., m=...)?"),
        ("patience", 3, "patience: 3 is no Patience; give Patience(metric=..., "),
        ("data.dataset", "x.csv", "'x.csv' is no Source, which fl.from_arrays, "),
        (
            "data.dataset",
            "x.csv",
            "fl.from_csv, fl.from_parquet or fl.from_torch makes ",
        ),
        ("data.dataset", "x.csv", "of your own data; give "),
    ],
)
def test_what_is_no_component_is_told_with_those_that_there_are(
    field: str, value: Any, said: str, tiny: Run
) -> None:
    text = told(tiny.replace, {field: value})
    assert said in text and "\n" not in text and "given:" not in text


def test_a_space_is_led_to_the_field_as_well(tiny: Run) -> None:
    space = {"local.learning_rate": {"grid_search": [0.1]}}
    assert "did you mean 'lr'?" in told(fl.Sweep, "x", space=space, base=tiny)
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


def test_help_and_completion_leave_out_what_pydantic_brings() -> None:
    shown = pydoc.plain(pydoc.render_doc(Absent))
    assert "model_" not in shown and "pydantic_" not in shown
    assert len(shown.splitlines()) < 150
    for name in ("pick", "check", "sampling", "replace", "to_json", "from_json"):
        assert f" {name}(" in shown and name in dir(Absent)


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
