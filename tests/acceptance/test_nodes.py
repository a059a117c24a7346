"""Sweeps on a Ray of many nodes on this machine: several raylets, GPUs that are only numbers.

It is a process tree of its own, with a folder, a token and ports of its own.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
from helpers.commands import RAYSAFL, call, call_here, checked_output
from helpers.folders import contents
from helpers.here import run_in_process
from helpers.patience import PATIENCE

from raysafl.runtime.in_process import Worker
from raysafl.storage.store import Store

HERE = Path(__file__).parents[1] / "helpers" / "cluster"
FACTS = ["replicate", "round", "kind", "test_accuracy", "test_loss", "train_accuracy"]
Env = dict[str, str]
Spec = dict[str, Any]


@contextmanager
def own_ray() -> Iterator[Env]:
    """The environment of a Ray of our own; its folder is short, as Unix sockets want it."""
    with tempfile.TemporaryDirectory(
        prefix="rs", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        token = Path(folder) / "token"
        token.write_text("a token of this test only, which is long enough")
        token.chmod(0o600)
        own = {
            "RAY_TMPDIR": folder,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAYSAFL_LOGICAL_GPUS": "1",
            "RAY_health_check_period_ms": "500",  # a lost node is noticed sooner than by default
            "RAY_health_check_failure_threshold": "4",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        yield os.environ | own


class Nodes:
    """A cluster, see cluster/nodes.py. Its head has no resources."""

    def __init__(self, env: Env) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "nodes.py")],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.env, self.address = env, self._answer()
        # What the living nodes were made of, by their ids.
        self.living: dict[str, Spec] = {}

    def tell(self, line: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        answer = self.process.stdout.readline().strip()
        assert answer, "the cluster has died"
        return answer

    def add(self, spec: Spec) -> str:
        """Start a node, and return its id."""
        node = self.tell(f"add {json.dumps(spec)}")
        self.living[node] = spec
        return node

    def kill(self, node: str) -> None:
        """End a node without a farewell."""
        self.tell(f"kill {node}")
        del self.living[node]

    def become(self, *specs: Spec) -> None:
        """Have these nodes and no others, whatever a test before has left."""
        missing = list(specs)
        for node, spec in list(self.living.items()):
            if spec in missing:
                missing.remove(spec)
            else:
                self.kill(node)
        for spec in missing:
            self.add(spec)

    def close(self) -> None:
        """End its input, and wait for its end."""
        self.process.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """The one cluster of these tests, which each test gives the nodes that it needs."""
    with own_ray() as env:
        made = Nodes(env)
        try:
            yield made
        finally:
            made.close()


# Only root may mount a disk.
MOUNTS = os.geteuid() == 0 and shutil.which("unshare") is not None
# Runs a command whose results lie on a disk that no other process sees, and then copies them.
ON_OWN_DISK = (
    'mount -t tmpfs disk "$0"; "$@"; code=$?; cp -r "$0" "$0.copy"; exit $code'
)


class Driver:
    """A sweep of cluster/sweeps.py that runs in its own process; ended with the block.

    Where tests may mount disks, nodes find an empty folder where the driver has its results.
    """

    def __init__(
        self, env: Env, name: str, out: Path, address: str, **hardware: Any
    ) -> None:
        command = [sys.executable, str(HERE / "sweeps.py"), name, str(out), address]
        command.append(json.dumps(hardware))
        self.log, self.results = out / "log", out / "results"
        if MOUNTS:
            self.results.mkdir()
            shell = ["unshare", "--mount", "sh", "-c", ON_OWN_DISK, str(self.results)]
            command = [*shell, *command]
        with self.log.open("w") as log:
            self.process = psutil.Popen(command, env=env, stdout=log, stderr=log)

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(psutil.NoSuchProcess):
            for own in [*self.process.children(recursive=True), self.process]:
                own.kill()
        self.process.wait()

    def checkpoints(self) -> set[str]:
        """The names of the files of checkpoints that there are now."""
        root = Path(f"/proc/{self.process.pid}/root") if MOUNTS else Path("/")
        opened = root / self.results.relative_to("/") / "open"
        return {file.stem for file in opened.glob("*.ckpt")}

    def end(self) -> str:
        """What it said, and its exit code, once it ended by itself."""
        code = self.process.wait(timeout=2 * PATIENCE)
        return self.log.read_text() + f"exit code {code}"


def seen(out: Path, who: str) -> list[dict[str, Any]]:
    return [
        json.loads(file.read_text()) for file in (out / "seen").glob(f"{who}-*.json")
    ]


def eventually(what: Callable[[], Any]) -> Any:
    """What a condition gives once it holds; fails if it does not for a long time."""
    deadline = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.1)
    return found


# The tests are in an order in which each finds nodes that it needs.
def test_half_gpus_pack_two_to_a_gpu_and_actors_see_theirs_only(
    nodes: Nodes, tmp_path: Path
) -> None:
    """Two runs of two half GPUs wait for each other, so all four actors live at once."""
    hardware = {"actors": 2, "cpus": 0.5, "gpus": 0.5}
    nodes.become({"num_gpus": 1}, {"num_gpus": 1})
    with Driver(nodes.env, "pair", tmp_path, nodes.address, **hardware) as driver:
        assert driver.end() == "exit code 0"
    actors = seen(tmp_path, "clients")
    assert {
        (a["run"], len(a["gpus"]), a["visible"] == str(a["gpus"][0])) for a in actors
    } == {(i, 1, True) for i in range(2)}
    assert len(actors) == 4
    load = Counter((a["node"], a["gpus"][0]) for a in actors)
    assert len({node for node, _ in load}) == 2
    assert set(load.values()) == {2} and len(load) == 2


def test_gangs_of_two_gpus_on_two_take_turns_instead_of_waiting_for_ever(
    nodes: Nodes, tmp_path: Path
) -> None:
    """With actors outside of placement groups, each of two trials held one GPU for ever."""
    hardware = {"actors": 2, "cpus": 0.5, "gpus": 1}
    nodes.become({"num_gpus": 1}, {"num_gpus": 1})
    with Driver(nodes.env, "gang", tmp_path, nodes.address, **hardware) as driver:
        assert driver.end() == "exit code 0"
    gangs = defaultdict(set)
    for a in seen(tmp_path, "clients"):
        gangs[a["run"]].add((a["node"], *a["gpus"]))
    assert [len(gangs[i]) for i in range(2)] == [2] * 2  # two GPUs each, none twice


def check_rows(out: Path, name: str) -> None:
    """The rows are those of the same runs in this process."""
    sys.path.insert(0, str(HERE))
    try:
        from sweeps import sweep  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(HERE))
    store = Store(out / ("results.copy" if MOUNTS else "results"))
    reference = Store(out / "reference")
    reference.create()
    for run in sweep(name, str(out / "seen")).labelled().values():
        quick = run.replace({"algorithm.seconds": 0.0})
        dataset = quick.data.load()
        run_in_process(quick, reference, Worker(quick.cells, dataset, quick.model))
        mine, expected = store.rounds(run.id), reference.rounds(quick.id)
        assert len(expected) == run.rounds * run.replicates
        pd.testing.assert_frame_equal(mine[FACTS], expected[FACTS])
        came = [[list(c[0]) for c in own["cohorts"]] for own in (mine, expected)]
        assert came[0] == came[1]


def test_nodes_that_see_no_folder_of_results_are_killed_and_change_no_row(
    nodes: Nodes, tmp_path: Path
) -> None:
    """First a node with a client actor only, then one with a coordinator."""
    gang = {"actors": 2, "cpus": 0.5, "gpus": 1, "trials": 1}
    nodes.become(*[{"num_gpus": 1}] * 3)
    with Driver(nodes.env, "long", tmp_path, nodes.address, **gang) as driver:
        first = eventually(driver.checkpoints)
        (boss,) = seen(tmp_path, "coordinator")
        actors = {a["node"] for a in seen(tmp_path, "clients")}
        assert len(actors) == 2  # the gang spans two nodes
        nodes.kill((actors - {boss["node"]}).pop())
        second = eventually(
            lambda: [
                c for c in seen(tmp_path, "coordinator") if c["run"] == boss["run"] + 1
            ]
        )
        nodes.add({"num_gpus": 1})
        eventually(lambda: driver.checkpoints() - first)
        nodes.kill(second[0]["node"])
        # before it, Ray's words on the lost nodes
        assert driver.end().endswith("exit code 0")
    assert not MOUNTS or not list((tmp_path / "results").iterdir())
    check_rows(tmp_path, "long")


ONE_PACK_A_GPU = {"actors": 1, "cpus": 0.5, "gpus": 1, "pack": 3}


def packs_by_process(out: Path) -> dict[int, tuple[str, set[int]]]:
    """The node and the runs of each coordinator."""
    found: dict[int, tuple[str, set[int]]] = {}
    for told in seen(out, "coordinator"):
        found.setdefault(told["pid"], (told["node"], set()))[1].add(told["run"])
    return found


def test_packs_have_a_gpu_each_and_a_lost_node_of_two_gpus_changes_no_row_of_them(
    nodes: Nodes, tmp_path: Path
) -> None:
    """Four packs on two nodes of two GPUs; those of the lost node go on on the other.

    Each pack waits in its first round until all four have begun.
    """
    nodes.become({"num_gpus": 2}, {"num_gpus": 2})
    with Driver(
        nodes.env, "lasting", tmp_path, nodes.address, **ONE_PACK_A_GPU
    ) as driver:
        eventually(lambda: len(driver.checkpoints()) == 4)
        first = packs_by_process(tmp_path)
        actors = seen(tmp_path, "clients")
        lost = actors[0]["node"]
        nodes.kill(lost)
        assert driver.end().endswith("exit code 0")
    assert len(actors) == 4
    assert all(a["visible"] == str(a["gpus"][0]) for a in actors)
    assert len({(a["node"], *a["gpus"]) for a in actors}) == 4
    packs = [(node, sorted(runs)) for node, runs in first.values()]
    assert sorted(runs for _, runs in packs) == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
        [9, 10, 11],
    ]
    assert Counter(node for node, _ in packs) == Counter(a["node"] for a in actors)
    kept = {node for node, _ in packs} - {lost}
    went_on = [told for told in seen(tmp_path, "coordinator") if {told["node"]} == kept]
    assert {told["run"] for told in went_on} == set(range(12))
    check_rows(tmp_path, "lasting")


FOUR_RUNS = """
from raysafl import Sweep
from raysafl.quickstart import BASE
RUNS = {(m, s): BASE.replace({"participation.s": s, "participation.m": m},
                             rounds=3, replicates=1)
        for m in (2, 3) for s in (0, 4)}
SWEEP = Sweep(name="mine", runs=RUNS, axes=("m", "s"))
"""


FOUR = ["run", "mine.py", "--out", "results", "--track", "none"]


def run_four(folder: Path, *options: str, **env: str) -> tuple[int, str]:
    """Return the exit code of `raysafl run` on four runs, and what it said, as one line."""
    (folder / "mine.py").write_text(FOUR_RUNS)
    return call(folder, *FOUR, *options, env=os.environ | env)


BROKEN = {"num_gpus": 2, "env_vars": {"RAYSAFL_LOGICAL_GPUS": "0"}}


@pytest.fixture
def unseen_gpus() -> None:
    """GPUs that Ray counts and torch does not see; where it sees one, there are none."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("torch sees a GPU here")


def test_all_gpus_of_a_cluster_are_used_by_default(
    nodes: Nodes, tmp_path: Path
) -> None:
    nodes.become({"num_gpus": 2}, {"num_gpus": 1})
    (tmp_path / "mine.py").write_text(FOUR_RUNS)
    cluster = ("--address", nodes.address, "--cpus", "0.1", "--pack", "1")
    code, said = run_four(tmp_path, *cluster, "--dry-run", **nodes.env)
    assert code == 0 and "Trains on 3 GPUs:" in said and ", 3 at a time" in said, said


@pytest.mark.usefixtures("unseen_gpus")
def test_the_doctor_says_what_each_node_of_a_cluster_has_and_which_is_of_no_use(
    nodes: Nodes,
) -> None:
    nodes.become({"num_gpus": 2}, BROKEN)
    done = subprocess.run(
        [*RAYSAFL, "doctor", "--address", nodes.address],
        env=nodes.env | {"COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
    )
    said = done.stdout + done.stderr
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in said.splitlines()
        if line.startswith("│")
    ]
    assert done.returncode == 1 and len(rows) == 3, said
    columns = [(row[1], row[2], row[3], row[6]) for row in rows]
    assert sorted(columns) == [
        ("0", "0", "no GPU", "ok"),  # the head
        ("8", "2", "no GPU", "see below"),
        ("8", "2", "only numbers", "ok"),
    ]
    assert said.count("FAIL  ") == said.count("Ray counts 2 GPUs on") == 1, said


@pytest.mark.usefixtures("unseen_gpus")
def test_a_gpu_that_torch_does_not_see_ends_a_sweep_once_before_it_and_costs_nothing(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node's GPUs are only numbers; another node's should be real, and are not."""
    (tmp_path / "mine.py").write_text(FOUR_RUNS)
    monkeypatch.chdir(tmp_path)
    code, said = call_here(monkeypatch, *FOUR, "--executor", "here", "--only", "m=2")
    assert code == 0 and "[2/2]" in said, said
    before = contents(tmp_path / "results")

    nodes.become({"num_gpus": 2}, BROKEN)
    cluster = ("--address", nodes.address, "--trials", "1", "--gpus", "1")
    code, said = run_four(tmp_path, *cluster, **nodes.env)
    assert code == 2 and "Traceback" not in said, said
    assert said.count("Ray counts 2 GPUs on") == 1
    assert said.count("Error:") == 1 and "--gpus 0" in said and "[1/" not in said
    assert contents(tmp_path / "results") == before

    nodes.become({"num_gpus": 2})
    code, said = run_four(tmp_path, *cluster, **nodes.env)
    assert code == 0 and "2 runs were finished before" in said, said
    assert said.index("Trains on 1 of 2 GPUs:") < said.index("[1/2]"), said
    assert len(Store(tmp_path / "results").ledger()) == 4


ASK_FOR_A_DEVICE = """
import sys, ray
from raysafl.cluster.gpus import own_device
ray.init(sys.argv[1], log_to_driver=False)
print(ray.get(ray.remote(num_cpus=0)(own_device).remote()))
try:
    ray.get(ray.remote(num_cpus=0, num_gpus=1)(own_device).remote())
except ValueError as error:
    print(error)
"""


@pytest.mark.usefixtures("unseen_gpus")
def test_gpus_that_are_seen_nowhere_are_refused_unless_a_sweep_asks_for_none(
    nodes: Nodes, tmp_path: Path
) -> None:
    nodes.become(BROKEN, {**BROKEN, "num_gpus": 1})
    real = nodes.env | {"RAYSAFL_LOGICAL_GPUS": "0"}
    cluster = ("--address", nodes.address, "--trials", "1")
    code, said = run_four(tmp_path, *cluster, **real)
    assert code == 2 and said.count("sees no CUDA device there") == 1, said
    code, said = run_four(tmp_path, *cluster, "--gpus", "0", "--dry-run", **real)
    assert code == 0 and "GPU" not in said, said
    command = [sys.executable, "-c", ASK_FOR_A_DEVICE, nodes.address]
    answer = checked_output(command, env=real, timeout=PATIENCE)
    assert answer.startswith("cpu\n")
    assert "Ray gave GPU 0 of" in answer and "--gpus 0" in answer, answer


AUTOSCALED = {
    "cluster_name": "fake",
    "max_workers": 2,
    "idle_timeout_minutes": 0.05,
    "upscaling_speed": 1.0,
    "auth": {},
    **{key: {} for key in ("docker", "file_mounts")},
    **{
        key: []
        for key in (
            *("cluster_synced_files", "initialization_commands", "setup_commands"),
            *("head_setup_commands", "worker_setup_commands"),
            *("head_start_ray_commands", "worker_start_ray_commands"),
        )
    },
    "head_node_type": "ray.head.default",
    "available_node_types": {
        "ray.head.default": {
            "resources": {"CPU": 0},
            "node_config": {},
            "max_workers": 0,
        },
        # By the resource of their kind nodes are told apart.
        **{
            kind: {"resources": {"CPU": 8, "GPU": 2, kind: 1}, "node_config": {}}
            | {"max_workers": 2, "priority": priority}
            for kind, priority in (("on_demand", 0), ("spot", 1))
        },
    },
    "provider": {
        "type": "external",
        "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
        "launch_multiple": True,
        "use_node_id_as_ip": True,  # the nodes share an IP
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
    },
}
COUNT = """
import sys, time, ray
ray.init(sys.argv[1], log_to_driver=False)
while True:
    nodes = [set(node["Resources"]) for node in ray.nodes() if node["Alive"]]
    kinds = [next(iter(node & {"spot", "on_demand"}), "head") for node in nodes]
    print(*sorted(kinds), flush=True)
    time.sleep(0.5)
"""


@contextmanager
def autoscaled() -> Iterator[tuple[Env, str]]:
    """A head whose autoscaler starts nodes as processes here. Ends what bears its folder's name."""
    with own_ray() as env, socket.socket() as free:
        free.bind(("", 0))
        address = f"{_own_ip()}:{free.getsockname()[1]}"
        free.close()
        provider = {**AUTOSCALED["provider"], "gcs_address": address}  # type: ignore[dict-item]
        config = Path(env["RAY_TMPDIR"]) / "autoscaling.json"
        config.write_text(json.dumps({**AUTOSCALED, "provider": provider}))
        head = "f" * 51 + "00000"  # as the fake provider numbers its nodes
        scaling = {
            "RAY_FAKE_CLUSTER": "1",
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            "RAY_enable_autoscaler_v2": "1",  # as `ray up` does
            "RAY_CLOUD_INSTANCE_ID": head,
            "RAY_OVERRIDE_NODE_ID_FOR_TESTING": head,
        }
        try:
            start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head"]
            start += ["--port", address.partition(":")[2], "--num-cpus", "0"]
            start += ["--autoscaling-config", str(config)]
            start += ["--include-dashboard", "false"]
            checked_output(start, env={**env, **scaling}, timeout=PATIENCE)
            yield env, address
        finally:
            _end_all(env["RAY_TMPDIR"])


def _own_ip() -> str:
    import ray

    ip: str = ray.util.get_node_ip_address()
    return ip


def _end_all(folder: str) -> None:
    """End every process whose environment names a folder that only this test has."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"RAY_TMPDIR={folder}".encode() in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:  # it ended, or is not ours
            continue


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_an_autoscaling_cluster_grows_for_a_sweep_and_shrinks_after_it(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    if not pytestconfig.getoption("--autoscaler"):
        pytest.skip("takes a minute and a half: ask for it by --autoscaler")
    hardware = {"actors": 2, "cpus": 0.5, "gpus": 0.5, "autoscale": True}
    with autoscaled() as (env, address), (tmp_path / "nodes").open("w") as file:
        counter = subprocess.Popen(
            [sys.executable, "-c", COUNT, address],
            env=env,
            stdout=file,
            stderr=subprocess.DEVNULL,
        )

        def now() -> str:
            return (tmp_path / "nodes").read_text().strip().rpartition("\n")[2]

        try:
            assert eventually(now) == "head"
            with Driver(env, "pack", tmp_path, address, **hardware) as driver:
                assert driver.end().endswith("exit code 0")
            eventually(lambda: now() == "head")
        finally:
            counter.kill()
            counter.wait()
    seen_nodes = set((tmp_path / "nodes").read_text().splitlines())
    # four trials of one GPU each: two nodes of two
    assert "head spot spot" in seen_nodes
    assert not any("on_demand" in line for line in seen_nodes)
    assert len({a["node"] for a in seen(tmp_path, "clients")}) == 2
