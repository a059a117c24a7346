"""`raysafl verify`: what is wrong in a sweep's folder, and forgetting what is damaged."""

import hashlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from raysafl.storage.bundle import Bundle
from raysafl.storage.checked import Checked, read_checked
from raysafl.storage.integrity import RowSum, difference, row_sums
from raysafl.storage.ledger import Status, entry_or_fault
from raysafl.storage.paths import Location
from raysafl.storage.rows import (
    of_runs,
    read_files,
    read_parts,
    run_of,
    without_runs,
)
from raysafl.storage.runs_table import make_runs_table
from raysafl.storage.store import PACK_BUNDLE, Store

# Reads a checkpoint: the number of the next round, and what the session has stored.
ReadCheckpoint = Callable[[bytes], tuple[int, Mapping[str, Any]]]
AGAIN = "`raysafl run` computes it again"
TIDY = "`raysafl compact` deletes them there"
# Patterns of the files that raysafl writes into the folders of results.
OURS = {
    "rounds": rf"(rounds|{PACK_BUNDLE}|[\w-]+-[0-9]+)\.parquet",
    "ledger": rf"(ledger|{PACK_BUNDLE})\.jsonl|[\w-]+\.json",
    "clients": r"[\w-]+\.parquet",
    "checkpoints": r"[\w-]+\.safetensors",
    "models": r"[\w-]+\.safetensors",
}


@dataclass(frozen=True)
class Finding:
    """Something in a sweep's folder that is wrong.

    Args:
        where: the file in the folder, or the run by its labels.
        what: what is wrong with it.
        advice: what to do.
        run_id: the run whose results `repair` forgets, if any.
        file: the file that `repair` deletes, if any.
    """

    where: str
    what: str
    advice: str
    run_id: str = ""
    file: Location | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.advice}"


def verify(store: Store, read_checkpoint: ReadCheckpoint) -> list[Finding]:
    """Check everything in a sweep's folder, and return what is wrong.

    While a sweep runs there, runs that begin may be taken for runs that are not in the
    manifest.

    Args:
        store: the folder of the sweep.
        read_checkpoint: reads a checkpoint; it raises ValueError if that is damaged.
    """
    with warnings.catch_warnings():
        # What the readers warn of is among the findings.
        warnings.simplefilter("ignore")
        return list(_Verification(store, read_checkpoint).findings())


def repair(store: Store, findings: Iterable[Finding]) -> list[Finding]:
    """Forget what is damaged, so that the next `raysafl run` computes it again.

    Rows of bundles that cannot be read are not deleted, but kept in `damaged/`.

    Returns:
        The findings that were repaired. For others the user must decide what to do.

    Raises:
        SweepBusyError: another process writes into the folder.
    """
    repaired = [f for f in findings if f.run_id or f.file is not None]
    with store.lock():
        store.forget({finding.run_id for finding in repaired if finding.run_id})
        files = {finding.file for finding in repaired if finding.file is not None}
        for bundle in store.bundles():
            if bundle.ledger_file in files:
                bundle.remove_damaged_lines()
            if bundle.rows_file in files and not _is_readable(bundle):
                bundle.set_aside()
            files -= {bundle.ledger_file, bundle.rows_file}
        for file in files:
            file.unlink(missing_ok=True)
        store.tidy()
    return repaired


def _is_readable(bundle: Bundle) -> bool:
    """Return whether the rows of a bundle can be read."""
    try:
        bundle.rows()
    except ValueError:
        return False
    return True


class _Verification:
    """The checks of one folder."""

    def __init__(self, store: Store, read_checkpoint: ReadCheckpoint) -> None:
        self.store = store
        self.read_checkpoint = read_checkpoint
        self.manifest_fault = ""
        self.labels: dict[str, dict[str, Any]] = {}
        try:
            self.labels = store.manifest().labels()
        except ValueError as error:
            self.manifest_fault = str(error)
        self.checked: Checked = read_checked(store)

    def findings(self) -> Iterator[Finding]:
        """Yield everything that is wrong, each once."""
        yield from self._manifest()
        yield from self._strange_files()
        yield from self._ledger()
        yield from self._parts()
        yield from self._bundles()
        yield from self._ended_runs()
        yield from self._client_tables()
        yield from self._models()
        yield from self._other_runs()
        if not self.manifest_fault:
            yield from self._orphans()
            yield from self._runs_table()

    def _name(self, run_id: str) -> str:
        """Return a run's labels, or its id if it has none."""
        labels = self.labels.get(run_id, {})
        return ", ".join(f"{k}={v}" for k, v in labels.items()) or f"run {run_id}"

    def _is_whole(self, run_id: str) -> bool:
        """Whether a run has ended and has all the rows that it wrote."""
        entry = self.checked.ledger.get(run_id)
        return entry is not None and entry.status.decided

    def _of_run(self, run_id: str, what: str) -> Finding:
        return Finding(self._name(run_id), what, AGAIN, run_id)

    def _manifest(self) -> Iterator[Finding]:
        file = self.store.file("manifest.json")
        if self.manifest_fault:
            advice = "`raysafl run` writes it anew"
            there = file if file.is_file() else None
            yield Finding(file.name, self.manifest_fault, advice, file=there)

    def _strange_files(self) -> Iterator[Finding]:
        """Name files that raysafl has not written; others may read them as results."""
        for folder, ours in OURS.items():
            files: list[Location] = sorted(self.store.path.glob(f"{folder}/*"), key=str)
            for file in files:
                if not file.name.startswith(".") and not re.fullmatch(ours, file.name):
                    what = "it is no file of raysafl's"
                    yield Finding(f"{folder}/{file.name}", what, "move it elsewhere")

    def _ledger(self) -> Iterator[Finding]:
        for file, content in read_files(self.store.ledger_files()):
            if isinstance(why := entry_or_fault(content), str):
                what = f"the entry of {self._name(file.stem)} cannot be read ({why})"
                yield Finding(f"ledger/{file.name}", what, AGAIN, file=file)
        for bundle in self.store.bundles():
            for number, why in bundle.damaged_lines().items():
                yield Finding(
                    f"ledger/{bundle.ledger_file.name}, line {number}",
                    f"it cannot be read ({why})",
                    "`raysafl run` computes the run of this line again",
                    file=bundle.ledger_file,
                )

    def _parts(self) -> Iterator[Finding]:
        _, damaged = read_parts(self.store.parts())
        for part, why in damaged.items():
            run_id = run_of(part)
            what = f"the rows of {self._name(run_id)} in it cannot be read ({why})"
            name = f"rounds/{part.name}"
            if self._is_whole(run_id):
                yield Finding(name, what, "the run is whole without it", file=part)
            else:
                yield Finding(name, what, AGAIN, run_id)

    def _bundles(self) -> Iterator[Finding]:
        """Name rows and entries that `Store` reads nowhere, but other programs do."""
        ended: set[str] = set()
        has_rows: set[str] = set()
        for bundle in self.store.bundles():
            own = bundle.ended() - ended
            ended |= own
            name = f"rounds/{bundle.rows_file.name}"
            try:
                there = set(bundle.rows()["run_id"].unique().to_pylist())
            except ValueError as error:
                advice = "`raysafl run` computes its runs again"
                yield Finding(name, str(error), advice, file=bundle.rows_file)
                continue
            # Rows without an entry may belong to a damaged line, which is named.
            strange = there & ended - own if bundle.damaged_lines() else there - own
            if strange:
                yield self._superfluous(bundle.rows_file, len(strange))
            has_rows |= there & own
        for file in self.store.unfinished_bundles():
            what = "it has no ledger, as its writer was killed"
            advice = "`raysafl run` deletes it"
            yield Finding(f"rounds/{file.name}", what, advice, file=file)
        for file in [*self.store.parts(has_rows), *self.store.ledger_files(ended)]:
            yield self._superfluous(file, 1)

    def _superfluous(self, file: Location, count: int) -> Finding:
        what = (
            f"it has results of {count} runs that count elsewhere or nowhere, but other "
            "programs read them"
        )
        return Finding(f"{file.parent.name}/{file.name}", what, TIDY, file=file)

    def _ended_runs(self) -> Iterator[Finding]:
        for run_id, why in self.checked.faults.items():
            yield self._of_run(run_id, f"it is damaged: {why}")

    def _models(self) -> Iterator[Finding]:
        """Find files of models that are missing, damaged or of no run that ended."""
        for run_id, entry in self.checked.ledger.items():
            if not entry.kept or run_id in self.checked.faults:
                continue
            name = f"models/{run_id}.safetensors"
            try:
                content = self.store.model(run_id).read_bytes()
            except FileNotFoundError:
                what = f"the models that {self._name(run_id)} kept are missing"
                yield Finding(name, what, AGAIN, run_id)
                continue
            if hashlib.sha256(content).hexdigest() != entry.kept:
                what = f"the models that {self._name(run_id)} kept are damaged"
                yield Finding(name, what, AGAIN, run_id)

    def _other_runs(self) -> Iterator[Finding]:
        """Check the rows and the checkpoints of runs that go on or are tried again."""
        ended = [i for i, e in self.checked.ledger.items() if e.status.decided]
        ended += list(self.checked.faults)
        rows = without_runs(self.checked.rows, ended)
        for file in self.store.checkpoints():
            try:
                next_round, extra = self.read_checkpoint(file.read_bytes())
            except ValueError as error:
                advice = "`raysafl run` begins the run anew"
                yield Finding(f"checkpoints/{file.name}", str(error), advice, file=file)
                continue
            if file.stem not in ended:
                before = rows.filter(pc.less(rows["round"], next_round))
                found = row_sums(of_runs(before, [file.stem]))
                sums = [RowSum(*own) for own in extra.get("rows", [])]
                why = difference(dict(enumerate(sums)), found.get(file.stem, {}))
                if why:
                    what = f"its rows before its checkpoint are damaged: {why}"
                    yield self._of_run(file.stem, what)
        keys = rows.select(["run_id", "replicate", "round"]).to_pandas()
        twice = keys[keys.duplicated()]
        for run_id in twice["run_id"].unique():
            yield self._of_run(run_id, "it has rows that are there twice")

    def _client_tables(self) -> Iterator[Finding]:
        """Find runs whose rows in `clients/` are missing, or not those that they wrote."""
        tables = self.store.client_tables
        for file, why in tables.damaged().items():
            advice = "`raysafl run` computes its runs again"
            yield Finding(f"clients/{file.name}", why, advice, file=file)
        found = row_sums(tables.read())
        for run_id, entry in self.checked.ledger.items():
            if not entry.client_digest or not entry.status.decided:
                continue
            written = RowSum(entry.client_rows or 0, entry.client_digest)
            there = sum(found.get(run_id, {}).values(), RowSum())
            if there.rows != written.rows:
                what = f"it has {there.rows} rows in clients/ instead of {written.rows}"
                yield self._of_run(run_id, what)
            elif there != written:
                what = "its rows in clients/ are not those that it wrote"
                yield self._of_run(run_id, what)

    def _orphans(self) -> Iterator[Finding]:
        kept = {f.stem for f in [*self.store.checkpoints(), *self.store.models()]}
        kept |= {file.stem for file in self.store.client_tables.own}
        found = self.store.begun() | kept
        for run_id in sorted(found - self.labels.keys() - self.checked.ledger.keys()):
            what = (
                "it has rows, a checkpoint or models, but is neither in the manifest nor "
                "in the ledger"
            )
            advice = "`raysafl verify --repair` deletes them"
            yield Finding(f"run {run_id}", what, advice, run_id)

    def _runs_table(self) -> Iterator[Finding]:
        """Find replicates that `runs.parquet` shows as finished with other numbers."""
        file = self.store.file("runs.parquet")
        advice = "`raysafl report` makes it anew"
        if not file.is_file():
            return
        try:
            shown = self.store.runs()
        except ValueError as error:
            yield Finding(file.name, str(error), advice, file=file)
            return
        shown = shown[shown["status"] == Status.FINISHED]
        now = make_runs_table(self.store, self.checked)
        if now.empty or shown.empty:
            return
        both = shown.merge(now, on=["run_id", "replicate"], suffixes=("", " now"))
        known = self.store.manifest().known(shown)
        names = [n for n in known if {n, f"{n} now"} <= set(both)]
        new = both[[f"{name} now" for name in names]].to_numpy(float)
        same = np.isclose(both[names].to_numpy(float), new, rtol=1e-9, equal_nan=True)
        wrong = (both["status now"] != Status.FINISHED) | ~same.all(axis=1)
        if wrong.any():
            run_id = both.loc[wrong, "run_id"].iloc[0]
            what = (
                f"its numbers are not those of the rows, first for {self._name(run_id)}"
            )
            yield Finding(file.name, what, advice, file=file)
