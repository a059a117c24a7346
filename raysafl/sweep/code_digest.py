"""Digests of the code of the user's own components, by which an edit is noticed.

A run's id hashes its configuration, which names a class but does not hold its code. So
the ledger keeps a SHA-256 of the code of each class that is the user's.

Covered is the statement that defines the class, as Python parses it. Comments,
formatting and docstrings are no part of that. Also covered is every statement at the
top level of the user's modules that defines a name which a covered statement refers
to: base classes, functions, classes, constants, and what these refer to in turn, also
in other modules of the user. A class that a function makes is covered by the whole
function. Other statements of the same file, such as the grid and `SWEEP`, are no part
of it.

A class without a source file (of a notebook, or made by `exec`) is covered by its
methods, and by the functions, classes and plain constants that these refer to by name.
A function whose source Python knows is taken as parsed; of any other, the bytes and
the constants that Python compiled, which another version of Python may change.

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
import symtable
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from raysafl.core.component import Component
from raysafl.core.users_code import is_users_module
from raysafl.simulation.run import Run

# A name with its attributes: `numpy.linalg.norm` is ("numpy", "linalg", "norm").
Chain = tuple[str, ...]
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# Texts of fields that say nothing; versions of Python differ in which of them they add.
EMPTY = ("None", "[]", "Load()", "Store()")


class CodeDigests:
    """Computes the digests of the user's classes.

    Each source is read once, so take a new one whenever the code may have changed.

    Args:
        known: what `found` was in the driver. A trial is given it, because the sources
            may not exist where it runs.
    """

    def __init__(self, known: Mapping[str, str] | None = None) -> None:
        self.known = known or {}
        # The digests that were asked for, by the class's module and qualified name.
        self.found: dict[str, str] = {}
        self._sources: dict[str, Source | None] = {}
        self._digests: dict[Any, str] = {}

    def of_run(self, run: Run) -> dict[str, str]:
        """Return the digests of the classes of a run that are the user's, by `kind`.

        Where two classes have one `kind`, as an algorithm and a model may, the second
        is named `<kind> 2`.
        """
        digests: dict[str, str] = {}
        for owner in dict.fromkeys(type(part) for part in run.components()):
            if is_users_module(owner.__module__):
                number = sum(name.split()[0] == owner.kind for name in digests) + 1
                name = owner.kind if number == 1 else f"{owner.kind} {number}"
                digests[name] = self.of(owner)
        return digests

    def of_defined(self) -> dict[str, set[str]]:
        """Return the digests of all classes of the user that are defined, by `kind`.

        Of a class that was defined again, as in a notebook, the last definition counts.
        """
        last = {
            (owner.__module__, owner.__qualname__): owner
            for owner in _subclasses(Component)
            if is_users_module(owner.__module__)
        }
        digests: dict[str, set[str]] = defaultdict(set)
        for owner in last.values():
            digests[owner.kind].add(self.of(owner))
        return digests

    def of(self, owner: type | FunctionType) -> str:
        """Return the digest of a class of the user, or of a function that makes one.

        Raises:
            ValueError: its code is not found, so an edit would never be noticed.
        """
        if owner not in self._digests:
            top = owner.__qualname__.partition(".")[0]
            outer = f"{owner.__module__}.{top}"
            place = f"{owner.__module__}.{owner.__qualname__}"
            digest = self.known.get(place) or self.known.get(outer)
            self._digests[owner] = digest or self._compute(owner, top)
            self.found[place] = self._digests[owner]
        return self._digests[owner]

    def source(self, name: str) -> "Source | None":
        """Return what a module of the user binds; None if its source is not known."""
        if name not in self._sources:
            try:
                self._sources[name] = Source(name)
            except (KeyError, OSError, TypeError, SyntaxError):
                self._sources[name] = None
        return self._sources[name]

    def _compute(self, owner: type | FunctionType, top: str) -> str:
        source = self.source(owner.__module__)
        description: _SourceDescription | _ObjectDescription
        if source and top in source.statements:
            description = _SourceDescription(self)
            description.meaning(source, (top,))
        else:
            description = _ObjectDescription()
            description.meaning(owner)
        if not description.lines:
            raise ValueError(
                f"no code is found of {owner.__qualname__}, which says that it is defined "
                f"in the installed module {owner.__module__}. So an edit of it would not "
                "be noticed. Define it in a Python file of your own, or in a notebook"
            )
        return hashlib.sha256("\n".join(description.lines).encode()).hexdigest()


class Import(NamedTuple):
    """What an import statement binds: a name of a module, or the module itself ("")."""

    module: str
    name: str


class Source:
    """What the top level of a module binds, by name.

    Args:
        name: the name of a module that was imported.

    Raises:
        KeyError, OSError, TypeError, SyntaxError: its source is not known.
    """

    def __init__(self, name: str) -> None:
        module = sys.modules[name]
        self.name = name
        self.package = module.__package__ or ""
        self.statements: dict[str, list[ast.stmt]] = defaultdict(list)
        body = ast.parse(inspect.getsource(module)).body
        nodes = [(statement, list(_at_top_level(statement))) for statement in body]
        self.imports = self.imported(node for _, found in nodes for node in found)
        for statement, found in nodes:
            for bound in _names_bound(found, set(self.imports)):
                self.statements[bound].append(statement)

    def imported(self, nodes: Iterable[ast.AST]) -> dict[str, list[Import]]:
        """Return what import statements bind, by name; `*` is a name as well."""
        found: dict[str, list[Import]] = defaultdict(list)
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    whole = alias.name if alias.asname else top
                    found[alias.asname or top].append(Import(whole, ""))
            elif isinstance(node, ast.ImportFrom):
                module = self._absolute(node)
                for alias in node.names:
                    found[alias.asname or alias.name].append(Import(module, alias.name))
        return found

    def _absolute(self, node: ast.ImportFrom) -> str:
        name = node.module or ""
        try:
            return importlib.util.resolve_name("." * node.level + name, self.package)
        except ImportError:
            return name


class _SourceDescription:
    """Describes a statement and all that it refers to, as lines of text.

    Statements are numbered as they are met, and a line names what a name of a statement
    means by this number. So a function may move to another module without a change,
    but not exchange its name with another one.
    """

    def __init__(self, digests: CodeDigests) -> None:
        self.lines: list[str] = []
        self._digests = digests
        self._numbers: dict[tuple[str, str], int] = {}
        self._meanings: dict[tuple[str, Chain], str] = {}

    def meaning(self, source: Source, chain: Chain) -> str:
        """Return what a name means in a module; empty if the module does not bind it."""
        key = source.name, chain
        if key not in self._meanings:
            # Modules that import a name from each other in a circle end here.
            self._meanings[key] = ""
            self._meanings[key] = self._find(source, chain)
        return self._meanings[key]

    def _find(self, source: Source, chain: Chain) -> str:
        name = chain[0]
        found = [self._number(source, name)] if name in source.statements else []
        imports = source.imports.get(name, [])
        if not found and not imports:
            stars = source.imports.get("*", [])
            imports = [Import(m, name) for m, _ in stars if name in _offered(m)]
        found += [self._imported(what, chain[1:]) for what in imports]
        return " ".join(found)

    def _number(self, source: Source, name: str) -> str:
        """Describe the statements that bind a name, unless that was done before."""
        key = source.name, name
        if key in self._numbers:
            return f"#{self._numbers[key]}"
        number = self._numbers[key] = len(self._numbers)
        for statement in source.statements[name]:
            self.lines.append(f"#{number} {_canonical(statement)}")
            inner = source.imported(ast.walk(statement))
            outer = _global_names(statement)
            for chain in sorted(set(_chains(statement))):
                local = inner.get(chain[0], [])
                meanings = [self._imported(what, chain[1:]) for what in local]
                if chain[0] in outer:
                    meanings.append(self.meaning(source, chain))
                if any(meanings):
                    text = f"{'.'.join(chain)} = {' '.join(meanings)}"
                    self.lines.append(f"#{number} {text}")
        return f"#{number}"

    def _imported(self, what: Import, attributes: Chain) -> str:
        """Return what an imported name means, followed by these attributes."""
        module, name = what
        chain = (name, *attributes) if name else attributes
        while chain and f"{module}.{chain[0]}" in sys.modules:
            module = f"{module}.{chain[0]}"
            chain = chain[1:]
        source = self._digests.source(module) if is_users_module(module) else None
        if source is None:
            # Where a package defines a name may change with its version.
            return f"{module.partition('.')[0]}:{name}" if name else module
        if chain:
            return self.meaning(source, chain)
        names = sorted(source.statements)
        return " ".join(self.meaning(source, (name,)) for name in names)


class _ObjectDescription:
    """Describes a class without a source file and what it refers to, as lines of text."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        # By the id of each value, which is kept so that no other value gets its id.
        self._seen: dict[int, tuple[int, Any]] = {}

    def meaning(self, value: Any) -> str:
        """Return what a value is; describe it if it is a function or class of the user."""
        value = _unwrapped(value)
        is_code = isinstance(value, (FunctionType, type))
        if not is_code or not is_users_module(value.__module__ or "builtins"):
            return _plain(value)
        if id(value) not in self._seen:
            number = len(self._seen)
            self._seen[id(value)] = number, value
            if isinstance(value, FunctionType):
                self.lines.append(f"#{number} {_function_text(value)}")
                parts = _referred(value)
            else:
                parts = _class_members(value)
            for name, part in sorted(parts.items()):
                self.lines.append(f"#{number} {name} = {self.meaning(part)}")
        return f"#{self._seen[id(value)][0]}"


def _subclasses(owner: type[Component]) -> Iterator[type[Component]]:
    for subclass in owner.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _at_top_level(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those inside it whose names are names of the module."""
    yield node
    if not isinstance(node, (*DEFINITIONS, ast.Lambda, ast.comprehension)):
        for child in ast.iter_child_nodes(node):
            yield from _at_top_level(child)


def _names_bound(nodes: Iterable[ast.AST], imported: set[str]) -> set[str]:
    """Return the names that a statement defines or changes.

    A method that is called may change its object (`RATES.append(1)`), unless the name
    was imported: then it is a function of a module (`torch.set_num_threads(1)`).
    """
    names = set()
    for node in nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Name(ctx=ast.Store() | ast.Del()):
                names.add(node.id)
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                names.add(_root(node))
            case ast.Expr(value=ast.Call(func=ast.Attribute() as method)):
                names |= {_root(method)} - imported
    return names - {""}


def _root(node: ast.AST) -> str:
    """Return the name that an expression such as `a.b[0].c` starts from, or ""."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _chains(node: ast.AST) -> Iterator[Chain]:
    """Yield each name inside a node, with the attributes that are taken of it."""
    attributes: Chain = ()
    while isinstance(node, ast.Attribute):
        attributes = (node.attr, *attributes)
        node = node.value
    if isinstance(node, ast.Name):
        yield (node.id, *attributes)
    for child in ast.iter_child_nodes(node):
        yield from _chains(child)


def _global_names(statement: ast.stmt) -> set[str]:
    """Return the names that a statement looks up in its module."""
    names = set()
    tables = [symtable.symtable(ast.unparse(statement), "", "exec")]
    while tables:
        table = tables.pop()
        is_module = table.get_type() == "module"
        for symbol in table.get_symbols():
            if is_module or symbol.is_global():
                names.add(symbol.get_name())
        tables += table.get_children()
    return names


def _canonical(node: Any) -> str:
    """Write a part of a syntax tree without places, docstrings and empty fields."""
    if isinstance(node, ast.AST):
        fields = {name: _canonical(value) for name, value in ast.iter_fields(node)}
        # The kind of a constant is the prefix in u"text", which means nothing.
        texts = [
            f"{name}={text}"
            for name, text in fields.items()
            if text not in EMPTY and name != "kind"
        ]
        return f"{type(node).__name__}({', '.join(texts)})"
    if isinstance(node, list):
        items = [_canonical(item) for item in node if not _does_nothing(item)]
        return f"[{', '.join(items)}]"
    return repr(node)


def _does_nothing(node: Any) -> bool:
    """Whether a statement is a docstring, `...` or `pass`."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Pass)


def _offered(name: str) -> Iterable[str]:
    """Return the names that `from module import *` imports."""
    module = sys.modules.get(name)
    if module is None:
        return ()
    names: Iterable[str] = getattr(module, "__all__", vars(module))
    return names


def _unwrapped(value: Any) -> Any:
    """Return the function inside a static method, a class method or a property."""
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    return value.fget if isinstance(value, property) else value


def _plain(value: Any) -> str:
    """Describe a constant by its value, and any other value by its name or type."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return str(getattr(value, "__name__", type(value).__name__))


def _function_text(function: FunctionType) -> str:
    """Return a function as Python parses it, or else as it is compiled."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
        return _canonical(ast.parse(text))
    except (OSError, TypeError, SyntaxError):
        return _code_text(function.__code__, function.__doc__)


def _code_text(code: CodeType, docstring: str | None = None) -> str:
    constants = [
        _code_text(value) if isinstance(value, CodeType) else _constant(value)
        for value in code.co_consts
        if docstring is None or value != docstring
    ]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


def _constant(value: Any) -> str:
    # The order of a set of strings changes from process to process.
    return repr(sorted(value, key=repr) if isinstance(value, frozenset) else value)


def _referred(function: FunctionType) -> dict[str, Any]:
    """Return the values that a function finds in its module and around it, by name."""
    codes = [function.__code__]
    found: dict[str, Any] = {}
    while codes:
        code = codes.pop()
        names = {n for n in code.co_names if n in function.__globals__}
        found |= {name: function.__globals__[name] for name in names}
        codes += [value for value in code.co_consts if isinstance(value, CodeType)]
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        # A name that has no value yet is an empty cell.
        with suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _class_members(owner: type) -> dict[str, Any]:
    """Return the bases, the functions and the plain values of a class, by name."""
    members: dict[str, Any] = {f"base {i}": b for i, b in enumerate(owner.__bases__)}
    for name, value in vars(owner).items():
        inner = _unwrapped(value)
        is_own = isinstance(inner, FunctionType) and is_users_module(inner.__module__)
        if is_own or not name.startswith("_"):
            members[name] = value
    return members
