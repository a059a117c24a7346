"""What a sweep would do: its runs, packs, time, memory and disk, before anything is written.

The time is measured: of each group of runs that may share a pack, some rounds of the one
with the median work are run, and the others are taken to need as long for as much work.
"""

import statistics
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from typing import NamedTuple

import psutil
import torch

from raysafl.cluster.gpus import smallest_memory
from raysafl.cluster.hardware import Hardware, usable_cores
from raysafl.core.problem import Dataset
from raysafl.core.text import count, duration, format_bytes
from raysafl.simulation.run import Run
from raysafl.sweep.execution import Room
from raysafl.sweep.executor_choice import choose
from raysafl.sweep.executor_name import ExecutorName
from raysafl.sweep.growth import Growth
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
# How long rounds of a run are measured, how long at most if all of them were evaluated or
# none, and of how many groups.
SECONDS_OF_TRIAL = 1.0
MOST_SECONDS = 5.0
MOST_TRIALS = 8


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
        executor, packs, at_once = _packs(options, runs, datasets)
        side_by_side = min(at_once, len(packs))
        share = 1 - over / sum(run.rounds * run.replicates for run in runs.values())
        seconds = share * _measured_seconds(runs, datasets, options.engine)
        seconds /= side_by_side
        sizes = sorted({len(pack.runs) for pack in packs})
        several = count(sizes[-1], "run")
        if len(sizes) > 1:
            several = f"{sizes[0]} to {several}"
        most = max(pack.memory for pack in packs)
        on_gpus = "; the time on GPUs is not measured" if options.hardware.gpus else ""
        lines += [
            f"Runs {executor}",
            f"{count(len(packs), 'pack')} of {several}, {side_by_side} at a time",
            f"about {duration(seconds)} on CPUs{on_gpus}",
            f"about {format_bytes(most)} for the largest pack",
            f"about {format_bytes(disk)} of results",
        ]
    lines += [
        keeping_note(runs.values(), datasets),
        "No run was started, and nothing was written.",
    ]
    return Forecast("\n".join(filter(None, lines)), seconds, disk)


def _packs(
    options: Options, runs: Mapping[str, Run], datasets: Mapping[str, Dataset]
) -> tuple[str, list[Pack], int]:
    """Return who would carry out the runs, and why; their packs; and how many at a time."""
    name, why = choose(options, lambda: seconds_of(runs.values(), datasets))
    hardware = options.hardware
    where = "in this process"
    room = Room(1, psutil.virtual_memory().available)
    if name is ExecutorName.RAY:
        where = "on Ray"
        room = _room_of_cluster(options) if options.address else _room_here(hardware)
    packs = form_packs(
        runs.values(),
        datasets,
        hardware.replace(pack=1) if options.is_one_by_one else hardware,
        room.packs,
        room.memory,
        options.engine,
    )
    return f"{where}: {why}", packs, room.packs


def _room_of_cluster(options: Options) -> Room:
    """Ask a running cluster what it has room for.

    Raises:
        ValueError: no cluster answers, or a trial does not fit it.
    """
    # Imported here, because Ray may not be installed, and takes a second to import.
    from raysafl.sweep.on_ray.tuning import OnRay

    executor = OnRay(options.hardware, options.address, options.note)
    with executor.started():
        return executor.room()


def _room_here(hardware: Hardware) -> Room:
    """Return what a Ray that is started on this machine has room for.

    A trial may be meant for another machine's GPUs: then it is as if one trial fitted.
    """
    gpus = max(torch.cuda.device_count(), hardware.gpus * hardware.actors)
    memory = float(psutil.virtual_memory().available)
    node = {"CPU": float(usable_cores()), "memory": memory, "GPU": float(gpus)}
    of_trial = hardware.memory_of_trial([node])
    if hardware.gpus and torch.cuda.is_available():
        of_trial = min(of_trial, smallest_memory() * hardware.gpus)
    return Room(hardware.trials_at_once([node]), of_trial)


def _measured_seconds(
    runs: Mapping[str, Run], datasets: Mapping[str, Dataset], engine: str
) -> float:
    """Estimate how long runs take on one core, from some rounds of a few of them."""
    groups = needs_of(runs.values(), datasets, engine)
    tried = sorted(groups, key=lambda group: sum(need.work for need, _ in group))
    rates = {}
    for group in tried[-MOST_TRIALS:]:
        need, run = sorted(group, key=lambda pair: pair[0].work)[len(group) // 2]
        # The user's own code may fail. The run will say so in its trial.
        with suppress(Exception):
            seconds = _seconds_of_run(need, run, datasets, engine)
            rates[id(group)] = need.work / seconds
    usual = statistics.median(rates.values()) if rates else WORK_PER_SECOND
    return sum(
        sum(need.work for need, _ in group) / rates.get(id(group), usual)
        for group in groups
    )


def _seconds_of_run(
    need: Cost, run: Run, datasets: Mapping[str, Dataset], engine: str
) -> float:
    """Run rounds for about a second, and return how long all rounds would take one core.

    It takes longer until both an evaluated round and another one have been measured.
    """
    a_round = need.work / run.rounds / WORK_PER_SECOND
    tried = run.replace(replicates=1) if a_round > SECONDS_OF_TRIAL else run
    # Evaluating a round may take longer than training in it, so both kinds are measured.
    # `eval_clients` goes by the run's own `eval_every`, which must not change then.
    if run.eval_clients is None:
        tried = tried.replace(eval_every=min(2, run.eval_every))
    evaluated: list[float] = []
    others: list[float] = []
    with torch_threads(1):
        simulation = simulation_of(tried, datasets[run.data.source_key], engine)
        # The first one compiles what is compiled.
        simulation.step()
        while not simulation.done and not _is_enough(
            evaluated, others, tried.eval_every
        ):
            # Other programs may run at the same time.
            began = time.process_time()
            records = simulation.step()
            seconds = time.process_time() - began
            (evaluated if records else others).append(seconds)
    # The last round is always evaluated.
    share = -(-run.rounds // run.eval_every) / run.rounds
    if evaluated and others:
        a_round = share * _usual(evaluated) + (1 - share) * _usual(others)
    else:
        a_round = _usual(evaluated or others)
    return a_round * run.rounds * run.replicates / tried.replicates


def _is_enough(
    evaluated: Sequence[float], others: Sequence[float], eval_every: int
) -> bool:
    """Return whether enough seconds were measured, of both kinds of rounds if possible."""
    seconds = _without_slowest([*evaluated, *others])
    are_both_known = evaluated and (others or eval_every == 1)
    return seconds >= (SECONDS_OF_TRIAL if are_both_known else MOST_SECONDS)


def _usual(seconds: Sequence[float]) -> float:
    """Return the mean without the slowest, in which another kind of training compiles."""
    if len(seconds) < 2:
        return sum(seconds)
    return _without_slowest(seconds) / (len(seconds) - 1)


def _without_slowest(seconds: Sequence[float]) -> float:
    return sum(seconds) - max(seconds, default=0.0)


def _bytes_of(run: Run) -> float:
    """Return about how many bytes the results of a run take."""
    sampling = run.participation.sampling(run.data.clients)
    cohort = run.data.clients if sampling is None else sampling.cohort
    rows = run.rounds / run.eval_every * BYTES_OF_ROW
    if run.eval_clients is not None:
        rows += run.rounds / run.eval_clients.every * run.data.clients * BYTES_OF_ROW
    came = run.rounds * cohort * BYTES_OF_CLIENT
    return run.replicates * (rows + came) + BYTES_OF_RUN
