"""Run what needs a GPU, at the paper's scale, in one command on a machine that has one.

    python -m experiments.tools.on_gpu [--only TEXT] [--out DIR] [--list] [-- OPTIONS]

Run it from the repository's root. It takes the experiments with networks, those with the fewest
estimated hours first, and gives each to `raysafl run FILE --gpus 1`, with the OPTIONS
that stand behind `--` in addition (`-- --gpus 0.25`, or `-- --dry-run` to measure some
rounds on this very GPU). What is finished is not run again, so the same command goes on
after an interruption. A file that fails, for example as its data are missing, is named,
and the others go on. `--list` prints the estimates and runs nothing.

The estimates count multiplications: a step on a sample takes six floating-point
operations for each multiplication of a pass (two for the pass, four for its gradient),
and W2 of benchmarks/README.md, with ten stacked clients, reaches 5.1 TFLOP/s on an H200
in float32. Networks smaller than W2's wait for the host, and take longer than this.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from experiments.tools.measured import PICTURES, ROOT, sweep_files
from raysafl import Logistic
from raysafl.core.text import duration
from raysafl.sweep.experiment_file import load_sweep
from raysafl.sweep.packs import needs_of

# Floating-point operations a second, of W2 on an H200 (docs/gpu.md).
RATE = 5.1e12
OPERATIONS = 6


def gpu_seconds(file: Path) -> float:
    """Return about how long a GPU takes for an experiment at the paper's scale.

    Args:
        file: The experiment's file.

    Raises:
        ValueError: Its data are not there.
    """
    runs = load_sweep(file).labelled().values()
    datasets = {run.data.source_key: run.data for run in runs}
    loaded = {name: data.load() for name, data in datasets.items()}
    needs = needs_of({run.id: run for run in runs}.values(), loaded)
    work = sum(need.work for group in needs for need in group)
    return OPERATIONS * work / RATE


def with_networks() -> list[Path]:
    """Return the files of experiments whose models are networks and whose runs are shown."""
    return [
        file
        for file in sweep_files()
        if not str(file).endswith(PICTURES)
        and any(
            not isinstance(run.model, Logistic)
            for run in load_sweep(file).labelled().values()
        )
    ]


def main() -> None:
    """Estimate, and run, one file after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a part of the path of the files")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--list", action="store_true", help="print, and run nothing")
    parser.add_argument("options", nargs="*", help="options of `raysafl run`")
    asked = parser.parse_args()
    seconds = {}
    failed = []
    for file in with_networks():
        name = str(file.relative_to(ROOT))
        if asked.only in name:
            try:
                seconds[name] = gpu_seconds(file)
            except ValueError as error:
                failed.append(f"{name}: {error}")
    for name in sorted(seconds, key=lambda name: seconds[name]):
        print(f"{name}: about {duration(seconds[name])} by counts", flush=True)
        if not asked.list:
            folder = asked.out / name.removeprefix("experiments/").removesuffix(".py")
            command = ["raysafl", "run", name, "--gpus", "1", "--out", str(folder)]
            if subprocess.run([*command, *asked.options], cwd=ROOT).returncode:
                failed.append(f"{name}: it ended with an error, see above")
    print(f"In all about {duration(sum(seconds.values()))} by counts.")
    if failed:
        sys.exit("Not run:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
