"""A coordinator gives its client actors the frozen parameters that it has itself."""

import math
import os
import sys
from typing import Any

import pytest
import ray
import torch
from helpers.here import session_of
from torch import nn

from raysafl import Hardware, Model, Run
from raysafl.runtime.in_process import Worker
from raysafl.sweep.news import GivenPack, Terms
from raysafl.sweep.on_ray.coordinator import NEWS, Coordinator, Given
from raysafl.sweep.packs import PACK_KEY, Pack


class PerProcess(Model):
    """A linear layer with frozen weights beside it that differ in every process."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build both, as a file would that is another one on each machine."""
        first = nn.Linear(math.prod(input_shape), 8).requires_grad_(False)
        rng = torch.Generator().manual_seed(os.getpid())
        first.weight.copy_(torch.randn(first.weight.shape, generator=rng))
        return nn.Sequential(nn.Flatten(), first, nn.Linear(8, num_classes))


@pytest.mark.acceptance
@pytest.mark.usefixtures("ray_local")
def test_all_client_actors_compute_with_the_coordinators_frozen_parameters(
    tiny: Run,
) -> None:
    # Ray's workers cannot import it.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    run = tiny.replace(model=PerProcess())
    worker = Worker(run.cells, run.data.load(), run.model, engine="loop")
    session = session_of([run], worker)
    session.advance(math.inf)

    terms = Terms(commit="", package="", report_seconds=0.0, engine="loop")
    pack = Pack(tuple(run.split()))
    content = ray.put(GivenPack(pack, {cell: {} for cell in run.cell_ids}))
    given = Given(pack.id, content, ray.put(run.data.load()))

    class Here(Coordinator):
        def setup(self, config: dict[str, Any], *_: Any) -> None:
            super().setup(config, terms, Hardware(actors=2, cpus=0.5))

    trial = Here({PACK_KEY: given})
    while not (result := trial.train())["done"]:
        pass
    trial.stop()
    facts = ["cell", "round", "test_accuracy", "test_loss", "bytes_up"]
    found, expected = (
        news.rows.select(facts).sort_by([("cell", "ascending"), ("round", "ascending")])
        for news in (result[NEWS], session.news())
    )
    assert found.equals(expected)
