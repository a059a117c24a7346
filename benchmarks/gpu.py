"""`python -m benchmarks gpu`: the measurements of a GPU, in parts and groups of parts.

Each part yields pieces of the result as they are known. It may end early, by an error or
because its time is over: the pieces that it has yielded stay.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from benchmarks.floors import floors_ms
from benchmarks.found import Piece, merge, origin
from benchmarks.gpu_jobs import SETTLED, in_short
from benchmarks.gpu_plan import GpuPlan
from benchmarks.job import Job, What
from benchmarks.mps import mps
from benchmarks.processes import (
    against_plain,
    chosen,
    kept_in_turns,
    median,
    pieces,
    progress,
    ratio,
    seconds_by_name,
    seconds_per_round,
    side_by_side,
    together,
)
from benchmarks.shared_data import shared
from raysafl.participation import Uniform
from raysafl.simulation.run import Run

# Nine minutes, less what the command itself takes to start and to end.
SECONDS = 520.0
# Seconds that a process needs to start, to map its data and to set up the device.
STARTING = 10.0


class Budget:
    """Seconds that begin to run when the object is made, by a clock that gives seconds."""

    def __init__(
        self, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = seconds
        self._clock = clock
        self._ends = clock() + seconds

    def left(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self._ends - self._clock())

    def share(self, seconds: float) -> "Budget":
        """Return a budget of so many seconds, or of what is left if that is less."""
        return Budget(min(seconds, self.left()), self._clock)

    def lacks(self, seconds: float) -> str:
        """Say in words that fewer seconds are left than are needed; empty if not."""
        left = self.left()
        if left >= seconds:
            return ""
        return (
            f"needs {seconds:.0f} s, of the {self.seconds:.0f} s of the whole command "
            f"{left:.0f} s were left"
        )


@dataclass(frozen=True)
class Setting:
    """What all parts know.

    Attributes:
        device: "cuda", or "cpu" when the command is only tried.
        plan: what is measured.
        repeats: the maximum number of turns of a comparison.
        found: everything that was found before.
        name: the device's own name.
    """

    device: str
    plan: GpuPlan
    repeats: int
    found: Mapping[str, Any]
    name: str = "cpu"


Measure = Callable[[Setting, Budget], Iterator[Piece]]


class Part(NamedTuple):
    """A part of the measurement with its time.

    Attributes:
        measure: measures it.
        least: it is skipped if fewer seconds are left.
        most: it is ended after so many seconds; its share of a shorter time follows
            this number.
        group: the name by which it is asked for together with others.
    """

    measure: Measure
    least: float
    most: float
    group: str = ""


def measures(
    setting: Setting, only: Sequence[str] = (), seconds: float = SECONDS
) -> Iterator[Piece]:
    """Measure a device part by part, and yield each piece as it is known.

    Every part has a share of the time that is left. A part for which too little is left
    is skipped, a part that fails or takes too long keeps what it has found; `parts` says
    which and why, when and with which versions. All processes that compute are fresh
    ones of one thread, which share the datasets; what is compared takes turns.

    Args:
        setting: what all parts know; its `found` must take the pieces.
        only: the names of parts or of groups; empty: all.
        seconds: how long all of it may take.

    Raises:
        ValueError: a part is unknown, or `repeats` is below 1.
    """
    budget = Budget(seconds)
    parts = parts_of(setting.plan)
    groups = dict.fromkeys(part.group for part in parts.values())
    names = set(chosen(only, [*parts, *groups], setting.repeats))
    # The floors need the device's rates.
    taken = [("device", Part(described, least=20, most=45))]
    taken += [(n, part) for n, part in parts.items() if names & {n, part.group}]
    rest = sum(part.most for _, part in taken)
    with shared():
        for name, part in taken:
            share = max(part.least, budget.left() * part.most / rest)
            rest -= part.most
            own = part._replace(most=min(part.most, share))
            yield from carried_out(name, own, setting, budget)


def carried_out(
    name: str, part: Part, setting: Setting, budget: Budget
) -> Iterator[Piece]:
    """Measure a part in its share of the time; yield its pieces between two reports.

    Whatever happens, there is a report: `state` is done, skipped, late or failed,
    `reason` says why it is not done, `seconds` are what it took, and `origin` says where
    and when. It is stopped until the part ends. A part that is skipped keeps what was
    reported of it before.
    """
    began = time.monotonic()
    where = origin(repeats=setting.repeats, device=setting.name)

    def report(state: str, reason: str) -> Piece:
        seconds = time.monotonic() - began
        told = {"state": state, "reason": reason, "seconds": seconds}
        return {"parts": {name: {**told, "origin": where}}}

    state = "done"
    reason = budget.lacks(part.least)
    if reason:
        state = "skipped"
    else:
        yield report("stopped", "the command ended before it")
        try:
            yield from part.measure(setting, budget.share(part.most))
        except TimeoutError as error:
            state = "late"
            reason = str(error)
        except Exception as error:
            # Whatever breaks in a part, the others must still be measured.
            state = "failed"
            reason = in_short(error)
    seconds = time.monotonic() - began
    progress(f"{name}: {state} in {seconds:.0f} s {reason}".rstrip())
    if state != "skipped" or name not in setting.found.get("parts", {}):
        yield report(state, reason)


def described(setting: Setting, budget: Budget) -> Iterator[Piece]:
    """Describe the device and measure its rates."""
    run = setting.plan.models[0]
    small = setting.plan.small
    job = Job(what="device", runs=[run], device=setting.device, small=small)
    yield from pieces(job, budget.left())


def differences(setting: Setting, budget: Budget) -> Iterator[Piece]:
    """Compare all engines with the CPU's loop; see `benchmarks.gpu_jobs`.

    At the top stands the largest difference of each precision.
    """
    found: dict[str, Any] = {}
    for _, piece in side_by_side(_jobs_of_models("agreement", setting), budget.left()):
        merge(found, piece)
        yield {"agreement": piece, **_largest_differences(found)}


def _jobs_of_models(what: What, setting: Setting) -> list[Job]:
    """Return the jobs that take all models, some in each."""
    models = setting.plan.models
    some = setting.plan.models_a_process
    return [
        Job(what=what, runs=list(models[first : first + some]), device=setting.device)
        for first in range(0, len(models), some)
    ]


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
    jobs = [job for job in _jobs_of_models("bits", setting) for _ in range(2)]
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    for number, piece in side_by_side(jobs, budget.left()):
        merge(second if number % 2 else first, piece)
        found = {
            model: {
                engine: _same_bits(engines[engine], second[model][engine])
                for engine in engines.keys() & second[model].keys()
            }
            for model, engines in first.items()
            if model in second
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
    same = {"twice": second["alone"].get("digest") == digest}
    if "in_a_pack" in first:
        same["in_a_pack"] = first["in_a_pack"].get("digest") == digest
    return same


def engines(setting: Setting, budget: Budget) -> Iterator[Piece]:
    """Time the rounds of W2, ten clients each, by one engine after the other."""
    job = Job(
        what="engines",
        runs=[setting.plan.by_engine],
        device=setting.device,
        seconds=_seconds_to_measure(budget),
    )
    for piece in pieces(job, budget.left()):
        yield {"engines": {"W2": piece}}


def _seconds_to_measure(budget: Budget) -> float:
    """Return the seconds of a process that are left after its start, with a reserve."""
    return max(1.0, 0.8 * budget.left() - STARTING)


def workload(name: str, setting: Setting, budget: Budget) -> Iterator[Piece]:
    """Compare a workload with the plain loop on the same device."""
    run = setting.plan.workloads[name].run
    jobs = _jobs_of_workload(setting, name)
    for results in kept_in_turns(jobs, setting.repeats, budget.left()):
        yield {name: against_plain(run, results)}


def _jobs_of_workload(setting: Setting, name: str) -> dict[str, Job]:
    """Return the jobs that take turns on a workload.

    They are ours and the plain loop; ours in lower precisions if the workload asks for
    that; and ours on one core of the CPU.
    """
    work = setting.plan.workloads[name]
    more = {"turns": setting.repeats, "env": dict(work.env)}

    def job(what: What, run: Run, device: str) -> Job:
        return Job(what=what, runs=[run], device=device, **more)

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


def s1(setting: Setting, budget: Budget) -> Iterator[Piece]:
    """Compare the runs of S1, as one pack, with the plain loop once for each replicate.

    The plain loop has no SAFARI and no absent clients, so it is timed on one replicate of
    FedAvg with uniform cohorts on the same split, and its time multiplied.
    """
    runs = list(setting.plan.s1)
    replicates = sum(run.replicates for run in runs)
    m: int = runs[0].participation.m  # type: ignore[attr-defined]
    one = runs[0].replace(participation=Uniform(m=m), replicates=1)
    more = {"device": setting.device, "turns": setting.repeats}
    jobs = {
        "pack": Job(what="ours", runs=runs, **more),
        "plain": Job(what="plain", runs=[one], **more),
    }
    for results in kept_in_turns(jobs, setting.repeats, budget.left()):
        seconds = seconds_by_name(one, results)
        pack = results["pack"][-1].more
        plain = [replicates * each for each in seconds["plain"]]
        yield {
            "s1_over_plain": ratio(plain, seconds["pack"]),
            "s1": {
                "replicates": replicates,
                "engine": pack["engine"],
                "pack_seconds_per_round": median(seconds["pack"]),
                "plain_seconds_per_round_of_one": median(seconds["plain"]),
                "device_mb": pack["device_mb"],
                "repeats": seconds,
            },
        }


def packs(name: str, setting: Setting, budget: Budget) -> Iterator[Piece]:
    """Measure packs of a workload, of several sizes, beside the floors."""
    job = Job(
        what="packs",
        runs=[setting.plan.packed[name]],
        sizes=list(setting.plan.sizes),
        device=setting.device,
        seconds=_seconds_to_measure(budget),
    )
    yield from with_floors(setting, name, pieces(job, budget.left()))


def with_floors(setting: Setting, name: str, taken: Iterable[Piece]) -> Iterator[Piece]:
    """Set what the job `packs` yields beside its floors; at the top stands the highest rate."""
    found: dict[str, Any] = {}
    for piece in taken:
        merge(found, piece)
        sizes = found.get("packs", {})
        for size in piece.get("packs", {}):
            merge(sizes[size], _beside_floors(setting, sizes[size], found["step"]))
        timed = [one for one in sizes.values() if "steps" in one]
        rates = [one["run_rounds_per_s"] for one in timed]
        best = {f"pack_{name}_run_rounds_per_s": max(rates)} if rates else {}
        yield {**best, "step_cost": {name: found["step"]}, "packs": {name: sizes}}


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
    job = Job(
        what="memory",
        runs=[setting.plan.made_anew],
        device=setting.device,
        seconds=_seconds_to_measure(budget),
    )
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


def processes(name: str, setting: Setting, budget: Budget) -> Iterator[Piece]:
    """Run packs of a workload in several processes at once, without MPS and with it."""
    for how, piece in _with_and_without_mps(name, setting, budget):
        yield {"processes": {name: {how: piece}}}


def _with_and_without_mps(
    name: str, setting: Setting, budget: Budget
) -> Iterator[tuple[str, Piece]]:
    """Yield "without_mps" or "with_mps", and what was found so, piece by piece."""
    for piece in _in_processes(setting, budget, name, {}):
        yield "without_mps", piece
    if setting.device != "cuda":
        yield "with_mps", {"skipped": "no MPS on a CPU"}
        return
    try:
        with mps() as environment:
            for piece in _in_processes(setting, budget, name, environment):
                yield "with_mps", piece
    except ValueError as error:
        yield "with_mps", {"skipped": str(error)}


def _in_processes(
    setting: Setting, budget: Budget, name: str, environment: dict[str, str]
) -> Iterator[Piece]:
    """Measure one, two and more processes, and what they gain over one."""
    run, size = setting.plan.shared[name]
    rates: dict[int, float] = {}
    for count in setting.plan.processes:
        lacking = budget.lacks(STARTING)
        if lacking and setting.device == "cuda":
            yield {str(count): {"skipped": lacking}}
            continue
        job = Job(
            what="ours",
            runs=[run],
            copies=size,
            device=setting.device,
            env=environment,
            parts=count,
        )
        results = together([job] * count, budget.left())
        each = seconds_per_round(run, [[one] for one in results])
        slowest = max(each)
        rates[count] = count * size / slowest
        found = {
            "run_rounds_per_s": rates[count],
            "round_ms": 1e3 * slowest,
            "mean_round_ms": 1e3 * statistics.fmean(each),
            "device_mb": results[0].more["device_mb"],
        }
        if count > 1:
            found["over_1"] = rates[count] / rates[min(rates)]
        yield {str(count): found}


def ways_of_convolving(setting: Setting, budget: Budget) -> Iterator[Piece]:
    """Time a local step of stacked convolutions in several ways, beside its FLOP's floor."""
    job = Job(
        what="convolutions",
        runs=[setting.plan.convolved],
        sizes=list(setting.plan.tasks),
        device=setting.device,
    )
    rates = setting.found.get("rates", {})
    flop = 0.0
    for piece in pieces(job, budget.left()):
        flop = piece.get("step", {}).get("flop", flop)
        for tasks, by_precision in piece.get("ways", {}).items():
            for precision, by_way in by_precision.items():
                rate = rates.get(f"{precision}_flop_per_s")
                for one in by_way.values():
                    if rate and "step_ms" in one:
                        floor_ms = 1e3 * int(tasks) * flop / rate
                        one["share_of_floor"] = floor_ms / one["step_ms"]
        yield {"convolutions": piece}


def parts_of(plan: GpuPlan) -> dict[str, Part]:
    """Return all parts of a plan by name, those that matter most first."""
    return {
        "differences": Part(differences, 30, 100, "agreement"),
        **{
            # On a CPU the first round compiles loops.
            name: Part(
                partial(workload, name),
                20,
                90 if name in plan.beside_cpu else 60,
                "single",
            )
            for name in plan.workloads
        },
        **{
            f"packs-{name}": Part(partial(packs, name), 30, 80, "packs")
            for name in plan.packed
        },
        "S1": Part(s1, 25, 45, "sweep"),
        "engines": Part(engines, 20, 45, "agreement"),
        "determinism": Part(determinism, 30, 100, "agreement"),
        "memory": Part(memory, 20, 50, "agreement"),
        "convolutions": Part(ways_of_convolving, 20, 60, "convolutions"),
        **{
            f"processes-{name}": Part(partial(processes, name), 30, 80, "sweep")
            for name in plan.shared
        },
    }
