"""`raysafl verify`: what is wrong in a sweep's folder, and forgetting what is damaged."""

import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysafl.storage.journal import COMMIT, KEPT, PLACES, TABLES, Checked
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import run_name
from raysafl.storage.paths import Location
from raysafl.storage.rows import read_rows
from raysafl.storage.runs_table import make_runs_table
from raysafl.storage.store import ANEW, Store

if TYPE_CHECKING:
    import pandas as pd

AGAIN = "`raysafl run` computes it again"
TIDY = "`raysafl verify --repair` deletes them"


@dataclass(frozen=True)
class Finding:
    """Something in a sweep's folder that is wrong.

    Args:
        where: the file in the folder, or the run by its labels.
        what: what is wrong with it.
        advice: what to do.
        run_id: the run whose results `repair` forgets, if any.
        file: the file that `repair` deletes, if any.
        commit: the commit that `repair` writes anew without what is damaged, if any.
    """

    where: str
    what: str
    advice: str
    run_id: str = ""
    file: Location | None = None
    commit: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.advice}"


def verify(store: Store) -> list[Finding]:
    """Check all results of a sweep, its manifest and `runs.parquet`; return what is wrong.

    While a sweep runs there, runs that begin may be taken for runs that are not in the
    manifest.

    Args:
        store: the folder of the sweep.
    """
    with warnings.catch_warnings():
        # What the readers warn of is among the findings.
        warnings.simplefilter("ignore")
        return list(_Verification(store).findings())


def repair(store: Store, findings: Iterable[Finding]) -> list[Finding]:
    """Forget what is damaged, so that the next `raysafl run` computes it again.

    Rows that cannot be read are not deleted, but kept in `damaged/`.

    Returns:
        The findings that were repaired. For others the user must decide what to do.

    Raises:
        SweepBusyError: another process writes into the folder.
    """
    repaired = [f for f in findings if f.run_id or f.file is not None or f.commit]
    with store.lock(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store.forget({finding.run_id for finding in repaired if finding.run_id})
        there = {commit.name for commit in store.commits()}
        if spoiled := there & {finding.commit for finding in repaired}:
            store.rewrite(spoiled)
        for finding in repaired:
            if finding.file is not None:
                finding.file.unlink(missing_ok=True)
    return repaired


class _Verification:
    """The checks of one folder."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.manifest_fault = ""
        self.labels: dict[str, dict[str, Any]] = {}
        try:
            self.labels = store.manifest().labels()
        except ValueError as error:
            self.manifest_fault = str(error)
        self.checked: Checked = store.read(unended=False)

    def findings(self) -> Iterator[Finding]:
        """Yield everything that is wrong, each once."""
        yield from self._manifest()
        yield from self._strange_files()
        yield from self._commits()
        yield from self._ended_runs()
        yield from self._open_runs()
        yield from self._states()
        if not self.manifest_fault:
            yield from self._orphans()
            yield from self._runs_table()

    def _name(self, run_id: str) -> str:
        """Return a run's labels, or its id if it has none."""
        return run_name(self.labels.get(run_id, {}), f"run {run_id}")

    def _manifest(self) -> Iterator[Finding]:
        file = self.store.file("manifest.json")
        if self.manifest_fault:
            there = file if file.is_file() else None
            what = self.manifest_fault.replace(f"{file} ", "it ", 1)
            yield Finding(file.name, what.removesuffix(f"; {ANEW}"), ANEW, file=there)

    def _strange_files(self) -> Iterator[Finding]:
        """Name files that raysafl has not written; others may read them as results."""
        for folder, (suffix, name) in PLACES.items():
            files: list[Location] = sorted(self.store.path.glob(f"{folder}/*"), key=str)
            for file in files:
                ours = rf"\..*|{name}{re.escape(suffix)}"
                if not re.fullmatch(ours, file.name):
                    what = "it is no file of raysafl's"
                    yield Finding(f"{folder}/{file.name}", what, "move it elsewhere")

    def _commits(self) -> Iterator[Finding]:
        """Name lines that cannot be read, and rows that count nowhere but others read."""
        every = {commit.name: commit for commit in self.store.every_commit()}
        counted = {commit.name for commit in self.store.commits()}
        owners = {i: name for i, (name, _) in self.store.owners().items()}
        owners |= self.store.unread()
        for commit in every.values():
            for number, why in commit.faults.items():
                yield Finding(
                    f"ledger/{commit.name}.jsonl, line {number}",
                    f"it cannot be read ({why})",
                    "`raysafl run` computes the run of this line again",
                    commit=commit.name,
                )
        for folder in TABLES:
            for file in self.store.files(folder, COMMIT):
                name = f"{folder}/{file.name}"
                if file.stem not in every:
                    what = "it has no ledger, as its writer was killed"
                    yield Finding(name, what, "`raysafl run` deletes it", file=file)
                    continue
                try:
                    with file.open("rb") as source:
                        there = read_rows(folder, source)["run_id"].unique().to_pylist()
                except ValueError as error:
                    # Its runs are named one by one, unless none of them counts.
                    if file.stem not in owners.values():
                        yield Finding(name, str(error), TIDY, commit=file.stem)
                    continue
                strange = [i for i in there if owners.get(i) != file.stem]
                if strange and not every[file.stem].faults:
                    what = (
                        f"it has results of {len(strange)} runs that count elsewhere or "
                        "nowhere, but other programs read them"
                    )
                    yield Finding(name, what, TIDY, commit=file.stem)
        for name in every.keys() - counted:
            what = "another commit has replaced it"
            yield Finding(f"ledger/{name}.jsonl", what, TIDY, commit=name)

    def _ended_runs(self) -> Iterator[Finding]:
        for run_id, name in self.store.unread().items():
            what = f"this version does not understand the entry of {self._name(run_id)}"
            advice = "the version that wrote it does; `raysafl run` computes it again"
            yield Finding(f"ledger/{name}.jsonl", what, advice)
        for run_id, why in self.checked.faults.items():
            name = self._name(run_id)
            where = name
            what = f"it is damaged: {why}"
            if why.startswith(KEPT):
                where = f"models/{run_id}.safetensors"
                what = f"the models that {name} kept {why.removeprefix(KEPT)}"
            yield Finding(where, what, AGAIN, run_id)

    def _open_runs(self) -> Iterator[Finding]:
        """Check the files from which runs go on."""
        for run_id in self.store.open_runs():
            file = self.store.open_file(run_id)
            try:
                self.store.resume(run_id)
            except ValueError as error:
                advice = "`raysafl run` begins the run anew"
                yield Finding(f"open/{file.name}", str(error), advice, file=file)
                continue
            entry = self.checked.ledger.get(run_id)
            if entry is not None and entry.status.decided:
                what = "its run has ended"
                yield Finding(f"open/{file.name}", what, TIDY, file=file)

    def _states(self) -> Iterator[Finding]:
        """Check the states of ended runs, from which runs of more rounds go on."""
        for file in self.store.files("states", PLACES["states"][1]):
            try:
                self.store.kept_state(file.stem)
            except ValueError as error:
                advice = "a run of more rounds then begins anew"
                why = f"it cannot be used: {error.__cause__}"
                yield Finding(f"states/{file.name}", why, advice, file=file)

    def _orphans(self) -> Iterator[Finding]:
        found = self.store.begun() - self.store.unread().keys()
        for folder in ("models", "states"):
            found |= {file.stem for file in self.store.files(folder, PLACES[folder][1])}
        for run_id in sorted(found - self.labels.keys() - self.checked.ledger.keys()):
            what = (
                "it has rows, a checkpoint, models or a state, but is neither in the "
                "manifest nor in the ledger"
            )
            advice = "`raysafl verify --repair` deletes them"
            yield Finding(f"run {run_id}", what, advice, run_id)

    def _runs_table(self) -> Iterator[Finding]:
        """Find what `runs.parquet` shows of finished replicates, and the rows do not give."""
        file = self.store.file("runs.parquet")
        if file.is_file() and (what := self._fault_of_table(file)):
            yield Finding(file.name, what, "`raysafl report` makes it anew", file=file)

    def _fault_of_table(self, file: Location) -> str:
        """Say what is wrong with `runs.parquet`; nothing if it is sound."""
        try:
            self.store.runs()
            # As other programs read it: what pandas notes of columns has no checksum.
            shown = pq.read_table(pa.BufferReader(file.read_bytes())).to_pandas()
        except ValueError as error:
            return str(error)
        except Exception as error:  # Damaged notes of pandas raise anything.
            return f"pandas cannot read it ({error!r})"
        now = make_runs_table(self.store, self.checked, shown.columns)
        if now.empty or shown.empty:
            return ""
        keys = ["run_id", "replicate"]
        pairs = ((shown, now), (now, shown))
        mine, theirs = (
            sorted(a[a["run_id"].isin(b["run_id"])][keys].itertuples(index=False))
            for a, b in pairs
        )
        if mine != theirs:
            return "it has not one row for each replicate of a run"
        ended = shown["run_id"].isin(now["run_id"]) & (
            shown["status"] == Status.FINISHED
        )
        if not ended.any():
            return ""
        shown = shown[ended].dropna(axis=1, how="all")
        # A column that it lacks, an earlier version or another table's claims left out.
        if strange := [name for name in shown if name not in now]:
            return f"it has a column {strange[0]!r}, which this raysafl does not make"
        # The sweep's name is the folder's, which may have been renamed.
        names = [name for name in shown if name not in (*keys, "sweep")]
        both = shown.merge(now, on=keys, suffixes=("", " now"))
        for name in names:
            wrong = ~_are_same(both[name], both[f"{name} now"])
            if wrong.any():
                run = self._name(both.loc[wrong, "run_id"].iloc[0])
                return f"its numbers are not those of the rows, first {name} of {run}"
        return ""


def _are_same(one: "pd.Series[Any]", other: "pd.Series[Any]") -> Any:
    """Say which values of two columns are the same, as numbers or else as text."""
    import pandas as pd

    if all(pd.api.types.is_numeric_dtype(own) for own in (one, other)):
        a, b = (own.to_numpy(float, na_value=np.nan) for own in (one, other))
        return np.isclose(a, b, rtol=1e-9, equal_nan=True)
    texts = [own.astype(str).where(own.notna(), "") for own in (one, other)]
    return (texts[0] == texts[1]).to_numpy()
