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

from raysafl.bench.child import Job
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
# A shared machine changes its speed by a fifth from one minute to the next, so every
# comparison is repeated this often by default.
REPEATS = 5
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
    replicated: str = "W4"
    empty: Run = EMPTY
    s1: Sequence[Run] = S1
    trivial: Sequence[Run] = TRIVIAL

    @property
    def measures(self) -> list[str]:
        """Return the names that `--only` accepts, the slow ones last."""
        return [*self.workloads, "actors", "replicates", "empty", *SLOW]


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
    found: dict[str, Any] = dict.fromkeys(plan.workloads)
    found |= dict.fromkeys(
        (
            "two_actors_speedup",
            "two_processes_ceiling",
            "replicates8_over_1",
            "s1_over_ideal",
        )
    )
    found |= dict.fromkeys(("empty_round_ms", "trivial_trial_s"))

    for name, workload in plan.workloads.items():
        kinds = _kinds(plan, name, chosen)
        results = interleaved(kinds, repeats, _prefixed(say, name)) if kinds else {}
        if name in chosen:
            found[name] = _speedup(workload, results, samples[name])
        if "actors" in chosen and name in plan.shared_out:
            found.setdefault("actors", {})[name] = _actors(workload.run, results)
    if "actors" in found:
        found["actors"] = {name: found["actors"][name] for name in plan.shared_out}
        first = found["actors"][plan.shared_out[0]]
        found |= {
            key: first[key] for key in ("two_actors_speedup", "two_processes_ceiling")
        }

    rest = {"replicates": _replicates, "empty": _empty, "S1": _s1, "trials": _trials}
    for name, measure in rest.items():
        if name in chosen:
            found |= measure(plan, repeats, _prefixed(say, name))
    return found | {"repeats": repeats, **origin()}


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
    if name in chosen and work.half:
        coarse = work.run.replace({"model.precision": "bfloat16"})
        kinds["half"] = [Job(what="ours", runs=[coarse], env=dict(work.env))]
    if name in chosen:
        kinds["ours"] = [job("ours")]
    if name in chosen or shared:
        kinds["plain"] = [job("plain")]
    if shared:
        kinds["two plain"] = [job("plain", part=part, parts=2) for part in range(2)]
        kinds |= {f"actors {n}": [job("actors", actors=n)] for n in (1, 2)}
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


def _actors(run: Run, results: Results) -> dict[str, Any]:
    """Compare what two client actors gain with what two plain processes gain."""
    names = {
        "plain": "plain",
        "two plain": "two_plain",
        "actors 1": "one",
        "actors 2": "two",
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
            [result.peak_rss_mb for (result,) in results["actors 2"]]
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
    found = {"seconds": seconds, "accuracy": accuracy}
    return {"s1_over_ideal": ratio(seconds["sweep"], seconds["bare"]), "s1": found}


def _trials(plan: Plan, repeats: int, say: Say) -> dict[str, Any]:
    """Measure the seconds per trial of a sweep whose trials have very little to compute."""
    job = Job(what="sweep", runs=list(plan.trivial), trials=2)
    done = [
        result for (result,) in interleaved({"sweep": [job]}, repeats, say)["sweep"]
    ]
    each = [sum(result.seconds) / len(plan.trivial) for result in done]
    seen = [result.more["driver_rss_mb"] for result in done]
    memory = {moment: median([one[moment] for one in seen]) for moment in seen[0]}
    found = {"seconds_each": each, "driver_rss_mb": memory}
    return {"trivial_trial_s": median(each), "trials": found}
