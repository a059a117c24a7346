"""The readable reference of `Work`: everything is computed in this process."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from raysafl.core.means import weighted_sums
from raysafl.core.objective import Measures, Objective
from raysafl.core.problem import Dataset, Model
from raysafl.core.randomness import Key
from raysafl.core.work import (
    Cell,
    Evaluation,
    Floats,
    Ints,
    NamedModel,
    PersonalEvaluation,
    Summed,
    Tasks,
    Trained,
    Training,
    WeightedRows,
)
from raysafl.models import FlatModel
from raysafl.objectives import PLAIN
from raysafl.runtime.exact_mean import (
    ShareResult,
    combine_shares,
    reduce_share,
)
from raysafl.runtime.malloc import keep_freed_memory
from raysafl.runtime.population import Population
from raysafl.runtime.rows import NamedRows, Unit
from raysafl.training.device import device_name, upload
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
        self.dataset = dataset
        self.population = Population(cells, dataset)
        self.sizes = self.population.sizes
        self.shared_bytes = self.population.shared_bytes
        self.client_names = self.population.client_names
        self.rows = NamedRows(self.population)
        self.client_tests = self.rows.client_tests
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

    def describe(self) -> tuple[str, str]:
        """Return the names of the device and of the engine in use."""
        return device_name(self.trainer.device), self.trainer.engine_name

    def init(self, cell: int) -> Tensor:
        """Return a cell's initial parameters w_P."""
        return self.trainer.model.init(Key(self.population.cells[cell].seed))

    def train(self, asked: Sequence[Training]) -> list[Trained]:
        """Train clients of any cells; see `Work.train`."""
        tasks = Tasks.of(asked)
        result = self.train_share(tasks)
        return combine_shares(asked, tasks, [slice(None)], [result])

    def train_share(self, tasks: Tasks) -> ShareResult:
        """Carry out a share of a round's tasks, for `combine_shares`."""
        return reduce_share(tasks, self.trainer.train_stacks(tasks))

    @property
    def measures(self) -> Measures:
        """What is measured of a model."""
        return self.trainer.evaluator.measures

    def sums(self, asked: Sequence[Evaluation]) -> list[list[Summed]]:
        """Evaluate parameters; see `Work.sums`."""
        units = self.rows.units(asked)
        sums_nS = self.unit_sums([own.w_RP for own in asked], units)
        return self.rows.summed(asked, units, sums_nS)

    def unit_sums(self, models: Sequence[Tensor], units: Sequence[Unit]) -> Floats:
        """Return the sums over units, of the models that each names.

        A GPU is waited for once, when all of them are copied to the CPU.

        Args:
            models: The parameters of the models, as matrices with P columns.
            units: The units.

        Returns:
            [n, S]: a column for each model of the first unit, then of the second, and so
            on.
        """
        w_RP = self.trainer.parameters.evaluated(models)
        return self._unit_sums(w_RP, units).cpu().numpy()

    def _unit_sums(self, w_RP: Tensor, units: Sequence[Unit]) -> Tensor:
        """Compute the `unit_sums` on the device, without waiting for them.

        Args:
            w_RP: The parameters of the models.
            units: The units.
        """
        chosen: Ints | None = None
        some_RP = w_RP
        sums = []
        for unit in units:
            if unit.models is not chosen:
                chosen = unit.models
                some_RP = w_RP
                if not np.array_equal(chosen, np.arange(len(w_RP))):
                    some_RP = w_RP[upload(torch.from_numpy(chosen), w_RP.device)]
            of_train, rows = self.rows.of(unit)
            samples = self.trainer.inputs if of_train else self.trainer.test
            sums.append(self.trainer.evaluator.sums_on(some_RP, samples, rows))
        return torch.cat(sums, 1)

    def model_of(self, w_P: Tensor) -> NamedModel:
        """Return a model as its parameters by name."""
        return self.trainer.model.named(w_P)

    def personal_sums(self, asked: Sequence[PersonalEvaluation]) -> list[Floats]:
        """Train clients, and evaluate where they end; see `Work.personal_sums`."""
        tasks = Tasks.of([own.training for own in asked])
        return by_request(asked, self.task_sums(tasks, rows_of_tasks(asked)))

    def task_sums(self, tasks: Tasks, over: Sequence[WeightedRows]) -> Floats:
        """Return the sums [T, n] of each task's model; only one stack is in memory."""
        sums_of: dict[int, Tensor] = {}
        w_VP, row_T = self.trainer.starts(tasks)
        cell_T = tasks.columns["cell"].astype(np.int64)
        for positions, update in self.trainer.train_stacks(tasks):
            for i, delta_P in zip(positions.tolist(), update.delta_MP, strict=True):
                w_1P = (w_VP[row_T[i]] - delta_P).unsqueeze(0)
                one = Evaluation(cell_T[i : i + 1], w_1P, [[over[i][0]]])
                sums_of[i] = self._unit_sums(w_1P, self.rows.units([one]))
        # A GPU is waited for once, when all of them are copied to the CPU.
        sums_nG = torch.cat([sums_of[i] for i in range(len(tasks))], 1).cpu()
        sizes = [len(weights) for _, weights in over]
        return np.concatenate(
            [
                weighted_sums(np.array([weights]), sums_Gn.numpy())
                for (_, weights), sums_Gn in zip(
                    over, sums_nG.T.split(sizes), strict=True
                )
            ]
        )

    def gradients(self, cell: int, w_NP: Tensor) -> Tensor:
        """Return the full gradient [N, P] of each client i's mean loss at w_NP[i]."""
        return self.trainer.gradients(w_NP, self.population.splits[cell].clients)


def rows_of_tasks(asked: Sequence[PersonalEvaluation]) -> list[WeightedRows]:
    """Return the rows on which the model of each task is evaluated."""
    return [rows for own in asked for of_cell in own.over for rows in of_cell]


def by_request(asked: Sequence[PersonalEvaluation], sums_Tn: Floats) -> list[Floats]:
    """Return for each request the sums [R, M, n] of its tasks."""
    shapes = [own.training.clients_RM.shape for own in asked]
    stops = np.cumsum([replicates * clients for replicates, clients in shapes])
    parts = np.split(sums_Tn, stops[:-1])
    return [
        part_Tn.reshape(*shape, -1)
        for shape, part_Tn in zip(shapes, parts, strict=True)
    ]
