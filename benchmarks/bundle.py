"""`python -m benchmarks gpu --bundle`: one archive for a machine with a GPU and no network."""

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

from benchmarks.found import COMMIT, ROOT
from raysafl.cluster.provenance import commit
from raysafl.data.sources import data_root

NAME = "raysafl-gpu"
SOURCES = ("raysafl", "benchmarks", "tests", "experiments", "pyproject.toml")
DATA = ("MNIST", "cifar10")
# What such a machine lacks or has too old; it has torch, torchvision and what numpy's
# users have.
PACKAGES = (
    "pydantic", "pydantic_core", "annotated_types", "typing_extensions",
    "typing_inspection", "platformdirs", "lazy_loader", "psutil",
)  # fmt: skip
COMMANDS = f"""tar xzf {{}} && cd {NAME}
export PYTHONPATH=$PWD:$PWD/packages RAYSAFL_DATA=$PWD/data
python3 -m benchmarks gpu --out gpu.json"""


def bundle(file: Path, python: str) -> str:
    """Write the archive: sources, the data of the workloads, and unpacked packages.

    Args:
        file: the archive, a .tar.gz.
        python: the version of Python that the machine has, such as "3.12".

    Returns:
        The commands to give there.

    Raises:
        ValueError: data are missing, or packages cannot be downloaded.
    """
    data = {f"data/{name}": data_root() / name for name in DATA}
    for place in data.values():
        if not place.is_dir():
            raise ValueError(f"there is no folder {place}, which the workloads read")
    with tempfile.TemporaryDirectory() as folder:
        wheels, packages, head = (
            Path(folder, name) for name in ("wheels", "packages", "commit")
        )
        download(wheels, python)
        for wheel in wheels.iterdir():
            zipfile.ZipFile(wheel).extractall(packages)
        head.write_text(commit(ROOT))
        paths = {name: ROOT / name for name in SOURCES} | data
        paths |= {"packages": packages, COMMIT: head}
        with tarfile.open(file, "w:gz") as archive:
            for name, path in paths.items():
                archive.add(path, f"{NAME}/{name}", filter=_needed)
    return COMMANDS.format(file.name)


def download(folder: Path, python: str) -> None:
    """Download the wheels of the packages, in the versions that are installed here."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"),
            *("--only-binary=:all:", "--platform=manylinux2014_x86_64"),
            *(f"--python-version={python}", f"--dest={folder}"),
            *(f"{name}=={version(name)}" for name in PACKAGES),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ValueError(f"pip cannot download the wheels: {done.stderr.strip()}")


def _needed(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return what is packed, as nobody's own: no compiled files, no packed MNIST."""
    entry.uname = entry.gname = ""
    entry.uid = entry.gid = 0
    path = Path(entry.name)
    return None if path.name == "__pycache__" or path.suffix == ".gz" else entry
