"""How torch is told to compute on a device, and what may be taken of its memory."""

import importlib
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.gpu_program import GIB

import raysafl
from raysafl.training.device import (
    CONTEXT_BYTES,
    keep_to_share,
    prepare_device,
    products_depend_on_memory,
    within_memory,
)

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
HAS_NEW_INTERFACE = hasattr(torch.backends, "fp32_precision")


def parts() -> list[Any]:
    """Return what has a precision of its own in the new interface, from the widest on."""
    if not HAS_NEW_INTERFACE:
        return []
    backends: Any = torch.backends
    cudnn = backends.cudnn
    return [backends, backends.cuda.matmul, cudnn, cudnn.conv, cudnn.rnn]


def rounding() -> list[str]:
    """Return which operators of a GPU round to TF32, whatever set them to it."""
    get: Any = torch._C._get_fp32_precision_getter
    operators = ("matmul", "conv", "rnn")
    return [name for name in operators if get("cuda", name) == "tf32"]


@contextmanager
def precision_restored() -> Iterator[None]:
    """Restore torch's precisions after a block."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [(part, part.fp32_precision) for part in parts()]
    flags = (matmul.allow_tf32, cudnn.allow_tf32)
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = flags
        for part, precision in before:
            part.fp32_precision = precision


@pytest.fixture(autouse=True)
def _settings_are_put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch keeps these settings for the whole process, also without a GPU."""
    for owner, name in (
        (torch.backends.cudnn, "deterministic"),
        (torch.backends.cudnn, "benchmark"),
        (torch.utils.deterministic, "fill_uninitialized_memory"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setenv(CUBLAS, "")
    monkeypatch.delenv(CUBLAS)
    is_on = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    with precision_restored():
        yield
    torch.use_deterministic_algorithms(is_on, warn_only=warns_only)


def tf32() -> tuple[bool, bool]:
    """Whether products and convolutions may round their factors."""
    return (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)


@pytest.mark.parametrize("part", [None, "legacy flags", *range(len(parts()))])
def test_a_gpu_rounds_to_tf32_only_if_the_precision_asks_for_it_whatever_was_set_before(
    part: int | str | None,
) -> None:
    if isinstance(part, int):
        parts()[part].fp32_precision = "tf32"
    elif part:
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
    for precision in ("float32", "tf32", "bfloat16", "tf32", "float32"):
        assert prepare_device("cuda", precision) == torch.device("cuda")
        if HAS_NEW_INTERFACE:
            assert len(rounding()) == (3 if precision == "tf32" else 0)
        # torch refuses to tell, and to compute, where old flags contradict new ones.
        assert tf32() == (precision == "tf32",) * 2


def test_a_gpu_computes_by_operators_that_repeat_and_warns_of_others() -> None:
    torch.backends.cudnn.benchmark = True
    prepare_device("cuda", "float32")
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert not torch.utils.deterministic.fill_uninitialized_memory
    assert os.environ[CUBLAS] == ":4096:8"


def test_a_users_workspace_of_cublas_is_respected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CUBLAS, ":16:8")
    prepare_device("cuda", "float32")
    assert os.environ[CUBLAS] == ":16:8"


def test_nothing_is_set_for_a_cpu() -> None:
    before = tf32()
    assert prepare_device("cpu", "tf32") == torch.device("cpu")
    assert tf32() == before
    assert not torch.are_deterministic_algorithms_enabled()
    assert CUBLAS not in os.environ


def test_products_do_not_depend_on_where_their_operands_are_in_memory() -> None:
    assert not products_depend_on_memory()


# What a fresh process says of products that were computed before, and whether it warns.
SAID = """
import torch; torch.rand(99, 99) @ torch.rand(99, 99)
from raysafl.training.device import prepare_device, products_depend_on_memory
prepare_device("cpu", "float32")
prepare_device("cpu", "float32")
print(products_depend_on_memory())
"""


def test_products_that_depend_on_memory_are_warned_of_once() -> None:
    """Whether they do, if torch was used before, depends on the processor."""
    environment = {k: v for k, v in os.environ.items() if k != "MKL_CBWR"}
    command = [sys.executable, "-c", SAID]
    child = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    )
    depends = child.stdout.strip() == "True"
    assert child.stderr.count("import raysafl first") == depends


def test_a_users_mode_of_mkl_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    importlib.reload(raysafl)
    assert os.environ["MKL_CBWR"] == "COMPATIBLE"


@pytest.mark.parametrize(
    ("share", "gigabytes", "taken"),
    # A quarter, less what CUDA takes; half of the quarter of a tiny GPU; no limit.
    [(0.25, 16, 4 * GIB - CONTEXT_BYTES), (0.25, 1, GIB / 8), (1.0, 16, None)],
)
def test_processes_with_shares_of_a_gpu_fit_on_it_together(
    share: float, gigabytes: int, taken: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fractions = list[float]()
    gpu = SimpleNamespace(total_memory=gigabytes * GIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", fractions.append)
    keep_to_share(share)
    assert [part * gigabytes * GIB for part in fractions] == [taken] * bool(taken)


def test_work_that_does_not_fit_is_tried_again_then_cut_in_its_order() -> None:
    limit = 8
    tried: list[int] = []
    freed: list[None] = []

    def work(piece: range) -> int:
        tried.append(len(piece))
        if len(piece) > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nof many")
        return sum(piece)

    def cut(piece: range) -> list[range]:
        return [piece[k : k + limit] for k in range(0, len(piece), limit)]

    def lower(piece: range, reason: str) -> None:
        nonlocal limit
        assert reason == "CUDA out of memory. Tried to allocate 2 GiB"
        limit = len(piece) // 2

    pieces = [range(3), range(3, 8)]
    done = list(within_memory(work, pieces, cut, lower, lambda: freed.append(None)))
    assert [i for piece, _ in done for i in piece] == list(range(8))
    assert all(found == sum(piece) for piece, found in done)
    # Three numbers do not fit, twice, and then none that are more than one are tried.
    assert tried == [3, 3, *[1] * 8] and len(freed) == 2


def test_what_a_piece_gave_is_not_held_while_the_next_one_is_done() -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def work(piece: range) -> torch.Tensor:
        assert not [one for one in held if one() is not None]
        return torch.ones(3)

    for _, found in within_memory(work, [range(1)] * 3, lambda p: [p], print, print):  # type: ignore[arg-type]
        held.append(weakref.ref(found))
        del found


def test_another_error_of_work_in_pieces_is_not_taken_for_a_lack_of_memory() -> None:
    def work(piece: range) -> int:
        raise RuntimeError("shapes cannot be multiplied")

    pieces = within_memory(work, [range(2)], lambda piece: [piece], print, print)
    with pytest.raises(RuntimeError, match="shapes"):
        next(pieces)
