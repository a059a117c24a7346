"""Gradients of many models at once: several ways to the same numbers.

Suffixes: _T tasks (each with its own parameters), _P flat parameters, _B batch, _C classes,
_D inputs. An engine maps (w_TP, x_TB, y_TB, weight_TB, seed_T) to (g_TP, loss_TB, correct_TB):
the gradient of sum_B weight * cross-entropy, and per sample the cross-entropy and whether it was
classified rightly. The int64 seed of a task is all that its dropout masks depend on.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from raysafl.models import FlatModel

STACK = 32  # tasks
STEP = 4096  # samples in a step of stacked tasks: some 3 GB for a small convolutional network


class Gradients(NamedTuple):
    """What an engine gives back."""

    g_TP: Tensor
    loss_TB: Tensor
    correct_TB: Tensor


class Engine(Protocol):
    """A way to compute gradients of many tasks, and logits for evaluation."""

    def max_stack(self, width: int) -> int:
        """How many tasks with batches of this width take their steps together, at most.

        It does not depend on the machine, so that results do not.
        """

    def gradients(
        self, w_TP: Tensor, x_TB: Tensor, y_TB: Tensor, weight_TB: Tensor, seed_T: Tensor | None
    ) -> Gradients:
        """Gradients of the weighted cross-entropy, per task; without seeds nothing is dropped."""

    def logits(self, w_RP: Tensor, x_B: Tensor) -> Tensor:
        """[models, batch, classes] of several models on one batch."""


class Loop:
    """The reference: one task after the other, through autograd.

    Images go in channels_last, in which convolutions on a CPU take two thirds of the time. A task
    takes all its steps before the next one begins: its parameters stay in the core's cache.
    """

    def __init__(self, model: FlatModel) -> None:
        self.model = model

    def max_stack(self, width: int) -> int:
        """One: see above."""
        return 1

    def gradients(
        self, w_TP: Tensor, x_TB: Tensor, y_TB: Tensor, weight_TB: Tensor, seed_T: Tensor | None
    ) -> Gradients:
        """One backward pass per task."""
        rows = []
        seeds = [None] * len(w_TP) if seed_T is None else seed_T
        columns = (w_TP, x_TB, y_TB, weight_TB, seeds)
        for w_P, x_B, y_B, weight_B, seed in zip(*columns, strict=True):
            leaves = {
                name: w.detach().requires_grad_()
                for name, w in self.model.named_parameters(w_P).items()
            }
            with torch.enable_grad():
                logits_BC = self.model.forward(leaves, _channels_last(x_B), seed)
                loss_B = F.cross_entropy(logits_BC, y_B, reduction="none")
                loss = (loss_B * weight_B).sum()
                parts = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
            g_P = torch.cat([part.reshape(-1) for part in parts])
            rows.append((g_P, loss_B.detach(), logits_BC.argmax(-1) == y_B))
        return Gradients(*(_stack(column) for column in zip(*rows, strict=True)))

    def logits(self, w_RP: Tensor, x_B: Tensor) -> Tensor:
        """One forward pass per model."""
        x_B = _channels_last(x_B)
        return torch.stack([self.model.logits(w_P, x_B) for w_P in w_RP])


def _stack(rows: Sequence[Tensor]) -> Tensor:
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(list(rows))


def _channels_last(x_B: Tensor) -> Tensor:
    return x_B.contiguous(memory_format=torch.channels_last) if x_B.ndim == 4 else x_B


class Vmap(Loop):
    """All tasks in one call, through torch.func: gains on small models and on GPUs.

    Raises:
        ValueError: the module does what vmap does not allow (branches on data, `.item()`, ...).
    """

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)

        def loss(
            w_P: Tensor, x_B: Tensor, y_B: Tensor, weight_B: Tensor, seed: Tensor
        ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            logits_BC = model.logits(w_P, x_B, seed, stacked=True)
            loss_B = F.cross_entropy(logits_BC, y_B, reduction="none")
            return (loss_B * weight_B).sum(), (loss_B, logits_BC.argmax(-1) == y_B)

        self._grad = torch.func.vmap(torch.func.grad(loss, has_aux=True))

    def max_stack(self, width: int) -> int:
        """As many as have `STEP` samples, for memory's sake."""
        return max(1, min(STACK, STEP // width))

    def gradients(
        self, w_TP: Tensor, x_TB: Tensor, y_TB: Tensor, weight_TB: Tensor, seed_T: Tensor | None
    ) -> Gradients:
        """One vectorised forward and backward pass."""
        if seed_T is None:
            return super().gradients(w_TP, x_TB, y_TB, weight_TB, None)
        try:
            g_TP, (loss_TB, correct_TB) = self._grad(w_TP, x_TB, y_TB, weight_TB, seed_T)
        except RuntimeError as error:
            raise ValueError(
                "the model does not run under the engine vmap, which trains many clients as one "
                f"program; give --engine loop (torch says: {str(error).partition(chr(10))[0]})"
            ) from error
        return Gradients(g_TP, loss_TB, correct_TB)

    def logits(self, w_RP: Tensor, x_B: Tensor) -> Tensor:
        """All models at once on a GPU, which one would not fill."""
        if not w_RP.is_cuda:
            return super().logits(w_RP, x_B)
        one = functools.partial(self.model.logits, stacked=True)
        out: Tensor = torch.func.vmap(one, (0, None))(w_RP, x_B)
        return out


class Graph(Vmap):
    """Vmap recorded as a CUDA graph per shape: a GPU's kernels without Python between them.

    On a CPU it is Vmap.
    """

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)
        self.recorded: dict[tuple[torch.Size, ...], tuple[list[Tensor], Any, Gradients]] = {}
        self._pool: Any = None  # what a graph computes is copied before the next one: they share

    def gradients(
        self, w_TP: Tensor, x_TB: Tensor, y_TB: Tensor, weight_TB: Tensor, seed_T: Tensor | None
    ) -> Gradients:
        """Copy the arguments to where the graph reads them, and replay it."""
        if seed_T is None or not w_TP.is_cuda:
            return super().gradients(w_TP, x_TB, y_TB, weight_TB, seed_T)
        given = [w_TP, x_TB, y_TB, weight_TB, seed_T]
        shapes = tuple(part.shape for part in given)
        if shapes not in self.recorded:
            self.recorded[shapes] = self._record([part.clone() for part in given])
        inputs, graph, out = self.recorded[shapes]
        for held, new in zip(inputs, given, strict=True):
            held.copy_(new)
        graph.replay()
        return Gradients(*(part.clone() for part in out))

    def _record(self, inputs: list[Tensor]) -> tuple[list[Tensor], Any, Gradients]:
        """Run once on a side stream, so that libraries are set up, then record."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            super().gradients(*inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            out = super().gradients(*inputs)
        self._pool = graph.pool()
        return inputs, graph, out
