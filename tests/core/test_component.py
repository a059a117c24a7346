"""Components: JSON there and back, digests that mean equality, and what slips are told."""

import hashlib
import inspect
import json
import re
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
from helpers.refused import refused
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SerializeAsAny, ValidationError, computed_field
from torch import nn

import raysafl as fl
import raysafl.algorithms
from raysafl.core.component import Component, explain
from raysafl.core.text import type_name
from raysafl.data import ParquetImages, Partition
from raysafl.objectives import Classification
from raysafl.training import StepRate


class Solid(Component):
    """A family that only this test knows."""

    abstract: ClassVar[bool] = True


class Cube(Solid):
    """A leaf."""

    edge: float = Field(gt=0)
    name: str = ""
    colours: list[int] = Field(default=[])


class Pile(Solid):
    """A node."""

    below: Solid
    above: SerializeAsAny[Solid] | None = None
    beside: dict[str, Solid] = Field(default={})
    floors: int = Field(default=1, gt=0)


class Plate(Cube):
    """A subclass of a subclass, with a field of its own."""

    thin: bool = True


EDGES = st.floats(min_value=0, exclude_min=True, max_value=1e300)
LEAVES = st.builds(
    Cube, edge=EDGES, name=st.text(), colours=st.lists(st.integers())
) | st.builds(Plate, edge=st.sampled_from([1.0, 2.0]), thin=st.booleans())
SOLIDS = st.recursive(
    LEAVES,
    lambda inner: st.builds(
        Pile,
        below=inner,
        above=st.none() | inner,
        beside=st.dictionaries(st.sampled_from("ab"), inner),
        floors=st.integers(min_value=1),
    ),
    max_leaves=5,
)


def local(**changes: Any) -> fl.LocalTraining:
    return fl.LocalTraining(**{"lr": 0.1, "batch_size": 8, "epochs": 1, **changes})


@given(SOLIDS)
def test_json_round_trip_keeps_value_and_class_of_nested_users_components(
    solid: Solid,
) -> None:
    back = Solid.from_json(solid.to_json())
    assert back == solid and type(back) is type(solid)
    assert back.to_json() == solid.to_json()


@given(SOLIDS, SOLIDS)
def test_digests_are_equal_exactly_where_components_are(a: Solid, b: Solid) -> None:
    assert (a.digest() == b.digest()) == (a == b)
    assert a.digest() == Solid.from_json(a.to_json()).digest()


def test_json_is_canonical_and_the_digest_is_its_sha256() -> None:
    text = (
        '{"batch_size":64,"clip_norm":null,"epochs":1,"kind":"LocalTraining","lr":0.1,'
        '"momentum":0.0,"optimizer":"sgd","schedule":null,"steps":null,"weight_decay":0.0}'
    )
    config = fl.LocalTraining(lr=0.1, batch_size=64, epochs=1)
    assert config.to_json() == text
    assert config.digest() == hashlib.sha256(text.encode()).hexdigest()[:12]


def test_a_set_is_in_ascending_order_in_every_process() -> None:
    class Marked(Cube):
        marks: frozenset[str]

    assert (
        '"marks":["a","b","c","d","e","f","g"]'
        in Marked(edge=1, marks=frozenset("gfedcba")).to_json()
    )


def test_the_class_names_its_json_whatever_else_is_called_kind() -> None:
    class Slow(Cube):
        kind: ClassVar[str] = "Cube"

    class Computed(Cube):
        @computed_field  # type: ignore[prop-decorator]
        @property
        def kind(self) -> str:
            return "Cube"

    for own in (Slow, Computed):
        assert json.loads(own(edge=1).to_json())["kind"] == own.__name__
        assert type(Solid.from_json(own(edge=1).to_json())) is own


def test_wrong_json_is_refused_in_the_users_words() -> None:
    text = refused(fl.LocalTraining.from_json, '{"lr":1,"batch_size":2,"stepz":1}')
    assert text.startswith(
        "LocalTraining: unknown field 'stepz': did you mean 'steps'?"
    )
    assert "pydantic" not in refused(fl.LocalTraining.from_json, "[1]")
    assert "unknown field 'zzzzz': known is m" in refused(fl.Uniform, m=1, zzzzz=2)


def test_a_seed_that_no_stream_can_have_is_refused(tiny: fl.Run) -> None:
    assert "Run: seed: Input should be less than" in refused(tiny.replace, seed=2**63)
    assert "Federation: seed: Input should be less than" in refused(
        fl.Federation, seed=2**63
    )


def test_digest_ignores_key_order_and_int_or_float() -> None:
    a = Pile.from_json('{"floors":2,"below":{"kind":"Cube","edge":1}}')
    b = Pile.from_json(
        '{"below":{"edge":1.0,"kind":"Cube"},"kind":"Pile","floors":2.0}'
    )
    assert a.digest() == b.digest() == Pile(below=Cube(edge=1), floors=2).digest()
    assert local(lr=1).digest() == local(lr=1.0).digest()


def test_every_field_of_a_run_but_the_number_of_seeds_changes_its_id(
    tiny: fl.Run,
) -> None:
    changes: dict[str, Any] = {
        "data.clients": 11,
        "data.server.n0": 51,
        "data.partition.p": 2,
        "data.seed": None,
        "model.zero_init": False,
        "algorithm": fl.SAFARI(client_prob=1.0),
        "participation.s": 3,
        "local.lr": 0.2,
        "rounds": 5,
        "seed": 1,
        "eval_every": 2,
        "objective": Classification(label_smoothing=0.1),
        "patience": fl.Patience(rounds=3),
        "eval_clients": fl.PerClient(),
        "devices": fl.Devices(step_seconds=1),
        "keep": "best",
    }
    changed = {path.partition(".")[0] for path in changes}
    assert changed == fl.Run.model_fields.keys() - {"replicates"}
    ids = [tiny.id]
    ids += [tiny.replace({path: value}).id for path, value in changes.items()]
    assert len(set(ids)) == len(ids)


def test_runs_that_differ_in_their_seeds_alone_share_the_cells_of_common_seeds(
    tiny: fl.Run,
) -> None:
    three = tiny.replace(seed=5, replicates=3)
    assert three.id == three.cell_ids[0] and len(set(three.cell_ids)) == 3
    assert three.replace(replicates=2).cell_ids == three.cell_ids[:2]
    assert three.replace(seed=6).cell_ids[:2] == three.cell_ids[1:]
    cells = three.split()
    assert [cell.id for cell in cells] == three.cell_ids
    assert [(cell.seed, cell.replicates) for cell in cells] == [(5, 1), (6, 1), (7, 1)]
    other = three.replace(rounds=5)
    assert not {*other.cell_ids} & {*three.cell_ids}


def test_numpy_scalars_are_plain_numbers() -> None:
    config = fl.LocalTraining(
        lr=np.float64(0.25), batch_size=np.int64(8), epochs=np.int32(1)
    )
    assert config == fl.LocalTraining(lr=0.25, batch_size=8, epochs=1)
    assert type(config.batch_size) is int and config.digest() == local(lr=0.25).digest()
    assert fl.Absent(s=2, m=1, clients=np.array([3, 4])).digest() == (
        fl.Absent(s=2, m=1, clients=[3, 4]).digest()
    )
    assert fl.Logistic(zero_init=np.bool_(False)) == fl.Logistic(zero_init=False)
    assert (
        local().replace({"batch_size": np.int64(9)}).to_json()
        == local(batch_size=9).to_json()
    )


def test_an_unknown_kind_gets_the_nearest_of_its_family_only() -> None:
    text = refused(fl.Federation, partition={"kind": "classperclient", "p": 1})
    assert "unknown kind 'classperclient': did you mean 'ClassesPerClient'?" in text
    assert "known: ByColumn, ByUser, ClassesPerClient, " in text and "Iid" in text
    assert "Uniform" not in text


@pytest.mark.parametrize(
    "part", [{}, {"kind": "Partition"}, {"kind": ["Iid"]}, {"p": 1}], ids=repr
)
def test_a_family_name_or_nothing_is_not_a_kind(part: dict[str, Any]) -> None:
    text = refused(fl.Federation, partition=part)
    why = "unknown kind" if "kind" in part else "no kind is given"
    assert text.startswith(f"Federation: partition: {why}")
    assert re.search("known(:| are) ByColumn, ByUser, ClassesPerClient, ", text)


def test_replace_reaches_inside_and_leaves_the_original(tiny: fl.Run) -> None:
    before = tiny.to_json()
    other = tiny.replace({"data.partition.p": 2, "local.lr": 0.5}, rounds=7)
    assert isinstance(other.data, fl.Federation)
    assert isinstance(other.data.partition, fl.ClassesPerClient)
    assert (other.data.partition.p, other.local.lr, other.rounds) == (2, 0.5, 7)
    assert tiny.to_json() == before and other.participation == tiny.participation


def test_replace_changes_a_part_that_it_puts_in(tiny: fl.Run) -> None:
    other = tiny.replace(
        {"algorithm.client_prob": 0.25, "algorithm": fl.SAFARI(client_prob=0.5)}
    )
    assert other.algorithm == fl.SAFARI(client_prob=0.25)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rounds": 0}, "Run: rounds: Input should be greater than 0 (given: 0)"),
        ({"round": 9}, "Run: unknown field 'round': did you mean 'rounds'?"),
        ({"local.epoch": 9}, "unknown field 'epoch': did you mean 'epochs'?"),
        ({"lokal.lr": 9}, "Run has no part 'lokal' to change: did you mean 'local'?"),
        ({"rounds.x": 9}, "Run has no part 'rounds' to change"),
        ({"patience.rounds": 9}, "Run has patience=None; give a whole patience first"),
        ({"participation.m": 7}, "m = 7"),
    ],
    ids=repr,
)
def test_replace_validates_and_says_so_in_the_users_words(
    tiny: fl.Run, changes: dict[str, Any], told: str
) -> None:
    text = refused(tiny.replace, changes)
    assert told in text and "pydantic" not in text


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), np.float32("nan")]
)
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    assert "lr: Input should be a finite number" in refused(local, lr=value)
    assert "high: Input should be a finite number" in refused(
        ParquetImages, path="x", high=value
    )


def test_explain_has_one_line_per_field_and_no_address() -> None:
    class Plain(BaseModel):
        count: int
        parts: list[fl.LocalTraining]
        rate: float = Field(lt=1)

    with pytest.raises(ValidationError) as caught:
        Plain.model_validate({"count": "three", "parts": [local(), 5], "rate": 1.5})
    lines = explain(caught.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["count", "parts.1", "rate"]
    assert lines[0].endswith("(given: 'three')")
    assert lines[2] == "rate: Input should be less than 1 (given: 1.5)"
    assert "http" not in "".join(lines)


def test_a_list_where_a_number_belongs_leads_to_a_grid() -> None:
    for several in ([0.1, 0.2], (0.1, 0.2), np.array([0.1, 0.2])):
        assert refused(fl.LocalTraining, lr=several, batch_size=8).endswith(
            "several values are an axis of a grid: fl.grid(base, {'lr': [0.1, 0.2]})"
        )


def test_kinds_lists_usable_classes_of_the_family() -> None:
    # Classes of other tests may be there as well.
    assert {"Cube": Cube, "Plate": Plate, "Pile": Pile}.items() <= Solid.kinds().items()
    assert "Pile" not in Cube.kinds() and "Solid" not in Solid.kinds()
    known = Partition.kinds()
    assert known["Iid"] is fl.Iid and "Partition" not in known


@given(SOLIDS)
def test_components_are_all_that_json_gives_a_kind(solid: Solid) -> None:
    kinds = [type(part).__name__ for part in solid.components()]
    assert next(solid.components()) is solid
    assert sorted(kinds) == sorted(re.findall(r'"kind":"(\w+)"', solid.to_json()))


def test_flat_joins_names_with_dots_and_a_kind_stands_for_its_part() -> None:
    data = fl.Federation(partition=fl.ClassesPerClient(p=2), server=fl.IidServer(n0=9))
    assert data.flat() == {
        "kind": "Federation",
        "clients": 10,
        "dataset": "Digits",
        "dataset.standardise": False,
        "partition": "ClassesPerClient",
        "partition.p": 2,
        "server": "IidServer",
        "server.n0": 9,
        "seed": 0,
        "partition_seeds": 1,
        "share": 0.0,
        "validation": None,
        "own_tests": 0.0,
    }


@given(SOLIDS)
def test_flat_holds_every_plain_value_once(solid: Solid) -> None:
    def leaves(tree: Any) -> int:
        return sum(map(leaves, tree.values())) if isinstance(tree, dict) else 1

    assert len(solid.flat()) == leaves(json.loads(solid.to_json()))


@pytest.mark.parametrize(
    ("space", "name", "said"),
    [
        (fl, "FedAvgg", "did you mean 'fl.FedAvg'?"),
        (fl, "Scafold", "did you mean 'fl.algorithms.SCAFFOLD'?"),
        (fl, "zzzzzzzz", "dir(raysafl) lists its names"),
        (fl.algorithms, "Absent", "did you mean 'fl.Absent'?"),
        (fl.data, "MNIST", "did you mean 'fl.data.Mnist'?"),
        (fl.training, "CosinRate", "did you mean 'fl.training.CosineRate'?"),
        (fl.training, "zzzzzzzz", "dir(raysafl.training) lists its names"),
    ],
)
def test_a_misspelt_name_of_a_namespace_leads_to_the_nearest_of_all(
    space: ModuleType, name: str, said: str
) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(space, name)
    assert str(caught.value) == f"{space.__name__} has no '{name}': {said}"
    assert not hasattr(space, "__wrapped__")


def test_values_without_names_are_told_the_names(tiny: fl.Run) -> None:
    assert refused(fl.Absent, 4, 5) == (
        "Absent takes each value by its name, as in Absent(s=...), but 4 has none: "
        "known are clients, m, s"
    )


def test_a_class_in_place_of_an_instance_is_told_how_to_make_one(tiny: fl.Run) -> None:
    text = refused(tiny.replace, algorithm=fl.FedAvg)
    assert "FedAvg is a class; give one of its kind: FedAvg(...)" in text


def test_a_runner_of_a_run_is_told_how_a_run_becomes_a_sweep(tiny: fl.Run) -> None:
    text = refused(fl.Runner, tiny)
    assert text == (
        "a Runner takes a Sweep, not a Run: one of fl.grid(run, {'rounds': [50, 100]}), or "
        "fl.Sweep('name', runs=[run])"
    )


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("only", "n0=20", "give a mapping from axis to label, such as "),
        ("resume", "no", "resume is 'no'; give True or False"),
        ("out", 5, "out is 5; give a folder or a URI as text, or a Path"),
        ("track", "curve", "none of the choices: did you mean 'curves'?"),
    ],
)
def test_an_argument_of_a_runner_that_is_of_another_kind_is_told_what_it_may_be(
    name: str, value: Any, said: str, tiny: fl.Run
) -> None:
    sweep = fl.Sweep("x", runs=[tiny])
    assert said in refused(lambda: fl.Runner(sweep, **{name: value}).forecast())


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
    field: str, value: Any, said: str, tiny: fl.Run
) -> None:
    text = refused(tiny.replace, {field: value})
    assert said in text and "\n" not in text and "given:" not in text


def test_a_space_is_led_to_the_field_as_well(tiny: fl.Run) -> None:
    space = {"local.lrr": {"grid_search": [0.1]}}
    assert "did you mean 'lr'?" in refused(
        fl.Sweep("x", space=space, base=tiny).manifest
    )
    base = tiny.replace(algorithm=fl.SAFARI(client_prob=0.5))
    text = refused(fl.Sweep, "x", space={"client_prob": 0.1}, base=base)
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
    assert refused(define) == (
        f"Mine (test_component.py:{line}): `lr = 1.0` has no type; write `lr: float = 1.0` for a "
        "setting, or `lr: ClassVar[float] = 1.0` for a constant"
    )


def test_a_field_called_kind_is_refused_where_the_class_is_defined() -> None:
    def define() -> None:
        class Slow(fl.FedAvg):
            kind: str = "FedAvg"

    line = inspect.getsourcelines(define)[1] + 1
    assert refused(define) == (
        f"Slow (test_component.py:{line}): no field can be called `kind`, by which JSON and "
        "tables name the class; call the field otherwise"
    )


def test_a_class_without_its_method_is_told_which_to_rename() -> None:
    class Mine(fl.Algorithm):
        def rounds(self, state: Any, ids: Any, key: Any) -> Any:
            return state

    class Never(fl.Participation):
        """Has nothing."""

    line = inspect.getsourcelines(Mine)[1]
    assert refused(Mine) == (
        f"Mine (test_component.py:{line}) has no method 'round': rename its 'rounds'"
    )
    assert refused(Never).endswith("has no method 'pick': define it")


def test_a_function_as_a_field_is_told_to_be_a_method(tiny: fl.Run) -> None:
    text = refused(lambda: tiny.replace(model=Holds(what=lambda x: x)).id)
    assert "has no JSON (" in text and "as a method of the class" in text


def test_what_is_remembered_in_the_instance_is_led_to_where_it_belongs() -> None:
    assert "belongs in the State that `round` returns" in refused(
        Remembers().round, None, [], None
    )
    assert "in the state that `pick` returns" in refused(
        Counts().pick, None, 1, None, None
    )
    assert "Take .replace(client_prob=...)" in refused(
        setattr, fl.SAFARI(), "client_prob", 1.0
    )


def test_types_are_written_without_modules_and_checks() -> None:
    field = StepRate.model_fields["milestones"]
    assert type_name(field.annotation) == "list[int]"
    assert type_name(dict[str, tuple[int, ...]]) == "dict[str, tuple[int, ...]]"
