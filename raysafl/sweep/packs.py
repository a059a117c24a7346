"""Packs: the cells of a sweep that advance together in one trial of Ray Tune.

A sweep is many small runs of one shape. A trial costs some tenths of a second, and each
of its rounds some milliseconds, whatever it computes. So one trial carries out a pack
of cells in lock-step (`raysafl.simulation.simulation.Lockstep`), and shares these costs among
them. A cell is given as a run of one seed.

Which cells share a pack is a matter of hardware: it changes no result. Those of a pack
need the same dataset, model, objective and batch size; everything else may differ. The
driver forms the packs from the cells that have not ended, those of a run together. It puts
runs of similar cost together, so that they end together, and bounds a pack by the memory
of its vectors: some for each replicate and each client of its cohort, and those of clients
that an algorithm remembers. Where that is too much all the same, the pack is tried in halves.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from torch import Tensor, nn

from raysafl.cluster.hardware import Hardware
from raysafl.core.problem import Dataset
from raysafl.core.randomness import Key
from raysafl.models import FlatModel
from raysafl.simulation.run import Run
from raysafl.sweep.prepare import first_inputs

# The name under which the configuration of a trial holds its pack (on Ray, what `Given` says
# of it). Axes of a user's search space are dotted paths or words, so none has this name.
PACK_KEY = "raysafl-pack"
# The largest number of runs in a pack that is formed automatically.
MOST_RUNS = 256
# As many packs are formed for each trial that runs at the same time, so that trials
# that are done sooner take over packs of others.
PACKS_PER_TRIAL = 4
# Work is measured in samples times multiplications of a sample's pass through the model.
# One core does about so much of it in a second.
WORK_PER_SECOND = 5e9
# What a round of a replicate costs whatever it computes, some 0.2 ms, as such work.
WORK_OF_ROUND = 1e6
# Less work than this, ten seconds on one core, is not worth several packs for each trial.
SMALL_WORK = 10 * WORK_PER_SECOND
# About so many samples are tested in the time that training on one sample takes.
TESTED_PER_TRAINED = 3
BYTES_PER_PARAMETER = 4
# The share of the memory of a trial, or of this process, that a pack's vectors may take.
MEMORY_OF_PACK = 0.25
# Vectors of a replicate in any case: its parameters in two processes and before the round, a
# mean update, and the sum of float64 from which it is made.
VECTORS_PER_REPLICATE = 6
# Vectors of a client of the cohort, as if its own update is asked for and no mean: its offset,
# and the update as it was sent, beside those of the others, and as the algorithm changes it.
VECTORS_PER_UPDATE = 4
# Vectors of a client that an algorithm remembers: the matrix of all of them grows by half of its
# rows, and both matrices are there while it is copied.
VECTORS_PER_CLIENT = 2.5


@dataclass(frozen=True)
class Pack:
    """Cells that one trial carries out in lock-step.

    Args:
        runs: the cells, as runs of one seed each, with one dataset, model, objective and
            batch size.
        work: what they are estimated to need, in any unit that all packs share.
    """

    runs: tuple[Run, ...]
    work: float = 1.0

    @cached_property
    def id(self) -> str:
        """Twelve hexadecimal digits, which are a hash of the cells' ids."""
        text = " ".join(run.id for run in self.runs)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def of(self, runs: Sequence[Run]) -> "Pack":
        """Return a pack of some of the cells, with their share of the work."""
        return Pack(tuple(runs), self.work * len(runs) / len(self.runs))

    def halves(self, ended: Iterable[str] = ()) -> list["Pack"]:
        """Return the two halves of the cells that have not ended, if there are several.

        Args:
            ended: the ids of the cells that have ended.
        """
        done = set(ended)
        left = [run for run in self.runs if run.id not in done]
        middle = len(left) // 2
        return [self.of(half) for half in (left[:middle], left[middle:]) if half]


class Need(NamedTuple):
    """What a run is estimated to need.

    Args:
        run: the run.
        work: the samples that it trains or tests on, times the multiplications of a
            sample's pass through the model.
        memory: the bytes of the vectors that it holds at the same time.
    """

    run: Run
    work: float
    memory: float


def form_packs(
    todo: Iterable[Sequence[Run]],
    datasets: Mapping[str, Dataset],
    hardware: Hardware,
    trials_at_once: int,
    memory: float,
) -> list[Pack]:
    """Form packs of cells, those with the most work first.

    Args:
        todo: for each run its cells to do, as runs of one seed each.
        datasets: the loaded datasets, by the `source_key` of the data that load them.
        hardware: says how many runs a pack may have, or leaves it to this function.
        trials_at_once: how many trials run at the same time.
        memory: the bytes of memory that each of these, or this process, has.
    """
    # As one run, they are estimated together.
    cells_of = {cells[0].id: cells for cells in todo}
    runs = (
        cells[0].model_copy(update={"replicates": len(cells)})
        for cells in cells_of.values()
    )
    groups = needs_of(runs, datasets)
    total = sum(need.work for group in groups for need in group)
    share = total / trials_at_once
    most = MOST_RUNS
    if hardware.pack != "auto":
        share = math.inf
        most = hardware.pack
    elif total > SMALL_WORK * trials_at_once:
        share /= PACKS_PER_TRIAL
    packs = []
    for group in groups:
        chosen: list[Sequence[Run]] = []
        work = used = 0.0
        # A stable sort keeps equal runs in the order of the sweep.
        for need in sorted(group, key=lambda need: -need.work):
            # A little more than a share is accepted, since sums of floats are not exact.
            is_enough = len(chosen) == most or work + need.work > 1.01 * share
            if chosen and (is_enough or used + need.memory > MEMORY_OF_PACK * memory):
                packs.append(Pack(tuple(chain(*chosen)), work))
                chosen = []
                work = used = 0.0
            chosen.append(cells_of[need.run.id])
            work += need.work
            used += need.memory
        packs.append(Pack(tuple(chain(*chosen)), work))
    return packs


def needs_of(runs: Iterable[Run], datasets: Mapping[str, Dataset]) -> list[list[Need]]:
    """Group runs that may share a pack, and estimate what each needs.

    Args:
        runs: the runs.
        datasets: the loaded datasets, by the `source_key` of the data that load them.
    """
    groups: dict[tuple[str, str, str, int], list[Run]] = {}
    for run in runs:
        parts = (run.model.to_json(), run.objective.to_json())
        key = (run.data.source_key, *parts, run.local.batch_size)
        groups.setdefault(key, []).append(run)
    needs: list[list[Need]] = []
    for (source, *_), members in groups.items():
        dataset = datasets[source]
        model = FlatModel.on(members[0].model, dataset, members[0].objective)
        size = model.num_parameters, multiplications(model, dataset)
        needs.append([estimate(run, dataset, *size) for run in members])
    return needs


def seconds_of(runs: Iterable[Run], datasets: Mapping[str, Dataset]) -> float:
    """Estimate how long runs take on one core, in seconds; see `needs_of`."""
    needs = needs_of(runs, datasets)
    return sum(need.work for group in needs for need in group) / WORK_PER_SECOND


def multiplications(model: FlatModel, dataset: Dataset) -> int:
    """Count the multiplications of one sample's pass through a model.

    A layer multiplies by each of its parameters once at every place where it is applied:
    a convolution at every pixel of its output, any other layer at every token.

    Args:
        model: the model.
        dataset: its first test sample is passed through the model.
    """
    count = 0

    def add(layer: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal count
        if isinstance(layer, nn.Embedding):
            return
        shape = (output if isinstance(output, Tensor) else output[0]).shape
        # Of an output [batch, channels, pixels...] or [batch, tokens..., features].
        places = shape[2:] if hasattr(layer, "kernel_size") else shape[1:-1]
        count += sizes[layer] * math.prod(places)

    sizes = {
        layer: sum(own.numel() for own in layer.parameters(recurse=False))
        for layer in model.module.modules()
    }
    hooks = [layer.register_forward_hook(add) for layer, size in sizes.items() if size]
    try:
        model.try_on(first_inputs(dataset.test, 1))
    finally:
        for hook in hooks:
            hook.remove()
    return count


def estimate(run: Run, dataset: Dataset, parameters: int, passes: int) -> Need:
    """Estimate what a run needs, from its first cohort.

    Args:
        run: the run.
        dataset: its training and test samples.
        parameters: the number of the model's trainable parameters.
        passes: how often one sample's pass through the model multiplies.
    """
    clients = run.data.clients
    cohort = _cohort_size(run, dataset)
    client_samples = max(1, len(dataset.train) // clients)
    batch = min(run.local.batch_size, client_samples)
    tested = len(dataset.test) / run.eval_every
    if (judged := run.eval_clients) is not None:
        # With label mixes, each client's model sees the test samples of its classes.
        of_all = clients if judged.on == "labels" and judged.personal_steps else 1
        tested += of_all * len(dataset.test) / judged.every
        tested += clients * judged.personal_steps * batch / judged.every
    trained = cohort * run.local.num_steps(client_samples) * batch
    samples = trained + tested / TESTED_PER_TRAINED
    work = run.rounds * run.replicates * (samples * passes + WORK_OF_ROUND)

    moments = run.local.num_moments
    of_client: float = moments
    if any(getattr(part, "remembers_clients", False) for part in run.components()):
        of_client += VECTORS_PER_CLIENT
    vectors = VECTORS_PER_REPLICATE + of_client * min(clients, run.rounds * cohort)
    vectors += (VECTORS_PER_UPDATE + 2 * moments) * cohort
    memory = run.replicates * vectors * parameters * BYTES_PER_PARAMETER
    return Need(run, work, float(memory))


def _cohort_size(run: Run, dataset: Dataset) -> int:
    """Return how many clients the policy picks in the first round, at least 1."""
    # A policy of the user's own may fail. The run will say so in its trial.
    with suppress(Exception):
        policy = run.policy_on(dataset)
        _, cohort = policy.pick(policy.init(), run.data.clients, Key(run.seed, 0), None)
        return max(1, len(cohort.ids))
    return 1
