"""Results in an object store: a real S3 server on loopback, writers killed in mid-upload."""

import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pandas as pd
import pytest
from filelock import Timeout
from helpers.commands import RAYSAFL, call_here
from helpers.here import run_in_process
from helpers.patience import PATIENCE
from helpers.servers import Line, s3

from raysafl import FedAvg, Hardware, Run, Runner
from raysafl.algorithms import Key, Round, State
from raysafl.quickstart import BASE
from raysafl.runtime.in_process import Worker
from raysafl.storage import locks
from raysafl.storage.locks import RemoteLock
from raysafl.storage.manifest import Entry, Manifest, Table
from raysafl.storage.paths import Remote, StorageError, SweepBusyError, parse_location
from raysafl.storage.status import status_of, write_heartbeat
from raysafl.storage.store import Store, find_sweeps
from raysafl.sweep.definition import Sweep
from raysafl.sweep.execution import scratch
from raysafl.sweep.experiment_file import load_sweep
from raysafl.tracking.client import default_uri

FACTS = [
    "run_id",
    "replicate",
    "round",
    "kind",
    "cohorts",
    "test_accuracy",
    "test_loss",
    "steps",
]
KEYS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3() as url:
        yield url


@pytest.fixture(autouse=True)
def bucket(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A folder in the bucket, and the environment that leads there."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    # Processes that test at the same time have folders of the same name.
    return f"s3://bucket/{tmp_path.parent.name}/{tmp_path.name}"


def through(line: Line, uri: str) -> str:
    return f"{uri}?endpoint_override=http://127.0.0.1:{line.port}"


def test_a_remote_file_is_written_read_found_and_deleted_like_a_local_one(
    bucket: str, tmp_path: Path
) -> None:
    for root in (parse_location(bucket), parse_location(tmp_path)):
        assert not (root / "a.json").is_file() and list(root.glob("*.json")) == []
        for name in ("a.json", "b.json", "c.txt"):
            (root / "in").mkdir(exist_ok=True)
            (root / name).write_bytes(name.encode())
            (root / "in" / name).write_bytes(b"x")
        assert (root / "a.json").read_text() == "a.json" and (root / "a.json").is_file()
        assert not (root / "in").is_file()
        assert (root / "a.json").stat().st_size == len("a.json")
        with (root / "a.json").open("rb") as opened:
            assert opened.read() == b"a.json"
        assert str((root / "in" / "a.json").relative_to(root)) == "in/a.json"
        assert root in (root / "in" / "a.json").parents
        with pytest.raises(ValueError):
            root.relative_to(Path("/nowhere"))
        assert sorted(f.name for f in root.glob("*.json")) == ["a.json", "b.json"]
        assert [f.parent.name for f in root.glob("*/a.json")] == ["in"]
        assert [f.stem for f in root.glob("in/[bc].*")] in (["b", "c"], ["c", "b"])
        (root / "a.json").unlink()
        (root / "a.json").unlink(missing_ok=True)
        with pytest.raises(FileNotFoundError):
            (root / "a.json").unlink()
        with pytest.raises(FileNotFoundError):
            (root / "a.json").read_bytes()
        with pytest.raises(FileNotFoundError):
            (root / "a.json").stat()
    assert (
        str(parse_location(f"{bucket}/")) == bucket
        and parse_location(f"file://{tmp_path}") == tmp_path
    )


WRITE = """
import sys
from raysafl.storage.paths import parse_location
print("go", flush=True)
(parse_location(sys.argv[1]) / "file").write_bytes(b"new" * int(sys.argv[2]))
print("written", flush=True)
"""


@pytest.mark.parametrize("size", [200_000, 30_000_000])  # one request; many parts
def test_a_writer_killed_in_mid_upload_leaves_the_old_file(
    server: str, bucket: str, size: int
) -> None:
    old = parse_location(bucket) / "file"
    old.write_bytes(b"old")
    line = Line(urlsplit(server).port or 0, limit=size * 2)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITE, through(line, bucket), str(size)],
        stdout=subprocess.PIPE,
    )
    assert line.still.wait(PATIENCE)
    writer.send_signal(signal.SIGKILL)
    said, _ = writer.communicate()
    line.close()
    assert said == b"go\n" and line.sent == size * 2
    time.sleep(0.5)
    assert old.read_bytes() == b"old"


RUN = """
import sys
from raysafl import Run
from raysafl.storage.paths import parse_location
from raysafl.runtime.in_process import Worker
from raysafl.storage.store import Store
from raysafl.sweep.session import Session
run, store = Run.from_json(sys.argv[2]), Store(parse_location(sys.argv[1]))
work = Worker(run.cells, run.data.load(), run.model)
Session([run], store, work, {}, flush_seconds=0.0).advance(float("inf"))
"""


@pytest.mark.acceptance
def test_a_run_killed_in_mid_upload_goes_on_to_the_undisturbed_rows(
    tiny: Run, server: str, bucket: str, tmp_path: Path
) -> None:
    """Killed wherever the line stands still, again and again, each time a little further on."""
    run, kills = tiny.replace(rounds=6), 0
    port = urlsplit(server).port or 0
    for limit in (4_000, 14_000, 30_000, None):
        line = Line(port, limit)
        command = [sys.executable, "-c", RUN, through(line, bucket), run.to_json()]
        trial = subprocess.Popen(command)
        while trial.poll() is None and not line.still.wait(0.1):
            pass
        trial.send_signal(signal.SIGKILL)
        kills += trial.wait() == -signal.SIGKILL
        line.close()
    whole, cut = Store(tmp_path), Store(parse_location(bucket))
    run_in_process(run, whole, Worker(run.cells, run.data.load(), run.model))
    assert kills == 3 and trial.returncode == 0
    pd.testing.assert_frame_equal(cut.rounds()[FACTS], whole.rounds()[FACTS])
    assert cut.ledger()[run.id].status == "finished"


@pytest.mark.acceptance
def test_a_store_that_cannot_be_used_is_refused_with_what_to_do(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        StorageError, match=r"s3://nowhere/x .*NO_SUCH_BUCKET.* make the bucket"
    ):
        Store(parse_location("s3://nowhere/x")).create()
    assert find_sweeps(parse_location("s3://nowhere/x")) == []
    closed = "s3://bucket/x?endpoint_override=http://127.0.0.1:1"
    with pytest.raises(StorageError, match=r"NETWORK_CONNECTION.* AWS_ENDPOINT_URL"):
        Store(parse_location(closed)).create()
    with pytest.raises(StorageError, match="cannot use ftp://a/b for results"):
        parse_location("ftp://a/b")
    with pytest.raises(StorageError, match="give it as text"):
        parse_location(Path("s3://bucket/x"))
    assert find_sweeps(parse_location(f"s3://bucket/{tmp_path.name}-nothing")) == []


class Waits(FedAvg):
    """FedAvg that waits in a late round for a file, but for the first run that gets there."""

    folder: str

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        if key.round == 4:
            try:
                Path(self.folder, "first").touch(exist_ok=False)
            except FileExistsError:
                while not Path(self.folder, "go").exists():
                    time.sleep(0.05)
        return super().round(state, ids, key)


@pytest.mark.acceptance
@pytest.mark.usefixtures("ray_local")
@pytest.mark.parametrize("pack", [1, 4])
def test_a_sweep_whose_store_is_lost_ends_with_the_reason_and_goes_on_when_it_is_back(
    pack: int, server: str, bucket: str, tmp_path: Path
) -> None:
    """The workers of a Ray that runs already know no environment: credentials in a `Remote`.

    One run ends before the others, which are in trials of their own or in its pack.
    """
    line = Line(urlsplit(server).port or 0)
    base = BASE.replace(algorithm=Waits(folder=str(tmp_path)), replicates=1)
    runs = {(i,): base.replace(seed=i, rounds=6 if i else 2) for i in range(4)}
    uri = (
        bucket.replace("s3://", "s3://test:test@")
        + "/k?region=us-east-1&endpoint_override="
    )
    key = f"{bucket.removeprefix('s3://')}/k"
    sweep, store = Sweep("k", runs, axes=("i",)), Store(Remote(f"{uri}{server}", key))

    over = threading.Event()

    def cut() -> int:
        while not over.wait(0.1):
            if ended := len(store.ledger()):
                line.close()
                (tmp_path / "go").touch()
                return ended
        return 0

    options = {
        "hardware": Hardware(cpus=0.5, trials=1, pack=pack),
        "executor": "ray",
        "quiet": True,
        "track": "none",
        "flush_seconds": 0.0,
    }
    with ThreadPoolExecutor(1) as threads:
        ended = threads.submit(cut)
        with pytest.raises(
            StorageError, match=r"NETWORK_CONNECTION.*The same command goes on"
        ):
            try:
                out = Remote(f"{uri}http://127.0.0.1:{line.port}", key)
                Runner(sweep, out, **options).run()  # type: ignore[arg-type]
            finally:
                over.set()
        assert 0 < ended.result() < 4
    assert {entry.status for entry in store.ledger().values()} == {"finished"}
    # Elsewhere than on Ray, which takes longer to start.
    options["executor"] = "here"
    assert Runner(sweep, store.path, **options).run().ok  # type: ignore[arg-type]
    whole = Store(tmp_path / "whole")
    whole.create()
    for run in runs.values():
        run_in_process(run, whole, Worker(run.cells, run.data.load(), run.model))
    pd.testing.assert_frame_equal(store.rounds()[FACTS], whole.rounds()[FACTS])


HOLD = """
import sys
from raysafl.storage import locks
from raysafl.storage.paths import parse_location
from raysafl.storage.store import Store
locks.BEAT_SECONDS = 0.3
with Store(parse_location(sys.argv[1])).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.acceptance
@pytest.mark.parametrize("machine", ["this", "another"])
def test_a_second_writer_to_a_store_is_told_so_and_a_dead_one_is_followed(
    bucket: str, machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.3)
    monkeypatch.setattr(locks, "STALE_SECONDS", 4.0)
    elsewhere = {"TMPDIR": str(tmp_path)} if machine == "another" else {}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, bucket],
        env={**os.environ, **elsewhere},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout and holder.stdout.readline() == b"held\n"
    store = Store(parse_location(bucket))
    with pytest.raises(
        SweepBusyError, match=f"another raysafl process is writing to {bucket}"
    ):
        with store.lock():
            pass
    holder.kill()
    holder.communicate()
    before = json.loads((store.path / ".lock").read_bytes())
    with store.lock():
        mine = json.loads((store.path / ".lock").read_bytes())
        assert mine["pid"] == os.getpid() != before["pid"]
        assert (mine["machine"] == before["machine"]) == (machine == "this")
    assert not (store.path / ".lock").is_file()


@pytest.mark.parametrize("machine", ["this", "another"])
def test_a_late_write_of_a_killed_process_does_not_take_the_lock_and_one_from_elsewhere_does(
    bucket: str, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = parse_location(bucket) / ".lock"
    taken = RemoteLock(parse_location(bucket) / ".lock")

    def written_late(_: float) -> None:
        """The write reaches the store while the lock waits for writes of others."""
        monkeypatch.setattr(locks.time, "sleep", lambda _: None)
        late = json.loads(file.read_bytes()) | {"token": "late"}
        late["machine"] = late["machine"] if machine == "this" else "another"
        file.write_bytes(json.dumps(late).encode())

    monkeypatch.setattr(locks.time, "sleep", written_late)
    if machine == "this":
        taken.acquire(0)
        assert json.loads(file.read_bytes())["token"] != "late"
        taken.release()
        assert not file.is_file()
    else:
        with pytest.raises(Timeout):
            taken.acquire(0)
        assert json.loads(file.read_bytes())["token"] == "late"


def test_a_trial_waits_for_the_trial_that_has_its_run(bucket: str) -> None:
    first = Store(parse_location(bucket)).run_lock("aaaa")
    assert isinstance(first, RemoteLock)
    first.acquire()
    second = Store(parse_location(bucket)).run_lock("aaaa")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second.acquire)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        first.release()
        waiting.result(timeout=PATIENCE)
        first.release()  # it is not its own any more
        assert (parse_location(bucket) / "tune" / "aaaa.lock").is_file()
        second.release()
    assert not (parse_location(bucket) / "tune" / "aaaa.lock").is_file()


def test_a_store_holds_the_heartbeat_as_long_as_runs_are_carried_out(
    bucket: str,
) -> None:
    store = Store(parse_location(bucket))
    entries = [Entry(run_id="aaaa", labels={"x": 1})]
    table = Table(rows=["x"])
    store.write_manifest(Manifest(name="s", axes=["x"], entries=entries, table=table))
    with store.lock(), scratch(store):
        write_heartbeat(store, "0/1 runs")
        assert status_of(store).heartbeat.startswith("0/1 runs (")
    assert list(store.path.glob("tune/*")) == []


def test_the_database_of_a_sweep_in_a_store_lies_here(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results" / "s3" / bucket.removeprefix("s3://")
    assert default_uri(parse_location(bucket)) == f"sqlite:///{folder}/mlflow.db"
    other = tmp_path / "results" / "s3" / "other" / "x"
    assert default_uri(parse_location("s3://other/x")) == f"sqlite:///{other}/mlflow.db"


EXPERIMENT = f"""
import time
from collections.abc import Sequence
from pathlib import Path
from raysafl import FedAvg, Sweep
from raysafl.algorithms import Key, Round, State
from raysafl.quickstart import BASE
{inspect.getsource(Waits)}
SHORT = BASE.replace(algorithm=Waits(folder=str(Path(__file__).parent)), rounds=6)
RUNS = {{(i,): SHORT.replace(seed=i, replicates=1) for i in range(5)}}
SWEEP = Sweep("k", RUNS, axes=("i",))
"""


@pytest.mark.usefixtures("reports")
@pytest.mark.acceptance
def test_a_sweep_into_a_store_killed_and_given_again_ends_with_the_undisturbed_rows(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "k.py").write_text(EXPERIMENT)
    monkeypatch.chdir(tmp_path)
    store = Store(parse_location(f"{bucket}/k"))
    command = ["run", "k.py", "--out", f"{bucket}/k"]
    # A trial may end its pack after its driver was killed. Runs must be left to do.
    hardware = ["--executor", "ray", "--cpus", "0.5", "--trials", "1", "--pack", "1"]
    driver = subprocess.Popen([*RAYSAFL, *command, *hardware], start_new_session=True)
    while not store.ledger():
        assert driver.poll() is None
        time.sleep(0.2)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    assert len(store.ledger()) == 1
    # The trial of the killed driver may end its run.
    (tmp_path / "go").touch()
    again = call_here(monkeypatch, *command, "--executor", "here")
    report = call_here(monkeypatch, "report", bucket)
    synced = call_here(monkeypatch, "sync", bucket)
    told = " ".join(said for _, said in (again, report, synced))
    assert [code for code, _ in (again, report, synced)] == [0, 0, 0], told
    assert "cannot lie in an object store" in told
    assert f"Results, table and curves: {bucket}/k" in told
    assert f"{bucket}/k/table.md" in told and "5 runs are in MLflow" in told
    assert (
        tmp_path / "results/s3" / bucket.removeprefix("s3://") / "mlflow.db"
    ).is_file()
    assert (
        not list(tmp_path.glob("results/*.parquet")) and not (tmp_path / "s3:").exists()
    )
    reference = Store(tmp_path / "reference")
    for run in load_sweep(tmp_path / "k.py").labelled().values():
        run_in_process(run, reference, Worker(run.cells, run.data.load(), run.model))
    pd.testing.assert_frame_equal(store.rounds()[FACTS], reference.rounds()[FACTS])
