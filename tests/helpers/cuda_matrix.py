"""Small runs of every algorithm on several kinds of models, for the emulated device."""

import numpy as np
from torch import nn

from raysafl import (
    CNN,
    Algorithm,
    CharLSTM,
    Dataset,
    Federation,
    FedAvg,
    IidServer,
    LocalTraining,
    Logistic,
    Model,
    Run,
    Samples,
    Uniform,
)
from raysafl.data.sources import Source

CLASSES = 4


class SmallImages(Source):
    """Images [1, 6, 6] of noise around a shade for each class."""

    def load(self) -> Dataset:
        """200 training and 60 test images."""
        rng = np.random.default_rng(0)

        def samples(count: int) -> Samples:
            y = np.arange(count) % CLASSES
            x = y[:, None, None, None] / CLASSES + rng.normal(0, 0.5, (count, 1, 6, 6))
            return Samples(x.astype(np.float32), y)

        return Dataset("small images", samples(200), samples(60), CLASSES)


class SmallTexts(Source):
    """Texts of 5 tokens, of which the last one gives the class."""

    def load(self) -> Dataset:
        """200 training and 60 test texts."""
        rng = np.random.default_rng(0)

        def samples(count: int) -> Samples:
            x = rng.integers(0, CLASSES, (count, 5))
            return Samples(x, x[:, -1].copy())

        return Dataset("small texts", samples(200), samples(60), CLASSES)


class WithDropout(Model):
    """Two dense layers with dropout between them."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build the layers."""
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(36, 8),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(8, num_classes),
        )


MODELS: dict[str, Model] = {
    "logistic": Logistic(),
    "CNN": CNN(channels=[3], hidden=8),
    "dropout": WithDropout(),
    "LSTM": CharLSTM(embedding=3, hidden=5, layers=1, dropout=0.2),
}
ENGINES = {
    "logistic": ("linear", "loop", "vmap", "graph"),
    "CNN": ("loop", "vmap", "graph"),
    "dropout": ("loop", "vmap", "graph"),
    # vmap does not stack recurrent layers.
    "LSTM": ("loop",),
}


def small_run(model: str, algorithm: Algorithm | None = None) -> Run:
    """Two replicates of 3 rounds, with clients of unequal sizes and a server's data."""
    dataset = SmallTexts() if model == "LSTM" else SmallImages()
    return Run(
        data=Federation(dataset=dataset, clients=6, server=IidServer(n0=20)),
        model=MODELS[model],
        algorithm=algorithm or FedAvg(),
        participation=Uniform(m=3),
        local=LocalTraining(lr=0.1, batch_size=8, epochs=1),
        rounds=3,
        replicates=2,
        eval_every=2,
    )
