"""Run the papers' networks at the paper's scale on a GPU, for as many minutes as there are.

    python -m experiments.tools.on_gpu --minutes N [--dry] [--only TEXT] [--out DIR]
                                       [--scale smoke] [-- OPTIONS]

Run it from the repository's root. It prints its plan: what is run in which order, how
many cells are left, about how long that takes, and what was predicted before. Then it
runs one item after the other until the minutes are over, and tells the last one to stop,
which takes some seconds. The same command goes on there: what is finished is not run
again, and a run that was under way continues from its checkpoint. An item that fails, or
whose data are missing, is named, and the others go on.

`--dry` prints the plan, runs nothing, and fails if an item cannot be built. `--scale smoke`
runs two rounds of everything, to try the command on a CPU. OPTIONS behind `--` are given
to `raysafl run` (`-- --gpus 0.25`).

An estimate counts multiplications: a step on a sample takes six floating-point operations
for each multiplication of a pass (two for the pass, four for its gradient). `RATES` says
how many of them a second were measured.
"""

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from raysafl import Run
from raysafl.core.problem import Dataset
from raysafl.core.text import duration
from raysafl.storage.manifest import PAPER
from raysafl.storage.store import Store
from raysafl.sweep.experiment_file import load_sweep
from raysafl.sweep.packs import needs_of

ROOT = Path(__file__).parents[2]
# Floating-point operations a second on an H200, by paper. Those of FSL and FAST are of
# whole experiments (docs/gpu.md): 79 rounds of a replicate a second of table I, and 6.1 of
# the curves on Fashion-MNIST. Nothing was measured of SAFARI's and FedAWE's networks, so
# their rate is that of W2, whose convolutions are the most alike.
RATES = {"fsl": 3.4e12, "fast": 3.0e12, "safari": 5.1e12, "fedawe": 5.1e12}
OPERATIONS = 6
# What begins with less time than this would hardly get further than to load its data.
LEAST_SECONDS = 30.0


class Item(NamedTuple):
    """An experiment of the plan.

    Attributes:
        file: its file below `experiments`.
        only: the labels of the runs that are taken, by axis, as `raysafl run --only` takes
            them.
        predicted: what was predicted before any of it was run at the paper's scale.
    """

    file: str
    predicted: str
    only: Mapping[str, str] = {}

    @property
    def name(self) -> str:
        """The file's path and the labels that are taken."""
        labels = "".join(f", {axis} = {label}" for axis, label in self.only.items())
        return f"{self.file}{labels}"

    @property
    def paper(self) -> str:
        """The folder of the paper."""
        return self.file.partition("/")[0]


# What gives most for a minute comes first: FSL's figures, of which nothing is known at the
# paper's scale and whose claims the small scale could not judge, then what is longer.
ITEMS = (
    Item(
        "fsl/figure8_cifar10.py",
        "FSL is 2 to 8 points above FSL-p and above DS at every gamma, its four gammas are "
        "within 3 points, and FSL-p is at most 3 points above DS; all 5 claims hold",
    ),
    Item(
        "fsl/figure1_cifar10.py",
        "with C = 1 and 2, DS is over 3 points above FL and FSL above DS; with C = 10 all "
        "three are within 3 points; FSL needs fewest rounds for C <= 2",
    ),
    Item(
        "fsl/figure2_cifar10.py",
        "gamma = 0.5 is above DS (gamma = 0) in accuracy and in time at all six places, and "
        "accuracy grows with n0 at gamma = 1; 3 points over [0.5, 1.5] do not hold everywhere",
    ),
    Item(
        "fsl/figure5_cifar10.py",
        "with C = 1, FSL is over 5 points above SCAFFOLD and FedDyn at most rates; with C = 2 "
        "FSL and FedDyn are within 4 points at rates 0.02 and 0.05",
        {"method": "FSL,SCAFFOLD,FedDyn"},
    ),
    Item("fsl/figure8_emnist.py", "all 5 claims hold, as at scale `medium`"),
    Item(
        "fsl/figure1_emnist.py",
        "FSL is above DS for C <= 2 by more than for C = 45, where all are within 3 points",
    ),
    Item("fsl/figure2_emnist.py", "gamma = 0.5 is above DS at all six places"),
    Item(
        "fsl/figure5_emnist.py",
        "FSL and FSLsyn are above SCAFFOLD and FedDyn for C <= 2, so that the 5 % of "
        "'comparable' do not hold there",
    ),
    Item(
        "safari/table1_cifar10.py",
        "s = 0, 2, 4: 75, 64 and 51 %, each within 4 points of the printed number",
        {"p": "1"},
    ),
    # What table 8 is for MNIST, table 9 is for CIFAR-10.
    Item(
        "safari/table9_cifar10.py",
        "SAFARI: 78, 77 and 75 % for s = 0, 2, 4, each within 4 points of the printed number",
        {"p": "1"},
    ),
    Item(
        "safari/figure2.py",
        "best accuracy in the order of n0: about 76, 73, 62 and for FedAvg 51 %; both claims "
        "hold",
    ),
    Item(
        "fast/table3_fashion_mnist.py",
        "the reading `authors` has at least 40 of its 50 printed means inside; means grow from "
        "q = 0 to 0.5 by 2 to 5 points, under Weibull by 1 to 3",
    ),
    Item(
        "fast/table3_cifar10.py",
        "the reading `authors` has at least 19 of its 25 printed means inside; q = 0.5 is "
        "within 3 points of Uniform",
    ),
    Item(
        "fedawe/table2_cifar10.py",
        "at least 20 of 28 printed numbers within 3 points; FedAWE is 2 to 5 points above FedAvg, "
        "and 0 to 4 under `sine` and `interleaved`; FedAvg over all is last, 5 to 12 points below; "
        "after 200 rounds (`--scale short`) FedAWE is below FedAvg in at least four of six columns",
    ),
)


class Planned(NamedTuple):
    """What is left of an item.

    Attributes:
        cells: how many cells it has, each a configuration with one seed.
        ended: how many of them have ended.
        data: the datasets and their sizes, in words.
        missing: why the data are not there; empty if they are, or if all cells have ended.
        seconds: about how long the cells take that are left; 0 if the data are missing.
    """

    cells: int
    ended: int
    data: str = ""
    missing: str = ""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """All of it in words."""
        if self.ended == self.cells:
            return f"all {self.cells} cells have ended"
        left = f"{self.cells - self.ended} of {self.cells} cells left"
        if self.missing:
            return f"{left}; it waits for its data: {self.missing}"
        return f"{left}, about {duration(self.seconds)}; {self.data}"


def planned(item: Item, scale: str, folder: Path) -> Planned:
    """Build an item's sweep, load its data, and estimate what is left of it.

    Args:
        item: The item.
        scale: The scale of its runs.
        folder: The folder of its results, which need not exist.

    Raises:
        ValueError: The sweep cannot be built.
    """
    sweep = load_sweep(ROOT / "experiments" / item.file).at(scale)
    chosen = set(sweep.manifest().select(item.only))
    runs = {run.id: run for run in sweep.labelled().values() if run.id in chosen}
    cells = {cell for run in runs.values() for cell in run.cell_ids}
    ended = cells & Store(folder).ledger(cells).keys() if folder.exists() else set()
    if ended == cells:
        return Planned(len(cells), len(ended))

    sources = {run.data.source_key: run.data for run in runs.values()}
    try:
        datasets = {key: data.load() for key, data in sources.items()}
    except ValueError as error:
        return Planned(len(cells), len(ended), missing=str(error))
    told = (f"{d.name} {len(d.train):,} + {len(d.test):,}" for d in datasets.values())
    share = 1 - len(ended) / len(cells)
    seconds = share * operations(runs.values(), datasets) / RATES[item.paper]
    data = ", ".join(dict.fromkeys(told))
    return Planned(len(cells), len(ended), data, seconds=seconds)


def operations(runs: Iterable[Run], datasets: Mapping[str, Dataset]) -> float:
    """Return about how many floating-point operations runs take.

    Runs that differ only in what does not count, such as the algorithm, are counted once
    and multiplied.

    Args:
        runs: The runs.
        datasets: Their loaded datasets, by the `source_key` of the data that load them.
    """
    alike: dict[str, list[Run]] = {}
    for run in runs:
        size = (run.rounds, run.replicates, run.eval_every)
        parts = (run.data.source_key, run.model.to_json(), run.local.to_json(), size)
        alike.setdefault(str(parts), []).append(run)
    total = 0.0
    for members in alike.values():
        ((need,),) = needs_of(members[:1], datasets)
        total += OPERATIONS * need.work * len(members)
    return total


def carry_out(command: list[str], seconds: float) -> int | None:
    """Run a command for so many seconds at most, then tell it to stop.

    Returns:
        Its exit code; None if it was told to stop.
    """
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            # `raysafl run` writes a checkpoint then, and ends.
            process.terminate()
            return None


def take_items(asked: argparse.Namespace, ends: float) -> list[str]:
    """Print what is left of each item, and run it unless it is a dry run.

    Args:
        asked: The command's arguments.
        ends: When the last item is told to stop, by `time.monotonic`.

    Returns:
        The items that failed, each with its reason.
    """
    failed = []
    estimated = 0.0
    for item in ITEMS:
        if asked.only not in item.file:
            continue
        suffix = "" if asked.scale == PAPER else f"-{asked.scale}"
        folder = (asked.out / f"{item.file.removesuffix('.py')}{suffix}").resolve()
        try:
            left = planned(item, asked.scale, folder)
        except ValueError as error:
            failed.append(f"{item.name}: {error}")
            continue
        print(f"{item.name}: {left.text}\n  predicted: {item.predicted}", flush=True)
        if left.missing or left.ended == left.cells:
            continue
        if asked.dry:
            begins, estimated = estimated, estimated + left.seconds
            print(
                f"  {_in_the_time(begins, estimated, 60 * asked.minutes)}", flush=True
            )
            continue
        if ends - time.monotonic() < LEAST_SECONDS:
            print("The minutes are over; the same command goes on here.")
            break
        command = [sys.executable, "-m", "raysafl", "run", f"experiments/{item.file}"]
        command += ["--out", str(folder), "--scale", asked.scale, *asked.options]
        for axis, label in item.only.items():
            command += ["--only", f"{axis}={label}"]
        began = time.monotonic()
        code = carry_out(command, ends - began)
        print(f"  took {duration(time.monotonic() - began)}", flush=True)
        if code:
            failed.append(f"{item.name}: it ended with exit code {code}, see above")
    return failed


def _in_the_time(begins: float, ends: float, seconds: float) -> str:
    """Say whether an item fits into the seconds that there are, by its estimate."""
    if ends <= seconds:
        return "it fits into the minutes"
    return "it begins in the minutes" if begins < seconds else "it comes later"


def main() -> None:
    """Print the plan, and run it for as many minutes as were given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--dry", action="store_true", help="print the plan only")
    parser.add_argument("--only", default="", help="a part of the path of the files")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--scale", default=PAPER, help="of the runs [%(default)s]")
    parser.add_argument("options", nargs="*", help="options of `raysafl run`")
    asked = parser.parse_args()
    if not asked.minutes > 0 or math.isinf(asked.minutes):
        sys.exit(f"--minutes must be a number above 0, not {asked.minutes}")
    if not (asked.dry or asked.scale != PAPER or torch.cuda.is_available()):
        sys.exit(
            "torch sees no GPU here; --dry prints the plan, and --scale smoke tries the "
            "command on this CPU"
        )
    failed = take_items(asked, time.monotonic() + 60 * asked.minutes)
    if failed:
        sys.exit("Not run:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
