"""Samples/s of the local engines on convolutional networks, against FLOP and byte floors.

python benchmarks/engines.py --device cpu > benchmarks/engines-cpu.json
python benchmarks/engines.py --device cuda > benchmarks/engines-cuda.json

For W2's network and FSL's for CIFAR-10, m clients at once and batches of B: what
`LocalTrainer.train` reaches with each engine by name, and with --compile also with
`torch.compile` around its gradients. Data are random: arithmetic does not depend on
them. Per step and task the floor is the larger of

- the FLOP that torch's FlopCounterMode counts over a forward and a backward pass, at the
  measured rate of a large square float32 matrix product, and
- the bytes, at the measured rate of a copy: parameters are read twice and, by the update,
  read and written (16 P), inputs are read once as float32, and every layer's output is
  written and read once.

A case that the smaller ones before it predict to take longer than --limit seconds is
timed once, others are medians of three.
"""

import argparse
import json
import statistics
import sys
import time
from itertools import product

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from raysafl.bench.suite import origin
from raysafl.bench.workloads import W2
from raysafl.core.algorithm import LocalTraining
from raysafl.core.problem import Dataset, Samples
from raysafl.core.randomness import Key
from raysafl.core.work import Task
from raysafl.models import FlatModel, FslCifarNet
from raysafl.training.trainer import LocalTrainer

MODELS = {"W2": W2.run.model, "FslCifarNet": FslCifarNet()}
CLIENTS, BATCHES = (5, 10, 50, 100), (20, 50, 128, 500)
SHAPE, CLASSES, STEPS = (3, 32, 32), 10, 2
REPEATS = 3
FLOAT = 4


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(action, device, repeats=REPEATS):
    """The median time of an action, after one run of it that is not counted."""
    action()
    times = []
    for _ in range(repeats):
        wait(device)
        began = time.perf_counter()
        action()
        wait(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def peaks(device):
    """Measured FLOP/s in float32 and in bfloat16, and bytes/s of a copy.

    FLOP/s are the better of a matrix product's and a convolution's: libraries differ in
    both.
    """
    n, big = (4096, 2**28) if device == "cuda" else (2048, 2**26)
    rates = []
    for kind in (torch.float32, torch.bfloat16):
        a, b = torch.rand(2, n, n, device=device).to(kind)
        out = torch.empty_like(a)
        product = (
            2
            * n**3
            / seconds(lambda a=a, b=b, out=out: torch.mm(a, b, out=out), device)
        )
        x = torch.rand(64, 64, 32, 32, device=device).to(
            kind, memory_format=torch.channels_last
        )
        w = torch.rand(64, 64, 3, 3, device=device).to(
            kind, memory_format=torch.channels_last
        )
        flop = 2 * x.numel() * 64 * 9
        convolution = flop / seconds(lambda x=x, w=w: F.conv2d(x, w, padding=1), device)
        rates.append(max(product, convolution))
    source = torch.rand(big, device=device)
    to = torch.empty_like(source)
    return *rates, 2 * big * FLOAT / seconds(lambda: to.copy_(source), device)


def floors(recipe, batch):
    """(FLOP, bytes) of one step of one task."""
    net, outputs = recipe.build(SHAPE, CLASSES), []
    hooks = [
        layer.register_forward_hook(lambda _m, _i, out: outputs.append(out.numel()))
        for layer in net.modules()
        if not list(layer.children())
    ]
    x, y = torch.rand(batch, *SHAPE), torch.zeros(batch, dtype=torch.int64)
    with FlopCounterMode(display=False) as counted:
        F.cross_entropy(net(x), y).backward()
    for hook in hooks:
        hook.remove()
    parameters = sum(p.numel() for p in net.parameters())
    moved = FLOAT * (4 * parameters + x.numel() + 2 * sum(outputs))
    return counted.get_total_flops(), moved


def trainer(recipe, name, clients, batch, device, compiled):
    """A trainer of random clients that hold STEPS batches each, and its tasks."""
    held = batch * STEPS
    rng = np.random.default_rng(0)
    x = rng.integers(256, size=(held * clients, *SHAPE), dtype=np.uint8)
    samples = Samples(x, rng.integers(CLASSES, size=len(x)), 2 / 255, -1.0)
    model = FlatModel(recipe, SHAPE, CLASSES)
    made = LocalTrainer(
        model,
        Dataset("random", samples, samples, CLASSES),
        lambda _, client: np.arange(client * held, (client + 1) * held),
        device,
        name,
    )
    if compiled:
        torch._dynamo.reset()  # after eight versions of a function it would not compile it again
        made.engine.gradients = torch.compile(made.engine.gradients)
    local, w_P = LocalTraining(lr=0.01, batch_size=batch, epochs=1), model.init(Key(0))
    return made, [Task(0, i, w_P, local, 0, 0, 1, None, 0.0) for i in range(clients)]


def measure(recipe, name, clients, batch, device, compiled, repeats):
    """Samples/s of one case."""
    made, tasks = trainer(recipe, name, clients, batch, device, compiled)
    return STEPS * batch * clients / seconds(lambda: made.train(tasks), device, repeats)


def cases(recipe, device, limit, compile_too, grid):
    """All cases of one network, small ones first; what fails says why."""
    names = ["loop", "vmap", *(["graph"] if device == "cuda" else [])]
    variants = [(name, False) for name in names]
    variants += [(name, True) for name in names] if compile_too else []
    for name, compiled in variants:
        slowest = None  # samples/s of the slowest case so far
        for clients, batch in sorted(grid, key=lambda case: case[0] * case[1]):
            shown = f"compile({name})" if compiled else name
            row = {"engine": shown, "clients": clients, "batch": batch}
            predicted = (
                (REPEATS + 1) * STEPS * clients * batch / slowest if slowest else 0.0
            )
            row["repeats"] = REPEATS if predicted <= limit else 1
            try:
                rate = measure(
                    recipe, name, clients, batch, device, compiled, row["repeats"]
                )
            except Exception as error:  # a variant that does not run is a finding
                yield {**row, "skipped": f"{type(error).__name__}: {str(error)[:120]}"}
                if compiled:
                    break
                continue
            slowest = min(rate, slowest or rate)
            yield {**row, "samples_per_s": rate}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--limit", type=float, default=20.0, help="seconds of a case")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    parser.add_argument(
        "--compile", action="store_true", help="torch.compile variants too"
    )
    parser.add_argument("--models", default=",".join(MODELS), help="with commas")
    parser.add_argument(
        "--clients", default=",".join(map(str, CLIENTS)), help="with commas"
    )
    parser.add_argument(
        "--batches", default=",".join(map(str, BATCHES)), help="with commas"
    )
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU here; --device cpu measures the CPU's column")
    if given.device == "cpu":
        print(
            "the CPU's column; the GPU's is unmeasured without --device cuda",
            file=sys.stderr,
        )
    flops, bfloat16, bandwidth = peaks(given.device)
    grid = list(
        product(map(int, given.clients.split(",")), map(int, given.batches.split(",")))
    )
    found = {}
    for name in given.models.split(","):
        recipe = MODELS[name]
        floor = {batch: floors(recipe, batch) for batch in sorted({b for _, b in grid})}
        rows = []
        for row in cases(recipe, given.device, given.limit, given.compile, grid):
            flop, moved = floor[row["batch"]]
            row["floor_samples_per_s"] = row["batch"] / max(
                flop / flops, moved / bandwidth
            )
            rows.append(row)
            print(name, json.dumps(row), file=sys.stderr)
        found[name] = {
            "flop_and_bytes": {str(b): list(floor[b]) for b in floor},
            "rows": rows,
        }
    device = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
    measured = {
        "flop_per_s": flops,
        "bfloat16_flop_per_s": bfloat16,
        "bytes_per_s": bandwidth,
    }
    print(
        json.dumps(
            {
                "device": device,
                "threads": given.threads,
                **measured,
                "models": found,
                **origin(),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
