"""The readable reference of `Work`: everything is computed in this process."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.objective import Objective
from raysafl.core.problem import Dataset, Model
from raysafl.core.randomness import Key
from raysafl.core.work import (
    Cell,
    ClientScores,
    NamedModel,
    Scores,
    Task,
    TestsOn,
    Trained,
)
from raysafl.models import FlatModel
from raysafl.objectives import PLAIN
from raysafl.runtime.client_tests import ClientTests, Floats, Job
from raysafl.runtime.exact_mean import (
    ShareResult,
    combine_shares,
    count_averaged,
    reduce_share,
)
from raysafl.runtime.malloc import keep_freed_memory
from raysafl.runtime.population import Population
from raysafl.runtime.spans import TEST, Span, scores_of_spans, sizes_of, spans_of
from raysafl.training.device import upload
from raysafl.training.evaluation import SPAN
from raysafl.training.resident import Resident
from raysafl.training.trainer import LocalTrainer


class Worker:
    """All clients and the server of some cells, on one device of this process.

    Args:
        cells: The cells. They may differ in how the dataset is split, and in the seed.
        dataset: The training and test samples.
        model: The recipe of the model.
        device: The torch device that trains and evaluates.
        engine: The engine's name, or "auto" for the one that is chosen for the model.
        objective: What the model is trained for, and by what it is judged.
        resident: What is on the device already, from one worker to the next; None if
            nothing is.
        device_share: The part of a GPU's memory that this process may take.

    Raises:
        ValueError: The partition, the server data, the model or the objective does not
            fit the dataset.

    Example:
        >>> from raysafl.quickstart import BASE
        >>> worker = Worker(BASE.cells, BASE.data.load(), BASE.model)
        >>> worker.init(cell=0).shape
        torch.Size([650])
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        dataset: Dataset,
        model: Model,
        device: str = "cpu",
        engine: str = "auto",
        objective: Objective = PLAIN,
        resident: Resident | None = None,
        device_share: float = 1.0,
    ) -> None:
        keep_freed_memory()
        self.population = Population(cells, dataset)
        self.sizes = self.population.sizes
        self.shared_bytes = self.population.shared_bytes
        self.client_names = self.population.client_names
        self.tests = ClientTests(self.population, objective.metric)
        self.client_tests = self.tests.sizes
        flat = FlatModel.on(model, dataset, objective)
        self.trainer = LocalTrainer(
            flat,
            dataset,
            self.population.held,
            device,
            engine,
            objective,
            resident,
            device_share,
        )

    def init(self, cell: int) -> Tensor:
        """Return a cell's initial parameters w_P."""
        return self.trainer.model.init(Key(self.population.cells[cell].seed))

    def train(self, tasks: Sequence[Task], averaged: Collection[int] = ()) -> Trained:
        """Carry out the tasks; see `Work.train`."""
        counts = count_averaged(tasks, averaged)
        result = self.train_share(tasks, counts)
        return combine_shares(tasks, counts, [range(len(tasks))], [result])

    def train_share(
        self, tasks: Sequence[Task], counts: Mapping[int, int]
    ) -> ShareResult:
        """Carry out a share of a round's tasks, for `combine_shares`.

        Args:
            tasks: The share.
            counts: The `count_averaged` of all of the round's tasks.
        """
        return reduce_share(tasks, self.trainer.train_stacks(tasks), counts)

    def evaluate(self, w: Mapping[int, Tensor]) -> Scores:
        """Evaluate each cell's parameters; see `Work.evaluate`."""
        cells = list(w)
        evaluator = self.trainer.evaluator
        test_samples = len(evaluator.test.y)
        spans = spans_of(cells, self.population, test_samples)
        sums_NS = self.span_sums(list(w.values()), spans)
        sums = sums_NS.split([len(span.rows) for span in spans], dim=1)
        sizes = sizes_of(self.population, test_samples)
        return scores_of_spans(cells, spans, sums, evaluator.measures, sizes)

    def span_sums(self, models: Sequence[Tensor], spans: Sequence[Span]) -> Tensor:
        """Return the sums over spans, of the models that each of them names.

        A GPU is waited for once, when all of them are copied to the CPU.

        Args:
            models: The parameters [P] of all models of the evaluation.
            spans: The spans.

        Returns:
            [N, S] float64: a column for each model of the first span, then for each of
            the second, and so on.
        """
        w_RP = self._rows(models)
        return torch.cat([self._span_sums(w_RP, span) for span in spans], 1).cpu()

    def _rows(self, models: Sequence[Tensor]) -> Tensor:
        """Return models as rows [R, P], on the device unless they are too many for it."""
        w_RP = torch.stack(list(models))
        if len(models) > self.trainer.evaluator.most_models:
            return w_RP
        return upload(w_RP, self.trainer.device)

    def _span_sums(self, w_RP: Tensor, span: Span) -> Tensor:
        """Return the sums [N, R] over a span, on the device."""
        evaluator = self.trainer.evaluator
        if span.samples == TEST:
            return evaluator.span_sums(w_RP, span.start)
        some_RP = w_RP if len(span.rows) == len(w_RP) else w_RP[list(span.rows)]
        samples = self.population.validation_sets[span.samples]
        rows = samples[span.start : span.start + SPAN]
        return evaluator.sums_on(some_RP, evaluator.train, rows)

    def model_of(self, w_P: Tensor) -> NamedModel:
        """Return a model as its parameters by name."""
        return self.trainer.model.named(w_P)

    def train_accuracy(
        self, w: Mapping[int, Tensor], ids: Mapping[int, Sequence[int]]
    ) -> dict[int, float]:
        """Return each cell's accuracy (in [0, 1]) on some clients' samples."""
        return {
            cell: self.count_correct(cell, w[cell], own)
            / self.population.samples(cell, own)
            for cell, own in ids.items()
        }

    def count_correct(
        self, cell: int, w_P: Tensor, ids: Sequence[int], share: slice = slice(None)
    ) -> float:
        """Return how many of some clients' training samples are classified correctly.

        Args:
            cell: The number of the cell, which determines who holds which samples.
            w_P: The parameters to evaluate.
            ids: The clients.
            share: The part of their samples, joined in the order of `ids`, that is
                counted.
        """
        split = self.population.splits[cell]
        held = np.concatenate([split.of(i) for i in ids])
        return self.trainer.evaluator.count_correct(w_P, held[share])

    def evaluate_clients(
        self,
        w: Mapping[int, Tensor],
        on: Mapping[int, TestsOn],
        came: Mapping[int, NDArray[np.bool_]],
    ) -> dict[int, ClientScores]:
        """Evaluate each cell's parameters on the test samples of each client."""
        jobs = self.tests.jobs(on)
        sums = [
            self.group_sums(job, range(len(self.tests.groups(job).indices)), w)
            for job in jobs
        ]
        measures = self.trainer.evaluator.measures
        return self.tests.scores(measures, on, came, jobs, sums)

    def group_sums(
        self, job: Job, numbers: Sequence[int], w: Mapping[int, Tensor]
    ) -> Floats:
        """Return the sums [G, n, R] of a job's R models over some of its groups.

        Args:
            job: The job.
            numbers: The numbers of these G groups, at least one.
            w: The parameters of the job's cells, and maybe of others.
        """
        groups = self.tests.groups(job)
        samples = self.trainer.inputs if groups.of_train else self.trainer.test
        w_RP = self._rows([w[cell] for cell in job.cells])
        sums_on = self.trainer.evaluator.sums_on
        sums = [sums_on(w_RP, samples, groups.indices[k]) for k in numbers]
        return torch.stack(sums).cpu().numpy()

    def evaluate_personal(
        self, tasks: Sequence[Task], on: Mapping[int, TestsOn]
    ) -> dict[int, Floats]:
        """Train each task, and evaluate where it ends on its client's test samples."""
        return by_cell(tasks, self.personal_qualities(tasks, on))

    def personal_qualities(
        self, tasks: Sequence[Task], on: Mapping[int, TestsOn]
    ) -> Floats:
        """Return the metric of each task's model; only one stack is in memory."""
        quality_T = np.empty(len(tasks))
        # The tasks of a cell have one start, which is uploaded once.
        distinct = {id(task.w_P): task.w_P for task in tasks}
        starts = {
            name: upload(w_P, self.trainer.device) for name, w_P in distinct.items()
        }
        for positions, update in self.trainer.train_stacks(tasks):
            for i, delta_P in zip(positions, update.delta_MP, strict=True):
                task = tasks[i]
                w_P = starts[id(task.w_P)] - delta_P
                quality_T[i] = self._personal_quality(task, on[task.cell], w_P)
        return quality_T

    def _personal_quality(self, task: Task, on: TestsOn, w_P: Tensor) -> float:
        """Return the metric of a model on the test samples of a task's client."""
        evaluator = self.trainer.evaluator
        rows_G, of_train, weight_G, count = self.tests.personal_groups(
            task.cell, on, task.client
        )
        samples = self.trainer.inputs if of_train else self.trainer.test
        sums = [evaluator.sums_on(w_P[None], samples, rows)[:, 0] for rows in rows_G]
        sums_Gn = torch.stack(sums).cpu().numpy()
        return self.tests.personal_quality(evaluator.measures, weight_G, sums_Gn, count)

    def gradients(self, cell: int, w_NP: Tensor) -> Tensor:
        """Return the full gradient [N, P] of each client i's mean loss at w_NP[i]."""
        return self.trainer.gradients(w_NP, self.population.splits[cell].clients)

    def server_gradient(self, cell: int, w_P: Tensor) -> Tensor | None:
        """Return the full gradient [P] of the server's mean loss, None without data."""
        held = self.population.splits[cell].server
        return self.trainer.gradients(w_P[None], [held])[0] if len(held) else None

    def batch_gradients(
        self, cell: int, client: int, w_P: Tensor, size: int, draws: int, key: Key
    ) -> Tensor:
        """Return the gradients [draws, P] of independent mini-batches of one client.

        Args:
            cell: The number of the cell, which determines who holds which samples.
            client: The client's id, or SERVER.
            w_P: The parameters at which gradients are taken.
            size: Samples per mini-batch, drawn without replacement (all, if there are
                fewer).
            draws: Number of mini-batches.
            key: The source of randomness.
        """
        held = self.population.splits[cell].of(client)
        rng = key("gradient noise", client)
        picks = [
            rng.choice(held, min(size, len(held)), replace=False) for _ in range(draws)
        ]
        return self.trainer.gradients(w_P.expand(draws, -1), picks)


def by_cell(tasks: Sequence[Task], values_T: Floats) -> dict[int, Floats]:
    """Return one value for each task by the tasks' cells, in the order of the tasks."""
    cell_T = np.array([task.cell for task in tasks])
    return {int(cell): values_T[cell_T == cell] for cell in np.unique(cell_T)}
