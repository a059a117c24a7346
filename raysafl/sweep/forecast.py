"""What a sweep would do: its runs, its packs and a timed round, before anything is written.

Of each kind of run, some rounds of the one with the median work are timed, and the others
are taken to need as long for as much work.
"""

import time
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from typing import NamedTuple

import psutil

from raysafl.cluster.gpus import are_logical, num_gpus, smallest_memory, used_note
from raysafl.cluster.hardware import Hardware, usable_cores
from raysafl.core.problem import Dataset
from raysafl.core.text import about, count
from raysafl.simulation.run import Run
from raysafl.sweep.choices import ExecutorName
from raysafl.sweep.execution import Room
from raysafl.sweep.executor_choice import choose, ray_runs
from raysafl.sweep.here import Here
from raysafl.sweep.hosting import simulation_of
from raysafl.sweep.more_rounds import MoreRounds
from raysafl.sweep.options import Options
from raysafl.sweep.packs import WORK_PER_SECOND, Pack, form_packs, needs_of, seconds_of

# Rounds of a kind of run are timed for so long, and longer if few of them are evaluated.
SECONDS_OF_KIND = 1.0
MOST_SECONDS = 4.0
# When so many seconds are over in all, no other kind is tried.
SECONDS_OF_ALL = 8.0


class Forecast(NamedTuple):
    """What a sweep would do.

    Args:
        text: all of it, as lines of text.
        seconds: about how long it would take.
    """

    text: str
    seconds: float

    def __str__(self) -> str:
        return self.text


def foretell(
    options: Options,
    todo: Mapping[str, Sequence[Run]],
    datasets: Mapping[str, Dataset],
    finished: int,
    seeds_there: str,
    more_rounds: MoreRounds,
    forgotten: Set[str],
) -> Forecast:
    """Say what would be done.

    Args:
        options: what is asked for.
        todo: the cells to do of each run, as runs of one seed each, by the run's id.
        datasets: their loaded datasets, by the `source_key` of the data that load them.
        finished: how many runs of the sweep have ended.
        seeds_there: how many seeds of the runs to do have ended, in words.
        more_rounds: which cells would go on from shorter ones.
        forgotten: the cells whose results and checkpoints would be deleted.
    """
    before = f", {finished} finished before" if finished else ""
    cells = {cell.id: cell for own in todo.values() for cell in own}
    far = options.store.going_on(cells.keys() - forgotten).cells
    resumed = f", {count(len(far), 'seed')} from a checkpoint" if far else ""
    todo_text = f"{count(len(todo), 'run')} to do{before}{resumed}"
    lines = [todo_text, seeds_there, str(more_rounds)]
    seconds = 0.0
    if todo:
        text, packs, at_once, device = _plan(options, todo, datasets)
        side_by_side = min(at_once, len(packs))
        sizes = sorted({len(pack.runs) for pack in packs})
        several = count(sizes[-1], "seed")
        if len(sizes) > 1:
            several = f"{sizes[0]} to {several}"
        lines += [
            text,
            f"{count(len(packs), 'pack')} of {several}, {side_by_side} at a time",
        ]
        is_here = device == "cpu" or num_gpus() > 0
        measured, timed = _timed(
            cells, datasets, options.engine, device if is_here else "cpu"
        )
        over = sum(own.round for own in far.values()) + more_rounds.rounds
        share = 1 - over / sum(cell.rounds for cell in cells.values())
        seconds = share * measured / side_by_side
        on_cpus = "" if is_here else " on CPUs; the time on GPUs is not measured"
        lines += [*timed, f"{about(seconds)} for all rounds{on_cpus}"]
    lines.append("No run was started, and nothing was written.")
    return Forecast("\n".join(filter(None, lines)), seconds)


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
    options: Options,
    todo: Mapping[str, Sequence[Run]],
    datasets: Mapping[str, Dataset],
) -> _Plan:
    """Form the packs of the runs, for whoever would carry them out."""
    cells = [cell for own in todo.values() for cell in own]
    name, why = choose(options, lambda: seconds_of(cells, datasets))
    lines = ["Runs in this process" if name is ExecutorName.HERE else "Runs on Ray"]
    lines[0] += f": {why}"
    gpus = num_gpus()
    hardware = options.hardware.where_there_are(gpus)
    if name is ExecutorName.HERE:
        room = Here(hardware).room()
    elif options.address or ray_runs():
        # Imported here, because Ray may not be installed, and takes a second to import.
        from raysafl.sweep.on_ray.tuning import OnRay

        executor = OnRay(
            options.hardware, options.address, lines.append, options.wait_nodes
        )
        with executor.started():
            room = executor.room()
        hardware = executor.hardware
    else:
        room = _room_here(hardware, gpus)
    if len(lines) == 1 and (note := used_note(hardware, room.packs, gpus)):
        lines.append(note)
    packs = form_packs(
        todo.values(),
        datasets,
        hardware.replace(pack=1) if options.is_one_by_one else hardware,
        room.packs,
        room.memory,
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


def _timed(
    runs: Mapping[str, Run], datasets: Mapping[str, Dataset], engine: str, device: str
) -> tuple[float, list[str]]:
    """Estimate how long runs take one after the other, from rounds of each kind of run.

    Runs are of one kind if they may share a pack. When `SECONDS_OF_ALL` are over, the rest
    is taken to be as fast as the kinds that were timed.

    Returns:
        The seconds, and what was timed, a line for each kind.
    """
    groups = needs_of(runs.values(), datasets)
    works = [sum(need.work for need in group) for group in groups]
    lines = []
    seconds = work_timed = 0.0
    began = time.perf_counter()
    for group, work in sorted(zip(groups, works, strict=True), key=lambda g: -g[1]):
        median = sorted(group, key=lambda need: need.work)[len(group) // 2]
        run = median.run
        dataset = datasets[run.data.source_key]
        if time.perf_counter() - began > SECONDS_OF_ALL:
            break
        # The user's own code may fail. The run will say so in its trial.
        with suppress(Exception):
            a_round = _seconds_of_round(run, dataset, engine, device)
            seconds += a_round * run.rounds * run.replicates * work / median.work
            work_timed += work
            lines.append(
                f"a round of {type(run.model).__name__} on {len(dataset.train):,} samples in "
                f"batches of {run.local.batch_size}: {a_round:.2g} s a seed"
            )
    rate = work_timed / seconds if seconds else WORK_PER_SECOND
    return sum(works) / rate, lines


def _seconds_of_round(run: Run, dataset: Dataset, engine: str, device: str) -> float:
    """Return how long a round of one replicate of a run takes in the mean."""
    simulation = simulation_of(run.replace(replicates=1), dataset, engine, device)
    # The first round compiles what is compiled, and evaluates the model before it.
    simulation.step()
    rounds = 0
    spent = 0.0
    began = time.perf_counter()
    while not simulation.done and spent < MOST_SECONDS:
        simulation.step()
        rounds += 1
        spent = time.perf_counter() - began
        # Of so many rounds, one is evaluated.
        if rounds % run.eval_every == 0 and spent > SECONDS_OF_KIND:
            break
    return spent / max(1, rounds)
