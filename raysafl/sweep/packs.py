"""Packs: the runs of a sweep that advance together in one trial of Ray Tune.

A sweep is many small runs of one shape. A trial costs some tenths of a second, and each
of its rounds some milliseconds, whatever it computes. So one trial carries out a pack
of runs in lock-step (`raysafl.simulation.simulation.Lockstep`), and shares these costs among them.

Which runs share a pack is a matter of hardware: it changes no result. Runs of a pack
need the same dataset, model, objective and batch size; everything else may differ. The
driver forms the packs from the runs that have not ended. It puts runs of similar cost
together, so that they end together, and bounds a pack by the memory that its runs need.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from raysafl.cluster.hardware import Hardware
from raysafl.core.algorithm import Algorithm, CountSamples, Setting, TrainMean
from raysafl.core.problem import Dataset
from raysafl.core.randomness import Key
from raysafl.core.text import format_bytes
from raysafl.core.users_parts import users_parts
from raysafl.models import FlatModel
from raysafl.simulation.run import Run
from raysafl.sweep.prepare import first_inputs, first_samples
from raysafl.training.engine_choice import choose_engine, make_engine
from raysafl.training.engines import LEAST
from raysafl.training.evaluation import EVAL_BATCH
from raysafl.training.inputs import batch_width
from raysafl.training.memory import BACKWARD, bytes_per_sample

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
# Vectors of a replicate that are in memory in any case: its parameters in two processes,
# the parameters before the round, and a mean update.
VECTORS_PER_REPLICATE = 4
# A mean update is first a sum of float64.
VECTORS_PER_SUM = 2
# Vectors of a client whose own update is asked for: that update, as it came and beside those of
# the others. An algorithm makes two more of it, for one replicate after the other.
VECTORS_PER_UPDATE = 2
VECTORS_MADE_OF_UPDATE = 2
# Vectors of a task that takes its steps: its start, its parameters, its gradient layer by layer,
# and as one vector.
VECTORS_PER_TASK = 4
# Vectors of a task of a stack that follows another: what the first one frees lies in pieces, and
# the heap grows by about so much before the second one finds room.
VECTORS_OF_LATER_STACK = 2
# The number of parameters with which an algorithm is asked what it keeps and asks for.
PROBE_PARAMETERS = 3


@dataclass(frozen=True)
class Pack:
    """Runs that one trial carries out in lock-step.

    Args:
        runs: the runs, with one dataset, model, objective and batch size.
        work: what they are estimated to need, in any unit that all packs share.
        memory: the bytes that their vectors are estimated to take.
        is_full: whether its memory is why the pack has no further run.
    """

    runs: tuple[Run, ...]
    work: float = 1.0
    memory: float = 0.0
    is_full: bool = False

    @cached_property
    def id(self) -> str:
        """Twelve hexadecimal digits, which are a hash of the runs' ids."""
        text = " ".join(run.id for run in self.runs)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        # Loggers of Tune's write it.
        return self.id

    def halves(self, ended: Iterable[str] = ()) -> list["Pack"]:
        """Return the two halves of the runs that have not ended, if there are several.

        Args:
            ended: the ids of the runs that have ended.
        """
        done = set(ended)
        left = tuple(run for run in self.runs if run.id not in done)
        middle = len(left) // 2
        return [
            Pack(half, self.work * len(half) / len(self.runs))
            for half in (left[:middle], left[middle:])
            if half
        ]


class Size(NamedTuple):
    """The size of a model.

    Args:
        parameters: the number P of its trainable parameters.
        multiplications: how often one sample's pass through it multiplies.
        sample_bytes: the bytes that autograd saves for a sample.
        max_stack: the largest number of tasks that its engine stacks, by the width of
            their batches.
    """

    parameters: int
    multiplications: int
    sample_bytes: int = 0
    max_stack: Callable[[int], int] = lambda width: 1


class Cost(NamedTuple):
    """What a run is estimated to need.

    Args:
        work: the samples that it trains or tests on, times the multiplications of a
            sample's pass through the model.
        memory: the bytes of the vectors that it holds at the same time.
        step: the bytes that are taken for one stack of tasks, or for one replicate, after
            the other, by all runs of a pack.
    """

    work: float
    memory: float
    step: float


def form_packs(
    runs: Iterable[Run],
    datasets: Mapping[str, Dataset],
    hardware: Hardware,
    trials_at_once: int,
    memory: float,
    engine: str = "auto",
) -> list[Pack]:
    """Form packs of runs, those with the most work first.

    Args:
        runs: the runs to do.
        datasets: the loaded datasets, by the `source_key` of the data that load them.
        hardware: says how many runs a pack may have, or leaves it to this function.
        trials_at_once: how many trials run at the same time.
        memory: the bytes of memory that each of these, or this process, has.
        engine: the engine's name, or "auto".
    """
    memory *= MEMORY_OF_PACK
    needs = [
        # A stable sort keeps equal runs in the order of the sweep.
        sorted(group, key=lambda pair: -pair[0].work)
        for group in needs_of(runs, datasets, engine)
    ]
    total = sum(need.work for group in needs for need, _ in group)
    small = total <= SMALL_WORK * trials_at_once
    share = total / trials_at_once / (1 if small else PACKS_PER_TRIAL)
    most = MOST_RUNS if hardware.pack == "auto" else hardware.pack
    if hardware.pack != "auto":
        share = float("inf")
    return [pack for group in needs for pack in _divided(group, share, most, memory)]


def needs_of(
    runs: Iterable[Run], datasets: Mapping[str, Dataset], engine: str = "loop"
) -> list[list[tuple[Cost, Run]]]:
    """Group runs that may share a pack, and estimate what each needs.

    Args:
        runs: the runs.
        datasets: the loaded datasets, by the `source_key` of the data that load them.
        engine: the engine's name, or "auto".
    """
    groups: dict[tuple[str, str, str, int], list[Run]] = {}
    for run in runs:
        parts = (run.model.to_json(), run.objective.to_json())
        key = (run.data.source_key, *parts, run.local.batch_size)
        groups.setdefault(key, []).append(run)

    needs: list[list[tuple[Cost, Run]]] = []
    for (source, *_), members in groups.items():
        dataset = datasets[source]
        objective = members[0].objective
        model = FlatModel.on(members[0].model, dataset, objective)
        count = multiplications(model, dataset)
        size = Size(model.num_parameters, count)
        # A model of the user's own may fail. The run will say so in its trial.
        with suppress(Exception):
            inputs = first_samples(dataset.train)
            pairs = inputs.at(torch.zeros(2, 2).long())
            name = engine
            if name == "auto":
                name = choose_engine(model, *pairs, objective)
            size = size._replace(
                sample_bytes=bytes_per_sample(model, objective, inputs),
                max_stack=make_engine(name, model, objective).max_stack,
            )
        needs.append([(estimate(run, dataset, size), run) for run in members])
    return needs


def seconds_of(runs: Iterable[Run], datasets: Mapping[str, Dataset]) -> float:
    """Estimate how long runs take on one core, in seconds.

    Args:
        runs: the runs.
        datasets: the loaded datasets, by the `source_key` of the data that load them.
    """
    needs = needs_of(runs, datasets)
    return sum(need.work for group in needs for need, _ in group) / WORK_PER_SECOND


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


def _divided(
    group: Sequence[tuple[Cost, Run]], share: float, most: int, memory: float
) -> list[Pack]:
    """Divide runs of one dataset, model and objective into packs of about equal work.

    Args:
        group: the runs, with what they need.
        share: the work of one pack.
        most: the largest number of runs in a pack.
        memory: the bytes that the vectors of a pack may take.
    """
    packs: list[Pack] = []
    chosen: list[Run] = []
    work = used = step = 0.0
    for need, run in group:
        # A little more than a share is accepted, since sums of floats are not exact.
        enough = work + need.work > 1.01 * share or len(chosen) == most
        is_full = used + need.memory + max(step, need.step) > memory
        if chosen and (enough or is_full):
            is_small = is_full and not enough
            packs.append(Pack(tuple(chosen), work, used + step, is_small))
            chosen = []
            work = used = step = 0.0
        chosen.append(run)
        work += need.work
        used += need.memory
        step = max(step, need.step)
    return [*packs, Pack(tuple(chosen), work, used + step)] if chosen else packs


def memory_note(packs: Sequence[Pack]) -> str:
    """Say which packs are small because of their memory; empty if none is."""
    full = [pack for pack in packs if pack.is_full]
    if not full:
        return ""
    largest = max(full, key=lambda pack: pack.memory)
    return (
        f"{len(full)} of {len(packs)} packs have fewer runs than they could, because of "
        f"their memory: the vectors of {len(largest.runs)} runs take about "
        f"{format_bytes(int(largest.memory))}"
    )


def estimate(run: Run, dataset: Dataset, size: Size) -> Cost:
    """Estimate what a run needs, from its first cohort.

    Args:
        run: the run.
        dataset: its training and test samples.
        size: the size of its model.
    """
    clients = run.data.clients
    ids = _first_cohort(run, dataset)
    cohort = max(1, len(ids))
    client_samples = max(1, len(dataset.train) // clients)
    steps = run.local.num_steps(client_samples)
    trained = cohort * steps * min(run.local.batch_size, client_samples)
    tested = len(dataset.test) / run.eval_every / TESTED_PER_TRAINED
    tested += _tested_by_client(run, len(dataset.test), client_samples)
    each_round = (trained + tested) * size.multiplications + WORK_OF_ROUND
    work = run.rounds * run.replicates * each_round

    asked = _first_request(run, dataset, ids)
    moments = run.local.num_moments
    # What a client keeps travels with its start and comes back with its update.
    vectors = VECTORS_PER_REPLICATE + 2 * asked.of_server + 2 * moments * cohort
    vectors += asked.has_offsets * cohort
    vectors += VECTORS_PER_SUM if asked.is_mean else VECTORS_PER_UPDATE * cohort
    vectors += 1 if run.kept_by else 0
    algorithms = [c for c in run.algorithm.components() if isinstance(c, Algorithm)]
    remembered = any(algorithm.remembers_clients for algorithm in algorithms)
    vectors += (remembered + moments) * min(clients, run.rounds * cohort)
    vector = size.parameters * BYTES_PER_PARAMETER

    width = int(batch_width(client_samples, run.local))
    # Where tasks are stacked, there are no fewer than LEAST.
    tasks = min(size.max_stack(width), max(LEAST, run.replicates * cohort))
    is_stacked_again = 1 < tasks < run.replicates * cohort
    of_task = VECTORS_PER_TASK + asked.has_offsets + asked.has_prox
    buffers = 2 if run.local.optimizer == "adam" else int(run.local.momentum > 0)
    # Each buffer of an optimizer, and what is made of it on the way.
    of_task += 2 * buffers
    of_task += VECTORS_OF_LATER_STACK * is_stacked_again
    samples = max(BACKWARD * tasks * width, EVAL_BATCH["cpu"])
    stack = tasks * of_task * vector + samples * size.sample_bytes
    made = 0 if asked.is_mean else VECTORS_MADE_OF_UPDATE * cohort * vector
    # The module has parameters of its own.
    step = vector + max(stack, made)
    return Cost(work, run.replicates * vectors * vector, step)


def _tested_by_client(run: Run, test_samples: int, client_samples: int) -> float:
    """Estimate the samples a round that the evaluation of clients takes, as trained ones."""
    evaluation = run.eval_clients
    if evaluation is None:
        return 0.0
    clients = run.data.clients
    samples = float(test_samples)
    if evaluation.personal_steps:
        # With label mixes, each client's model sees the test samples of its classes.
        each = test_samples if evaluation.on == "labels" else test_samples / clients
        batch = min(run.local.batch_size, client_samples)
        steps = TESTED_PER_TRAINED * evaluation.personal_steps * batch
        samples += clients * (each + steps)
    return samples / evaluation.every / TESTED_PER_TRAINED


def _first_cohort(run: Run, dataset: Dataset) -> Sequence[int]:
    """Return the clients that the policy picks in the first round."""
    try:
        policy = run.policy_on(dataset)
        _, cohort = policy.pick(policy.init(), run.data.clients, Key(run.seed, 0), None)
        return cohort.ids
    except Exception:
        # The policy is the user's own and fails. The run will say so in its trial.
        return [0]


class _Asked(NamedTuple):
    """What an algorithm keeps and asks for.

    Args:
        of_server: the number of vectors that the server keeps besides the parameters.
        is_mean: whether a mean is asked for.
        has_offsets: whether clients have offsets.
        has_prox: whether they are pulled towards their start.
    """

    of_server: int = 0
    is_mean: bool = False
    has_offsets: bool = True
    has_prox: bool = False


def _first_request(run: Run, dataset: Dataset, ids: Sequence[int]) -> _Asked:
    """Ask the algorithm for its first request, of a model with few parameters."""
    clients = run.data.clients
    if users_parts(run.algorithm, Algorithm):
        # Its rounds may do anything, which is left to its trial.
        return _Asked()
    try:
        algorithm = run.algorithm.prepare(
            Setting(
                clients,
                len(dataset.train) / clients,
                1,
                run.local.over(run.rounds),
                run.rounds,
            )
        )
        state = algorithm.init(torch.zeros(PROBE_PARAMETERS), clients)
        round = algorithm.round(state, ids, Key(run.seed, 0))
        request = next(round)
        if isinstance(request, CountSamples):
            request = round.send(torch.ones(len(ids), dtype=torch.int64))
        kept = [v for v in state.server.values() if isinstance(v, Tensor)]
        return _Asked(
            sum(v.numel() == PROBE_PARAMETERS for v in kept),
            isinstance(request, TrainMean),
            getattr(request, "offset_MP", None) is not None,
            bool(getattr(request, "prox", 0)),
        )
    except Exception:
        # It needs the model's real size.
        return _Asked()
