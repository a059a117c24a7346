"""Whatever is damaged in a folder counts nowhere, is named, and is computed again."""

import re
import shutil
import sys
import warnings
from collections.abc import Callable
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import made
from helpers.commands import call
from helpers.damage import exchange, flip_a_bit, truncate
from helpers.folders import apart, finished, rows_file
from helpers.here import run_in_process
from helpers.pictures import without_pictures
from typer.testing import CliRunner

from raysafl import PerClient
from raysafl.cli import app as cli
from raysafl.quickstart import BASE
from raysafl.report.query import results
from raysafl.report.write import write_report
from raysafl.runtime.in_process import Worker
from raysafl.storage.ledger import CellEnd, Status
from raysafl.storage.paths import SweepBusyError
from raysafl.storage.rows import CLIENTS, ORDER, of_cells
from raysafl.storage.runs_table import make_runs_table, write_runs_table
from raysafl.storage.store import Store
from raysafl.storage.verify import repair, verify
from raysafl.sweep.definition import Sweep

RUNS = [
    BASE.replace(
        rounds=5,
        eval_every=2,
        replicates=2,
        seed=seed,
        keep="last",
        eval_clients=PerClient(on="labels", every=5),
    )
    for seed in (0, 10)
]
# Of the first run and of the second one.
FIRST, OTHER = RUNS[0].cell_ids, RUNS[1].cell_ids
pytestmark = pytest.mark.filterwarnings("ignore:.*left out:UserWarning")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A folder with two finished runs in parts of their own, a state, and their report."""
    sweep = Sweep("sweep", {(run.seed,): run for run in RUNS}, axes=("seed",))
    with without_pictures():
        store = finished(sweep, tmp_path_factory.mktemp("results") / "sweep")
        apart(store)
        content = made.checkpoint_of(RUNS[0].split()[0], through=5).to_bytes()
        store.state(FIRST[0]).parent.mkdir()
        store.state(FIRST[0]).write_bytes(content)
        write_report(store)
    return store


@pytest.fixture
def copy(original: Store, tmp_path: Path) -> Store:
    return Store(Path(shutil.copytree(original.path, tmp_path / "sweep")))


def compute_missing(store: Store) -> None:
    """Compute runs of which a cell has no line in the ledger."""
    for run in RUNS:
        if not store.ledger().keys() >= {*run.cell_ids}:
            run_in_process(run, store, Worker(run.cells, run.data.load(), run.model))
    store.rewrite()


def assert_like_undisturbed(store: Store, original: Store) -> None:
    compute_missing(store)
    expected = original.rounds().drop(columns="seconds")
    pd.testing.assert_frame_equal(store.rounds().drop(columns="seconds"), expected)
    assert {run.status for run in store.read().runs.values()} == {Status.FINISHED}
    write_runs_table(store)
    assert verify(store) == []


def command(*arguments: str) -> tuple[int, str]:
    """Run a command; return its exit code and what it prints."""
    with cli.console.capture() as said, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CliRunner().invoke(cli.app, list(arguments), catch_exceptions=False)
    return result.exit_code, said.get()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def edit_number(file: Path) -> None:
    """Change a number in a part that stays readable."""
    table = pq.read_table(file)
    place = table.column_names.index("test_accuracy")
    one = pa.array([0.99, *table["test_accuracy"].to_pylist()[1:]])
    pq.write_table(table.set_column(place, "test_accuracy", one), file)


@pytest.mark.parametrize("damage", [Path.unlink, edit_number])
def test_cells_with_damaged_rows_count_nowhere_and_are_computed_again_after_a_repair(
    damage: Callable[[Path], None], copy: Store, original: Store
) -> None:
    before = make_runs_table(copy).drop(columns=["final", "reason", "status"])
    part = rows_file(copy, RUNS[0].id)
    damage(part)
    # A report is made of what these return.
    runs = write_runs_table(copy)
    of_first = runs["cell"].isin(FIRST)
    assert set(runs.loc[of_first, "status"]) == {"waiting"}
    assert runs.loc[of_first, "final"].isna().all()
    assert (
        runs.loc[of_first, "reason"].str.match(r"damaged: rounds/\w+.parquet is").all()
    )
    assert runs.loc[of_first, "reason"].str.endswith("computes it again").all()
    assert not {*FIRST} & set(copy.read().rows["run_id"].to_pylist())
    found = results([copy.path]).set_index("run_id").loc[RUNS[0].id]
    assert found["status"] == "waiting" and pd.isna(found["final"])
    # The others are as they were.
    names = ["cell", "rounds", "best", "total_steps"]
    pd.testing.assert_frame_equal(runs[~of_first][names], before[~of_first][names])

    findings = verify(copy)
    assert {f.cell for f in findings} - {""} == {*FIRST}
    assert any(str(f).startswith("seed=0, seed 1: rounds/") for f in findings)
    repair(copy, findings)
    assert not {*FIRST} & copy.ledger().keys()
    assert_like_undisturbed(copy, original)


def ended_rows(store: Store) -> dict[object, list[dict[str, object]]]:
    """The rows of each cell that has ended."""
    found = store.results()
    order = [(name, "ascending") for name in ORDER["rounds"]]
    rows = of_cells(found.rows, found.ends).sort_by(order).to_pylist()
    return {cell: list(own) for cell, own in groupby(rows, key=itemgetter("cell"))}


KINDS = [
    *("rounds/*", "clients/*", "models/*", "states/*", "open/*"),
    *("ledger.jsonl", "manifest.json"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_damage_in_any_file_is_named_and_no_other_result_is_read(
    kind: str, copy: Store, tmp_path: Path
) -> None:
    rng = np.random.default_rng(list(kind.encode()))
    copy.forget({OTHER[1]})
    copy.save("a", made.checkpoint_of(RUNS[1].split()[1], through=2).to_bytes())
    write_runs_table(copy)
    assert verify(copy) == [] and len(ended_rows(copy)) == 3
    for number in range(8):
        store = Store(Path(shutil.copytree(copy.path, tmp_path / f"{number}")))
        # Every other time a second file is damaged, too.
        for chosen in [kind, *rng.choice(KINDS, number % 2).tolist()]:
            files = sorted(store.path.glob(chosen))
            harm = (flip_a_bit, flip_a_bit, truncate, exchange)[rng.integers(4)]
            harm(files[rng.integers(len(files))], rng)
        findings = verify(store)
        assert findings
        assert ended_rows(store).items() <= ended_rows(copy).items()
        repair(store, findings)
        shutil.copy(copy.path / "manifest.json", store.path)
        write_runs_table(store)
        assert verify(store) == []


def damage_line(store: Store) -> None:
    file = store.file("ledger.jsonl")
    file.write_bytes(file.read_bytes().replace(b'"finished"', b'"failed"', 1))


def orphan_part(store: Store) -> None:
    end = CellEnd(cell="stranger", status=Status.FAILED)
    rows = made.rows_of(RUNS[0]).slice(0, 1)
    store.take(
        [end], rows.set_column(0, "cell", pa.array(["stranger"])), CLIENTS.empty_table()
    )
    file = store.file("ledger.jsonl")
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))


def exchange_ids(store: Store) -> None:
    file = store.file("manifest.json")
    one, other = FIRST[0], OTHER[0]
    swap = {one: other, other: one}
    text = re.sub(f"{one}|{other}", lambda found: swap[found[0]], file.read_text())
    file.write_text(text)


def edit_table(store: Store) -> None:
    runs = store.runs()
    runs.loc[0, "final"] = 0.99
    store.write_runs(runs)


Damage = Callable[[Store], object]
OTHERS: dict[str, Damage] = {
    "runs.parquet: it has no column run_id": lambda store: pq.write_table(
        pa.table({"x": [1]}), store.file("runs.parquet")
    ),
    f"runs.parquet: it has no row of replicate 1 of run {RUNS[1].id}": lambda store: (
        store.write_runs(store.runs()[:3])
    ),
    f"runs.parquet: it has no row of replicate 0 of run {RUNS[0].id}": lambda store: (
        store.write_runs(store.runs()[2:])
    ),
    "runs.parquet: its numbers are not those of the rows, first final of": edit_table,
    "ledger.jsonl, line 1: it cannot be read": damage_line,
    "rounds/.*: no cell of the ledger names it": orphan_part,
    "models/stranger.*: its cell has not ended, or kept no model": lambda store: (
        shutil.copy(store.model(FIRST[0]), store.model("stranger"))
    ),
    "seed=0, seed 0: models/.* is missing": lambda store: store.model(
        FIRST[0]
    ).unlink(),
    "open/stranger.ckpt: it cannot be read": lambda store: store.save(
        "stranger", b"nothing"
    ),
    "sweep: manifest.json: it cannot be read: its SHA-256 does not fit": exchange_ids,
    "sweep: manifest.json: .* it has no file manifest.json": lambda store: store.file(
        "manifest.json"
    ).unlink(),
}


@pytest.mark.usefixtures("reports")
@pytest.mark.parametrize("told", OTHERS)
def test_whatever_else_is_wrong_is_named_and_mended(
    told: str, copy: Store, original: Store
) -> None:
    OTHERS[told](copy)
    code, said = command("verify", str(copy.path))
    assert code == 1
    assert pd.Series(said.splitlines()).str.contains(told).any(), said
    if OTHERS[told] is exchange_ids:
        assert verify(copy)[0].where == "manifest.json"
        with pytest.raises(ValueError, match=r"manifest\.json cannot be read: its SHA"):
            results([copy.path])
    code, said = command("verify", str(copy.path), "--repair")
    # What the manifest was is known to its experiment file alone.
    assert "forgot " in said or "has no file" in told
    shutil.copy(original.path / "manifest.json", copy.path)
    assert_like_undisturbed(copy, original)


@pytest.mark.usefixtures("reports")
def test_verify_and_report_end_with_1_as_long_as_something_is_damaged(
    copy: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(copy.path)
    monkeypatch.setattr(sys, "argv", ["raysafl", "verify", path])
    assert command("verify", path) == (0, f"{path}: clean\n")
    cut(rows_file(copy, RUNS[0].id))
    code, said = command("report", path)
    assert code == 1 and "damaged" in said
    assert "damaged: rounds/" in copy.file("report.html").read_text()
    code, said = command("verify", path, "--repair")
    assert code == 0 and "forgot seed=0, seed 0" in said and said.endswith("clean\n")
    assert "damaged" not in copy.file("table.md").read_text()
    assert command("report", path)[0] == 0
    compute_missing(copy)
    # A line that cannot be read says not whose it is.
    damage_line(copy)
    assert command("results", "", path)[0] == command("report", path)[0] == 1
    for name in ("table.md", "report.html"):
        assert "1 line of the ledger cannot be read" in copy.file(name).read_text()
    repair(copy, verify(copy))
    assert command("results", "", path)[0] == command("report", path)[0] == 0
    assert "of the ledger" not in copy.file("table.md").read_text()


def test_a_warning_on_the_command_line_is_one_sentence_that_is_said_once(
    copy: Store,
) -> None:
    damage_line(copy)
    code, said = call(copy.path, "report", ".")
    assert code == 1 and said.count("cannot be read and is left out: ") == 1
    assert said.startswith("line 1 of ") and "UserWarning" not in said


def test_a_folder_that_is_written_to_is_repaired_by_its_writer_alone(
    copy: Store,
) -> None:
    with copy.lock(), pytest.raises(SweepBusyError):
        repair(Store(copy.path), [])
