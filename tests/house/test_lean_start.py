"""What each start imports, and what works where neither Ray nor MLflow is installed.

Each start is a process of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.commands import call

# Modules whose import takes a tenth of a second or more, some of them seconds.
HEAVY = (
    *("PIL", "jinja2", "markdown_it", "matplotlib", "mlflow", "numba", "numpy"),
    *("pandas", "pyarrow", "pydantic", "ray", "ray.tune", "scipy.stats", "sklearn"),
    *("duckdb", "sqlalchemy", "torch", "torch._dynamo", "torchvision"),
)
RUN = {"numpy", "pydantic", "torch"}
WORKER = {"numpy", "pydantic", "torch"}
AGAIN = ("run", "mine.py", "--quiet", "--executor", "here", "--track", "none")
# What a start may import of these: name -> its code, and the modules.
STARTS = {
    "import raysafl": ("import raysafl", set[str]()),
    # The help is printed by rich, which can read Markdown.
    "raysafl --help": ("command('--help')", {"markdown_it"}),
    "Worker": ("from raysafl.runtime.in_process import Worker", WORKER),
    "Runner": ("from raysafl import Runner", WORKER | {"pyarrow"}),
    "a sweep that is finished": (
        f"command(*{AGAIN})",
        WORKER | {"pandas", "pyarrow"},
    ),
    "client actor": ("import raysafl.runtime.client_actor", WORKER | {"ray"}),
    # Tune itself imports pandas.
    "coordinator": (
        "import raysafl.sweep.coordinator",
        WORKER | {"pandas", "pyarrow", "ray", "ray.tune"},
    ),
}
# Prints the heavy modules that are imported.
FOUND = f"print(*(name for name in {HEAVY} if name in sys.modules))"
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


def python(code: str, folder: Path) -> str:
    """Run code in a process of its own, and return the last line that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1] if done.stdout else ""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an experiment file, whose sweep was run."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "mine.py").write_text(SWEEP)
    code, said = call(folder, *AGAIN)
    assert code == 0, said
    return folder


@pytest.mark.parametrize("start", STARTS)
def test_a_start_imports_only_what_it_may(start: str, finished: Path) -> None:
    code, allowed = STARTS[start]
    said = python(f"import sys\n{COMMAND}\n{code}\n{FOUND}", finished)
    assert set(said.split()) <= allowed


def test_an_import_that_is_not_allowed_is_found(tmp_path: Path) -> None:
    assert python(f"import sys, numpy\n{FOUND}", tmp_path) == "numpy"


@pytest.fixture
def without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder; processes that are started find neither Ray nor MLflow."""
    missing = tmp_path / "missing"
    missing.mkdir()
    (missing / "sitecustomize.py").write_text(MISSING)
    (tmp_path / "mine.py").write_text(SWEEP)
    path = os.pathsep.join([str(missing), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path.rstrip(os.pathsep))
    return tmp_path


@pytest.mark.parametrize("name", ["ray", "mlflow"])
def test_a_package_that_is_made_missing_is_missing(name: str, without: Path) -> None:
    code = f"try: import {name}\nexcept ImportError: print('missing')"
    assert python(code, without) == "missing"


def test_a_run_is_simulated_without_ray_and_the_trainable_asks_for_it(
    without: Path,
) -> None:
    code = (
        "import raysafl as fl\n"
        "from raysafl.quickstart import BASE\n"
        "assert len(fl.simulate(BASE.replace(rounds=3, replicates=2))) == 6\n"
        "try: fl.trainable(BASE)\n"
        "except ValueError as error: print(error)"
    )
    assert python(code, without) == (
        "Ray is not installed, and fl.trainable needs it: pip install 'raysafl[ray]'"
    )


def test_a_sweep_is_run_without_ray_and_mlflow_and_logging_asks_for_it(
    without: Path,
) -> None:
    code, said = call(without, "run", "mine.py")
    assert code == 0 and "Runs in this process: Ray is not installed" in said
    assert "finished, test accuracy" in said
    assert (without / "results" / "mine" / "report.html").is_file()
    assert "MLflow is not installed, so nothing is logged to it" in said
    code, said = call(without, "sync", "results")
    needs = "MLflow is not installed, and the logging of runs needs it: pip install"
    assert code == 2 and said.startswith(f"Error: {needs}")


def test_the_doctor_says_without_ray_and_mlflow_what_is_not_to_be_had(
    without: Path,
) -> None:
    code, said = call(without, "doctor")
    assert code == 0, said
    assert "ray: not installed: sweeps run in this process only" in said
    assert "mlflow: not installed: sweeps are not logged" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run", "mine.py", "--executor", "ray"],
            "Ray is not installed, and executor 'ray' needs it: pip install 'raysafl[ray]'",
        ),
        (
            ["ui"],
            "MLflow is not installed, and `raysafl ui` needs it: pip install 'raysafl[mlflow]'",
        ),
    ],
)
def test_a_command_says_that_it_needs_ray_or_mlflow_and_how_to_get_it(
    arguments: list[str], message: str, without: Path
) -> None:
    assert call(without, *arguments) == (2, f"Error: {message}")


def test_the_tests_on_gpus_are_collected_without_ray_and_mlflow(without: Path) -> None:
    command = ["pytest", "-m", "gpu", "-n0", "-q", "--collect-only"]
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tests/gpu/test_gpu_matrix.py" in done.stdout


def test_the_origin_of_a_run_leaves_out_the_version_of_what_is_not_installed(
    tmp_path: Path,
) -> None:
    """Without its path, Python finds the metadata of no package."""
    code = (
        "import sys\n"
        "from raysafl.runtime.provenance import provenance\n"
        "before = list(provenance())\n"
        "sys.path.clear()\n"
        "print(before, list(provenance()))"
    )
    assert python(code, tmp_path) == (
        "['python', 'raysafl', 'host', 'torch', 'ray'] ['python', 'raysafl', 'host']"
    )
