"""Sweeps in this process: the same rows as on Ray, and everything else of a sweep."""

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.killed import killed_in_round
from helpers.killed import sweep as sweep_that_is_killed
from helpers.sweeps_here import go, rows_of
from ray import tune
from ray.tune.search import Searcher
from torch import nn

import raysafl as fl
from raysafl.algorithms import SCAFFOLD, Key, Round, State
from raysafl.storage.store import Store
from raysafl.sweep import here
from raysafl.sweep.choices import ExecutorName
from raysafl.sweep.new_runs import choose
from raysafl.sweep.packs import Pack

THREADS: set[int] = set()


class NotesThreads(fl.Logistic):
    """Notes how many threads torch has where it is built: in each process that trains."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        THREADS.add(torch.get_num_threads())
        return super().build(input_shape, num_classes)


def test_torch_has_one_thread_from_the_checks_on_unless_cpus_says_more(
    tiny: fl.Run, tmp_path: Path
) -> None:
    own = tiny.replace(model=NotesThreads())
    hardware = {1: fl.Hardware(), 3: fl.Hardware(cpus=3)}
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for threads, given in hardware.items():
            THREADS.clear()
            sweep = fl.Sweep("threads", {("a",): own}, axes=("x",))
            go(sweep, tmp_path / str(threads), hardware=given)
            assert THREADS == {1, threads}
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def grid(tiny: fl.Run) -> fl.Sweep:
    algorithms = {"FedAvg": fl.FedAvg(), "SAFARI": fl.SAFARI(), "SCAFFOLD": SCAFFOLD()}
    kept = tiny.replace(keep="last", eval_clients=fl.PerClient(on="labels", every=2))
    runs = {(name,): kept.replace(algorithm=own) for name, own in algorithms.items()}
    return fl.Sweep("grid", runs, axes=["algorithm"])


def own_data(tiny: fl.Run) -> fl.Run:
    """A run on data that exist in this process only."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(120, 3)), columns=list("abc"))
    table["above"] = np.where(table.a > table.b, "yes", "no")
    table["town"] = rng.choice(["Bern", "Genf", "Basel", "Chur"], 120)
    source = fl.from_pandas(table, label="above", client="town", test_share=0.25)
    data = fl.Federation(
        dataset=source, clients=4, partition=fl.ByColumn(column="town")
    )
    return tiny.replace(data=data, participation=fl.Uniform(m=2))


@pytest.mark.usefixtures("reports")
@pytest.mark.usefixtures("ray_local")
def test_rows_clients_kept_models_and_files_are_those_of_a_sweep_on_ray(
    tiny: fl.Run, tmp_path: Path
) -> None:
    # No checkpoint is made, which is another file of a slow machine.
    options: dict[str, Any] = {"flush_seconds": 1e6}
    hardware = fl.Hardware(cpus=0.5, trials=1)
    runs = {**grid(tiny).labelled(), ("own data",): own_data(tiny)}
    sweep = fl.Sweep("grid", runs, axes=["algorithm"])
    alone, _ = go(sweep, tmp_path / "h", **options)
    options |= {"executor": "ray", "hardware": hardware}
    on_ray, said = go(sweep, tmp_path / "r", **options)
    assert on_ray.ok and alone.ok and "[4/4]" in said
    folders = [tmp_path / "r", tmp_path / "h"]
    files = [{p.name for p in f.iterdir() if p.name[0] != "."} for f in folders]
    assert files[0] == files[1] >= {"manifest.json", "runs.parquet", "curves.png"}
    pd.testing.assert_frame_equal(rows_of(alone), rows_of(on_ray))
    stores = alone.store, on_ray.store
    clients, of_ray = (store.clients() for store in stores)
    pd.testing.assert_frame_equal(clients, of_ray)
    assert not clients.empty
    ends, of_ray = (store.ledger() for store in stores)
    kept = {cell: end.kept for cell, end in ends.items()}
    assert kept == {cell: end.kept for cell, end in of_ray.items()}
    assert sum(map(bool, kept.values())) == 6


class Interrupted(fl.Algorithm):
    """FedAvg in whose third round Ctrl-C is pressed, once a test."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        if key.round == 2 and not SENT:
            SENT.append(key.round)
            os.kill(os.getpid(), signal.SIGINT)
        return (yield from fl.FedAvg().round(state, ids, key))


SENT: list[int] = []


@pytest.fixture
def _unsent() -> Iterator[None]:
    SENT.clear()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
    SENT.clear()


@pytest.mark.usefixtures("_unsent")
@pytest.mark.parametrize(("seconds", "saved"), [(0.0, 1), (30.0, 0)])
def test_after_ctrl_c_a_run_goes_on_from_its_checkpoint_to_the_same_rows(
    seconds: float, saved: int, tiny: fl.Run, tmp_path: Path
) -> None:
    """A checkpoint of half a round would make other rows when the run goes on."""
    run = tiny.replace(algorithm=Interrupted(), rounds=6)
    sweep = fl.Sweep("s", [run])
    with pytest.raises(KeyboardInterrupt):
        go(sweep, tmp_path / "s", try_first=False, flush_seconds=seconds)
    store = Store(tmp_path / "s")
    names = [Pack(tuple(run.split())).id] * saved
    assert [file.stem for file in store.files("open")] == names
    assert not (tmp_path / "s" / "tune").exists() and not store.ledger()
    outcome, _ = go(sweep, tmp_path / "s", try_first=False)
    undisturbed, _ = go(sweep, tmp_path / "u", try_first=False)
    assert outcome.ok
    pd.testing.assert_frame_equal(rows_of(outcome), rows_of(undisturbed))


def test_a_driver_that_is_killed_goes_on_to_the_undisturbed_rows(
    tmp_path: Path,
) -> None:
    """The seeds of the short run had ended, and those of the longer one had a checkpoint."""
    assert killed_in_round(5, tmp_path / "s") == -signal.SIGKILL
    store = Store(tmp_path / "s")
    short, long = sweep_that_is_killed().labelled().values()
    assert set(store.ledger()) == set(short.cell_ids)
    assert {far.round for far in store.going_on(long.cell_ids).cells.values()} == {5}
    before = store.rounds(short.id)
    outcome, _ = go(sweep_that_is_killed(), tmp_path / "s")
    undisturbed, _ = go(sweep_that_is_killed(), tmp_path / "u")
    assert outcome.ok and outcome.skipped == 1
    pd.testing.assert_frame_equal(rows_of(outcome), rows_of(undisturbed))
    pd.testing.assert_frame_equal(store.rounds(short.id), before)
    assert not store.files("open")


def test_a_pack_that_cannot_be_hosted_is_tried_in_halves(
    tiny: fl.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosted = list[int]()

    def few_only(runs: Sequence[fl.Run], *rest: Any) -> Any:
        hosted.append(len(runs))
        if len(runs) > 1:
            raise MemoryError("no room for several runs")
        return worker_of(runs, *rest)

    worker_of = here.worker_of
    monkeypatch.setattr(here, "worker_of", few_only)
    outcome, _ = go(grid(tiny), tmp_path / "s")
    # Of three runs of two seeds.
    assert outcome.ok and hosted == [6, 3, 3, 1, 2, 1, 2, *4 * [1]]


@pytest.mark.parametrize(
    ("options", "sweep", "said"),
    [
        ({"address": "auto"}, {}, "the address 'auto' of a cluster is given"),
        ({"hardware": fl.Hardware(actors=2)}, {}, "2 client actors are asked for"),
        ({"hardware": fl.Hardware(autoscale=True)}, {}, "a cluster that adds nodes"),
        ({}, {"scheduler": tune.schedulers.ASHAScheduler()}, "Tune's scheduler"),
        ({}, {"search_alg": Searcher()}, "the search algorithm is Tune's"),
        ({"callbacks": [tune.Callback()]}, {}, "callbacks of Tune's are given"),
        ({"stop": {"round": 2}}, {}, "`stop` is a rule of Tune's"),
    ],
)
def test_what_only_ray_has_is_refused_before_the_folder_is_made(
    options: dict[str, Any],
    sweep: dict[str, Any],
    said: str,
    tiny: fl.Run,
    tmp_path: Path,
) -> None:
    with pytest.raises(ValueError, match=f"in this process, but {said}.*'ray'"):
        go(searched(tiny, None, **sweep), tmp_path / "s", **options)
    assert not (tmp_path / "s").exists()


SPACE = tune.uniform(0.01, 1)


def searched(tiny: fl.Run, searcher: Any, **more: Any) -> fl.Sweep:
    options = {"base": tiny, "num_samples": 3, "search_alg": searcher, **more}
    return fl.Sweep("searched", space={"local.lr": SPACE}, **options)


def asked(tiny: fl.Run, hardware: fl.Hardware | None = None, **more: Any) -> fl.Runner:
    hardware = hardware or fl.Hardware()
    return fl.Runner(searched(tiny, None, **more), hardware=hardware)


def test_auto_takes_this_process_for_less_work_than_starting_ray(
    tiny: fl.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    assert choose(asked(tiny), lambda: 0.3) == (
        ExecutorName.HERE,
        "the work takes less time than Ray takes to start, by a rough estimate",
    )
    assert choose(asked(tiny), lambda: 60.0)[0] is ExecutorName.RAY
    for hardware in (fl.Hardware(gpus=1), fl.Hardware(actors=2), fl.Hardware(trials=2)):
        assert choose(asked(tiny, hardware), lambda: 0.0)[0] is ExecutorName.RAY
    scheduler = tune.schedulers.ASHAScheduler()
    name, why = choose(asked(tiny, scheduler=scheduler), lambda: 0.0)
    assert name is ExecutorName.RAY and "scheduler" in why
