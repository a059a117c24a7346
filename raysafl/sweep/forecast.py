"""What a sweep would do: its runs, its packs and a timed round, before anything is written.

Some rounds of one run are timed, and all others are taken to need as long for as much work.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

import psutil

from raysafl.cluster.gpus import are_logical, num_gpus, smallest_memory, used_note
from raysafl.cluster.hardware import Hardware, usable_cores
from raysafl.core.problem import Dataset
from raysafl.core.text import about, count
from raysafl.simulation.run import Run
from raysafl.simulation.simulation import Simulation
from raysafl.sweep.attempt import Attempt
from raysafl.sweep.choices import ExecutorName
from raysafl.sweep.here import Here
from raysafl.sweep.more_rounds import MoreRounds
from raysafl.sweep.new_runs import Room, choose, room_on
from raysafl.sweep.packs import WORK_PER_SECOND, form_packs, needs_of, seconds_of
from raysafl.sweep.runner import ray_runs
from raysafl.sweep.simulate import worker_of

# Rounds are timed for so long, and longer if few of them are evaluated.
SECONDS = 0.5
MOST_SECONDS = 3.0


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
    attempt: Attempt, datasets: Mapping[str, Dataset], more_rounds: MoreRounds
) -> Forecast:
    """Say what would be done.

    Args:
        attempt: the attempt, which has been planned.
        datasets: the loaded datasets, by the `source_key` of the data that load them.
        more_rounds: which cells would go on from shorter ones.
    """
    todo = attempt.todo
    finished = len(attempt.chosen) - len(attempt.unended)
    before = f", {finished} finished before" if finished else ""
    cells = {cell.id: cell for own in todo.values() for cell in own}
    forgotten = attempt.forgotten or set()
    far = attempt.store.going_on(cells.keys() - forgotten).cells
    resumed = f", {count(len(far), 'seed')} from a checkpoint" if far else ""
    todo_text = f"{count(len(todo), 'run')} to do{before}{resumed}"
    lines = [todo_text, attempt.seeds_there, str(more_rounds)]
    seconds = 0.0
    if todo:
        told, hardware, room = _executor(attempt, datasets)
        if attempt.options.is_one_by_one:
            hardware = hardware.replace(pack=1)
        packs = form_packs(todo.values(), datasets, hardware, room.packs, room.memory)
        side_by_side = min(room.packs, len(packs))
        sizes = {len(pack.runs) for pack in packs}
        several = count(max(sizes), "seed")
        least = f"{min(sizes)} to " if len(sizes) > 1 else ""
        lines += [
            *told,
            f"{count(len(packs), 'pack')} of {least}{several}, {side_by_side} at a time",
        ]
        on_gpu = bool(hardware.gpu_share) and not are_logical()
        device = "cuda" if on_gpu and num_gpus() else "cpu"
        measured, timed = _timed(cells, datasets, attempt.options.engine, device)
        over = sum(own.round for own in far.values()) + more_rounds.rounds
        share = 1 - over / sum(cell.rounds for cell in cells.values())
        seconds = share * measured / side_by_side
        unlike = on_gpu and device == "cpu"
        on_cpus = " on CPUs; the time on GPUs is not measured" if unlike else ""
        lines += [timed, f"{about(seconds)} for all rounds{on_cpus}"]
    lines.append("No run was started, and nothing was written.")
    return Forecast("\n".join(filter(None, lines)), seconds)


def _executor(
    attempt: Attempt, datasets: Mapping[str, Dataset]
) -> tuple[list[str], Hardware, Room]:
    """Return who would carry out the runs and why, in lines, on what, and its room."""
    options = attempt.options
    cells = [cell for own in attempt.todo.values() for cell in own]
    name, why = choose(options, lambda: seconds_of(cells, datasets))
    who = "in this process" if name is ExecutorName.HERE else "on Ray"
    lines = [f"Runs {who}: {why}"]
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
            return lines, executor.hardware, executor.room()
    else:
        memory = float(psutil.virtual_memory().available)
        node = {"CPU": float(usable_cores()), "memory": memory, "GPU": float(gpus)}
        hardware.check([node])
        of_gpu = smallest_memory() if hardware.gpu_share else None
        room = room_on([node], hardware, of_gpu)
    if note := used_note(hardware, room.packs, gpus):
        lines.append(note)
    return lines, hardware, room


def _timed(
    runs: Mapping[str, Run], datasets: Mapping[str, Dataset], engine: str, device: str
) -> tuple[float, str]:
    """Estimate how long runs take one after the other, from rounds of the one of median work.

    Returns:
        The seconds, and what was timed, if it could be.
    """
    needs = sorted(chain(*needs_of(runs.values(), datasets)), key=lambda own: own.work)
    work = sum(need.work for need in needs)
    median = needs[len(needs) // 2]
    run = median.run
    dataset = datasets[run.data.source_key]
    # The user's own code may fail. The run will say so in its trial.
    with suppress(Exception):
        a_round = _seconds_of_round(run, dataset, engine, device)
        return a_round * run.rounds * run.replicates * work / median.work, (
            f"a round of {type(run.model).__name__} on {len(dataset.train):,} samples in "
            f"batches of {run.local.batch_size}: {a_round:.2g} s a seed"
        )
    return work / WORK_PER_SECOND, ""


def _seconds_of_round(run: Run, dataset: Dataset, engine: str, device: str) -> float:
    """Return how long a round of one replicate of a run takes in the mean."""
    run = run.replace(replicates=1)
    worker = worker_of([run], dataset, engine, device)

    def timed() -> float:
        """Return it, from the rounds after the first, before which the model is evaluated."""
        simulation = Simulation(run, worker)
        simulation.step()
        rounds = 0
        spent = 0.0
        began = time.perf_counter()
        while not simulation.done and spent < MOST_SECONDS:
            simulation.step()
            rounds += 1
            spent = time.perf_counter() - began
            # Of so many rounds, one is evaluated.
            if rounds % run.eval_every == 0 and spent > SECONDS:
                break
        return spent / max(1, rounds)

    # Where something is compiled, as for the first round in which the server trains, this is
    # done the first time.
    return min(timed(), timed())
