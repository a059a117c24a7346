"""What `raysafl doctor` says of a machine's devices."""

import re
from pathlib import Path

import pytest
import torch

import raysafl as fl
from raysafl.cli.doctor import (
    DATASETS,
    TOLERANCE,
    check_data,
    check_devices,
    check_training,
    checks,
    examine,
)
from raysafl.cluster.gpus import machine_here, problems_of

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU here")


@pytest.fixture(autouse=True)
def _nothing_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def install_nvidia_smi(
    monkeypatch: pytest.MonkeyPatch, folder: Path, script: str
) -> None:
    """Put a program of this name on the PATH, and nothing else."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(folder))


def test_a_training_step_of_every_engine_agrees_with_the_cpus() -> None:
    assert 0 <= check_training("cpu") < TOLERANCE / 10


def test_a_device_that_computes_less_exactly_than_float32_is_refused() -> None:
    with pytest.raises(ValueError, match=r"by the engine loop differs from the CPU's"):
        check_training("cpu", precision="bfloat16")


def test_every_check_runs_whatever_the_others_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails() -> str:
        raise RuntimeError("hunter2hunter2 is not allowed at http://host/x")

    all_checks = {"one": (fails, "start it"), "two": (lambda: "fine", "do nothing")}
    all_checks["three"] = all_checks["one"]
    monkeypatch.setattr("raysafl.cli.doctor.checks", lambda: all_checks)
    monkeypatch.setenv("MY_TOKEN", "hunter2hunter2")
    said = "RuntimeError: *** is not allowed at http://host/x. To fix it: start it"
    assert [(c.name, c.passed, c.message) for c in examine()] == [
        *(("one", False, said), ("two", True, "fine"), ("three", False, said))
    ]


def test_the_data_that_are_found_are_named_by_what_loads_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("FashionMNIST/raw/train-images-idx3-ubyte", "wards/train.parquet"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    monkeypatch.setenv("RAYSAFL_DATA", str(tmp_path))
    found, where = check_data().split("; ")
    assert found.split(", ") == [
        *("fl.Digits() (bundled)", "fl.data.FashionMnist()"),
        'fl.from_parquet("wards")',
    ]
    assert where == f"looked in {tmp_path} (RAYSAFL_DATA)"


@pytest.mark.parametrize(("file", "load"), DATASETS.items())
def test_what_a_dataset_is_found_by_is_a_file_that_it_looks_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str, load: str
) -> None:
    monkeypatch.setenv("RAYSAFL_DATA", str(tmp_path))
    source = eval(load, {"fl": fl})
    if hasattr(source, "folder"):
        assert file.startswith(f"{source.folder}/")
    else:
        with pytest.raises(ValueError, match=re.escape(str(tmp_path / file))):
            source.load()


@no_gpu
def test_without_a_gpu_the_cores_are_named_and_torchs_cuda(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = check_devices()
    assert re.match(r"\d+ CPU cores, 0 GPUs; torch sees no GPU, torch is built", said)
    assert "nvidia-smi" not in said


@no_gpu
def test_a_driver_that_does_not_fit_torch_fails_with_a_cure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_nvidia_smi(monkeypatch, tmp_path, "echo 470.10; echo 470.10")
    _, cure = checks()["devices"]
    assert cure.startswith("install the driver that this torch needs")
    with pytest.raises(ValueError, match=r"driver 470.10, .* driver and torch do not"):
        check_devices()


def test_a_node_that_is_late_or_lacks_this_raysafl_is_told_in_a_sentence() -> None:
    here = machine_here(0.0)
    assert problems_of(here) == []
    (late,) = problems_of(None)
    assert late.startswith("It gave no answer in 120 s.")
    (missing,) = problems_of(RuntimeError("\nModuleNotFoundError: No module"))
    assert "cannot be used there: ModuleNotFoundError: No module. Install" in missing
    other = here._replace(package="0" * 64, problem="Ray counts 2 GPUs here")
    unseen, changed = problems_of(other)
    assert unseen == "Ray counts 2 GPUs here"
    assert "another raysafl" in changed and "`ray rsync-up FILE --all-nodes`" in changed
