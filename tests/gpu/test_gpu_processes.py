"""What is set for a whole process, or may break it, each in a process of its own."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
import torch
from helpers.big_stack import assert_close, big_tasks, big_trainer
from helpers.small_runs import Uploading, assert_equal_in_float32, play, small_run
from torch import Tensor

from raysafl.training.device import prepare_device
from raysafl.training.engines import Vmap
from raysafl.training.inputs import Batch, Gradients


def check_in_own_process(check: Callable[..., None], *args: Any) -> None:
    """Call a function, with what it asserts, in a new process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        pool.submit(check, *args).result()


def roundings(device: torch.device) -> tuple[float, float]:
    """How far a product and a convolution on a device are from float64, in norm."""
    generator = torch.Generator().manual_seed(0)

    def off(compute: Callable[..., Tensor], *shapes: tuple[int, ...]) -> float:
        factors = [torch.randn(shape, generator=generator) for shape in shapes]
        exact = compute(*(factor.double() for factor in factors))
        found = compute(*(factor.to(device) for factor in factors)).cpu()
        return float((found - exact).norm() / exact.norm())

    convolve = torch.nn.functional.conv2d
    return (
        off(torch.matmul, (512, 512), (512, 512)),
        off(convolve, (16, 64, 16, 16), (64, 64, 3, 3)),
    )


def check_roundings(before: str) -> None:
    if before == "legacy flags":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
    elif before == "new interface":
        torch.backends.fp32_precision = "tf32"  # type: ignore[attr-defined]
    for precision in ("float32", "tf32", "float32"):
        found = roundings(prepare_device("cuda", precision))
        if precision == "float32":
            assert max(found) < 1e-5, (precision, found)
        elif torch.cuda.get_device_capability() >= (8, 0):
            assert min(found) > 1e-5, (precision, found)


@pytest.mark.parametrize("before", ["nothing", "legacy flags", "new interface"])
def test_float32_is_float32_and_tf32_is_coarser_whatever_was_set_before(
    before: str,
) -> None:
    if before == "new interface" and not hasattr(torch.backends, "fp32_precision"):
        pytest.skip("this torch has no torch.backends.fp32_precision")
    check_in_own_process(check_roundings, before)


def check_out_of_memory_while_recording() -> None:
    gradients = Vmap.gradients
    refused = []

    def greedy(self: Vmap, batch: Batch) -> Gradients:
        w_TP = batch.w_TP
        if torch.cuda.is_current_stream_capturing() and len(w_TP) > 8:
            refused.append(len(w_TP))
            torch.empty(2**46, dtype=torch.uint8, device=w_TP.device)
        return gradients(self, batch)

    Vmap.gradients = greedy  # type: ignore[method-assign, assignment]
    tasks = big_tasks(32)
    assert_close(big_trainer("cuda", "graph").train(tasks), tasks)
    assert set(refused) == {32, 16}, refused


def test_a_stack_that_does_not_fit_while_it_is_recorded_is_halved() -> None:
    check_in_own_process(check_out_of_memory_while_recording)


def check_failed_recording() -> None:
    run = small_run("CNN")
    with pytest.raises(ValueError, match=r"cannot be recorded .* engine='vmap'"):
        play(run.replace(model=Uploading()), "cuda", "graph")
    torch.cuda.empty_cache()
    assert_equal_in_float32(play(run, "cuda", "graph"), play(run, "cpu", "loop"))
    torch.cuda.empty_cache()


def test_a_recording_that_fails_names_engines_and_the_process_records_others() -> None:
    check_in_own_process(check_failed_recording)
