"""Digests of the code of the user's own components, by which an edit is noticed.

A run's id hashes its configuration, which names a class but does not hold its code. So
the ledger keeps a SHA-256 of the code of each class that is the user's.

Covered are the statement that defines the class, and all statements at the top level
of the user's modules that bind a name to which a covered statement refers, also by
imports. Of a module that is imported as a whole, all statements are covered. Comments,
formatting and docstrings are no part of them. A class that a function makes is covered
by that function.

A class without a source file (of a notebook, or made by `exec`) is covered by its
methods as Python compiles them, and by the functions, classes and plain constants to
which these refer by name.

Not covered are installed packages; names that are found by a text (`getattr`, `eval`);
the values with which a function was called that made a class; files that the code
reads; and a module that is edited after it was imported: then the digest is that of
the file, while Python runs what it imported.
"""

import ast
import hashlib
import importlib.util
import inspect
import json
import re
import symtable
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from raysafl.core.users_code import is_users_module
from raysafl.simulation.run import Run

# A module and a name in it. An empty name stands for all names of the module.
Place = tuple[str, str]
DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
METHODS = staticmethod | classmethod | property  # type: ignore[type-arg]


class Statement(NamedTuple):
    """A statement at the top level of a module, without comments and docstrings."""

    text: str
    # The names of its own module to which it refers, and what it imports.
    names: set[str]
    imports: set[Place]


class CodeDigests:
    """Computes the digests of the user's classes.

    Each source is read once, so take a new one whenever the code may have changed.
    """

    def __init__(self) -> None:
        self._digests: dict[Any, str] = {}
        # The statements of each module that was read, by the names that they bind.
        self._modules: dict[str, Mapping[str, list[Statement]]] = {}

    def of_run(self, run: Run) -> dict[str, str]:
        """Return the digests of the classes of a run that are the user's, by `kind`.

        Where two classes have one `kind`, as an algorithm and a model may, the second
        is named `<kind> 2`.
        """
        digests: dict[str, str] = {}
        for owner in dict.fromkeys(type(part) for part in run.components()):
            if is_users_module(owner.__module__):
                number = sum(name.split()[0] == owner.__name__ for name in digests) + 1
                name = owner.__name__ if number == 1 else f"{owner.__name__} {number}"
                digests[name] = self.of(owner)
        return digests

    def of(self, owner: type | FunctionType) -> str:
        """Return the digest of a class or a function of the user."""
        if owner not in self._digests:
            self._digests[owner] = self._compute(owner)
        return self._digests[owner]

    def _compute(self, owner: type | FunctionType) -> str:
        assert is_users_module(owner.__module__), f"{owner} is not the user's"
        top = owner.__qualname__.partition(".")[0]
        if top in self._statements(owner.__module__):
            text = "\n".join(self._reached(owner.__module__, top))
        else:
            tell = partial(_told, seen=set())
            # A class may name itself: what was told before is not told again.
            text = json.dumps(owner, default=tell, skipkeys=True, check_circular=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def _reached(self, module: str, name: str) -> Iterator[str]:
        """Yield the statements that bind a name, and all to which they refer in turn."""
        places = [(module, name)]
        seen: set[Place | str] = set()
        while places:
            module, name = place = places.pop()
            if place in seen:
                continue
            seen.add(place)
            bound = self._statements(module)
            # The name may also be one that `import *` binds.
            found = [*bound.get(name, []), *bound.get("*", [])]
            for text, names, imports in found if name else chain(*bound.values()):
                if text not in seen:
                    yield text
                seen.add(text)
                places += sorted((module, other) for other in names)
                places += sorted((m, name if n == "*" else n) for m, n in imports)

    def _statements(self, module: str) -> Mapping[str, list[Statement]]:
        """Return the statements of a module by name; none if they are not known."""
        if module not in self._modules:
            self._modules[module] = {}
            if is_users_module(module):
                with suppress(KeyError, OSError, TypeError, SyntaxError):
                    tree = ast.parse(inspect.getsource(sys.modules[module]))
                    package = sys.modules[module].__package__ or ""
                    self._modules[module] = _by_name(tree, package)
        return self._modules[module]


def _by_name(tree: ast.Module, package: str) -> Mapping[str, list[Statement]]:
    """Return the statements of a module by the names that they bind or change."""
    nodes = list(ast.walk(tree))
    imported = {_bound_by(node) for node in nodes if isinstance(node, ast.alias)}
    for node in nodes:
        if isinstance(body := getattr(node, "body", None), list):
            code = [part for part in body if not _says_nothing(part)]
            node.body = code or [ast.Pass()]  # type: ignore[attr-defined]
    bound = defaultdict(list)
    for part in chain.from_iterable(map(_one_by_one, tree.body)):
        text = ast.unparse(part)
        names = _global_names(text)
        for name in set(_changed(part, imported)) & {*names, "*"}:
            bound[name].append(Statement(text, names, _imports(part, package)))
    return bound


def _says_nothing(node: ast.AST) -> bool:
    """Whether a statement is a docstring, or `...`."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _one_by_one(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield an import of each name that a statement imports, or the statement itself."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        fields = dict(ast.iter_fields(statement))
        for alias in statement.names:
            yield type(statement)(**fields | {"names": [alias]})
    else:
        yield statement


def _bound_by(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _changed(statement: ast.stmt, imported: set[str]) -> Iterator[str]:
    """Yield the names that a statement may bind, or whose objects it may change.

    `TABLE["b"] = 2`, `TABLE.update(b=2)` and `setattr(TABLE, "b", 2)` change `TABLE`,
    and what a function decorates may go into a table of that function. But a module
    whose function is called (`torch.set_num_threads(1)`) is not changed.
    """
    for maker in getattr(statement, "decorator_list", []):
        yield from {re.split(r"\W", ast.unparse(maker))[0]} - imported
    for node in ast.walk(statement):
        if isinstance(node, DEFINITIONS):
            yield node.name
        elif isinstance(node, ast.alias):
            yield _bound_by(node)
        elif isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
            yield from _first_word(node)
        elif isinstance(node, ast.Expr):
            yield from _first_word(node) - imported


def _first_word(node: ast.AST) -> set[str]:
    """Return the first word of a text, unless it is a function that is called."""
    found = re.match(r"(?:setattr\()?(\w+)(?![\w(])", ast.unparse(node))
    return {found[1]} if found else set()


def _global_names(text: str) -> set[str]:
    """Return the names that statements bind in, or look up in, their module."""
    tables = [symtable.symtable(text, "", "exec")]
    names = set()
    while tables:
        table = tables.pop()
        names |= {name.get_name() for name in table.get_symbols() if name.is_global()}
        tables += table.get_children()
    return names


def _imports(statement: ast.stmt, package: str) -> set[Place]:
    """Return what a statement imports in a module of a package."""
    places = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Import):
            for alias in node.names:
                places |= {(alias.name, ""), (alias.name.partition(".")[0], "")}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            # An import that Python has not carried out may lead nowhere.
            with suppress(ImportError):
                module = importlib.util.resolve_name(module, package)
            for alias in node.names:
                places |= {(module, alias.name), (f"{module}.{alias.name}", "")}
    return places


def _told(value: Any, seen: set[int]) -> Any:
    """Return what JSON is to hold of a value that has no source and is no constant.

    Args:
        value: a function or a class, of which all is told, or any other value, of which
            the name or the type is told.
        seen: the ids of the functions and classes that were told before.
    """
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    if isinstance(value, property):
        return value.fget
    is_code = isinstance(value, FunctionType | type)
    is_users = is_code and is_users_module(value.__module__ or "builtins")
    if not is_users or id(value) in seen:
        return getattr(value, "__qualname__", type(value).__name__)
    seen.add(id(value))
    if isinstance(value, type):
        # Python adds names that begin with an underscore.
        members = {
            name: member
            for name, member in vars(value).items()
            if not name.startswith("_") or isinstance(member, FunctionType | METHODS)
        }
        return [value.__bases__, members]
    codes = list(_codes(value.__code__))
    names = {name for code in codes for name in code.co_names}
    held = {name: value.__globals__.get(name) for name in sorted(names)}
    cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    for name, cell in cells:
        # A name that has no value yet is an empty cell.
        with suppress(ValueError):
            held[name] = cell.cell_contents
    return [*(_bytecode(code, value.__doc__) for code in codes), held]


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of the functions inside it."""
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _codes(value)


def _bytecode(code: CodeType, docstring: str | None) -> str:
    constants = [
        # The order of a set of strings changes from process to process.
        sorted(value, key=repr) if isinstance(value, frozenset) else value
        for value in code.co_consts
        if not isinstance(value, CodeType) and (not docstring or value != docstring)
    ]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"
