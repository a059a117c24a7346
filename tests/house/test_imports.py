"""Import directions: which module of the package may know which. See docs/architecture.md."""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "raysafl"
ANY = None
ALLOWED: dict[
    str, set[str] | None
] = {  # a room of the package -> the rooms it may import
    "version": set(),
    "core": set(),
    "kernels": set(),
    "algorithms": {"core"},
    "data": {"core"},
    "objectives": {"core"},
    "participation": {"core", "kernels"},
    "models": {"core", "kernels"},
    "simulation": {"core", "kernels", "objectives"},
    "training": {"core", "kernels", "models", "objectives"},
    "storage": {"core"},
    "kept": {"core", "data", "simulation", "storage"},
    "report": {"core", "storage"},
    "tracking": {"core", "kept", "storage"},
    "cluster": {"core", "version"},
    "runtime": {*("core", "cluster", "kernels", "models", "objectives", "training")},
    "sweep": {
        *("core", "models", "training", "simulation", "runtime", "cluster"),
        *("kept", "storage", "tracking", "report", "version"),
        # A trial before a sweep has data and a cohort of its own.
        *("data", "participation"),
    },
    **dict.fromkeys(("cli", "quickstart", "__init__", "__main__"), ANY),
}
PURE = ("core", "kernels", "data", "objectives", "participation", "simulation")
# What is computed must not depend on a clock, nor on randomness that has no seed.
CLOCKS = {"time", "datetime", "random", "secrets"}
FORBIDDEN: dict[str, set[str]] = {
    **{room: {"ray", "mlflow", *CLOCKS} for room in PURE},
    "simulation": {"ray", "mlflow"},
    "algorithms": {"ray", "mlflow", "pandas", "pathlib", "os", *CLOCKS},
    "models": CLOCKS,
    "training": {"ray", "mlflow", *CLOCKS},
    "storage": {"ray", "mlflow", "torch"},
    "tracking": {"ray", "torch"},
    "report": {"ray", "torch"},
}


def imported(tree: ast.AST, package: list[str]) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of every import, those inside functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = (
                [alias.name for alias in node.names] if module == "raysafl" else [""]
            )
            yield from ((node.lineno, f"{module}.{name}".rstrip(".")) for name in names)


def violations(source: str, file: str) -> list[str]:
    """What a file of the package imports against the rules; `file` is relative to raysafl/."""
    parts = Path(file).with_suffix("").parts
    module = parts[0]
    if module not in ALLOWED:
        return [
            f"raysafl/{file}: no rule for {module!r}: give it one in tests/house/test_imports.py"
        ]
    allowed, found = ALLOWED[module], []
    for line, name in imported(ast.parse(source), ["raysafl", *parts[:-1]]):
        top, _, rest = name.partition(".")
        own = rest.partition(".")[0] or "__init__"
        inside = (
            top == "raysafl" and allowed is not ANY and own not in {*allowed, module}
        )
        if inside or top in {"benchmarks", *FORBIDDEN.get(module, ())}:
            found.append(f"raysafl/{file}:{line}: {module} must not import {name}")
    return found


def table_of(document: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    text = (PACKAGE.parent / document).read_text().partition(heading)[2]
    lines = itertools.dropwhile(
        lambda line: not line.startswith("|"), text.splitlines()
    )
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [row.strip("|").split("|") for row in rows][2:]


def rooms_in(cell: str) -> list[str]:
    return re.findall(r"`(\w+)(?:/|\.py)?`", cell)


def test_the_architecture_page_names_what_each_room_may_import() -> None:
    table = table_of("docs/architecture.md", "## Which room may import which")
    named = {
        room: ANY if "everything" in may else set(rooms_in(may.partition("(")[0]))
        for rooms, _, may in table
        for room in rooms_in(rooms)
    }
    rules = {
        room: allowed if allowed is ANY else allowed - {"version"}
        for room, allowed in ALLOWED.items()
        if room not in ("version", "__init__", "__main__")
    }
    assert named == rules


def test_rooms_import_only_rooms_below_them_in_the_map() -> None:
    table = table_of("CONTRIBUTING.md", "## The map of the package")
    order = [room for rooms, _ in table for room in rooms_in(rooms)]
    assert set(order) == set(ALLOWED) - {"__init__", "__main__"}
    above = [
        f"{room} imports {other}"
        for room, allowed in ALLOWED.items()
        for other in allowed or ()
        if order.index(room) >= order.index(other)
    ]
    assert not above


def test_import_directions() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    found = [
        problem
        for path in files
        for problem in violations(
            path.read_text(), path.relative_to(PACKAGE).as_posix()
        )
    ]
    assert files and not found, "\n".join(found)


@pytest.mark.parametrize(
    ("file", "source", "name"),
    [
        ("core/work.py", "from raysafl import data, core", "raysafl.data"),
        ("core/work.py", "def f():\n    import ray.tune", "ray.tune"),
        ("models/flat.py", "from ..training import trainer", "raysafl.training"),
        (
            "algorithms/safari.py",
            "from .. import participation",
            "raysafl.participation",
        ),
        ("algorithms/safari.py", "from pathlib import Path", "pathlib"),
        ("training/engines.py", "import time", "time"),
        ("cli/app.py", "from benchmarks.cpu import measures", "benchmarks.cpu"),
    ],
)
def test_a_planted_violation_is_caught(file: str, source: str, name: str) -> None:
    (problem,) = violations(source, file)
    line = len(source.splitlines())
    module = Path(file).with_suffix("").parts[0]
    assert problem.startswith(f"raysafl/{file}:{line}: {module} must not import {name}")


def test_allowed_imports_pass() -> None:
    source = "from raysafl.core.randomness import Key\nimport raysafl.core, torch\n"
    assert violations(source, "participation/trace.py") == []
    assert violations("from .fedavg import FedAvg", "algorithms/safari.py") == []
    assert violations("import ray, raysafl.report", "cli/app.py") == []


def test_a_module_without_a_rule_is_named() -> None:
    assert "no rule for 'extra'" in violations("", "extra.py")[0]
