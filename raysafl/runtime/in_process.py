"""The readable reference of `Work`: everything is computed in this process."""

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.problem import EVERYONE, SERVER, Dataset, FederatedData, Model
from raysafl.core.randomness import Key
from raysafl.core.users_parts import method_name, users_parts
from raysafl.core.work import Scores, Task, Trained
from raysafl.data.partitions import Partition
from raysafl.models import FlatModel
from raysafl.runtime.exact_mean import (
    ShareResult,
    combine_shares,
    count_averaged,
    reduce_share,
)
from raysafl.runtime.malloc import keep_freed_memory
from raysafl.training.trainer import LocalTrainer


class Worker:
    """All clients and the server of a run's replicates, on one device of this process.

    Args:
        data: How the dataset is split among clients and server.
        dataset: The training and test samples.
        model: The recipe of the model.
        seeds: One seed for each replicate.
        device: The torch device that trains and evaluates.
        engine: The engine's name, or "auto" to measure which is the fastest.
        batch_size: The usual batch size, for which an engine is chosen with "auto".

    Raises:
        ValueError: The partition, the server data or the model does not fit the
            dataset.

    Example:
        >>> from raysafl.quickstart import BASE
        >>> worker = Worker(BASE.data, BASE.data.load(), BASE.model, seeds=[0, 1])
        >>> [tuple(w_P.shape) for w_P in worker.init()]
        [(650,), (650,)]
    """

    def __init__(
        self,
        data: FederatedData,
        dataset: Dataset,
        model: Model,
        seeds: Sequence[int],
        device: str = "cpu",
        engine: str = "auto",
        batch_size: int = 32,
    ) -> None:
        keep_freed_memory()
        self.data = data
        self.seeds = seeds

        # Replicates may share a partition; each distinct one is made once.
        by_split_seed = {
            seed: data.split(dataset, seed) for seed in set(map(data.split_seed, seeds))
        }
        self.splits = [by_split_seed[data.split_seed(seed)] for seed in seeds]
        self._sample_bytes = dataset.train.sample_bytes

        flat = FlatModel(model, dataset.train.x.shape[1:], dataset.num_classes)
        # Without this bound, the engine would be chosen for batches wider than any client's.
        largest = max(int(split.clients.sizes.max()) for split in self.splits)
        batch_size = min(batch_size, largest)
        self.trainer = LocalTrainer(
            flat,
            dataset,
            self.held,
            device,
            engine,
            batch_size,
        )

    def held(self, replicate: int, client: int) -> NDArray[np.int64]:
        """Return the indices of the samples that a client trains on.

        Raises:
            ValueError: there are none.
        """
        held = self.splits[replicate].of(client)
        if not len(held):
            raise ValueError(_why_empty(self.data, client))
        return held

    def init(self) -> list[Tensor]:
        """Return the initial parameters w_P of each replicate."""
        return [self.trainer.model.init(Key(seed)) for seed in self.seeds]

    def sizes(self) -> list[tuple[list[int], int]]:
        """Return each replicate's sample counts: of every client, and of the server."""
        return [(s.clients.sizes.tolist(), len(s.server)) for s in self.splits]

    def shared_bytes(self) -> list[int]:
        """Return the bytes of shared samples per client; see `Work.shared_bytes`."""
        return [split.shared * self._sample_bytes for split in self.splits]

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
        return reduce_share(tasks, self.trainer.train(tasks), counts)

    def evaluate(self, w: Mapping[int, Tensor]) -> Callable[[], Scores]:
        """Evaluate each replicate's parameters; see `Work.evaluate`.

        Here the evaluation is done before the function is returned.
        """
        accuracy_R, loss_R = self.trainer.evaluator.evaluate(
            torch.stack(list(w.values()))
        )
        pairs = zip(accuracy_R.tolist(), loss_R.tolist(), strict=True)
        scores = dict(zip(w, pairs, strict=True))
        return lambda: scores

    def train_accuracy(
        self, w: Mapping[int, Tensor], ids: Mapping[int, Sequence[int]]
    ) -> dict[int, float]:
        """Return each replicate's accuracy (in [0, 1]) on some clients' samples."""
        return {
            r: self.count_correct(r, w[r], ids[r]) / self.samples(r, ids[r])
            for r in ids
        }

    def count_correct(
        self,
        replicate: int,
        w_P: Tensor,
        ids: Sequence[int],
        share: slice = slice(None),
    ) -> int:
        """Return how many of some clients' training samples are classified correctly.

        Args:
            replicate: The number of the replicate, which determines who holds which
                samples.
            w_P: The parameters to evaluate.
            ids: The clients.
            share: The part of their samples, joined in the order of `ids`, that is
                counted.
        """
        held = np.concatenate([self.splits[replicate].of(i) for i in ids])
        return self.trainer.evaluator.count_correct(w_P, held[share])

    def samples(self, replicate: int, ids: Sequence[int]) -> int:
        """Return the number of training samples that these clients hold together."""
        return sum(self.splits[replicate].size(i) for i in ids)

    def gradients(self, replicate: int, w_NP: Tensor) -> Tensor:
        """Return the full gradient [N, P] of each client i's objective at w_NP[i]."""
        return self.trainer.gradients(w_NP, self.splits[replicate].clients)

    def server_gradient(self, replicate: int, w_P: Tensor) -> Tensor | None:
        """Return the full gradient [P] of the server's objective, None without data."""
        held = self.splits[replicate].server
        return self.trainer.gradients(w_P[None], [held])[0] if len(held) else None

    def batch_gradients(
        self, replicate: int, client: int, w_P: Tensor, size: int, draws: int, key: Key
    ) -> Tensor:
        """Return the gradients [draws, P] of independent mini-batches of one client.

        Args:
            replicate: The number of the replicate, which determines who holds which
                samples.
            client: The client's id, or SERVER.
            w_P: The parameters at which gradients are taken.
            size: Samples per mini-batch, drawn without replacement (all, if there are
                fewer).
            draws: Number of mini-batches.
            key: The source of randomness.
        """
        held = self.splits[replicate].of(client)
        rng = key("gradient noise", client)
        picks = [
            rng.choice(held, min(size, len(held)), replace=False) for _ in range(draws)
        ]
        return self.trainer.gradients(w_P.expand(draws, -1), picks)


def _why_empty(data: FederatedData, client: int) -> str:
    """Say that a client, SERVER or EVERYONE has no samples, and what to change."""
    if client == SERVER:
        return (
            "the algorithm trains on the server's data, but the server holds none; give "
            "data.server, for example IidServer(n0=100), and let the property "
            "uses_server_data of the algorithm be True"
        )
    who = "the clients hold" if client == EVERYONE else f"client {client} holds"
    method = "spread" if users_parts(data, Partition) else "split"
    return (
        f"{method_name(data, Partition, method)} leaves a client empty that is to "
        f"train: {who} no samples. Give it at least one, or let the policy never pick it"
    )
