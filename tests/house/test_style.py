"""The house rules that ruff does not check. They are explained in CONTRIBUTING.md."""

import ast
import io
import re
import shutil
import subprocess
import tokenize
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "raysafl").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
MAX_FILE, MAX_FUNCTION, MAX_ALGORITHM = (
    350,
    60,
    60,
)  # lines; the targets are 300, 40 and 60
MAX_BYTES = 1_000_000
MAX_ROWS_BYTES = 3_000_000  # of the rows of one compacted sweep in results/measured
LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def code_lines(source: str) -> int:
    """Lines with code: blank lines, comments and docstrings do not count."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT | {tokenize.COMMENT}:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


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


def test_files_are_short() -> None:
    sizes = {name(path): len(path.read_text().splitlines()) for path in FILES}
    assert sizes
    assert not {file: lines for file, lines in sizes.items() if lines > MAX_FILE}


def test_functions_are_short() -> None:
    long = [
        f"{name(path)}:{node.lineno}: {node.name}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, FUNCTION) and (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION
    ]
    assert not long


def test_an_algorithm_fits_on_a_page() -> None:
    sizes = {
        name(path): code_lines(path.read_text())
        for path in FILES
        if path.parent.name == "algorithms"
    }
    assert sizes
    assert not {file: lines for file, lines in sizes.items() if lines >= MAX_ALGORITHM}


def test_git_tracks_no_large_file() -> None:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("no git, or not a checkout")
    listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip(f"git ls-files: {listed.stderr.strip()}")
    paths = [ROOT / entry for entry in listed.stdout.split("\0") if entry]
    sizes = {name(path): path.stat().st_size for path in paths if path.is_file()}
    limits = {file: MAX_ROWS_BYTES for file in sizes if file.endswith("/rounds.parquet")}
    assert not {file: n for file, n in sizes.items() if n > limits.get(file, MAX_BYTES)}


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
    declared = {re.split(r"[\[<>=~! ]", entry)[0] for group in groups for entry in group}
    told = set(re.findall(r"^\| `([\w-]+)", (ROOT / "docs/dependencies.md").read_text(), re.M))
    assert told == declared


def test_code_lines_are_counted_by_hand() -> None:
    text = '"""Doc."""\n\n# why\nx = """a\nb"""  # end\n'
    source = text + '\ndef f():\n    """Doc\n    two."""\n    return 1\n'
    assert code_lines(source) == 4  # x (two lines), def, return


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
