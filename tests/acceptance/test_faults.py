"""Hundreds of faults in a folder of results: none is shown as a right number, none loses a row."""

import json
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from helpers.damage import Rng, exchange, flip_a_bit, truncate
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


def swap_in(folder: Path, foreign: Path, rng: Rng) -> None:
    """A file of another experiment with equal seeds takes the place of one of ours."""
    file = a_file(folder, rng)
    there = foreign / file.parent.relative_to(folder)
    same = there / file.name
    file.write_bytes((same if same.is_file() else a_file(there, rng)).read_bytes())


def double(folder: Path, foreign: Path, rng: Rng) -> None:
    """A file stands there twice, or takes the place of another one of its folder."""
    file = a_file(folder / str(rng.choice(FOLDERS)), rng)
    new = file.with_name(f"{rng.bytes(12).hex()}{file.suffix}")
    others = [*file.parent.iterdir(), new]
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
        numbers = "test_accuracy test_loss bytes_up round quality final".split()
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
FAULTS: dict[str, Callable[[Path, Path, Rng], object]] = {
    "delete": lambda folder, _, rng: a_file(folder, rng).unlink(),
    "delete folder": lambda folder, _, rng: shutil.rmtree(
        a_file(folder / str(rng.choice(FOLDERS)), rng).parent
    ),
    "truncate": lambda folder, _, rng: truncate(a_file(folder, rng), rng),
    "flip a bit": lambda folder, _, rng: flip_a_bit(a_file(folder, rng), rng),
    "overwrite": lambda folder, _, rng: a_file(folder, rng).write_bytes(
        rng.bytes(int(rng.integers(200)))
    ),
    "exchange": lambda folder, _, rng: exchange(a_file(folder, rng), rng),
    "swap in": swap_in,
    "double": double,
    "edit rows": edit_rows,
    "edit ledger": edit_ledger,
    "mix lines": mix_lines,
}


def look(store: Store, expected: Shown, tally: Counter[str]) -> None:
    """Count what is shown that the reference does not show, or shows of finished seeds."""
    now = shown(store)
    for name, table in now.items():
        due = expected[name]
        tally["doubled"] += int(table.duplicated().sum())
        both = table.merge(due, how="left", indicator=True)
        tally["shown wrong"] += int((both["_merge"] == "left_only").sum())
        if name in ("rounds", "clients"):
            keys = now["runs"][REPLICATES]
            tally["lost"] += len(due.merge(keys)) - len(table.merge(keys))
    tally["named by verify" if verify(store) else "clean by verify"] += 1


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
    tally, faults = Counter[str](), Counter[str]()
    try:
        while faults.total() < most:
            store = Store(tmp_path / "damaged" / "faults")
            shutil.copytree(original.path, store.path)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if rng.integers(2):
                    store.rewrite()
                harm(store.path, foreign.path, rng, faults)
                look(store, expected, tally)
                if rng.integers(2):
                    repair(store, verify(store))
                    look(store, expected, tally)
                if rng.integers(3):
                    go_on(store, SHORT, expected)
                else:
                    go_on(store, LONGER, longer)
            shutil.rmtree(store.path)
    finally:
        record_property(CHAOS, f"{dict(faults)} in folders; {dict(tally)}")
    assert tally["lost"] == tally["doubled"] == tally["shown wrong"] == 0
    assert faults.keys() == FAULTS.keys()


def harm(folder: Path, foreign: Path, rng: Rng, faults: Counter[str]) -> None:
    """Do one to eight faults to the folder."""
    for fault in rng.choice(sorted(FAULTS), rng.integers(1, 9)).tolist():
        # An earlier fault may have left nothing that this one could harm.
        with suppress(OSError, ValueError, LookupError, TypeError):
            FAULTS[fault](folder, foreign, rng)
            faults[fault] += 1


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
