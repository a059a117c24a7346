"""The readable reference of `Work`: everything in this process."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from raysafl.core.algorithm import Update
from raysafl.core.problem import Dataset, FederatedData, Model
from raysafl.core.randomness import Key
from raysafl.core.work import Scores, Task
from raysafl.models import FlatModel
from raysafl.runtime.exact_mean import Reply, averaged, combine, reduce
from raysafl.runtime.malloc import keep_freed_memory
from raysafl.training.trainer import LocalTrainer


class Worker:
    """Hosts all clients and the server of a run's replicates on one device.

    Raises:
        ValueError: the partition or server data does not fit the dataset, or the model does not.
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
        made = {own: data.split(dataset, own) for own in set(map(data.split_seed, seeds))}
        self.splits = [made[data.split_seed(seed)] for seed in seeds]
        self.seeds = seeds
        flat = FlatModel(model, dataset.train.x.shape[1:], dataset.num_classes)
        largest = max(int(split.clients.sizes.max()) for split in self.splits)
        batch_size = min(batch_size, largest)
        self.trainer = LocalTrainer(
            flat, dataset, lambda r, client: self.splits[r].of(client), device, engine, batch_size
        )

    def init(self) -> list[Tensor]:
        """The initial parameters w_P of each replicate."""
        return [self.trainer.model.init(Key(seed)) for seed in self.seeds]

    def sizes(self) -> list[tuple[list[int], int]]:
        """How many samples each client and the server hold, in each replicate."""
        return [(s.clients.sizes.tolist(), len(s.server)) for s in self.splits]

    def train(self, tasks: Sequence[Task]) -> Update:
        """Train all tasks; rows in the order given, means where tasks ask for them."""
        return combine(tasks, [range(len(tasks))], [self.reply(tasks, averaged(tasks))])

    def reply(self, tasks: Sequence[Task], counts: Mapping[int, int]) -> Reply:
        """Train tasks that may be a share of all, whose `averaged` are given.

        `combine` makes the update of it.
        """
        return reduce(tasks, self.trainer.train(tasks), counts)

    def evaluate(self, w: Mapping[int, Tensor]) -> Callable[[], Scores]:
        """Test accuracy and mean loss of each replicate's parameters, at once."""
        accuracy_R, loss_R = self.trainer.evaluator.evaluate(torch.stack(list(w.values())))
        scores = zip(accuracy_R.tolist(), loss_R.tolist(), strict=True)
        found = dict(zip(w, scores, strict=True))
        return lambda: found

    def train_accuracy(
        self, w: Mapping[int, Tensor], ids: Mapping[int, Sequence[int]]
    ) -> dict[int, float]:
        """What share of some clients' training samples each replicate's parameters get right."""
        return {r: self.correct(r, w[r], ids[r]) / self.samples(r, ids[r]) for r in ids}

    def correct(
        self, replicate: int, w_P: Tensor, ids: Sequence[int], share: slice = slice(None)
    ) -> int:
        """How many of some clients' training samples, or of a share, are classified rightly."""
        held = np.concatenate([self.splits[replicate].of(i) for i in ids])
        return self.trainer.evaluator.count_correct(w_P, held[share])

    def samples(self, replicate: int, ids: Sequence[int]) -> int:
        """How many training samples these clients hold."""
        return sum(self.splits[replicate].size(i) for i in ids)

    def gradients(self, replicate: int, w_NP: Tensor) -> Tensor:
        """Full gradients of all clients' objectives, client i at w_NP[i]; [N, P]."""
        return self.trainer.gradients(w_NP, self.splits[replicate].clients)

    def server_gradient(self, replicate: int, w_P: Tensor) -> Tensor | None:
        """Full gradient of the server's objective, or None if it holds no data."""
        held = self.splits[replicate].server
        return self.trainer.gradients(w_P[None], [held])[0] if len(held) else None

    def batch_gradients(
        self, replicate: int, client: int, w_P: Tensor, size: int, draws: int, key: Key
    ) -> Tensor:
        """Gradients of `draws` independent mini-batches of a client (or SERVER), [draws, P].

        Each is drawn without replacement, `size` samples or all there are.
        """
        held, rng = self.splits[replicate].of(client), key("gradient noise", client)
        picks = [rng.choice(held, min(size, len(held)), replace=False) for _ in range(draws)]
        return self.trainer.gradients(w_P.expand(draws, -1), picks)
