"""A sweep in a process of its own whose parts are killed, and what is left of it in the end.

Victims: the driver, a coordinator (a Tune trial's actor), a client actor, the node (its
raylet). Each is killed once, and then again as often as its weight says. When, and in
which order, comes from a seed.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import psutil

from helpers.here import run_in_process
from helpers.patience import PATIENCE
from raysafl import (
    SAFARI,
    Absent,
    ClassesPerClient,
    Federation,
    IidServer,
    LocalTraining,
    Logistic,
    Run,
    Snapshot,
    Sweep,
    Uniform,
)
from raysafl.algorithms import SCAFFOLD, FedAvgM
from raysafl.participation import Markov
from raysafl.runtime.in_process import Worker
from raysafl.storage.store import Store

VICTIMS = {"driver": 0.2, "coordinator": 0.35, "client actor": 0.35, "node": 0.1}
KEY = ["run_id", "replicate", "round"]
CLOCK = ["seconds"]  # the only column that is not a function of the run

DRIVER = """
import sys
sys.path.insert(0, sys.argv[1])
from helpers.chaos import sweep
from raysafl import Hardware, Runner
out, executor, *extent = sys.argv[2:]
hardware = Hardware(trials=2 if executor == "ray" else None)
outcome = Runner(
    sweep(*map(int, extent)), out, hardware, executor=executor, quiet=True,
    track="none", flush_seconds=0.2, keep_states=True,
).run()
sys.exit(0 if outcome.ok else 1)
"""


def sweep(seed: int, replicates: int = 2, rounds: int = 400) -> Sweep:
    """Runs with every kind of state: of the server, of clients, of the policy."""
    base = Run(
        data=Federation(partition=ClassesPerClient(p=1), server=IidServer(n0=50)),
        model=Logistic(),
        algorithm=FedAvgM(momentum=0.5),
        participation=Absent(s=4, m=3),
        local=LocalTraining(lr=0.05, batch_size=8, epochs=2),
        rounds=rounds,
        replicates=replicates,
        seed=seed,
        eval_every=2,
    )
    chains = Markov(mean=0.4, correlation=0.7)
    runs = {
        "momentum": base,
        "memory": base.replace(algorithm=SCAFFOLD(), participation=chains),
        "safari": base.replace(algorithm=SAFARI(client_prob=0.7)),
        "adaptive": base.replace(
            participation=Snapshot(base=chains, uniform=Uniform(m=5), adapt=0.5)
        ),
    }
    return Sweep("chaos", {(name,): run for name, run in runs.items()}, axes=("what",))


def undisturbed(folder: Path, *extent: int) -> pd.DataFrame:
    """The rows that must come out, from the reference in this process."""
    store = Store(folder)
    store.create()
    for run in sweep(*extent).runs.values():
        worker = Worker(run.cells, run.data.load(), run.model)
        run_in_process(run, store, worker)
    return rows(store)


def rows(store: Store) -> pd.DataFrame:
    """All rounds in order, without what a clock wrote."""
    found = store.rounds().drop(columns=CLOCK)
    return found.sort_values(KEY).reset_index(drop=True)


class Chaos:
    """Drives sweeps and kills their parts; `kills`, `drivers` count what happened.

    Args:
        seed: the seed of the moments and of the victims.
        executor: who carries out the sweeps; `here` there is the driver alone to kill.
    """

    def __init__(self, seed: int, executor: str = "ray") -> None:
        self.rng = np.random.default_rng(seed)
        self.executor = executor
        self.victims = VICTIMS if executor == "ray" else {"driver": 1.0}
        self.kills: Counter[str] = Counter()
        self.drivers = self.lost = self.doubled = 0
        self._mine: set[psutil.Process] = set()
        self._next = self._draw()

    def run(self, out: Path, most: int, *extent: int) -> None:
        """One sweep to its end, with kills until there were `most`; the command is given anew
        whenever its driver has died of one.
        """
        tests = str(Path(__file__).parents[1])
        given = [tests, str(out), self.executor, *map(str, extent)]
        self.repeat([sys.executable, "-c", DRIVER, *given], out, most)

    def repeat(self, command: list[str], out: Path, most: int) -> None:
        """Give the command of a sweep until it ends well, with kills until there were `most`."""
        deadline = time.monotonic() + PATIENCE * 2
        while time.monotonic() < deadline:
            self.drivers += 1
            with (out.parent / "driver.log").open("ab") as log:
                driver = subprocess.Popen(
                    command, start_new_session=True, stdout=log, stderr=log
                )
            code = self._disturb(driver, out, most)
            if code == 0:
                return
            log = (out.parent / "driver.log").read_text()
            assert self.executor == "ray" or code < 0, log
        raise AssertionError(
            f"the sweep does not end; kills so far: {dict(self.kills)}"
        )

    def _disturb(self, driver: subprocess.Popen[bytes], out: Path, most: int) -> int:
        """Kill until the driver is gone; its exit code."""
        begin = time.monotonic()
        while time.monotonic() - begin < PATIENCE:
            try:
                return driver.wait(self.rng.uniform(0.2, 2.5))
            except subprocess.TimeoutExpired:
                if self.kills.total() < most and any(out.glob("open/*.ckpt")):
                    self._kill_one(driver)
        driver.kill()
        return driver.wait()

    def _kill_one(self, driver: subprocess.Popen[bytes]) -> None:
        found = [
            process for process, kind in self._tree(driver.pid) if kind == self._next
        ]
        if found:  # else it waits until there is one
            victim = found[int(self.rng.integers(len(found)))]
            self.kills[self._next] += 1
            victim.send_signal(signal.SIGKILL)
            self._next = self._draw()

    def _draw(self) -> str:
        names, weights = zip(*self.victims.items(), strict=True)
        spared = [name for name in names if not self.kills[name]]
        return str(self.rng.choice(spared or names, p=None if spared else weights))

    def _tree(self, pid: int) -> Iterator[tuple[psutil.Process, str]]:
        """The driver's processes and what each of them is."""
        try:
            driver = psutil.Process(pid)
            everyone = [driver, *driver.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        self._mine |= set(everyone)
        for process in everyone:
            try:
                title = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if process.pid == pid:
                yield process, "driver"
            elif title.startswith("ray::Clients"):
                yield process, "client actor"
            elif title.startswith("ray::Coordinator"):
                yield process, "coordinator"
            elif os.path.basename(title.split(" ")[0]) == "raylet":
                yield process, "node"

    def compare(self, store: Store, expected: pd.DataFrame) -> pd.DataFrame:
        """The rows found; counts those that are missing or there twice."""
        found = rows(store)
        self.doubled += int(found.duplicated(KEY).sum())
        # As programs read them that know nothing of raysafl.
        parts = pd.concat([pd.read_parquet(file) for file in store.files("rounds")])
        self.doubled += int(parts.duplicated(["cell", "round"]).sum())
        merged = expected[KEY].merge(
            found[KEY].drop_duplicates(), how="left", indicator=True
        )
        self.lost += int((merged["_merge"] == "left_only").sum())
        return found

    def clean(self) -> None:
        """End what the kills left behind (Ray's own helpers linger for some seconds)."""
        for process in self._mine:
            try:
                process.kill()
            except psutil.Error:
                continue

    def summary(self) -> str:
        """One line: kills by victim, resumes, rows lost and doubled."""
        kills = ", ".join(
            f"{count} {name}" for name, count in sorted(self.kills.items())
        )
        return (
            f"{self.kills.total()} kills ({kills}); {self.drivers} drivers; "
            f"rows lost {self.lost}, rows doubled {self.doubled}"
        )
