"""Find and load the files of experiments/."""

import re
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "experiments"
PAPERS = ("safari", "fast", "fsl", "fedawe")


def sweep_files() -> dict[str, Path]:
    """Return the file of every experiment that defines a sweep, by the sweep's name."""
    files = {}
    for folder in (*PAPERS, "studies"):
        prefix = f"{folder}_" if folder in PAPERS else ""
        for path in sorted((FOLDER / folder).glob("*.py")):
            if re.search(r"^SWEEP = ", path.read_text(), re.MULTILINE):
                files[prefix + path.stem] = path
    return files


def forget_experiments() -> None:
    """Unload the modules of experiments/, so that they are imported anew.

    What they hold depends on `RAYSAFL_DATA` at the time of the import: CIFAR-10 is read
    from Parquet files where the data folder holds them.
    """
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(FOLDER)):
            del sys.modules[name]
