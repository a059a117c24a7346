"""Copies in an object store: a real S3 server on loopback, copies killed in the middle."""

import hashlib
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from helpers.commands import RAYSAFL, call
from helpers.servers import Line, s3

from raysafl import FedAvg
from raysafl.algorithms import Key, Round, State
from raysafl.storage import mirror
from raysafl.storage.mirror import Mirror, RemoteFolder
from raysafl.storage.paths import StorageError, parse_location, pushed
from raysafl.storage.store import Store

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
    for name, value in (KEYS | {"AWS_ENDPOINT_URL": server}).items():
        monkeypatch.setenv(name, value)
    # Processes that test at the same time have folders of the same name.
    return f"s3://bucket/{tmp_path.parent.name}/{tmp_path.name}"


@pytest.fixture
def here(bucket: str, tmp_path: Path) -> Mirror:
    return machine(tmp_path / "here", bucket)


@pytest.fixture
def elsewhere(bucket: str, tmp_path: Path) -> Mirror:
    return machine(tmp_path / "elsewhere", bucket)


def machine(folder: Path, uri: str) -> Mirror:
    """The folder of a machine, and the copy that it shares with others."""
    place = Mirror(folder, uri)
    place.pull()
    return place


def through(line: Line, place: Mirror) -> Mirror:
    uri = f"{place.uri}?endpoint_override=http://127.0.0.1:{line.port}"
    return Mirror(place.path, uri)


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


def stored(place: Mirror) -> set[str]:
    return set(place.remote.files())


def commit(folder: Path, content: str) -> None:
    """Write a part and then a line of the ledger that names it, as results are written."""
    name = hashlib.sha256(content.encode()).hexdigest()
    write(folder, **{f"rounds__{name}_parquet": content})
    with (folder / "ledger.jsonl").open("a") as ledger:
        ledger.write(json.dumps(name) + "\n")


def join(folder: Path) -> None:
    """Put all parts into one, replace the ledger, and then delete the parts."""
    old, content = named(folder), rows(folder)
    (folder / "ledger.jsonl").rename(folder / ".old")
    commit(folder, content)
    for name in set(old) - set(named(folder)):
        (folder / f"rounds/{name}.parquet").unlink()


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
    join(here.path)
    commit(here.path, "two")
    here.push()
    write(elsewhere.path, logs__b_txt="its own", table_md="made again")
    elsewhere.pull()
    copied = {n: text for n, text in read(here.path).items() if n not in local}
    assert read(elsewhere.path) == copied | {"logs/b.txt": "its own"}
    # The other machine goes on, and the first one follows.
    commit(elsewhere.path, "three")
    elsewhere.pull()
    elsewhere.push()
    here.pull()
    assert rows(here.path) == "onetwothree"


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
        with pytest.raises(StorageError, match=r"here have changed .* another --out"):
            act()
    assert read(here.path) == before
    here.path.rename(here.path.with_name("moved"))
    assert Mirror.of(here.path.with_name("moved")) is None
    here.pull()
    assert rows(here.path) == "onetheirs"


def test_neither_an_emptied_store_nor_an_emptied_folder_empties_the_other(
    here: Mirror,
) -> None:
    commit(here.path, "one")
    here.push()
    for name in here.remote.files():
        here.remote.delete(name)
    with pytest.raises(StorageError, match="have changed since"):
        here.push()
    here.pull()
    here.push()
    assert rows(here.path) == "one" and stored(here) == read(here.path).keys()
    for name in ("rounds", "ledger.jsonl"):
        (here.path / name).rename(here.path.with_name(name))
    here.pull()
    here.push()
    assert rows(here.path) == "one" and stored(here) == read(here.path).keys()


ON_A_MACHINE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from storage.test_mirror import commit, join, machine
place = machine(Path(sys.argv[2]), sys.argv[3])
for step in range(int(sys.argv[4])):
    commit(place.path, f"{step} " * 200)
    place.push()
    if step % 3 == 2:
        join(place.path)
        place.push()
"""


def killed_when_still(place: Mirror, line: Line, steps: int) -> bool:
    """Pull, commit, join and push in a process, and kill it when nothing goes through the line.

    Returns:
        Whether it was killed.
    """
    tests, reached = str(Path(__file__).parent.parent), through(line, place)
    command = [sys.executable, "-c", ON_A_MACHINE, tests, str(place.path)]
    process = subprocess.Popen([*command, reached.uri, str(steps)])
    while process.poll() is None and not line.still.wait(0.1):
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    line.close()
    return process.returncode == -signal.SIGKILL


@pytest.mark.acceptance
def test_after_each_kill_in_mid_copy_the_store_holds_all_parts_that_its_ledger_names(
    here: Mirror, elsewhere: Mirror, server: str, tmp_path: Path
) -> None:
    """The killed machine goes on, wherever its upload stood still, and so does a reader."""
    port, seen = urlsplit(server).port or 0, list[int]()
    for i, limit in enumerate((12_000, 17_000, 25_000)):
        assert killed_when_still(here, Line(port, limit), 9)
        reader = machine(tmp_path / f"reader {i}", here.uri)
        seen.append(len(rows(reader.path)))
    assert seen == sorted(seen) and seen[0] < seen[-1], seen
    here.pull()
    here.push()
    assert killed_when_still(elsewhere, Line(port, 4_000), 0)
    assert "ledger.jsonl" not in read(elsewhere.path)
    elsewhere.pull()
    assert read(elsewhere.path) == read(here.path) and rows(here.path)
    assert stored(here) == read(here.path).keys()


@pytest.mark.parametrize("when", ["before the listing", "before the first upload"])
@pytest.mark.parametrize("what", ["joined", "grown"])
def test_what_changes_in_mid_push_waits_for_the_next_one(
    what: str,
    when: str,
    here: Mirror,
    elsewhere: Mirror,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store's ledger names no part that is gone, and none that was not listed."""
    commit(here.path, "one")
    here.push()
    for content in ("two", "three"):
        commit(here.path, content)
    place, name = (mirror, "files_in") if when[-1] == "g" else (RemoteFolder, "files")
    listing, is_changed = getattr(place, name), list[bool]()

    def changing(*given: object) -> object:
        listed = listing(*given) if place is RemoteFolder else None
        if not is_changed:
            is_changed.append(True)
            join(here.path) if what == "joined" else commit(here.path, "four")
        return listed or listing(*given)

    monkeypatch.setattr(place, name, changing)
    here.push()
    elsewhere.pull()
    seen = "one" if what == "joined" else "onetwothree"
    assert rows(elsewhere.path) == seen and rows(here.path).startswith("onetwothree")
    here.push()
    elsewhere.pull()
    assert read(elsewhere.path) == read(here.path)
    assert stored(here) == read(here.path).keys()


@pytest.mark.acceptance
def test_a_lost_store_is_said_once_and_the_next_block_copies_what_it_missed(
    here: Mirror, elsewhere: Mirror, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "PUSH_SECONDS", 0.1)
    line, said = Line(urlsplit(server).port or 0), list[str]()
    through(line, here).pull()
    with pytest.raises(StorageError, match=r"here, but not copied: s3://.*"):
        with pushed(here.path, said.append):
            commit(here.path, "one")
            while "ledger.jsonl" not in stored(here):
                time.sleep(0.05)
            line.close()
            commit(here.path, "two")
            while not said:
                time.sleep(0.05)
    assert len(said) == 1 and "NETWORK_CONNECTION" in said[0], said
    here.pull()
    with pytest.raises(KeyboardInterrupt), pushed(here.path, said.append):
        raise KeyboardInterrupt
    elsewhere.pull()
    assert rows(elsewhere.path) == "onetwo" and len(said) == 1
    # Another process writes and copies.
    commit(here.path, "three")
    with Store(here.path).lock(), pushed(here.path, said.append):
        pass
    elsewhere.pull()
    assert rows(elsewhere.path) == "onetwo"


def test_a_folder_of_sweeps_is_pulled_with_each_of_them_as_a_mirror_of_its_own(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b c"):
        place = machine(tmp_path / name, f"{bucket}/{name.replace(' ', '%20')}")
        commit(place.path, name)
        place.push()
    RemoteFolder(bucket).write("large.tar", b"x")
    RemoteFolder(bucket).write("other/large.tar", b"x")
    folder = parse_location(bucket)
    assert folder == tmp_path / "results" / "s3" / bucket.removeprefix("s3://")
    for name in ("a", "b c"):
        assert rows(folder / name) == name
    assert len(read(folder)) == 4 and Mirror.of(folder) is None
    # One is run by its own URI, and both are read by that of the folder.
    assert parse_location(f"{bucket}/a/") == folder / "a"
    commit(folder / "a", "more")
    with pushed(folder / "a", print):
        pass
    machine(tmp_path / "a", f"{bucket}/a")
    assert rows(tmp_path / "a") == "amore" and parse_location(bucket) == folder
    shutil.copytree(folder / "a", tmp_path / "copy")
    assert Mirror.of(tmp_path / "copy") is None


def test_names_and_links_that_lead_out_of_the_folder_are_not_followed(
    here: Mirror, elsewhere: Mirror, server: str, bucket: str, tmp_path: Path
) -> None:
    (tmp_path / "secret").mkdir()
    write(tmp_path / "secret", a_txt="secret")
    commit(here.path, "one")
    (here.path / "models").symlink_to(tmp_path / "secret")
    (here.path / "a.txt").symlink_to(tmp_path / "secret/a.txt")
    here.push()
    assert stored(here) == read(here.path).keys() - {"a.txt", "models/a.txt"}
    for name in ("%2e%2e/out", "/out", ".lock", ".remote.json"):
        url = f"{server}/{bucket.removeprefix('s3://')}/{name}"
        urllib.request.urlopen(
            urllib.request.Request(url, data=b"x", method="PUT")
        ).close()
    elsewhere.pull()
    assert rows(elsewhere.path) == "one" and not list(tmp_path.rglob("out"))
    write(elsewhere.path, models__a_txt="theirs")
    commit(elsewhere.path, "two")
    elsewhere.push()
    with pytest.raises(StorageError, match="leads out of"):
        here.pull()
    assert (tmp_path / "secret/a.txt").read_text() == "secret"


@pytest.mark.acceptance
def test_a_store_that_cannot_be_used_is_refused_with_what_to_do(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for uri, told in {
        "s3://nowhere/x": r"s3://nowhere/x: .*bucket .* make it",
        "s3://bucket/x?endpoint_override=http://127.0.0.1:1": r"NETWORK_.* AWS_ENDPOINT",
        "ftp://a/b": "cannot use ftp://a/b for results",
        "s3://bucket/../../x": "no folder can be named after",
    }.items():
        with pytest.raises(StorageError, match=told):
            parse_location(uri)
    with pytest.raises(StorageError, match="give it as text"):
        parse_location(Path("s3://bucket/x"))
    with pytest.raises(ValueError, match="holds a password"):
        parse_location("s3://me:secret@bucket/x")
    assert parse_location(f"file://{tmp_path}") == tmp_path
    assert not (tmp_path / "results").exists()
    (parse_location(bucket) / ".remote.json").write_text("{")
    with pytest.raises(StorageError, match=r"remote.json cannot be read"):
        parse_location(bucket)


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
RUNS = {{(i,): SHORT.replace(seed=i, replicates=1) for i in range(3)}}
SWEEP = Sweep("k", RUNS, axes=("i",))
"""
# One run after the other: the first one ends, the others wait.
ONE_BY_ONE = ["--executor", "here", "--pack", "1", "--trials", "1", "--track", "none"]


def accuracies(folder: Path, path: str) -> list[dict[str, float]]:
    code, told = call(folder, "results", "select i, final from runs", path, "--json")
    assert code == 0, told
    table = json.loads(told[told.index("[") : told.rindex("]") + 1])
    return sorted(table, key=lambda row: row["i"])


@pytest.mark.acceptance
def test_a_sweep_into_a_store_killed_and_continued_elsewhere_has_the_undisturbed_rows(
    bucket: str, tmp_path: Path
) -> None:
    """The same command goes on, on a machine that knows the store alone."""
    for name in ("one", "two", "reader"):
        (tmp_path / name).mkdir()
        experiment = EXPERIMENT.replace("FOLDER", str(tmp_path))
        (tmp_path / name / "k.py").write_text(experiment)
    uri = f"{bucket}/k"
    often = "from raysafl.storage import mirror; mirror.PUSH_SECONDS = 0.5; "
    run = [*RAYSAFL[:-1], often + RAYSAFL[-1], "run", "k.py", "--out", uri, *ONE_BY_ONE]
    driver = subprocess.Popen(run, cwd=tmp_path / "one", start_new_session=True)
    while not RemoteFolder(uri).read("ledger.jsonl"):
        assert driver.poll() is None
        time.sleep(0.2)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    (tmp_path / "go").touch()
    for folder, out in (("two", uri), ("reader", "reference")):
        code, told = call(tmp_path / folder, "run", "k.py", "--out", out, *ONE_BY_ONE)
        assert code == 0, told
    reader = tmp_path / "reader"
    undisturbed = accuracies(reader, "reference")
    assert accuracies(reader, bucket) == undisturbed and len(undisturbed) == 3
