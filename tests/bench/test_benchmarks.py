"""The benchmarks: workloads by hand, the plain loop against raysafl, and the measuring itself."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tasks import draw_batches
from torch import nn

import raysafl as fl
from benchmarks import rivals
from benchmarks.__main__ import main
from benchmarks.cpu import DRY, Plan, measures
from benchmarks.found import Found
from benchmarks.job import Job
from benchmarks.plain import Draws, PlainLoop
from benchmarks.processes import together
from benchmarks.tables import cpu_rows
from benchmarks.workloads import S1, STANDARD, samples_per_round, steady_rounds
from raysafl.algorithms import Key
from raysafl.models import FlatModel
from raysafl.simulation.simulation import Simulation
from raysafl.sweep.experiment_file import load_sweep
from raysafl.sweep.here import worker_of

ROOT = Path(__file__).parents[2]
SMALL = fl.Run(
    data=fl.Federation(dataset=fl.Digits(), clients=10),
    model=fl.Logistic(),
    algorithm=fl.FedAvg(),
    participation=fl.Uniform(m=4),
    local=fl.LocalTraining(lr=0.1, batch_size=32, epochs=1),
    rounds=3,
)


@pytest.mark.parametrize(
    ("name", "samples", "seen", "steps", "parameters", "timed"),
    [
        ("W1", 60_000, 5 * 6_000, 5 * 94, 7_850, 29),  # 6,000 = 93 * 64 + 48
        ("W2", 50_000, 10 * 500, 10 * 10, 896 + 18_496 + 524_416 + 1_290, 4),
        ("W3", 60_000, 100 * 60, 100 * 3, 7_850, 18),
        ("W4", 60_000, 10 * 60, 10 * 6, 7_850, 98),
    ],
)
def test_a_workload_is_as_large_as_counted_by_hand(
    name: str, samples: int, seen: int, steps: int, parameters: int, timed: int
) -> None:
    run = STANDARD[name].run
    shape = (3, 32, 32) if name == "W2" else (1, 28, 28)
    assert FlatModel(run.model, shape, 10).num_parameters == parameters
    assert samples_per_round(run, samples) == seen
    assert (
        run.participation.m * run.local.num_steps(samples // run.data.clients) == steps
    )
    assert len(range(run.rounds)[steady_rounds(run)]) == timed


def test_s1_is_safari_table_8_on_one_even_partition_with_pixels_in_0_to_1() -> None:
    sweep = load_sweep(ROOT / "experiments" / "safari" / "table8_mnist.py")
    of_table = [
        run.replace(
            {
                "data.dataset.standardise": False,
                "data.partition": fl.ClassesPerClient(p=p),
                "data.partition_seeds": 1,
                "replicates": 5,
                "eval_every": 1,
            }
        )
        for (_, _, p), run in sweep.labelled().items()
    ]
    assert [run.id for run in S1] == [run.id for run in of_table]
    assert len(S1) == 24
    assert all(run.replicates == 5 and run.rounds == 150 for run in S1)


def seeded(run: fl.Run) -> Draws:
    """raysafl's own cohorts and orders."""

    def order(round: int, client: int, n: int) -> torch.Tensor:
        picks = draw_batches(n, run.local, Key(run.seed, round)("batches 1", client))
        return torch.from_numpy(picks[picks >= 0])

    def cohort(round: int) -> list[int]:
        return run.participation.pick(
            None, run.data.clients, Key(run.seed, round), None
        )[1].ids

    return Draws(cohort, order)


@pytest.mark.parametrize("model", [fl.Logistic(), fl.CNN(channels=[4], hidden=8)])
def test_the_plain_loop_and_raysafl_do_the_same_arithmetic(
    model: fl.Logistic | fl.CNN,
) -> None:
    run = SMALL.replace(model=model)
    dataset = run.data.load()
    loop = PlainLoop(run, dataset, seeded(run))
    simulation = Simulation(run, worker_of([run], dataset))
    for _ in range(run.rounds):
        accuracy = loop.step()
        (record,) = simulation.step()
        assert accuracy == pytest.approx(
            record.test_accuracy, abs=1 / len(dataset.test)
        )
    w_P = nn.utils.parameters_to_vector(loop.w)
    torch.testing.assert_close(
        w_P, simulation.replicates[0].state.w_P, rtol=1e-4, atol=1e-5
    )
    assert loop.evaluate()[1] == pytest.approx(record.test_loss, rel=1e-4)


def found_by(plan: Plan, *only: str) -> dict[str, Any]:
    """Measure once with a small plan; return what was found."""
    return Found({}).collect(measures(plan, only, repeats=1)).measures


@pytest.mark.acceptance
def test_speed_ups_are_ratios_of_what_was_measured_and_the_rest_is_not_there() -> None:
    found = found_by(DRY, "W1")
    assert found.keys() == {"W1"}
    one = found["W1"]
    assert (
        one["speedup_vs_plain"]
        == one["plain_seconds_per_round"] / one["seconds_per_round"]
    )
    assert [one["seconds_per_round"]] == one["repeats"]["ours"]
    samples = 4 * 1437 / 10
    assert one["samples_per_s"] == pytest.approx(samples / one["seconds_per_round"])
    assert one["accuracy"] > 0.5 and one["plain_accuracy"] > 0.5
    assert one["peak_rss_mb"] > 50
    assert [row[0] for row in cpu_rows(found)] == ["W1: over the plain loop"]


@pytest.mark.benchmarks
def test_overheads_are_measured_on_a_ray_of_their_own() -> None:
    # Client actors are looked for once a second, so the sweep must take some seconds.
    longer = SMALL.replace(rounds=2000, eval_every=100)
    found = found_by(replace(DRY, s1=(longer, longer.replace(seed=9))), "empty", "S1")
    assert found["empty_round_ms"] == max(found["empty"].values()) > 0
    assert found["s1_over_ideal"] > 0
    assert found["s1"]["accuracy"]["sweep"] == pytest.approx(
        found["s1"]["accuracy"]["bare"]
    )
    assert 0 < found["s1_busy"] < 2
    assert "W1" not in found and "further_run_s" not in found


@pytest.mark.benchmarks
def test_the_start_of_one_run_and_the_cost_of_further_runs_are_measured() -> None:
    found = found_by(DRY, "start", "trials")
    trials = found["trials"]
    (one,), (all_of,) = trials["seconds_of_one"], trials["seconds"]
    assert found["further_run_s"] == pytest.approx((all_of - one) / 5)
    memory = trials["driver_rss_mb"]
    assert found["driver_growth_mb"] == memory["trials"] - memory["quarter"]
    assert 5 < found["sweep_files"] < 60 and found["report_s"] > 0.5
    assert 1 < found["start_s"] == found["start"]["seconds"][0]
    names = [row[0] for row in cpu_rows(found)]
    assert names[:3] == [
        "one trivial run, from command to prompt",
        "each further run of 6 trivial ones",
        "files of 6 runs",
    ]


def test_a_process_that_dies_is_told_with_what_it_printed() -> None:
    with pytest.raises(RuntimeError, match=r"measures 'ours' died:\n(.|\n)*nowhere"):
        together([Job(what="ours", runs=[SMALL], env={"PYTHONHOME": "/nowhere"})])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "W1,W5"], "nothing is called 'W5' here: known are S1"),
        (["--only", "W2"], "cifar10 must hold train.parquet"),
    ],
)
def test_a_mistake_is_told_before_anything_is_measured(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RAYSAFL_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["cpu", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_pages_are_those_of_the_json() -> None:
    assert main(["render", "--check"]) == 0


def test_the_result_is_written_after_each_piece(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    found = Found({"date": "today"})

    def pieces() -> Iterator[dict[str, Any]]:
        yield {"a": {"b": 1}}
        assert json.loads(file.read_text()) == {
            "origin": {"date": "today"},
            "measures": {"a": {"b": 1}},
        }
        yield {"a": {"c": [2]}}
        yield {"a": {"c": [3]}}

    assert found.collect(pieces(), file) == Found.read(file) == found
    assert found.measures == {"a": {"b": 1, "c": [3]}}
    assert Found.read(tmp_path / "none.json") is None


@pytest.mark.benchmarks
def test_rivals_take_turns_with_raysafl_and_the_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["rivals", "--dry", "--repeats", "1"]) == 0
    found = Found.read(tmp_path / "rivals-dry.json")
    assert found is not None and list(found.measures["W1"]) == list(rivals.OURS)
    for one in found.measures["W1"].values():
        assert one["accuracy"] > 0.5 and one["wall_seconds"] > sum(one["repeats"])
    assert "| raysafl, two client actors | **" in capsys.readouterr().out
