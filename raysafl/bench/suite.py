"""All measurements of `raysafl bench`, as one JSON object of ratios."""

import datetime
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from raysafl.bench.job import Job
from raysafl.bench.measure import Result, interleaved, median, ratio
from raysafl.bench.workloads import (
    EMPTY,
    S1,
    STANDARD,
    TRIVIAL,
    Workload,
    samples_per_round,
    steady_rounds,
)
from raysafl.core.text import nearest
from raysafl.runtime.provenance import commit
from raysafl.simulation.run import Run

# Measured only with --full or by name.
SLOW = ("S1", "trials")
REPLICATES = 8
# The runs of the packs on which client actors are measured, and of the pack whose rounds
# have little to compute.
PACK_RUNS = 8
EMPTY_PACK_RUNS = 64
# A shared machine changes its speed by a fifth from one minute to the next, so every
# comparison is repeated this often by default.
REPEATS = 5
# The names of the numbers that stand at the top of the result.
RESULTS = (
    "two_actors_speedup",
    "two_processes_ceiling",
    "replicates8_over_1",
    "s1_over_ideal",
    "s1_busy",
    "empty_round_ms",
    "pack_round_ms",
    "start_s",
    "further_run_s",
    "sweep_files",
    "driver_growth_mb",
    "report_s",
)
Say = Callable[[str], None]
Kinds = dict[str, list[Job]]
Results = Mapping[str, list[list[Result]]]


@dataclass(frozen=True)
class Plan:
    """What is measured; the default is what benchmarks/README.md reports."""

    workloads: Mapping[str, Workload]
    # These workloads run on one and on two client actors. The aim is for the first one,
    # whose ratios also stand at the top of the result.
    shared_out: Sequence[str] = ("W2", "W1", "W3")
    # These run as packs on one and on two client actors.
    packed: Sequence[str] = ("W1", "W3")
    replicated: str = "W4"
    empty: Run = EMPTY
    s1: Sequence[Run] = S1
    trivial: Run = TRIVIAL
    # How many trivial runs a sweep has.
    many: int = 10_000

    @property
    def measures(self) -> list[str]:
        """Return the names that `--only` accepts, the slow ones last."""
        others = ("actors", "packs", "replicates", "empty", "start")
        return [*self.workloads, *others, *SLOW]


DEFAULT = Plan(STANDARD)


def bench(
    only: Sequence[str] = (),
    repeats: int = REPEATS,
    full: bool = False,
    plan: Plan = DEFAULT,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Measure raysafl and return the ratios by name; what was not measured is None.

    A time is the median over the repeats of the mean seconds per steady round (rounds 2
    to n). Every run has a fresh process of one thread. Runs that are compared take
    turns, and a ratio is the median of the turns' ratios.

    Args:
        only: the names of the measures to take; empty: all, without the slow ones.
        repeats: the number of turns.
        full: whether to take the slow measures as well.
        plan: the workloads.
        say: is told about the progress, in words.

    Raises:
        ValueError: `only` names an unknown measure, `repeats` is below 1, or a dataset
            is missing.
    """
    chosen = _chosen(plan, only, full)
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, not {repeats}")
    samples = _load(plan, chosen)
    found: dict[str, Any] = dict.fromkeys((*plan.workloads, *RESULTS))
    found |= _on_workloads(plan, chosen, repeats, samples, say)
    rest = {
        "packs": _empty_pack,
        "replicates": _replicates,
        "empty": _empty,
        "start": _start,
        "S1": _s1,
        "trials": _trials,
    }
    for name, measure in rest.items():
        if name in chosen:
            found |= measure(plan, repeats, _prefixed(say, name))
    return found | {"repeats": repeats, **origin()}


def _on_workloads(
    plan: Plan,
    chosen: set[str],
    repeats: int,
    samples: Mapping[str, int],
    say: Say,
) -> dict[str, Any]:
    """Measure what is measured on each workload, all of one workload in turns.

    Args:
        plan: the workloads.
        chosen: the names of the measures to take.
        repeats: the number of turns.
        samples: the number of training samples of each workload that is measured.
        say: is told about the progress, in words.
    """
    found: dict[str, Any] = {}
    actors: dict[str, Any] = {}
    packs: dict[str, Any] = {}
    for name, workload in plan.workloads.items():
        kinds = _kinds(plan, name, chosen)
        results = interleaved(kinds, repeats, _prefixed(say, name)) if kinds else {}
        if name in chosen:
            found[name] = _speedup(workload, results, samples[name])
        if "actors 1" in kinds:
            actors[name] = _actors(workload.run, results, "actors")
        if "pack 1" in kinds:
            packs[name] = _actors(workload.run, results, "pack")
    if packs:
        found["pack_actors"] = {name: packs[name] for name in plan.packed}
    if actors:
        found["actors"] = {name: actors[name] for name in plan.shared_out}
        first = actors[plan.shared_out[0]]
        gains = ("two_actors_speedup", "two_processes_ceiling")
        found |= {key: first[key] for key in gains}
    return found


def origin() -> dict[str, Any]:
    """Describe where a measurement is taken: machine, cores, date, commit and versions."""
    names = ("raysafl", "torch", "ray", "numpy")
    return {
        "machine": f"{_processor()}, {psutil.virtual_memory().total / 2**30:.0f} GiB, "
        f"{platform.system()}",
        "cores": {
            "logical": psutil.cpu_count(),
            "physical": psutil.cpu_count(logical=False),
            "usable": len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else None,
        },
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(Path(__file__).parent),
        "versions": {
            "python": platform.python_version(),
            **{n: version(n) for n in names},
        },
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(
            line.partition(":")[2].strip() for line in lines if "model name" in line
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _chosen(plan: Plan, only: Sequence[str], full: bool) -> set[str]:
    for name in only:
        if name not in plan.measures:
            raise ValueError(
                f"unknown measure '{name}': {nearest(name, plan.measures)}"
            )
    return set(only) or set(plan.measures) - (set() if full else set(SLOW))


def _load(plan: Plan, chosen: set[str]) -> dict[str, int]:
    """Count the training samples of each chosen workload.

    All datasets are loaded here, so that a missing one is reported before anything is
    timed.
    """
    needed = {name for name in plan.workloads if _kinds(plan, name, chosen)}
    # Replicates are measured on a workload that may not be measured itself.
    needed |= {plan.replicated} if "replicates" in chosen else set()
    counts: dict[str, int] = {}
    runs = {name: plan.workloads[name].run for name in sorted(needed)}
    runs |= {"S1": plan.s1[0]} if "S1" in chosen else {}
    for run in runs.values():
        key = run.data.source_key
        if key not in counts:
            counts[key] = len(run.data.load().train)
    return {name: counts[run.data.source_key] for name, run in runs.items()}


def _prefixed(say: Say, name: str) -> Say:
    return lambda line: say(f"{name} {line}")


def _kinds(plan: Plan, name: str, chosen: set[str]) -> Kinds:
    """Return the kinds of jobs that take turns on a workload.

    The two kinds of one ratio are neighbours, so that little time lies between them.
    """
    work = plan.workloads[name]

    def job(what: Any, **more: Any) -> Job:
        return Job(what=what, runs=[work.run], env=dict(work.env), **more)

    kinds: Kinds = {}
    shared = "actors" in chosen and name in plan.shared_out
    packed = "packs" in chosen and name in plan.packed
    if name in chosen and work.half:
        coarse = work.run.replace({"model.precision": "bfloat16"})
        kinds["half"] = [Job(what="ours", runs=[coarse], env=dict(work.env))]
    if name in chosen:
        kinds["ours"] = [job("ours")]
    if name in chosen or shared or packed:
        kinds["plain"] = [job("plain")]
    if shared or packed:
        kinds["two plain"] = [job("plain", part=part, parts=2) for part in range(2)]
    if shared:
        kinds |= {f"actors {n}": [job("actors", actors=n)] for n in (1, 2)}
    if packed:
        kinds |= {
            f"pack {n}": [job("actors", actors=n, copies=PACK_RUNS)] for n in (1, 2)
        }
    return kinds


def seconds_per_round(run: Run, results: Sequence[Sequence[Result]]) -> list[float]:
    """Return the mean seconds of a steady round in each repeat.

    Of processes that ran at the same time, the slowest counts.
    """
    return [
        max(
            statistics.fmean(result.seconds[steady_rounds(run)])
            for result in side_by_side
        )
        for side_by_side in results
    ]


def _speedup(workload: Workload, results: Results, samples: int) -> dict[str, Any]:
    """Compare raysafl with the plain loop on one workload."""
    seconds = {
        kind: seconds_per_round(workload.run, results[kind])
        for kind in ("ours", "plain")
    }
    ours = median(seconds["ours"])
    plain = median(seconds["plain"])

    def middle(kind: str, read: Callable[[Result], float | None]) -> float:
        return median([read(result) or 0.0 for (result,) in results[kind]])

    half = {}
    if "half" in results:
        coarse = seconds_per_round(workload.run, results["half"])
        half["bfloat16"] = {
            "speedup_vs_plain": ratio(seconds["plain"], coarse),
            "seconds_per_round": median(coarse),
            "accuracy": middle("half", lambda result: result.accuracy),
        }
    return half | {
        "speedup_vs_plain": ratio(seconds["plain"], seconds["ours"]),
        "samples_per_s": samples_per_round(workload.run, samples) / ours,
        "peak_rss_mb": middle("ours", lambda result: result.peak_rss_mb),
        "plain_peak_rss_mb": middle("plain", lambda result: result.peak_rss_mb),
        "accuracy": middle("ours", lambda result: result.accuracy),
        "plain_accuracy": middle("plain", lambda result: result.accuracy),
        "seconds_per_round": ours,
        "plain_seconds_per_round": plain,
        "seconds_all_rounds": middle("ours", lambda result: sum(result.seconds)),
        "repeats": seconds,
    }


def _actors(run: Run, results: Results, kind: str) -> dict[str, Any]:
    """Compare what two client actors gain with what two plain processes gain.

    Args:
        run: the run; a pack has several that are as long.
        results: the results of the jobs `plain`, `two plain`, and those of the kind.
        kind: `actors` for one run on client actors, `pack` for a pack.
    """
    names = {
        "plain": "plain",
        "two plain": "two_plain",
        f"{kind} 1": "one",
        f"{kind} 2": "two",
    }
    repeats = {new: seconds_per_round(run, results[old]) for old, new in names.items()}
    gains, ceilings = (
        [a / b for a, b in zip(repeats[one], repeats[two], strict=True)]
        for one, two in (("one", "two"), ("plain", "two_plain"))
    )
    return {
        "two_actors_speedup": median(gains),
        "two_processes_ceiling": median(ceilings),
        "share_of_ceiling": ratio(gains, ceilings),
        "one_actor_seconds_per_round": median(repeats["one"]),
        "two_actors_seconds_per_round": median(repeats["two"]),
        "peak_rss_mb": median(
            [result.peak_rss_mb for (result,) in results[f"{kind} 2"]]
        ),
        "repeats": repeats,
    }


def _replicates(plan: Plan, repeats: int, say: Say) -> dict[str, Any]:
    """Compare several replicates of a run with one: on two client actors, and in process."""
    work = plan.workloads[plan.replicated]
    runs = {n: work.run.replace(replicates=n) for n in (1, REPLICATES)}
    settings: dict[str, dict[str, Any]] = {
        "two_actors": {"what": "actors", "actors": 2},
        "in_process": {"what": "ours"},
    }
    kinds = {
        f"{setting} {n}": [Job(runs=[run], env=dict(work.env), **how)]
        for setting, how in settings.items()
        for n, run in runs.items()
    }
    results = interleaved(kinds, repeats, say)

    found = {}
    for setting in settings:
        seconds = {
            n: seconds_per_round(runs[n], results[f"{setting} {n}"]) for n in runs
        }
        found[setting] = {
            "ratio": ratio(seconds[REPLICATES], seconds[1]),
            "seconds_per_round": {str(n): s for n, s in seconds.items()},
        }
    return {"replicates8_over_1": found["two_actors"]["ratio"], "replicates": found}


def _empty(plan: Plan, repeats: int, say: Say) -> dict[str, Any]:
    """Measure the milliseconds of a round with very little to compute.

    The result is the larger of the times on one and on two client actors.
    """
    kinds = {
        f"actors {n}": [Job(what="actors", runs=[plan.empty], actors=n)] for n in (1, 2)
    }
    results = interleaved(kinds, repeats, say)
    ms = {k: 1000 * median(seconds_per_round(plan.empty, results[k])) for k in kinds}
    return {"empty_round_ms": max(ms.values()), "empty": ms}


def _empty_pack(plan: Plan, repeats: int, say: Say) -> dict[str, Any]:
    """Measure the milliseconds of a round of a pack with very little to compute."""
    job = Job(what="actors", runs=[plan.empty], copies=EMPTY_PACK_RUNS)
    results = interleaved({"empty pack": [job]}, repeats, say)["empty pack"]
    seconds = seconds_per_round(plan.empty, results)
    each = [1000 * one for one in seconds]
    return {"pack_round_ms": median(each), "empty_pack": {"ms": each}}


def _start(plan: Plan, repeats: int, say: Say) -> dict[str, Any]:
    """Measure the seconds of `raysafl run` for one trivial run."""
    job = Job(what="start", runs=[plan.trivial])
    results = interleaved({"start": [job]}, repeats, say)["start"]
    seconds = [sum(result.seconds) for (result,) in results]
    return {"start_s": median(seconds), "start": {"seconds": seconds}}


def _s1(plan: Plan, repeats: int, say: Say) -> dict[str, Any]:
    """Compare a sweep, two trials at a time, with two processes that share its runs."""
    # Each of the two processes gets every other run, so that both take about as long.
    halves = [Job(what="bare", runs=list(plan.s1[part::2])) for part in range(2)]
    whole = [Job(what="sweep", runs=list(plan.s1), trials=2)]
    results = interleaved({"sweep": whole, "bare": halves}, repeats, say)
    seconds = {
        k: [max(sum(r.seconds) for r in done) for done in results[k]] for k in results
    }
    accuracy = {
        k: statistics.fmean(result.accuracy or 0.0 for result in results[k][0])
        for k in results
    }
    swept = [result.more for (result,) in results["sweep"]]
    # No actor is seen in a round of a sweep that takes no time.
    busy = [more["busy"] for more in swept if more["busy"] is not None]
    found = {
        "seconds": seconds,
        "accuracy": accuracy,
        "busy": busy,
        "rounds_seconds": [more["rounds_seconds"] for more in swept],
    }
    return {
        "s1_over_ideal": ratio(seconds["sweep"], seconds["bare"]),
        "s1_busy": median(busy) if busy else None,
        "s1": found,
    }


def _trials(plan: Plan, repeats: int, say: Say) -> dict[str, Any]:
    """Measure what a sweep of many trivial runs costs beyond a sweep of one."""
    kinds = {
        str(runs): [Job(what="sweep", runs=[plan.trivial], copies=runs, trials=2)]
        for runs in (1, plan.many)
    }
    results = interleaved(kinds, repeats, say)
    one, many = ([done for (done,) in results[str(n)]] for n in (1, plan.many))
    further = [
        (sum(all_of.seconds) - sum(first.seconds)) / (plan.many - 1)
        for first, all_of in zip(one, many, strict=True)
    ]
    seen = [done.more["driver_rss_mb"] for done in many]
    growth = [memory["trials"] - memory["quarter"] for memory in seen]
    reports = [done.more["report_seconds"] for done in many]
    return {
        "further_run_s": median(further),
        "sweep_files": max(done.more["files"] for done in many),
        "driver_growth_mb": median(growth),
        "report_s": median(reports),
        "trials": {
            "runs": plan.many,
            "seconds_of_one": [sum(done.seconds) for done in one],
            "seconds": [sum(done.seconds) for done in many],
            "further": further,
            "driver_rss_mb": {
                moment: median([memory[moment] for memory in seen])
                for moment in seen[0]
            },
            "report_seconds": reports,
        },
    }
