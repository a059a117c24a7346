"""The coordinator: the process of a Tune trial, which carries out the runs of a pack.

Tune reuses the coordinator's process for the next trial, and the coordinator keeps its
client actors, so a sweep starts its processes once. Each trial has an `OpenPack` of its
own; a test compares a reused trial with a new one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray
import torch
from ray import tune
from ray.tune.result import TIMESTEPS_TOTAL

from raysafl.core.held import hold_elsewhere
from raysafl.core.problem import Dataset
from raysafl.runtime.hardware import Hardware
from raysafl.runtime.messages import PackSetup
from raysafl.runtime.on_actors import host_pack, start_actors
from raysafl.runtime.ray_private import is_own_exit
from raysafl.simulation.run import Run
from raysafl.sweep.code_digest import CodeDigests
from raysafl.sweep.open_pack import Hosted, OpenPack, Terms

# The field of a report that is for the driver alone (`News`). It is neither a number nor
# a list, so that loggers of Tune's pass over it.
NEWS = "raysafl"


@dataclass(frozen=True)
class Context:
    """What all trials of a sweep share.

    Args:
        terms: what holds for all packs of the sweep.
        hardware: what a trial runs on.
        datasets: the loaded datasets in Ray's object store, by the `source_key` of the
            data that load them.
        held: datasets that exist in the memory of the driver only, in Ray's object
            store, by the digests of their contents.
    """

    terms: Terms
    hardware: Hardware
    datasets: "Mapping[str, ray.ObjectRef[Dataset]]" = field(default_factory=dict)
    held: "Mapping[str, ray.ObjectRef[Dataset]]" = field(default_factory=dict)


def _fetch(reference: "ray.ObjectRef[Dataset]") -> Dataset:
    """Return a dataset that is in Ray's object store; its arrays are not copied."""
    return ray.get(reference)


class Coordinator(tune.Trainable):
    """Coordinates one pack after the other on the same client actors.

    For Tune each trial ends normally. Only the loss of the coordinator's own process is
    an error of the trial. Tune then starts it again, and the runs go on from their
    checkpoints.
    """

    def setup(self, config: dict[str, Any], context: Context | None = None) -> None:
        """Start the client actors.

        The runs are begun later, in `step`: Tune may set up one coordinator for a trial
        and then give the trial to another, and only one of them may touch the rows of
        the runs.
        """
        assert context is not None
        torch.set_num_threads(1)
        self.context = context
        for content, reference in context.held.items():
            hold_elsewhere(content, partial(_fetch, reference))
        self.digests = CodeDigests(context.terms.code)
        self.actors = start_actors(context.hardware)
        self.open = self._opened(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Get ready for the next pack on the same client actors."""
        self.open.stop()
        self.open = self._opened(new_config)
        return True

    def _opened(self, config: dict[str, Any]) -> OpenPack:
        """Return the pack of a trial; it is begun when it is advanced."""
        terms = self.context.terms
        return OpenPack(config, terms, self._host, self.digests, is_own_exit)

    def _host(self, runs: Sequence[Run]) -> Hosted:
        """Let the client actors host the cells of runs."""
        first = runs[0]
        dataset = self.context.datasets.get(first.data.source_key)
        setup = PackSetup(
            cells=[cell for run in runs for cell in run.cells],
            dataset=dataset or ray.put(first.data.load()),
            model=first.model,
            engine=self.context.terms.engine,
            objective=first.objective,
        )
        return Hosted(*host_pack(self.actors, setup))

    def step(self) -> dict[str, Any]:
        """Run rounds for `report_seconds` and report what has become of the runs."""
        news = self.open.advance(self.context.terms.report_seconds)
        return {
            **news.metrics,
            # TensorBoard draws curves over Tune's number of time steps.
            TIMESTEPS_TOTAL: news.metrics["round"],
            "done": news.done,
            NEWS: news,
        }

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Return an empty checkpoint for Tune, as `Session` writes those of the runs."""
        return {}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """Ignore Tune's checkpoint: `Session` goes on from those of the runs."""

    def cleanup(self) -> None:
        """Write what an early stop leaves of the runs, and end the client actors."""
        try:
            self.open.stop()
        finally:
            self.actors.kill()
