"""Copies in an object store: a real S3 server on loopback, copies killed in the middle.

The tests below the line "The command line" need `raysafl run` to write through mirrors: on
the branch `mirror` they cannot pass, and are to be run after the merge.
"""

import hashlib
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from helpers.commands import RAYSAFL, call
from helpers.patience import PATIENCE
from helpers.servers import Line, s3

from raysafl import FedAvg
from raysafl.algorithms import Key, Round, State
from raysafl.storage import mirror
from raysafl.storage.mirror import Mirror
from raysafl.storage.paths import StorageError, parse_location

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


@pytest.fixture
def here(bucket: str, tmp_path: Path) -> Mirror:
    """The folder of one machine."""
    return Mirror(tmp_path / "here", bucket)


@pytest.fixture
def elsewhere(bucket: str, tmp_path: Path) -> Mirror:
    """The folder of another machine, with the same copy."""
    return Mirror(tmp_path / "elsewhere", bucket)


def through(line: Line, uri: str) -> str:
    return f"{uri}?endpoint_override=http://127.0.0.1:{line.port}"


def write(folder: Path, **files: str) -> None:
    """Write files, in whose names `__` stands for `/` and `_` for a dot."""
    for name, text in files.items():
        file = folder / name.replace("__", "/").replace("_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def read(folder: Path) -> dict[str, str]:
    """Return the content of all files of a folder but the hidden ones."""
    files = [f for f in folder.rglob("*") if f.is_file() and f.name[0] != "."]
    return {f.relative_to(folder).as_posix(): f.read_text() for f in files}


def commit(folder: Path, content: str) -> None:
    """Write a part and then a line of the ledger that names it, as results are written."""
    name = hashlib.sha256(content.encode()).hexdigest()
    write(folder, **{f"rounds__{name}_parquet": content})
    with (folder / "ledger.jsonl").open("a") as ledger:
        ledger.write(json.dumps(name) + "\n")


def compact(folder: Path) -> None:
    """Put all parts into one, replace the ledger, and then delete the parts."""
    old = named(folder)
    content = "".join((folder / f"rounds/{n}.parquet").read_text() for n in old)
    name = hashlib.sha256(content.encode()).hexdigest()
    write(folder, **{f"rounds__{name}_parquet": content, "_new": json.dumps(name)})
    (folder / ".new").write_text(json.dumps(name) + "\n")
    (folder / ".new").replace(folder / "ledger.jsonl")
    for other in set(old) - {name}:
        (folder / f"rounds/{other}.parquet").unlink()


def named(folder: Path) -> list[str]:
    """Return the parts that the ledger names."""
    ledger = folder / "ledger.jsonl"
    lines = ledger.read_text().splitlines() if ledger.is_file() else []
    return [json.loads(line) for line in lines]


def rows(folder: Path) -> str:
    """Return all rows, from the parts that the ledger names: all are there and whole."""
    contents = [(folder / f"rounds/{n}.parquet").read_text() for n in named(folder)]
    digests = [hashlib.sha256(content.encode()).hexdigest() for content in contents]
    assert digests == named(folder)
    return "".join(contents)


def test_what_one_machine_pushes_another_one_pulls(
    here: Mirror, elsewhere: Mirror
) -> None:
    commit(here.path, "one")
    write(here.path, manifest_json="{}", table_md="t", open__a_ckpt="a", a__b__c="d")
    write(here.path, logs__a_txt="l", tune__a="t", mlflow_db="m", x_part="x")
    write(here.path, tune__heartbeat_txt="1/2 runs", mlartifacts__a="a")
    local = {"logs/a.txt", "tune/a", "mlflow.db", "x.part", "mlartifacts/a"}
    here.push()
    elsewhere.pull()
    copied = {n: text for n, text in read(here.path).items() if n not in local}
    assert read(elsewhere.path) == copied and len(copied) == 7
    (here.path / "open/a.ckpt").unlink()
    compact(here.path)
    commit(here.path, "two")
    here.push()
    write(elsewhere.path, logs__b_txt="its own")
    elsewhere.pull()
    copied = {n: text for n, text in read(here.path).items() if n not in local}
    assert read(elsewhere.path) == copied | {"logs/b.txt": "its own"}
    assert rows(elsewhere.path) == "onetwo"
    # The other machine goes on, and the first one follows.
    commit(elsewhere.path, "three")
    elsewhere.push()
    here.pull()
    assert rows(here.path) == "onetwothree"


def test_what_has_not_changed_is_not_copied_again(
    here: Mirror, elsewhere: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = list[str]()
    upload, download = Mirror._upload, Mirror._download

    def uploaded(self: Mirror, name: str, content: bytes) -> None:
        copied.append(f"up {name}")
        upload(self, name, content)

    def downloaded(self: Mirror, name: str) -> bytes:
        copied.append(f"down {name}")
        return download(self, name)

    monkeypatch.setattr(Mirror, "_upload", uploaded)
    monkeypatch.setattr(Mirror, "_download", downloaded)
    write(here.path, rounds__a_parquet="a", ledger_jsonl="a", table_md="t")
    here.push()
    assert copied == ["up rounds/a.parquet", "up ledger.jsonl", "up table.md"]
    here.push()
    elsewhere.pull()
    assert copied[3:] == [f"down{name[2:]}" for name in copied[:3]]
    write(here.path, ledger_jsonl="ab")
    here.push()
    elsewhere.pull()
    here.pull()
    elsewhere.push()
    assert copied[6:] == ["up ledger.jsonl", "down ledger.jsonl"]


def test_a_folder_alone_changed_stays_and_a_store_alone_changed_is_pulled(
    here: Mirror, elsewhere: Mirror
) -> None:
    commit(here.path, "one")
    here.push()
    commit(here.path, "two")
    here.pull()
    assert rows(here.path) == "onetwo"
    here.push()
    elsewhere.pull()
    compact(here.path)
    here.push()
    elsewhere.pull()
    assert read(elsewhere.path) == read(here.path)


def test_results_changed_on_both_sides_are_refused_and_left_as_they_are(
    here: Mirror, elsewhere: Mirror
) -> None:
    commit(here.path, "one")
    here.push()
    elsewhere.pull()
    commit(elsewhere.path, "theirs")
    elsewhere.push()
    commit(here.path, "mine")
    before = read(here.path)
    for act in (here.pull, here.push):
        with pytest.raises(
            StorageError, match=r"both s3://.* and .*here have changed .* another --out"
        ):
            act()
    assert read(here.path) == before
    here.path.rename(here.path.with_name("moved"))
    assert Mirror.of(here.path.with_name("moved")) is None
    here.pull()
    assert rows(here.path) == "onetheirs"


def test_reports_made_on_two_machines_are_no_conflict(
    here: Mirror, elsewhere: Mirror
) -> None:
    commit(here.path, "one")
    here.push()
    elsewhere.pull()
    write(elsewhere.path, table_md="of one row")
    elsewhere.push()
    commit(here.path, "two")
    write(here.path, table_md="of two rows", tune__heartbeat_txt="2/2")
    here.push()
    write(elsewhere.path, table_md="again")
    elsewhere.pull()
    assert read(elsewhere.path) == read(here.path)


def test_a_store_that_was_emptied_does_not_empty_the_folder(
    here: Mirror, bucket: str
) -> None:
    commit(here.path, "one")
    here.push()
    for name in read(here.path):
        here._delete(name)
    for act in (here.pull, here.push):
        with pytest.raises(StorageError, match="holds nothing any more"):
            act()
    (here.path / ".remote.json").unlink()
    here.pull()
    here.push()
    assert rows(here.path) == "one" and here._listed().keys() == read(here.path).keys()


ON_A_MACHINE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from storage.test_mirror import Mirror, commit, compact, named
act, folder, uri = sys.argv[2], Path(sys.argv[3]), sys.argv[4]
mirror = Mirror(folder, uri)
mirror.pull()
print("pulled", flush=True)
for step in range(int(act)):
    commit(folder, f"{len(named(folder))}-{step} " * 200)
    mirror.push()
    if step % 3 == 2:
        compact(folder)
        mirror.push()
"""


def on_a_machine(steps: int, place: Mirror, uri: str) -> "subprocess.Popen[bytes]":
    """Start a process that pulls, and commits, compacts and pushes some times."""
    tests = str(Path(__file__).parent.parent)
    command = [sys.executable, "-c", ON_A_MACHINE, tests, str(steps)]
    return subprocess.Popen(
        [*command, str(place.path), uri], stdout=subprocess.PIPE, cwd=tests
    )


def killed_when_still(process: "subprocess.Popen[bytes]", line: Line) -> bool:
    """Kill it when nothing goes through the line any more, and say whether it was killed."""
    while process.poll() is None and not line.still.wait(0.1):
        pass
    process.send_signal(signal.SIGKILL)
    process.communicate()
    line.close()
    return process.returncode == -signal.SIGKILL


@pytest.mark.acceptance
def test_after_each_kill_in_mid_push_the_store_holds_all_parts_that_its_ledger_names(
    here: Mirror, server: str, tmp_path: Path
) -> None:
    """The killed machine goes on, wherever its upload stood still."""
    seen = list[int]()
    limits = (9_000, 14_000, 19_000, 23_000, 27_000, 31_000, 36_000)
    for i, limit in enumerate(limits):
        line = Line(urlsplit(server).port or 0, limit)
        process = on_a_machine(9, here, through(line, here.uri))
        assert killed_when_still(process, line)
        reader = Mirror(tmp_path / f"reader {i}", here.uri)
        reader.pull()
        seen.append(len(rows(reader.path)))
    assert seen == sorted(seen) and len(set(seen)) > 3, seen
    last = on_a_machine(1, here, here.uri)
    last.communicate()
    reader = Mirror(tmp_path / "last", here.uri)
    reader.pull()
    assert last.returncode == 0 and rows(reader.path) == rows(here.path)
    assert here._listed().keys() == read(here.path).keys()


@pytest.mark.acceptance
def test_a_pull_killed_in_the_middle_is_done_again(
    here: Mirror, elsewhere: Mirror, server: str
) -> None:
    for i in range(9):
        commit(here.path, f"row {i}")
    here.push()
    kills = 0
    for limit in (3_000, 4_500, 6_000, 7_500):
        line = Line(urlsplit(server).port or 0, limit)
        process = on_a_machine(0, elsewhere, through(line, here.uri))
        kills += killed_when_still(process, line)
        assert "ledger.jsonl" not in read(elsewhere.path)
    elsewhere.pull()
    assert kills == 4 and read(elsewhere.path) == read(here.path)
    commit(elsewhere.path, "more")
    elsewhere.push()


@pytest.mark.acceptance
@pytest.mark.parametrize("megabytes", [0.6, 90])  # one request; many parts
def test_a_file_killed_in_mid_upload_is_the_old_one(
    megabytes: float, here: Mirror, elsewhere: Mirror, server: str
) -> None:
    write(here.path, rounds__a_parquet="old")
    here.push()
    size = int(megabytes * 1e6)
    write(here.path, rounds__a_parquet="x" * size)
    line = Line(urlsplit(server).port or 0, limit=size * 2 // 3)
    assert killed_when_still(on_a_machine(1, here, through(line, here.uri)), line)
    time.sleep(0.5)
    elsewhere.pull()
    assert read(elsewhere.path) == {"rounds/a.parquet": "old"}


def test_parts_that_are_compacted_in_mid_push_stop_it_before_the_ledger(
    here: Mirror, elsewhere: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(here.path, "one")
    here.push()
    for content in ("two", "three"):
        commit(here.path, content)
    upload, is_compacted = Mirror._upload, list[bool]()

    def compacted(self: Mirror, name: str, content: bytes) -> None:
        """All files have been listed when the first one is uploaded."""
        if not is_compacted:
            is_compacted.append(True)
            compact(here.path)
        upload(self, name, content)

    monkeypatch.setattr(Mirror, "_upload", compacted)
    here.push()
    elsewhere.pull()
    assert rows(elsewhere.path) == "one" and rows(here.path) == "onetwothree"
    here.push()
    elsewhere.pull()
    assert read(elsewhere.path) == read(here.path)
    assert here._listed().keys() == read(here.path).keys()


def test_a_ledger_that_grows_in_mid_push_is_uploaded_as_it_was_when_parts_were_listed(
    here: Mirror, elsewhere: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(here.path, "one")
    upload, is_grown = Mirror._upload, list[bool]()

    def grown(self: Mirror, name: str, content: bytes) -> None:
        if not is_grown:
            is_grown.append(True)
            commit(here.path, "two")
        upload(self, name, content)

    monkeypatch.setattr(Mirror, "_upload", grown)
    here.push()
    elsewhere.pull()
    assert rows(elsewhere.path) == "one"
    here.push()
    elsewhere.pull()
    assert rows(elsewhere.path) == "onetwo"


@pytest.mark.acceptance
def test_whoever_pulls_while_results_are_written_and_pushed_has_all_parts(
    here: Mirror, elsewhere: Mirror
) -> None:
    is_over = threading.Event()
    commit(here.path, "0")

    def written() -> None:
        step = 0
        while not is_over.is_set():
            step += 1
            commit(here.path, f" {step}")
            if step % 5 == 0:
                compact(here.path)
            time.sleep(0.01)

    def pushed() -> None:
        while not is_over.is_set():
            here.push()

    here.push()
    with ThreadPoolExecutor(2) as threads:
        others = [threads.submit(act) for act in (written, pushed)]
        try:
            lengths = list[int]()
            refused = 0
            while len(set(lengths)) < 8:
                try:
                    elsewhere.pull()
                except StorageError as error:
                    # It may be too slow for a writer that never rests.
                    assert "all the time" in str(error)
                    refused += 1
                lengths.append(len(rows(elsewhere.path)))
                assert refused < 100
                assert not any(other.done() for other in others)
        finally:
            is_over.set()
        for other in others:
            other.result()
    here.push()
    elsewhere.pull()
    assert lengths == sorted(lengths) and rows(elsewhere.path) == rows(here.path)


def test_a_second_machine_that_writes_to_the_same_store_is_told_so(
    here: Mirror, elsewhere: Mirror
) -> None:
    for place in (here, elsewhere):
        place.pull()
        commit(place.path, place.path.name)
    here.push()
    with pytest.raises(StorageError, match="another machine writes there too"):
        elsewhere.push()
    assert rows(elsewhere.path) == "elsewhere"


def test_a_lost_store_is_said_once_and_the_results_wait_for_it(
    here: Mirror, elsewhere: Mirror, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "PUSH_SECONDS", 0.1)
    tries, push = list[bool](), Mirror.push

    def counted(self: Mirror) -> None:
        tries.append(True)
        push(self)

    monkeypatch.setattr(Mirror, "push", counted)
    line = Line(urlsplit(server).port or 0)
    lost = Mirror(here.path, through(line, here.uri))
    said = list[str]()
    with pytest.raises(
        StorageError,
        match=r"complete in .*here, but not copied: s3://.*NETWORK_CONNECTION.* "
        "The same command copies them",
    ):
        with lost.keep_pushing(said.append):
            commit(here.path, "one")
            while "ledger.jsonl" not in here._listed():
                time.sleep(0.05)
            line.close()
            commit(here.path, "two")
            tries.clear()
            while len(tries) < 3:
                time.sleep(0.05)
            assert rows(here.path) == "onetwo"
    assert len(said) == 1 and "NETWORK_CONNECTION" in said[0], said
    with here.keep_pushing(said.append):
        pass
    elsewhere.pull()
    assert rows(elsewhere.path) == "onetwo" and len(said) == 1


def test_what_ends_a_block_reaches_the_caller_and_the_results_the_store(
    here: Mirror, elsewhere: Mirror, server: str
) -> None:
    with pytest.raises(KeyboardInterrupt), here.keep_pushing(print):
        commit(here.path, "one")
        raise KeyboardInterrupt
    elsewhere.pull()
    assert rows(elsewhere.path) == "one"
    line = Line(urlsplit(server).port or 0)
    lost = Mirror(here.path, through(line, here.uri))
    line.close()
    with pytest.raises(KeyboardInterrupt), lost.keep_pushing(print):
        commit(here.path, "two")
        raise KeyboardInterrupt


def test_a_uri_leads_to_a_folder_below_the_current_one_and_a_folder_to_its_mirror(
    here: Mirror, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(here.path, "one")
    here.push()
    monkeypatch.chdir(tmp_path)
    folder = parse_location(f"{bucket}/")
    assert folder == tmp_path / "results" / "s3" / bucket.removeprefix("s3://")
    assert rows(folder) == "one"
    found = Mirror.of(folder)
    assert found and found.path == folder and str(found) == bucket
    assert Mirror.of(here.path / "elsewhere") is not None
    assert Mirror.of(tmp_path) is None
    assert parse_location(f"file://{tmp_path}") == tmp_path
    shutil.copytree(folder, tmp_path / "copy")
    assert Mirror.of(tmp_path / "copy") is None


def test_a_folder_of_sweeps_is_pulled_and_pushed_with_each_of_them(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b c"):
        uri = f"{bucket}/{name.replace(' ', '%20')}"
        sweep = Mirror(tmp_path / "written" / name, uri)
        commit(sweep.path, name)
        write(sweep.path, manifest_json="{}")
        sweep.push()
    foreign = Mirror(tmp_path / "foreign", bucket)
    foreign._upload("large.tar", b"x")
    foreign._upload("other/large.tar", b"x")
    folder = parse_location(bucket)
    assert read(folder) == read(tmp_path / "written")
    first = Mirror.of(folder / "a")
    assert first is not None and str(first) == f"{bucket}/a"
    # One was run by its own URI, one in the folder.
    assert parse_location(f"{bucket}/a") == folder / "a"
    commit(folder / "a", "more")
    first.push()
    commit(folder / "new", "new")
    write(folder, figure_pdf="f")
    assert parse_location(bucket) == folder
    whole = Mirror.of(folder)
    assert whole is not None
    whole.push()
    assert parse_location(bucket) == folder
    listed = [n for n in read(folder) if n.startswith(("a/", "new/"))]
    assert set(listed) | {"figure.pdf"} <= foreign._listed().keys()
    written = Mirror(tmp_path / "written" / "a", f"{bucket}/a")
    written.pull()
    assert rows(written.path) == "amore"


def test_names_and_links_that_lead_out_of_the_folder_are_not_followed(
    here: Mirror, elsewhere: Mirror, server: str, bucket: str, tmp_path: Path
) -> None:
    (tmp_path / "secret").mkdir()
    write(tmp_path / "secret", a_txt="secret")
    commit(here.path, "one")
    (here.path / "models").symlink_to(tmp_path / "secret")
    (here.path / "a.txt").symlink_to(tmp_path / "secret/a.txt")
    here.push()
    assert set(here._listed()) == {*read(here.path)} - {"a.txt", "models/a.txt"}
    for name in ("%2e%2e/out", "/out", ".lock", ".remote.json"):
        url = f"{server}/{bucket.removeprefix('s3://')}/{name}"
        urllib.request.urlopen(
            urllib.request.Request(url, data=b"x", method="PUT")
        ).close()
    elsewhere.pull()
    assert rows(elsewhere.path) == "one" and not list(tmp_path.rglob("out"))
    here._upload("models/a.txt", b"theirs")
    with pytest.raises(StorageError, match="leads out of"):
        here.pull()
    assert (tmp_path / "secret/a.txt").read_text() == "secret"


@pytest.mark.acceptance
def test_a_store_that_cannot_be_used_is_refused_with_what_to_do(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError, match=r"s3://nowhere/x: .*bucket .* make it"):
        parse_location("s3://nowhere/x")
    with pytest.raises(StorageError, match=r"NETWORK_CONNECTION.* AWS_ENDPOINT_URL"):
        parse_location("s3://bucket/x?endpoint_override=http://127.0.0.1:1")
    with pytest.raises(StorageError, match="cannot use ftp://a/b for results"):
        parse_location("ftp://a/b")
    with pytest.raises(StorageError, match="give it as text"):
        parse_location(Path("s3://bucket/x"))
    with pytest.raises(StorageError, match="no folder can be named after"):
        parse_location("s3://bucket/../../x")
    with pytest.raises(ValueError, match="holds a password"):
        parse_location("s3://me:secret@bucket/x")
    assert not (tmp_path / "results").exists()
    folder = parse_location(bucket)
    write(folder, _remote_json="{")
    (folder / ".remote.json").write_text("{")
    with pytest.raises(StorageError, match=r"remote.json cannot be read"):
        parse_location(bucket)


# The command line: after the merge


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


EXPERIMENT = f"""
import time
from collections.abc import Sequence
from pathlib import Path
from raysafl import FedAvg, Sweep
from raysafl.algorithms import Key, Round, State
from raysafl.quickstart import BASE
{inspect.getsource(Waits)}
SHORT = BASE.replace(algorithm=Waits(folder="FOLDER"), rounds=6)
RUNS = {{(i,): SHORT.replace(seed=i, replicates=1) for i in range(5)}}
SWEEP = Sweep("k", RUNS, axes=("i",))
"""
# One run after the other: the first one ends, the others wait.
ONE_BY_ONE = ["--executor", "here", "--pack", "1", "--trials", "1", "--track", "none"]


def machine(tmp_path: Path, name: str) -> Path:
    """A current folder of its own, with the experiment file."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "k.py").write_text(EXPERIMENT.replace("FOLDER", str(tmp_path)))
    return tmp_path / name


def started(folder: Path, uri: str) -> "subprocess.Popen[str]":
    """Start the sweep, and copy it every half second."""
    often = (
        "from raysafl.storage import mirror; mirror.PUSH_SECONDS = 0.5; " + RAYSAFL[-1]
    )
    command = [*RAYSAFL[:-1], often, "run", "k.py", "--out", uri, *ONE_BY_ONE]
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for_first_run(driver: "subprocess.Popen[str]", copy: Mirror) -> None:
    while not named_cells(copy):
        assert driver.poll() is None, driver.communicate()
        time.sleep(0.2)


def named_cells(copy: Mirror) -> int:
    """Return how many lines the ledger in the store has."""
    try:
        return copy._download("ledger.jsonl").count(b"\n")
    except FileNotFoundError:
        return 0


def accuracies(folder: Path, path: str) -> list[dict[str, float]]:
    code, told = call(folder, "results", path, "--json", "--columns", "i,test_accuracy")
    assert code == 0, told
    found = json.loads(told[told.index("[") : told.rindex("]") + 1])
    return sorted(found, key=lambda row: row["i"])


@pytest.mark.acceptance
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_sweep_into_a_store_killed_and_given_again_ends_with_the_undisturbed_rows(
    where: str, bucket: str, tmp_path: Path
) -> None:
    """The same command goes on, on the same machine and on one that knows the store alone."""
    first = machine(tmp_path, "here")
    again = first if where == "here" else machine(tmp_path, where)
    driver = started(first, f"{bucket}/k")
    wait_for_first_run(driver, Mirror(tmp_path / "unused", f"{bucket}/k"))
    os.killpg(driver.pid, signal.SIGKILL)
    driver.communicate()
    (tmp_path / "go").touch()
    code, told = call(again, "run", "k.py", "--out", f"{bucket}/k", *ONE_BY_ONE)
    assert code == 0, told
    reader = machine(tmp_path, "reader")
    code, told = call(reader, "run", "k.py", "--out", "reference", *ONE_BY_ONE)
    assert code == 0, told
    rows = accuracies(reader, "reference")
    assert accuracies(reader, f"{bucket}/k") == rows and len(rows) == 5
    for command in ("status", "verify", "report"):
        code, told = call(reader, command, bucket)
        assert code == 0, told


@pytest.mark.acceptance
def test_a_sweep_whose_store_is_lost_goes_on_and_the_same_command_copies_it(
    server: str, bucket: str, tmp_path: Path
) -> None:
    line = Line(urlsplit(server).port or 0)
    folder = machine(tmp_path, "here")
    copy = Mirror(tmp_path / "unused", f"{bucket}/k")
    driver = started(folder, through(line, f"{bucket}/k"))
    wait_for_first_run(driver, copy)
    line.close()
    (tmp_path / "go").touch()
    told, _ = driver.communicate(timeout=PATIENCE)
    told = " ".join(told.split())
    assert driver.returncode not in (0, 1), told
    assert "complete in" in told and "The same command copies them" in told
    assert named_cells(copy) < 5
    code, told = call(folder, "run", "k.py", "--out", f"{bucket}/k", *ONE_BY_ONE)
    assert code == 0 and named_cells(copy) == 5, told
