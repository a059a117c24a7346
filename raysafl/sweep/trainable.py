"""A run as a trainable of Ray Tune, for a plain `tune.Tuner`."""

from pathlib import Path
from typing import Any

import torch
from ray import tune
from ray.tune.result import TIMESTEPS_TOTAL

from raysafl.core.problem import Dataset
from raysafl.core.record import Record
from raysafl.runtime.client_actor import own_device
from raysafl.simulation.checkpoint import dump, restore
from raysafl.simulation.run import Run
from raysafl.sweep.check import check_run, check_space
from raysafl.sweep.definition import Sweep
from raysafl.sweep.here import simulation_of
from raysafl.sweep.open_run import metrics_of
from raysafl.sweep.prepare import prepare
from raysafl.sweep.user_code import ship_user_code

CHECKPOINT = "simulation.safetensors"


def trainable(base: Run, *, engine: str = "auto") -> type[tune.Trainable]:
    """Return a trainable with which a plain `tune.Tuner` tunes the fields of a run.

    The configuration that Tune gives a trial names fields by dotted paths, and the
    trial's run is `base.replace(config)`. All clients are simulated in the trial's own
    process. Every evaluated round is reported: its number `round` from 1, and the means
    over replicates of `test_loss`, of the objective's metric (`test_accuracy` for
    classes) and of the other numbers that are measured on test or validation data. If
    all replicates diverge, the last report has NaN instead.

    A trial has one CPU unless `tune.with_resources` gives it more; torch uses as many
    threads, and the GPU if it has one. Schedulers that pause a trial, and trials that
    are started again after a failure, go on from Tune's checkpoint. A schedule that
    changes the configuration of a trial that has begun, as population based training
    does, is refused: it would be another run.

    Nothing is stored but what Tune stores. `Sweep` and `Runner` also write rows, tables
    and a report, train many runs in one trial, and continue after a crash.

    Example:
        >>> import raysafl as fl
        >>> from ray import tune
        >>> from raysafl.quickstart import BASE
        >>> tuner = tune.Tuner(
        ...     fl.trainable(BASE),
        ...     param_space={"local.lr": tune.loguniform(0.01, 1)},
        ...     tune_config=tune.TuneConfig(
        ...         metric="test_accuracy", mode="max", num_samples=8
        ...     ),
        ... )

    Args:
        base: the run whose fields are tuned.
        engine: how gradients are computed: auto, loop, vmap, linear, fused or graph.

    Raises:
        ValueError: a file is missing, or a part of the run does not fit the data.
    """
    check_run(base, "the first argument of trainable")
    ship_user_code(Sweep("trainable", [base]), [base])
    (dataset,) = prepare([base], engine).values()
    made: type[tune.Trainable] = tune.with_parameters(
        RunTrainable, base=base, dataset=dataset, engine=engine
    )
    return made


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
        check_space(config, self.base)
        run = self.base.replace(config)
        same = run.data.source_key == self.base.data.source_key
        dataset = self.dataset if same else run.data.load()
        self.simulation = simulation_of(run, dataset, self.engine, own_device())
        # The last record of each replicate, also of those that have stopped.
        self.latest: dict[int, Record] = {}

    def step(self) -> dict[str, Any]:
        """Run rounds up to the next one that is evaluated, and report it."""
        records = self.simulation.step()
        while not records and not self.simulation.done:
            records = self.simulation.step()
        replicates = self.simulation.replicates
        stopped = {r: own for r, own in self.latest.items() if replicates[r].stopped}
        self.latest = stopped | {own.replicate: own for own in records}
        return {
            **metrics_of(self.simulation.run, list(self.latest.values())),
            "round": self.simulation.round,
            # TensorBoard draws curves over this number.
            TIMESTEPS_TOTAL: self.simulation.round,
            "done": self.simulation.done,
        }

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write the whole state of the simulation."""
        latest = [vars(record) for record in self.latest.values()]
        content = dump(self.simulation, latest=latest)
        Path(checkpoint_dir, CHECKPOINT).write_bytes(content)

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Go on from a state that was written for the same run."""
        content = Path(checkpoint, CHECKPOINT).read_bytes()
        extra = restore(self.simulation, content)
        records = [Record(**own) for own in extra["latest"]]
        self.latest = {record.replicate: record for record in records}
