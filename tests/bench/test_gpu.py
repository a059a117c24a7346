"""`python -m benchmarks gpu`: its jobs, its parts and their time, its table."""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.commands import checked_output

from benchmarks import gpu_jobs
from benchmarks.__main__ import main
from benchmarks.convolutions import WAYS, first_batches
from benchmarks.floors import device_times, step_cost
from benchmarks.found import Found, merge, origin
from benchmarks.gpu import Budget, Part, Setting, carried_out, parts_of, with_floors
from benchmarks.gpu_plan import DRY
from benchmarks.job import Job
from benchmarks.processes import Result, against_plain
from benchmarks.tables import gpu_rows
from benchmarks.workloads import SHORT
from experiments.fsl.networks import FslCifarNet
from raysafl import Digits, Run
from raysafl.core.problem import Dataset, Samples
from raysafl.models import FlatModel, Logistic
from raysafl.training.engines import Loop

ROOT = Path(__file__).parents[2]
SMALLER = SHORT.replace({"participation.m": 2})
# The smallest plan: one model, one workload, one pack.
SMALLEST = replace(
    DRY,
    models=(SMALLER,),
    workloads={"W1": DRY.workloads["W1"]},
    beside_cpu=(),
    packed={"W4": SMALLER},
    sizes=(1, 2),
    shared={"W4": (SMALLER, 2)},
    processes=(1,),
)


def of_job(what: Any, **more: Any) -> dict[str, Any]:
    """Do a job in this process, and put its pieces together."""
    found: dict[str, Any] = {}
    for piece in gpu_jobs.PIECES[what](Job(what=what, runs=[SMALLER], **more)):
        merge(found, json.loads(json.dumps(piece)))
    return found


def test_every_engine_agrees_with_the_loop_and_a_refusal_is_told() -> None:
    found = of_job("agreement")["Logistic"]
    assert found.keys() == {"float32", "tf32", "bfloat16"}
    for engine in ("loop", "vmap", "graph", "linear"):
        assert found["float32"][engine]["difference"] < 1e-5
    assert found["float32"]["loop"]["difference"] == 0
    assert 1e-5 < found["bfloat16"]["vmap"]["difference"] < 0.1
    assert "for float32 models" in found["bfloat16"]["linear"]["refused"]


def test_the_cost_of_a_step_of_logistic_regression_is_as_counted_by_hand() -> None:
    cost = step_cost(Logistic(), Digits().load(), 32)
    batch, inputs, classes = 32, 64, 10
    # One product forward, and one backward for the weights.
    assert cost["flop"] == 2 * 2 * batch * inputs * classes
    parameters = inputs * classes + classes
    # Flattening moves nothing.
    outputs = batch * classes
    assert cost["bytes"] == 4 * (4 * parameters + batch * inputs + 2 * outputs)


def test_kernels_that_run_at_the_same_time_are_counted_once_in_the_busy_time() -> None:
    # Two branches of a graph from 0 to 3 ms, a gap of 1 ms, and one kernel in another.
    spans = [(0.0, 2000.0), (4000.0, 5000.0), (1000.0, 3000.0), (1200.0, 1700.0)]
    assert device_times(spans) == pytest.approx({"kernels_ms": 5.5, "busy_ms": 4.0})
    assert device_times([]) == {"kernels_ms": 0, "busy_ms": 0}


@pytest.fixture(scope="module")
def tasks() -> tuple[Run, Dataset]:
    """A run of a network with convolutions and dropout on images of three channels."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (90, 3, 12, 12)).astype(np.uint8)
    samples = Samples(x, rng.integers(0, 10, 90), scale=1 / 255)
    run = SHORT.replace(model=FslCifarNet()).replace({"local.batch_size": 5})
    return run, Dataset("colours", samples, samples, 10)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", list(WAYS))
def test_each_way_to_convolve_has_the_gradients_of_the_loop(
    name: str, precision: str, tasks: tuple[Run, Dataset]
) -> None:
    run, dataset = tasks
    recipe = run.model.replace(precision=precision)
    model = FlatModel.on(recipe, dataset, run.objective)
    batch = first_batches(run, dataset, 3, "cpu")
    right_TP = Loop(model).gradients(batch).g_TP
    found_TP = WAYS[name](model, batch)
    largest = float(right_TP.abs().max())
    allowed = {"float32": 1e-5, "bfloat16": 2e-2}[precision]
    assert float((found_TP - right_TP).abs().max()) < allowed * largest
    # Tasks differ, so that one in another's place would be seen.
    assert float((right_TP[0] - right_TP[1]).abs().max()) > 0.1 * largest


class Clock:
    """A clock that moves when it is told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def reported(part: Part, budget: Budget) -> tuple[dict[str, Any], dict[str, Any]]:
    """Carry out a part; return its report and what was kept of it."""
    found = Found({})
    setting = Setting("cpu", SMALLEST, 1, found.measures)
    found.collect(carried_out("it", part, setting, budget))
    return found.measures.pop("parts")["it"], found.measures


@pytest.mark.parametrize(
    ("error", "state"),
    [(RuntimeError("CUDA error\nat line 1"), "failed"), (TimeoutError("slow"), "late")],
)
def test_a_part_that_breaks_keeps_what_it_has_found(
    error: Exception, state: str
) -> None:
    def breaks(setting: Setting, budget: Budget) -> Iterator[dict[str, Any]]:
        assert budget.left() == 30
        yield {"a": {"b": 1}}
        yield {"a": {"c": 2}}
        raise error

    report, found = reported(Part(breaks, least=20, most=30), Budget(100, Clock()))
    assert report["state"] == state
    assert report["reason"] in ("RuntimeError: CUDA error", "slow")
    assert found == {"a": {"b": 1, "c": 2}}


def part(name: str) -> Part:
    """Return a part that finds its own name."""

    def measure(setting: Setting, budget: Budget) -> Iterator[dict[str, Any]]:
        yield {"found": {name: budget.seconds}}

    return Part(measure, 10, 30, name[0])


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command has three parts in two groups, which measure nothing."""
    known = {name: part(name) for name in ("a1", "a2", "b1")}
    monkeypatch.setattr("benchmarks.gpu.parts_of", lambda plan: known)
    monkeypatch.setattr("benchmarks.gpu.described", part("d").measure)


@pytest.mark.usefixtures("parts")
def test_commands_in_any_order_fill_one_file_and_each_part_has_its_origin(
    tmp_path: Path,
) -> None:
    out = tmp_path / "gpu.json"
    for only in ("b1", "a"):
        assert main(["gpu", "--dry", "--only", only, "--out", str(out)]) == 0
        text = out.read_text()
    # What is skipped now was done before.
    assert main(["gpu", "--dry", "--seconds", "5", "--out", str(out)]) == 0
    found = Found.read(out)
    assert found is not None and found.measures == json.loads(text)["measures"]
    reports = found.measures["parts"]
    assert list(reports) == ["device", "b1", "a1", "a2"]
    assert {report["state"] for report in reports.values()} == {"done"}
    assert reports["b1"]["origin"].keys() >= {"date", "versions", "device", "commit"}


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("name", ["device", "versions", "dry"])
def test_a_file_of_another_device_is_left_alone(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gpu.json"
    there = Found(origin(device="cpu", dry=True))
    there.origin[name] = "another"
    there.save(out)
    before = out.read_text()
    assert main(["gpu", "--dry", "--out", str(out)]) == 2
    told = capsys.readouterr().err
    assert f"was measured with {name} 'another', and here it is " in told
    assert out.read_text() == before


def took(*seconds: float) -> list[Result]:
    """Results of turns with one steady round each."""
    more = {"engine": "loop", "device_mb": 7.0}
    return [Result([9.0, s], 0.5, 100.0, more) for s in seconds]


def against(run: Run) -> dict[str, Any]:
    """A comparison of three turns."""
    results = {"ours": took(1, 2, 1), "plain": took(3, 3, 4), "cpu": took(4, 4, 4)}
    return against_plain(run.replace(rounds=2, eval_every=1), results)


def test_a_ratio_is_the_median_of_the_turns_ratios() -> None:
    found = against(SMALLER)
    assert found["speedup_vs_plain"] == 3.0  # of 3, 1.5 and 4
    assert found["cpu"]["speedup_of_ours"] == 4.0  # of 4, 2 and 4
    assert found["cpu"]["speedup_vs_plain"] == 0.75
    assert (found["seconds_per_round"], found["plain_seconds_per_round"]) == (1.0, 3.0)
    assert found["repeats"]["ours"] == [1.0, 2.0, 1.0]


@pytest.fixture(scope="module")
def measured() -> Found:
    """Rates and packs as their jobs measure them on this CPU, and a comparison."""
    found = Found(origin(dry=False, repeats=2))
    setting = Setting("cpu", SMALLEST, 2, found.measures)
    found.collect(gpu_jobs.describe(Job(what="device", runs=[SMALLER], small=True)))
    job = Job(what="packs", runs=[SMALLER], sizes=[1, 2], seconds=60.0)
    part = Part(lambda s, _: with_floors(s, "W4", gpu_jobs.packs(job)), 1, 60)
    found.collect(carried_out("packs-W4", part, setting, Budget(100)))
    return found.collect([{"W1": against(SMALLER)}])


def test_a_pack_stands_beside_the_largest_of_its_floors(measured: Found) -> None:
    found = measured.measures
    pack = found["packs"]["W4"]["2"]
    floors = pack["floors_ms"]
    assert floors.keys() == {"launches", "bytes", "flop"}
    assert floors[pack["bound_by"]] == max(floors.values())
    assert pack["share_of_floor"] == max(floors.values()) / pack["round_ms"]
    flop = pack["steps"] * found["step_cost"]["W4"]["flop"]
    rate = found["rates"]["float32_flop_per_s"]
    assert floors["flop"] == pytest.approx(1e3 * flop / rate)
    rates = [one["run_rounds_per_s"] for one in found["packs"]["W4"].values()]
    assert found["pack_W4_run_rounds_per_s"] == max(rates)


@pytest.mark.benchmarks
def test_the_whole_command_passes_on_a_cpu_without_ray_and_mlflow(
    tmp_path: Path,
) -> None:
    for name in ("ray", "mlflow"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('no {name} here')\n")
    out = tmp_path / "gpu-dry.json"
    command = [sys.executable, "-m", "benchmarks", "gpu", "--dry", "--repeats", "2"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    said = checked_output([*command, "--out", str(out)], cwd=ROOT, env=env)
    whole = Found.read(out)
    assert whole is not None and whole.origin["device"] == "cpu" and whole.origin["dry"]
    found = whole.measures
    assert {name: r["state"] for name, r in found["parts"].items()} == dict.fromkeys(
        ["device", *parts_of(DRY)], "done"
    )
    assert found["same_bits_twice"]
    assert found["difference_float32"] < 1e-4 < found["difference_bfloat16"]
    assert len(found["memory"]["reserved_mb"]) == 30
    assert found["processes"]["W4"]["without_mps"]["2"]["over_1"] > 0
    assert found["convolutions"]["ways"]["2"].keys() == {"float32", "tf32", "bfloat16"}
    assert found["s1_over_plain"] > 0 and found["W1"]["cpu"]["speedup_of_ours"] > 0
    assert len(found["W2"]["repeats"]["tf32"]) == 2
    names = [row[0] for row in gpu_rows(found)]
    assert "the same bits in two processes" in names
    assert names[-3:-1] == [
        "1 process without MPS, packs of W4",
        "2 processes without MPS, packs of W4",
    ]
    assert all(f"| {name} |" in said for name in names)
