"""`Work` on Ray actors, each of which can train any client of any cell.

Each request takes one message to each actor and one reply from it (see
`raysafl.runtime.client_actor`). Ray starts an actor again that dies, and asks it again; a
call is a pure function of its arguments, so a loss does not change results. Tasks are
distributed by `assign_cells`. Results do not depend on that distribution:
sums are exact (`raysafl.runtime.exact_mean`), and rows are put back into the order of
the tasks.
"""

import heapq
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor

from raysafl.cluster.actors import Actors
from raysafl.cluster.hardware import Hardware
from raysafl.core.algorithm import MeanUpdate, Update
from raysafl.core.objective import Measures, check_targets
from raysafl.core.randomness import Key
from raysafl.core.work import (
    Evaluation,
    NamedModel,
    Summed,
    Tasks,
    Training,
)
from raysafl.models import FlatModel
from raysafl.runtime.client_actor import Clients, PackSetup, packed, unpacked
from raysafl.runtime.exact_mean import combine_shares
from raysafl.runtime.population import Population
from raysafl.training.evaluation import measures_on
from raysafl.training.inputs import Inputs

# In samples times parameters: a request for less work is met by one actor, because a
# second message would take longer than it saves.
MIN_WORK_TO_SHARE = 10**5
# Cells are kept whole if that takes at most this many times as long as the evenest
# distribution, because the parameters and the sum of a cell then travel only once.
TOLERANCE = 1.1


def start_actors(hardware: Hardware) -> Actors:
    """Start client actors; those of a trial land in the trial's placement group."""
    return Actors(Clients, hardware)


def host_pack(actors: Actors, setup: PackSetup) -> tuple["OnActors", str, str]:
    """Let actors host a pack's cells, and wait until they are ready for its rounds.

    Args:
        actors: The actors.
        setup: The setup of the pack. The values of frozen parameters in it are replaced
            by those of this process.

    Returns:
        The work on these actors, their device, and the engine.
    """
    dataset = setup.dataset
    if isinstance(dataset, ray.ObjectRef):
        dataset = ray.get(dataset)
    check_targets(setup.objective, dataset)
    model = FlatModel.on(setup.model, dataset, setup.objective)
    test = dataset.test
    first = replace(test, x=test.x[:1], y=test.y[:1], users=None)
    measures = measures_on(setup.objective, model, Inputs(first, torch.device("cpu")))
    stored = ray.put(replace(setup, frozen=model.frozen))
    population = Population(setup.cells, dataset)
    work = OnActors(actors, stored, population, model, measures)
    # The engine is a function of the setup, so all actors have the same.
    device, engine = work.describe()
    return work, device, engine


class OnActors:
    """`Work` on client actors.

    Args:
        actors: The client actors.
        setup: Ray's reference to the pack's setup.
        population: Who holds which samples in the cells that the actors host.
        model: The model, from which the initial parameters are drawn.
        measures: What is measured of a model.
    """

    def __init__(
        self,
        actors: Actors,
        setup: "ray.ObjectRef[PackSetup]",
        population: Population,
        model: FlatModel,
        measures: Measures,
    ) -> None:
        self.actors = actors
        self.setup = setup
        self.population = population
        self.dataset = population.dataset
        self.model = model
        self.measures = measures
        self.sizes = self.population.sizes
        self.shared_bytes = self.population.shared_bytes
        self.client_names = self.population.client_names
        self.client_tests = self.population.client_tests

    def describe(self) -> tuple[str, str]:
        """Let all actors get ready; return the names of their device and engine."""
        (device, engine), *_ = self._ask("start", "describe", [()] * len(self.actors))
        return device, engine

    def _ask(
        self, what: str, method: str, shares: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """Have a method of `Worker` called on an actor for each share of a request.

        All messages are sent before the first reply is waited for.

        Args:
            what: What is done there, for the message of an error.
            method: The method's name.
            shares: The arguments of each call.

        Returns:
            What it returns for each of them.
        """
        stored: dict[int, Any] | None = {} if len(shares) > 1 else None
        messages = [packed(*share, stored=stored) for share in shares]
        calls = [([self.setup], method, message) for message in messages]
        return [unpacked(reply)[0] for reply in self.actors.call(what, calls)]

    def init(self, cell: int) -> Tensor:
        """Return a cell's initial parameters w_P."""
        return self.model.init(Key(self.population.cells[cell].seed))

    def train(self, asked: Sequence[Training]) -> list[Update | MeanUpdate]:
        """Train clients of any cells; see `Work.train`."""
        tasks = Tasks.of(asked)
        costs = self.population.costs(tasks)
        cells = tasks.columns["cell"].tolist()
        chosen = assign_cells(cells, costs, self._actors_for(costs))
        shares = [share for share in chosen if share]
        messages = [(tasks[share].alone(),) for share in shares]
        results = self._ask("train", "train_share", messages)
        return combine_shares(asked, tasks, shares, results)

    def sums(self, asked: Sequence[Evaluation]) -> list[list[Summed]]:
        """Evaluate parameters; the units are divided among the actors."""
        units = self.population.units(asked)
        models = [own.w_RP for own in asked]
        costs = [unit.cost for unit in units]
        chosen = assign_longest_first(costs, self._actors_for(costs))
        shares = [share for share in chosen if share]
        messages = [(models, [units[k] for k in share]) for share in shares]
        replies = self._ask("evaluate", "unit_sums", messages)
        parts = [np.empty((0, 0))] * len(units)
        for share, sums_nS in zip(shares, replies, strict=True):
            stops = np.cumsum([len(units[k].models) for k in share])
            for k, part_nR in zip(share, np.split(sums_nS, stops, 1), strict=False):
                parts[k] = part_nR
        return self.population.summed(asked, units, np.concatenate(parts, 1))

    def model_of(self, w_P: Tensor) -> NamedModel:
        """Return a model as its parameters by name."""
        return self.model.named(w_P)

    def _actors_for(self, costs: Sequence[int]) -> int:
        """Return how many actors share work on so many samples."""
        too_little = sum(costs) * self.model.num_parameters <= MIN_WORK_TO_SHARE
        return 1 if too_little else len(self.actors)


def assign_longest_first(costs: Sequence[int], actors: int) -> list[list[int]]:
    """Distribute tasks over actors: the longest first, each to the least loaded actor.

    Args:
        costs: The cost of each task, in any unit of time.
        actors: The number of actors.

    Returns:
        For each actor, the indices of its tasks in ascending order. Ties go to the task
        and the actor with the lowest index.

    Example:
        >>> assign_longest_first(costs=[3, 1, 2, 2], actors=2)
        [[0, 1], [2, 3]]
    """
    if actors == 1:
        return [list(range(len(costs)))]
    heap = [(0, actor) for actor in range(actors)]
    shares: list[list[int]] = [[] for _ in heap]
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, actor = heapq.heappop(heap)
        shares[actor].append(i)
        heapq.heappush(heap, (load + costs[i], actor))
    return [sorted(share) for share in shares]


def assign_cells(
    cells: Sequence[int], costs: Sequence[int], actors: int
) -> list[list[int]]:
    """Distribute tasks over actors, each cell as a whole if that is about as even.

    Args:
        cells: The number of each task's cell.
        costs: The cost of each task, in any unit of time.
        actors: The number of actors.

    Returns:
        For each actor, the indices of its tasks in ascending order.

    Example:
        >>> assign_cells([0, 1, 0, 1], costs=[5, 5, 5, 5], actors=2)
        [[0, 2], [1, 3]]
    """
    members: dict[int, list[int]] = {}
    for i, cell in enumerate(cells):
        members.setdefault(cell, []).append(i)
    groups = list(members.values())

    group_costs = [sum(costs[i] for i in group) for group in groups]
    whole = assign_longest_first(group_costs, actors)
    together = [sorted(i for g in share for i in groups[g]) for share in whole]
    time_together = _time(together, costs)

    # No distribution is faster than the mean over actors, so a comparison with it comes
    # first.
    if time_together * actors <= TOLERANCE * sum(costs):
        return together
    apart = assign_longest_first(costs, actors)
    return together if time_together <= TOLERANCE * _time(apart, costs) else apart


def _time(shares: list[list[int]], costs: Sequence[int]) -> int:
    """Return when the last actor is done."""
    return max(sum(costs[i] for i in share) for share in shares)
