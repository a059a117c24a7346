"""Import directions: which module of the package may know which. See docs/architecture.md."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "raysafl"
ANY = None
ALLOWED: dict[str, set[str] | None] = {  # first part of a module's name -> what it may import
    "component": set(),
    "compiled": set(),
    "version": set(),
    "summary": set(),
    "parts": set(),
    "key": set(),
    "core": {"component", "parts", "key"},
    "manifest": {"component"},
    "place": set(),
    "locks": {"place"},
    "store": {"manifest", "component", "place", "locks"},
    "data": {"core", "component", "parts"},
    "models": {"core", "component", "compiled"},
    "participation": {"core", "component"},
    "algorithms": {"core", "component"},
    "diagnostics": {"core", "component"},
    "advise": {"core", "component", "simulation", "runtime", "diagnostics"},
    "theory": {"core"},
    "simulation": {"core", "component"},
    "engines": {"models"},
    "descent": {"core"},
    "linear": {"core", "compiled", "engines", "models"},
    "autotune": {"component", "engines", "linear", "models", "version"},
    "local": {"core", "models", "engines", "linear", "descent", "autotune"},
    "checkpoint": {"core", "simulation"},
    "runtime": {"core", "component", "compiled", "data", "models", "local"},
    "tracking": {"store", "place", "manifest", "summary", "component", "core"},
    "report": {"store", "place", "manifest", "summary", "component"},
    "results": {"store", "place", "summary", "report"},
    "sweep": {
        *("core", "component", "models", "simulation", "checkpoint", "runtime", "tracking"),
        *("autotune", "store", "place", "locks", "manifest", "summary", "report", "version"),
    },
    "bench": {
        *("core", "component", "data", "models", "participation", "algorithms", "simulation"),
        *("runtime", "sweep"),
    },
    **dict.fromkeys(
        ("cli", "ui", "experiment", "doctor", "quickstart", "catalogue", "show", "__init__"), ANY
    ),
}
PURE = {name: {"ray", "mlflow"} for name in ("core", "participation", "simulation", "data")}
FORBIDDEN: dict[str, set[str]] = PURE | {
    "algorithms": {"ray", "mlflow", "pandas", "pathlib", "os"},
    "local": {"ray"},
    "report": {"torch", "ray"},
}


def imported(tree: ast.AST, package: list[str]) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of every import, those inside functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [alias.name for alias in node.names] if module == "raysafl" else [""]
            yield from ((node.lineno, f"{module}.{name}".rstrip(".")) for name in names)


def violations(source: str, file: str) -> list[str]:
    """What a file of the package imports against the rules; `file` is relative to raysafl/."""
    parts = Path(file).with_suffix("").parts
    module = parts[0]
    if module not in ALLOWED:
        return [f"raysafl/{file}: no rule for {module!r}: give it one in tests/test_imports.py"]
    allowed, found = ALLOWED[module], []
    for line, name in imported(ast.parse(source), ["raysafl", *parts[:-1]]):
        top, _, rest = name.partition(".")
        own = rest.partition(".")[0] or "__init__"
        inside = top == "raysafl" and allowed is not ANY and own not in {*allowed, module}
        if inside or top in FORBIDDEN.get(module, ()):
            found.append(f"raysafl/{file}:{line}: {module} must not import {name}")
    return found


def test_import_directions() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    found = [
        problem
        for path in files
        for problem in violations(path.read_text(), path.relative_to(PACKAGE).as_posix())
    ]
    assert files and not found, "\n".join(found)


@pytest.mark.parametrize(
    ("file", "source", "name"),
    [
        ("core.py", "import raysafl.data", "raysafl.data"),
        ("core.py", "from raysafl import data, component", "raysafl.data"),
        ("core.py", "def f():\n    import ray.tune", "ray.tune"),
        ("models.py", "from .local import train", "raysafl.training.trainer"),
        ("algorithms/safari.py", "from ..participation import Uniform", "raysafl.participation"),
        ("algorithms/safari.py", "from .. import participation", "raysafl.participation"),
        ("algorithms/safari.py", "from pathlib import Path", "pathlib"),
        ("report/table.py", "import torch.nn as nn", "torch.nn"),
        ("runtime/remote.py", "from raysafl.algorithms.safari import Safari", "raysafl.algorithms"),
        ("component.py", "import raysafl", "raysafl"),
    ],
)
def test_a_planted_violation_is_caught(file: str, source: str, name: str) -> None:
    (problem,) = violations(source, file)
    line = len(source.splitlines())
    module = Path(file).with_suffix("").parts[0]
    assert problem.startswith(f"raysafl/{file}:{line}: {module} must not import {name}")


def test_allowed_imports_pass() -> None:
    source = "from raysafl.core.algorithm import Key\nfrom raysafl import component\nimport torch, os.path\n"
    assert violations(source, "participation.py") == []
    assert violations("from .fedavg import FedAvg", "algorithms/safari.py") == []
    assert violations("import ray, raysafl.report", "cli.py") == []


def test_a_module_without_a_rule_is_named() -> None:
    assert "no rule for 'extra'" in violations("", "extra.py")[0]
