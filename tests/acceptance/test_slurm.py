"""The scripts of deploy/ on a real Slurm: a login host and two computing hosts on this machine.

Its programs are Debian's, unpacked into a folder and not installed; helpers/slurm has the scripts.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest
from helpers.commands import RAYSAFL, checked_output
from helpers.patience import PATIENCE

from raysafl.storage.store import Store

SCRIPTS = Path(__file__).parents[1] / "helpers" / "slurm"
DEPLOY = Path(__file__).parents[2] / "deploy"
TOOLS = ("apt-get", "dpkg", "ip", "nsenter", "unshare")
NAMESPACES = ("--net", "--pid", "--mount", "--uts", "--fork", "--kill-child")
FACTS = ["replicate", "round", "kind", "test_accuracy", "test_loss", "train_accuracy"]
# A part of the quickstart. Where HELD names a folder, rounds say there that they have begun, and
# are slow until it has a file `go`.
STUDY = """
import os
import time
from collections.abc import Sequence
from pathlib import Path

from raysafl import FedAvg, Sweep
from raysafl.core.algorithm import Round, State
from raysafl.core.randomness import Key
from raysafl.quickstart import SWEEP as QUICKSTART


class Held(FedAvg):
    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        held = os.environ.get("HELD")
        if held and not Path(held, "go").exists():
            Path(held, "begun").touch()
            for _ in range(40):
                if not Path(held, "go").exists():
                    time.sleep(0.2)
        return (yield from super().round(state, ids, key))


RUNS = {
    (s, p): run.replace({"algorithm": Held(), "replicates": 2})
    for (s, algorithm, p), run in QUICKSTART.labelled().items()
    if algorithm == "FedAvg" and s != 2 and p != 2
}
SWEEP = Sweep("mine", RUNS, axes=("s", "p"))
"""
QUICK = ("--track", "none", "--no-try")


def eventually(holds: Callable[[], bool]) -> None:
    """Return once a condition holds; fail if it does not for a long time.

    Each host starts a Ray for each job, all of them on this machine.
    """
    deadline = time.monotonic() + 2 * PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "what the test waits for never happens"
        time.sleep(0.2)


class Slurm:
    """A Slurm that has been started, and what a user does on its login host.

    Args:
        folder: where its programs and files are, and those of the user.
        process: what has started it.
    """

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        (self.home / "study.py").write_text(STUDY)
        programs = folder / "bin"
        programs.mkdir()
        raysafl = programs / "raysafl"
        raysafl.write_text(f"#!/bin/sh\nexec {RAYSAFL[0]} -c '{RAYSAFL[2]}' \"$@\"\n")
        raysafl.chmod(0o755)
        libraries = folder / "root/usr/lib/x86_64-linux-gnu"
        path = [programs, folder / "root/usr/bin", Path(sys.executable).parent]
        self.environment = os.environ | {
            "HOME": str(self.home),
            "LD_LIBRARY_PATH": f"{libraries}:{libraries / 'slurm-wlm'}",
            "PATH": ":".join([*map(str, path), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "SLURM_CONF": str(folder / "slurm.conf"),
        }
        (login,) = psutil.Process(process.pid).children()
        self.login = login.pid

    def call(self, *command: str, **environment: str) -> str:
        """Return what a command says on the login host."""
        namespaces = ["--net", "--mount", "--uts", f"--wd={self.home}"]
        done = subprocess.run(
            ["nsenter", f"--target={self.login}", *namespaces, *command],
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
        )
        return str(done.stdout).strip()

    def submit(self, *command: str, **environment: str) -> str:
        """Submit a job, and return its number."""
        said = self.call("sbatch", "--parsable", *command, **environment)
        assert said.isdecimal(), said
        return said

    def fact(self, job: str, name: str) -> str:
        """Return what Slurm says of a job."""
        shown = self.call("scontrol", "show", "job", job)
        values: list[str] = re.findall(rf"\b{name}=(\S+)", shown)
        return values[0]

    def log(self, job: str) -> str:
        """Return what a job has said."""
        return (self.home / f"slurm-{job}.out").read_text()

    def has_ended(self, job: str) -> bool:
        """Return whether a job is neither in the queue nor at work."""
        at_work = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")
        return self.fact(job, "JobState") not in at_work

    def wait_until_it_trains(self, job: str, out: Path) -> None:
        """Wait until the study of a job has begun its rounds."""
        eventually(lambda: (out / "begun").exists() or self.has_ended(job))
        assert (out / "begun").exists(), self.log(job)

    def wait_for_end(self, job: str) -> None:
        """Wait until a job has ended well."""
        eventually(lambda: self.has_ended(job))
        assert self.fact(job, "JobState") == "COMPLETED", self.log(job)

    def wait_until_put_back(self, job: str) -> None:
        """Wait until a job is in the queue again."""
        eventually(lambda: self.fact(job, "Restarts") != "0")

    def left_behind(self) -> str:
        """Return which files there are in the hosts' own /tmp."""
        return self.call(
            "srun", "--nodes=2", "find", "/tmp", "-xdev", "-not", "-type", "d"
        )

    def lose(self, host: str) -> None:
        """End all processes of a host at once."""
        # Its first process ends with this one, of which the login host knows the number.
        number = (self.folder / f"{host}.unshare").read_text().strip()
        enter = ["nsenter", f"--target={self.login}", "--pid"]
        subprocess.run([*enter, "kill", "-KILL", number], check=True)


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    if os.getuid() != 0 or not all(map(shutil.which, TOOLS)):
        pytest.skip(f"a Slurm of several hosts needs root and {', '.join(TOOLS)}")
    # Each host has a /tmp of its own.
    with tempfile.TemporaryDirectory(prefix="slurm", dir="/var/tmp") as name:
        folder = Path(name)
        download = [str(SCRIPTS / "packages.sh"), name]
        if subprocess.run(download, capture_output=True).returncode:
            pytest.skip("Debian's packages of Slurm cannot be downloaded")
        seen = [p for p in (sys.prefix, str(DEPLOY.parent)) if p.startswith("/tmp/")]
        with (folder / "output").open("w") as output:
            process = subprocess.Popen(
                ["unshare", *NAMESPACES, "--mount-proc", SCRIPTS / "cluster.sh", name],
                env=os.environ | {"SEEN": " ".join(seen)},
                stdout=output,
                stderr=output,
            )
        try:
            eventually((folder / "n2.unshare").exists)
            made = Slurm(folder, process)
            eventually(lambda: made.call("sinfo", "-h", "-o", "%D %t") == "2 idle")
            yield made
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def reference(slurm: Slurm) -> Store:
    """The sweep as this machine alone carries it out."""
    out = slurm.home / "reference"
    command = [*RAYSAFL, "run", "study.py", "--out", str(out), "--executor", "here"]
    checked_output([*command, *QUICK], cwd=slurm.home, env=slurm.environment)
    return Store(out)


def check_rows(out: Path, reference: Store) -> None:
    """The rows in a folder are those of the reference, of all runs."""
    store = Store(out)
    entries = reference.manifest().entries
    assert len(entries) == 4 and len(store.manifest().entries) == 4
    for entry in entries:
        mine, expected = (one.rounds(entry.run_id) for one in (store, reference))
        assert len(expected) == 120
        pd.testing.assert_frame_equal(mine[FACTS], expected[FACTS])
        came = [[list(c) for c in rows["cohorts"]] for rows in (mine, expected)]
        assert str(came[0]) == str(came[1])


def test_the_parts_of_an_array_are_merged_to_the_rows_of_one_machine(
    slurm: Slurm, reference: Store
) -> None:
    what = [str(DEPLOY / "slurm_array.sh"), "study.py", str(slurm.home / "array")]
    parts = slurm.submit("--array=1-3", *what, *QUICK)
    merged = slurm.submit(f"--dependency=afterok:{parts}", *what)
    for part in ("1", "2", "3"):
        slurm.wait_for_end(f"{parts}_{part}")
    slurm.wait_for_end(merged)
    of_parts = [Store(part) for part in sorted((slurm.home / "array/parts").iterdir())]
    assert [store.path.name for store in of_parts] == ["1-of-3", "2-of-3", "3-of-3"]
    cells = [set(store.ledger()) for store in of_parts]
    assert sum(map(len, cells)) == 8 and len(set.union(*cells)) == 8
    check_rows(slurm.home / "array/whole", reference)


def test_a_job_goes_on_where_a_signal_has_put_it_back_beside_one_that_is_cancelled(
    slurm: Slurm, reference: Store
) -> None:
    """Both are of one user, at once on the same two nodes."""
    jobs = {}
    # This Slurm knows of no GPUs.
    gpus = {"SLURM_GPUS_ON_NODE": "1", "RAYSAFL_LOGICAL_GPUS": "1"}
    for name, has in {"first": gpus, "second": {}}.items():
        out = slurm.home / name
        out.mkdir()
        jobs[name] = slurm.submit(
            *("--nodes=2", str(DEPLOY / "slurm.sh"), "study.py"),
            *("--out", f"{out}/results", *QUICK),
            HELD=str(out),
            **has,
        )
    for name, job in jobs.items():
        slurm.wait_until_it_trains(job, slurm.home / name)
    tokens = list(slurm.home.glob("*.token"))
    assert [file.stat().st_mode & 0o777 for file in tokens] == [0o600] * 2
    eventually(lambda: any((slurm.home / "first/results/open").glob("*.ckpt")))
    # As `--signal=B:TERM@120` does before the time limit.
    slurm.call("scancel", "--batch", "--signal=TERM", jobs["first"])
    slurm.wait_until_put_back(jobs["first"])
    (slurm.home / "first/go").touch()
    slurm.wait_for_end(jobs["first"])
    check_rows(slurm.home / "first/results", reference)
    assert slurm.log(jobs["first"]).count("Trains on 2 GPUs") == 2
    assert slurm.fact(jobs["second"], "JobState") == "RUNNING"
    slurm.call("scancel", jobs["second"])
    eventually(lambda: slurm.has_ended(jobs["second"]))
    assert slurm.fact(jobs["second"], "JobState") == "CANCELLED"
    assert slurm.fact(jobs["second"], "Restarts") == "0"
    eventually(lambda: slurm.call("sinfo", "-h", "-o", "%D %t") == "2 idle")
    assert not list(slurm.home.glob("*.token"))
    assert slurm.left_behind() == ""


def test_a_job_that_loses_a_node_is_put_back_and_ends_with_the_rows_of_one_machine(
    slurm: Slurm, reference: Store
) -> None:
    """It is the last test, as the node stays lost."""
    out = slurm.home / "lost"
    out.mkdir()
    job = slurm.submit(
        *("--nodes=2", str(DEPLOY / "slurm.sh"), "study.py"),
        *("--out", f"{out}/results", *QUICK),
        HELD=str(out),
    )
    slurm.wait_until_it_trains(job, out)
    slurm.lose("n2")
    slurm.wait_until_put_back(job)
    (out / "go").touch()
    # Another node does not come back. Slurm refuses this while the job is still ending.
    update = ("scontrol", "update", f"JobId={job}")
    eventually(lambda: not slurm.call(*update, "NumNodes=1"))
    eventually(lambda: not slurm.call(*update, "NumTasks=1"))
    slurm.wait_for_end(job)
    assert slurm.fact(job, "NodeList") == "n1"
    check_rows(out / "results", reference)
