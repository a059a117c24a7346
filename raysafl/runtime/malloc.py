"""How a process that trains keeps its memory."""

import ctypes

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # glibc's mallopt


def keep_freed_memory() -> None:
    """Let glibc reuse freed memory instead of giving it back to the system after each step.

    Large tensors are otherwise mapped, and their pages faulted in, anew: 40 % of a convolutional
    network's evaluation. A process stays as large as it ever was. Nothing happens without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 2**26)):
            mallopt(option, value)
