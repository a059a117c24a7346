"""Local training of many tasks at once.

A task is one client's (or the server's) local training from its start parameters. Tasks
of many clients and of many cells are stacked and take their local steps together;
what differs between them (samples, number of steps, rate, offset, proximal weight) is
data.

Tasks of one stack may differ in the size of their batches and in their number of steps,
and their results are not affected: where a batch is short, the absent samples have
weight 0, and a task that has taken all its steps is left as it is.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.algorithm import Update
from raysafl.core.objective import Objective, check_targets
from raysafl.core.problem import Dataset
from raysafl.core.work import Tasks
from raysafl.models import FlatModel
from raysafl.objectives import PLAIN
from raysafl.training.device import prepare_device
from raysafl.training.engines import Engine, choose_engine, make_engine
from raysafl.training.evaluation import EVAL_BATCH, Evaluator
from raysafl.training.inputs import (
    Batch,
    Held,
    Plan,
    StepCounts,
    Stored,
    draw_plan,
    step_seeds,
)
from raysafl.training.linear import Fused, as_fused
from raysafl.training.optimizer import StackedOptimizer, plain_steps
from raysafl.training.resident import Parameters, Resident

if TYPE_CHECKING:
    from raysafl.training.gpu_training import GpuTraining

# Tasks that are given to the compiled loop at a time, which takes them one after the other
# without stacking them; more of them if they have no more than so many parameters together.
# It bounds memory.
COMPILED_STACK = 256
COMPILED_PARAMETERS = 2**21


class LocalTrainer:
    """Trains tasks, and evaluates models, on one device.

    Args:
        model: the model as a function of its flat parameters.
        dataset: the training samples of all clients and the test set.
        samples_of: returns the training samples that the clients of tasks hold; a client may
            be SERVER or EVERYONE.
        device: "cpu" or "cuda".
        engine: the name of an engine (`raysafl.training.engines.ENGINES`), or
            "auto" for the one that `choose_engine` gives.
        objective: what gives each sample its loss, and what is measured.
        resident: what is on the device already, from one trainer to the next; None if
            nothing is.
        device_share: the share of the GPU's memory that this process may use.

    Raises:
        ValueError: the targets of the dataset do not fit the objective.
    """

    def __init__(
        self,
        model: FlatModel,
        dataset: Dataset,
        samples_of: Callable[[Tasks], Held],
        device: str = "cpu",
        engine: str = "auto",
        objective: Objective = PLAIN,
        resident: Resident | None = None,
        device_share: float = 1.0,
    ) -> None:
        check_targets(objective, dataset)
        self.objective = objective
        self.device = prepare_device(device, model.precision)
        self.model = model
        model.module.to(self.device)
        self.resident = Resident() if resident is None else resident
        self.inputs, self.test = self.resident.samples(dataset, self.device)
        self.samples_of = samples_of
        self._requested_engine = engine
        self._device_share = device_share

    @cached_property
    def engine_name(self) -> str:
        """The requested engine, or with "auto" the one that is chosen for the model."""
        if self._requested_engine != "auto":
            return self._requested_engine
        index_TB = torch.arange(4, device=self.device).view(2, 2) % len(self.inputs.y)
        x_TB, y_TB = self.inputs.at(index_TB)
        return choose_engine(self.model, x_TB, y_TB, self.objective)

    @cached_property
    def engine(self) -> Engine:
        """The engine that computes gradients and outputs, made at the first access.

        Raises:
            ValueError: there is no engine of this name, or it is not for this model or
                this objective.
        """
        return make_engine(self.engine_name, self.model, self.objective)

    @cached_property
    def parameters(self) -> Parameters:
        """The parameters that are on a GPU between an evaluation and the next round."""
        return self._gpu.parameters if self._gpu else Parameters(self.device, 0)

    @cached_property
    def evaluator(self) -> Evaluator:
        """The evaluation with this engine, made at the first access."""
        if self._gpu is None:
            return Evaluator(self.engine, self.inputs, self.test)
        most_models = self._gpu.memory.most_models(EVAL_BATCH["cuda"])
        forget = self._gpu.forget
        return Evaluator(self.engine, self.inputs, self.test, most_models, forget)

    def train(self, tasks: Tasks) -> Update:
        """Train every task from its start parameters.

        Args:
            tasks: tasks of any clients and cells.

        Returns:
            One row per task, on the CPU, in the order of the tasks.

        Raises:
            ValueError: see `train_stacks`.
        """
        stacks = list[NDArray[np.int64]]()
        updates = list[Update]()
        for stack, update in self.train_stacks(tasks):
            stacks.append(stack)
            updates.append(Update(*(column.cpu() for column in update)))
        order = np.argsort(np.concatenate(stacks))
        return Update(*(torch.cat(part)[order] for part in zip(*updates, strict=True)))

    def train_stacks(self, tasks: Tasks) -> Iterator[tuple[NDArray[np.int64], Update]]:
        """Train tasks as `train` does, one stack after the other.

        Yields:
            The positions of a stack's tasks, and their rows, in this order. On a CPU
            all columns are there. On a GPU, `delta_MP`, `loss_M`, `accuracy_M` and
            `moments_MVP` are on the device, which may not have computed them yet; the
            next stack does not change them. The other columns are on the CPU.

        Raises:
            ValueError: a client holds no samples; or the model drew from torch's global
                generator (F.dropout in its forward), so that runs could not be
                repeated.
            TooLargeError: one task alone needs more memory than the GPU has.
            MemoryError: the starts of several tasks together need more.
        """
        held = self.samples_of(tasks)
        if self._gpu is None:
            yield from self._train_on_cpu(tasks, held)
        else:
            generator_before = self._generator_state()
            yield from self._gpu.train_stacks(tasks, held)
            self._check_generator(generator_before)

    @cached_property
    def _fused(self) -> Fused | None:
        """The engine, if it trains whole tasks in compiled loops here."""
        return as_fused(self.engine, self.inputs)

    @cached_property
    def _stored(self) -> Stored:
        """The training samples for compiled loops."""
        return self.inputs.stored()

    @cached_property
    def _gpu(self) -> "GpuTraining | None":
        """What trains on a GPU; None on a CPU."""
        if self.device.type == "cpu":
            return None
        # Imported here, because a run on a CPU needs none of it.
        from raysafl.training.gpu_training import GpuMemory, GpuTraining

        share = self._device_share
        memory = GpuMemory.of(self.model, self.objective, self.inputs, share)
        return GpuTraining(self.engine, self.inputs, self.resident, memory)

    def _generator_state(self) -> Tensor:
        """Return the state of the generator that torch's random layers draw from."""
        if self.device.type == "cuda":
            return torch.cuda.get_rng_state(self.device)
        return torch.random.get_rng_state()

    def _check_generator(self, before: Tensor) -> None:
        """Refuse a model that has drawn from the generator since it had this state."""
        if not torch.equal(self._generator_state(), before):
            raise ValueError(
                "the model draws from torch's global generator (F.dropout or "
                "torch.rand in its forward?), so its runs could not be repeated; use "
                "nn.Dropout layers, which raysafl seeds for every client"
            )

    def _train_on_cpu(
        self, tasks: Tasks, held: Held
    ) -> Iterator[tuple[NDArray[np.int64], Update]]:
        """Train tasks on a CPU, one stack after the other; see `train_stacks`.

        Args:
            tasks: the tasks.
            held: the samples that their clients hold.
        """
        is_compiled = self._fused and all(map(self._fused.covers, tasks.locals))
        at_once = max(COMPILED_STACK, COMPILED_PARAMETERS // self.model.num_parameters)

        def size_of(width: int, count: int) -> int:
            return at_once if is_compiled else self.engine.max_stack(width)

        steps = StepCounts.of(tasks, held.samples_T)
        for stack in steps.stacks(tasks, size_of):
            own = tasks[stack]
            plan = draw_plan(own, held.part(stack), steps.part(stack))
            if self._fused and self._fused.covers(own.locals[own.columns["local"][0]]):
                yield stack, self._train_compiled(self._fused, own, plan)
            else:
                yield stack, self._train(own, plan)

    @torch.no_grad()
    def _train(self, tasks: Tasks, plan: Plan) -> Update:
        """Train one stack on a CPU: tasks of one batch width and optimizer, the longest first.

        At step k the first active_K[k] tasks of the stack take a step.
        """
        generator_before = self._generator_state()
        stacked = plan.stacked()
        active_K = (stacked[..., 0] >= 0).sum(-1).tolist()

        # An absent sample weighs 0; the weights of the others in a batch add up to 1.
        index_KTB = torch.from_numpy(stacked)
        valid_KTB = index_KTB >= 0
        counts_KT = valid_KTB.sum(-1)
        weight_KTB = valid_KTB / counts_KT.clamp_min(1).unsqueeze(-1)
        y_KTB = self.inputs.y[index_KTB.clamp_min_(0)]

        start_TP = tasks.stacked("start")
        w_TP = start_TP.clone()
        optimizer = StackedOptimizer.of(tasks, start_TP)
        seed_KT = torch.zeros(index_KTB.shape[:2], dtype=torch.int64)
        if self.model.has_dropout or self.inputs.augment is not None:
            seed_KT = torch.from_numpy(step_seeds(tasks, plan.steps_T))
        loss_KTB = torch.zeros(index_KTB.shape)
        # Of a sample with several tokens, a share may be predicted correctly.
        correct_KTB = torch.zeros(index_KTB.shape)
        for k, active in enumerate(active_K):
            x_TB = self.inputs.x_at(index_KTB[k, :active], seed_KT[k, :active])
            batch = Batch(
                w_TP[:active],
                x_TB,
                y_KTB[k, :active],
                weight_KTB[k, :active],
                seed_KT[k, :active],
            )
            g_TP, loss_KTB[k, :active], correct_TB = self.engine.gradients(batch)
            correct_KTB[k, :active] = torch.nan if correct_TB is None else correct_TB
            optimizer.step(w_TP[:active], g_TP)
            # The next gradients may need the memory.
            del g_TP

        self._check_generator(generator_before)
        samples_T = counts_KT.sum(0)
        loss_T = (loss_KTB * valid_KTB).sum((0, 2), dtype=torch.float64) / samples_T
        correct_T = (correct_KTB * valid_KTB).sum((0, 2), dtype=torch.float64)
        accuracy_T = correct_T / samples_T
        rate_T = optimizer.lr_T1[:, 0] * plain_steps(tasks, plan.steps_T)
        steps_T = torch.from_numpy(plan.steps_T)
        delta_TP = start_TP.sub_(w_TP)
        columns = (steps_T, rate_T, samples_T, loss_T, accuracy_T)
        return Update(delta_TP, *columns, optimizer.kept())

    def _train_compiled(self, engine: Fused, tasks: Tasks, plan: Plan) -> Update:
        """Train tasks as `_train` does, with an engine that trains whole tasks."""
        delta_TP, tally_T3 = engine.train(tasks, plan, self._stored)
        loss_T, correct_T, samples_T = tally_T3.T
        steps_T = torch.from_numpy(plan.steps_T)
        columns = (
            steps_T,
            # Torch multiplies: numpy would warn of a product that is too large for float32.
            torch.from_numpy(tasks.columns["rate"].astype(np.float32)) * steps_T,
            torch.from_numpy(samples_T.astype(np.int64)),
            torch.from_numpy(loss_T / samples_T),
            torch.from_numpy(correct_T / samples_T),
        )
        return Update(delta_TP, *columns, delta_TP.new_empty(len(tasks), 0, 0))
