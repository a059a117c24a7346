"""GPUs that Ray counts: what is said of idle ones, and of those that torch does not see."""

import pytest
import torch
from helpers.emulated_cuda import GIB, emulated_cuda

from raysafl.cluster.gpus import LOGICAL_GPUS, Seen, idle_note, seen_here, why_unseen
from raysafl.cluster.hardware import Hardware

NODES = [{"CPU": 8.0}, {"CPU": 8.0, "GPU": 2.0}, {"CPU": 8.0, "GPU": 1.0}]
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU here")


@pytest.fixture(autouse=True)
def _real_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOGICAL_GPUS, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_sweep_without_gpus_is_told_how_many_it_leaves_idle() -> None:
    note = idle_note(Hardware(), NODES)
    assert note.startswith("Ray counts 3 GPUs, and this sweep uses none")
    assert "--gpus 1" in note
    assert idle_note(Hardware(), NODES[2:]).startswith("Ray counts 1 GPU,")


def test_nothing_is_said_of_gpus_that_are_used_absent_or_logical(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert idle_note(Hardware(gpus=0.5), NODES) == ""
    assert idle_note(Hardware(), NODES[:1]) == ""
    assert idle_note(Hardware(), []) == ""
    monkeypatch.setenv(LOGICAL_GPUS, "1")
    assert idle_note(Hardware(), NODES) == ""


@no_gpu
def test_a_gpu_that_torch_does_not_see_is_told_with_torchs_reason_and_a_cure() -> None:
    reason = why_unseen()
    assert reason and "\n" not in reason and not reason.endswith(".")
    message = seen_here(2.0).problem
    assert message.startswith("Ray counts 2 GPUs on ") and f"({reason})" in message
    assert "raysafl doctor" in message and "--gpus 0" in message


@no_gpu
def test_logical_and_hidden_gpus_need_not_be_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv(LOGICAL_GPUS, "1")
        assert seen_here(2.0) == Seen()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert seen_here(2.0) == Seen()


def test_the_memory_of_the_smallest_gpu_is_told() -> None:
    with emulated_cuda(total_memory=16 * GIB, count=2):
        assert seen_here(2.0) == Seen(memory=16 * GIB)
