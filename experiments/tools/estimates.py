"""How long every experiment takes, from some rounds of its runs (`raysafl run --dry-run`).

`python -m experiments.tools.estimates` prints, for each file that defines a sweep and each
of the scales `paper` and `small`, the hours of one core; the folder of the data must be
there. `--only TEXT` takes the files whose path has this text.
"""

import argparse
import tempfile
from pathlib import Path

from experiments.tools.measured import ROOT, sweep_files
from raysafl import Runner
from raysafl.sweep.experiment_file import load_sweep

SCALES = ("paper", "small")


def hours(file: Path, scale: str) -> float:
    """Return how many hours one core needs for an experiment."""
    sweep = load_sweep(file).at(scale)
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(sweep, Path(folder) / "s", executor="here", track="none")
        return runner.forecast().seconds / 3600


def main() -> None:
    """Print a line for each experiment and scale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a part of the path of the files")
    asked = parser.parse_args().only
    for file in sweep_files():
        name = str(file.relative_to(ROOT / "experiments"))
        if asked not in name:
            continue
        for scale in SCALES:
            try:
                print(f"{name} {scale} {hours(file, scale):.3g}", flush=True)
            except ValueError as error:
                print(f"{name} {scale}: {error}", flush=True)


if __name__ == "__main__":
    main()
