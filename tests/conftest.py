"""Fixtures that all tests share: small real data, one Ray, the folder of real datasets."""

import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from helpers.environment import CHAOS, REAL_DATA
from helpers.pictures import without_pictures
from hypothesis import settings

import raysafl as fl

torch.set_num_threads(1)
# Searching all objects for garbage takes a twentieth of the tests' time, and finds little.
gc.set_threshold(*gc.get_threshold()[:2], 1000)
# A first example may compile a loop, so no example has a deadline. Examples are the same in
# every run, so that a change is judged by what it changes; FUZZ in the environment draws others.
settings.register_profile(
    "raysafl", deadline=None, max_examples=50, derandomize="FUZZ" not in os.environ
)
settings.load_profile("raysafl")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray's processes have nice level 15 otherwise, and hardly get on beside other tests.
os.environ.setdefault("RAY_worker_niceness", "0")
# A test run in the background (`nohup`, or a shell's `&`) ignores these signals, and what
# it starts would ignore them too.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
HERE = Path(__file__).parent
NEEDS_A_GPU = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU, and torch sees none"
)
# What torch warns of on a GPU although it computes what it should. It warns of operators that
# do not repeat their bits, too: that is an error there, as everywhere.
HARMLESS_ON_A_GPU = (
    # In the thread of a first backward pass torch makes the context current by itself.
    "ignore:Attempting to run cuBLAS, but there was no current CUDA context",
    # Weights are views of one flat vector, which cuDNN copies into its own order.
    "ignore:RNN module weights are not part of single contiguous chunk of memory",
)
# Folders of tests whose subject is no picture and no table.
UNDRAWN = "kept objectives runtime simulation storage sweep tracking".split()
# The tests of Ray, and the files whose few tests take long; the longest first.
LONGEST = (
    *("test_nodes", "test_slurm", "ray", "test_signals", "test_chaos", "test_mirror"),
    *("test_experiments", "test_howto", "test_packs", "test_leaks", "test_faults"),
    *("test_crashes", "test_journal", "test_tracking", "test_tutorials", "test_trends"),
    *("test_small_resnets", "test_lean_start", "test_readme", "test_jit"),
)
# Of `-m acceptance`, so many processes may have a part of these tests.
PARTS = {
    "ray": 2,
    "test_signals": 2,
    "test_mirror": 3,
    "test_howto": 3,
    "test_faults": 2,
    "test_chaos": 2,
}


def pytest_xdist_auto_num_workers() -> int:
    """Run one process more than there are cores, and at most four.

    Tests of processes mostly wait. With two more per core, Ray's own processes are so slow
    that it gives up starting them.
    """
    return min((os.cpu_count() or 1) + 1, 4)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of tests/acceptance: how much of what takes long is done."""
    parser.addoption("--chaos", type=int, default=4, help="kills in the chaos test")
    parser.addoption("--chaos-seed", type=int, default=0, help="seed of its schedule")
    parser.addoption("--many", type=int, default=0, help="runs in packs of ten kills")
    parser.addoption("--faults", type=int, default=150, help="faults in folders")
    parser.addoption(
        "--autoscaler", action="store_true", help="a sweep on a cluster that grows"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m gpu`, import tests/gpu alone: where the GPU is, others may lack packages.

    With `-m acceptance`, import no file that lacks the word: it takes a third of the time that
    each process needs to begin.
    """
    chosen = config.option.markexpr
    if chosen not in ("gpu", "acceptance") or not collection_path.is_file():
        return None
    if collection_path.is_relative_to(HERE / chosen):
        return None
    has_none = chosen == "gpu" or chosen not in collection_path.read_text()
    return True if has_none else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies in tests/acceptance and tests/gpu, and choose which tests run in one process.

    All tests that need Ray share one, and so do the other tests of a file, so that no
    fixture is made twice; of `-m acceptance` some have several. What takes longest is given
    out first, and then the files with the most tests: no process has much left when the
    others end.
    """
    groups = {}
    dealt = Counter[str]()
    for item in items:
        if item.path.is_relative_to(HERE / "acceptance"):
            item.add_marker("acceptance")
        if item.path.is_relative_to(HERE / "gpu"):
            item.add_marker("gpu")
            item.add_marker(NEEDS_A_GPU)
            for text in HARMLESS_ON_A_GPU:
                item.add_marker(pytest.mark.filterwarnings(text))
        needs_ray = "ray_local" in getattr(item, "fixturenames", ())
        groups[item] = group = "ray" if needs_ray else item.path.stem
        if item.get_closest_marker("acceptance"):
            dealt[group] += 1
            group = f"{group} {dealt[group] % PARTS.get(group, 1)}"
        item.add_marker(pytest.mark.xdist_group(group))
    sizes = Counter(groups.values())
    order = {name: place for place, name in enumerate(LONGEST)}
    last = len(order)
    items.sort(key=lambda item: (order.get(groups[item], last), -sizes[groups[item]]))


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what the tests of kills and faults recorded, in whichever process they ran."""
    ended = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
    ]
    for report in ended:
        for name, line in report.user_properties:
            if name == CHAOS:
                terminalreporter.write_line(f"{name}: {line}")


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's settings must not reach the tests."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("RAYSAFL_DATA", raising=False)


@pytest.fixture
def no_pictures() -> Iterator[None]:
    with without_pictures():
        yield


@pytest.fixture(autouse=True)
def _no_pictures_where_they_are_no_subject(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor reports and tables at the end of a sweep, which take longer than a small sweep."""
    if request.path.parent.name in UNDRAWN:
        request.getfixturevalue("no_pictures")
        if "reports" not in request.fixturenames:
            monkeypatch.setattr("raysafl.report.write.write_report", lambda _: [])
        if "tables" not in request.fixturenames:
            monkeypatch.setattr("raysafl.report.pages.screen.screen", lambda *_: "")


@pytest.fixture
def quick_sweeps(no_pictures: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps draw nothing and log nothing to MLflow, for pages whose code runs as printed."""
    monkeypatch.setattr("raysafl.sweep.new_runs._tracker", lambda attempt: None)


@pytest.fixture
def untried_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps try no round of the user's classes in a process of its own, which imports torch."""
    monkeypatch.setattr("raysafl.sweep.preflight.preflight", lambda *_: {})


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Counted` begins to count."""
    from helpers.counted import Counted

    Counted.computed.clear()
    monkeypatch.setattr(Counted, "at", -1)


@pytest.fixture
def tables() -> None:
    """The test is about a table, which is made although its folder is not about tables."""


@pytest.fixture
def reports() -> None:
    """The test is about a report, which a sweep leaves although its folder is not about them."""


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of real datasets that RAYSAFL_DATA names; without it, the test is skipped."""
    if REAL_DATA is None or not Path(REAL_DATA).is_dir():
        pytest.skip("needs real data: set RAYSAFL_DATA to a folder that holds them")
    monkeypatch.setenv("RAYSAFL_DATA", REAL_DATA)
    return Path(REAL_DATA)


@pytest.fixture(scope="session")
def ray_local() -> Iterator[None]:
    """One real Ray cluster on this machine for all tests that need it."""
    from raysafl.cluster.ray_session import ray_session

    with ExitStack() as ended:
        for tries_left in (2, 1, 0):
            try:
                ended.enter_context(ray_session(None))
                break
            except Exception as error:
                # Ray waits for 30 s, which is too short on a machine that is very busy.
                if not tries_left or "timed out during startup" not in str(error):
                    raise
        yield


@pytest.fixture
def no_gc() -> Iterator[None]:
    """Python frees only what nothing refers to, circles of references stay."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def tiny() -> fl.Run:
    """Digits, 10 clients of one class each, 4 rounds: a real run of a few milliseconds."""
    return fl.Run(
        data=fl.Federation(
            partition=fl.ClassesPerClient(p=1), server=fl.IidServer(n0=50)
        ),
        model=fl.Logistic(),
        algorithm=fl.FedAvg(),
        participation=fl.Absent(s=4, m=3),
        local=fl.LocalTraining(lr=0.1, batch_size=32, epochs=1),
        rounds=4,
        replicates=2,
    )


@pytest.fixture(scope="session")
def real_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`results/` with a quarter of the quickstart, really run in one process, with its report.

    8 runs, 3 seeds, 30 rounds. Shared by the tests of all processes: do not write into it.
    """
    folder = tmp_path_factory.getbasetemp()
    # The processes of one test run have folders beside each other.
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with FileLock(folder / "real.lock"):
        if not (folder / "real").is_dir():
            run_quarter_of_quickstart(folder / "made" / "results" / "quickstart")
            (folder / "made").rename(folder / "real")
    return folder / "real" / "results"


def run_quarter_of_quickstart(folder: Path) -> None:
    from helpers.here import run_in_process

    from raysafl.quickstart import SWEEP
    from raysafl.report.write import write_report
    from raysafl.runtime.in_process import Worker
    from raysafl.storage.runs_table import write_runs_table
    from raysafl.storage.store import Store
    from raysafl.sweep.definition import Sweep

    runs = {
        key: run.replace(rounds=30, replicates=3)
        for key, run in SWEEP.labelled().items()
        if key[0] != 2 and key[2] != 10
    }
    sweep = Sweep(
        SWEEP.name, runs=runs, axes=SWEEP.axes, table=SWEEP.table, title=SWEEP.title
    )
    store = Store(folder)
    store.create()
    store.write_manifest(sweep.manifest().replace(command="raysafl quickstart"))
    for run in runs.values():
        run_in_process(run, store, Worker(run.cells, run.data.load(), run.model))
    write_runs_table(store)
    write_report(store)
