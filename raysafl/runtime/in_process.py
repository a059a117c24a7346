"""The readable reference of `Work`: everything is computed in this process."""

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from raysafl.core.algorithm import MeanUpdate, Update
from raysafl.core.objective import Measures, Objective
from raysafl.core.problem import Dataset, Model
from raysafl.core.randomness import Key
from raysafl.core.work import (
    Cell,
    Evaluation,
    Floats,
    Ints,
    NamedModel,
    Summed,
    Tasks,
    Training,
)
from raysafl.models import FlatModel
from raysafl.objectives import PLAIN
from raysafl.runtime.exact_mean import Reduction, ShareResult, combine_shares
from raysafl.runtime.population import Population, Unit
from raysafl.training.device import device_name, upload
from raysafl.training.resident import Resident
from raysafl.training.trainer import LocalTrainer

# Parameters of glibc's mallopt, by their numbers in malloc.h.
M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_MAX = -4

OPTIONS = {
    # Take large tensors from the heap, which keeps them, not from mmap.
    M_MMAP_MAX: 0,
    M_TRIM_THRESHOLD: 2**31 - 1,  # bytes of free heap to keep before any are given back
    M_TOP_PAD: 2**26,  # bytes to ask the system for at a time
}


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
        self.client_tests = self.population.client_tests
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

    def train(self, asked: Sequence[Training]) -> list[Update | MeanUpdate]:
        """Train clients of any cells; see `Work.train`."""
        tasks = Tasks.of(asked)
        result = self.train_share(tasks)
        return combine_shares(asked, tasks, [slice(None)], [result])

    def train_share(self, tasks: Tasks) -> ShareResult:
        """Carry out a share of a round's tasks, for `combine_shares`."""
        reduction = Reduction(tasks)
        for positions, update in self.trainer.train_stacks(tasks):
            reduction.add(positions, update)
            # The next stack is trained when the loop asks for it. It may need the memory.
            del update
        return reduction.result()

    @property
    def measures(self) -> Measures:
        """What is measured of a model."""
        return self.trainer.evaluator.measures

    def sums(self, asked: Sequence[Evaluation]) -> list[list[Summed]]:
        """Evaluate parameters; see `Work.sums`."""
        units = self.population.units(asked)
        sums_nS = self.unit_sums([own.w_RP for own in asked], units)
        return self.population.summed(asked, units, sums_nS)

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
        w_RP = some_RP = self.trainer.parameters.evaluated(models)
        chosen: Ints | None = None
        sums = []
        for unit in units:
            if unit.models is not chosen:
                chosen = unit.models
                some_RP = w_RP
                if not np.array_equal(chosen, np.arange(len(w_RP))):
                    some_RP = w_RP[upload(torch.from_numpy(chosen), w_RP.device)]
            of_train, rows = self.population.rows_of(unit)
            samples = self.trainer.inputs if of_train else self.trainer.test
            sums.append(self.trainer.evaluator.sums_on(some_RP, samples, rows))
        return torch.cat(sums, 1).cpu().numpy()

    def model_of(self, w_P: Tensor) -> NamedModel:
        """Return a model as its parameters by name."""
        return self.trainer.model.named(w_P)


def keep_freed_memory() -> None:
    """Make glibc reuse freed memory instead of returning it to the system.

    By default the memory of a large tensor is returned when the tensor is freed, and
    its pages are mapped anew for the next one. That takes 40 % of the time of a
    convolutional network's evaluation. The price: a process stays as large as it ever
    was.

    Nothing happens on systems without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in OPTIONS.items():
            mallopt(option, value)
