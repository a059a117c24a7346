"""Digests of the user's code: which edits change them, and which do not."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import checked_output

from raysafl import FedAvg, Run
from raysafl.quickstart import BASE
from raysafl.sweep.code import CodeDigests
from raysafl.sweep.experiment_file import load_sweep

# The helper's module has a name of its own, so that no other test imports it.
HELPER = '''
STEP = 0.5


def half(x):
    """Half of it."""
    return x * STEP


def unrelated(x):
    return x
'''
EXPERIMENT = '''
from dataclasses import replace

import digest_helper
from raysafl import *
from raysafl.quickstart import BASE

RATE = 0.25
TABLE = {"a": 1.0}
TABLE["b"] = 2.0


def scaled(x):
    return RATE * x  # a comment


def unrelated(x):
    return x + 1


class Base(Algorithm):
    abstract = True

    def factor(self):
        return TABLE["b"]


class Mine(Base):
    """An algorithm."""

    lr: float = 1.0

    def round(self, state, ids, key):
        """One round."""
        update = yield Train(state.w_P, ids)
        step = digest_helper.half(scaled(update.delta_MP.mean(0)))
        return replace(state, w_P=state.w_P - self.lr * self.factor() * step)


class Other(Algorithm):
    def round(self, state, ids, key):
        update = yield Train(state.w_P, ids)
        return replace(state, w_P=state.w_P - update.delta_MP.mean(0))


GRID = [0.1, 0.2]
SWEEP = Sweep("s", {(lr,): BASE.replace(algorithm=Mine(lr=lr)) for lr in GRID}, ["lr"])
'''


@pytest.fixture(autouse=True)
def _forget_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each digest is of a module as it was just written, as in a process of its own."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    for name in list(sys.modules):
        if name.startswith(("digest_", "raysafl_experiment_digest_")):
            del sys.modules[name]


def digest(folder: Path, experiment: str = EXPERIMENT, helper: str = HELPER) -> str:
    """The digest of `Mine` in an experiment file that imports a helper beside it."""
    sys.modules.pop("digest_helper", None)
    (folder / "digest_helper.py").write_text(helper)
    (folder / "digest_file.py").write_text(experiment)
    run = next(iter(load_sweep(folder / "digest_file.py").labelled().values()))
    (found,) = CodeDigests().of_run(run).items()
    assert found[0] == "Mine"
    return found[1]


def edited(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("state.w_P - self.lr *", "state.w_P + self.lr *"),
        ("RATE * x", "RATE + x"),
        ("RATE = 0.25", "RATE = 0.5"),
        ('return TABLE["b"]', 'return TABLE["a"]'),
        ('TABLE["b"] = 2.0', 'TABLE["b"] = 3.0'),
        ('TABLE["b"] = 2.0', 'TABLE["b"] = 2.0\nTABLE.update(b=3.0)'),
        ("class Other", "Mine.factor = lambda self: 1.0\n\n\nclass Other"),
        ("RATE = 0.25", "RATE = 0.25\nif RATE:\n    RATE = 0.5"),
        ("import digest_helper\n", "import math as digest_helper\n"),
        ("from dataclasses import replace", "from copy import copy as replace"),
    ],
)
def test_what_the_class_does_changes_its_digest(
    old: str, new: str, tmp_path: Path
) -> None:
    before = digest(tmp_path)
    assert digest(tmp_path, edited(EXPERIMENT, old, new)) != before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# a comment", "# another comment"),
        ('"""An algorithm."""', '"""A better\n    description."""'),
        ('        """One round."""\n', ""),
        ("return RATE * x", "return (\n        RATE\n        * x\n    )"),
        ('TABLE = {"a": 1.0}', "TABLE = {\n    'a': 1.00,\n}"),
        ("GRID = [0.1, 0.2]", "GRID = [0.1, 0.3, 0.4]"),
        ('Sweep("s"', 'Sweep("another"'),
        ("return x + 1", "return x + 2"),
        ("w_P - update.delta", "w_P + update.delta"),
        ("class Other", "class More(Algorithm):\n    pass\n\n\nclass Other"),
        (
            "from raysafl import *",
            "from raysafl import *\nfrom copy import copy, deepcopy",
        ),
        ("from raysafl import *", "import torch\nfrom raysafl import *"),
    ],
)
def test_what_the_class_does_not_do_leaves_its_digest(
    old: str, new: str, tmp_path: Path
) -> None:
    before = digest(tmp_path)
    assert digest(tmp_path, edited(EXPERIMENT, old, new)) == before


@pytest.mark.parametrize(
    ("imported", "called"),
    [
        ("from digest_helper import half", "half"),
        ("from digest_helper import half as h", "h"),
        ("from digest_helper import *", "half"),
        ("import digest_helper", "digest_helper.half"),
        ("import digest_helper as d", "d.half"),
        ("if True:\n    import digest_helper as d", "d.half"),
    ],
)
def test_every_form_of_import_is_followed(
    imported: str, called: str, tmp_path: Path
) -> None:
    text = edited(EXPERIMENT, "import digest_helper\n", f"{imported}\n")
    text = edited(text, "digest_helper.half", called)
    before = digest(tmp_path, text)
    for old, new in (("x * STEP", "x / STEP"), ("STEP = 0.5", "STEP = 0.7")):
        assert digest(tmp_path, text, edited(HELPER, old, new)) != before
    assert digest(tmp_path, text, edited(HELPER, "Half of", "0.5 of")) == before
    is_whole = "import digest_helper" in imported
    other = edited(HELPER, "return x\n", "return -x\n")
    assert (digest(tmp_path, text, other) != before) == is_whole


def test_modules_of_a_package_are_followed(tmp_path: Path) -> None:
    (tmp_path / "digest_package").mkdir()
    (tmp_path / "digest_package" / "__init__.py").write_text(
        "from .steps import half\n"
    )
    steps = tmp_path / "digest_package" / "steps.py"
    text = edited(EXPERIMENT, "import digest_helper\n", "import digest_package\n")
    text = edited(text, "digest_helper.half", "digest_package.half")
    steps.write_text(HELPER)
    before = digest(tmp_path, text)
    for name in ("digest_package", "digest_package.steps"):
        del sys.modules[name]
    steps.write_text(edited(HELPER, "x * STEP", "x / STEP"))
    assert digest(tmp_path, text) != before


REGISTRY = """
STEPS = {}


def register(step):
    STEPS[step.__name__] = step
    return step


@register
def scaled(x):
    return 0.25 * x


SWEEP = """


def test_a_function_in_a_table_that_a_decorator_fills_is_followed(
    tmp_path: Path,
) -> None:
    text = edited(EXPERIMENT, "half(scaled(", 'half(STEPS["scaled"](')
    text = edited(text, "def scaled", "def plain")
    text = edited(text, "\nSWEEP = ", REGISTRY)
    before = digest(tmp_path, text)
    assert digest(tmp_path, edited(text, "0.25 * x", "0.25 + x")) != before
    assert digest(tmp_path, edited(text, "x + 1", "x + 2")) == before


def test_every_process_finds_the_same_digest(tmp_path: Path) -> None:
    before = digest(tmp_path)
    script = f"""
from pathlib import Path
from raysafl.sweep.code import CodeDigests
from raysafl.sweep.experiment_file import load_sweep
run = next(iter(load_sweep(Path({str(tmp_path / "digest_file.py")!r})).labelled().values()))
print(CodeDigests().of_run(run)["Mine"])
"""
    assert checked_output([sys.executable, "-c", script]).split() == [before]


def test_runs_of_raysafls_own_components_have_no_digests(tiny: Run) -> None:
    assert CodeDigests().of_run(tiny) == {}


MADE = """
from raysafl import Algorithm, FedAvg
RATE = {rate}
def step(x):
    # {note}
    return {step}
class Made(Algorithm):
    '{note}'
    def round(self, state, ids, key):
        step(1.0) in {{"a", "b", "c"}}
        return (yield from FedAvg().round(state, ids, key))
"""


def made_by_exec(
    step: str = "x * RATE",
    rate: float = 0.5,
    note: str = "one",
    module: str = "__main__",
) -> type:
    """A class without a source, as a notebook's is."""
    names: dict[str, Any] = {"__name__": module}
    exec(MADE.format(step=step, rate=rate, note=note), names)
    found: type = names["Made"]
    return found


def test_a_class_without_a_source_is_covered_by_its_compiled_code() -> None:
    of: Callable[[type], str] = CodeDigests().of
    before = of(made_by_exec())
    assert of(made_by_exec(note="two")) == before
    assert of(made_by_exec(step="x + RATE")) != before
    assert of(made_by_exec(rate=0.7)) != before


def test_a_class_that_a_function_makes_is_covered_by_the_function(
    tmp_path: Path,
) -> None:
    text = edited(EXPERIMENT, "class Mine(Base):", "def made():\n  class Mine(Base):")
    begin, end = text.index("def made"), text.index("class Other")
    body = text[begin:end].replace("\n", "\n    ").rstrip()
    text = f"{text[:begin]}{body}\n    return Mine\n\n\nMine = made()\n\n\n{text[end:]}"
    text = text.replace("  class Mine", "class Mine")
    before = digest(tmp_path, text)
    assert digest(tmp_path, edited(text, "RATE * x", "RATE + x")) != before
    assert digest(tmp_path, edited(text, "x + 1", "x + 2")) == before


def make(config: dict[str, float]) -> Run:
    """Makes a run of a class that nobody knows before."""

    class InMake(FedAvg):
        """It is defined in a function."""

    return BASE.replace(algorithm=InMake())


def test_a_class_that_make_makes_is_covered_by_make() -> None:
    (found,) = CodeDigests().of_run(make({})).values()
    assert found == CodeDigests().of(make)
