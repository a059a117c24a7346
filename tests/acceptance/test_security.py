"""What SECURITY.md promises: results are data, names stay inside, servers here, no secrets kept."""

import ast
import io
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.here import run_in_process
from rich.console import Console

from raysafl import Hardware, Run, Runner, Sweep
from raysafl.algorithms import Key
from raysafl.cli.app import main
from raysafl.core.algorithm import Algorithm, Round, State
from raysafl.report.write import write_report
from raysafl.runtime.in_process import Worker
from raysafl.storage.manifest import Entry, Manifest, Table
from raysafl.storage.paths import StorageError, parse_location
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.store import Store
from raysafl.tracking.descriptions import report_files
from raysafl.tracking.server import _command
from raysafl.tracking.sync import sync

PACKAGE = Path(__file__).parents[2] / "raysafl"
SECRET = "hunter2hunter2"
LOADERS = {
    "pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
    "torch",
    "yaml",
}
LOADING = {"read_pickle", "unsafe_load", "full_load"}
# between a trial's own processes, and from the driver to the process that tries a round
ALLOWED = {
    ("preflight.py", "pickle.load(sys.stdin.buffer)"),
    ("messages.py", "pickle.loads(sent)"),
    ("messages.py", "pickle.loads(pickled, buffers=arrays)"),
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


@pytest.mark.parametrize(
    "code",
    [
        "pickle.loads(b)",
        "torch.load(f)",
        "yaml.load(t)",
        "eval(t)",
        "pd.read_pickle(f)",
        "np.load(f, allow_pickle=True)",
    ],
)
def test_a_call_that_can_run_code_is_caught(code: str) -> None:
    (node,) = (n for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Call))
    assert runs_code(node)


class Telling(Algorithm):
    """Fails with a URI in which there are credentials."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        raise OSError(f"https://me:{SECRET}@host/x?token={SECRET} is down")
        yield


class Bomb:
    """Leaves a folder behind if it is ever unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.file),)


@pytest.mark.usefixtures("ray_local")
def test_pickles_planted_in_a_results_folder_are_never_loaded(
    tiny: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
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
    assert runner.run().ok
    (told,) = [text for text in caplog.messages if "so the run begins anew" in text]
    assert str(bad) in told and "cannot be used" in told
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
    cases = [
        (use, name) for use in (store.run_lock, store.open_file) for name in outside
    ]
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
    (tmp_path / "s" / "manifest.json").write_text(text)
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
        f"ledger/{next(finished.path.glob('ledger/*')).name}": finished.ledger,
    }
    for name, read in readers.items():
        file = finished.file(*name.split("/"))
        assert isinstance(file, Path)
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
    for act in (finished.rounds, lambda: finished.forget([tiny.id])):
        with pytest.raises(ValueError, match="is a link out of"):
            act()
    assert (
        kept.read_bytes() == b"mine" and secret.read_text() == '{"status": "finished"}'
    )


def test_a_results_folder_that_is_itself_a_link_works(
    finished: Store, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "s")
    linked = Store(tmp_path / "link")
    assert (
        len(linked.rounds()) == 8
        and linked.manifest().name == "s"
        and report_files(linked)
    )


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


@pytest.mark.usefixtures("ray_local")
@pytest.mark.skipif(not Path("/proc/self/cmdline").is_file(), reason="/proc is Linux's")
def test_a_ray_of_our_own_has_no_process_that_only_a_cluster_needs() -> None:
    lines = []
    for pid in descendants(os.getpid()):
        with suppress(OSError):  # it has just ended
            lines.append(Path(f"/proc/{pid}/cmdline").read_text())
    assert any("raylet" in line for line in lines)
    # logs to the driver, new nodes
    assert not [line for line in lines if "monitor.py" in line]


def test_secrets_are_in_no_file_and_no_argument(
    tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD", "HF_TOKEN"):
        monkeypatch.setenv(name, SECRET)
    command = f"raysafl run f.py --tracking-uri https://me:{SECRET}@host --out s3://b?key={SECRET}"
    sweep = Sweep(
        "s", {"good": tiny, "bad": tiny.replace(algorithm=Telling())}, axes=("x",)
    )
    said = io.StringIO()
    console = Console(file=said, width=300)
    runner = Runner(
        sweep,
        tmp_path / "s",
        executor="here",
        command=command,
        console=console,
        try_first=False,
    )
    outcome = runner.run()
    assert "https://host/x is down" in said.getvalue() and SECRET not in said.getvalue()
    assert sorted(outcome.runs["status"]) == [
        "failed",
        "failed",
        "finished",
        "finished",
    ]
    assert (
        "--tracking-uri https://host --out s3://b"
        in (tmp_path / "s" / "table.md").read_text()
    )
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {"mlflow.db", "manifest.json", "table.md"} <= {file.name for file in files}
    assert [file.name for file in files if SECRET.encode() in file.read_bytes()] == []
    for uri in (f"postgresql://me:{SECRET}@host/db", f"sqlite:////m.db?key=a/{SECRET}"):
        assert SECRET not in " ".join(_command(uri, "127.0.0.1", 5000))


def test_an_error_of_a_store_shows_no_secret() -> None:
    with pytest.raises(StorageError) as error:
        Store(
            parse_location(
                f"s3://me:{SECRET}@bucket/x?endpoint_override=http://127.0.0.1:1"
            )
        ).create()
    assert SECRET not in str(error.value) and "s3://bucket/x" in str(error.value)


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
    "uri",
    [
        f"s3://key:12/{SECRET}@bucket/x",
        f"s3://key:a b/{SECRET}@bucket/x",
        f"s3://key:p@{SECRET}@bucket/x?scheme=http",
        f"s3://bucket/x?secret_key={SECRET}",
        f"s3:/key:{SECRET}@bucket/x",
        f"//key:{SECRET}@bucket/x",
        f"S3://key:{SECRET}@bucket/x",
        f"postgresql://me:{SECRET}\n@host/db",
    ],
)
def test_a_place_for_results_that_fails_tells_no_secret_and_makes_no_folder(
    uri: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for option in (
        ["quickstart", "--out"],
        ["report"],
        ["sync"],
        ["ui"],
        ["results", ""],
    ):
        assert say(monkeypatch, *option, uri) == 2
    assert say(monkeypatch, "doctor", "--root", uri) == 2
    assert say(monkeypatch, "run", uri) == 2
    said = capfd.readouterr()
    assert SECRET not in said.out + said.err
    assert said.err.count("Error: ") == 7
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize(
    "uri",
    [
        f"http://me:{SECRET}@127.0.0.1:1/x",
        f"http://127.0.0.1:1/x?token={SECRET}",
        f"http://me:1/{SECRET}@127.0.0.1:1",
        f"//me:{SECRET}@127.0.0.1:1",
        f"unknown://me:a {SECRET}@host;token={SECRET}",
        f"mysql+pymysql://me:p@{SECRET}/x@host/db?password={SECRET}",
    ],
)
def test_a_tracker_that_fails_tells_no_secret(
    uri: str,
    tiny: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    said = io.StringIO()
    console = Console(file=said, width=300)
    sweep = Sweep("s", [tiny])
    outcome = Runner(sweep, executor="here", console=console, tracking_uri=uri).run()
    assert outcome.ok and not outcome.tracked
    assert "The results in Parquet are complete" in said.getvalue()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert say(monkeypatch, "sync", "results") == 2
    shown = capfd.readouterr()
    assert SECRET not in said.getvalue() + shown.out + shown.err
    assert told(tmp_path) == []


TELLING = """
import os
from raysafl import *
from raysafl.core.algorithm import Algorithm

rounds = []

class Telling(FedAvg):
    def round(self, state, ids, key):
        rounds.append(1)
        if len(rounds) > 2:
            secrets = [v for k, v in os.environ.items() if k in ("MY_DATABASE", "HF_TOKEN")]
            raise OSError(f"none of these is up: {' '.join(secrets)}")
        return (yield from super().round(state, ids, key))

RUN = Run(
    data=Federation(partition=ClassesPerClient(p=1), server=IidServer(n0=50)),
    model=Logistic(),
    algorithm=FedAvg(),
    participation=Absent(s=4, m=3),
    local=LocalTraining(lr=0.1, batch_size=32, epochs=1),
    rounds=4,
)
SWEEP = Sweep("s", {"good": RUN, "bad": RUN.replace(algorithm=Telling())}, axes=("x",))
"""


def test_a_command_leaves_no_secret_in_results_in_ray_s_logs_or_on_the_screen(
    tmp_path: Path,
) -> None:
    (tmp_path / "telling.py").write_text(TELLING)
    uri = f"http://me:{SECRET}/x y@127.0.0.1:1/?token={SECRET}"
    command = [str(Path(sys.executable).with_name("raysafl")), "run", "telling.py"]
    secrets = {
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "HF_TOKEN": SECRET,
        "MY_DATABASE": f"//me:1 {SECRET}@host/db;token={SECRET}",
    }
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
    assert "none of these is up" in done.stdout
    assert told(tmp_path) == []
    kept = Store(tmp_path / "results" / "s").manifest().command
    options = "--executor ray --tracking-uri http://127.0.0.1:1/"
    assert kept == f"raysafl run telling.py {options}"
