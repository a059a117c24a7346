"""An experiment file is edited between two `raysafl run`: what becomes of old results."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from helpers.folders import contents as every_file
from helpers.here import interrupt_in_process
from helpers.sweeps_here import go, rows_of, search

from raysafl import Sweep
from raysafl.runtime.in_process import Worker
from raysafl.storage.store import Store
from raysafl.sweep.experiment_file import load_sweep

EXPERIMENT = '''
from dataclasses import replace

from raysafl import *
from raysafl.quickstart import BASE

SMALL = BASE.replace(rounds=3, replicates=1, eval_every=1)


def scaled(x):
    return 1.0 * x  # a comment


class Mine(Algorithm):
    """An algorithm."""

    lr: float = 1.0

    def round(self, state, ids, key):
        update = yield Train(state.w_P, ids)
        step = scaled(update.delta_MP.mean(0))
        return replace(state, w_P=state.w_P - self.lr * step)


GRID = [0.1, 0.2]
RUNS = {("Mine", lr): SMALL.replace(algorithm=Mine(lr=lr)) for lr in GRID}
RUNS["FedAvg", 1.0] = SMALL
SWEEP = Sweep("s", RUNS, ["method", "lr"])
'''
BODY = ("state.w_P - self.lr", "state.w_P + self.lr")
FUNCTION = ("1.0 * x", "-1.0 * x")


@pytest.fixture(autouse=True)
def _forget_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A file that is edited within a second may not be taken from its compiled form."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    for name in list(sys.modules):
        if name.startswith("raysafl_experiment_stale_"):
            del sys.modules[name]


def edited(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def written(folder: Path, *edits: tuple[str, str]) -> Sweep:
    """The sweep of the experiment file after some edits."""
    text = EXPERIMENT
    for old, new in edits:
        text = edited(text, old, new)
    (folder / "stale_file.py").write_text(text)
    return load_sweep(folder / "stale_file.py")


def contents(folder: Path) -> dict[Path, bytes]:
    return {f: own for f, own in every_file(folder).items() if f.name != ".lock"}


def interrupt(sweep: Sweep, out: Path) -> None:
    """Leave the sweep's first run in its first round, with a checkpoint."""
    run = next(iter(sweep.labelled().values()))
    store = Store(out)
    interrupt_in_process(run, store, Worker(run.cells, run.data.load(), run.model))
    assert list(store.going_on().cells) == [run.id] and not store.ledger()


def test_edited_code_is_refused_by_name_and_nothing_is_written(tmp_path: Path) -> None:
    out = tmp_path / "s"
    harmless = (
        ("# a comment", "# another"),
        ("GRID = [0.1, 0.2]", "GRID = [0.1, 0.2, 3]"),
    )
    go(written(tmp_path), out)
    outcome, said = go(written(tmp_path, *harmless), out)
    assert outcome.skipped == 3 and outcome.ok and "changed" not in said
    before = contents(out)
    with pytest.raises(ValueError) as error:
        go(written(tmp_path, FUNCTION), out)
    said = str(error.value)
    assert "the code of Mine has changed since 2 runs were computed" in said
    assert "method=Mine, lr=0.1; method=Mine, lr=0.2" in said and "FedAvg" not in said
    assert all(f"'{choice}'" in said for choice in ("rerun", "keep", "fail"))
    assert contents(out) == before


def test_more_seeds_and_rounds_take_over_nothing_that_other_code_has_computed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    go(written(tmp_path), tmp_path / "s", keep_states=True)
    seeds = ("replicates=1", "replicates=2")
    with pytest.raises(ValueError, match="Mine has changed since 2 runs were computed"):
        go(written(tmp_path, BODY, seeds), tmp_path / "s")
    longer = (BODY, ("rounds=3", "rounds=5"))
    grown, _ = go(written(tmp_path, *longer), tmp_path / "s")
    said = [r.message for r in caplog.records if "begins anew" in r.message]
    assert len(said) == 2 and "the code of Mine has changed since" in said[0]
    fresh, _ = go(written(tmp_path, *longer), tmp_path / "fresh")
    pd.testing.assert_frame_equal(rows_of(grown), rows_of(fresh))


def test_rerun_computes_the_changed_runs_again_and_no_others(tmp_path: Path) -> None:
    first, _ = go(written(tmp_path), tmp_path / "s")
    old = first.store.rounds().set_index("run_id")
    outcome, said = go(written(tmp_path, BODY), tmp_path / "s", stale="rerun")
    assert outcome.ok and outcome.skipped == 1
    assert "has changed since 2 runs were computed" in said
    fresh, _ = go(written(tmp_path, BODY), tmp_path / "fresh")
    new = outcome.store.rounds().set_index("run_id")
    expected = fresh.store.rounds().set_index("run_id")
    columns = ["round", "test_accuracy", "test_loss"]
    assert new[columns].equals(expected[columns])
    assert not new[columns].equals(old[columns])
    again, said = go(written(tmp_path, BODY), tmp_path / "s")
    assert again.skipped == 3 and "runs to do" not in said


def test_an_edit_that_does_not_work_is_found_before_old_results_are_deleted(
    tmp_path: Path,
) -> None:
    go(written(tmp_path), tmp_path / "s")
    before = contents(tmp_path / "s")
    with pytest.raises(ValueError, match="name 'stap' is not defined"):
        edit = ("self.lr * step", "self.lr * stap")
        again = {"stale": "rerun", "try_first": True}
        go(written(tmp_path, edit), tmp_path / "s", **again)
    assert contents(tmp_path / "s") == before


def test_keep_keeps_the_old_results_and_says_so(tmp_path: Path) -> None:
    first, _ = go(written(tmp_path), tmp_path / "s")
    before = contents(tmp_path / "s" / "rounds")
    outcome, said = go(written(tmp_path, BODY), tmp_path / "s", stale="keep")
    assert outcome.skipped == 3 and "Their results are kept" in said
    assert contents(tmp_path / "s" / "rounds") == before
    assert first.runs.equals(outcome.runs)


@pytest.mark.parametrize("stale", ["rerun", "keep"])
def test_a_checkpoint_of_other_code_is_never_continued(
    stale: str, tmp_path: Path
) -> None:
    out = tmp_path / "s"
    interrupt(written(tmp_path), out)
    before = contents(out)
    with pytest.raises(ValueError, match="Mine has changed since 1 run was computed"):
        go(written(tmp_path, BODY), out)
    assert contents(out) == before
    outcome, said = go(written(tmp_path, BODY), out, stale=stale)
    assert outcome.ok and "run again from the first round" in said
    fresh, _ = go(written(tmp_path, BODY), tmp_path / "fresh")
    columns = ["run_id", "round", "test_loss"]
    assert outcome.store.rounds()[columns].equals(fresh.store.rounds()[columns])


SEARCHED = (
    'SWEEP = Sweep("s", RUNS, ["method", "lr"])',
    """
from ray import tune

class Fixed(tune.search.Searcher):
    def set_search_properties(self, metric, mode, config, **spec):
        return True

    def suggest(self, trial_id):
        return {"algorithm.lr": GRID[int(trial_id)]}

    def on_trial_complete(self, trial_id, result=None, error=False):
        pass

SPACE = {"algorithm.lr": tune.uniform(0.1, 0.2)}
SWEEP = Sweep("s", space=SPACE, base=SMALL.replace(algorithm=Mine()), num_samples=2,
              search_alg=Fixed())
""",
)


def test_runs_that_a_search_algorithm_asked_for_are_checked_as_well(
    tmp_path: Path,
) -> None:
    out = tmp_path / "s"
    first, _ = search(written(tmp_path, SEARCHED), out)
    assert first.ok and len(first.manifest.entries) == 2
    again, said = search(written(tmp_path, SEARCHED), out)
    assert "changed" not in said and again.runs["final"].equals(first.runs["final"])
    before = contents(out)
    with pytest.raises(ValueError, match=r"2 runs were computed: algorithm\.lr=0\."):
        search(written(tmp_path, SEARCHED, BODY), out)
    assert contents(out) == before
    outcome, _ = search(written(tmp_path, SEARCHED, BODY), out, stale="rerun")
    assert outcome.ok and not outcome.runs["final"].equals(first.runs["final"])
