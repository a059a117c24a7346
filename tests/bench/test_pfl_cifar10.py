"""`python -m benchmarks.pfl_cifar10`: its constants, its network and the command."""

from pathlib import Path

import pytest
from helpers.scripts import module_of

from benchmarks import pfl_cifar10
from benchmarks.found import Found
from benchmarks.workloads import PflCifarNet

ROOT = Path(__file__).parents[2]


def test_the_network_has_no_padding_and_12544_inputs_of_its_dense_layer() -> None:
    net = PflCifarNet().build((3, 32, 32), 10)
    sizes = {name: tuple(p.shape) for name, p in net.named_parameters()}
    assert sizes["7.weight"] == (128, 12544)
    assert sum(p.numel() for p in net.parameters()) == 1_626_442


def test_other_frameworks_have_the_same_network() -> None:
    task = module_of(ROOT / "benchmarks" / "frameworks" / "task.py")
    ours = PflCifarNet().build((3, 32, 32), 10)
    assert str(task.pfl_network(3, 32, 32)) == str(ours)


@pytest.mark.benchmarks
def test_the_command_is_tried_on_a_cpu_in_float32_and_bfloat16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found.json"
    monkeypatch.setattr("sys.argv", ["pfl_cifar10", "--dry", "--out", str(out)])
    assert pfl_cifar10.main() == 0
    found = Found.read(out)
    assert found is not None and found.origin["dry"]
    assert list(found.measures) == ["raysafl", "raysafl in bfloat16"]
    for one in found.measures.values():
        assert one["accuracy"] > 0.5 and one["seconds_per_round"] > 0
    said = capsys.readouterr().out
    assert "pfl: not run, as its Python is not given" in said
    assert "Predicted for one H200" in said and "| raysafl in bfloat16 |" in said
