"""A long sweep of small trials leaves nothing behind: no processes, handles, objects or memory."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import ray
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial

import raysafl as fl
from raysafl.cluster.ray_session import ray_session
from raysafl.storage.store import Store
from raysafl.sweep.on_ray.watching import WatchTrials

TRIALS = 150
SECONDS = 0.5
WARM = 50  # runs that have ended before the first sample that counts: every worker has trained


def trivial(seed: int) -> fl.Run:
    return fl.Run(
        data=fl.Federation(clients=20),
        model=fl.Logistic(),
        algorithm=fl.FedAvg(),
        participation=fl.Uniform(m=1),
        local=fl.LocalTraining(lr=0.1, batch_size=20, steps=1),
        rounds=1,
        seed=seed,
    )


def used(folder: Path) -> dict[str, float]:
    """What the driver and the processes below it hold now, and how many runs have ended."""
    me = psutil.Process()
    below = me.children(recursive=True)
    total, free = ray.cluster_resources(), ray.available_resources()
    ours = [p for p in below if "ray::" in " ".join(p.cmdline())]
    store = "object_store_memory"
    return {
        "ended": len(Store(folder).ledger()),
        "handles": me.num_fds(),
        "processes": len(ours),
        "driver MB": me.memory_info().rss / 2**20,
        "largest worker MB": max((p.memory_info().rss for p in ours), default=0)
        / 2**20,
        "store MB": (total.get(store, 0) - free.get(store, 0)) / 2**20,
    }


@contextmanager
def watched(folder: Path) -> Iterator[list[dict[str, float]]]:
    """Samples of `used` while the block runs."""
    samples, over = list[dict[str, float]](), threading.Event()

    def watch() -> None:
        while not over.wait(SECONDS):
            try:
                samples.append(used(folder))
            except psutil.NoSuchProcess:  # ended while it was looked at
                continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield samples
    finally:
        over.set()
        watcher.join()


def test_a_hundred_and_fifty_trials_leak_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, saved = list[Trial](), list[str]()  # what Tune keeps, and its snapshots
    save = TuneController.save_to_dir
    monkeypatch.setattr(
        WatchTrials, "on_experiment_end", lambda _, trials, **info: ended.extend(trials)
    )
    monkeypatch.setattr(
        TuneController,
        "save_to_dir",
        lambda self: [save(self), saved.append("snapshot")],
    )
    runs = {(i,): trivial(i) for i in range(TRIALS)}
    sweep = fl.Sweep("small", runs, axes=("i",))
    with ray_session(None):
        with watched(tmp_path / "s") as samples:
            hardware = fl.Hardware(trials=2, pack=1)
            outcome = fl.Runner(
                sweep, tmp_path / "s", hardware, quiet=True, track="none"
            ).run()
        alive = [
            p
            for p in psutil.Process().children(recursive=True)
            if "Clients" in p.name()
        ]
        assert outcome.ok and len(outcome.runs) == TRIALS and not alive
    busy = [sample for sample in samples if WARM <= sample["ended"] < TRIALS]
    first, last = busy[0], busy[-1]
    assert last["ended"] >= first["ended"] + TRIALS / 4
    assert last["handles"] <= first["handles"] + 5
    assert last["processes"] <= first["processes"] + 2
    assert last["store MB"] <= first["store MB"] + 1
    # Tune keeps what it knows of each trial.
    assert last["driver MB"] <= first["driver MB"] + 25
    assert last["largest worker MB"] <= first["largest worker MB"] + 25
    assert len(ended) == TRIALS and 1 <= len(saved) <= 2
