"""The code of the user's own classes: has it changed, and how it gets to the workers.

A run's id hashes its configuration, which names a class but does not hold its code. So
the ledger keeps a SHA-256 of the code of each class that is the user's, by which an edit is
noticed.

Covered are the statement that defines the class, and all statements at the top level
of the user's modules that bind a name to which a covered statement refers, also by
imports. Of a module that is imported as a whole, all statements are covered. Comments,
formatting and docstrings are no part of them. A class that a function makes is covered
by that function. A class without a source file (of a notebook, or made by `exec`) is covered
by its methods as Python compiles them, and by the functions, classes and plain constants to
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from raysafl.core.component import Component
from raysafl.core.text import first_of, were
from raysafl.core.users_code import WITHOUT_A_NAME, codes_inside, is_users_module
from raysafl.simulation.run import Run
from raysafl.storage.journal import Results
from raysafl.storage.ledger import CellEnd, HowFar
from raysafl.storage.manifest import Entry, Manifest, run_name
from raysafl.sweep.choices import Stale
from raysafl.version import __version__

# A module and a name in it. An empty name stands for all names of the module.
Place = tuple[str, str]
DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
METHODS = FunctionType | staticmethod | classmethod | property  # type: ignore[type-arg]


class Statement(NamedTuple):
    """A statement at the top level of a module, without comments and docstrings."""

    text: str
    # The names of its own module to which it refers, and what it imports.
    places: list[Place]


class CodeDigests:
    """Computes the digests of the user's classes.

    Each source is read once, so take a new one whenever the code may have changed.

    Attributes:
        of: returns the digest of a class or a function of the user.
    """

    def __init__(self) -> None:
        self.of = cache(self._of)
        self._statements = cache(_statements)

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

    def _of(self, owner: type | FunctionType) -> str:
        module = owner.__module__
        assert is_users_module(module), f"{owner} is not the user's"
        top = owner.__qualname__.partition(".")[0]
        known = top in self._statements(module)
        texts = self._reached((module, top)) if known else _bytecodes(owner)
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()

    def _reached(self, first: Place) -> Iterator[str]:
        """Yield the statements that bind a name, and all to which they refer in turn."""
        places = [first]
        seen: set[Place | str] = set()
        while places:
            module, name = place = places.pop()
            if place in seen:
                continue
            seen.add(place)
            bound = self._statements(module)
            # The name may also be one that `import *` binds.
            found = [*bound.get(name, []), *bound.get("*", [])]
            for text, others in found if name else chain(*bound.values()):
                if text not in seen:
                    yield text
                seen.add(text)
                places += [(m, name if n == "*" else n) for m, n in others]


def _statements(module: str) -> Mapping[str, list[Statement]]:
    """Return the statements of a module by the names that they bind or change.

    There are none if the module is not the user's, or its source is not known.
    """
    if is_users_module(module):
        with suppress(KeyError, OSError, TypeError, SyntaxError):
            source = inspect.getsource(sys.modules[module])
            return _by_name(source, module, sys.modules[module].__package__ or "")
    return {}


# A program that carries out several sweeps takes each source apart once.
@lru_cache
def _by_name(source: str, module: str, package: str) -> Mapping[str, list[Statement]]:
    """Return the statements of a module by the names that they bind or change."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    imported = {_bound_by(node) for node in nodes if isinstance(node, ast.alias)}
    for node in nodes:
        if isinstance(body := getattr(node, "body", None), list):
            # Docstrings and `...` are no code.
            code = [part for part in body if not _is_constant(part)]
            node.body = code or [ast.Pass()]  # type: ignore[attr-defined]
    bound = defaultdict(list)
    for part in chain.from_iterable(map(_one_by_one, tree.body)):
        text = ast.unparse(part)
        names = _global_names(text)
        places = [(module, name) for name in sorted(names)]
        places += sorted(_imports(part, package))
        for name in set(_changed(part, imported)) & {*names, "*"}:
            bound[name].append(Statement(text, places))
    return bound


def _is_constant(node: ast.AST) -> bool:
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
    for node in ast.walk(statement):
        if isinstance(node, DEFINITIONS):
            yield node.name
        elif isinstance(node, ast.alias):
            yield _bound_by(node)
        elif isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
            yield from _first_word(node)
        elif isinstance(node, ast.Expr):
            yield from _first_word(node) - imported
    for maker in getattr(statement, "decorator_list", []):
        yield from {re.split(r"\W", ast.unparse(maker))[0]} - imported


def _first_word(node: ast.AST) -> set[str]:
    """Return the first word of a text, unless it is a function that is called."""
    found = re.match(r"(?:setattr\()?(\w+)(?![\w(])", ast.unparse(node))
    return {found[1]} if found else set()


def _global_names(text: str) -> set[str]:
    """Return the names that statements bind in, or look up in, their module."""
    tables = [symtable.symtable(text, "", "exec")]
    for table in tables:
        tables += table.get_children()
    symbols = chain.from_iterable(table.get_symbols() for table in tables)
    return {symbol.get_name() for symbol in symbols if symbol.is_global()}


def _imports(statement: ast.stmt, package: str) -> Iterator[Place]:
    """Yield what a statement imports in a module of a package."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from {(alias.name, ""), (alias.name.partition(".")[0], "")}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            # An import that Python has not carried out may lead nowhere.
            with suppress(ImportError):
                module = importlib.util.resolve_name(module, package)
            for alias in node.names:
                yield from {(module, alias.name), (f"{module}.{alias.name}", "")}


def _bytecodes(owner: type | FunctionType) -> Iterator[str]:
    """Yield the compiled code of a class or a function, and all that it names in turn."""
    values: list[Any] = [owner]
    seen: set[int] = set()
    while values:
        value = values.pop()
        # Of a method or a property this is the function.
        value = getattr(value, "__func__", getattr(value, "fget", value))
        yield json.dumps(value, default=_qualified_name, skipkeys=True)
        is_code = isinstance(value, FunctionType | type) and id(value) not in seen
        if not is_code or not is_users_module(value.__module__ or "builtins"):
            continue
        seen.add(id(value))
        if isinstance(value, type):
            members = {
                name: member
                for name, member in vars(value).items()
                # Python adds names that begin with an underscore.
                if not name.startswith("_") or isinstance(member, METHODS)
            }
            yield str(list(members))
            values += [*value.__bases__, *members.values()]
            continue
        codes = list(codes_inside(value.__code__))
        yield from (_bytecode(code, value.__doc__) for code in codes)
        names = {name for code in codes for name in code.co_names}
        values += [value.__globals__.get(name) for name in sorted(names)]
        for cell in value.__closure__ or ():
            # A name that has no value yet is an empty cell.
            with suppress(ValueError):
                values.append(cell.cell_contents)


def _qualified_name(value: Any) -> str:
    return str(getattr(value, "__qualname__", type(value).__name__))


def _bytecode(code: CodeType, docstring: str | None) -> str:
    constants = [
        # The order of a set of strings changes from process to process.
        sorted(value, key=repr) if isinstance(value, frozenset) else value
        for value in code.co_consts
        if not isinstance(value, CodeType) and (not docstring or value != docstring)
    ]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


def changed_classes(stored: Mapping[str, str], today: Mapping[str, str]) -> list[str]:
    """Return the classes whose code differs from the code that made a result.

    Args:
        stored: the digest of each class that made the result, by name.
        today: the digest of each class of the same run today.
    """
    return sorted({name for name, _ in stored.items() ^ today.items()})


# Old results of other code

# How many runs a message names.
MOST_NAMED = 3
CHOICES = (
    "Choose what becomes of them: stale='rerun' (--stale rerun) runs them again; 'keep' "
    "keeps the results of those that have ended and begins the others anew; 'fail', the "
    "default, changes nothing"
)


def cells_to_forget(
    found: Results,
    cells: Mapping[str, Run],
    known: Manifest,
    digests: CodeDigests,
    stale: Stale,
    chosen: Set[str],
    say: Callable[[str], None],
) -> set[str]:
    """Return the cells whose results or checkpoints may not be used, as code has changed.

    Args:
        found: what the folder holds.
        cells: the cells of the sweep, as runs of one seed each, by id. Others are in no table,
            so that nothing is said of them. There are none if a search algorithm asks for
            them: then those of known runs count.
        known: the runs of the sweep, and those that the folder had before.
        digests: computes the digests of the user's classes.
        stale: what the user has chosen.
        chosen: the cells that the user has chosen. The results of others are kept, and
            named.
        say: takes a message for the user.

    Raises:
        ValueError: the code of chosen cells has changed, and the user has not said what
            becomes of them.
    """
    entry_of = {cell: entry for entry in known.entries for cell in entry.cells}
    ended = {cell: end for cell, end in found.ends.items() if end.status.decided}
    every: dict[str, CellEnd | HowFar] = {**found.going_on.cells, **ended}
    makers = {c: maker for c, maker in every.items() if c in (cells or entry_of)}
    changes = {}
    for cell, maker in makers.items():
        today = maker.code
        # What a search has not ended is compared when it is asked for again.
        if cell in cells or cell in ended:
            today = _todays_code(cells.get(cell), entry_of.get(cell), digests)
        if names := changed_classes(maker.code, today):
            changes[cell] = names
    mine = changes.keys() & (chosen if cells else changes.keys())
    again = mine if stale is Stale.RERUN else mine - ended.keys()
    kept = (changes.keys() & ended.keys()) - again

    def text(some: Set[str]) -> str:
        """Say which classes have changed, and name the first runs that they made."""
        classes = sorted({name for cell in some for name in changes[cell]})
        runs = _runs_of(some, entry_of)
        return (
            f"the code of {', '.join(classes)} has changed since {were(len(runs))} computed: "
            f"{first_of(runs, MOST_NAMED, '; ')}"
        )

    if mine and stale is Stale.FAIL:
        raise ValueError(f"{text(mine)}. {CHOICES}")
    if again:
        say(f"{text(again)}. They are run again from the first round")
    if kept:
        say(f"{text(kept)}. Their results are kept")
    versions = {c: own.raysafl for c, own in makers.items() if c not in changes}
    others = {c: v for c, v in versions.items() if v not in ("", __version__)}
    if others:
        say(
            f"{were(len(_runs_of(others.keys(), entry_of)))} computed with raysafl "
            f"{', '.join(sorted({*others.values()}))}, and this is raysafl {__version__}. "
            "Results are kept; resume=False (--no-resume) runs all again"
        )
    return set(again)


def _todays_code(
    run: Run | None, entry: Entry | None, digests: CodeDigests
) -> dict[str, str]:
    """Return the digests today of a run, or of one that a search asked for before.

    There are none if its configuration names a class that is not defined any more.
    """
    with suppress(ValueError):
        return digests.of_run(run or Run.model_validate(entry and entry.config))
    return {}


def _runs_of(cells: Set[str], entry_of: Mapping[str, Entry]) -> list[str]:
    """Return the names of the runs that have some cells, in the order of the sweep."""
    own = [entry for cell, entry in entry_of.items() if cell in cells]
    return list(dict.fromkeys(run_name(entry.labels, entry.run_id) for entry in own))


# To other processes


def ship_user_code(components: Iterable[Component], pickler: Any = None) -> None:
    """Make a pickler send the user's own classes and functions by value.

    What is sent by value need not exist on a worker of Ray's: a script, an experiment file and
    the modules in its folder. Installed packages (site-packages) are imported there
    instead.

    Which modules are the user's? Take the modules that define the classes of the
    components. Every module in their folders, or below these folders, is the user's.

    Args:
        components: the components of the runs, whose classes may be the user's.
        pickler: the module cloudpickle; None for Ray's copy of it.
    """
    if pickler is None:
        # Imported here, because runs in this process need no Ray.
        import ray.cloudpickle as pickler

    kinds = {type(component) for component in components}
    names = {owner.__module__ for kind in kinds for owner in kind.__mro__}
    # Ray sends the script that runs by value in any case.
    files = {
        name: Path(file).resolve()
        for name, module in list(sys.modules.items())
        if (file := getattr(module, "__file__", None))
        and name.partition(".")[0] not in WITHOUT_A_NAME
        and is_users_module(name)
    }
    folders = {file.parent for name, file in files.items() if name in names}
    for name, file in files.items():
        if any(file.is_relative_to(folder) for folder in folders):
            pickler.register_pickle_by_value(sys.modules[name])
