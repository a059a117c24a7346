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
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


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


def nodes(
    kind: type[ast.AST] | tuple[type[ast.AST], ...],
) -> Iterator[tuple[str, ast.AST]]:
    """Yield each node of some kinds in the package, with the file and line where it stands."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, kind):
                yield f"{name(path)}:{getattr(node, 'lineno', 1)}", node


def test_one_assignment_stands_on_a_line() -> None:
    packed = [
        place
        for place, node in nodes(ast.Assign)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
        and not is_swap(node)
    ]
    assert not packed


def is_swap(node: ast.Assign) -> bool:
    """Whether the same names stand on both sides, as in `a, b = b, a`."""
    left, right = (
        sorted(ast.unparse(part) for part in getattr(side, "elts", []))
        for side in (node.targets[0], node.value)
    )
    return left == right


def test_no_tuple_is_unpacked_to_save_lines() -> None:
    starred = [
        place
        for place, node in nodes(ast.Starred)
        if isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple)
    ]
    assert not starred


def test_a_docstring_is_a_sentence() -> None:
    documented = [
        (place, doc)
        for place, node in nodes((*FUNCTION, ast.ClassDef))
        if isinstance(node, (*FUNCTION, ast.ClassDef))
        and (doc := ast.get_docstring(node))
    ]
    short = [place for place, doc in documented if len(doc.split()) <= 4]
    assert len(short) <= 0.02 * len(documented), short


def test_the_package_has_few_loose_modules() -> None:
    loose = {path.name for path in (ROOT / "raysafl").glob("*.py")}
    assert loose == {"__init__.py", "__main__.py", "quickstart.py", "version.py"}


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


def test_every_test_checks_something() -> None:
    idle = [
        f"{name(path)}:{node.lineno}: {node.name}"
        for path in TESTS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, FUNCTION) and node.name.startswith("test_")
        if not checks_something(node)
    ]
    assert not idle


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


def test_an_idle_test_is_caught() -> None:
    idle, asserting, raising = (
        ast.parse(f"def test_x():\n    {body}")
        for body in (
            "f()",
            "np.testing.assert_allclose(a, b)",
            "\n    with pytest.raises(E): f()",
        )
    )
    assert [checks_something(t) for t in (idle, asserting, raising)] == [
        False,
        True,
        True,
    ]
