"""What SECURITY.md promises: results are data, names stay inside, servers here, no secrets kept."""

import ast
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.here import run_in_process

from raysafl import Hardware, Run, Runner, Sweep
from raysafl.cli.app import main
from raysafl.report.write import write_report
from raysafl.runtime.in_process import Worker
from raysafl.storage.manifest import Entry, Manifest, Table
from raysafl.storage.paths import seal
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.store import Store
from raysafl.tracking.descriptions import report_files
from raysafl.tracking.tracker import sync

PACKAGE = Path(__file__).parents[2] / "raysafl"
SECRET = "hunter2hunter2"
LOADERS = {*"pickle cloudpickle dill joblib marshal shelve torch yaml".split()}
LOADING = {"read_pickle", "unsafe_load", "full_load"}
# between a trial's own processes, and from the driver to the process that tries a round
ALLOWED = {
    ("preflight.py", "pickle.load(sys.stdin.buffer)"),
    ("client_actor.py", "pickle.loads(sent)"),
    ("client_actor.py", "pickle.loads(pickled, buffers=arrays)"),
}
RUNNING = {"eval", "exec", "compile", "__import__"}


def runs_code(call: ast.Call) -> bool:
    """Whether a call may run what it reads: `pickle.load`, `torch.load`, `yaml.load`, `eval`."""
    owner, _, last = ast.unparse(call.func).rpartition(".")
    if owner == "np":
        # By default it refuses what is pickled.
        return last == "load" and bool(call.keywords)
    if last in ("load", "loads", "Unpickler"):
        return owner != "safetensors.torch" and owner.rpartition(".")[2] in LOADERS
    return last in LOADING or (not owner and last in RUNNING)


def test_nothing_in_the_package_reads_what_can_run_code() -> None:
    calls = [
        (file.name, ast.unparse(node))
        for file in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
    ]
    trees = {call: ast.parse(call[1], mode="eval").body for call in calls}
    assert len(calls) > 1000
    found = {
        c for c, tree in trees.items() if isinstance(tree, ast.Call) and runs_code(tree)
    }
    assert found == ALLOWED


class Bomb:
    """Leaves a folder behind if it is ever unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.file),)


@pytest.mark.usefixtures("ray_local")
def test_pickles_planted_in_a_results_folder_are_never_loaded(
    tiny: Run, tmp_path: Path
) -> None:
    trap, out = tmp_path / "exploded", tmp_path / "s"
    bomb = pickle.dumps(Bomb(trap))
    tune = out / "tune"
    (out / "open").mkdir(parents=True)
    (tune / "0000").mkdir(parents=True)
    for name in (
        "tuner.pkl",
        "trainable.pkl",
        "search_gen_state-1.json",
        "0000/error.pkl",
    ):
        (tune / name).write_bytes(bomb)
    (tune / "experiment_state-2026-01-01_00-00-00.json").write_bytes(bomb)
    bad = out / "open" / f"{tiny.id}.ckpt"
    bad.write_bytes(bomb)
    hardware = Hardware(cpus=0.5, trials=1)
    runner = Runner(Sweep("s", [tiny]), out, hardware, executor="ray", quiet=True)
    with pytest.warns(UserWarning, match=rf"{bad} cannot be read and is left out"):
        assert runner.run().ok
    assert not bad.exists()
    assert sync(out, None, lambda message: None) == 1
    assert not trap.exists() and not tune.exists()
    pickle.loads(bomb)
    assert trap.exists()


def test_names_that_lead_out_of_the_results_are_refused(
    tiny: Run, tmp_path: Path
) -> None:
    for name in ("../x", "a/b", "..", ".x", "", "a\\b", "a\0b"):
        with pytest.raises(ValueError, match="a sweep's name becomes a folder"):
            Sweep(name, [tiny])
    store = Store(tmp_path / "s")
    store.create()
    outside, no_names = ("../x", "/etc/passwd", "a/b", "a\0b", "a\\b"), ("..", ".", "")
    cases = [(use, name) for use in (store.model, store.state) for name in outside]
    for use, name in (*cases, *((store.file, name) for name in no_names)):
        with pytest.raises(ValueError, match="cannot be the name of a file of results"):
            use(name)
    for name in (*outside, *no_names):
        with pytest.raises(ValueError, match="run_id"):
            Entry(run_id=name, labels={})
    table = Table(rows=["x"])
    good = Manifest(
        name="s", axes=["x"], entries=[Entry(run_id="aa", labels={})], table=table
    )
    text = good.to_json().replace('"aa"', '"../../../etc/passwd"')
    (tmp_path / "s" / "manifest.json").write_bytes(seal(text.encode()))
    with pytest.raises(ValueError, match=r"manifest\.json cannot be read: .*run_id"):
        store.manifest()


@pytest.fixture
def finished(tiny: Run, tmp_path: Path) -> Store:
    store = Store(tmp_path / "s")
    store.create()
    store.write_manifest(Sweep("s", [tiny]).manifest())
    run_in_process(tiny, store, Worker(tiny.cells, tiny.data.load(), tiny.model))
    write_runs_table(store)
    write_report(store)
    return store


def test_links_out_of_a_results_folder_are_not_followed(
    finished: Store, tiny: Run, tmp_path: Path
) -> None:
    """A stranger's results must neither read nor delete other files of yours."""
    secret, mine = tmp_path / "secret", tmp_path / "mine"
    secret.write_text('{"status": "finished"}')
    mine.mkdir()
    kept = mine / next(finished.path.glob("rounds/*")).name
    kept.write_bytes(b"mine")
    readers = {
        "table.md": lambda: report_files(finished),
        "curves.png": lambda: report_files(finished),
        "manifest.json": finished.manifest,
        "runs.parquet": finished.runs,
        "ledger.jsonl": finished.ledger,
    }
    for name, read in readers.items():
        file = finished.file(name)
        content = file.read_bytes()
        file.unlink()
        file.symlink_to(secret)
        with pytest.raises(ValueError, match="is a link out of"):
            read()
        file.unlink()
        file.write_bytes(content)
    rounds = tmp_path / "s" / "rounds"
    rounds.rename(tmp_path / "elsewhere")
    rounds.symlink_to(mine)
    found = finished.read()
    assert not len(found.rows)
    assert all("is a link out of" in why for why in found.faults.values())
    with pytest.raises(ValueError, match="is a link out of"):
        finished.forget({tiny.id})
    assert kept.read_bytes() == b"mine"
    assert secret.read_text() == '{"status": "finished"}'


def listening(pid: int) -> Iterator[str]:
    """The addresses (hexadecimal) at which a process and its descendants listen."""
    inodes: set[str] = set()
    for process in [pid, *descendants(pid)]:
        for file in Path(f"/proc/{process}/fd").glob("*"):
            if found := re.match(
                r"socket:\[(\d+)\]", os.readlink(file) if file.is_symlink() else ""
            ):
                inodes.add(found[1])
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                yield fields[1].partition(":")[0]


def descendants(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return [process for child in children for process in (child, *descendants(child))]


@pytest.mark.usefixtures("ray_local")
@pytest.mark.skipif(
    not Path("/proc/net/tcp").is_file(), reason="sockets are listed by Linux only"
)
def test_a_ray_of_our_own_listens_on_loopback_only() -> None:
    ours = {
        "0100007F",
        "0000000000000000FFFF00000100007F",
        "00000000000000000000000001000000",
    }
    found = list(listening(os.getpid()))
    assert len(found) >= 3 and set(found) <= ours


def say(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Carry out a command in this process, and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["raysafl", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def told(folder: Path) -> list[str]:
    """The files below a folder that hold the secret, in their content or their name."""
    return [
        str(file)
        for file in folder.rglob("*")
        if SECRET in file.name
        or (file.is_file() and SECRET.encode() in file.read_bytes())
    ]


@pytest.mark.parametrize(
    "uri", [f"s3://key:12/{SECRET}@bucket/x", f"//key:{SECRET}@bucket/x"]
)
def test_a_place_for_results_with_a_password_is_refused_and_no_folder_is_made(
    uri: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for option in (
        *(["quickstart", "--out"], ["report"], ["sync"], ["ui"], ["results", ""]),
        *(["verify"], ["recheck"]),
    ):
        assert say(monkeypatch, *option, uri) == 2
    said = capfd.readouterr()
    assert SECRET not in said.out + said.err
    assert said.err.count("holds a password") == 7
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("given", ["tracking_uri", "address", "environment"])
def test_a_tracker_or_a_cluster_with_a_password_is_refused_before_anything_runs(
    given: str, tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    uri = f"http://me:{SECRET}@127.0.0.1:1/x"
    options: dict[str, Any] = {given: uri}
    if given == "environment":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        options = {}
    with pytest.raises(ValueError, match="MLFLOW_TRACKING_PASSWORD") as error:
        Runner(Sweep("s", [tiny]), executor="here", **options).run()
    assert SECRET not in str(error.value) and list(tmp_path.iterdir()) == []


TELLING = """
import os
from raysafl import *
from raysafl.quickstart import BASE

rounds = []

class Telling(FedAvg):
    def round(self, state, ids, key):
        rounds.append(1)
        if len(rounds) > 2:
            raise OSError(f"Authorization: Bearer {os.environ['HF_TOKEN']} is refused")
        return (yield from super().round(state, ids, key))

RUN = BASE.replace(rounds=4, replicates=1)
SWEEP = Sweep("s", {"good": RUN, "bad": RUN.replace(algorithm=Telling())}, axes=("x",))
"""


def test_a_command_leaves_no_secret_in_results_in_ray_s_logs_or_on_the_screen(
    tmp_path: Path,
) -> None:
    (tmp_path / "telling.py").write_text(TELLING)
    uri = "http://127.0.0.1:1/"
    command = [str(Path(sys.executable).with_name("raysafl")), "run", "telling.py"]
    secrets = {"AWS_SECRET_ACCESS_KEY": SECRET, "HF_TOKEN": SECRET}
    # A long path would not fit the names of Ray's sockets.
    with tempfile.TemporaryDirectory(dir="/tmp") as ray:
        done = subprocess.run(
            [*command, "--executor", "ray", "--tracking-uri", uri],
            cwd=tmp_path,
            env=os.environ | secrets | {"RAY_TMPDIR": ray},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert told(Path(ray)) == []
        assert list(Path(ray).rglob("*.log"))
    assert done.returncode == 1
    assert SECRET not in done.stdout + done.stderr
    assert "Authorization: Bearer *** is refused" in done.stdout
    assert told(tmp_path) == []
    kept = Store(tmp_path / "results" / "s").manifest().command
    options = "--executor ray --tracking-uri http://127.0.0.1:1/"
    assert kept == f"raysafl run telling.py {options}"
