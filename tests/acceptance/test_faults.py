"""Thousands of faults in a folder of results: none is shown as a right number, none loses a row."""

import hashlib
import json
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from helpers.environment import CHAOS

from raysafl import PerClient, Run, Runner, Sweep
from raysafl.kept.load import load_model
from raysafl.quickstart import BASE
from raysafl.report import write
from raysafl.runtime.in_process import Worker
from raysafl.storage.runs_table import make_runs_table, write_runs_table
from raysafl.storage.statistics import STATISTICS
from raysafl.storage.store import Store
from raysafl.storage.verify import repair, verify
from raysafl.sweep.session import Session

Rng = np.random.Generator
# The faults are dealt out to so many tests, which may run at the same time.
PARTS = 4
KEYS = ["run_id", "replicate", "round"]
SHORT = BASE.replace(
    {"local.steps": 2, "local.epochs": None},
    rounds=4,
    replicates=2,
    keep="last",
    eval_clients=PerClient(every=2),
)
# Equal seeds, other numbers: its files are those of another experiment.
FOREIGN = SHORT.replace({"local.lr": 0.02})


def worker(run: Run) -> Worker:
    return Worker(run.cells, run.data.load(), run.model, engine="fused")


def sweep_of(base: Run) -> Sweep:
    runs = {(seed,): base.replace(seed=seed) for seed in (0, 10, 20)}
    return Sweep("faults", runs, axes=("seed",))


def computed(path: Path, base: Run, whole: bool) -> Store:
    """Three runs; unless `whole`, the last was interrupted at its checkpoint."""
    store = Store(path)
    store.create()
    sweep = sweep_of(base)
    store.write_manifest(sweep.manifest())
    for run in sweep.labelled().values():
        session = Session([run], store, worker(run), {})
        session.advance(0)
        session.advance(0)
        session.flush()
        if whole or run.seed < 20:
            session.advance(np.inf)
    write_runs_table(store)
    (path / "report.html").write_text("the report is not looked at here")
    return store


def rows_of(store: Store) -> pd.DataFrame:
    rows = store.rounds().drop(columns="seconds")
    return rows.sort_values(KEYS, ignore_index=True)


def served(store: Store) -> pd.DataFrame:
    """The table of clients of the runs that have ended."""
    ledger = store.ledger()
    table = store.clients()
    return table[table["run_id"].isin(list(ledger))].reset_index(drop=True)


def model_of(store: Store, run_id: str) -> bytes:
    """The parameters of the model that a run kept, as `load_model` gives them."""
    parameters = load_model(store.path, run_id).parameters()
    return b"".join(p.detach().numpy().tobytes() for p in parameters)


def files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and ".lock" not in p.name)


def results(folder: Path) -> list[Path]:
    kept = ("rounds", "clients", "ledger", "open", "models")
    return [file for file in files(folder) if file.parent.name in kept]


def a_file(folder: Path, rng: Rng) -> Path:
    everything = files(folder)
    return everything[rng.integers(len(everything))]


def delete(folder: Path, foreign: Path, rng: Rng) -> None:
    a_file(folder, rng).unlink()


def delete_folder(folder: Path, foreign: Path, rng: Rng) -> None:
    shutil.rmtree(
        folder / str(rng.choice(["rounds", "clients", "ledger", "open", "models"]))
    )


def truncate(folder: Path, foreign: Path, rng: Rng) -> None:
    file = a_file(folder, rng)
    content = file.read_bytes()
    file.write_bytes(content[: rng.integers(len(content) + 1)])


def flip_a_bit(folder: Path, foreign: Path, rng: Rng) -> None:
    file = a_file(folder, rng)
    content = bytearray(file.read_bytes())
    if content:
        content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        file.write_bytes(content)


def overwrite(folder: Path, foreign: Path, rng: Rng) -> None:
    a_file(folder, rng).write_bytes(rng.bytes(int(rng.integers(200))))


def exchange(folder: Path, foreign: Path, rng: Rng) -> None:
    """Two files of one folder change places."""
    one = results(folder)[rng.integers(len(results(folder)))]
    others = sorted(one.parent.iterdir())
    other = others[rng.integers(len(others))]
    contents = one.read_bytes(), other.read_bytes()
    other.write_bytes(contents[0])
    one.write_bytes(contents[1])


def swap_in(folder: Path, foreign: Path, rng: Rng) -> None:
    """A file of another experiment with equal seeds takes the place of one of ours."""
    file = results(folder)[rng.integers(len(results(folder)))]
    there = sorted((foreign / file.parent.name).iterdir())
    file.write_bytes(there[rng.integers(len(there))].read_bytes())


def double(folder: Path, foreign: Path, rng: Rng) -> None:
    """A file of a commit stands there twice, under two names."""
    commits = [file for file in results(folder) if file.stem[:13].isdigit()]
    file = commits[rng.integers(len(commits))]
    later = int(file.stem[:13]) + int(rng.integers(-9, 9))
    (file.parent / f"{later:013d}{file.name[13:]}").write_bytes(file.read_bytes())


def edit_rows(folder: Path, foreign: Path, rng: Rng) -> None:
    """A number is changed, or a row is dropped or doubled, in a file that stays readable."""
    parts = sorted(
        [*folder.glob("rounds/*.parquet"), *folder.glob("clients/*.parquet")]
    )
    part = parts[rng.integers(len(parts))]
    table = pq.read_table(part)
    frame = table.to_pandas()
    row = int(rng.integers(len(frame)))
    change = rng.integers(3)
    if change == 0:
        names = ["test_accuracy", "test_loss", "bytes_up", "round"]
        if part.parent.name == "clients":
            names = ["quality", "loss", "client", "round"]
        name = str(rng.choice(names))
        frame.loc[row, name] = frame.loc[row, name] + 1
    elif change == 1:
        frame = frame.drop(index=row)
    else:
        frame = pd.concat([frame, frame.iloc[[row]]])
    pq.write_table(table.from_pandas(frame, table.schema, preserve_index=False), part)


def edit_ledger(folder: Path, foreign: Path, rng: Rng) -> None:
    """A field of a line is dropped or changed; the line stays JSON, under its old seal."""
    files = sorted((folder / "ledger").glob("*.jsonl"))
    file = files[rng.integers(len(files))]
    lines = file.read_bytes().splitlines()
    k = int(rng.integers(len(lines)))
    line = json.loads(lines[k])
    name = str(rng.choice(sorted(line.keys() - {"sha256"})))
    del line[name]
    if rng.integers(2):
        line[name] = [None, 7, "finished", {}][rng.integers(4)]
    lines[k] = json.dumps(line).encode()
    file.write_bytes(b"\n".join(lines) + b"\n")


FAULTS = [
    delete,
    delete_folder,
    truncate,
    flip_a_bit,
    overwrite,
    exchange,
    swap_in,
    double,
    edit_rows,
    edit_ledger,
]


@dataclass
class Tally:
    """What was done to a folder, and what came of it."""

    faults: Counter[str] = field(default_factory=Counter)
    named: int = 0
    clean: int = 0
    lost: int = 0
    doubled: int = 0
    shown_wrong: int = 0

    def __str__(self) -> str:
        kinds = ", ".join(f"{name} {n}" for name, n in sorted(self.faults.items()))
        return (
            f"{self.faults.total()} faults in folders ({kinds}); verify named the damage "
            f"{self.named} times and found {self.clean} folders clean; lost {self.lost}, "
            f"doubled {self.doubled}, shown wrong {self.shown_wrong}"
        )


def shown(store: Store) -> pd.DataFrame:
    """The statistics that tables show: those of finished runs."""
    try:
        table = make_runs_table(store)
    except ValueError:
        # Without a manifest nothing is shown.
        return pd.DataFrame(columns=["run_id", "replicate", *STATISTICS])
    finished = table[table["status"] == "finished"] if len(table) else table
    return finished.reindex(columns=["run_id", "replicate", *STATISTICS])


def completed(store: Store, repaired_first: bool) -> None:
    """The user's way back: the same command; `verify --repair` before it does no harm."""
    if repaired_first:
        repair(store, verify(store))
    Runner(sweep_of(SHORT), store.path, executor="here", track="none", quiet=True).run()


@pytest.mark.parametrize("part", range(PARTS))
def test_no_fault_in_a_folder_is_shown_as_a_right_number_or_loses_a_row(
    part: int,
    tmp_path: Path,
    pytestconfig: pytest.Config,
    record_property: Callable[[str, object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`--faults` seeded faults in all, one to eight at a time, in each form of a folder.

    The page and its figures are not drawn: they show `runs.parquet`, which is compared,
    and drawing them takes as long as all the rest.
    """
    monkeypatch.setattr(write, "write_report", lambda store: None)
    most = pytestconfig.getoption("--faults") / PARTS
    rng = np.random.default_rng([pytestconfig.getoption("--chaos-seed"), part])
    reference = computed(tmp_path / "reference" / "faults", SHORT, whole=True)
    expected, statistics = rows_of(reference), shown(reference)
    clients = served(reference)
    models = {i: model_of(reference, i) for i in reference.ledger()}
    original = computed(tmp_path / "original" / "faults", SHORT, whole=False)
    foreign = computed(tmp_path / "foreign" / "faults", FOREIGN, whole=False)
    tally = Tally()
    try:
        while tally.faults.total() < most:
            folder = tmp_path / "damaged"
            shutil.copytree(original.path, folder)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                form(Store(folder), rng)
                harm(folder, foreign.path, rng, tally)
                look(Store(folder), statistics, clients, models, tally)
                go_on(Store(folder), expected, rng, tally)
                pd.testing.assert_frame_equal(served(Store(folder)), clients)
                models_are_whole(Store(folder))
            shutil.rmtree(folder)
    finally:
        record_property(CHAOS, str(tally))
    assert tally.lost == tally.doubled == tally.shown_wrong == 0
    assert set(tally.faults) == {fault.__name__ for fault in FAULTS}


def form(store: Store, rng: Rng) -> None:
    """Leave each run a commit of its own, or put them together."""
    if rng.integers(2):
        store.compact()


def harm(folder: Path, foreign: Path, rng: Rng, tally: Tally) -> None:
    """Do one to eight faults to the folder."""
    for fault in rng.choice(np.array(FAULTS), rng.integers(1, 9)):
        if not list(folder.glob("rounds/*.parquet")):
            return
        try:
            fault(folder, foreign, rng)
        except (OSError, ValueError, KeyError):
            # An earlier fault has left nothing that this one could harm.
            continue
        tally.faults[fault.__name__] += 1


def models_are_whole(store: Store) -> None:
    """Each run has the models that it kept."""
    for run_id, entry in store.ledger().items():
        content = store.model(run_id).read_bytes()
        assert hashlib.sha256(content).hexdigest() == entry.kept


def look(
    store: Store,
    statistics: pd.DataFrame,
    clients: pd.DataFrame,
    models: dict[str, bytes],
    tally: Tally,
) -> None:
    """Count the numbers of finished runs that are not those of the reference."""
    good = {i for i, e in store.read().ledger.items() if e.status == "finished"}
    mine = served(store)
    tally.shown_wrong += len(pd.concat([mine, clients]).drop_duplicates()) - len(
        clients
    )
    tally.lost += len(clients[clients["run_id"].isin(good)]) - len(mine)
    for run_id, model in models.items():
        try:
            tally.shown_wrong += model_of(store, run_id) != model
        except ValueError:
            tally.lost += run_id in good
    # What the reference does not have is compared with nothing, and differs.
    found = shown(store).merge(statistics, how="left", on=["run_id", "replicate"])
    for name in STATISTICS:
        same = found[f"{name}_x"].eq(found[f"{name}_y"])
        missing = found[f"{name}_x"].isna() & found[f"{name}_y"].isna()
        tally.shown_wrong += int((~(same | missing)).sum())
    findings = verify(store)
    tally.named += bool(findings)
    tally.clean += not findings


def go_on(store: Store, expected: pd.DataFrame, rng: Rng, tally: Tally) -> None:
    """Give the same command again, and compare all rows with the reference."""
    completed(store, repaired_first=bool(rng.integers(2)))
    # Rows of runs that are not in the manifest count nowhere; `verify` names them, and
    # `--repair` deletes them.
    ended = rows_of(store)
    ended = ended[ended["run_id"].isin(expected["run_id"])]
    tally.doubled += int(ended.duplicated(KEYS).sum())
    tally.lost += len(expected) - len(ended.drop_duplicates(KEYS))
    pd.testing.assert_frame_equal(ended.reset_index(drop=True), expected)
    repair(store, verify(store))
    pd.testing.assert_frame_equal(rows_of(store), expected)
    assert verify(store) == []
