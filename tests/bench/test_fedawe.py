"""`python -m benchmarks.fedawe`: what the authors' program is told, and the command."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.experiments import forget_experiments

from benchmarks import fedawe


def test_the_program_is_told_what_the_runs_have(tmp_path: Path) -> None:
    forget_experiments()
    runs = fedawe.tiny_runs()
    assert set(runs) <= set(fedawe.table_runs(5)) == set(fedawe.METHODS)
    for method, run in runs.items():
        spec = json.loads(
            fedawe.write_spec(method, run, tmp_path, "cpu", tmp_path).read_text()
        )
        assert spec["method"] == method.lower() and spec["lr"] == run.local.lr
        assert (spec["clients"], spec["batch"], spec["rounds"]) == (10, 8, 3)
    # The program's network is for images of CIFAR-10's size.
    with np.load(spec["data"]) as data:
        assert data["x"].shape == (1437, 3, 32, 32) and data["x"].max() == 16
    forget_experiments()


def test_raysafl_s_rounds_are_those_of_one_pack() -> None:
    done = fedawe.ours(list(fedawe.tiny_runs().values()), "cpu")
    assert len(done.seconds) == 3 and done.accuracy is not None
    forget_experiments()


def test_a_folder_that_is_no_clone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["fedawe", "--fedawe", str(tmp_path), "--dry"])
    assert fedawe.main() == 2
    assert "has no varying_awe.py" in capsys.readouterr().err
