"""The house rules that ruff does not check. They are explained in CONTRIBUTING.md."""

import ast
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "raysafl").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
MAX_BYTES = 1_000_000
DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def is_packed(node: ast.AST) -> bool:
    """Whether a statement saves lines: by several assignments, or by a tuple unpacked in place."""
    if isinstance(node, ast.Starred):
        return isinstance(node.value, ast.Tuple)
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    # In a swap, the same names stand on both sides.
    left, right = (
        sorted(ast.unparse(part) for part in getattr(side, "elts", []))
        for side in (node.targets[0], node.value)
    )
    return isinstance(node.targets[0], ast.Tuple) and left != right


def test_no_line_is_packed_and_a_docstring_is_a_sentence() -> None:
    packed = []
    short = []
    documented = 0
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            place = f"{name(path)}:{getattr(node, 'lineno', 1)}"
            if is_packed(node):
                packed.append(place)
            if isinstance(node, DEFINITION) and (doc := ast.get_docstring(node)):
                documented += 1
                if len(doc.split()) <= 4:
                    short.append(place)
    assert not packed
    assert len(short) <= 0.02 * documented, short


def test_git_tracks_no_large_file() -> None:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("no git, or not a checkout")
    listed = subprocess.run(
        [git, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip(f"git ls-files: {listed.stderr.strip()}")
    paths = [ROOT / entry for entry in listed.stdout.split("\0") if entry]
    sizes = {name(path): path.stat().st_size for path in paths if path.is_file()}
    assert not {file: n for file, n in sizes.items() if n > MAX_BYTES}


def checks_something(test: ast.AST) -> bool:
    """Whether a test holds an assert, or a call named like one (raises, warns, check_...)."""
    for node in ast.walk(test):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            if re.match(r"_?(assert|check|raises|warns|fail)", called):
                return True
    return False


def idle_tests(source: str) -> Iterator[str]:
    """Yield the names of the tests in a file that check nothing."""
    for node in ast.walk(ast.parse(source)):
        is_test = isinstance(node, DEFINITION) and node.name.startswith("test_")
        if is_test and not checks_something(node):
            yield node.name


def test_every_test_checks_something() -> None:
    idle = [
        f"{name(path)}: {t}" for path in TESTS for t in idle_tests(path.read_text())
    ]
    assert not idle
    assert list(idle_tests("def test_x():\n    f()")) == ["test_x"]


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    declared = {
        re.split(r"[\[<>=~! ]", entry)[0] for group in groups for entry in group
    }
    told = set(
        re.findall(r"^\| `([\w-]+)", (ROOT / "docs/dependencies.md").read_text(), re.M)
    )
    assert told == declared - {"raysafl"}  # an extra of its own, in another one
