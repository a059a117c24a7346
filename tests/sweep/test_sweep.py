"""Sweeps end to end on a real local Ray: results, resuming, failures, schedulers, searchers."""

import os
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest
from helpers.folders import contents, rows_file
from helpers.sweeps_here import go
from ray import tune

from raysafl import SAFARI, FedAvg, Hardware, LocalTraining, Run, Sweep
from raysafl.algorithms import Key
from raysafl.core.algorithm import Algorithm, Round, State
from raysafl.storage.paths import SweepBusyError
from raysafl.storage.store import Store
from raysafl.sweep.on_ray import tuning as tune_of_sweep
from raysafl.sweep.outcome import Outcome

# Tests whose subject is Ray share one; all others carry out their sweeps in this process.
on_ray = pytest.mark.usefixtures("ray_local")
FACTS = "run_id replicate round kind test_accuracy test_loss train_accuracy".split()


def go_on_ray(sweep: Sweep, out: Path, **options: object) -> tuple[Outcome, str]:
    """The same as `go` on Ray: what a test that is marked `on_ray` looks at."""
    # Each trial at the same time needs two more processes, which take seconds to start.
    options = {"hardware": Hardware(cpus=0.5, trials=1), **options}
    return go(sweep, out, executor="ray", **options)


def finish(sweep: Sweep, out: Path) -> Outcome:
    """Carry out a sweep in this process, so that a test finds it finished."""
    outcome, _ = go(sweep, out)
    assert outcome.ok
    return outcome


def grid(tiny: Run, **more: Run) -> Sweep:
    runs = {("FedAvg", s): tiny.replace({"participation.s": s}) for s in (0, 2)}
    return Sweep(
        "tiny", {**runs, **{(k, 0): v for k, v in more.items()}}, axes=("method", "s")
    )


class Broken(Algorithm):
    """Fails in its second round."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        if key.round == 1:
            raise RuntimeError("a user's mistake")
        return (yield from FedAvg().round(state, ids, key))


def test_results_are_readable_with_plain_pandas_and_name_the_configuration_and_origin(
    tiny: Run, tmp_path: Path
) -> None:
    outcome, _ = go(grid(tiny), tmp_path / "s", command="raysafl run x.py")
    rounds = pd.read_parquet(tmp_path / "s" / "rounds")
    runs = pd.read_parquet(tmp_path / "s" / "runs.parquet")
    assert len(rounds) == 2 * 2 * 4 and len(runs) == 2 * 2
    row = runs.iloc[0]
    run = Run.from_json(row["config"])
    assert run.id == row["run_id"]
    assert row["torch"] and row["host"] and row["seconds"] > 0
    last = rounds[rounds.cell == run.cell_ids[row["replicate"]]].iloc[-1]
    assert row["final"] == last["test_accuracy"]
    assert set(outcome.runs.columns) == set(runs.columns)
    ends = outcome.store.ledger()
    assert set(ends) == set(rounds.cell)
    for end in ends.values():
        assert end.status == "finished" and end.python and end.numpy and end.torch
        assert end.ray and end.raysafl and end.host and end.device and end.engine
        assert end.commit and 0 < end.seconds < 60
    first, _ = outcome.manifest.entries
    assert Run.model_validate(first.config) == grid(tiny).labelled()["FedAvg", 0]
    assert outcome.manifest.command == "raysafl run x.py"


@pytest.mark.usefixtures("reports")
def test_finished_runs_are_not_run_again_and_those_of_an_edited_grid_are(
    tiny: Run, tmp_path: Path
) -> None:
    """Rows of earlier runs stay, with the seconds that they took."""
    sweep = grid(tiny, other=tiny.replace(rounds=2))
    first = finish(sweep, tmp_path / "s")
    files = contents(tmp_path / "s" / "rounds")
    # As if the driver had been killed before it.
    (tmp_path / "s" / "report.html").unlink()
    again, said = go(sweep, tmp_path / "s")
    assert again.skipped == 3 and "runs to do" not in said
    assert "3 runs were finished before" in said
    assert (tmp_path / "s" / "report.html").is_file()
    assert contents(tmp_path / "s" / "rounds") == files

    kept = {run.id for run in grid(tiny).labelled().values()}
    before = first.store.rounds(kept)
    sweep = grid(tiny, other=tiny.replace(rounds=3))
    ids = {run.id for run in sweep.labelled().values()}
    edited, _ = go(sweep, tmp_path / "s")
    assert edited.ok and (edited.skipped, len(edited.runs)) == (2, 6)
    assert edited.shown == ids - kept
    pd.testing.assert_frame_equal(edited.store.rounds(kept), before, check_exact=True)

    anew, _ = go(sweep, tmp_path / "s", resume=False)
    assert anew.ok and (anew.skipped, len(anew.runs)) == (0, 6) and anew.shown == ids
    # The results of others stay in the folder.
    assert len(anew.store.ledger()) == 2 * 4
    assert len(anew.store.files("rounds")) == 1
    pd.testing.assert_frame_equal(anew.store.rounds(kept)[FACTS], before[FACTS])


def test_only_runs_what_bears_the_labels_and_says_the_nearest_for_others(
    tiny: Run, tmp_path: Path
) -> None:
    outcome, _ = go(grid(tiny), tmp_path / "s", executor="here", only={"s": "2"})
    assert outcome.ok and set(outcome.runs["label.s"]) == {2}
    with pytest.raises(ValueError, match="no run has all the labels method=SAFARI"):
        safari = grid(tiny, SAFARI=tiny.replace(algorithm=SAFARI()))
        go(safari, tmp_path / "s", only={"method": "SAFARI", "s": "2"})
    with pytest.raises(ValueError, match="no axis 'metod': did you mean 'method'"):
        go(grid(tiny), tmp_path / "s", only={"metod": "FedAvg"})


def test_failed_and_diverged_runs_are_recorded_with_the_reason_and_the_rest_goes_on(
    tiny: Run, tmp_path: Path
) -> None:
    wild = tiny.replace(local=LocalTraining(lr=1e38, batch_size=8, epochs=1))
    sweep = grid(tiny, Broken=tiny.replace(algorithm=Broken()), Wild=wild)
    outcome, said = go(sweep, tmp_path / "s")
    by_status = outcome.runs.groupby("label.method")["status"].agg(set).to_dict()
    ends = {"FedAvg": "finished", "Broken": "failed", "Wild": "diverged"}
    assert by_status == {name: {status} for name, status in ends.items()}
    assert not outcome.ok and outcome.missing == 0
    assert "): RuntimeError: a user's mistake" in said
    assert "failed, 2 of 2 seeds: round (test_sweep.py:" in said
    reason = outcome.runs.set_index("label.method").loc["Wild", "reason"].iloc[0]
    assert reason.startswith("round ") and "not finite" in reason
    # What failed is tried again, what diverged is not.
    before = outcome.store.rounds()
    again, _ = go(sweep, tmp_path / "s", executor="here")
    broken = sweep.labelled()[("Broken", 0)].id
    assert again.skipped == 3 and again.shown == {broken}
    assert again.store.ledger()[broken].status == "failed"
    others = before[before["run_id"] != broken].reset_index(drop=True)
    pd.testing.assert_frame_equal(again.store.rounds(others["run_id"].unique()), others)


def test_a_grid_search_space_becomes_labelled_runs(tiny: Run, tmp_path: Path) -> None:
    space = {
        "algorithm.client_prob": tune.grid_search([0.3, 0.9]),
        "data.server.n0": tune.grid_search([20]),
    }
    sweep = Sweep("grid", space=space, base=tiny.replace(algorithm=SAFARI()))
    assert sweep.is_grid and list(sweep.labelled()) == [(0.3, 20), (0.9, 20)]
    outcome = finish(sweep, tmp_path / "s")
    assert set(outcome.runs["config.algorithm.client_prob"]) == {"0.3", "0.9"}


def test_sampled_runs_are_named_recorded_and_recognised_when_sampled_again(
    tiny: Run, tmp_path: Path
) -> None:
    base = tiny.replace(algorithm=SAFARI())
    space = {
        "algorithm.client_prob": tune.uniform(0, 1),
        "local.lr": tune.choice([0.1, 0.2]),
    }
    sweep = Sweep("sampled", space=space, base=base, num_samples=2)
    first, _ = go(sweep, tmp_path / "s")
    assert first.ok and len(first.manifest.entries) == 2
    assert first.manifest.entries[0].labels.keys() == space.keys()
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "s" / "rounds").iterdir()}
    second, _ = go(sweep, tmp_path / "s")
    assert {e.run_id for e in second.manifest.entries} == {
        e.run_id for e in first.manifest.entries
    }
    assert all(p.stat().st_mtime_ns == then for p, then in stamps.items())


@on_ray
@pytest.mark.acceptance
@pytest.mark.filterwarnings("ignore:.*left out:UserWarning")
def test_asha_stops_bad_trials_early_and_keeps_what_they_did(
    tiny: Run, tmp_path: Path
) -> None:
    def swept() -> Sweep:
        # A scheduler serves one experiment of Tune only.
        rates = [0.5, 1e-6, 1e-8]
        return Sweep(
            "asha",
            space={"local.lr": tune.grid_search(rates)},
            base=tiny.replace(rounds=20),
            scheduler=tune.schedulers.ASHAScheduler(
                time_attr="round", grace_period=2, max_t=20, reduction_factor=2
            ),
        )

    outcome, _ = go_on_ray(swept(), tmp_path / "s")
    by_rate = outcome.runs.set_index("label.local.lr")
    assert set(by_rate.loc[0.5, "status"]) == {"finished"}
    stopped = by_rate[by_rate.status == "stopped"]
    assert len(stopped) > 0 and (stopped["rounds"] < 20).all()
    assert (stopped["rounds"] >= 2).all()
    assert outcome.ok  # a stop by the scheduler is no failure
    # One that was stopped is run again if its rows are gone, and the others are not.
    rows_file(outcome.store, stopped["run_id"].iloc[0]).unlink()
    again, said = go_on_ray(swept(), tmp_path / "s")
    assert again.ok and len(again.runs) == len(outcome.runs)
    assert "is run again" in said


@on_ray
@pytest.mark.acceptance
def test_optuna_proposes_runs_and_sees_their_accuracy(
    tiny: Run, tmp_path: Path
) -> None:
    pytest.importorskip("optuna")
    from ray.tune.search.optuna import OptunaSearch

    told = []

    class Told(OptunaSearch):
        def on_trial_complete(self, trial_id, result=None, error=False) -> None:  # type: ignore[no-untyped-def]
            told.append(result["test_accuracy"])
            super().on_trial_complete(trial_id, result, error)

    sweep = Sweep(
        "optuna",
        space={"local.lr": tune.loguniform(1e-3, 1.0)},
        base=tiny.replace(replicates=1),
        num_samples=4,
        search_alg=Told(metric="test_accuracy", mode="max", seed=0),
    )
    outcome, _ = go_on_ray(sweep, tmp_path / "s")
    assert outcome.ok and len(outcome.runs) == 4
    assert outcome.runs["label.local.lr"].nunique() == 4
    assert sorted(told) == pytest.approx(sorted(outcome.runs["final"]))


def test_a_second_writer_into_the_same_folder_is_told_so(
    tiny: Run, tmp_path: Path
) -> None:
    store = Store(tmp_path / "s")
    store.create()
    with store.lock(), pytest.raises(SweepBusyError, match="another raysafl process"):
        go(grid(tiny), tmp_path / "s")


@on_ray
@pytest.mark.acceptance
def test_a_killed_coordinator_is_started_again_and_the_result_is_the_same(
    tiny: Run, tmp_path: Path
) -> None:
    """The algorithm kills its own process once, in round 2; Tune tries the trial again."""
    flag = tmp_path / "killed"

    class Murder(Algorithm):
        def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
            if key.round == 2 and not flag.exists():
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return (yield from FedAvg().round(state, ids, key))

    run = tiny.replace(algorithm=Murder())
    outcome, _ = go_on_ray(Sweep("m", [run]), tmp_path / "s", flush_seconds=0.0)
    assert flag.exists() and outcome.ok
    expected, _ = go(Sweep("f", [tiny]), tmp_path / "f", executor="here")
    columns = [c for c in FACTS if c != "run_id"]
    pd.testing.assert_frame_equal(
        outcome.store.rounds()[columns], expected.store.rounds()[columns]
    )


class Deadly(Algorithm):
    """Kills its process in round 2, each time."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        if key.round == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return (yield from FedAvg().round(state, ids, key))


@on_ray
@pytest.mark.acceptance
def test_of_a_pack_whose_coordinator_is_killed_by_one_run_that_run_alone_fails(
    tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver tries halves of the pack, down to the run that is the cause.

    It starts none of them again, which saves two thirds of the time: that it does is shown
    by the test before.
    """
    monkeypatch.setattr(tune_of_sweep, "TRIAL_RETRIES", 0)
    # Each seed more is one more that is tried by itself.
    tiny = tiny.replace(replicates=1)
    short = tiny.replace(rounds=2)
    sweep = grid(tiny, deadly=tiny.replace(algorithm=Deadly()), short=short)
    outcome, said = go_on_ray(sweep, tmp_path / "s", flush_seconds=0.0)
    by_method = outcome.runs.groupby("label.method")["status"].agg(set).to_dict()
    ends = {"FedAvg": "finished", "deadly": "failed", "short": "finished"}
    assert by_method == {name: {status} for name, status in ends.items()}
    assert [f"[{k}/4]" in said for k in range(1, 6)] == [True] * 4 + [False]
    expected = finish(grid(tiny, short=short), tmp_path / "f").store.rounds()
    found = outcome.store.rounds(expected["run_id"].unique())
    pd.testing.assert_frame_equal(found[FACTS], expected[FACTS])


@on_ray
def test_a_sweep_of_another_thread_waits_until_ray_is_free() -> None:
    def use() -> None:
        with tune_of_sweep.OnRay(Hardware(cpus=0.5), None, print).started():
            pass

    with ThreadPoolExecutor(1) as thread:
        with tune_of_sweep.OnRay(Hardware(cpus=0.5), None, print).started():
            other = thread.submit(use)
            with pytest.raises(TimeoutError):
                other.result(timeout=0.5)
        other.result(timeout=60)
