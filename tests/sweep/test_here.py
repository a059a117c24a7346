"""Sweeps in this process: the same rows as on Ray, and everything else of a sweep."""

import io
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from helpers.objectives import REGRESSION
from helpers.sweeps_here import go, rows_of
from ray import tune
from ray.tune.search import ConcurrencyLimiter, Searcher
from rich.console import Console
from torch import nn

from raysafl import (
    SAFARI,
    Algorithm,
    FedAvg,
    Hardware,
    Logistic,
    PerClient,
    Run,
    Runner,
    Sweep,
)
from raysafl.algorithms import SCAFFOLD, Key, Round, State
from raysafl.storage.ledger import Status
from raysafl.storage.store import Store
from raysafl.sweep import here
from raysafl.sweep.attempt import Attempt
from raysafl.sweep.executor_choice import check_executor, choose, choose_executor
from raysafl.sweep.executor_name import ExecutorName
from raysafl.sweep.open_pack import OpenPack
from raysafl.sweep.packs import Pack
from raysafl.sweep.sampling import draw


@pytest.mark.usefixtures("reports")
def test_results_name_the_partition_of_each_replicate_and_divide_the_spread(
    tiny: Run, tmp_path: Path
) -> None:
    run = tiny.replace({"data.seed": 5, "data.partition_seeds": 2, "replicates": 4})
    outcome, _ = go(Sweep("deals", {("a",): run}, axes=("x",)), tmp_path)
    expected = [5 + (run.seed + r) % 2 for r in range(4)]
    assert outcome.runs["partition_seed"].tolist() == expected
    (table,) = tmp_path.rglob("table.md")
    assert (
        "± is for one new partition and seed, from 2 partitions." in table.read_text()
    )


THREADS: set[int] = set()


class NotesThreads(Logistic):
    """Notes how many threads torch has where it is built: in each process that trains."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        THREADS.add(torch.get_num_threads())
        return super().build(input_shape, num_classes)


def test_torch_has_one_thread_from_the_checks_on_unless_cpus_says_more(
    tiny: Run, tmp_path: Path
) -> None:
    own = tiny.replace(model=NotesThreads())
    hardware = {1: Hardware(), 3: Hardware(cpus=3)}
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for threads, given in hardware.items():
            THREADS.clear()
            sweep = Sweep("threads", {("a",): own}, axes=("x",))
            go(sweep, tmp_path / str(threads), hardware=given)
            assert THREADS == {1, threads}
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def grid(tiny: Run) -> Sweep:
    algorithms = {"FedAvg": FedAvg(), "SAFARI": SAFARI(), "SCAFFOLD": SCAFFOLD()}
    kept = tiny.replace(keep="last", eval_clients=PerClient(on="labels", every=2))
    runs = {(name,): kept.replace(algorithm=own) for name, own in algorithms.items()}
    return Sweep("grid", runs, axes=["algorithm"])


@pytest.mark.usefixtures("reports")
@pytest.mark.usefixtures("ray_local")
def test_rows_clients_kept_models_and_files_are_those_of_a_sweep_on_ray(
    tiny: Run, tmp_path: Path
) -> None:
    hardware = Hardware(cpus=0.5, trials=1)
    on_ray, said = go(grid(tiny), tmp_path / "r", executor="ray", hardware=hardware)
    alone, _ = go(grid(tiny), tmp_path / "h")
    assert on_ray.ok and alone.ok and "[3/3]" in said
    folders = [tmp_path / "r", tmp_path / "h"]
    files = [{p.name for p in f.iterdir() if p.name[0] != "."} for f in folders]
    assert files[0] == files[1] >= {"manifest.json", "runs.parquet", "curves.png"}
    pd.testing.assert_frame_equal(rows_of(alone), rows_of(on_ray))
    for run in grid(tiny).labelled().values():
        here_, there = (o.store.ledger().get(run.id) for o in (alone, on_ray))
        assert here_ and there
        assert here_.kept == there.kept != ""
        assert here_.sums["clients"] == there.sums["clients"] != {}


def test_packs_of_any_size_give_the_same_rows(tiny: Run, tmp_path: Path) -> None:
    one, _ = go(grid(tiny), tmp_path / "1", hardware=Hardware(pack=1))
    all_, _ = go(grid(tiny), tmp_path / "3", hardware=Hardware(pack=3))
    pd.testing.assert_frame_equal(rows_of(one), rows_of(all_))


class Halving(Searcher):
    """Suggests half of the learning rate before, and remembers what it was told."""

    def __init__(self, lr: float = 0.4) -> None:
        super().__init__()
        self.lr = lr
        self.by: str | None = None
        self.better: str | None = None
        self.told: dict[str, float] = {}
        self.failed: list[str] = []
        self.space: dict[str, Any] = {}

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **_: Any
    ) -> bool:
        self.by = metric
        self.better = mode
        self.space = config
        return True

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.lr /= 2
        return {"local.lr": self.lr}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        if error:
            self.failed.append(trial_id)
            return
        assert result is not None and self.by
        self.told[trial_id] = result[self.by]

    def save(self, checkpoint_path: str) -> None:
        """Tune asks for it; nothing is kept."""

    def restore(self, checkpoint_path: str) -> None:
        """Tune asks for it; nothing is kept."""


SPACE = tune.uniform(0.01, 1)


def searched(tiny: Run, searcher: Any, **more: Any) -> Sweep:
    options = {"base": tiny, "num_samples": 3, "search_alg": searcher, **more}
    return Sweep("searched", space={"local.lr": SPACE}, **options)


def test_a_search_algorithm_is_told_every_result_also_at_a_second_attempt(
    tiny: Run, tmp_path: Path
) -> None:
    searcher = Halving()
    outcome, said = go(searched(tiny, searcher), tmp_path / "s")
    assert outcome.ok and "3 runs to do" in said
    assert set(outcome.runs["label.local.lr"]) == {0.2, 0.1, 0.05}
    final = outcome.runs.groupby("label.local.lr").final.mean()
    told = [pytest.approx(final[lr]) for lr in (0.2, 0.1, 0.05)]
    assert list(searcher.told.values()) == told and list(searcher.space) == ["local.lr"]

    again, _ = go(searched(tiny, second := Halving()), tmp_path / "s")
    assert list(second.told.values()) == list(searcher.told.values())
    pd.testing.assert_frame_equal(again.store.rounds(), outcome.store.rounds())


@pytest.mark.parametrize(
    ("limited_to", "sizes"), [(None, [8, 2]), (3, [3, 3, 3, 1]), (1, [1] * 10)]
)
def test_a_search_asks_for_several_runs_which_share_a_pack_and_tells_of_all_of_them(
    limited_to: int | None,
    sizes: list[int],
    tiny: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of them fails in its rounds, which the algorithm hears of this run alone."""
    searcher = halving = Halving()
    if limited_to:
        searcher = ConcurrencyLimiter(searcher, limited_to)
    told_before_asked: list[int] = []
    ask = halving.suggest

    def suggest(trial_id: str) -> dict[str, Any]:
        told_before_asked.append(len(halving.told) + len(halving.failed))
        return ask(trial_id)

    halving.suggest = suggest  # type: ignore[method-assign]
    packs: list[int] = []
    opened = here.OpenPack

    def open_pack(pack: Pack, *more: Any) -> OpenPack:
        packs.append(len(pack.runs))
        return opened(pack, *more)

    monkeypatch.setattr(here, "OpenPack", open_pack)

    def make(config: dict[str, Any]) -> Run:
        run = tiny.replace(config)
        return run.replace(algorithm=Fails()) if config["local.lr"] == 0.1 else run

    sweep = searched(tiny, searcher, base=make, num_samples=10)
    outcome, _ = go(sweep, tmp_path / "s", try_first=False)
    assert packs == sizes and outcome.runs["run_id"].nunique() == 10
    asked = [sum(sizes[:i]) for i, size in enumerate(sizes) for _ in range(size)]
    assert told_before_asked == asked
    assert halving.failed == ["00001"] and len(halving.told) == 9


def test_a_search_of_runs_that_a_function_makes_looks_for_their_best_at_each_attempt(
    tmp_path: Path,
) -> None:
    """The runs are judged by an error, of which the least is best."""
    for _ in range(2):
        searcher = Halving()
        sweep = searched(REGRESSION, searcher, base=REGRESSION.replace)
        outcome, _ = go(sweep, tmp_path / "s")
        assert (searcher.by, searcher.better) == ("test_mae", "min")
        errors = outcome.runs.groupby("label.local.lr").final_mae.mean()
        assert outcome.best.labels == {"local.lr": errors.idxmin()}
        assert errors.nunique() == 3 and outcome.manifest.goal == ("test_mae", "min")


def test_a_search_is_carried_out_although_some_configurations_give_no_run(
    tiny: Run, tmp_path: Path
) -> None:
    """One is drawn beforehand, for what is tried and estimated; it may be such a one."""
    refused = [config["local.lr"] for config in draw({"local.lr": SPACE}, 20)]

    def make(config: dict[str, Any]) -> Run:
        if config["local.lr"] in refused:
            raise SystemExit("no such rate")
        return tiny.replace(config)

    with pytest.raises(ValueError, match=r"made of 20 of 20 drawn conf.*no such rate"):
        go(searched(tiny, Halving(), base=make), tmp_path / "s")
    assert not (tmp_path / "s").exists()
    del refused[-1]
    outcome, _ = go(searched(tiny, Halving(), base=make), tmp_path / "s")
    assert outcome.ok and outcome.runs["run_id"].nunique() == 3


class EndsAll:
    """A stopper that ends the whole sweep at its second report."""

    def __init__(self) -> None:
        self.reports = 0

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.reports += 1
        return False

    def stop_all(self) -> bool:
        return self.reports == 2


def test_a_search_that_a_stopper_ended_lacks_the_runs_that_have_not_ended(
    tiny: Run, tmp_path: Path
) -> None:
    cut, said = go(searched(tiny, Halving()), tmp_path / "s", stop=EndsAll())
    assert (cut.ok, cut.missing) == (False, 3) and "not finished: 3 runs" in said
    # Another seed of a search asks for others, and the one that was begun stays begun.
    others, _ = go(searched(tiny, Halving(0.5)), tmp_path / "s")
    assert (others.ok, others.missing) == (True, 0)
    assert len(others.store.open_runs()) == 1
    same, _ = go(searched(tiny, Halving()), tmp_path / "s")
    assert same.ok and not same.store.open_runs()


def test_a_search_that_begins_anew_has_the_runs_that_it_asks_for_and_no_others(
    tiny: Run, tmp_path: Path
) -> None:
    go(searched(tiny, Halving()), tmp_path / "s")
    anew, _ = go(searched(tiny, Halving(0.5)), tmp_path / "s", resume=False)
    rates = [entry.labels["local.lr"] for entry in anew.manifest.entries]
    assert rates == [0.25, 0.125, 0.0625] and anew.ok


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_a_suggestion_of_which_no_run_can_be_made_fails_alone_and_the_searcher_hears_of_it(
    tiny: Run, tmp_path: Path, error: type[BaseException]
) -> None:
    def make(config: dict[str, Any]) -> Run:
        if config["local.lr"] == 0.1:
            raise error("no such rate")
        return tiny.replace(config)

    searcher = Halving()
    outcome, _ = go(searched(tiny, searcher, base=make), tmp_path / "s")
    bad = outcome.runs[outcome.runs.status == "failed"]
    assert list(bad["label.local.lr"]) == [0.1] and "no such rate" in bad.reason.item()
    assert set(outcome.runs["label.local.lr"]) == {0.2, 0.1, 0.05}
    assert list(searcher.told) == ["00000", "00002"] and searcher.failed == ["00001"]


def test_a_run_that_has_ended_keeps_its_rows_where_its_data_cannot_be_loaded_any_more(
    tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = go(searched(tiny, Halving()), tmp_path / "s")

    def lost(run: Run, datasets: object) -> None:
        raise ValueError("the data are gone")

    monkeypatch.setattr("raysafl.sweep.sampler.dataset_of", lost)
    again, _ = go(searched(tiny, Halving()), tmp_path / "s")
    assert again.ok
    pd.testing.assert_frame_equal(again.store.rounds(), first.store.rounds())


def test_a_random_space_gives_the_runs_that_tune_would_draw(
    tiny: Run, tmp_path: Path
) -> None:
    outcome, _ = go(searched(tiny, None), tmp_path / "s")
    drawn = {config["local.lr"] for config in draw({"local.lr": SPACE}, 3)}
    assert outcome.ok and set(outcome.runs["label.local.lr"]) == drawn
    again, _ = go(searched(tiny, None), tmp_path / "s")
    assert again.skipped == len(drawn) == 3


def test_a_rule_stops_a_run_without_callbacks_and_its_rows_stay(
    tiny: Run, tmp_path: Path
) -> None:
    outcome, _ = go(grid(tiny), tmp_path / "s", stop={"round": 2})
    assert set(outcome.runs["status"]) == {Status.STOPPED}
    assert set(outcome.runs["reason"]) == {"stopped by `stop` after round 2"}
    assert set(outcome.store.rounds()["round"]) == {0, 1}


def test_a_rule_hears_of_every_evaluated_round_and_a_whole_run_is_not_called_stopped(
    tiny: Run, tmp_path: Path
) -> None:
    heard: list[int] = []

    def rule(trial_id: str, result: dict[str, Any]) -> bool:
        heard.append(result["round"])
        return bool(result["done"])

    outcome, _ = go(Sweep("s", [tiny]), tmp_path / "s", stop=rule)
    assert heard == [1, 2, 3, 4] and tiny.rounds == 4
    assert set(outcome.runs["status"]) == {Status.FINISHED}


def test_a_searcher_is_told_of_stopped_runs_what_they_reported_at_every_attempt(
    tiny: Run, tmp_path: Path
) -> None:
    first, again = Halving(), Halving()
    for searcher in (first, again):
        _, said = go(searched(tiny, searcher), tmp_path / "s", stop={"round": 2})
        assert "stopped by `stop` after round 2, test accuracy " in said
    assert again.told == first.told and len(first.told) == 3
    assert all(0 <= value <= 1 for value in first.told.values())


def test_the_ledger_says_of_a_stopped_run_where_and_with_what_it_ran(
    tiny: Run, tmp_path: Path
) -> None:
    whole, _ = go(Sweep("s", [tiny]), tmp_path / "w")
    stopped, _ = go(Sweep("s", [tiny]), tmp_path / "s", stop={"round": 2})
    one, other = (o.store.ledger()[tiny.id] for o in (stopped, whole))
    assert one.status == "stopped" and other.status == "finished"
    names = (
        "host",
        "device",
        "engine",
        "python",
        "numpy",
        "torch",
        "raysafl",
        "commit",
    )
    own, expected = ([getattr(e, name) for name in names] for e in (one, other))
    assert own == expected and all(expected[:-1])


class Interrupted(Algorithm):
    """FedAvg in whose third round Ctrl-C is pressed, once a test."""

    times: int = 1

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        if key.round == 2 and not SENT:
            SENT.append(self.times)
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)
        return (yield from FedAvg().round(state, ids, key))


SENT: list[int] = []


@pytest.fixture
def _unsent() -> Iterator[None]:
    SENT.clear()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
    SENT.clear()


@pytest.mark.usefixtures("_unsent")
def test_after_ctrl_c_the_run_is_written_where_it_is_and_goes_on_to_the_same_rows(
    tiny: Run, tmp_path: Path
) -> None:
    run = tiny.replace(algorithm=Interrupted(), rounds=6)
    sweep = Sweep("s", [run])
    with pytest.raises(KeyboardInterrupt):
        go(sweep, tmp_path / "s", try_first=False)
    (checkpoint,) = (tmp_path / "s" / "open").iterdir()
    assert checkpoint.stem == run.id and not (tmp_path / "s" / "tune").exists()
    assert not Store(tmp_path / "s").ledger()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    outcome, _ = go(sweep, tmp_path / "s", try_first=False)
    undisturbed, _ = go(sweep, tmp_path / "u", try_first=False)
    assert outcome.ok
    pd.testing.assert_frame_equal(rows_of(outcome), rows_of(undisturbed))


@pytest.mark.usefixtures("_unsent")
def test_ctrl_c_ends_the_sweep_though_another_library_s_handler_only_takes_note(
    tiny: Run, tmp_path: Path
) -> None:
    """Such a handler stays behind after `ray.tune.Tuner.fit` in the same process."""
    noted: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
    sweep = Sweep("s", [tiny.replace(algorithm=Interrupted(), rounds=6)])
    with pytest.raises(KeyboardInterrupt):
        go(sweep, tmp_path / "s", try_first=False)
    assert noted == [signal.SIGINT]


@pytest.mark.usefixtures("_unsent")
def test_a_second_ctrl_c_acts_at_once_and_writes_nothing_of_the_round_that_it_cuts(
    tiny: Run, tmp_path: Path
) -> None:
    """A checkpoint of half a round would make other rows when the run goes on."""
    sweep = Sweep("s", [tiny.replace(algorithm=Interrupted(times=2), rounds=6)])
    with pytest.raises(KeyboardInterrupt):
        go(sweep, tmp_path / "s", try_first=False)
    store = Store(tmp_path / "s")
    assert not store.open_runs() and not store.ledger()
    outcome, _ = go(sweep, tmp_path / "s", try_first=False)
    undisturbed, _ = go(sweep, tmp_path / "u", try_first=False)
    pd.testing.assert_frame_equal(rows_of(outcome), rows_of(undisturbed))


class Broken(Algorithm):
    """Fails in its second round."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        if key.round == 1:
            raise RuntimeError("a user's mistake")
        return (yield from FedAvg().round(state, ids, key))


def test_a_run_that_fails_leaves_its_pack_and_the_others_go_on(
    tiny: Run, tmp_path: Path
) -> None:
    clients = PerClient(on="labels", every=1)
    bad = tiny.replace(algorithm=Broken(), eval_clients=clients)
    runs = {("good",): tiny, ("bad",): bad}
    sweep = Sweep("s", runs, axes=["run"])
    outcome, said = go(sweep, tmp_path / "s", try_first=False)
    assert not outcome.ok and "a user's mistake" in said
    status = outcome.runs.groupby("label.run")["status"].first()
    assert dict(status) == {"good": Status.FINISHED, "bad": Status.FAILED}
    # What it has measured before and the time that it took are kept.
    entry = outcome.store.ledger()[bad.id]
    assert entry.seconds and entry.started <= entry.ended
    assert set(outcome.store.rounds(bad.id)["round"]) == {0}
    of_clients = outcome.store.clients(bad.id)
    assert len(of_clients) == bad.replicates * bad.data.clients
    alone, _ = go(Sweep("s", {("good",): tiny}, axes=["run"]), tmp_path / "a")
    of_good = rows_of(outcome).query("run_id == @tiny.id").reset_index(drop=True)
    expected = rows_of(alone)
    pd.testing.assert_frame_equal(of_good[list(expected)], expected)


def test_a_pack_that_cannot_be_hosted_is_tried_in_halves(
    tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosted = list[int]()

    def few_only(runs: Sequence[Run], *rest: Any) -> Any:
        hosted.append(len(runs))
        if len(runs) > 1:
            raise MemoryError("no room for several runs")
        return worker_of(runs, *rest)

    worker_of = here.worker_of
    monkeypatch.setattr(here, "worker_of", few_only)
    outcome, _ = go(grid(tiny), tmp_path / "s")
    assert outcome.ok and hosted == [3, 1, 2, 1, 1]


@pytest.mark.parametrize(
    ("options", "sweep", "said"),
    [
        ({"address": "auto"}, {}, "the address 'auto' of a cluster is given"),
        ({"hardware": Hardware(actors=2)}, {}, "2 client actors are asked for"),
        ({"hardware": Hardware(autoscale=True)}, {}, "a cluster that adds nodes"),
        ({}, {"scheduler": tune.schedulers.ASHAScheduler()}, "Tune's scheduler"),
    ],
)
def test_what_only_ray_has_is_refused_before_the_folder_is_made(
    options: dict[str, Any],
    sweep: dict[str, Any],
    said: str,
    tiny: Run,
    tmp_path: Path,
) -> None:
    with pytest.raises(ValueError, match=f"in this process, but {said}.*'ray'"):
        go(searched(tiny, None, **sweep), tmp_path / "s", **options)
    assert not (tmp_path / "s").exists()


def test_an_unknown_executor_is_refused_with_the_nearest_name(
    tiny: Run, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="no executor 'her': did you mean 'here'"):
        go(Sweep("s", [tiny]), tmp_path / "s", executor="her")


def asked(tiny: Run, hardware: Hardware | None = None, **more: Any) -> Runner:
    hardware = hardware or Hardware()
    return Runner(searched(tiny, None, **more), hardware=hardware)


def test_auto_takes_this_process_for_less_work_than_starting_ray(
    tiny: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    assert choose(asked(tiny), lambda: 0.3) == (
        ExecutorName.HERE,
        "the work takes less time than Ray takes to start, by a rough estimate",
    )
    assert choose(asked(tiny), lambda: 60.0)[0] is ExecutorName.RAY
    for hardware in (Hardware(gpus=1), Hardware(actors=2), Hardware(trials=2)):
        assert choose(asked(tiny, hardware), lambda: 0.0)[0] is ExecutorName.RAY
    scheduler = tune.schedulers.ASHAScheduler()
    name, why = choose(asked(tiny, scheduler=scheduler), lambda: 0.0)
    assert name is ExecutorName.RAY and "scheduler" in why


def test_trials_at_once_are_refused_where_there_is_no_ray(
    tiny: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = asked(tiny, Hardware(trials=2))
    with pytest.raises(ValueError, match=r"in this process, but 2 trials at once are"):
        check_executor(replace(two, executor="here"))
    monkeypatch.setattr("raysafl.core.needs.is_installed", lambda package: False)
    with pytest.raises(ValueError, match=r"2 trials at once .* pip install 'ray\[tune"):
        check_executor(two)


def test_the_traceback_of_a_failed_run_is_said_to_be_in_mlflow_only_if_it_is(
    tiny: Run, tmp_path: Path
) -> None:
    for track, is_there in (("none", False), ("summary", True)):
        _, said = go(
            Sweep("s", [tiny.replace(algorithm=Fails())]),
            tmp_path / track,
            track=track,
            try_first=False,
        )
        assert "The traceback of each failed run" in said
        assert ("and in MLflow" in said) == is_there


class Fails(Algorithm):
    """An algorithm whose rounds fail."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        yield from ()
        raise RuntimeError("on purpose")


def test_auto_takes_the_ray_that_this_program_has_started(
    tiny: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    assert choose(asked(tiny), lambda: 0.0)[1] == "this program has started Ray"


def test_the_work_of_a_search_is_that_of_one_run_times_their_number(
    tiny: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    each = "raysafl.sweep.attempt.seconds_of"
    monkeypatch.setattr(each, lambda runs, datasets: 3.0 * len(runs))
    console = Console(file=io.StringIO(), width=200)
    runner = Runner(searched(tiny, Halving(), num_samples=5), console=console)
    attempt = Attempt(runner)
    assert attempt.seconds({}) == 15.0
    choose_executor(runner, lambda: attempt.seconds({}))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert said == (
        "Runs on Ray: the work takes longer than Ray takes to start, by a rough estimate\n"
    )


def test_a_sweep_says_in_one_line_who_carries_it_out(
    tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    _, said = go(Sweep("s", [tiny]), tmp_path / "s", executor="auto")
    assert said.startswith(
        "Runs in this process: the work takes less time than Ray takes"
    )
    _, quiet = go(Sweep("s", [tiny]), tmp_path / "q", executor="auto", quiet=True)
    assert quiet == ""
