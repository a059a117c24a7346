"""What no program can undercut on a device: three floors for the time of a round.

A round launches kernels, moves bytes and computes. Each takes at least a known time,
from rates that are measured on the device itself. The largest of the three is the floor.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.device import wait_for
from benchmarks.processes import median
from raysafl.core.problem import Dataset, Model
from raysafl.training.device import allow_tf32

REPEATS = 5
FLOAT = 4  # bytes
LAUNCHES = 1000


class Sizes(NamedTuple):
    """How large the matrices and copies are from which rates are measured.

    Attributes:
        rows: the rows and columns of a square matrix.
        numbers: the float32 numbers that are copied.
    """

    rows: int
    numbers: int


LARGE = Sizes(8192, 2**28)
SMALL = Sizes(512, 2**22)


def seconds_of(
    action: Callable[[], object], device: str, repeats: int = REPEATS
) -> float:
    """Return the median seconds of an action, after one run of it that is not counted."""
    action()
    times = []
    for _ in range(repeats):
        wait_for(device)
        began = time.perf_counter()
        action()
        wait_for(device)
        times.append(time.perf_counter() - began)
    return median(times)


def measured_rates(device: str, sizes: Sizes) -> Iterator[dict[str, float]]:
    """Yield the rates of a device, one after the other.

    They are: `launch_us`, an operator on one number, which is what a launch costs with
    torch's own work before it; `graph_node_us`, the same operator in a recorded graph
    (on a GPU only); `wait_us`, the reading of one number; `copy_bytes_per_s` on the
    device, both directions counted; `upload_bytes_per_s` from pinned memory (on a GPU
    only); and `float32_flop_per_s`, `tf32_flop_per_s` (on a GPU only) and
    `bfloat16_flop_per_s` of a matrix product.

    Args:
        device: "cpu" or "cuda".
        sizes: how large the matrices and copies are.
    """
    one = torch.zeros(1, device=device)

    def launch() -> None:
        for _ in range(LAUNCHES):
            one.add_(1.0)

    yield {"launch_us": 1e6 * seconds_of(launch, device) / LAUNCHES}
    if device == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch()
        yield {"graph_node_us": 1e6 * seconds_of(graph.replay, device) / LAUNCHES}
    yield {"wait_us": 1e6 * seconds_of(one.item, device)}

    source = torch.rand(sizes.numbers, device=device)
    copy = torch.empty_like(source)
    seconds = seconds_of(lambda: copy.copy_(source), device)
    yield {"copy_bytes_per_s": 2 * FLOAT * sizes.numbers / seconds}
    if device == "cuda":
        pinned = torch.rand(sizes.numbers // 4).pin_memory()
        part = copy[: len(pinned)]
        seconds = seconds_of(lambda: part.copy_(pinned, non_blocking=True), device)
        yield {"upload_bytes_per_s": FLOAT * len(pinned) / seconds}
    yield from _flop_rates(device, sizes.rows)


def _flop_rates(device: str, rows: int) -> Iterator[dict[str, float]]:
    """Yield the FLOP/s of a square matrix product in each precision."""
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if device == "cuda":
        kinds["tf32"] = torch.float32
    for name, kind in kinds.items():
        allow_tf32(name == "tf32")
        a = torch.rand(rows, rows, device=device).to(kind)
        out = torch.empty_like(a)
        seconds = seconds_of(lambda a=a, out=out: torch.mm(a, a, out=out), device)  # type: ignore[misc]
        yield {f"{name}_flop_per_s": 2 * rows**3 / seconds}
    allow_tf32(False)


def step_cost(model: Model, dataset: Dataset, batch: int) -> dict[str, float]:
    """Return what one local step of one task costs at least.

    Args:
        model: the recipe of the model.
        dataset: samples, of which the first ones are taken.
        batch: how many of them.

    Returns:
        flop: counted by torch in a forward and a backward pass; bytes: parameters are
        read twice and, by the update, read and written, inputs are read once, and every
        layer's output is written and read once, all as float32. Whoever keeps
        parameters or outputs on the chip moves fewer.
    """
    net = model.build(dataset.train.x.shape[1:], dataset.num_classes)
    outputs: list[int] = []

    def note(_layer: Any, inputs: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        # A layer that only looks at its input in another shape moves nothing.
        if out.data_ptr() != inputs[0].data_ptr():
            outputs.append(out.numel())

    for layer in net.modules():
        if not list(layer.children()):
            layer.register_forward_hook(note)
    some = dataset.train.take(slice(batch))
    x_B = torch.from_numpy(some.x).float()
    with FlopCounterMode(display=False) as counted:
        F.cross_entropy(net(x_B), torch.from_numpy(some.y)).backward()
    parameters = sum(p.numel() for p in net.parameters())
    moved = FLOAT * (4 * parameters + x_B.numel() + 2 * sum(outputs))
    return {"flop": float(counted.get_total_flops()), "bytes": float(moved)}


def floors_ms(
    rates: dict[str, float], pack: dict[str, Any], step: dict[str, float]
) -> dict[str, float]:
    """Return the floors of a round in ms: by launches, by bytes and by FLOP.

    A floor whose rate or count is not known is left out.

    Args:
        rates: what `measured_rates` has yielded.
        pack: `steps`, the local steps of all tasks of a round, and `calls`, the
            `device_calls` of a round.
        step: the `step_cost`.
    """
    floors = {}
    calls = pack.get("calls")
    if calls and "launch_us" in rates:
        us = calls["launches"] * rates["launch_us"]
        # Kernels of a graph are launched by the device.
        in_graphs = max(0, calls["kernels"] - calls["launches"])
        us += in_graphs * rates.get("graph_node_us", 0.0)
        floors["launches"] = us / 1e3
    if "copy_bytes_per_s" in rates:
        moved = pack["steps"] * step["bytes"]
        floors["bytes"] = 1e3 * moved / rates["copy_bytes_per_s"]
    if "float32_flop_per_s" in rates:
        flop = pack["steps"] * step["flop"]
        floors["flop"] = 1e3 * flop / rates["float32_flop_per_s"]
    return floors


def device_calls(action: Callable[[], object], device: str) -> dict[str, Any]:
    """Count what an action asks of a device.

    Returns:
        launches: calls that launch a kernel or a graph; kernels: what ran on the
        device; copies and waits: calls that copy and that wait; profiled_ms: how long the
        action took while it was watched; kernels_ms and busy_ms: see `device_times`. On a
        CPU, launches and kernels are torch's operators, inner ones included, and there are
        no copies, waits and times.
    """
    from torch.profiler import ProfilerActivity, profile

    on_gpu = device == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    with profile(activities=[activity]) as watched:
        began = time.perf_counter()
        action()
        wait_for(device)
        seconds = time.perf_counter() - began
    if not on_gpu:
        operators = sum(event.count for event in watched.key_averages())
        return {"launches": operators, "kernels": operators, "of": "operators of a CPU"}

    called = [e.name for e in watched.events() if e.device_type.name == "CPU"]
    ran = [e for e in watched.events() if e.device_type.name == "CUDA"]

    def calls(*parts: str) -> int:
        """Count the host's calls whose name has one of these parts."""
        return sum(any(part in name for part in parts) for name in called)

    return {
        "launches": calls("LaunchKernel", "GraphLaunch"),
        # Copies and fills by the device's memory are no kernels.
        "kernels": sum(not event.name.startswith("Mem") for event in ran),
        "copies": calls("Memcpy"),
        "waits": calls("Synchronize"),
        "profiled_ms": 1e3 * seconds,
        **device_times((e.time_range.start, e.time_range.end) for e in ran),
    }


def device_times(spans_us: Iterable[tuple[float, float]]) -> dict[str, float]:
    """Return how long a device computed, from the beginning and end of all that ran on it.

    Where several kernels run at the same time, the sum of their times is longer than the
    time in which the device computes.

    Returns:
        kernels_ms: the sum of the times; busy_ms: the time in which at least one ran.
    """
    total = busy = 0.0
    until = -math.inf
    for start, end in sorted(spans_us):
        total += end - start
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return {"kernels_ms": total / 1e3, "busy_ms": busy / 1e3}
