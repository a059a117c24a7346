"""The coordinator: the process of a Tune trial, which carries out the runs of a pack.

Tune reuses the coordinator's process for the next trial, and the coordinator keeps its
client actors, so a sweep starts its processes once. Each trial has an `OpenPack` of its
own; a test compares a reused trial with a new one.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune
from ray.tune.result import TIMESTEPS_TOTAL

from raysafl.cluster.hardware import Hardware
from raysafl.cluster.provenance import check_package
from raysafl.cluster.ray_private import is_own_exit
from raysafl.core.problem import Dataset
from raysafl.runtime.client_actor import PackSetup
from raysafl.runtime.on_actors import host_pack, start_actors
from raysafl.simulation.run import Run
from raysafl.storage.ledger import Checkpoint
from raysafl.sweep.news import GivenPack, Terms
from raysafl.sweep.open_pack import Hosted, OpenPack
from raysafl.sweep.packs import PACK_KEY

# The field of a report that is for the driver alone (`News`). It is neither a number nor
# a list, so that loggers of Tune's pass over it.
NEWS = "raysafl"
# The file in which Tune keeps the checkpoint of a paused trial.
CHECKPOINT = "pack.ckpt"


@dataclass(frozen=True)
class Given:
    """What a trial is given, in Ray's object store.

    Args:
        id: the id of its pack.
        content: the pack, and from where it goes on.
        dataset: its dataset.
    """

    id: str
    content: "ray.ObjectRef[GivenPack]"
    dataset: "ray.ObjectRef[Dataset]"

    def __str__(self) -> str:
        # Loggers of Tune's write it.
        return self.id


class Coordinator(tune.Trainable):
    """Coordinates one pack after the other on the same client actors.

    For Tune each trial ends normally. Only the loss of the coordinator's own process is
    an error of the trial. Tune then starts it again, and the driver has put the last
    checkpoint into its configuration.
    """

    def setup(
        self,
        config: dict[str, Any],
        terms: Terms | None = None,
        hardware: Hardware | None = None,
    ) -> None:
        """Start the client actors.

        The cells are begun later, in `step`: Tune may set up one coordinator for a trial
        and then give the trial to another.
        """
        assert terms is not None and hardware is not None
        torch.set_num_threads(1)
        self.terms = terms
        self.actors = start_actors(hardware)
        self.open = self._opened(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Get ready for the next pack on the same client actors."""
        self.open.close()
        self.open = self._opened(new_config)
        return True

    def _opened(self, config: dict[str, Any]) -> OpenPack:
        """Return the pack of a trial; it is begun when it is advanced."""
        given: Given = config[PACK_KEY]
        self.dataset = given.dataset
        return OpenPack(ray.get(given.content), self.terms, self._host, is_own_exit)

    def _host(self, runs: Sequence[Run]) -> Hosted:
        """Let the client actors host the cells of a pack."""
        if expected := self.terms.package:
            for host, package in self.actors.machines():
                check_package(host, package, expected)
        first = runs[0]
        setup = PackSetup(
            cells=[cell for run in runs for cell in run.cells],
            dataset=self.dataset,
            model=first.model,
            engine=self.terms.engine,
            objective=first.objective,
        )
        return host_pack(self.actors, setup)

    def step(self) -> dict[str, Any]:
        """Run rounds for `report_seconds` and report what has become of the cells."""
        news = self.open.report()
        return {
            **news.metrics,
            # TensorBoard draws curves over Tune's number of time steps.
            TIMESTEPS_TOTAL: news.metrics["round"],
            "done": news.done,
            NEWS: news,
        }

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Let Tune have the cells' checkpoint, with which it starts a paused trial again."""
        is_begun = self.open.lockstep is not None
        content = self.open.news(at_once=True).checkpoint if is_begun else b""
        Path(checkpoint_dir, CHECKPOINT).write_bytes(content)

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Go on from what Tune was given when the trial was paused."""
        content = Path(checkpoint, CHECKPOINT).read_bytes()
        if content:
            saved = Checkpoint.read(io.BytesIO(content))
            given = self.open.given
            # The others have ended.
            left = given.pack.of([c for c in given.pack.runs if c.id in saved.cells])
            self.open.given = replace(given, pack=left, checkpoints=[saved])

    def cleanup(self) -> None:
        """End the client actors."""
        try:
            self.open.close()
        finally:
            self.actors.kill()
