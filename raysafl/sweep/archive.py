"""An archive of a sweep: all that is needed to read its results, and to compute some again."""

import hashlib
import io
import json
import os
import platform
import random
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raysafl.core.problem import FederatedData
from raysafl.core.text import count
from raysafl.simulation.run import Run
from raysafl.storage.files import atomic_write
from raysafl.storage.integrity import row_hashes
from raysafl.storage.journal import PLACES
from raysafl.storage.ledger import LedgerEntry, Status
from raysafl.storage.manifest import run_name
from raysafl.storage.paths import Location
from raysafl.storage.rows import of_runs, sorted_rows
from raysafl.storage.store import FILES, Store
from raysafl.sweep.definition import Sweep
from raysafl.sweep.experiment_file import load_sweep, outermost_package
from raysafl.sweep.runner import Runner
from raysafl.tracking.choice import Tracking

RESULTS = "results"
SOURCE = "source"
SUMS = "SHA256SUMS"
CHECKLIST = "checklist.md"
DIGESTS = "data.json"
EXPERIMENT = "experiment.txt"
# Every file of an archive has the earliest time that a ZIP file can hold, so that equal
# results make equal archives.
EPOCH = (1980, 1, 1, 0, 0, 0)


def write_checklist(store: Store, digests: Mapping[str, str] | None = None) -> Location:
    """Write the reproducibility checklist of a sweep, `checklist.md`, into its folder.

    Args:
        store: the folder of the sweep, with `runs.parquet`.
        digests: the SHA-256 of each dataset; None computes them.
    """
    # Imported here, because they import pandas.
    from raysafl.report.analysis.numbers import Numbers
    from raysafl.report.pages.checklist import checklist_document
    from raysafl.report.pages.markdown import markdown

    ledger = _listed(store)
    digests = _digests_of_data(ledger) if digests is None else digests
    numbers = Numbers.of(store.runs(), store.manifest())
    document = checklist_document(numbers, ledger, digests)
    atomic_write(file := store.path / CHECKLIST, markdown(document).encode())
    return file


def write_archive(store: Store, file: Location, experiment: Path | None = None) -> str:
    """Write a ZIP file with a sweep's results and what it takes to compute them again.

    It holds the results (`results/`), the experiment file with the modules of its folder
    that it imports (`source/`), the checklist, the digests of the data, the versions of
    all packages that are installed here, the command, and the SHA-256 of each file.

    Args:
        store: the folder of the sweep, with `runs.parquet`.
        file: the archive.
        experiment: the experiment file; needed where runs have classes of the user's own.

    Returns:
        What was written, as text.

    Raises:
        ValueError: the folder holds no sweep, or classes of the user's own that the
            experiment file does not define; or the archive is there already.
    """
    if file.is_file():
        raise ValueError(f"{file} is there already; name another file with --to")
    manifest = store.manifest()
    sources = _sources(experiment) if experiment else {}
    ledger = _listed(store)
    for run_id in _finished(ledger):
        _run_of(run_id, ledger[run_id])
    digests = _digests_of_data(ledger)
    content = {name: path.read_bytes() for name, path in sources.items()}
    if experiment:
        content[EXPERIMENT] = next(iter(sources)).encode()
    content |= {
        CHECKLIST: write_checklist(store, digests).read_bytes(),
        "command.txt": f"{manifest.command}\n".encode(),
        DIGESTS: json.dumps(digests, indent=1).encode(),
        "requirements.txt": _requirements().encode(),
    }
    for path in _stored_files(store):
        name = path.relative_to(store.path).as_posix()
        content[f"{RESULTS}/{name}"] = path.read_bytes()
    content[SUMS] = "".join(
        f"{hashlib.sha256(own).hexdigest()}  {name}\n" for name, own in content.items()
    ).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, own in sorted(content.items()):
            archive.writestr(zipfile.ZipInfo(name, EPOCH), own, zipfile.ZIP_DEFLATED)
    atomic_write(file, packed.getvalue())
    return f"{count(len(ledger), 'run')}, {count(len(content), 'file')}"


@dataclass(frozen=True)
class Repeated:
    """What came out when runs of an archive were computed again.

    Args:
        texts: a sentence for each run, and one for data that differ.
        equal: whether all rows are equal, bit by bit.
    """

    texts: list[str]
    equal: bool


def check_archive(file: Path, number: int, **options: Any) -> Repeated:
    """Compute some runs of an archive again, chosen at random, and compare their rows.

    The archive's experiment file is executed, as `raysafl run` would do.

    Args:
        file: the archive.
        number: how many runs.
        options: those of `Runner` that say how runs are carried out, such as `executor`.

    Raises:
        ValueError: the file is no archive of a sweep, or was changed; or it holds no
            finished run.
    """
    with tempfile.TemporaryDirectory(prefix="raysafl-") as name:
        folder = Path(name)
        names = _unpack(file, folder)
        if EXPERIMENT in names:
            experiment = (folder / EXPERIMENT).read_text()
            if experiment not in names:
                raise ValueError(f"{file} holds no file {experiment}")
            load_sweep(folder / experiment)
        store = Store(folder / RESULTS)
        ledger = _listed(store)
        finished = _finished(ledger)
        if not finished:
            raise ValueError(f"{file} holds no finished run")
        # Which are chosen is nobody's to know beforehand.
        chosen = random.SystemRandom().sample(finished, min(number, len(finished)))
        told = _differing_data(folder, {i: ledger[i] for i in chosen})
        sweep = Sweep("again", runs=[_run_of(i, ledger[i]) for i in chosen])
        again = Store(folder / "again")
        Runner(
            sweep,
            again.path,
            track=Tracking.NONE,
            try_first=False,
            quiet=True,
            **options,
        ).run()
        labels = store.manifest().labels()
        are_equal = True
        for run_id in chosen:
            found = _unlike_columns(
                _rows_without_times(store, run_id), _rows_without_times(again, run_id)
            )
            name = run_name(labels.get(run_id, {}), run_id)
            told.append(f"{name}: {found or 'equal, bit by bit'}")
            are_equal &= not found
    return Repeated(told, are_equal)


def _listed(store: Store) -> dict[str, LedgerEntry]:
    """Return how the runs of the sweep ended, without those that it no longer has."""
    labels = store.manifest().labels()
    return {i: e for i, e in store.read().ledger.items() if i in labels}


def _finished(ledger: Mapping[str, LedgerEntry]) -> list[str]:
    return [i for i, entry in ledger.items() if entry.status is Status.FINISHED]


def _rows_without_times(store: Store, run_id: str) -> pa.Table:
    """Return the rows of a run in their order, without the time that they took."""
    rows = of_runs(store.read({run_id}).rows, {run_id})
    return sorted_rows(rows).drop_columns("seconds")


def _unlike_columns(before: pa.Table, again: pa.Table) -> str:
    """Say in which columns rows differ, and by how much at most; empty if in none."""
    if len(before) != len(again):
        return f"{len(before)} rows before and {len(again)} again"
    told = sorted({*before.column_names} ^ {*again.column_names})
    for name in filter(again.column_names.__contains__, before.column_names):
        one = before.select([name])
        other = again.select([name])
        if np.array_equal(row_hashes(one), row_hashes(other)):
            continue
        text = name
        if pa.types.is_floating(one.schema.types[0]):
            with np.errstate(invalid="ignore"):
                apart = np.abs(one[name].to_numpy() - other[name].to_numpy())
            # Where one of the two is no number, nothing is known of how far.
            most = np.nanmax(apart, initial=0.0)
            text += f" by up to {most:.2g}" if most else ""
        told.append(text)
    return f"other {', '.join(told)}" if told else ""


def _run_of(run_id: str, entry: LedgerEntry) -> Run:
    """Build a run from the ledger.

    Raises:
        ValueError: it names a class that is not defined.
    """
    try:
        return Run.model_validate(entry.config)
    except ValueError as error:
        raise ValueError(
            f"run {run_id} cannot be built from what is stored ({error}); if it has classes "
            "of your own, name the experiment file that defines them with --file"
        ) from error


def _digests_of_data(ledger: Mapping[str, LedgerEntry]) -> dict[str, str]:
    """Return the SHA-256 of each dataset, or why it is not known, by the dataset's JSON."""
    found: dict[str, str] = {}
    # A run that could not be built has no configuration.
    for config in filter(None, (own.config.get("data") for own in ledger.values())):
        key = json.dumps(config)
        try:
            # The rest of the run may have classes that are not defined here.
            data = FederatedData.model_validate(config)
            key = data.source_key
            if key not in found:
                found[key] = data.load().sha256()
        # The user's own source may raise anything.
        except (Exception, SystemExit) as error:
            found[key] = f"not known, as it cannot be loaded here: {error}"
    return found


def _differing_data(folder: Path, ledger: Mapping[str, LedgerEntry]) -> list[str]:
    """Say of which datasets other samples are found here than when the archive was made."""
    before = json.loads((folder / DIGESTS).read_text())
    return [
        f"the data {name} are others: SHA-256 {now}, in the archive {before.get(name)}"
        for name, now in _digests_of_data(ledger).items()
        if now != before.get(name)
    ]


def _stored_files(store: Store) -> list[Any]:
    """Return the files of ended runs, and those that are made of them."""
    places = [f"{name}/*{end}" for name, (end, _) in PLACES.items() if name != "open"]
    return [path for p in (*FILES, *places) for path in sorted(store.path.glob(p))]


def _sources(experiment: Path) -> dict[str, Path]:
    """Return the experiment file and its own modules, by their names in an archive."""
    load_sweep(experiment)
    file = experiment.resolve()
    package = outermost_package(file)
    root = package.parent if package else file.parent

    # Asked of each folder once: thousands of modules lie in hundreds of them.
    @cache
    def is_own(folder: str) -> bool:
        path = Path(folder).resolve()
        inside = path.is_relative_to(package or root)
        return inside and "site-packages" not in path.parts

    loaded = [getattr(module, "__file__", None) for module in [*sys.modules.values()]]
    # Some modules made up their file.
    files = {name for name in loaded if name and os.path.isabs(name)}
    own = {Path(name).resolve() for name in files if is_own(os.path.dirname(name))}
    inside = sorted(path for path in own - {file} if is_own(str(path.parent)))
    return {f"{SOURCE}/{path.relative_to(root)}": path for path in [file, *inside]}


def _requirements() -> str:
    """Name the versions of Python and of all installed packages, as pip reads them."""
    # Each of them reads a file when it is asked for its metadata.
    every = [distribution.metadata for distribution in distributions()]
    found = {f"{own['Name']}=={own['Version']}" for own in every}
    return "\n".join([f"# Python {platform.python_version()}", *sorted(found), ""])


def _unpack(file: Path, folder: Path) -> set[str]:
    """Unpack an archive, compare the SHA-256 of its files, and return their names.

    Raises:
        ValueError: it is no archive of a sweep, or was changed.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            archive.extractall(folder)
        lines = (folder / SUMS).read_text().splitlines()
    # What is damaged makes zipfile and its decompressors raise errors of many kinds.
    except Exception as error:
        raise ValueError(
            f"{file} is no archive of a sweep, which --check needs and `raysafl archive FOLDER` "
            f"writes: {error}. To see what an experiment file would run, give --dry-run instead of "
            "--check"
        ) from error
    sums = {
        name: digest for digest, _, name in (line.partition("  ") for line in lines)
    }
    # A name that leads out of the folder is another one when it is unpacked.
    there = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    needed = {DIGESTS, f"{RESULTS}/manifest.json"}
    for name in sorted(needed | there ^ {SUMS, *sums}):
        if name not in there or name not in sums:
            raise ValueError(
                f"{file} was changed: {name} is not in it, or not in {SUMS}"
            )
    for name, digest in sums.items():
        with (folder / name).open("rb") as own:
            if hashlib.file_digest(own, "sha256").hexdigest() != digest:
                raise ValueError(f"{file} was changed: {name} is not what {SUMS} says")
    return there
