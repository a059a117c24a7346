"""How torch rounds the factors of products in float32, by its old flags and its new interface."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

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
