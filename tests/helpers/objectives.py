"""Runs with two objectives on made-up numbers."""

import numpy as np

from raysafl import MLP, FedAvg, Federation, Iid, LocalTraining, Logistic, Run, Uniform
from raysafl.core.problem import Dataset
from raysafl.data import Samples, Source
from raysafl.objectives import Classification, Regression


class Slope(Source):
    """Numbers that depend linearly on two others, or whether they are above 0."""

    classes: bool = False

    def load(self) -> Dataset:
        x = np.random.default_rng(0).normal(size=(120, 2)).astype(np.float32)
        y = x @ np.array([2, -1], np.float32)
        if self.classes:
            y = (y > 0).astype(np.int64)
        train, test = Samples(x[:100], y[:100]), Samples(x[100:], y[100:])
        return Dataset("slope", train, test, 2 if self.classes else 0)


REGRESSION = Run(
    data=Federation(dataset=Slope(), clients=5, partition=Iid()),
    model=MLP(hidden=[4]),
    objective=Regression(),
    algorithm=FedAvg(),
    participation=Uniform(m=3),
    local=LocalTraining(lr=0.1, batch_size=8, epochs=1),
    rounds=6,
    replicates=2,
)
HUBER = REGRESSION.replace(objective=Regression(loss="huber"))
PLAIN = REGRESSION.replace(
    {
        "data.dataset": Slope(classes=True),
        "model": Logistic(),
        "objective": Classification(),
    }
)
DETAILED = PLAIN.replace(
    objective=Classification(metrics=("f1", "per_class_accuracy", "confusion"))
)
