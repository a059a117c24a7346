"""What gives Tune's trials their packs: the known ones, or those that are asked for."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ray.tune.search import Searcher

from raysafl.cluster.provenance import provenance
from raysafl.core.problem import Dataset
from raysafl.simulation.run import Run
from raysafl.storage.manifest import Entry, Label
from raysafl.sweep.execution import Job
from raysafl.sweep.packs import PACK_KEY, Pack
from raysafl.sweep.prepare import dataset_of
from raysafl.sweep.sampling import labels_of
from raysafl.sweep.session import failure
from raysafl.sweep.watch import Watch


class Packs(Searcher):
    """A search algorithm of Tune's whose configurations are packs."""

    def __reduce__(self) -> tuple[type["Packs"], tuple[()]]:
        """Let Tune pickle one that knows nothing in place of this one.

        Tune pickles its searcher to restore it later, which raysafl never does.
        """
        return Packs, ()

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Take no note of the end of a trial."""

    def save(self, checkpoint_path: str) -> None:
        """Write nothing: the same command asks anew."""


class InOrder(Packs):
    """Gives trials packs that are known, one after the other.

    Args:
        given: what a trial is given of each pack.
    """

    def __init__(self, given: Iterable[Any]) -> None:
        super().__init__()
        self.left = iter(given)

    def suggest(self, trial_id: str) -> Any:
        """Return the configuration of a trial, or that no pack is left."""
        found = next(self.left, None)
        return Searcher.FINISHED if found is None else {PACK_KEY: found}


class Sampler(Packs):
    """A search algorithm whose configurations are packs of one run each, in the driver.

    A configuration of which no run can be made, or whose data cannot be loaded, is recorded
    as failed; the algorithm hears of it, and is asked for another. A run that has ended in an
    earlier attempt keeps its results.

    Args:
        job: the sweep, and how it is carried out.
        datasets: the datasets that are loaded, by the `source_key` of the data that load
            them; others are added.
        watch: is told the labels of each run, and what has failed.
        given: returns what the configuration of a trial holds for a pack and its dataset.

    Raises:
        ValueError: the search algorithm takes no search space.
    """

    def __init__(
        self,
        job: Job,
        datasets: dict[str, Dataset],
        watch: Watch,
        given: Callable[[Pack, Dataset], Any],
    ) -> None:
        super().__init__()
        self.job = job
        self.datasets = datasets
        self.watch = watch
        self.given = given
        # Tune would ask for the state of one that is called `searcher`.
        self.algorithm: Searcher = job.sweep.search_alg
        # The packs so far, by id, and the labels of their runs.
        self.packs: dict[str, Pack] = {}
        self.labels: dict[str, Mapping[str, Label]] = {}
        # How often it was asked, and the names by which it knows the trials that run.
        self._asked = 0
        self._names: dict[str, str] = {}
        metric, mode = job.goal
        # What a searcher was told when it was made is not told again.
        told = bool(getattr(self.algorithm, "metric", None))
        goal = (None, None) if told else (metric, mode)
        if not self.algorithm.set_search_properties(*goal, dict(job.sweep.space)):
            raise ValueError(
                f"search_alg has a search space of its own, so it does not take that of sweep "
                f"'{job.sweep.name}'; make {type(self.algorithm).__name__}(...) without one"
            )

    def suggest(self, trial_id: str) -> Any:
        """Return the configuration of a trial: its pack.

        It is None if the algorithm waits for results, and a text if no run is to follow.
        """
        while self._asked < self.job.sweep.num_samples:
            name = f"{self._asked:05d}"
            config = self.algorithm.suggest(name)
            if not isinstance(config, Mapping):
                return config
            self._asked += 1
            if (found := self._made(dict(config))) is not None:
                self._names[trial_id] = name
                return {PACK_KEY: found}
            self.algorithm.on_trial_complete(name, error=True)
        return Searcher.FINISHED

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Tell the algorithm what a trial reports."""
        self.algorithm.on_trial_result(self._names[trial_id], result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Tell the algorithm that a trial has ended."""
        name = self._names.pop(trial_id)
        self.algorithm.on_trial_complete(name, result=result, error=error)

    def _made(self, config: dict[str, Any]) -> Any:
        """Return what a trial is given of the run of a configuration; None if none is made."""
        run = None
        try:
            run = self.job.sweep.build(config)
            pack = Pack((run,))
            found = self.given(pack, dataset_of(run, self.datasets))
        # The user's own function may raise anything.
        except (Exception, SystemExit) as error:
            run_id = run.id if run else _id_of_failed(config)
            self._register(run_id, config, run)
            if not self.job.store.decided({run_id}):
                self.watch.refuse(run_id, failure(error, run, provenance()))
            return None
        self._register(run.id, config, run)
        self.packs[pack.id] = pack
        self.labels[pack.id] = self.watch.labels[run.id]
        return found

    def _register(self, run_id: str, config: dict[str, Any], run: Run | None) -> None:
        """Label a run by its configuration, and add it to the manifest."""
        if run_id in self.watch.labels:
            return
        labels = self.watch.labels[run_id] = labels_of(config)
        with self.watch.recording():
            manifest = self.job.store.manifest()
            try:
                manifest = self.job.sweep.measuring(manifest, [run] if run else [])
            except ValueError as error:
                # The run is carried out all the same; only the meaning of its columns stays
                # unknown.
                self.job.options.note(str(error))
            entry = Entry(run_id=run_id, labels=labels)
            self.job.store.write_manifest(manifest.extended([entry]))


def _id_of_failed(config: Mapping[str, Any]) -> str:
    """Return a name for a configuration of which no run can be made.

    Equal configurations have equal names.
    """
    text = json.dumps(
        {name: str(value) for name, value in config.items()}, sort_keys=True
    )
    return f"sample-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
