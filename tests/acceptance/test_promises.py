"""Nothing wrong is shown as finished: a test or more for each promise, through the command.

The command is called in this process: as one of its own it would take three seconds more,
some twenty times.
"""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from helpers.commands import call_here

EXPERIMENT = """
import dataclasses

import torch

import raysafl as fl
from raysafl.quickstart import BASE


class Mine(fl.Algorithm):
    lr: float = 1.0

    def round(self, state, ids, key):
        update = yield fl.Train(state.w_P, ids)
        w_P = state.w_P - self.lr * update.delta_MP.mean(0)
        return dataclasses.replace(state, w_P=w_P)


class Frozen(fl.Model):
    def build(self, input_shape, num_classes):
        first = torch.nn.Linear(64, 32)
        first.requires_grad_(False)
        return torch.nn.Sequential(torch.nn.Flatten(), first, torch.nn.Linear(32, 10))


ONE = BASE.replace(algorithm=fl.FedAvg(), rounds=4, replicates=1)
RUNS = {
    "mine": ONE.replace(algorithm=Mine()),
    "frozen": ONE.replace(model=Frozen()),
    "shared": ONE.replace({"data.share": 0.5}),
}
SWEEP = fl.Sweep("promises", {(k,): v for k, v in RUNS.items()}, axes=("what",), title="TITLE")
"""
COMMAND = [
    "run",
    "mine.py",
    "--out",
    "out",
    "--executor",
    "here",
    "--track",
    "none",
]
FLOAT_BYTES = 4


def call(folder: Path, *arguments: str) -> tuple[int, str]:
    """Return the exit code of `raysafl ARGUMENTS` in a folder, and all it printed, as one line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        code, said = call_here(patch, *arguments)
    return code, " ".join(said.split())


def rows(folder: Path) -> pd.DataFrame:
    """All rows of the sweep in a folder, without the clock's column."""
    found = pd.concat(map(pd.read_parquet, sorted(folder.glob("rounds/**/*.parquet"))))
    found = found.drop(columns="seconds").sort_values(["run_id", "round"])
    return found.reset_index(drop=True)


def rows_of(folder: Path, label: str) -> pd.DataFrame:
    """The rows of the run with this label."""
    runs = pd.read_parquet(folder / "runs.parquet").set_index("label.what")
    found = rows(folder)
    return found[found["run_id"] == runs.loc[label, "run_id"]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `mine.py` and its finished sweep in `out`; not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "mine.py").write_text(EXPERIMENT)
    code, said = call(folder, *COMMAND)
    assert code == 0, said
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of the folder with the finished sweep."""
    return shutil.copytree(finished, tmp_path / "copy")


def edit(folder: Path, old: str, new: str) -> None:
    """Replace a text in the experiment file."""
    file = folder / "mine.py"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def test_1_a_finished_run_whose_rows_are_gone_is_run_again(
    folder: Path, finished: Path
) -> None:
    next((folder / "out" / "rounds").rglob("*.parquet")).unlink()
    code, said = call(folder, *COMMAND)
    assert code == 0, said
    pd.testing.assert_frame_equal(rows(folder / "out"), rows(finished / "out"))


def test_2_results_of_edited_code_are_not_served_and_the_class_is_named(
    folder: Path,
) -> None:
    edit(folder, "- self.lr", "+ self.lr")
    code, said = call(folder, *COMMAND)
    assert code == 2 and "Mine" in said and "--stale" in said


@pytest.mark.parametrize(
    "wrong",
    [
        'table=fl.Table(rows=["what"], statistic="fnal")',
        'table=fl.Table(rows=["waht"])',
        'table=fl.Table(baseline="nobody")',
    ],
)
def test_4_a_wrong_sweep_is_refused_and_its_folder_stays_as_it_was(
    folder: Path, wrong: str
) -> None:
    edit(folder, 'title="TITLE"', wrong)
    before = {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()}
    code, said = call(folder, *COMMAND)
    after = {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()}
    assert code == 2 and "Traceback" not in said, said
    assert {f: c for f, c in after.items() if "__pycache__" not in f.parts} == {
        f: c for f, c in before.items() if "__pycache__" not in f.parts
    }


def test_5_the_report_of_a_finished_sweep_has_an_edited_title(folder: Path) -> None:
    edit(folder, "TITLE", "ANOTHER")
    code, said = call(folder, *COMMAND)
    assert code == 0, said
    assert "ANOTHER" in (folder / "out" / "report.html").read_text()


def test_6_a_mistake_in_the_users_class_is_told_with_its_line_before_anything_runs(
    folder: Path,
) -> None:
    edit(folder, "update = yield fl.Train(state.w_P, ids)", "update = (yield).nothing")
    shutil.rmtree(folder / "out")
    code, said = call(folder, *COMMAND)
    assert code == 2 and "Mine" in said and "mine.py" in said
    assert not (folder / "out").exists()


def test_7_frozen_parameters_are_not_sent_in_every_round(folder: Path) -> None:
    last = rows_of(folder / "out", "frozen").iloc[-1]
    trained = 32 * 10 + 10
    assert last["bytes_up"] == len(last["cohorts"][-1]) * trained * FLOAT_BYTES


def test_8_a_checkpoint_of_another_run_is_not_continued(
    finished: Path, tmp_path: Path
) -> None:
    shutil.copy(finished / "mine.py", tmp_path)
    runs = pd.read_parquet(finished / "out" / "runs.parquet")
    run_id = runs.set_index("label.what").loc["shared", "run_id"]
    file = tmp_path / "out" / "open" / f"{run_id}.ckpt"
    file.parent.mkdir(parents=True)
    shutil.copy(checkpoint_of_another_run(tmp_path / "theirs"), file)
    code, said = call(tmp_path, *COMMAND)
    assert code == 0, said
    pd.testing.assert_frame_equal(rows(tmp_path / "out"), rows(finished / "out"))


def checkpoint_of_another_run(folder: Path) -> Path:
    """A checkpoint after the first rounds of a run that differs in its learning rate alone."""
    from raysafl import FedAvg
    from raysafl.quickstart import BASE
    from raysafl.runtime.in_process import Worker
    from raysafl.storage.store import Store
    from raysafl.sweep.session import Session

    run = BASE.replace(algorithm=FedAvg(), rounds=4, replicates=1)
    run = run.replace({"data.share": 0.5, "local.lr": 0.9})
    store = Store(folder)
    store.create()
    work = Worker(run.cells, run.data.load(), run.model)
    session = Session([run], store, work, {})
    session.advance(0.0)
    session.flush()
    return folder / "open" / f"{run.id}.ckpt"


def test_8_a_sweep_that_lies_in_two_folders_is_in_mlflow_once(folder: Path) -> None:
    uri = f"sqlite:///{folder}/shared.db"
    for place in ("a", "b"):
        shutil.copytree(folder / "out", folder / place / "promises")
        code, said = call(folder, "sync", f"{place}/promises", "--tracking-uri", uri)
        assert code == 0, said
    with closing(sqlite3.connect(folder / "shared.db")) as database:
        query = (
            "select count(*) from tags join runs using (run_uuid) "
            "where key = 'raysafl.run_id' and lifecycle_stage = 'active'"
        )
        assert database.execute(query).fetchone() == (3,)


def test_9_odd_queries_end_without_a_traceback(folder: Path) -> None:
    for query in ("1/0 == 1", "9**9**9**9 > 1"):
        code, said = call(folder, "results", query, "out")
        assert code == 0 and "Traceback" not in said, said
