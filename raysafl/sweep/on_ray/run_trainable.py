"""The trainable of Ray Tune that `raysafl.sweep.simulate` returns."""

import json
from pathlib import Path
from typing import Any

import torch
from ray import tune
from ray.tune.result import TIMESTEPS_TOTAL

from raysafl.cluster.gpus import own_device
from raysafl.core.problem import Dataset
from raysafl.core.record import Record
from raysafl.simulation.checkpoint import dump, load, restore, save
from raysafl.simulation.run import Run
from raysafl.simulation.simulation import Simulation
from raysafl.sweep.open_cell import metrics_of
from raysafl.sweep.simulate import worker_of

# The files of a checkpoint: the states of all replicates, and their last records.
STATES = "states.safetensors"
LATEST = "latest.json"


class RunTrainable(tune.Trainable):
    """Simulates the run of a trial in the trial's process, see `trainable`."""

    def setup(
        self,
        config: dict[str, Any],
        base: Run | None = None,
        dataset: Dataset | None = None,
        engine: str = "auto",
    ) -> None:
        """Make the trial's run and its clients."""
        if base is None or dataset is None:
            raise ValueError("no run is given: call fl.trainable(run)")
        given = getattr(self.trial_resources, "required_resources", {})
        torch.set_num_threads(max(1, int(given.get("CPU", 1))))
        self.base = base
        self.dataset = dataset
        self.engine = engine
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Begin another run in the same process."""
        self._begin(new_config)
        return True

    def _begin(self, config: dict[str, Any]) -> None:
        run = self.base.replace(config)
        same = run.data.source_key == self.base.data.source_key
        dataset = self.dataset if same else run.data.load()
        work = worker_of([run], dataset, self.engine, own_device())
        self.simulation = Simulation(run, work)
        # The last record of each replicate that has not diverged, by its number.
        self.latest: dict[int, Record] = {}

    def step(self) -> dict[str, Any]:
        """Run rounds up to the next one that is evaluated, and report it."""
        records = self.simulation.step()
        while not records and not self.simulation.done:
            records = self.simulation.step()
        self.latest |= {record.replicate: record for record in records}
        replicates = enumerate(self.simulation.replicates)
        going_on = [
            self.latest[r]
            for r, replicate in replicates
            if r in self.latest and not replicate.diverged
        ]
        return {
            **metrics_of(self.simulation.run, going_on),
            "round": self.simulation.round,
            # TensorBoard draws curves over this number.
            TIMESTEPS_TOTAL: self.simulation.round,
            "done": self.simulation.done,
        }

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write the whole state of the simulation."""
        cells = self.simulation.run.cell_ids
        states = {
            cell: save(replicate)
            for cell, replicate in zip(cells, self.simulation.replicates, strict=True)
        }
        Path(checkpoint_dir, STATES).write_bytes(dump(states))
        latest = [vars(record) for record in self.latest.values()]
        Path(checkpoint_dir, LATEST).write_text(json.dumps(latest))

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Go on from a state that was written for the same run.

        Raises:
            ValueError: it is that of another run.
        """
        cells = self.simulation.run.cell_ids
        states = load(Path(checkpoint, STATES).read_bytes())
        if states.keys() != set(cells):
            raise ValueError(
                "the checkpoint cannot be used: it belongs to another run, as after a change of "
                "the configuration of a trial that has begun"
            )
        for cell, replicate in zip(cells, self.simulation.replicates, strict=True):
            restore(replicate, states[cell])
        records = json.loads(Path(checkpoint, LATEST).read_text())
        self.latest = {own["replicate"]: Record(**own) for own in records}
