"""Load experiment files as users write them, right and wrong; list the catalogue of parts."""

import json
import sys
import textwrap
from pathlib import Path

import pytest
import ray.cloudpickle
from helpers.commands import checked_output

from raysafl import algorithms
from raysafl.cli.catalogue import FAMILIES, catalogue
from raysafl.sweep.code import ship_user_code
from raysafl.sweep.experiment_file import load_sweep

HEAD = """
    from raysafl import SAFARI, FedAvg, Federation, LocalTraining, Logistic, Run, Sweep, Uniform

    RUN = Run(
        data=Federation(),
        model=Logistic(),
        algorithm=FedAvg(),
        participation=Uniform(m=2),
        local=LocalTraining(lr=0.1, batch_size=8, epochs=1),
        rounds=1,
    )
"""
OWN = """
    import torch
    from pydantic import Field
    from base_h4 import Base
    from raysafl import Algorithm, Train
    from raysafl.algorithms import State

    SCALE = 3.0

    def scaled(w_P):
        return SCALE * w_P

    class Mine(Algorithm):
        \"\"\"A user's own rule.\"\"\"

        factor: float = Field(default=2.0, gt=0)

        def init(self, w_P, num_clients):
            return State(scaled(w_P))

        def round(self, state, ids, key):
            update = yield Train(state.w_P, ids)
            return State(state.w_P - self.factor * update.delta_MP.mean(0))

    class Gentler(Base, Mine):
        def init(self, w_P, num_clients):
            return super().init(w_P / SCALE, num_clients)

    SWEEP = Sweep(
        name="own",
        axes=["rule"],
        runs={
            "mine": RUN.replace(algorithm=Mine()),
            "gentler": RUN.replace(algorithm=Gentler(factor=5)),
            "inside": RUN.replace({"algorithm": FedAvg(), "rounds": 2}),
        },
    )
"""
ELSEWHERE = """
import pathlib, pickle, sys
import torch
from raysafl import Algorithm, Run
from raysafl.algorithms import Update

assert not any(name.startswith("raysafl_experiment") for name in sys.modules)
for path in sys.argv[1:]:
    sweep = pickle.loads(pathlib.Path(path).read_bytes())
    mine = sweep.runs["mine"].algorithm
    assert isinstance(mine, Algorithm) and Algorithm.kinds()["Mine"] is type(mine)
    state = mine.init(torch.ones(2), 10)
    rounds = mine.round(state, [0, 1], None)
    assert next(rounds).ids == [0, 1]
    deltas = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    try:
        rounds.send(Update(deltas, *[torch.zeros(2)] * 5))
    except StopIteration as stop:
        print(stop.value.w_P.tolist())
    print(sweep.runs["gentler"].algorithm.init(torch.ones(2), 10).w_P.tolist())
    try:
        type(mine)(factor=-1)
    except ValueError as error:
        print(error)
    assert all(Run.from_json(run.to_json()) == run for run in sweep.runs.values())
    print(*[run.id for run in sweep.runs.values()])
"""


def write(path: Path, *parts: str) -> Path:
    path.write_text("\n".join(textwrap.dedent(part).strip() for part in parts) + "\n")
    return path


def refused(path: Path) -> str:
    with pytest.raises(ValueError) as caught:
        load_sweep(path)
    return str(caught.value)


def test_a_file_in_a_package_imports_from_other_folders_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list(sys.path)
    monkeypatch.chdir(tmp_path)
    top = tmp_path / "somewhere" / "package_h4"
    for folder in (top, top / "one", top / "two"):
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
    write(top / "one" / "names.py", 'NAME = "fine"')
    path = write(
        top / "two" / "file.py",
        HEAD,
        "from package_h4.one.names import NAME\nSWEEP = Sweep(name=NAME, runs=[RUN])",
    )
    assert (
        load_sweep(path).name == load_sweep(path.relative_to(tmp_path)).name == "fine"
    )
    assert sys.path == before


def test_a_missing_file_gets_the_nearest(tmp_path: Path) -> None:
    near = write(tmp_path / "safari_table8.py", HEAD)
    write(tmp_path / "another.py", HEAD)
    text = refused(tmp_path / "safari_tabel8.py")
    assert f"there is no experiment file {tmp_path / 'safari_tabel8.py'}" in text
    assert f"did you mean '{near}'?" in text and "another.py" in text


@pytest.mark.parametrize(
    ("body", "line", "told"),
    [
        ("y = FedAvgg()", 12, "NameError: name 'FedAvgg' is not defined"),
        ("from raysafl import FedAvgg", 12, "raysafl has no 'FedAvgg': did you mean"),
        ("import no_such_module_h4", 12, "ModuleNotFoundError: No module named"),
        ("def f():\n    1 / 0\n\n\nf()", 13, "ZeroDivisionError: division by zero"),
        ('RUN.replace({"local.lr": -1})', 12, "LocalTraining: lr: Input should be"),
        ("RUN.replace(\n    local_lr=3,\n)", 12, "Run: unknown field 'local_lr': did"),
        ('Sweep(name="x")', 12, "sweep 'x' needs runs=... or space=..."),
    ],
)
def test_a_file_that_fails_is_named_with_its_line(
    body: str, line: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("failing.py")
    path.write_text(textwrap.dedent(HEAD).lstrip() + "\n" + body + "\n")
    text = refused(path)
    assert text.startswith(f"{path}:{line} does not import: {told}")
    assert "pydantic" not in text


def test_a_syntax_error_is_named_with_its_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path / "syntax.py", "x = 1\ndef f(:\n    pass")
    assert (
        refused(path) == f"{path} does not import: invalid syntax (syntax.py, line 2)"
    )
    write(tmp_path / "broken_h4.py", "x = 1\ny = 2\nz = (")
    caller = write(tmp_path / "caller.py", "import broken_h4")
    said = f"{caller}:1 does not import: '(' was never closed (broken_h4.py, line 3)"
    assert refused(caller) == said


def test_a_file_without_a_sweep_says_what_it_needs(tmp_path: Path) -> None:
    path = write(tmp_path / "without.py", HEAD)
    assert refused(path) == f"{path} defines no sweep: it needs SWEEP = Sweep(...)"
    path = write(tmp_path / "wrong.py", HEAD, "SWEEP = [RUN]")
    assert refused(path) == f"{path} defines no sweep: it needs SWEEP = Sweep(...)"
    # A sweep under another name is found.
    path = write(
        tmp_path / "named.py",
        HEAD,
        'sweep = Sweep(name="x", runs=[RUN])\nother = sweep',
    )
    assert refused(path).endswith(
        "SWEEP = Sweep(...) (it defines other, sweep: rename one)"
    )


BASE = "from raysafl import Algorithm\nclass Base(Algorithm):\n    abstract = True"


def beside(tmp_path: Path) -> Path:
    """An experiment file that imports its neighbour."""
    write(tmp_path / "base_h4.py", BASE)
    return write(tmp_path / "own_algorithm.py", HEAD, OWN)


def in_package(tmp_path: Path) -> Path:
    """An experiment file that imports from another folder of its package."""
    folder = tmp_path / "package_h5" / "own"
    (tmp_path / "package_h5" / "shared").mkdir(parents=True)
    folder.mkdir()
    for path in (folder, folder.parent, folder.parent / "shared"):
        (path / "__init__.py").touch()
    write(folder.parent / "shared" / "base.py", BASE)
    own = OWN.replace("base_h4", "package_h5.shared.base")
    return write(folder / "own_algorithm.py", HEAD, own)


def test_a_users_algorithm_reaches_a_process_that_has_not_the_file(
    tmp_path: Path,
) -> None:
    expected, pickles = list[str](), list[str]()
    for made in (beside, in_package):
        file = made(tmp_path)
        sweep = load_sweep(file)
        runs = sweep.labelled().values()
        ship_user_code(part for run in runs for part in run.components())
        pickle = tmp_path / f"{made.__name__}.pickle"
        pickle.write_bytes(ray.cloudpickle.dumps(sweep))
        pickles.append(str(pickle))
        file.unlink()
        expected += [
            "[2.0, 3.0]",  # 3 * 1 - 2 * mean(1, 0), and 3 * 1 - 0
            "[1.0, 1.0]",
            "Mine: factor: Input should be greater than 0 (given: -1)",
            " ".join(run.id for run in runs),
        ]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [sys.executable, "-W", "error", "-c", ELSEWHERE, *pickles]
    assert checked_output(command, cwd=elsewhere).splitlines() == expected


def test_every_component_of_the_package_says_what_it_is_in_one_line() -> None:
    for family in FAMILIES.values():
        for kind in family.kinds().values():
            # A class of an example in a docstring says that it is of the docstring's module.
            module = sys.modules.get(kind.__module__)
            is_ours = getattr(module, kind.__name__, None) is kind
            if is_ours and kind.__module__.startswith("raysafl."):
                line = (vars(kind).get("__doc__") or "").partition("\n")[0]
                assert line.endswith(".") and len(line) > 10, kind


def test_the_catalogue_is_plain_json_of_every_family() -> None:
    found = catalogue()
    assert json.loads(json.dumps(found)) == found
    assert set(found) == {*FAMILIES, "result"}
    assert {"test_accuracy", "final", "rise_time"} <= set(found["result"])
    lines = [entry["summary"] for kinds in found.values() for entry in kinds.values()]
    assert all(lines) and not any("\n" in line for line in lines)
    needs = {name: entry["needs"] for name, entry in found["algorithm"].items()}
    vector = ["a vector per client"]
    assert needs["FedAvg"] == needs["Selected"] == [] and needs["MIFA"] == vector
    assert needs["SAFARI"] == needs["ServerOnly"] == ["server data"]
    assert found["algorithm"]["FedVARP"]["source"] == "Jhunjhunwala et al. 2022, UAI"
    # `Around` is a base, and the name of a class that another test may define.
    ours = found["algorithm"].keys() & {*algorithms.__all__} - {"Around"}
    unnamed = {name for name in ours if not found["algorithm"][name]["source"]}
    assert unnamed == {"Centralised", "ScheduledServer", "Selected", "ServerOnly"}
    for name, family in FAMILIES.items():
        assert {*found[name]} == family.kinds().keys() - {family.__name__}
    assert found["dataset"]["Mnist"]["summary"].startswith("MNIST")
