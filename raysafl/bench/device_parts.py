"""The parts of `raysafl bench --device`: each yields pieces of the result as they are known.

A piece is a part of one nested dictionary (`merge` puts it there). A part may end early,
by an error or because its time is over: the pieces that it has yielded stay.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from raysafl.bench.budget import Budget
from raysafl.bench.device_jobs import Piece
from raysafl.bench.device_plan import DevicePlan
from raysafl.bench.floors import floors_ms
from raysafl.bench.job import Job
from raysafl.bench.measure import Result, in_turns, median, pieces, ratio, together
from raysafl.bench.mps import mps
from raysafl.bench.suite import seconds_per_round
from raysafl.bench.workloads import Workload
from raysafl.participation import Uniform
from raysafl.simulation.run import Run

# The trial from which on memory should not grow.
SETTLED = 5
# Seconds that a process needs to start, to load its data and to set up the device.
STARTING = 15.0


@dataclass(frozen=True)
class Setting:
    """What all parts know.

    Attributes:
        device: "cuda", or "cpu" when the command is only tried.
        plan: what is measured.
        repeats: the maximum number of turns of a comparison.
        found: everything that was found before.
    """

    device: str
    plan: DevicePlan
    repeats: int
    found: Mapping[str, Any]


Measure = Callable[[Setting, Budget], Iterator[Piece]]


class Part(NamedTuple):
    """A part of the measurement with its time.

    Attributes:
        measure: measures it.
        least: it is skipped if fewer seconds are left.
        most: it is ended after so many seconds.
    """

    measure: Measure
    least: float
    most: float


def merge(found: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Put a piece into what was found: dictionaries are merged, all else is replaced."""
    for name, value in piece.items():
        if isinstance(value, Mapping) and isinstance(found.get(name), dict):
            merge(found[name], value)
        else:
            found[name] = dict(value) if isinstance(value, Mapping) else value


def described(setting: Setting, budget: Budget) -> Iterator[Piece]:
    """Describe the device and measure its rates."""
    job = Job(
        what="device",
        runs=[setting.plan.models[0]],
        device=setting.device,
        small=setting.plan.small,
    )
    yield from pieces(job, budget.left())


def agreement(setting: Setting, budget: Budget) -> Iterator[Piece]:
    """Compare all engines with the CPU's loop; see `raysafl.bench.device_jobs`.

    At the top stands the largest difference of each precision.
    """
    models = setting.plan.models
    some = setting.plan.models_a_process
    found: dict[str, Any] = {}
    for first in range(0, len(models), some):
        runs = list(models[first : first + some])
        job = Job(what="agreement", runs=runs, device=setting.device)
        for piece in pieces(job, budget.left()):
            merge(found, piece)
            yield {"agreement": piece, **_largest_differences(found)}


def _largest_differences(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the largest difference of each precision over models and engines."""
    largest: dict[str, float] = {}
    for by_precision in found.values():
        for precision, engines in by_precision.items():
            for end in engines.values():
                if "difference" in end:
                    name = f"difference_{precision}"
                    largest[name] = max(largest.get(name, 0.0), end["difference"])
    return largest


def determinism(setting: Setting, budget: Budget) -> Iterator[Piece]:
    """Train in two fresh processes, and compare the bits of the parameters.

    Compared are also the bits of a run alone and in a pack. At the top stands whether
    all are equal.
    """
    job = Job(what="bits", runs=list(setting.plan.models), device=setting.device)
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    both = zip(pieces(job, budget.left()), pieces(job, budget.left()), strict=True)
    for one, other in both:
        merge(first, one)
        merge(second, other)
        found = {
            model: {
                engine: _same_bits(first[model][engine], digests)
                for engine, digests in engines.items()
            }
            for model, engines in second.items()
        }
        every = [same for engines in found.values() for same in engines.values()]
        yield {
            "determinism": found,
            **{
                f"same_bits_{how}": all(same.get(how, True) for same in every)
                for how in ("twice", "in_a_pack")
            },
        }


def _same_bits(first: Mapping[str, Any], second: Mapping[str, Any]) -> Piece:
    """Compare the digests of one engine in two processes; return why there are none."""
    digest = first["alone"].get("digest")
    if digest is None:
        return dict(first["alone"])
    same: Piece = {"twice": second["alone"].get("digest") == digest}
    if "in_a_pack" in first:
        same["in_a_pack"] = first["in_a_pack"].get("digest") == digest
    return same


def workload(name: str) -> Measure:
    """Return the comparison of a workload with the plain loop on the same device."""

    def measure(setting: Setting, budget: Budget) -> Iterator[Piece]:
        work = setting.plan.workloads[name]
        turns: list[dict[str, Result]] = []
        jobs = _jobs_of_workload(setting, name)
        for turn in in_turns(jobs, setting.repeats, budget.left()):
            turns.append(turn)
            yield {name: _against_plain(work.run, turns)}

    return measure


def _jobs_of_workload(setting: Setting, name: str) -> dict[str, Job]:
    """Return the jobs that take turns on a workload.

    They are ours and the plain loop; ours in lower precisions if the workload asks for
    that; and ours on one core of the CPU.
    """
    work: Workload = setting.plan.workloads[name]

    def job(what: Any, run: Run, device: str) -> Job:
        return Job(
            what=what,
            runs=[run],
            device=device,
            turns=setting.repeats,
            env=dict(work.env),
        )

    jobs = {
        "ours": job("ours", work.run, setting.device),
        "plain": job("plain", work.run, setting.device),
    }
    for precision in ("tf32", "bfloat16") if work.half else ():
        coarse = work.run.replace({"model.precision": precision})
        jobs[precision] = job("ours", coarse, setting.device)
    if name in setting.plan.beside_cpu:
        jobs["cpu"] = job("ours", work.run, "cpu")
    return jobs


def _against_plain(run: Run, turns: Sequence[dict[str, Result]]) -> dict[str, Any]:
    """Compare everything that took turns with the plain loop."""
    seconds = {
        name: seconds_per_round(run, [[turn[name]] for turn in turns])
        for name in turns[0]
    }
    last = turns[-1]
    found: dict[str, Any] = {
        "speedup_vs_plain": ratio(seconds["plain"], seconds["ours"]),
        "engine": last["ours"].more["engine"],
        "seconds_per_round": median(seconds["ours"]),
        "plain_seconds_per_round": median(seconds["plain"]),
        "accuracy": last["ours"].accuracy,
        "plain_accuracy": last["plain"].accuracy,
        "peak_rss_mb": last["ours"].peak_rss_mb,
        "plain_peak_rss_mb": last["plain"].peak_rss_mb,
        "device_mb": last["ours"].more["device_mb"],
        "plain_device_mb": last["plain"].more["device_mb"],
        "repeats": seconds,
    }
    for name in seconds.keys() - {"ours", "plain"}:
        found[name] = {
            "speedup_vs_plain": ratio(seconds["plain"], seconds[name]),
            "speedup_of_ours": ratio(seconds[name], seconds["ours"]),
            "engine": last[name].more["engine"],
            "seconds_per_round": median(seconds[name]),
            "accuracy": last[name].accuracy,
        }
    return found


def s1(setting: Setting, budget: Budget) -> Iterator[Piece]:
    """Compare the runs of S1, as one pack, with the plain loop once for each replicate.

    The plain loop has no SAFARI and no absent clients, so it is timed on one replicate of
    FedAvg with uniform cohorts on the same split, and its time multiplied.
    """
    runs = list(setting.plan.s1)
    replicates = sum(run.replicates for run in runs)
    m: int = runs[0].participation.m  # type: ignore[attr-defined]
    one = runs[0].replace(participation=Uniform(m=m), replicates=1)
    jobs = {
        "pack": Job(
            what="ours", runs=runs, device=setting.device, turns=setting.repeats
        ),
        "plain": Job(
            what="plain", runs=[one], device=setting.device, turns=setting.repeats
        ),
    }
    turns: list[dict[str, Result]] = []
    for turn in in_turns(jobs, setting.repeats, budget.left()):
        turns.append(turn)
        seconds = {
            name: seconds_per_round(one, [[turn[name]] for turn in turns])
            for name in jobs
        }
        plain = [replicates * each for each in seconds["plain"]]
        yield {
            "s1_over_plain": ratio(plain, seconds["pack"]),
            "s1": {
                "replicates": replicates,
                "engine": turn["pack"].more["engine"],
                "pack_seconds_per_round": median(seconds["pack"]),
                "plain_seconds_per_round_of_one": median(seconds["plain"]),
                "device_mb": turn["pack"].more["device_mb"],
                "repeats": seconds,
            },
        }


def packs(name: str) -> Measure:
    """Return the measurement of packs of a workload, of several sizes, beside the floors."""

    def measure(setting: Setting, budget: Budget) -> Iterator[Piece]:
        # The last size may take longer than predicted.
        job = Job(
            what="packs",
            runs=[setting.plan.packed[name]],
            sizes=list(setting.plan.sizes),
            device=setting.device,
            seconds=max(1.0, 0.8 * budget.left() - STARTING),
        )
        found: dict[str, Any] = {}
        for piece in pieces(job, budget.left()):
            merge(found, piece)
            sizes = found.get("packs", {})
            for size in piece.get("packs", {}):
                merge(sizes[size], _beside_floors(setting, sizes[size], found["step"]))
            rates = [
                one["run_rounds_per_s"] for one in sizes.values() if "steps" in one
            ]
            best = {f"pack_{name}_run_rounds_per_s": max(rates)} if rates else {}
            yield {
                **best,
                "step_cost": {name: found["step"]},
                "packs": {name: dict(sizes)},
            }

    return measure


def _beside_floors(
    setting: Setting, pack: Mapping[str, Any], step: dict[str, float]
) -> dict[str, Any]:
    """Return the floors of a pack's round, the largest of them, and its share."""
    if "steps" not in pack:
        return {}
    floors = floors_ms(setting.found.get("rates", {}), dict(pack), step)
    if not floors:
        return {}
    bound = max(floors, key=floors.__getitem__)
    return {
        "floors_ms": floors,
        "bound_by": bound,
        "share_of_floor": floors[bound] / pack["round_ms"],
    }


def memory(setting: Setting, budget: Budget) -> Iterator[Piece]:
    """Measure the memory after each of 30 workers; at the top, how much it has grown."""
    job = Job(what="memory", runs=[setting.plan.made_anew], device=setting.device)
    for piece in pieces(job, budget.left()):
        reserved = piece["reserved_mb"]
        growth = {}
        if len(reserved) > SETTLED:
            allocated = piece["allocated_mb"]
            growth = {
                "allocated_growth_mb": allocated[-1] - allocated[SETTLED - 1],
                "reserved_growth_mb": reserved[-1] - reserved[SETTLED - 1],
            }
        yield {**growth, "memory": piece}


def processes(setting: Setting, budget: Budget) -> Iterator[Piece]:
    """Run packs in several processes on the device at once, without MPS and with it."""
    yield from _in_processes(setting, budget, "without_mps", {})
    if setting.device != "cuda":
        yield {"processes": {"with_mps": {"skipped": "no MPS on a CPU"}}}
        return
    try:
        with mps() as environment:
            yield from _in_processes(setting, budget, "with_mps", environment)
    except ValueError as error:
        yield {"processes": {"with_mps": {"skipped": str(error)}}}


def _in_processes(
    setting: Setting, budget: Budget, how: str, environment: dict[str, str]
) -> Iterator[Piece]:
    """Measure one, two and more processes, and what they gain over one."""
    plan = setting.plan
    rates: dict[int, float] = {}
    for count in plan.processes:
        lacking = budget.lacks(STARTING)
        if lacking and setting.device == "cuda":
            yield {"processes": {how: {str(count): {"skipped": lacking}}}}
            continue
        job = Job(
            what="ours",
            runs=[plan.shared],
            copies=plan.shared_size,
            device=setting.device,
            env=environment,
            parts=count,
        )
        results = together([job] * count, budget.left())
        (slowest,) = seconds_per_round(plan.shared, [results])
        rates[count] = count * plan.shared_size / slowest
        gain = rates[count] / rates[min(rates)]
        top = {f"processes{count}_over_1_{how}": gain} if count > 1 else {}
        yield {
            **top,
            "processes": {
                how: {
                    str(count): {
                        "run_rounds_per_s": rates[count],
                        "round_ms": 1e3 * slowest,
                        "mean_round_ms": 1e3
                        * statistics.fmean(
                            seconds_per_round(plan.shared, [[one]])[0]
                            for one in results
                        ),
                        "device_mb": results[0].more["device_mb"],
                    }
                }
            },
        }


def parts_of(plan: DevicePlan) -> dict[str, Part]:
    """Return all parts of a plan by name, the most informative ones first."""
    workloads = {
        name: Part(workload(name), least=25, most=70) for name in plan.workloads
    }
    of_packs = {
        f"packs-{name}": Part(packs(name), least=30, most=70) for name in plan.packed
    }
    return {
        "agreement": Part(agreement, least=30, most=90),
        "determinism": Part(determinism, least=30, most=80),
        **workloads,
        **of_packs,
        "memory": Part(memory, least=25, most=60),
        "S1": Part(s1, least=25, most=45),
        "processes": Part(processes, least=30, most=80),
    }
