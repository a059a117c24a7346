"""What a sweep would do: its runs, packs, time, memory and disk, before anything is written.

The time is measured: of each kind of run, some rounds of the one with the median work are
timed, and the others are taken to need as long for as much work.
"""

import statistics
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from typing import NamedTuple

import psutil

from raysafl.cluster.gpus import are_logical, num_gpus, smallest_memory, used_note
from raysafl.cluster.hardware import Hardware, usable_cores
from raysafl.core.problem import Dataset
from raysafl.core.text import about, count, format_bytes
from raysafl.simulation.run import Run
from raysafl.simulation.simulation import Simulation
from raysafl.sweep.execution import Room
from raysafl.sweep.executor_choice import choose, ray_runs
from raysafl.sweep.executor_name import ExecutorName
from raysafl.sweep.growth import Growth
from raysafl.sweep.here import Here
from raysafl.sweep.hosting import simulation_of, torch_threads
from raysafl.sweep.keeping import keeping_note
from raysafl.sweep.options import Options
from raysafl.sweep.packs import (
    WORK_PER_SECOND,
    Cost,
    Pack,
    form_packs,
    needs_of,
    seconds_of,
)

# What is stored, as measured in results/measured: a row without who came, a client that
# came, and a run's line in the ledger. A row of a client's table is like a row of a round.
BYTES_OF_ROW = 20
BYTES_OF_CLIENT = 1
BYTES_OF_RUN = 2000
# How long rounds of a kind of run are timed, and how long if all of them were evaluated or
# none. When so many seconds are over in all, no other kind is tried.
SECONDS_OF_KIND = 1.0
MOST_SECONDS = 4.0
SECONDS_OF_ALL = 8.0


class Forecast(NamedTuple):
    """What a sweep would do.

    Args:
        text: all of it, as lines of text.
        seconds: about how long it would take.
        disk: the bytes of rows and ledger, without models and states.
    """

    text: str
    seconds: float
    disk: float

    def __str__(self) -> str:
        return self.text


def foretell(
    options: Options,
    runs: Mapping[str, Run],
    begun: Set[str],
    datasets: Mapping[str, Dataset],
    finished: int,
    growth: Growth,
) -> Forecast:
    """Say what would be done.

    Args:
        options: what is asked for.
        runs: the runs to do, by id.
        begun: the ids of the runs that would go on from a checkpoint.
        datasets: their loaded datasets, by the `source_key` of the data that load them.
        finished: how many runs of the sweep have ended.
        growth: what would be reused.
    """
    before = f", {finished} finished before" if finished else ""
    goes_on = runs.keys() & begun
    resumed = f", {count(len(goes_on), 'run')} from a checkpoint" if goes_on else ""
    over = growth.rounds
    over += sum(options.store.about(i).get("rounds_over", 0) for i in goes_on)
    lines = [f"{count(len(runs), 'run')} to do{before}{resumed}", str(growth)]
    seconds = 0.0
    disk = sum(_bytes_of(run) for run in runs.values())
    if runs:
        text, packs, at_once, device = _plan(options, runs, datasets)
        side_by_side = min(at_once, len(packs))
        share = 1 - over / sum(run.rounds * run.replicates for run in runs.values())
        is_here = device == "cpu" or num_gpus() > 0
        measured, timed = _measured(
            runs, datasets, options.engine, device if is_here else "cpu"
        )
        seconds = share * measured / side_by_side
        sizes = sorted({len(pack.runs) for pack in packs})
        several = count(sizes[-1], "run")
        if len(sizes) > 1:
            several = f"{sizes[0]} to {several}"
        most = max(pack.memory for pack in packs)
        on_cpus = "" if is_here else " on CPUs; the time on GPUs is not measured"
        lines += [
            text,
            f"{count(len(packs), 'pack')} of {several}, {side_by_side} at a time",
            *timed,
            f"{about(seconds)} for all rounds{on_cpus}",
            f"about {format_bytes(most)} for the largest pack",
            f"about {format_bytes(disk)} of results",
        ]
    lines += [
        keeping_note(runs.values(), datasets),
        "No run was started, and nothing was written.",
    ]
    return Forecast("\n".join(filter(None, lines)), seconds, disk)


class _Plan(NamedTuple):
    """Who would carry out the runs, and how.

    Args:
        text: who, and why, and on which GPUs, as lines of text.
        packs: their packs.
        at_once: how many packs at a time.
        device: the torch device of this process on which rounds are as fast as there, if
            it has such a device.
    """

    text: str
    packs: list[Pack]
    at_once: int
    device: str


def _plan(
    options: Options, runs: Mapping[str, Run], datasets: Mapping[str, Dataset]
) -> _Plan:
    """Form the packs of the runs, for whoever would carry them out."""
    name, why = choose(options, lambda: seconds_of(runs.values(), datasets))
    lines = ["Runs in this process" if name is ExecutorName.HERE else "Runs on Ray"]
    lines[0] += f": {why}"
    gpus = num_gpus()
    hardware = options.hardware.where_there_are(gpus)
    if name is ExecutorName.HERE:
        room = Here(hardware).room()
    elif options.address or ray_runs():
        # Imported here, because Ray may not be installed, and takes a second to import.
        from raysafl.sweep.on_ray.tuning import OnRay

        executor = OnRay(options.hardware, options.address, lines.append)
        with executor.started():
            room = executor.room()
        hardware = executor.hardware
    else:
        room = _room_here(hardware, gpus)
    if len(lines) == 1 and (note := used_note(hardware, room.packs, gpus)):
        lines.append(note)
    packs = form_packs(
        runs.values(),
        datasets,
        hardware.replace(pack=1) if options.is_one_by_one else hardware,
        room.packs,
        room.memory,
        options.engine,
    )
    device = "cuda" if hardware.gpu_share and not are_logical() else "cpu"
    return _Plan("\n".join(lines), packs, room.packs, device)


def _room_here(hardware: Hardware, gpus: int) -> Room:
    """Return what a Ray that is started on this machine has room for.

    Raises:
        ValueError: a trial does not fit.
    """
    memory = float(psutil.virtual_memory().available)
    node = {"CPU": float(usable_cores()), "memory": memory, "GPU": float(gpus)}
    hardware.check([node])
    of_trial = hardware.memory_of_trial([node])
    if hardware.gpu_share:
        of_trial = min(of_trial, smallest_memory() * hardware.gpu_share)
    return Room(hardware.trials_at_once([node]), of_trial)


def _measured(
    runs: Mapping[str, Run], datasets: Mapping[str, Dataset], engine: str, device: str
) -> tuple[float, list[str]]:
    """Estimate how long runs take one after the other, from rounds of each kind of run.

    Runs are of one kind if they may share a pack. Those with the most work come first, and when
    `SECONDS_OF_ALL` are over, no other kind is tried: it is taken to be as fast as the
    others for as much work.

    Returns:
        The seconds, and what was timed, a line for each kind.
    """
    groups = needs_of(runs.values(), datasets, engine)
    groups.sort(key=lambda group: -sum(need.work for need, _ in group))
    rates: list[float] = []
    lines = []
    seconds = rest = 0.0
    began = time.perf_counter()
    for group in groups:
        work = sum(need.work for need, _ in group)
        need, run = sorted(group, key=lambda pair: pair[0].work)[len(group) // 2]
        # The user's own code may fail. The run will say so in its trial.
        with suppress(Exception):
            if time.perf_counter() - began < SECONDS_OF_ALL:
                a_round = _seconds_of_round(need, run, datasets, engine, device)
                own = a_round * run.rounds * run.replicates
                rates.append(need.work / own)
                seconds += own * work / need.work
                samples = len(datasets[run.data.source_key].train)
                lines.append(
                    f"a round of {type(run.model).__name__} on {samples:,} samples in batches "
                    f"of {run.local.batch_size}: {a_round:.2g} s a seed"
                )
                continue
        rest += work
    usual = statistics.median(rates) if rates else WORK_PER_SECOND
    return seconds + rest / usual, lines


def _seconds_of_round(
    need: Cost, run: Run, datasets: Mapping[str, Dataset], engine: str, device: str
) -> float:
    """Return how long a round of one replicate of a run takes in the mean.

    Rounds are timed for about `SECONDS_OF_KIND`, and until both an evaluated round and
    another one are known, but if that takes long, two rounds are enough.
    """
    a_round = need.work / run.rounds / WORK_PER_SECOND
    tried = run.replace(replicates=1) if a_round > SECONDS_OF_KIND else run
    # Evaluating a round may take longer than training in it, so both kinds are measured.
    # `eval_clients` goes by the run's own `eval_every`, which must not change then.
    if run.eval_clients is None:
        tried = tried.replace(eval_every=min(2, run.eval_every))
    evaluated: list[float] = []
    others: list[float] = []
    with torch_threads(1):
        simulation = simulation_of(tried, datasets[run.data.source_key], engine, device)
        # The first round compiles what is compiled, and evaluates the model before it.
        first = _timed(simulation)[0]
        began = time.perf_counter()
        while not simulation.done:
            seconds, is_evaluated = _timed(simulation)
            (evaluated if is_evaluated else others).append(seconds)
            spent = time.perf_counter() - began
            if evaluated and (others or tried.eval_every == 1):
                if spent >= SECONDS_OF_KIND:
                    break
            elif spent >= MOST_SECONDS and len(evaluated + others) > 1:
                break
    # The last round is always evaluated.
    share = -(-run.rounds // run.eval_every) / run.rounds
    if evaluated and others:
        a_round = share * _usual(evaluated) + (1 - share) * _usual(others)
    else:
        a_round = _usual(evaluated or others or [first])
    return a_round / tried.replicates


def _timed(simulation: Simulation) -> tuple[float, bool]:
    """Carry out a round; return how long it took, and whether it was evaluated."""
    began = time.perf_counter()
    records = simulation.step()
    return time.perf_counter() - began, bool(records)


def _usual(seconds: Sequence[float]) -> float:
    """Return the mean without the slowest, in which another kind of training compiles."""
    if len(seconds) < 2:
        return sum(seconds)
    return (sum(seconds) - max(seconds)) / (len(seconds) - 1)


def _bytes_of(run: Run) -> float:
    """Return about how many bytes the results of a run take."""
    sampling = run.participation.sampling(run.data.clients)
    cohort = run.data.clients if sampling is None else sampling.cohort
    rows = run.rounds / run.eval_every * BYTES_OF_ROW
    if run.eval_clients is not None:
        rows += run.rounds / run.eval_clients.every * run.data.clients * BYTES_OF_ROW
    came = run.rounds * cohort * BYTES_OF_CLIENT
    return run.replicates * (rows + came) + BYTES_OF_RUN
