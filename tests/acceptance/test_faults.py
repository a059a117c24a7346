"""Hundreds of faults in a folder of results: none is shown as a right number, none loses a row."""

import json
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from helpers.environment import CHAOS
from helpers.here import session_of, write

from raysafl import PerClient, Run, Runner, Sweep, load, load_model
from raysafl.quickstart import BASE
from raysafl.report import write as reports
from raysafl.report.current import page_end
from raysafl.report.query import results
from raysafl.runtime.in_process import Worker
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.statistics import STATISTICS
from raysafl.storage.status import status_of
from raysafl.storage.store import Store
from raysafl.storage.verify import repair, verify

Rng = np.random.Generator
# What is shown of a folder, by what shows it.
Shown = Mapping[str, pd.DataFrame]
# The faults are dealt out to so many tests, which may run at the same time.
PARTS = 2
REPLICATES = ["run_id", "replicate"]
SHORT = BASE.replace(
    {"local.steps": 2, "local.epochs": None},
    rounds=4,
    replicates=2,
    keep="last",
    eval_clients=PerClient(every=2),
)
LONGER = SHORT.replace(rounds=6)
# Equal seeds, other numbers: its files are those of another experiment.
FOREIGN = SHORT.replace({"local.lr": 0.02})


def sweep_of(base: Run) -> Sweep:
    runs = {(seed,): base.replace(seed=seed) for seed in (0, 10, 20)}
    return Sweep("faults", runs, axes=("seed",))


def page(store: Store) -> list[Path]:
    """Write a report that nobody looks at; it takes longer to draw than all the rest."""
    (store.path / "table.md").write_text("a table")
    (store.path / "report.html").write_bytes(page_end(store))
    return []


def computed(path: Path, base: Run, whole: bool) -> Store:
    """Three runs of two seeds; unless `whole`, the last run is left at a checkpoint."""
    store = Store(path)
    store.create()
    sweep = sweep_of(base)
    store.write_manifest(sweep.manifest())
    for run in sweep.labelled().values():
        worker = Worker(run.cells, run.data.load(), run.model, engine="fused")
        session = session_of([run], worker, keep_states=True)
        session.advance(0)
        session.advance(0)
        write(session.news(at_once=True), store, [run])
        if whole or run.seed < 20:
            session.advance(np.inf)
            write(session.news(), store, [run])
    write_runs_table(store)
    page(store)
    return store


def model_of(folder: Path, run_id: str, replicate: int) -> str:
    """The parameters of a kept model as text; empty if it cannot be loaded."""
    try:
        parameters = load_model(folder, run_id, replicate).parameters()
    except ValueError:
        return ""
    return b"".join(p.detach().numpy().tobytes() for p in parameters).hex()


def shown(store: Store) -> Shown:
    """What is shown of finished seeds and runs, and the rows of all, as text."""
    try:
        found = load(store)
        runs = found.runs
    except ValueError:
        # Without a manifest nothing is shown.
        return {}
    is_ended = runs["status"] == "finished"
    finished = runs[is_ended].reindex(columns=[*REPLICATES, *STATISTICS])
    query = results([store.path], "")
    query = query[query["status"] == "finished"]
    named = [name for name in query if name in STATISTICS]
    tables = {
        "runs": finished,
        "rounds": found.rounds.drop(columns="seconds"),
        "clients": found.clients,
        "results": query[["run_id", *named]] if len(query) else query,
        "models": finished[REPLICATES].assign(
            model=[
                model_of(store.path, *own) for own in finished[REPLICATES].to_numpy()
            ]
        ),
    }
    said = status_of(store).runs.get("finished", 0)
    assert said == (is_ended.groupby(runs["run_id"]).all().sum() if len(runs) else 0)
    return {name: table.astype(str) for name, table in tables.items()}


def files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != ".lock")


def a_file(folder: Path, rng: Rng) -> Path:
    everything = files(folder)
    return everything[rng.integers(len(everything))]


def delete(folder: Path, foreign: Path, rng: Rng) -> None:
    a_file(folder, rng).unlink()


def delete_folder(folder: Path, foreign: Path, rng: Rng) -> None:
    shutil.rmtree(a_file(folder / str(rng.choice(FOLDERS)), rng).parent)


def truncate(folder: Path, foreign: Path, rng: Rng) -> None:
    file = a_file(folder, rng)
    content = file.read_bytes()
    file.write_bytes(content[: rng.integers(len(content) + 1)])


def flip_a_bit(folder: Path, foreign: Path, rng: Rng) -> None:
    file = a_file(folder, rng)
    content = bytearray(file.read_bytes())
    content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
    file.write_bytes(content)


def overwrite(folder: Path, foreign: Path, rng: Rng) -> None:
    a_file(folder, rng).write_bytes(rng.bytes(int(rng.integers(200))))


def exchange(folder: Path, foreign: Path, rng: Rng) -> None:
    """Two files of one folder change places."""
    one = a_file(folder, rng)
    other = a_file(one.parent, rng)
    contents = one.read_bytes(), other.read_bytes()
    other.write_bytes(contents[0])
    one.write_bytes(contents[1])


def swap_in(folder: Path, foreign: Path, rng: Rng) -> None:
    """A file of another experiment with equal seeds takes the place of one of ours."""
    file = a_file(folder, rng)
    there = foreign / file.parent.relative_to(folder)
    same = there / file.name
    file.write_bytes((same if same.is_file() else a_file(there, rng)).read_bytes())


def double(folder: Path, foreign: Path, rng: Rng) -> None:
    """A file stands there twice, or takes the place of another one of its folder."""
    file = a_file(folder / str(rng.choice(FOLDERS)), rng)
    others = [
        *file.parent.iterdir(),
        file.with_name(f"{rng.bytes(12).hex()}{file.suffix}"),
    ]
    shutil.copy(file, others[rng.integers(len(others))])


def edit_rows(folder: Path, foreign: Path, rng: Rng) -> None:
    """A number is changed, or a row is dropped or doubled, in a file that stays readable."""
    tables = sorted(folder.rglob("*.parquet"))
    file = tables[rng.integers(len(tables))]
    table = pq.read_table(file)
    frame = table.to_pandas()
    row = int(rng.integers(len(frame)))
    change = rng.integers(3)
    if change == 0:
        numbers = (
            "test_accuracy",
            "test_loss",
            "bytes_up",
            "round",
            "quality",
            "final",
        )
        name = str(rng.choice([name for name in numbers if name in frame]))
        frame.loc[row, name] = frame.loc[row, name] + 1
    elif change == 1:
        frame = frame.drop(index=row)
    else:
        frame = pd.concat([frame, frame.iloc[[row]]])
    pq.write_table(table.from_pandas(frame, table.schema, preserve_index=False), file)


def edit_ledger(folder: Path, foreign: Path, rng: Rng) -> None:
    """A field of an entry is dropped or changed; the line stays JSON, under its old seal."""
    file, lines, k = a_line(folder, rng)
    line = json.loads(lines[k])
    (*_, entry) = line["cells"]
    name = str(rng.choice(sorted(entry)))
    del entry[name]
    if rng.integers(2):
        entry[name] = [None, 7, "finished", {}][rng.integers(4)]
    lines[k] = json.dumps(line).encode()
    file.write_bytes(b"\n".join(lines) + b"\n")


def mix_lines(folder: Path, foreign: Path, rng: Rng) -> None:
    """A line of the ledger is doubled or lost, or is followed by one of another sweep."""
    file, lines, k = a_line(folder, rng)
    _, others, j = a_line(foreign, rng)
    lines[k : k + 1] = [[lines[k]] * 2, [], [lines[k], others[j]]][rng.integers(3)]
    rng.shuffle(lines)
    file.write_bytes(b"".join(line + b"\n" for line in lines))


def a_line(folder: Path, rng: Rng) -> tuple[Path, list[bytes], int]:
    file = folder / "ledger.jsonl"
    lines = file.read_bytes().splitlines()
    return file, lines, int(rng.integers(len(lines)))


FOLDERS = ["rounds", "clients", "open", "models", "states"]
FAULTS = [
    *(delete, delete_folder, truncate, flip_a_bit, overwrite, exchange),
    *(swap_in, double, edit_rows, edit_ledger, mix_lines),
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

    def look(self, store: Store, expected: Shown) -> None:
        """Count what is shown that the reference does not show, or shows of finished seeds."""
        for name, table in shown(store).items():
            due = expected[name]
            self.doubled += int(table.duplicated().sum())
            both = table.merge(due, how="left", indicator=True)
            self.shown_wrong += int((both["_merge"] == "left_only").sum())
            if name in ("rounds", "clients"):
                keys = shown(store)["runs"][REPLICATES]
                self.lost += len(due.merge(keys)) - len(table.merge(keys))
        findings = verify(store)
        self.named += bool(findings)
        self.clean += not findings


@pytest.mark.parametrize("part", range(PARTS))
def test_no_fault_in_a_folder_is_shown_as_a_right_number_or_loses_a_row(
    part: int,
    tmp_path: Path,
    pytestconfig: pytest.Config,
    record_property: Callable[[str, object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`--faults` seeded faults in all, one to eight at a time."""
    monkeypatch.setattr(reports, "write_report", page)
    most = pytestconfig.getoption("--faults") / PARTS
    rng = np.random.default_rng([pytestconfig.getoption("--chaos-seed"), part])
    expected, longer = (
        shown(computed(tmp_path / name / "faults", base, whole=True))
        for name, base in (("reference", SHORT), ("longer", LONGER))
    )
    original = computed(tmp_path / "original" / "faults", SHORT, whole=False)
    foreign = computed(tmp_path / "foreign" / "faults", FOREIGN, whole=False)
    tally = Tally()
    try:
        while tally.faults.total() < most:
            store = Store(tmp_path / "damaged" / "faults")
            shutil.copytree(original.path, store.path)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if rng.integers(2):
                    store.rewrite()
                harm(store.path, foreign.path, rng, tally)
                tally.look(store, expected)
                if rng.integers(2):
                    repair(store, verify(store))
                    tally.look(store, expected)
                if rng.integers(3):
                    go_on(store, SHORT, expected)
                else:
                    go_on(store, LONGER, longer)
            shutil.rmtree(store.path)
    finally:
        record_property(CHAOS, str(tally))
    assert tally.lost == tally.doubled == tally.shown_wrong == 0
    assert set(tally.faults) == {fault.__name__ for fault in FAULTS}


def harm(folder: Path, foreign: Path, rng: Rng, tally: Tally) -> None:
    """Do one to eight faults to the folder."""
    for fault in rng.choice(np.array(FAULTS), rng.integers(1, 9)):
        try:
            fault(folder, foreign, rng)
        except (OSError, ValueError, LookupError, TypeError):
            # An earlier fault has left nothing that this one could harm.
            continue
        tally.faults[fault.__name__] += 1


def go_on(store: Store, base: Run, expected: Shown) -> None:
    """Give the command again, of as many rounds or of more: all is there that is due."""
    options = {"executor": "here", "track": "none", "quiet": True}
    outcome = Runner(sweep_of(base), store.path, keep_states=True, **options).run()
    assert outcome.ok
    for name, table in shown(store).items():
        pd.testing.assert_frame_equal(table, expected[name])
    # What belongs to no cell of the sweep counts nowhere, but is named.
    repair(store, verify(store))
    assert verify(store) == []
    for name, table in shown(store).items():
        pd.testing.assert_frame_equal(table, expected[name])
