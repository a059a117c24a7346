"""`python -m benchmarks gpu --bundle`: what a machine without network is given."""

import os
import re
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from helpers.commands import checked_output

from benchmarks import bundle
from benchmarks.__main__ import main
from benchmarks.found import Found, origin
from benchmarks.gpu_plan import ON_GPU


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of data sets, which hold little, and of one that no workload reads."""
    root = tmp_path / "data"
    for name in ("MNIST/raw/images", "MNIST/raw/images.gz", "cifar10/a", "other/b"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    monkeypatch.setenv("RAYSAFL_DATA", str(root))
    return root


@pytest.fixture
def unpacked(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a bundle was unpacked; its only wheel is made by hand."""

    def download(folder: Path, python: str) -> None:
        folder.mkdir()
        with zipfile.ZipFile(folder / f"carried-{python}.whl", "w") as wheel:
            wheel.writestr("carried/__init__.py", "")

    monkeypatch.setattr(bundle, "download", download)
    file = tmp_path / "gpu.tar.gz"
    assert main(["gpu", "--bundle", str(file)]) == 0
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / bundle.NAME


def test_a_bundle_has_sources_the_data_of_the_workloads_and_packages(
    unpacked: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {str(f.relative_to(unpacked)) for f in unpacked.rglob("*") if f.is_file()}
    found = {name for name in files if name.startswith("data/")}
    assert found == {"data/MNIST/raw/images", "data/cifar10/a"}
    assert files >= {"raysafl/version.py", "tests/conftest.py", "pyproject.toml"}
    assert "packages/carried/__init__.py" in files
    assert not any("__pycache__" in name for name in files)
    assert (unpacked / "commit.txt").read_text() == origin()["commit"]
    keys = " ".join(work.run.data.source_key for work in ON_GPU.workloads.values())
    kinds = set(re.findall(r'"kind": ?"(\w+)"', keys))
    assert kinds == {"Mnist", "ParquetImages"} and '"cifar10"' in keys


@pytest.mark.acceptance
def test_an_unpacked_bundle_measures_without_ray_and_mlflow(
    unpacked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ray", "mlflow", "duckdb"):
        (unpacked / f"{name}.py").write_text(f"raise ImportError('no {name} here')\n")
    command = [sys.executable, "-m", "benchmarks", "gpu", "--dry", "--only", "packs-W4"]
    # As the command says that prints what to do there.
    env = {**os.environ, "PYTHONPATH": f"{unpacked}:{unpacked}/packages"}
    said = checked_output(command, cwd=unpacked, env=env)
    whole = Found.read(unpacked / "gpu-dry.json")
    assert whole is not None
    parts = whole.measures["parts"]
    assert {name: one["state"] for name, one in parts.items()} == dict.fromkeys(
        ["device", "packs-W4"], "done"
    )
    assert whole.origin["commit"] == (unpacked / "commit.txt").read_text()
    # A slow machine carries out 0.31 rounds of a run/s, a fast one 1,234. Larger packs are
    # left out where the machine is too slow for them, so the smallest is looked for.
    row = r"W4, a pack of 1 \| \d[\d.,e-]* rounds of a run/s \|"
    assert re.search(row, said), said
