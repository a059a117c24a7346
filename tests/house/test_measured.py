"""Repeat runs of results/measured, and check the documents against the committed numbers."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.commands import checked_output
from helpers.experiments import forget_experiments
from helpers.here import run_in_process

from raysafl import Run
from raysafl.runtime.in_process import Worker
from raysafl.storage.store import Store, find_sweeps
from raysafl.sweep.code import CodeDigests
from raysafl.sweep.experiment_file import load_sweep

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "results" / "measured"
DIGITS = [("1 class", "SCAFFOLD", "Beta(1, 10)"), ("Dirichlet(0.1)", "FSL", "Markov")]
DIGITS += [("1 class", "SAFARI", "Beta, half snapshots")]
DIGITS += [("1 class", "FedDyn", "cyclic")]
MNIST = [
    pytest.param(("standardised", 4, "FedAvg", 1), marks=pytest.mark.acceptance),
    ("standardised", 4, "SAFARI", 1),
]
# Sweeps of which only some runs have been computed so far: they take many hours, or data
# that are not at hand.
PARTIAL = {
    "fast_curves_fashion_mnist",
    "fast_table3_fashion_mnist",
    "fast_table3_fashion_mnist-small",
    "fast_table6_fashion_mnist-small",
    "fast_table6_fashion_mnist-window",
    "fast_table7_fashion_mnist-small",
    "fast_table7_fashion_mnist-window",
    "fsl_table1",
}
MEASUREMENTS = ["test_accuracy", "test_loss", "train_accuracy", "train_loss"]
SLACK = 0.01  # of an accuracy, on another kind of machine


@pytest.fixture(autouse=True)
def _fresh_experiments() -> Iterator[None]:
    """Other tests may have imported the experiments with other data folders."""
    forget_experiments()
    yield
    forget_experiments()


@pytest.fixture(scope="module")
def collecting() -> ModuleType:
    """The script that copies finished sweeps into results/measured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        return importlib.import_module("experiments.tools.collect_measured")


def assert_comes_out_again(
    run: Run, kept: Store, path: Path, machine: dict[str, str]
) -> None:
    """Run at most 20 rounds of an entry, and compare them with the committed rows.

    They are equal in every bit on the kind of machine (CPU and versions) that
    `machine.json` names, because the compiled loops of linear models sum in an order
    that depends on the CPU's vectors. On other machines the cohorts and all counts are
    equal, and accuracies differ by SLACK at most.
    """
    short, again = run.replace(rounds=min(run.rounds, 20)), Store(path)
    again.create()
    run_in_process(short, again, Worker(run.cells, run.data.load(), run.model))
    rows = again.rounds(short.id).drop(columns=["run_id", "seconds"])
    old = kept.rounds(run.id).drop(columns=["run_id", "seconds"])
    old = old[old["round"] < short.rounds].reset_index(drop=True)
    assert len(rows) > 1 and len(set(rows["seed"])) == run.replicates
    exact = json.loads((kept.path / "machine.json").read_text()) == machine
    left = [] if exact else MEASUREMENTS
    pd.testing.assert_frame_equal(
        rows.drop(columns=left), old.drop(columns=left), check_exact=True
    )
    accuracies = ["test_accuracy", "train_accuracy"]
    np.testing.assert_allclose(rows[accuracies], old[accuracies], rtol=0, atol=SLACK)


@pytest.mark.parametrize("entry", DIGITS, ids=" ".join)
def test_the_factorial_on_digits_comes_out_again_exactly_on_the_recorded_kind_of_machine(
    entry: tuple[str, ...], tmp_path: Path, collecting: ModuleType
) -> None:
    run = load_sweep(
        ROOT / "experiments" / "studies" / "factorial_small.py"
    ).labelled()[entry]
    kept = Store(MEASURED / "factorial_small")
    assert_comes_out_again(run, kept, tmp_path, collecting.machine())


@pytest.mark.usefixtures("real_data")
@pytest.mark.parametrize("entry", MNIST, ids=str)
def test_a_reading_of_safari_comes_out_again_exactly_on_the_recorded_kind_of_machine(
    entry: tuple[Any, ...], tmp_path: Path, collecting: ModuleType
) -> None:
    file = ROOT / "experiments" / "safari" / "readings_inputs.py"
    run = load_sweep(file).labelled()[entry]
    kept = Store(MEASURED / "safari_readings_inputs")
    assert_comes_out_again(run, kept, tmp_path, collecting.machine())


@pytest.mark.usefixtures("real_data")
def test_what_was_measured_is_what_the_experiment_files_say_now(
    collecting: ModuleType,
) -> None:
    stores = find_sweeps(MEASURED)
    assert len(stores) > 1
    digests = CodeDigests()
    for store in stores:
        kept = store.manifest()
        file = collecting.experiment_file(kept.name)
        sweep = load_sweep(ROOT / file).at(kept.scale)
        now = sweep.manifest().replace(command=kept.command, notes=kept.notes)
        assert now == kept, store.path
        assert kept.command.startswith(f"raysafl run {file}")
        found = store.read()
        begun = found.begun
        assert not found.faults
        assert {run.status for run in begun.values()} <= {"finished", "diverged"}
        assert (begun == found.runs) != (store.path.name in PARTIAL)
        runs = {run.id: run for run in sweep.labelled().values()}
        code = {
            cell: digests.of_run(runs[entry.run_id])
            for entry in kept.entries
            for cell in entry.cells
        }
        for cell, end in store.ledger().items():
            assert end.code == code[cell], f"{store.path.name} is stale"


def test_measured_files_are_small_and_name_no_path_of_a_machine(
    collecting: ModuleType,
) -> None:
    collecting.check(MEASURED)
    files = [file for file in MEASURED.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 40_000_000


def test_a_copied_sweep_has_the_rows_of_its_source(
    real_results: Path, tmp_path: Path, collecting: ModuleType
) -> None:
    source, target = Store(real_results / "quickstart"), Store(tmp_path / "quickstart")
    collecting.copy(source, target)
    pd.testing.assert_frame_equal(target.rounds(), source.rounds(), check_exact=True)
    parts = {"rounds": "", "clients": ""}
    assert {c: end.model_copy(update=parts) for c, end in target.ledger().items()} == {
        c: end.model_copy(update=parts) for c, end in source.ledger().items()
    }
    assert target.manifest() == collecting.with_plain_command(source.manifest())
    assert (target.path / "table.md").is_file()
    assert not (target.path / "report.html").exists()
    (target.path / "table.md").write_text("made in /home/somebody/results")
    with pytest.raises(ValueError, match="names a path of this machine: /home/"):
        collecting.check(target.path)


def test_tuned_values_beside_one_printed_number_count_it_once() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        measured = importlib.import_module("experiments.tools.measured")
        script = importlib.import_module("experiments.tools.reproduction")
    tuned = measured.compared("fsl_table1")
    judged = tuned.entries[tuned.entries["verdict"] != ""]
    assert len(judged) == 12
    assert script.printed_numbers_of(judged, tuned.manifest.axes) == 3


@pytest.mark.acceptance
@pytest.mark.usefixtures("real_data")
def test_the_documents_have_the_numbers_of_the_measured_results() -> None:
    script = [sys.executable, "-m", "experiments.tools.reproduction", "--check"]
    checked_output(script, cwd=ROOT)
