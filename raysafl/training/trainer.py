"""Local training of many tasks at once, and evaluation.

A task is one client's (or the server's) local training from its start parameters. Tasks of
many clients and of many replicates are stacked and take their SGD steps together; what differs
(samples, number of steps, rate, offset, proximal weight) is data. Ragged batches are exact:
absent samples weigh nothing, and a task that has taken its steps is left alone.

Suffixes: _T tasks, _P flat parameters, _K local steps, _B batch, _R replicates.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.algorithm import Update
from raysafl.core.problem import Dataset
from raysafl.core.randomness import Key
from raysafl.core.work import Task
from raysafl.models import FlatModel
from raysafl.training.engine_choice import choose, make
from raysafl.training.engines import Engine
from raysafl.training.evaluation import EVAL_BATCH, SPAN
from raysafl.training.inputs import Inputs, batches
from raysafl.training.linear import Fused
from raysafl.training.optimizer import Descent, reach

GRADIENT_BATCH = 250


class LocalTrainer:
    """Trains tasks and evaluates models on one device.

    `held(replicate, client)` gives the training samples of a client (or SERVER). `batch_size` is
    the usual one, for which the engine is chosen.
    """

    def __init__(
        self,
        model: FlatModel,
        dataset: Dataset,
        held: Callable[[int, int], NDArray[np.int64]],
        device: str = "cpu",
        engine: str = "auto",
        batch_size: int = 32,
    ) -> None:
        for part in (dataset.train, dataset.test):
            if len(part.y) and not 0 <= part.y.min() <= part.y.max() < dataset.num_classes:
                raise ValueError(
                    f"labels of '{dataset.name}' must be 0 to {dataset.num_classes - 1}, not "
                    f"{part.y.min()} to {part.y.max()}"
                )
        self.device = torch.device(device)
        self.model = model
        model.module.to(self.device)
        self._asked, self._batch_size = engine, batch_size
        self.inputs = Inputs(dataset.train, self.device)
        self.test = Inputs(dataset.test, self.device)
        self.held = held

    @cached_property
    def engine_name(self) -> str:
        """The engine asked for; with "auto" the one that is fastest on batches of this size."""
        if self._asked != "auto":
            return self._asked
        size = min(self._batch_size, len(self.inputs.y))
        return choose(self.model, *self.inputs.at(torch.arange(size, device=self.device)[None]))

    @cached_property
    def engine(self) -> Engine:
        """How gradients and logits are computed."""
        return make(self.engine_name, self.model)

    @cached_property
    def _fused(self) -> Fused | None:
        """The engine, if it trains whole tasks here: on a CPU, and not on tokens."""
        fits = self.device.type == "cpu" and self.inputs.x.dtype != torch.int64
        return self.engine if isinstance(self.engine, Fused) and fits else None

    @torch.no_grad()
    def train(self, tasks: Sequence[Task]) -> Update:
        """Train every task; rows on the CPU, in the order given.

        Raises:
            ValueError: the model drew from torch's global generator (F.dropout in its forward),
                so that runs could not be repeated.
        """
        before = self._generator()
        plans = [self._plan(task) for task in tasks]
        chunks = _chunks(tasks, plans, self._stack(tasks))
        parts = (self._train([tasks[i] for i in c], [plans[i] for i in c]) for c in chunks)
        if len(chunks) == 1:
            update = Update(*(column.cpu() for column in next(parts)))
        else:
            update = _joined(parts, len(tasks), self.model.size)
        if not torch.equal(self._generator(), before):
            raise ValueError(
                "the model draws from torch's global generator (F.dropout or torch.rand in its "
                "forward?), so its runs could not be repeated; use nn.Dropout layers, which "
                "raysafl seeds for every client"
            )
        order = [i for chunk in chunks for i in chunk]
        if order == sorted(order):
            return update
        return Update(*(column[np.argsort(order)] for column in update))

    def _stack(self, tasks: Sequence[Task]) -> Callable[[int], int]:
        """How many tasks of a batch width are trained together, at most."""
        if self._fused and all(self._fused.covers(task.sgd) for task in tasks):
            return lambda width: len(tasks)  # one after the other in one call
        return self.engine.stack

    def _generator(self) -> Tensor:
        """The state of the generator that random layers on this device would draw from."""
        if self.device.type == "cuda":
            return torch.cuda.get_rng_state(self.device)
        return torch.random.get_rng_state()

    def _plan(self, task: Task) -> NDArray[np.int64]:
        """The training samples [K, B] of a task's steps, padded with -1."""
        held = self.held(task.replicate, task.client)
        rng = Key(task.seed, task.round)(f"batches {task.call}", task.client)
        picks = batches(len(held), task.sgd, rng)
        rows = held[picks]
        if len(held) % picks.shape[1]:  # the last batch of a pass is short
            rows[picks < 0] = -1
        return rows

    def _train(self, tasks: list[Task], plans: list[NDArray[np.int64]]) -> Update:
        """Steps of tasks with one batch width and kind of optimizer, the longest first."""
        if self._fused and self._fused.covers(tasks[0].sgd):
            return self._descend(self._fused, tasks, plans)
        steps_T = torch.tensor([len(plan) for plan in plans])
        stacked = np.full((len(plans[0]), len(tasks), plans[0].shape[1]), -1)
        for t, plan in enumerate(plans):
            stacked[: len(plan), t] = plan
        active_K = (stacked[..., 0] >= 0).sum(-1).tolist()
        index_KTB = torch.from_numpy(stacked).to(self.device)
        valid_KTB = index_KTB >= 0
        counts_KT = valid_KTB.sum(-1)
        weight_KTB = valid_KTB / counts_KT.clamp_min(1).unsqueeze(-1)
        y_KTB = self.inputs.y[index_KTB.clamp_min_(0)]
        start_TP = torch.stack([task.w_P for task in tasks]).to(self.device)
        w_TP = start_TP.clone()
        descent, seed_KT = Descent(tasks, start_TP), self._seeds(tasks, plans)
        loss_KTB = torch.zeros(index_KTB.shape, device=self.device)
        correct_KTB = torch.zeros_like(valid_KTB)
        for k, a in enumerate(active_K):
            x_TB = self.inputs.x_at(index_KTB[k, :a])
            g_TP, loss_KTB[k, :a], correct_KTB[k, :a] = self.engine.gradients(
                w_TP[:a], x_TB, y_KTB[k, :a], weight_KTB[k, :a], seed_KT[k, :a]
            )
            descent.step(w_TP[:a], g_TP)
        samples_T = counts_KT.sum(0)
        loss_T = (loss_KTB * valid_KTB).sum((0, 2), dtype=torch.float64) / samples_T
        accuracy_T = (correct_KTB & valid_KTB).sum((0, 2)).double() / samples_T
        rate_T = descent.lr_T1[:, 0].cpu() * reach(tasks, steps_T)
        delta_TP = start_TP.sub_(w_TP)
        return Update(delta_TP, steps_T, rate_T, samples_T, loss_T, accuracy_T)

    def _descend(self, engine: Fused, tasks: list[Task], plans: list[NDArray[np.int64]]) -> Update:
        """What `_train` does, where the engine can train whole tasks."""
        delta_TP, tally = engine.descend(tasks, plans, self.inputs.stored())
        loss_T, correct_T, samples_T = map(torch.from_numpy, tally)
        steps_T = torch.tensor([len(plan) for plan in plans])
        rate_T = torch.tensor([task.sgd.rate(task.round) for task in tasks]) * steps_T
        loss_T, accuracy_T = loss_T / samples_T, correct_T.double() / samples_T
        return Update(delta_TP, steps_T, rate_T, samples_T, loss_T, accuracy_T)

    def _seeds(self, tasks: list[Task], plans: list[NDArray[np.int64]]) -> Tensor:
        """Each task's seed for dropout at each of its steps (zeros if the model has none)."""
        seed_KT = torch.zeros(len(plans[0]), len(tasks), dtype=torch.int64)
        for t, task in enumerate(tasks if self.model.drops else []):
            rng = Key(task.seed, task.round)(f"dropout {task.call}", task.client)
            steps = len(plans[t])
            seed_KT[:steps, t] = torch.from_numpy(rng.integers(2**62, size=steps))
        return seed_KT.to(self.device)

    @torch.no_grad()
    def gradients(self, w_TP: Tensor, held: Sequence[NDArray[np.int64]]) -> Tensor:
        """Gradients of the mean cross-entropy over `held[t]`, each at its own w_TP[t]; [T, P]."""
        size = self.engine.stack(GRADIENT_BATCH)
        rows = [
            self._gradients(w_TP[t : t + size], held[t : t + size])
            for t in range(0, len(held), size)
        ]
        return torch.cat(rows).cpu()

    def _gradients(self, w_TP: Tensor, held: Sequence[NDArray[np.int64]]) -> Tensor:
        w_TP = w_TP.to(self.device)
        counts_T1 = torch.tensor([[len(rows)] for rows in held], device=self.device)
        total_TP = torch.zeros_like(w_TP)
        for start in range(0, int(counts_T1.max()), GRADIENT_BATCH):
            width = min(GRADIENT_BATCH, int(counts_T1.max()) - start)
            index_TB = torch.full((len(held), width), -1)
            for t, rows in enumerate(held):
                part = torch.from_numpy(rows[start : start + width])
                index_TB[t, : len(part)] = part
            index_TB = index_TB.to(self.device)
            x_TB, y_TB = self.inputs.at(index_TB.clamp_min(0))
            weight_TB = (index_TB >= 0) / counts_T1
            total_TP += self.engine.gradients(w_TP, x_TB, y_TB, weight_TB, None).g_TP
        return total_TP

    @property
    def spans(self) -> list[int]:
        """Where the parts of the test set begin that are evaluated one by one."""
        return list(range(0, len(self.test.y), SPAN))

    def evaluate(self, w_RP: Tensor) -> tuple[Tensor, Tensor]:
        """Test accuracy (fraction) and mean cross-entropy of each model, [R] float64."""
        accuracy_R, loss_R = self.mean([self.sums(w_RP, start) for start in self.spans])
        return accuracy_R, loss_R

    def mean(self, sums_S2R: Sequence[Tensor]) -> Tensor:
        """Accuracies and mean losses, [2, R], from the sums over all spans, in their order."""
        total_2R = torch.zeros_like(sums_S2R[0])
        for sums_2R in sums_S2R:
            total_2R += sums_2R
        return total_2R / len(self.test.y)

    @torch.no_grad()
    def sums(self, w_RP: Tensor, start: int) -> Tensor:
        """Samples classified rightly and sum of cross-entropies over a span, [2, R] float64."""
        stop = min(start + SPAN, len(self.test.y))
        if self._fused:
            return self._fused.score(w_RP, self.test.stored(start, stop))
        w_RP = w_RP.to(self.device)
        sums_2R = torch.zeros(2, len(w_RP), dtype=torch.float64, device=self.device)
        size = EVAL_BATCH[self.device.type]
        for at in range(start, stop, size):
            x_B, y_B = self.test.span(at, min(at + size, stop))
            logits_RBC = self.engine.logits(w_RP, x_B)
            sums_2R[0] += (logits_RBC.max(-1).indices == y_B).sum(-1)
            right_RB = logits_RBC.gather(-1, y_B.expand(len(w_RP), -1).unsqueeze(-1)).squeeze(-1)
            loss_RB = logits_RBC.logsumexp(-1) - right_RB
            sums_2R[1] += loss_RB.sum(-1, dtype=torch.float64)
        return sums_2R.cpu()

    @torch.no_grad()
    def correct(self, w_P: Tensor, held: NDArray[np.int64]) -> int:
        """How many of these training samples are classified rightly."""
        w_RP, correct = w_P[None].to(self.device), 0
        for index_B in torch.from_numpy(held).to(self.device).split(EVAL_BATCH[self.device.type]):
            x_B, y_B = self.inputs.at(index_B)
            correct += int((self.engine.logits(w_RP, x_B)[0].argmax(-1) == y_B).sum())
        return correct


def _joined(parts: Iterable[Update], tasks: int, size: int) -> Update:
    """The rows of all parts, on the CPU; one part at a time is held beside them."""
    steps, samples = (torch.empty(tasks, dtype=torch.int64) for _ in range(2))
    loss, accuracy = (torch.empty(tasks, dtype=torch.float64) for _ in range(2))
    update = Update(torch.empty(tasks, size), steps, torch.empty(tasks), samples, loss, accuracy)
    stop = 0
    for part in parts:
        start, stop = stop, stop + len(part.delta_MP)
        for column, new in zip(update, part, strict=True):
            column[start:stop] = new
    return update


def _chunks(
    tasks: Sequence[Task], plans: Sequence[NDArray[np.int64]], stack: Callable[[int], int]
) -> list[list[int]]:
    """Tasks of one batch width and optimizer together, longest first; `stack(width)` at most."""

    def kind(i: int) -> tuple[int, str, bool]:
        return plans[i].shape[1], tasks[i].sgd.optimizer, tasks[i].sgd.momentum > 0

    chunks: list[list[int]] = []
    for i in sorted(range(len(plans)), key=lambda i: (kind(i), -len(plans[i]))):
        last = chunks[-1] if chunks else []
        if not last or len(last) == stack(plans[i].shape[1]) or kind(last[0]) != kind(i):
            chunks.append([])
        chunks[-1].append(i)
    return chunks
