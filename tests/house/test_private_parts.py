"""Private parts of other packages are touched in three files only."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "raysafl"
ALLOWED = {"cluster/ray_private.py", "kernels/jit.py", "simulation/lifting.py"}
# public and documented, in spite of their names: of named tuples, and os._exit
PUBLIC = {"_make", "_replace", "_fields", "_asdict", "_exit"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def names_defined(tree: ast.AST) -> set[str]:
    """The functions, classes and attributes that a file defines itself."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if ast.unparse(node.value) in ("self", "cls"):
                found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def private_parts(source: str) -> Iterator[tuple[int, str]]:
    """(line, what) of each private part of another package, and of each use of mock."""
    tree = ast.parse(source)
    own = names_defined(tree) | PUBLIC
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                name = f"{module}.{alias.name}".lstrip(".")
                private = any(map(is_private, name.split("."))) and not name.startswith(
                    "raysafl"
                )
                if private or name.startswith("unittest"):
                    yield node.lineno, name
        elif isinstance(node, ast.Attribute):
            foreign = is_private(node.attr) and node.attr not in own
            inherited = ast.unparse(node.value) in ("self", "cls", "super()")
            if foreign and not inherited:
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if "._private" in node.value and " " not in node.value:
                yield node.lineno, node.value


def test_private_parts_are_touched_in_three_files_only() -> None:
    found = [
        f"raysafl/{file}:{line}: {what}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if (file := path.relative_to(PACKAGE).as_posix()) not in ALLOWED
        for line, what in private_parts(path.read_text())
    ]
    assert not found, "\n".join(found)


def test_the_two_files_exist_and_do_so() -> None:
    for file in ALLOWED:
        assert list(private_parts((PACKAGE / file).read_text())), file


@pytest.mark.parametrize(
    "source",
    [
        "from ray._private import services",
        "from unittest.mock import patch",
        "from torch.nn.modules.dropout import _DropoutNd",
        "loop._cache.flush()",
        'part = "ray._private.node.Node"',
    ],
)
def test_a_planted_private_part_is_caught(source: str) -> None:
    assert len(list(private_parts(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from raysafl.runtime.client_actor import _unpack",
        "class A:\n    def __init__(self):\n        self._b = 1\n\ndef f(a):\n    return a._b",
        "type(self).__name__",
    ],
)
def test_what_is_its_own_or_public_passes(source: str) -> None:
    assert not list(private_parts(source))
