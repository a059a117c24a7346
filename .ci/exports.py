#!/usr/bin/env python3
"""Write what the package exports: the `__init__.py` of each family, and `raysafl/__init__.pyi`.

A component (an algorithm, a policy, a dataset, ...) is exported because it is defined
in a module of its family. So adding one takes its own file and its test; this script
does the rest:

    python .ci/exports.py           # write the files
    python .ci/exports.py --check   # fail if they are not up to date

`raysafl/__init__.py` imports lazily by the stub, so that a short command does not pay
for all.
"""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FAMILIES = ("algorithms", "data", "models", "objectives", "participation")
# What a family exports besides its components, and what of that is not for `import
# raysafl`.
MORE = {
    "data": {
        "sources": ["data_root"],
        "image_sets": ["EMNIST_LABELS"],
        "own_arrays": ["from_arrays", "from_torch"],
        "own_tables": ["from_csv", "from_pandas"],
        "parquet": ["from_parquet"],
        "server_images": ["STL10_AS_CIFAR10"],
    },
    "models": {"flat": ["FlatModel"], "dropout": ["Dropout"]},
    "objectives": {"classification": ["PLAIN", "has_plain_losses", "is_plain"]},
}
INTERNAL = {"data_root", "FlatModel", "PLAIN", "has_plain_losses", "is_plain"}
# What `import raysafl` offers of the other rooms.
OTHERS = {
    "core.algorithm": [
        *("Algorithm", "CountSamples", "LocalTraining", "MeanUpdate", "Round"),
        *("Setting", "State", "Train", "TrainMean", "Update"),
    ],
    "core.objective": ["ClientStatistic", "Metric", "Objective", "mean_of"],
    "core.participation": ["Cohort", "Participation", "Sampling"],
    "core.problem": ["EVERYONE", "SERVER", "Dataset", "Model", "Samples", "Column"],
    "kept.load": ["load_model"],
    "core.randomness": ["Key"],
    "core.rates": ["CosineRate", "ListedRate", "RateSchedule", "WarmUpRate"],
    "runtime.hardware": ["Hardware"],
    "simulation.patience": ["Patience"],
    "simulation.per_client": ["PerClient"],
    "simulation.run": ["Run"],
    "storage.manifest": ["Claim", "Printed", "Table"],
    "sweep.definition": ["Sweep"],
    "sweep.outcome": ["Outcome"],
    "sweep.runner": ["Runner"],
    "sweep.simulate": ["simulate"],
    "sweep.on_ray.trainable": ["trainable"],
    "version": ["__version__"],
}


def exported(family: str) -> dict[str, list[str]]:
    """Map each module of a family to the names that it exports."""
    from raysafl.core.component import Component

    found = {}
    for path in sorted((ROOT / "raysafl" / family).glob("[!_]*.py")):
        module = importlib.import_module(f"raysafl.{family}.{path.stem}")
        names = [
            name
            for name, value in vars(module).items()
            if inspect.isclass(value)
            and issubclass(value, Component)
            and value.__module__ == module.__name__
            and not name.startswith("_")
        ]
        names += MORE.get(family, {}).get(path.stem, [])
        if names:
            found[path.stem] = sorted(names)
    return found


def listing(modules: dict[str, list[str]], prefix: str) -> str:
    """Write the imports of some names, and the `__all__` that lists them."""
    lines = [
        f"from {prefix}{module} import {', '.join(names)}"
        for module, names in modules.items()
    ]
    names = sorted(name for part in modules.values() for name in part)
    return "\n".join([*lines, "", f"__all__ = {names!r}", ""])


def files() -> dict[Path, str]:
    """Return the content of every generated file."""
    out = {}
    offered = {module: sorted(names) for module, names in OTHERS.items()}
    for family in FAMILIES:
        modules = exported(family)
        init = ROOT / "raysafl" / family / "__init__.py"
        docstring = ast.get_docstring(ast.parse(init.read_text()), clean=False)
        out[init] = f'"""{docstring}"""\n\n' + listing(modules, f"raysafl.{family}.")
        names = sorted(name for part in modules.values() for name in part)
        offered[family] = [name for name in names if name not in INTERNAL]
    out[ROOT / "raysafl" / "__init__.pyi"] = listing(dict(sorted(offered.items())), ".")
    return {path: formatted(text, path) for path, text in out.items()}


def formatted(text: str, path: Path) -> str:
    """Format a file's content as the repository's settings say."""
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--fix", "--quiet", "--select=I,RUF022"], ["format"]):
        done = subprocess.run(
            [*ruff, *command, "--stdin-filename", str(path), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        text = done.stdout
    return text


def main() -> None:
    """Write the files that are not up to date, or name them with --check."""
    stale = {path: text for path, text in files().items() if path.read_text() != text}
    if "--check" in sys.argv:
        if stale:
            names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
            sys.exit(f"{names}: not up to date; run `python .ci/exports.py`")
        return
    for path, text in stale.items():
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
