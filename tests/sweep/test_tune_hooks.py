"""Tune's callbacks and stoppers that a user gives to `Runner`."""

import struct
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.logger import TBXLoggerCallback
from ray.tune.stopper import MaximumIterationStopper, TimeoutStopper
from rich.console import Console

from raysafl import Hardware, Run, Runner, Sweep, simulate
from raysafl.storage.ledger import Status
from raysafl.storage.store import Store
from raysafl.sweep.attempt import Attempt
from raysafl.sweep.on_ray.watching import HaltTrials, WatchTrials, rules_of
from raysafl.sweep.packs import PACK_KEY, Pack
from raysafl.sweep.watch import Watch


def watch_of(sweep: Sweep, folder: Path) -> Watch:
    """What follows the packs of a sweep in a new folder."""
    Store(folder).create()
    Store(folder).write_manifest(sweep.manifest())
    return Watch(Attempt(Runner(sweep, folder, quiet=True)))


class Seen(tune.Callback):
    """Collects what a callback sees of the trials."""

    def __init__(self) -> None:
        self.configs: dict[str, dict[str, Any]] = {}
        self.params: dict[str, dict[str, Any]] = {}
        self.reports: list[tuple[str, int, float]] = []

    def on_trial_result(self, iteration, trials, trial, result, **info) -> None:  # type: ignore[no-untyped-def]
        self.configs[str(trial)] = dict(trial.config)
        self.params[str(trial)] = trial.evaluated_params
        self.reports.append((str(trial), result["round"], result["test_accuracy"]))


def curve(file: Path, name: str) -> list[tuple[int, float]]:
    """The points of a curve in a file of TensorBoard's: step and value."""
    from tensorboardX.proto.event_pb2 import Event

    content = file.read_bytes()
    points = []
    while content:
        # A record is its length, a checksum of that, the event, a checksum of that.
        (length,) = struct.unpack("<Q", content[:8])
        event = Event.FromString(content[12 : 12 + length])
        content = content[16 + length :]
        points += [
            (event.step, value.simple_value)
            for value in event.summary.value
            if value.tag == name
        ]
    return points


@pytest.mark.usefixtures("ray_local")
def test_callbacks_see_each_run_by_its_labels_and_tensorboard_s_files_are_kept(
    tiny: Run, tmp_path: Path
) -> None:
    runs = {(a, 0.5): tiny.replace(seed=i) for i, a in enumerate(("FedAvg", "other"))}
    sweep = Sweep("callbacks", runs, axes=("algorithm", "q"))
    seen = Seen()
    console = Console(record=True, width=120, markup=False)
    outcome = Runner(
        sweep,
        tmp_path / "s",
        hardware=Hardware(cpus=0.5),
        executor="ray",
        track="none",
        callbacks=[seen, TBXLoggerCallback()],
        stop={"round": 3},
        console=console,
    ).run()
    assert outcome.ok
    assert set(outcome.runs["status"]) == {Status.STOPPED}
    assert set(outcome.runs["reason"]) == {"stopped by `stop` after round 3"}
    # What was stopped has the rows up to there.
    assert outcome.store.rounds()["round"].max() == 2
    assert not list((tmp_path / "s").glob("open/*"))

    name = "algorithm=FedAvg, q=0.5"
    assert set(seen.configs) == {name, "algorithm=other, q=0.5"}
    labels = {"algorithm": "FedAvg", "q": 0.5}
    assert seen.configs[name].items() >= labels.items()
    assert seen.params[name] == labels
    rounds = simulate(tiny).groupby("round").test_accuracy.mean()
    expected = [(t, pytest.approx(rounds[t - 1])) for t in (1, 2, 3)]
    assert [(t, a) for run, t, a in seen.reports if run == name] == expected

    logs = tmp_path / "s" / "logs"
    folders = sorted(folder.name.rpartition("_")[0] for folder in logs.iterdir())
    assert folders == ["algorithm=FedAvg,q=0.5", "algorithm=other,q=0.5"]
    (file,) = logs.glob("algorithm=FedAvg*/events.out.tfevents.*")
    assert curve(file, "ray/tune/test_accuracy") == expected
    assert not (tmp_path / "s" / "tune").exists()
    printed = console.export_text()
    assert f"Files of the callbacks: {logs}" in printed
    assert f"Results, table and curves: {tmp_path / 's'}" in printed


def test_a_stopper_that_ends_the_whole_sweep_interrupts_it_and_says_so_once(
    tiny: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = watch_of(Sweep("s", [tiny]), tmp_path)
    halt = HaltTrials(watch, [MaximumIterationStopper(2), TimeoutStopper(3600)])
    assert not halt.stop_all() and not watch.interrupted
    assert [halt("a", {}) for _ in range(2)] == [False, True]
    halt = HaltTrials(watch, [TimeoutStopper(1e-9)])
    halt.stop_all()
    assert halt.stop_all() and watch.interrupted
    said = [own.message for own in caplog.records if "raysafl" in own.name]
    assert len(said) == 1 and said[0].startswith("`stop` ends the sweep")


def test_a_mapping_stops_a_run_at_the_first_number_that_is_reached() -> None:
    (stopper,) = rules_of({"test_accuracy": 0.9, "round": 10})
    assert not stopper("a", {"test_accuracy": 0.8, "round": 9})
    assert stopper("a", {"test_accuracy": 0.9, "round": 9})
    assert stopper("a", {"test_accuracy": float("nan"), "round": 10})


def test_functions_stoppers_and_lists_of_them_stop_runs() -> None:
    def is_good(trial_id: str, result: dict[str, Any]) -> bool:
        return bool(result["test_loss"] < 0.1)

    patient = MaximumIterationStopper(3)
    function, same, limit = rules_of([is_good, patient, {"round": 2}])
    assert function("a", {"test_loss": 0.05}) and not function("a", {"test_loss": 1})
    assert same is patient and limit("a", {"round": 2})
    assert rules_of(None) == rules_of({}) == []


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        ({"test_acuracy": 0.9}, "'test_acuracy', which no run reports: did you mean"),
        (MaximumIterationStopper, "give a mapping"),
        (0.9, "stop is 0.9; give a mapping"),
    ],
)
def test_a_rule_to_stop_that_cannot_be_used_is_refused(stop: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        rules_of(stop, ["test_accuracy", "test_loss"])


@pytest.mark.parametrize("callbacks", [[TBXLoggerCallback], "tensorboard", Seen()])
def test_what_is_no_callback_is_refused_before_anything_runs(
    callbacks: Any, tiny: Run, tmp_path: Path
) -> None:
    runner = Runner(Sweep("s", [tiny]), tmp_path / "s", callbacks=callbacks)
    with pytest.raises(ValueError, match="give a list of Tune's callbacks"):
        runner.run()
    assert not (tmp_path / "s").exists()


def test_a_trial_is_named_by_labels_and_its_folder_has_no_odd_characters(
    tiny: Run, tmp_path: Path
) -> None:
    runs = {("../a b", None, "y" * 200): tiny}
    watch = watch_of(Sweep("s", runs, axes=("data", "n", "x")), tmp_path)
    pack = Pack(tuple(tiny.split()))
    follow = WatchTrials(watch, {pack.id: pack}, Hardware())
    one, other = (Trial("run", config={PACK_KEY: pack}, stub=True) for _ in range(2))
    assert follow.name(one).startswith("data=../a b, n=None, x=yyy")
    folder = follow.folder(one)
    assert folder.startswith("data=.._a_b,n=None,x=yyy") and pack.id[:6] in folder
    assert "/" not in folder and len(folder) < 120
    assert folder == follow.folder(other)
