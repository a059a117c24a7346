"""`python -m benchmarks cpu`: raysafl beside a plain PyTorch loop, and its own overheads."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.found import Piece
from benchmarks.job import Job, What
from benchmarks.processes import (
    Result,
    against_plain,
    chosen,
    interleaved,
    median,
    ratio,
    seconds_per_round,
)
from benchmarks.workloads import (
    EMPTY,
    S1,
    STANDARD,
    TINY,
    TRIVIAL,
    Workload,
    samples_per_round,
)
from raysafl.simulation.run import Run

# Measured only with --full or by name.
SLOW = ("S1", "trials")
REPLICATES = 8
# The runs of the packs on which client actors are measured, and of the pack whose rounds
# have little to compute.
PACK_RUNS = 8
EMPTY_PACK_RUNS = 64
Results = Mapping[str, list[list[Result]]]


@dataclass(frozen=True)
class Plan:
    """What is measured; the default is what README.md reports."""

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


ON_CPU = Plan(STANDARD)
# So small that the whole command takes about two minutes.
DRY = Plan(
    {"W1": Workload(TINY, target=3.0)},
    shared_out=("W1",),
    packed=("W1",),
    replicated="W1",
    empty=TINY,
    s1=(TINY, TINY.replace(seed=9)),
    trivial=TINY,
    many=6,
)


def measures(
    plan: Plan = ON_CPU, only: Sequence[str] = (), repeats: int = 5, full: bool = False
) -> Iterator[Piece]:
    """Measure raysafl and yield the numbers by name, each as soon as it is known.

    A time is the median over the repeats of the mean seconds per steady round (rounds 2
    to n). Every run has a fresh process of one thread. Runs that are compared take
    turns, and a ratio is the median of the turns' ratios.

    Args:
        plan: the workloads.
        only: the names of the measures to take; empty: all, without the slow ones.
        repeats: the number of turns.
        full: whether to take the slow measures as well.

    Raises:
        ValueError: `only` names an unknown measure, `repeats` is below 1, or a dataset
            is missing.
    """
    rest: dict[str, Callable[[Plan, int], Piece]] = {
        "packs": _empty_pack,
        "replicates": _replicates,
        "empty": _empty,
        "start": _start,
        "S1": _s1,
        "trials": _trials,
    }
    names = chosen(only, [*plan.workloads, "actors", *rest], repeats)
    if not only and not full:
        names = [name for name in names if name not in SLOW]
    # The order in which the table has the client actors.
    every = dict.fromkeys([*plan.shared_out, *plan.workloads])
    kinds = {name: _kinds(plan, name, names) for name in every}
    samples = _load(plan, [name for name in every if kinds[name]], names)
    for name in every:
        if kinds[name]:
            taken = interleaved(kinds[name], repeats)
            yield _of_workload(plan, name, taken, samples[name])
    for name, measure in rest.items():
        if name in names:
            yield measure(plan, repeats)


def _kinds(plan: Plan, name: str, names: Sequence[str]) -> dict[str, list[Job]]:
    """Return the kinds of jobs that take turns on a workload.

    The two kinds of one ratio are neighbours, so that little time lies between them.
    """
    work = plan.workloads[name]

    def job(what: What, run: Run = work.run, **more: Any) -> Job:
        return Job(what=what, runs=[run], env=dict(work.env), **more)

    kinds: dict[str, list[Job]] = {}
    shared = "actors" in names and name in plan.shared_out
    packed = "packs" in names and name in plan.packed
    if name in names and work.half:
        coarse = work.run.replace({"model.precision": "bfloat16"})
        kinds["bfloat16"] = [job("ours", coarse)]
    if name in names:
        kinds["ours"] = [job("ours")]
    if name in names or shared or packed:
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


def _load(plan: Plan, loaded: Sequence[str], names: Sequence[str]) -> dict[str, int]:
    """Count the training samples of each workload that is measured.

    All datasets are loaded here, so that a missing one is reported before anything is
    timed.
    """
    runs = {name: plan.workloads[name].run for name in loaded}
    if "replicates" in names:
        runs[plan.replicated] = plan.workloads[plan.replicated].run
    if "S1" in names:
        runs["S1"] = plan.s1[0]
    counts: dict[str, int] = {}
    for run in runs.values():
        key = run.data.source_key
        if key not in counts:
            counts[key] = len(run.data.load().train)
    return {name: counts[run.data.source_key] for name, run in runs.items()}


def _of_workload(plan: Plan, name: str, results: Results, samples: int) -> Piece:
    """Compare all that took turns on one workload."""
    workload = plan.workloads[name]
    found: dict[str, Any] = {}
    if "ours" in results:
        names = [kind for kind in ("ours", "plain", "bfloat16") if kind in results]
        alone = {kind: [result for (result,) in results[kind]] for kind in names}
        one = against_plain(workload.run, alone)
        rate = samples_per_round(workload.run, samples) / one["seconds_per_round"]
        whole = median([sum(result.seconds) for result in alone["ours"]])
        found[name] = {**one, "samples_per_s": rate, "seconds_all_rounds": whole}
    if "pack 1" in results:
        found["pack_actors"] = {name: _actors(workload.run, results, "pack")}
    if "actors 1" in results:
        pair = _actors(workload.run, results, "actors")
        found["actors"] = {name: pair}
        if name == plan.shared_out[0]:
            gains = ("two_actors_speedup", "two_processes_ceiling")
            found |= {key: pair[key] for key in gains}
    return found


def _actors(run: Run, results: Results, kind: str) -> dict[str, Any]:
    """Compare what two client actors gain with what two plain processes gain.

    Args:
        run: the run; a pack has several that are as long.
        results: the results of the jobs `plain`, `two plain`, and those of the kind.
        kind: `actors` for one run on client actors, `pack` for a pack.
    """
    plain, two_plain, one, two = (
        seconds_per_round(run, results[name])
        for name in ("plain", "two plain", f"{kind} 1", f"{kind} 2")
    )
    gains = [a / b for a, b in zip(one, two, strict=True)]
    ceilings = [a / b for a, b in zip(plain, two_plain, strict=True)]
    return {
        "two_actors_speedup": median(gains),
        "two_processes_ceiling": median(ceilings),
        "share_of_ceiling": ratio(gains, ceilings),
        "one_actor_seconds_per_round": median(one),
        "two_actors_seconds_per_round": median(two),
        "peak_rss_mb": median([done.peak_rss_mb for (done,) in results[f"{kind} 2"]]),
        "repeats": {"plain": plain, "two_plain": two_plain, "one": one, "two": two},
    }


def _replicates(plan: Plan, repeats: int) -> Piece:
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
    results = interleaved(kinds, repeats)

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


def _empty(plan: Plan, repeats: int) -> Piece:
    """Measure the milliseconds of a round with very little to compute.

    The result is the larger of the times on one and on two client actors.
    """
    kinds = {
        f"actors {n}": [Job(what="actors", runs=[plan.empty], actors=n)] for n in (1, 2)
    }
    results = interleaved(kinds, repeats)
    ms = {k: 1000 * median(seconds_per_round(plan.empty, results[k])) for k in kinds}
    return {"empty_round_ms": max(ms.values()), "empty": ms}


def _empty_pack(plan: Plan, repeats: int) -> Piece:
    """Measure the milliseconds of a round of a pack with very little to compute."""
    job = Job(what="actors", runs=[plan.empty], copies=EMPTY_PACK_RUNS)
    results = interleaved({"empty pack": [job]}, repeats)["empty pack"]
    seconds = seconds_per_round(plan.empty, results)
    each = [1000 * one for one in seconds]
    return {"pack_round_ms": median(each), "empty_pack": {"ms": each}}


def _start(plan: Plan, repeats: int) -> Piece:
    """Measure the seconds of `raysafl run` for one trivial run."""
    job = Job(what="start", runs=[plan.trivial])
    results = interleaved({"start": [job]}, repeats)["start"]
    seconds = [sum(result.seconds) for (result,) in results]
    return {"start_s": median(seconds), "start": {"seconds": seconds}}


def _s1(plan: Plan, repeats: int) -> Piece:
    """Compare a sweep, two trials at a time, with two processes that share its runs."""
    # Each of the two processes gets every other run, so that both take about as long.
    halves = [Job(what="bare", runs=list(plan.s1[part::2])) for part in range(2)]
    whole = [Job(what="sweep", runs=list(plan.s1), trials=2)]
    results = interleaved({"sweep": whole, "bare": halves}, repeats)
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
        "s1_over_ideal": ratio(seconds["sweep"], seconds["bare"]),
        "s1": {
            "seconds": seconds,
            "accuracy": accuracy,
            "busy": busy,
            "rounds_seconds": [more["rounds_seconds"] for more in swept],
        },
    }
    return found | ({"s1_busy": median(busy)} if busy else {})


def _trials(plan: Plan, repeats: int) -> Piece:
    """Measure what a sweep of many trivial runs costs beyond a sweep of one."""
    kinds = {
        str(runs): [Job(what="sweep", runs=[plan.trivial], copies=runs, trials=2)]
        for runs in (1, plan.many)
    }
    results = interleaved(kinds, repeats)
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
        "sweep_files": max(done.more["all_files"] for done in many),
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
