"""Local training of one client as a user of torch writes it: the reference of all engines."""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from helpers.frozen import plain_module
from helpers.tasks import Task, draw_batches
from raysafl.algorithms import Key
from raysafl.data import Samples
from raysafl.models import FlatModel
from raysafl.models.layers import Dropout, drawing_from


def of_rows(samples: Samples, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Samples as a model sees them: inputs scaled, if they are no tokens, and targets."""
    x, y = torch.from_numpy(samples.x[rows]), torch.from_numpy(samples.y[rows])
    return x if x.dtype == torch.int64 else x * samples.scale + samples.shift, y


def by_torch(
    flat: FlatModel,
    task: Task,
    samples: Samples,
    held: NDArray[np.int64],
    mean_loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
) -> tuple[Tensor, float]:
    """The task's start minus its end, and the mean loss of the samples that it has seen.

    The module is the recipe's own, but for dropout, whose masks the seeds of the task give.
    """
    module = plain_module(flat, task.w_P).train()
    for part in module.modules():
        if type(part) is nn.Dropout:
            part.__class__ = Dropout
    trained = [p for p in module.parameters() if p.requires_grad]
    local, rate = task.local, task.local.rate(task.round)
    decay = local.weight_decay
    optimiser: torch.optim.Optimizer = torch.optim.SGD(
        trained, rate, local.momentum, weight_decay=decay
    )
    if local.optimizer == "adam":
        optimiser = torch.optim.Adam(trained, rate, weight_decay=decay)
    x, y = of_rows(samples, held)
    key = Key(task.seed, task.round)
    plan = draw_batches(len(held), local, key(f"batches {task.call}", task.client))
    seeds = key(f"dropout {task.call}", task.client).integers(2**62, size=len(plan))
    total = 0.0
    for batch, seed in zip(plan, seeds, strict=True):
        rows = batch[batch >= 0]
        optimiser.zero_grad()
        with drawing_from(torch.tensor(seed)):
            loss = mean_loss(module(x[rows]), y[rows])
        loss.backward()
        if local.clip_norm is not None:
            nn.utils.clip_grad_norm_(trained, local.clip_norm)
        # The gradients of the terms are added to those of the loss.
        w_P = nn.utils.parameters_to_vector(trained)
        terms = task.prox / 2 * (w_P - task.w_P).square().sum()
        if task.offset_P is not None:
            terms = terms + task.offset_P @ w_P
        terms.backward()
        optimiser.step()
        total += loss.item() * len(rows)
    end_P = nn.utils.parameters_to_vector(trained).detach()
    return task.w_P - end_P, total / int((plan >= 0).sum())


def gradients_by_torch(
    module: nn.Module, w_TP: Tensor, x_TB: Tensor, y_TB: Tensor
) -> Tensor:
    """The gradients of the mean cross-entropy of a module, task after task."""
    rows = []
    for w_P, x_B, y_B in zip(w_TP, x_TB, y_TB, strict=True):
        nn.utils.vector_to_parameters(w_P, module.parameters())
        loss = F.cross_entropy(module(x_B).float(), y_B)
        parts = torch.autograd.grad(loss, list(module.parameters()))
        rows.append(nn.utils.parameters_to_vector(parts))
    return torch.stack(rows)
