"""`raysafl bench --device`: all measurements of one device, within nine minutes."""

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from raysafl.bench.budget import Budget
from raysafl.bench.device import check_device
from raysafl.bench.device_jobs import in_short
from raysafl.bench.device_parts import Part, Setting, described, merge, parts_of
from raysafl.bench.device_plan import DRY, ON_GPU, DevicePlan
from raysafl.bench.suite import REPEATS, origin
from raysafl.core.text import nearest

# Nine minutes, less what the command itself takes to start and to end.
SECONDS = 520.0
# The numbers that stand at the top of the result.
RESULTS = (
    "difference_float32",
    "difference_tf32",
    "difference_bfloat16",
    "same_bits_twice",
    "same_bits_in_a_pack",
    "allocated_growth_mb",
    "reserved_growth_mb",
    "s1_over_plain",
)
Say = Callable[[str], None]


def bench_device(
    device: str = "cuda",
    only: Sequence[str] = (),
    repeats: int = REPEATS,
    dry: bool = False,
    out: Path | None = None,
    plan: DevicePlan | None = None,
    seconds: float = SECONDS,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Measure a device and return the numbers by name; what was not measured is None.

    Every part has a share of the time. A part for which too little is left is skipped, a
    part that fails or takes too long keeps what it has found; `parts` says which and
    why. All processes that compute are fresh ones of one thread; what is compared takes
    turns.

    Args:
        device: "cuda".
        only: the names of the parts; empty: all.
        repeats: the maximum number of turns of a comparison.
        dry: whether to try the command on the CPU with small sizes, which measures
            nothing; the result says so.
        out: a file that holds what is known so far, after each piece.
        plan: what is measured; None: what docs/gpu.md describes.
        seconds: how long all of it may take.
        say: is told about the progress, in words.

    Raises:
        ValueError: the device or a part is unknown, there is no such device, or
            `repeats` is below 1.
    """
    budget = Budget(seconds)
    torch_device = check_device(device, dry)
    plan = plan or (DRY if dry else ON_GPU)
    parts = parts_of(plan)
    for name in only:
        if name not in parts:
            raise ValueError(f"unknown part '{name}': {nearest(name, parts)}")
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, not {repeats}")

    found: dict[str, Any] = dict.fromkeys((*plan.workloads, *RESULTS))
    found |= {
        "device": torch_device,
        "dry": dry,
        "parts": {},
        "repeats": repeats,
        "seconds_allowed": seconds,
        **origin(),
    }
    setting = Setting(torch_device, plan, repeats, found)
    chosen = {name: part for name, part in parts.items() if not only or name in only}
    # The floors need the device's rates.
    chosen = {"device": Part(described, least=10, most=60), **chosen}
    for name, part in chosen.items():
        report = carry_out(part, setting, budget, found, lambda: save(found, out))
        found["parts"][name] = report
        say(f"{name}: {report['state']} {report['reason']}".rstrip())
        save(found, out)
    return found


def carry_out(
    part: Part,
    setting: Setting,
    budget: Budget,
    found: dict[str, Any],
    keep: Callable[[], None],
) -> dict[str, Any]:
    """Measure a part in its share of the time; whatever happens, return its report.

    Args:
        part: the part.
        setting: what all parts know.
        budget: the time of the whole command.
        found: takes the pieces of the result.
        keep: is called after each piece.

    Returns:
        state: done, skipped, late or failed; reason: why it is not done; seconds.
    """
    if lacking := budget.lacks(part.least):
        return {"state": "skipped", "reason": lacking, "seconds": 0.0}
    began = time.monotonic()
    state = "done"
    reason = ""
    try:
        for piece in part.measure(setting, budget.share(part.most)):
            merge(found, piece)
            keep()
    except TimeoutError as error:
        state = "late"
        reason = str(error)
    except Exception as error:
        # Whatever breaks in a part, the others must still be measured.
        state = "failed"
        reason = in_short(error)
    seconds = time.monotonic() - began
    return {"state": state, "reason": reason, "seconds": seconds}


def save(found: dict[str, Any], out: Path | None) -> None:
    """Write a result to a file, which at no time holds a part of it."""
    if out is None:
        return
    new = out.with_name(f".{out.name}.{os.getpid()}")
    new.write_text(json.dumps(found, indent=1) + "\n")
    new.replace(out)
