"""What a start imports, and what works where neither Ray nor MLflow is installed."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.commands import call_here, checked_output

from raysafl.cluster.provenance import provenance

TESTS = Path(__file__).parents[1]
# Modules whose import takes a tenth of a second or more, some of them seconds.
HEAVY = (
    *("PIL", "jinja2", "markdown_it", "matplotlib", "mlflow", "numba", "numpy"),
    *("pandas", "pyarrow", "pydantic", "ray", "ray.tune", "scipy.stats", "sklearn"),
    *("duckdb", "sqlalchemy", "torch", "torch._dynamo", "torchvision"),
)
WORKER = {"numpy", "pydantic", "torch"}
AGAIN = ("run", "mine.py", "--quiet", "--executor", "here", "--track", "none")
# What a start may import of these, step by step in one process: code, and the modules. What
# a step may import, the next one may too.
STARTS = {
    "here": [
        ("import raysafl", set[str]()),
        ("from raysafl.runtime.in_process import Worker", WORKER),
        ("from raysafl import Runner", WORKER | {"pyarrow"}),
        (f"command(*{AGAIN})", WORKER | {"pandas", "pyarrow"}),
    ],
    # The help is printed by rich, which can read Markdown.
    "help": [("command('--help')", {"markdown_it"})],
    "on Ray": [
        ("import raysafl.runtime.client_actor", WORKER | {"ray"}),
        # Tune itself imports pandas.
        (
            "import raysafl.sweep.on_ray.coordinator",
            WORKER | {"pandas", "pyarrow", "ray", "ray.tune"},
        ),
    ],
}
# Prints the heavy modules that are imported.
FOUND = f"print('found', *(name for name in {HEAVY} if name in sys.modules))"
COMMAND = """
def command(*arguments):
    sys.argv = ["raysafl", *arguments]
    from raysafl.cli import start
    from raysafl.cli.app import main
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
"""
SWEEP = """
from raysafl import Sweep
from raysafl.quickstart import BASE

SWEEP = Sweep("mine", [BASE.replace(rounds=2, replicates=1)])
"""
# `site` imports this module when Python starts. The finder that it puts first finds no Ray
# and no MLflow, as if they were not installed.
MISSING = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("ray", "mlflow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


def python(code: str, folder: Path, *arguments: str) -> str:
    """Run code in a process of its own, and return what it prints."""
    return checked_output([sys.executable, "-c", code, *arguments], cwd=folder).strip()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an experiment file, whose sweep was run."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "mine.py").write_text(SWEEP)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        code, said = call_here(patch, *AGAIN)
    assert code == 0, said
    return folder


def found(code: str, folder: Path) -> list[set[str]]:
    """Return the heavy modules that were imported at each line `FOUND` of some code."""
    lines = python(f"import sys\n{COMMAND}\n{code}", folder).splitlines()
    return [set(line.split()[1:]) for line in lines if line.startswith("found")]


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(one, marks=[pytest.mark.acceptance] if one == "on Ray" else [])
        for one in STARTS
    ],
)
def test_a_start_imports_only_what_it_may(start: str, finished: Path) -> None:
    code = "".join(f"{step}\n{FOUND}\n" for step, _ in STARTS[start])
    steps = found(code, finished)
    for (step, allowed), imported in zip(STARTS[start], steps, strict=True):
        assert imported <= allowed, step


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder; processes that are started find neither Ray nor MLflow."""
    folder = tmp_path_factory.mktemp("without")
    missing = folder / "missing"
    missing.mkdir()
    (missing / "sitecustomize.py").write_text(MISSING)
    (folder / "mine.py").write_text(SWEEP)
    path = [str(missing), str(TESTS), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
        yield folder


CALLS = """
import json, sys
import raysafl as fl
from raysafl.quickstart import BASE

assert len(fl.simulate(BASE.replace(rounds=3, replicates=2))) == 6
try:
    fl.trainable(BASE)
except ValueError as error:
    print(error)

import pytest
from helpers.commands import call_here

for command in json.loads(sys.argv[1]):
    with pytest.MonkeyPatch.context() as patch:
        code, said = call_here(patch, *command)
    print(json.dumps([code, " ".join(said.split())]))
"""
RUN, SYNC, DOCTOR, UI = ["run", "mine.py"], ["sync", "results"], ["doctor"], ["ui"]
ON_RAY = [*RUN, "--executor", "ray"]
TRAINABLE = "trainable"


@pytest.fixture(scope="module")
def answers(without: Path) -> dict[str, tuple[int, str]]:
    """The exit code and the words of each command, one after the other in one process."""
    commands = [RUN, SYNC, DOCTOR, UI, ON_RAY]
    said, *lines = python(CALLS, without, json.dumps(commands)).splitlines()
    assert len(lines) == len(commands)
    return {TRAINABLE: (0, said)} | {
        " ".join(command): (code, said)
        for command, line in zip(commands, lines, strict=True)
        for code, said in [json.loads(line)]
    }


def test_a_sweep_is_run_without_ray_and_mlflow_and_logging_asks_for_it(
    without: Path, answers: dict[str, tuple[int, str]]
) -> None:
    code, said = answers[" ".join(RUN)]
    assert code == 0 and "Runs in this process: Ray is not installed" in said
    assert "finished, test accuracy" in said
    assert (without / "results" / "mine" / "report.html").is_file()
    assert "MLflow is not installed, so nothing is logged to it" in said
    code, said = answers[" ".join(SYNC)]
    needs = (
        "MLflow is not installed, and the logging of runs needs it: pip install mlflow"
    )
    assert code == 2 and said.startswith(f"Error: {needs}")


def test_the_doctor_says_without_ray_and_mlflow_what_is_not_to_be_had(
    answers: dict[str, tuple[int, str]],
) -> None:
    code, said = answers[" ".join(DOCTOR)]
    assert code == 0, said
    assert "ray: not installed: sweeps run in this process only" in said
    assert "mlflow is not installed (pip install mlflow)" in said


@pytest.mark.parametrize(
    ("asked", "needs"),
    [
        (TRAINABLE, "Ray is not installed, and fl.trainable needs it: {ray}"),
        (" ".join(ON_RAY), "Ray is not installed, and executor 'ray' needs it: {ray}"),
        (
            "ui",
            "MLflow is not installed, and `raysafl ui` needs it: pip install mlflow",
        ),
    ],
)
def test_what_needs_ray_or_mlflow_says_so_and_how_to_get_it(
    asked: str, needs: str, answers: dict[str, tuple[int, str]]
) -> None:
    """A run was simulated before, without either."""
    told = needs.format(ray="pip install 'ray[tune]<2.61'")
    expected = (0, told) if asked == TRAINABLE else (2, f"Error: {told}")
    assert answers[asked] == expected


@pytest.mark.acceptance
def test_the_tests_on_gpus_are_collected_without_ray_and_mlflow(without: Path) -> None:
    command = ["pytest", "-m", "gpu", "-n0", "-q", "--collect-only"]
    said = checked_output([sys.executable, "-m", *command], cwd=TESTS.parent)
    assert "tests/gpu/test_gpu_matrix.py" in said


def test_the_origin_of_a_run_leaves_out_the_version_of_what_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without its path, Python finds the metadata of no package."""
    always = ["python", "raysafl", "host"]
    assert list(provenance()) == [*always, "numpy", "torch", "ray"]
    monkeypatch.setattr("sys.path", [])
    assert list(provenance()) == always
