"""Jobs whose results come in pieces, so that what is known survives whatever follows.

Each runs in a process of its own (see `benchmarks.child`), and yields parts of one
nested dictionary. What fails is named there, with its reason, and the rest goes on.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.convolutions import convolutions
from benchmarks.device import MB, describe_device, peak_device_mb, wait_for
from benchmarks.floors import (
    LARGE,
    SMALL,
    device_calls,
    measured_rates,
    step_cost,
)
from benchmarks.job import Job
from benchmarks.processes import median
from benchmarks.rounds import Pack, copies_of, time_rounds
from benchmarks.shared_data import load
from benchmarks.watch import resident_mib
from benchmarks.workloads import steady_rounds
from raysafl.core.problem import Dataset, Samples
from raysafl.models import CharLSTM
from raysafl.simulation.run import Run
from raysafl.sweep.simulate import worker_of

Piece = dict[str, Any]
ENGINES = ("loop", "vmap", "graph", "linear")
# The engines that can train any network; a failed recording may break what follows it.
TIMED = ("loop", "vmap", "graph")
PRECISIONS = ("float32", "tf32", "bfloat16")
# Runs that train beside the run whose bits are compared.
BESIDE = 3
TRIALS = 30
# The trial from which on memory should not grow.
SETTLED = 5
# Shades of the pixels that a model of text reads as characters.
SHADES = 10


def describe(job: Job) -> Iterator[Piece]:
    """Describe the device, then measure its rates."""
    yield {"device_is": describe_device(job.device)}
    for rate in measured_rates(job.device, SMALL if job.small else LARGE):
        yield {"rates": rate}


def agreement(job: Job) -> Iterator[Piece]:
    """Compare every engine on the device with the CPU's loop in float32.

    A difference is the largest one of any parameter after the run's rounds, over the
    largest change of any parameter by the CPU's loop.
    """
    for run in job.runs:
        dataset = samples_of(run)
        start_P = worker_of([run], dataset, engine="loop").init(0)
        right_P = trained([run], dataset, "cpu", "loop")
        moved = float((right_P - start_P).abs().max())
        for precision in PRECISIONS:
            other = run.replace({"model.precision": precision})
            for engine in ENGINES:
                end = tried(partial(trained, [other], dataset, job.device, engine))
                if isinstance(end, Tensor):
                    end = {"difference": float((end - right_P).abs().max()) / moved}
                yield {name_of(run): {precision: {engine: end}}}


def bits(job: Job) -> Iterator[Piece]:
    """Give a digest of the parameters of each run and engine, alone and in a pack."""
    for run in job.runs:
        dataset = samples_of(run)
        pack = copies_of(run, 1 + BESIDE)
        for engine in ENGINES:
            for how, runs in (("alone", pack[:1]), ("in_a_pack", pack)):
                end = tried(partial(trained, runs, dataset, job.device, engine))
                if isinstance(end, Tensor):
                    digest = hashlib.sha256(end.numpy().tobytes()).hexdigest()
                    end = {"digest": digest}
                yield {name_of(run): {engine: {how: end}}}


def engines(job: Job) -> Iterator[Piece]:
    """Time the rounds of a run by one engine after the other."""
    ends = end_of(job)
    run = job.runs[0]
    dataset = load(run)
    for engine in TIMED:
        timed = partial(_rounds_of_engine, job, run, dataset, engine, ends)
        yield {engine: tried(timed)}


def _rounds_of_engine(
    job: Job, run: Run, dataset: Dataset, engine: str, ends: float
) -> Piece:
    """Time the rounds of a run by an engine, and take its memory."""
    forget_memory(job.device)
    pack = Pack([run], worker_of([run], dataset, engine, job.device))
    wait = partial(wait_for, job.device)
    timed = time_rounds(pack.step, run.rounds, wait=wait, ends=ends)
    seconds = timed["seconds"]
    return {
        "round_ms": 1e3 * median(seconds[steady_rounds(run)]),
        "rounds_ms": [1e3 * one for one in seconds],
        "device_mb": peak_device_mb(job.device),
    }


def forget_memory(device: str) -> None:
    """Give back what torch keeps of a GPU's memory, and count its peak anew."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def end_of(job: Job) -> float:
    """Return until when a job may take, by `time.monotonic`."""
    return time.monotonic() + (job.seconds or math.inf)


def memory(job: Job) -> Iterator[Piece]:
    """Make the worker of a run anew, train and evaluate, again and again.

    There are fewer trials than usual if they would take longer than the job's `seconds`.

    After each trial there is the memory that torch has allocated and reserved on a GPU;
    on a CPU both are the resident memory of the process.
    """
    ends = end_of(job)
    run = job.runs[0]
    dataset = load(run)
    allocated: list[float] = []
    reserved: list[float] = []
    worker = None
    for trial in range(TRIALS):
        if trial > SETTLED and time.monotonic() > ends:
            return
        # The old one goes before the new one comes, as in a client actor.
        del worker
        one = run.replace(seed=trial)
        worker = worker_of([one], dataset, job.engine, job.device)
        pack = Pack([one], worker)
        for _ in range(one.rounds):
            pack.step()
        del pack
        wait_for(job.device)
        now = memory_mb(job.device)
        allocated.append(now[0])
        reserved.append(now[1])
        yield {"allocated_mb": allocated, "reserved_mb": reserved}


def packs(job: Job) -> Iterator[Piece]:
    """Time packs of several sizes, the small ones first.

    A size that the one before it predicts to take longer than what is left of the job's
    `seconds` is skipped.
    """
    ends = end_of(job)
    run = job.runs[0]
    dataset = load(run)
    yield {"step": step_cost(run.model, dataset, run.local.batch_size)}
    before: tuple[int, float] | None = None
    for size in job.sizes:
        left = ends - time.monotonic()
        predicted = before[1] * size / before[0] if before else 0.0
        if predicted > left:
            reason = f"predicted to take {predicted:.0f} s, {left:.0f} s were left"
            yield {"packs": {str(size): {"skipped": reason}}}
            continue
        began = time.monotonic()
        # Seconds of rounds that a larger pack can do without.
        spared = 0.0
        try:
            for piece in _pack(job, run, dataset, size, ends):
                yield {"packs": {str(size): piece}}
                spared += sum(piece.get("rounds_ms", [])[2:]) / 1e3
        except Exception as error:
            # Such as too little memory; the other sizes are known by then, or follow.
            yield {"packs": {str(size): {"failed": in_short(error)}}}
        before = (size, time.monotonic() - began - spared)


def _pack(
    job: Job, run: Run, dataset: Dataset, size: int, ends: float
) -> Iterator[Piece]:
    """Time the rounds of one pack, then count what one more asks of the device."""
    forget_memory(job.device)
    runs = copies_of(run, size)
    began = time.perf_counter()
    work = worker_of(runs, dataset, job.engine, job.device)
    pack = Pack(runs, work)
    setup = time.perf_counter() - began
    wait = partial(wait_for, job.device)
    seconds = time_rounds(pack.step, run.rounds, wait=wait, ends=ends)["seconds"]
    steady = seconds[steady_rounds(run)]
    clients = len(dataset.train) // run.data.clients
    yield {
        "engine": work.trainer.engine_name,
        "setup_s": setup,
        "round_ms": 1e3 * median(steady),
        "rounds_ms": [1e3 * one for one in seconds],
        "run_rounds_per_s": size / median(steady),
        "steps": size * run.participation.m * run.local.num_steps(clients),  # type: ignore[attr-defined]
        "memory_mb": peak_device_mb(job.device) or memory_mb(job.device)[1],
    }
    # Else the round that is counted would begin the runs as well.
    pack.begin()
    try:
        yield {"calls": device_calls(pack.step, job.device)}
    except Exception as error:
        # Without the profiler's libraries the times above still count.
        yield {"not_counted": in_short(error)}


def trained(runs: list[Run], dataset: Dataset, device: str, engine: str) -> Tensor:
    """Train runs as one pack; return the parameters [P] of the first one, on the CPU."""
    pack = Pack(runs, worker_of(runs, dataset, engine, device))
    for _ in range(runs[0].rounds):
        pack.step()
    return pack.simulations[0].replicates[0].state.w_P.cpu()


def tried(compute: Callable[[], Tensor | Piece]) -> Tensor | Piece:
    """Return what is computed; if an engine refuses or fails, the reason.

    `refused` is a combination that is not meant to run, `failed` one that broke.
    """
    try:
        return compute()
    except ValueError as error:
        return {"refused": in_short(error)}
    except Exception as error:
        # Whatever breaks in one engine, the others must still be tried.
        return {"failed": in_short(error)}


def in_short(error: BaseException) -> str:
    """Return the first line of an error with its type; the last one too if it explains it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    explained = lines[0].endswith(":") and len(lines) > 1
    told = f"{lines[0]} {lines[-1]}" if explained else lines[0]
    return f"{type(error).__name__}: {told[:500]}"


def name_of(run: Run) -> str:
    """Return the name by which the results of a run's model are kept."""
    return type(run.model).__name__


def samples_of(run: Run) -> Dataset:
    """Return a run's dataset; for a model of text, its pixels as characters."""
    dataset = load(run)
    if not isinstance(run.model, CharLSTM):
        return dataset
    train, test = (_as_text(part) for part in (dataset.train, dataset.test))
    return Dataset(f"{dataset.name} as text", train, test, dataset.num_classes)


def _as_text(samples: Samples) -> Samples:
    """Return images as rows of tokens, one for each pixel, by its brightness."""
    pixels = samples.x.reshape(len(samples), -1).astype(np.float64)
    tokens = np.floor(pixels * (SHADES - 0.01) / pixels.max()).astype(np.int64)
    return Samples(tokens, samples.y)


def memory_mb(device: str) -> tuple[float, float]:
    """Return the allocated and reserved MB on a GPU; on a CPU twice the resident ones."""
    if device == "cuda":
        return torch.cuda.memory_allocated() / MB, torch.cuda.memory_reserved() / MB
    resident = resident_mib() * 2**20 / MB
    return resident, resident


PIECES: Mapping[str, Callable[[Job], Iterator[Piece]]] = {
    "device": describe,
    "agreement": agreement,
    "bits": bits,
    "engines": engines,
    "memory": memory,
    "packs": packs,
    "convolutions": convolutions,
}
