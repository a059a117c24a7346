"""Means that are weighted by the clients' numbers of samples, McMahan et al. 2017."""

from typing import Any

import pytest
import torch
from helpers.played import final, simulation

from raysafl import (
    Algorithm,
    Dirichlet,
    Run,
    TrainMean,
)
from raysafl.algorithms import (
    CountSamples,
    Key,
    State,
)
from raysafl.core.algorithm import Round
from raysafl.core.problem import EVERYONE, SERVER


class Counting(Algorithm):
    """Keeps the numbers of samples that it is told."""

    def init(self, w_P: torch.Tensor, num_clients: int) -> State:
        return State(w_P, {"counts": torch.zeros(4, dtype=torch.int64)})

    def round(self, state: State, ids: list[int], key: Key) -> Round:
        counts = yield CountSamples([3, 0, SERVER, EVERYONE])
        yield TrainMean(state.w_P, ids)
        return State(state.w_P, {"counts": counts})


def test_an_algorithm_is_told_how_many_samples_clients_hold(tiny: Run) -> None:
    skewed = Dirichlet(alpha=0.1, balanced=False)
    data = tiny.data.replace(partition=skewed, partition_seeds=2)
    run = tiny.replace(data=data, algorithm=Counting(), rounds=1)
    sim = simulation(run)
    sim.step()
    worker: Any = sim.work
    assert worker.sizes(0) != worker.sizes(1)
    for cell, replicate in enumerate(sim.replicates):
        sizes, server = worker.sizes(cell)
        expected = [sizes[3], sizes[0], server, sum(sizes)]
        assert replicate.state.server["counts"].tolist() == expected


class Asking(Algorithm):
    """Asks for the samples of a client."""

    client: int = 10

    def round(self, state: State, ids: list[int], key: Key) -> Round:
        yield CountSamples([self.client])
        yield TrainMean(state.w_P, ids)
        return state


class Weighing(Algorithm):
    """Gives the cohort's clients weights."""

    weights: list[float]

    def round(self, state: State, ids: list[int], key: Key) -> Round:
        yield TrainMean(state.w_P, ids, weight_M=torch.tensor(self.weights))
        return state


@pytest.mark.parametrize(
    ("algorithm", "text"),
    [
        (Asking(), r"Asking\.round.*asked for client 10, but ids go from 0 to 9"),
        (
            Weighing(weights=[1, 2]),
            r"Weighing\.round.*weight_M is .* must be a tensor of shape \[3\]",
        ),
        (Weighing(weights=[1, -1, 2]), "weight_M is"),
        (Weighing(weights=[0, 0, 0]), "weight_M is"),
    ],
)
def test_a_request_that_makes_no_sense_is_explained(
    algorithm: Algorithm, text: str, tiny: Run
) -> None:
    with pytest.raises(ValueError, match=text):
        final(tiny.replace(algorithm=algorithm))
