"""Copy finished sweeps into results/measured: all rows unchanged, in small files.

    python -m experiments.tools.collect_measured SOURCE... [--into DIR] [--copied-from DIR]
        [--partial]

Run it from the repository's root. SOURCE is the folder of a sweep, or a folder of such
folders. Not copied are checkpoints, Tune's files, locks, and runs that are not entries of
the sweep any more. Neither is what `raysafl report` makes again in seconds:
`runs.parquet`, `report.html`, further pages of curves and, below scale `paper`, all
figures. The rows are written as few parts of small files. The manifest gets the command
that anyone can give. `machine.json` says on what kind of machine this script runs,
because floating-point sums may differ in the last digits on another. If some runs of
SOURCE were copied there from an earlier folder of results/measured, `--copied-from`
names it, and `machine.json` names its kind of machine as well. With `--partial` the runs that
have ended are copied also of a sweep in which others have not.
"""

import argparse
import hashlib
import json
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import llvmlite.binding
import numba
import numpy as np
import torch

from experiments.tools.measured import MEASURED, experiment_file
from raysafl.report.write import write_report
from raysafl.storage.manifest import PAPER
from raysafl.storage.rows import encoded, of_cells
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.store import Store, find_sweeps

MAX_FILE_BYTES = 1_000_000
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:tmp|home|root|work|mnt|var|opt|usr|Users)/")


def machine():
    """Return what floating-point results depend on: CPU, compilers and C library."""
    features = llvmlite.binding.get_host_cpu_features().flatten()
    return {
        "cpu": llvmlite.binding.get_host_cpu_name(),
        "torch": torch.__version__.partition("+")[0],
        "numba": numba.__version__,
        "numpy": np.__version__,
        "libc": " ".join(platform.libc_ver()),
        "features": hashlib.sha256(features.encode()).hexdigest()[:8],
    }


def with_plain_command(manifest):
    """Return the manifest with the command that anyone can give."""
    scale = "" if manifest.scale == PAPER else f" --scale {manifest.scale}"
    return manifest.replace(
        command=f"raysafl run {experiment_file(manifest.name)}{scale}"
    )


def copy(source, target, others=()):
    """Copy one sweep. The target folder is emptied first.

    Args:
        source: The store of the sweep.
        target: The store in results/measured.
        others: What `machine.json` says of the machines that runs were copied from.
    """
    manifest = with_plain_command(source.manifest())
    shutil.rmtree(target.path, ignore_errors=True)
    target.create()
    target.write_manifest(manifest)
    cells = [cell for entry in manifest.entries for cell in entry.cells]
    found = source.results(cells, unended=False)
    copy_cells(found, target, [cell for cell in cells if cell in found.ends])
    again = target.results(cells, unended=False)
    for table, other in ((found.rows, again.rows), (found.clients, again.clients)):
        keys = [(name, "ascending") for name in table.column_names[:3]]
        assert table.sort_by(keys).equals(other.sort_by(keys))
    machines = machine() | ({"copied from": list(others)} if others else {})
    (target.path / "machine.json").write_text(json.dumps(machines, indent=1) + "\n")
    write_runs_table(target)
    write_report(target)
    for file in made_again(target, manifest):
        file.unlink()


def copy_cells(found, target, cells):
    """Write cells as parts, in halves where their rows are more than a file may have."""
    rows = of_cells(found.rows, cells)
    if len(cells) > 1 and len(encoded(rows)) > MAX_FILE_BYTES:
        half = len(cells) // 2
        copy_cells(found, target, cells[:half])
        copy_cells(found, target, cells[half:])
    else:
        ends = [found.ends[cell] for cell in cells]
        target.take(ends, rows, of_cells(found.clients, cells))


def made_again(target, manifest) -> Iterator[Path]:
    """Yield the files of a sweep that `raysafl report` can make again."""
    yield target.path / "runs.parquet"
    yield target.path / "report.html"
    yield from target.path.glob("*.png" if manifest.scale != PAPER else "curves-*.png")


def check(folder):
    """Raise ValueError if a file is too large or names a path of this machine."""
    for file in folder.rglob("*"):
        if file.is_file() and file.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"{file} has more than {MAX_FILE_BYTES:,} bytes")
        if file.suffix in (".json", ".md") and (
            found := MACHINE_PATH.search(file.read_text())
        ):
            raise ValueError(f"{file} names a path of this machine: {found.group()}")


def main():
    """Copy the sweeps that the command line names."""
    parser = argparse.ArgumentParser(
        description="Copy finished sweeps into results/measured"
    )
    parser.add_argument("source", type=Path, nargs="+")
    parser.add_argument("--into", type=Path, default=MEASURED)
    parser.add_argument("--copied-from", type=Path, nargs="*", default=[])
    parser.add_argument("--partial", action="store_true")
    options = parser.parse_args()
    others = [
        json.loads((path / "machine.json").read_text()) for path in options.copied_from
    ]
    for source in (store for path in options.source for store in find_sweeps(path)):
        manifest = source.manifest()
        ledger = source.ledger()
        missing = [e for e in manifest.entries if not set(e.cells) <= ledger.keys()]
        if missing:
            print(
                f"{manifest.name}: {len(missing)} of {len(manifest.entries)} runs "
                "have not ended"
            )
            if not options.partial or not ledger:
                continue
        suffix = "" if manifest.scale == PAPER else f"-{manifest.scale}"
        target = Store(options.into / f"{manifest.name}{suffix}")
        copy(source, target, others)
        check(target.path)
        size = sum(
            file.stat().st_size for file in target.path.rglob("*") if file.is_file()
        )
        ended = len(manifest.entries) - len(missing)
        print(f"{target.path.name}: {ended} runs, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
