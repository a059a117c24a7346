"""A disk that fills up: a clear end, and the same command goes on when there is room again."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import pytest
from helpers.commands import call_here

from raysafl import FedAvg, Hardware, Run, Runner, Sweep
from raysafl.algorithms import Key
from raysafl.core.algorithm import Algorithm, Round, State
from raysafl.storage.ledger import Status
from raysafl.storage.paths import StorageError, atomic_write
from raysafl.storage.store import Store

FACTS = "run_id replicate round kind cohorts test_accuracy test_loss steps".split()
MEGABYTES = 4


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own; needs root, as in most containers."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(folder)]
    if os.getuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot mount a small disk, as root may")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all the room there is; deleting what is returned gives it back."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for chunk in (65536, 1):
            while True:
                try:
                    file.write(b"\0" * chunk)
                except OSError:
                    break
    return ballast


class Fills(Algorithm):
    """FedAvg; in its third round the disk fills up, once."""

    folder: str

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        if key.round == 2 and not (Path(self.folder) / "filled").exists():
            (Path(self.folder) / "filled").touch()
            fill(Path(self.folder))
        return (yield from FedAvg().round(state, ids, key))


def test_a_write_to_a_full_disk_says_how_much_and_leaves_the_old_file(
    disk: Path,
) -> None:
    atomic_write(disk / "file", b"old")
    ballast = fill(disk)
    with pytest.raises(StorageError) as error:
        atomic_write(disk / "file", b"n" * 250_000)
    said = str(error.value)
    assert f"the disk of {disk} is full: 0 B of 4.19 MB are free" in said
    assert "250 kB were to be written" in said and "Make room there" in said
    assert sorted(os.listdir(disk)) == ["ballast", "file"]
    assert (disk / "file").read_bytes() == b"old"
    ballast.unlink()
    atomic_write(disk / "file", b"new")
    assert (disk / "file").read_bytes() == b"new"


@pytest.mark.usefixtures("ray_local")
def test_a_sweep_whose_disk_fills_up_ends_with_the_reason_and_goes_on_when_there_is_room(
    disk: Path, tiny: Run, tmp_path: Path
) -> None:
    run = tiny.replace(algorithm=Fills(folder=str(disk)), rounds=6)
    sweep = Sweep("full", {(i,): run.replace(seed=i) for i in range(3)}, axes=("i",))
    options = {"track": "none", "quiet": True, "flush_seconds": 0.0}
    hardware = Hardware(cpus=0.5, trials=1)
    on_ray = Runner(sweep, disk / "s", hardware, executor="ray", **options)
    with pytest.raises(StorageError, match=r"is full.*The same command goes") as error:
        on_ray.run()
    assert not any(e.status is Status.FAILED for e in on_ray.store.ledger().values())
    shutil.copytree(disk / "s", tmp_path / "then")
    (disk / "ballast").unlink()
    # Elsewhere than on Ray, which takes longer to start.
    options["executor"] = "here"
    again = Runner(sweep, disk / "s", **options).run()
    assert again.ok and "Traceback" not in str(error.value)
    assert len(Store(tmp_path / "then").ledger()) < 3
    whole = Sweep("whole", {(i,): run.replace(seed=i) for i in range(3)}, axes=("i",))
    elsewhere = Runner(whole, tmp_path / "w", **options).run()
    pd.testing.assert_frame_equal(
        again.store.rounds()[FACTS], elsewhere.store.rounds()[FACTS]
    )
    fill(disk)
    # From the start: nothing is changed.
    with pytest.raises(StorageError, match="is full"):
        Runner(sweep, disk / "t", **options).run()


LARGE = """
import numpy as np
from raysafl import *
from raysafl.core.problem import Dataset, Samples
from raysafl.data.sources import Source
from raysafl.quickstart import BASE

class Large(Source):
    def load(self):
        part = Samples(np.zeros((800, 1, 400, 400), np.uint8), np.arange(800) % 10)
        return Dataset("large", part, part, 10)

SWEEP = Sweep("large", [BASE.replace({"data.dataset": Large()})])
"""
SMALL = """
mount -t tmpfs -o size=16m tmpfs /dev/shm && mount -t tmpfs -o size=60m tmpfs "$RAY_TMPDIR" &&
exec "$@"
"""


@pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("unshare"), reason="root mounts disks"
)
def test_shared_memory_that_is_too_small_is_a_clear_error_and_no_hang(
    tmp_path: Path,
) -> None:
    """In a mount namespace of its own: /dev/shm of 16 MB, and 60 MB for what does not fit."""
    (tmp_path / "large.py").write_text(LARGE)
    # short: its sockets' names have 107 characters
    ray = Path(tempfile.mkdtemp(prefix="r"))
    code = "from raysafl.cli.app import main; main()"
    raysafl = [sys.executable, "-c", code, "run", "large.py", "--executor", "ray"]
    package = str(Path(__file__).parents[2])
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", SMALL, "sh", *raysafl],
        cwd=tmp_path,
        env={**os.environ, "RAY_TMPDIR": str(ray), "PYTHONPATH": package},
        capture_output=True,
        text=True,
        timeout=300,
    )
    shutil.rmtree(ray, ignore_errors=True)
    assert done.returncode == 2, done.stdout + done.stderr
    assert (
        "Error: the datasets, 256 MB, do not fit the memory that Ray's" in done.stderr
    )
    assert "--shm-size" in done.stderr and "Traceback" not in done.stdout + done.stderr


def test_a_disk_that_becomes_read_only_ends_the_sweep_and_it_is_merged_and_goes_on_later(
    tiny: Run, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remount(how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)

    def go(out: Path, *seeds: int) -> Store:
        runs = {(seed,): tiny.replace(seed=seed) for seed in seeds}
        sweep = Sweep("s", runs, axes=("seed",))
        outcome = Runner(sweep, out, executor="here", track="none", quiet=True).run()
        assert outcome.ok
        return outcome.store

    go(disk / "s", 0)
    go(tmp_path / "other", 10)
    folders = [str(folder) for folder in (disk / "s", tmp_path / "other")]
    remount("ro")
    try:
        with pytest.raises(StorageError, match="cannot write results to"):
            go(disk / "s", 0, 10)
        out = tmp_path / "merged"
        code, said = call_here(monkeypatch, "merge", *folders, "--out", str(out))
        assert code == 0, said
    finally:
        remount("rw")
    expected = go(tmp_path / "s", 0, 10).rounds()
    for found in (Store(out), go(disk / "s", 0, 10)):
        pd.testing.assert_frame_equal(found.rounds()[FACTS], expected[FACTS])
