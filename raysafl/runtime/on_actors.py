"""`Work` on Ray actors, each of which can train any client of any cell.

Each request takes one message to each actor and one reply from it (see
`raysafl.runtime.messages`). Tasks are distributed by `raysafl.runtime.placement`.
Results do not depend on that distribution: sums are exact
(`raysafl.runtime.exact_mean`), and rows are put back into the order of the tasks.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.objective import check_targets
from raysafl.core.randomness import Key
from raysafl.core.work import (
    ClientScores,
    NamedModel,
    Scores,
    Task,
    TestsOn,
    Trained,
)
from raysafl.models import FlatModel
from raysafl.runtime.actor_pool import ActorPool
from raysafl.runtime.client_actor import Clients
from raysafl.runtime.client_tests import ClientTests, Floats
from raysafl.runtime.exact_mean import combine_shares, count_averaged
from raysafl.runtime.hardware import Hardware
from raysafl.runtime.in_process import by_cell
from raysafl.runtime.messages import PackSetup, TaskMessage, decode_reply, sent_models
from raysafl.runtime.placement import assign_cells, assign_longest_first
from raysafl.runtime.population import Population
from raysafl.runtime.spans import scores_of_spans, sizes_of, spans_of
from raysafl.training.evaluation import Measures
from raysafl.training.inputs import Inputs, as_tensor

# In samples times parameters: a request for less work is met by one actor, because a
# second message would take longer than it saves.
MIN_WORK_TO_SHARE = 10**5


def start_actors(hardware: Hardware) -> ActorPool:
    """Start client actors; those of a trial land in the trial's placement group."""
    return ActorPool(Clients, hardware)


def host_pack(actors: ActorPool, setup: PackSetup) -> tuple["OnActors", str, str]:
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
    measures = Measures.of(setup.objective, model, Inputs(first, torch.device("cpu")))
    setup = replace(setup, frozen=ray.put(model.frozen))
    actors.configure(setup)
    population = Population(setup.cells, dataset)
    # The engine is a function of the setup, so all actors have the same.
    device, engine = actors.ready()[0]
    tests = ClientTests(population, setup.objective.metric)
    work = OnActors(actors, tests, model, measures, len(dataset.test))
    return work, device, engine


class OnActors:
    """`Work` on client actors that have been configured for the pack.

    Args:
        actors: The client actors.
        tests: Who holds which samples in the cells that the actors host, and by which
            test samples the clients are judged.
        model: The model, from which the initial parameters are drawn.
        measures: What is measured of a model.
        test_samples: The number of samples in the test set.
    """

    def __init__(
        self,
        actors: ActorPool,
        tests: ClientTests,
        model: FlatModel,
        measures: Measures,
        test_samples: int,
    ) -> None:
        self.actors = actors
        self.tests = tests
        self.population = tests.population
        self.model = model
        self.measures = measures
        self.test_samples = test_samples
        self.sizes = self.population.sizes
        self.shared_bytes = self.population.shared_bytes
        self.client_names = self.population.client_names
        self.client_tests = tests.sizes

    def init(self, cell: int) -> Tensor:
        """Return a cell's initial parameters w_P."""
        return self.model.init(Key(self.population.cells[cell].seed))

    def train(self, tasks: Sequence[Task], averaged: Collection[int] = ()) -> Trained:
        """Carry out the tasks; see `Work.train`."""
        counts = count_averaged(tasks, averaged)
        shares = {i: share for i, share in enumerate(self._distribute(tasks)) if share}
        messages = {
            i: TaskMessage([tasks[k] for k in share], counts)
            for i, share in shares.items()
        }
        # All messages are sent before the first reply is waited for.
        stored: dict[Any, Any] = {}
        calls = [
            self.actors.send(
                i, "train", *message.encode(stored), parts=message.num_reply_parts
            )
            for i, message in messages.items()
        ]
        replies = zip(messages.values(), self.actors.get(calls), strict=True)
        results = [decode_reply(message, parts) for message, parts in replies]
        return combine_shares(tasks, counts, list(shares.values()), results)

    def evaluate(self, w: Mapping[int, Tensor]) -> Scores:
        """Evaluate each cell's parameters; the spans are divided among the actors."""
        cells = list(w)
        spans = spans_of(cells, self.population, self.test_samples)
        num_actors = len(self.actors)
        models = sent_models(list(w.values()), {})
        calls = [
            self.actors.send(i, "evaluate", spans[i::num_actors], *models)
            for i in range(min(num_actors, len(spans)))
        ]
        replies = self.actors.get(calls)
        # Span k is one of actor k % num_actors; its columns follow those before it.
        used = [0] * num_actors
        sums = []
        for k, span in enumerate(spans):
            i = k % num_actors
            stop = used[i] + len(span.rows)
            sums.append(as_tensor(replies[i][:, used[i] : stop]))
            used[i] = stop
        sizes = sizes_of(self.population, self.test_samples)
        return scores_of_spans(cells, spans, sums, self.measures, sizes)

    def model_of(self, w_P: Tensor) -> NamedModel:
        """Return a model as its parameters by name."""
        return self.model.named(w_P)

    def train_accuracy(
        self, w: Mapping[int, Tensor], ids: Mapping[int, Sequence[int]]
    ) -> dict[int, float]:
        """Return each cell's accuracy (in [0, 1]) on some clients' samples.

        Every actor counts an equal share of the samples.
        """
        models = sent_models([w[cell] for cell in ids], {})
        num_actors = len(self.actors)
        calls = [
            self.actors.send(i, "count_correct", dict(ids), i, num_actors, *models)
            for i in range(num_actors)
        ]
        counts = map(sum, zip(*self.actors.get(calls), strict=True))
        return {
            cell: correct / self.population.samples(cell, ids[cell])
            for cell, correct in zip(ids, counts, strict=True)
        }

    def evaluate_clients(
        self,
        w: Mapping[int, Tensor],
        on: Mapping[int, TestsOn],
        came: Mapping[int, NDArray[np.bool_]],
    ) -> dict[int, ClientScores]:
        """Evaluate each cell's parameters on the test samples of each client.

        The groups of test samples are divided among the actors.
        """
        jobs = self.tests.jobs(on)
        groups = [self.tests.groups(job).indices.sizes for job in jobs]
        # A group of a job, and the number of samples that it takes to evaluate it.
        units = [(j, k) for j, sizes in enumerate(groups) for k in range(len(sizes))]
        costs = [int(groups[j][k]) * len(jobs[j].cells) for j, k in units]
        models = sent_models(list(w.values()), {})
        shares = [[units[i] for i in share] for share in self._divide(costs) if share]
        numbers = [
            {j: [k for other, k in share if other == j] for j, _ in share}
            for share in shares
        ]
        calls = [
            self.actors.send(
                i,
                "group_sums",
                [(jobs[j], own) for j, own in groups_by_job.items()],
                list(w),
                *models,
            )
            for i, groups_by_job in enumerate(numbers)
        ]
        sums: list[Floats] = [np.empty(0) for _ in jobs]
        for groups_by_job, reply in zip(numbers, self.actors.get(calls), strict=True):
            for (j, own), part_GnR in zip(groups_by_job.items(), reply, strict=True):
                if not sums[j].size:
                    sums[j] = np.empty((len(groups[j]), *part_GnR.shape[1:]))
                sums[j][own] = part_GnR
        return self.tests.scores(self.measures, on, came, jobs, sums)

    def evaluate_personal(
        self, tasks: Sequence[Task], on: Mapping[int, TestsOn]
    ) -> dict[int, Floats]:
        """Train each task, and evaluate where it ends on its client's test samples."""
        tested = {cell: self.client_tests(cell, own)[1] for cell, own in on.items()}
        costs = [
            self.population.cost(task) + tested[task.cell][task.client]
            for task in tasks
        ]
        shares = [share for share in self._divide(costs) if share]
        stored: dict[Any, Any] = {}
        calls = [
            self.actors.send(
                i,
                "personal_qualities",
                dict(on),
                *TaskMessage([tasks[k] for k in share], {}).encode(stored),
            )
            for i, share in enumerate(shares)
        ]
        quality_T = np.empty(len(tasks))
        for share, found in zip(shares, self.actors.get(calls), strict=True):
            quality_T[share] = found
        return by_cell(tasks, quality_T)

    def _divide(self, costs: Sequence[int]) -> list[list[int]]:
        """Divide pieces of work, of which each may be done anywhere, among the actors.

        Args:
            costs: The number of samples of each piece.
        """
        too_little = sum(costs) * self.model.num_parameters <= MIN_WORK_TO_SHARE
        return assign_longest_first(costs, 1 if too_little else len(self.actors))

    def _distribute(self, tasks: Sequence[Task]) -> list[list[int]]:
        """Return the indices of each actor's tasks."""
        costs = [self.population.cost(task) for task in tasks]
        too_little = sum(costs) * self.model.num_parameters <= MIN_WORK_TO_SHARE
        num_actors = 1 if too_little else len(self.actors)
        return assign_cells([task.cell for task in tasks], costs, num_actors)
