"""GPUs: which of them a sweep uses, and what is said of those that torch does not see."""

import pytest
import torch

from raysafl.cluster.gpus import LOGICAL_GPUS, machine_here, used_note, why_unseen
from raysafl.cluster.hardware import Hardware

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU here")


@pytest.fixture(autouse=True)
def _real_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOGICAL_GPUS, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("actors", "gpus", "share"),
    [(1, 0, 0), (1, 1, 1), (1, 8, 1), (2, 1, 0.5), (3, 2, 0.5), (4, 8, 1)],
)
def test_auto_gives_each_actor_a_gpu_or_an_equal_share_if_there_are_fewer(
    actors: int, gpus: int, share: float
) -> None:
    hardware = Hardware(actors=actors).where_there_are(gpus)
    assert hardware.gpu_share == share
    assert Hardware(gpus=0.25).where_there_are(gpus).gpu_share == 0.25
    assert Hardware(gpus=0).where_there_are(gpus).gpu_share == 0
    hardware.check([{"CPU": 9.0, "GPU": float(gpus)}])


@pytest.mark.parametrize("given", ["Auto", "one", -1, float("nan"), float("inf"), None])
def test_what_is_no_share_of_a_gpu_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match="give auto, 0, 1, or a share of a GPU"):
        Hardware(gpus=given)  # type: ignore[arg-type]


def test_one_line_says_which_gpus_are_used_and_how_to_use_none() -> None:
    eight = Hardware().where_there_are(8)
    assert used_note(eight, 8, 8) == (
        "Trains on 8 GPUs: each client actor has a GPU (gpus=0, --gpus 0, trains on CPUs)"
    )
    assert used_note(eight, 1, 8).startswith("Trains on 1 of 8 GPUs:")
    shared = used_note(Hardware(gpus=0.25), 4, 1)
    assert shared.startswith("Trains on 1 GPU: each client actor has 0.25 of a GPU")
    assert used_note(Hardware(gpus=0), 8, 8) == ""
    assert used_note(Hardware(), 8, 0) == ""


@no_gpu
def test_a_gpu_that_torch_does_not_see_is_told_with_torchs_reason_and_a_cure() -> None:
    reason = why_unseen()
    assert reason and "\n" not in reason and not reason.endswith(".")
    message = machine_here(2.0).problem
    assert message.startswith("Ray counts 2 GPUs on ") and f"({reason})" in message
    assert "raysafl doctor" in message and "--gpus 0" in message


@no_gpu
def test_logical_and_hidden_gpus_need_not_be_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv(LOGICAL_GPUS, "1")
        assert machine_here(2.0)[:2] == (["only numbers"], None)
        assert not machine_here(2.0).problem
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not machine_here(2.0).problem and not machine_here(2.0).gpus
