"""A coordinator gives its client actors the frozen parameters that it has itself."""

import math
import os
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import ray
import torch
from helpers.here import run_in_process
from torch import nn

from raysafl import Hardware, Model, Run
from raysafl.runtime.in_process import Worker
from raysafl.storage.store import Store
from raysafl.sweep.on_ray.coordinator import Coordinator, Given
from raysafl.sweep.open_pack import Terms
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
    tmp_path: Path, tiny: Run
) -> None:
    # Ray's workers cannot import it.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    run = tiny.replace(model=PerProcess())
    stores = Store(tmp_path / "actors"), Store(tmp_path / "here")
    for store in stores:
        store.create()
    worker = Worker(run.cells, run.data.load(), run.model, engine="loop")
    run_in_process(run, stores[1], worker)

    terms = Terms(
        store=stores[0].path,
        commit="",
        report_seconds=0.0,
        engine="loop",
    )
    pack = Pack((run,))
    content = ray.put((pack, {run.id: {}}))
    given = Given(pack.id, content, ray.put(run.data.load()))

    class Here(Coordinator):
        def setup(self, config: dict[str, Any], *_: Any) -> None:
            super().setup(config, terms, Hardware(actors=2, cpus=0.5))

    trial = Here({PACK_KEY: given})
    while not trial.train()["done"]:
        pass
    trial.stop()
    facts = ["replicate", "round", "test_accuracy", "test_loss", "bytes_up"]
    pd.testing.assert_frame_equal(stores[0].rounds()[facts], stores[1].rounds()[facts])
