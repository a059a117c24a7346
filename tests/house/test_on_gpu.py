"""`python -m experiments.tools.on_gpu`: its plan, its time, and that it goes on."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.experiments import forget_experiments
from helpers.small_data import write_all

from experiments.tools.on_gpu import ITEMS, LEAST_SECONDS, Item, carry_out, planned

ROOT = Path(__file__).parents[2]
FIGURE_8 = next(item for item in ITEMS if item.file == "fsl/figure8_cifar10.py")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with small data of every experiment."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        write_all(folder, patch)
        forget_experiments()
        yield folder
    forget_experiments()


def command(folder: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "experiments.tools.on_gpu", "--out", out, *options],
        cwd=ROOT,
        env={**os.environ, "RAYSAFL_DATA": str(folder)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    "item",
    [
        pytest.param(item, marks=[pytest.mark.acceptance] * (item is not FIGURE_8))
        for item in ITEMS
    ],
    ids=lambda item: item.name,
)
def test_every_item_is_built_its_cells_counted_and_its_time_estimated(
    item: Item, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSAFL_DATA", str(data))
    left = planned(item, "smoke", tmp_path / "none")
    assert not left.missing and left.seconds > 0 and left.cells > left.ended == 0
    assert item.predicted
    every = planned(item._replace(only={}), "smoke", tmp_path / "none").cells
    assert left.cells < every if item.only else left.cells == every


def test_a_command_that_takes_too_long_is_told_to_stop() -> None:
    waits = "import signal; signal.sigwait([signal.SIGINT])"
    assert carry_out([sys.executable, "-c", waits], 0.2) is None
    assert carry_out([sys.executable, "-c", "raise SystemExit(3)"], 60) == 3


@pytest.mark.acceptance
def test_what_has_ended_is_not_run_again(data: Path, tmp_path: Path) -> None:
    asked = ["--scale", "smoke", "--only", FIGURE_8.file]
    quiet = ["--", "--quiet", "--executor", "here", "--track", "none"]
    first = command(data, tmp_path, "--minutes", "10", *asked, *quiet)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "9 of 9 cells left" in first.stdout
    assert (tmp_path / "fsl/figure8_cifar10-smoke/report.html").is_file()
    again = command(data, tmp_path, "--minutes", "10", *asked, *quiet)
    assert again.returncode == 0, again.stderr
    assert "all 9 cells have ended" in again.stdout and "took" not in again.stdout


def test_nothing_begins_when_the_minutes_are_over(data: Path, tmp_path: Path) -> None:
    minutes = str(LEAST_SECONDS / 120)
    asked = ["--scale", "smoke", "--only", FIGURE_8.file, "--minutes", minutes]
    done = command(data, tmp_path, *asked)
    assert done.returncode == 0, done.stderr
    assert "The minutes are over" in done.stdout and not list(tmp_path.iterdir())
