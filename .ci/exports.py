#!/usr/bin/env python3
"""Write what the package exports: the `__init__.py` of each namespace, and `raysafl/__init__.pyi`.

A component (an algorithm, a policy, a dataset, ...) is exported because it is defined
in a module of its namespace. So adding one takes its own file and its test; this script
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
# What each namespace exports besides the components that its modules define: of its own
# modules, and of the core.
MORE = {
    "algorithms": {
        "core.algorithm": [
            *("Algorithm", "CountSamples", "MeanUpdate", "Round", "Setting", "State"),
            *("Train", "TrainMean", "Update"),
        ],
        "core.problem": ["EVERYONE", "SERVER"],
        "core.randomness": ["Key"],
    },
    "data": {
        "core.problem": ["Column", "Dataset", "Samples"],
        "data.image_sets": ["EMNIST_LABELS"],
        "data.other_dataset": ["STL10_AS_CIFAR10"],
        "data.own_arrays": ["from_arrays", "from_torch"],
        "data.own_tables": ["from_csv", "from_pandas"],
        "data.parquet": ["from_parquet"],
        "data.sources": ["data_root"],
    },
    "models": {
        "core.problem": ["Model"],
        "models.layers": ["Dropout"],
        "models.flat": ["FlatModel"],
    },
    "objectives": {
        "core.objective": ["ClientStatistic", "Metric", "Objective", "mean_of"],
        "objectives.classification": ["PLAIN", "has_plain_losses", "is_plain"],
    },
    "participation": {
        "core.participation": ["Cohort", "Participation"],
        "participation.varying": ["diurnal", "rates_by_labels"],
    },
    "training": {
        "core.algorithm": ["ContinuedTraining", "LocalTraining"],
        "core.rates": [
            *("CosineRate", "ListedRate", "RateSchedule", "StepRate", "WarmUpRate"),
        ],
    },
}
# What stands at the top, `raysafl.Run`: what a first sweep, the reading of its results,
# and classes of one's own need.
TOP = {
    "algorithms": ["FSL", "SAFARI", "FedAvg"],
    "cluster.hardware": ["Hardware"],
    "core.algorithm": ["Algorithm", "LocalTraining", "Train", "TrainMean"],
    "core.objective": ["Objective"],
    "core.participation": ["Cohort", "Participation"],
    "core.problem": ["Model"],
    "data": [
        *("ByColumn", "ClassesPerClient", "Digits", "Dirichlet", "Federation", "Iid"),
        *("IidServer", "Validation", "from_arrays", "from_csv", "from_pandas"),
        *("from_parquet", "from_torch"),
    ],
    "kept.load": ["load_model"],
    "models": ["CNN", "MLP", "Logistic"],
    "participation": ["Absent", "Snapshot", "Uniform"],
    "simulation.devices": ["Devices"],
    "simulation.per_client": ["PerClient"],
    "simulation.run": ["Patience", "Run"],
    "storage.manifest": ["Table"],
    "report.results": ["load"],
    "sweep.definition": ["Sweep"],
    "sweep.grid": ["grid"],
    "sweep.runner": ["Runner"],
    "sweep.simulate": ["simulate", "trainable"],
    "version": ["__version__"],
}


def exported(namespace: str) -> dict[str, list[str]]:
    """Map each module, as `data.sources`, to the names that a namespace exports of it."""
    from raysafl.core.component import Component

    found = {module: list(names) for module, names in MORE[namespace].items()}
    for path in sorted((ROOT / "raysafl" / namespace).glob("[!_]*.py")):
        module = importlib.import_module(f"raysafl.{namespace}.{path.stem}")
        names = [
            name
            for name, value in vars(module).items()
            if inspect.isclass(value)
            and issubclass(value, Component)
            and value.__module__ == module.__name__
            and not name.startswith("_")
        ]
        if names:
            found.setdefault(f"{namespace}.{path.stem}", []).extend(names)
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
    for namespace in MORE:
        init = ROOT / "raysafl" / namespace / "__init__.py"
        docstring = ast.get_docstring(ast.parse(init.read_text()), clean=False)
        names = listing(exported(namespace), "raysafl.")
        tells = "from raysafl.core.component import tell_missing_names"
        end = "tell_missing_names(__name__)"
        out[init] = f'"""{docstring}"""\n\n{tells}\n{names}{end}\n'
    out[ROOT / "raysafl" / "__init__.pyi"] = listing({"": list(MORE), **TOP}, ".")
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
