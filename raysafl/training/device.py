"""The device that trains: how it computes, how data reach it, and what it records."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

P = TypeVar("P")
T = TypeVar("T")
LOG = logging.getLogger(__name__)

# cuBLAS reads this when it is first used. With a workspace of its own for each stream, it
# adds in the same order every time.
CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"

# The bytes that CUDA and its libraries are taken to need on a GPU for each process.
CONTEXT_BYTES = 2**29


def prepare_device(name: str, precision: str) -> torch.device:
    """Return a device, after torch was told how this process computes on it.

    On a GPU, products and convolutions round their factors to TF32 only if the model's
    precision asks for it; by default torch lets convolutions do so. And operators are
    those that give the same bits every time; where torch has none, it warns. On a CPU
    products must not depend on where their operands are in memory (`raysafl/__init__.py`
    asks for that); where they do, this warns once.

    Args:
        name: "cpu" or "cuda".
        precision: the `precision` of the model that is trained next.
    """
    device = torch.device(name)
    if device.type == "cuda":
        os.environ.setdefault(CUBLAS_WORKSPACE, ":4096:8")
        allow_tf32(precision == "tf32")
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=True)
        # New memory need not be filled: nothing here reads it before it is written.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    else:
        _warn_of_products()
    return device


def device_name(device: torch.device) -> str:
    """Return the name of a GPU as its maker gives it, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def allow_tf32(allowed: bool) -> None:
    """Say whether products and convolutions of float32 may round their factors to TF32.

    Newer versions of torch have settings for the whole process and for each library
    beside the old flags, and refuse to compute where one contradicts another. So all
    that there are are set.
    """
    backends = torch.backends
    if hasattr(backends, "fp32_precision"):
        libraries = (backends.cuda.matmul, backends.cudnn)
        operators = (backends.cudnn.conv, backends.cudnn.rnn)  # type: ignore[attr-defined]
        for part in (backends, *libraries, *operators):
            part.fp32_precision = "tf32" if allowed else "ieee"
    backends.cuda.matmul.allow_tf32 = allowed
    backends.cudnn.allow_tf32 = allowed


@cache
def _warn_of_products() -> None:
    """Warn, once a process, of products that depend on memory."""
    if products_depend_on_memory():
        LOG.warning(
            "torch's matrix products depend here on where their operands are in memory, so "
            "that a run's numbers may differ in their last bits with what else is computed "
            "beside it; if torch was used before raysafl was imported, import raysafl first"
        )


def products_depend_on_memory() -> bool:
    """Return whether a product of matrices is rounded differently at another address.

    A product is computed with its first operand at the beginning of a cache line, and
    at each other place of four bytes in it.
    """
    generator = torch.Generator().manual_seed(0)
    w_CD = torch.randn(10, 64, generator=generator)
    x_BD = torch.randn(8, 64, generator=generator)
    memory = torch.empty(w_CD.numel() + 32)
    line = -memory.data_ptr() // 4 % 16

    def product_at(place: int) -> Tensor:
        own_CD = memory[place : place + w_CD.numel()].view_as(w_CD).copy_(w_CD)
        return torch.bmm(own_CD[None], x_BD.T[None])

    first = product_at(line)
    return not all(torch.equal(product_at(line + k), first) for k in range(1, 16))


def keep_to_share(share: float) -> None:
    """Let torch take no more than a share of a GPU's memory in this process.

    A share that is exceeded is an error of this process (`torch.OutOfMemoryError`), not
    of the others on the GPU. CUDA takes memory for each process that torch does not
    count; it is taken off the share.

    Args:
        share: The share, above 0 and at most 1. With 1 nothing is limited.
    """
    if share < 1:
        total = torch.cuda.get_device_properties(0).total_memory
        fraction = max(share - CONTEXT_BYTES / total, share / 2)
        torch.cuda.set_per_process_memory_fraction(fraction)


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device, without waiting for a GPU to copy it.

    The GPU copies from pinned memory while this process goes on; whatever it computes
    afterwards sees the copy. A tensor that is there already is returned as it is.
    """
    if tensor.device.type == device.type:
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def download(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU, without waiting for a GPU to copy it.

    The copy may be read after `wait_for_downloads`.
    """
    return tensor.to("cpu", non_blocking=True)


def wait_for_downloads(device: torch.device) -> None:
    """Wait until a GPU has done all that it was asked for, copies included."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def upload_into(fixed: Tensor, tensor: Tensor) -> None:
    """Copy a tensor of the CPU into one of a device, as `upload` does.

    Args:
        fixed: the tensor that is overwritten, of the same shape and type.
        tensor: a contiguous tensor on the CPU.
    """
    source = tensor.pin_memory() if fixed.is_cuda else tensor
    fixed.copy_(source, non_blocking=True)


def record(work: Callable[[], Any], pool: Any = None) -> Any:
    """Return the operators of a function as a CUDA graph, whose `replay` repeats them.

    A replay reads and writes the same memory as the function did, and nothing that the
    function has read from Python changes. So the function must work on tensors that
    stay where they are, and must not wait for the GPU.

    The function is called once before: libraries set themselves up in their first call,
    which must not be recorded. Both calls are made on one stream of the device's own:
    cuBLAS keeps memory for each stream on which it was ever called.

    Args:
        work: the function.
        pool: the pool of memory of another graph that is alive, which this one shares;
            None for one of its own. Graphs can share if they leave no results in it.
    """
    stream = _stream_of(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        work()
    return graph


@cache
def _stream_of(index: int) -> torch.cuda.Stream:
    """Return the stream of a GPU on which this process records."""
    return torch.cuda.Stream(index)


def within_memory(
    work: Callable[[P], T],
    pieces: Sequence[P],
    cut: Callable[[P], Sequence[P]],
    lower: Callable[[P, str], None],
    make_room: Callable[[], None],
) -> Iterator[tuple[P, T]]:
    """Do work in pieces that fit into a device's memory, in their order.

    If memory runs out, what can be made again is let go of, and the piece is tried once
    more: whether it fits depends on the work alone, and not on what was computed before.
    If memory runs out again, the limit is lowered, and the piece is cut.

    Args:
        work: Does one piece.
        pieces: All of the work.
        cut: Cuts a piece into those that the present limit allows, often one.
        lower: Lowers the limit, so that this piece is cut into two or more; it is given
            the reason.
        make_room: Lets go of what is on the device and can be made again.

    Yields:
        A piece, and what the work returned for it.

    Raises:
        MemoryError: `lower` raised it, since the piece cannot be cut.
    """
    left = list(reversed(pieces))
    while left:
        piece = left.pop()
        parts = cut(piece)
        if len(parts) > 1:
            left += reversed(parts)
            continue
        for _ in range(2):
            done, lack = _tried(work, piece)
            if not lack:
                break
            make_room()
            torch.cuda.empty_cache()
        if lack:
            lower(piece, lack)
            left.append(piece)
        else:
            yield piece, done
            # The next piece may need the memory.
            del done


def _tried(work: Callable[[P], T], piece: P) -> tuple[Any, str]:
    """Return what one piece of work gave, or None and what torch says of memory.

    The memory is free only after this has returned: while an error is handled, it refers
    to the tensors that were computed.
    """
    try:
        return work(piece), ""
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None, first_line(error)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that the device has no memory left.

    CUDA's libraries say so by an error of no class of its own. While a graph is recorded,
    the error that is seen may say only that the recording has failed, and the one before
    it why.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    if any(words in str(error) for words in ("out of memory", "ALLOC_FAILED")):
        return True
    return error.__context__ is not None and is_out_of_memory(error.__context__)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, for messages."""
    return str(error).partition("\n")[0]
