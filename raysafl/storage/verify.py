"""`raysafl verify`: what is wrong in a sweep's folder, and forgetting what is damaged."""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raysafl.storage.ledger import Checkpoint, Status
from raysafl.storage.manifest import Manifest, run_name
from raysafl.storage.runs_table import make_runs_table
from raysafl.storage.store import ANEW, Store

if TYPE_CHECKING:
    import pandas as pd

AGAIN = "`raysafl run` computes it again"


@dataclass(frozen=True)
class Finding:
    """Something in a sweep's folder that is wrong.

    Args:
        where: the file in the folder, or the cell by the labels of its run.
        what: what is wrong with it.
        advice: what to do.
        cell: the cell whose results `repair` forgets, if any.
        file: the file that `repair` deletes, if any.
        is_line: whether it is a line of the ledger, which `repair` writes anew.
    """

    where: str
    what: str
    advice: str
    cell: str = ""
    file: Path | None = None
    is_line: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.advice}"


def verify(store: Store) -> list[Finding]:
    """Check all results of a sweep, its manifest and `runs.parquet`; return what is wrong.

    Args:
        store: the folder of the sweep.
    """
    with warnings.catch_warnings():
        # What the readers warn of is among the findings.
        warnings.simplefilter("ignore")
        return list(_findings(store))


def repair(store: Store, findings: Iterable[Finding]) -> list[Finding]:
    """Forget what is damaged, so that the next `raysafl run` computes it again.

    Returns:
        The findings that were repaired. For others the user must decide what to do.

    Raises:
        SweepBusyError: another process writes into the folder.
    """
    repaired = [f for f in findings if f.cell or f.file is not None or f.is_line]
    with store.lock(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for finding in repaired:
            if finding.file is not None:
                finding.file.unlink(missing_ok=True)
        cells = {finding.cell for finding in repaired if finding.cell}
        store.forget(cells)
        if any(finding.is_line for finding in repaired):
            store.rewrite()
    return repaired


def _findings(store: Store) -> Iterator[Finding]:
    """Yield everything that is wrong, each once."""
    try:
        manifest = store.manifest()
    except ValueError as error:
        manifest = None
        file = store.file("manifest.json")
        what = str(error).replace(f"{file} ", "it ", 1).removesuffix(f"; {ANEW}")
        there = file if file.is_file() else None
        yield Finding(file.name, what, ANEW, file=there)
    yield from _ledger(store, manifest)
    for file in [*store.files("open"), *store.files("states")]:
        try:
            with file.open("rb") as source:
                Checkpoint.read(source)
        except (ValueError, RecursionError) as error:
            where = f"{file.parent.name}/{file.name}"
            what = f"it cannot be read ({error})"
            yield Finding(
                where, what, "what would go on from it begins anew", file=file
            )
    if manifest is not None:
        file = store.file("runs.parquet")
        if file.is_file() and (what := _fault_of_table(store)):
            advice = "`raysafl report` makes it anew"
            yield Finding(file.name, what, advice, file=file)


def _ledger(store: Store, manifest: Manifest | None) -> Iterator[Finding]:
    """Name lines that cannot be read, cells that are damaged, and files that count nowhere."""
    names = {
        cell: f"{run_name(entry.labels, entry.run_id)}, seed {seed}"
        for entry in (manifest.entries if manifest else ())
        for cell, seed in zip(entry.cells, entry.seeds, strict=True)
    }
    lines = store.lines()
    for number, why in lines.faults.items():
        yield Finding(
            f"ledger.jsonl, line {number}",
            f"it cannot be read ({why})",
            "`raysafl run` computes the cell of this line again",
            is_line=True,
        )
    for cell, why in store.results(unended=False).faults.items():
        yield Finding(names.get(cell, f"cell {cell}"), why, AGAIN, cell)
    for file in store.unnamed():
        what = "no cell of the ledger names it, but other programs read it"
        where = f"{file.parent.name}/{file.name}"
        yield Finding(where, what, "`raysafl run` deletes it", file=file)
    keeping = {cell for cell, end in lines.ends.items() if end.kept}
    for file in store.files("models"):
        if file.stem not in keeping:
            what = "its cell has not ended, or kept no model"
            yield Finding(f"models/{file.name}", what, AGAIN, file=file)


def _fault_of_table(store: Store) -> str:
    """Say what is wrong with `runs.parquet`; nothing if it is sound."""
    try:
        shown = store.runs()
    except ValueError as error:
        return str(error)
    now = make_runs_table(store, store.read(unended=False), shown.columns)
    if now.empty or shown.empty:
        return ""
    keys = ["run_id", "replicate"]
    for name in (*keys, "status"):
        if name not in shown:
            return f"it has no column {name}"
    there = set(shown[keys].itertuples(index=False, name=None))
    shown, now = (own[own["status"] == Status.FINISHED] for own in (shown, now))
    for run, replicate in now[keys].itertuples(index=False, name=None):
        # A sweep that goes on writes it anew at its end.
        if (run, replicate) not in there and not store.is_running:
            return f"it has no row of replicate {replicate} of run {run}"
    both = shown.merge(now, on=keys, suffixes=("", " now"))
    # The sweep's name is the folder's, which may have been renamed.
    for name in shown.columns.intersection(now.columns).difference([*keys, "sweep"]):
        wrong = ~_are_same(both[name], both[f"{name} now"])
        if wrong.any():
            run = both.loc[wrong, "run_id"].iloc[0]
            return f"its numbers are not those of the rows, first {name} of run {run}"
    return ""


def _are_same(one: "pd.Series[Any]", other: "pd.Series[Any]") -> Any:
    """Say which values of two columns are the same, as numbers or else as text."""
    import pandas as pd

    if all(pd.api.types.is_numeric_dtype(own) for own in (one, other)):
        a, b = (own.to_numpy(float, na_value=np.nan) for own in (one, other))
        return np.isclose(a, b, rtol=1e-9, equal_nan=True)
    texts = [own.astype(str).where(own.notna(), "") for own in (one, other)]
    return (texts[0] == texts[1]).to_numpy()
