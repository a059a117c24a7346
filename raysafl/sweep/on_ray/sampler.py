"""What gives Tune's trials their packs: the known ones, or those that are asked for."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from ray.tune.search import Searcher

from raysafl.cluster.provenance import provenance
from raysafl.core.problem import Dataset
from raysafl.simulation.run import Run
from raysafl.storage.manifest import Entry
from raysafl.sweep.grid import labels_of
from raysafl.sweep.measures import LOSS, Measures
from raysafl.sweep.new_runs import Room, packs_of
from raysafl.sweep.on_ray.watching import NotRestored
from raysafl.sweep.open_cell import failure
from raysafl.sweep.packs import PACK_KEY, Pack
from raysafl.sweep.prepare import dataset_of
from raysafl.sweep.watch import Watch

# So many runs a search algorithm is asked for at a time. Of more, the later ones would know too
# little of the earlier ones.
AT_ONCE = 8


class Packs(NotRestored, Searcher):
    """A search algorithm of Tune's whose configurations are packs."""

    nothing = Searcher

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
    """Packs of the runs that a search algorithm asks for, in the driver.

    It is asked for several runs at a time (`AT_ONCE`, or as many as a `ConcurrencyLimiter`
    of Tune's lets run), which share packs, and hears of all of them, in the order in which
    it asked, before it is asked for more. So what it asks for depends on no hardware. If a
    scheduler, a callback or a rule to stop acts on single runs, it is asked for one whenever
    a trial has room, and hears of each when it has ended.

    A configuration of which no run can be made, or whose data cannot be loaded, is recorded
    as failed; the algorithm hears of it, and is asked for another. A run that has ended in an
    earlier attempt keeps its results.

    Args:
        watch: knows the sweep, and is told of each run, and what has failed.
        datasets: the datasets that are loaded, by the `source_key` of the data that load
            them; others are added.
        room: what there is room for.
        given: returns what the configuration of a trial holds for a pack and its dataset.

    Raises:
        ValueError: the search algorithm takes no search space.
    """

    def __init__(
        self,
        watch: Watch,
        datasets: dict[str, Dataset],
        room: Room,
        given: Callable[[Pack, Dataset], Any],
    ) -> None:
        super().__init__()
        self.watch = watch
        self.sweep = watch.sweep
        self.datasets = datasets
        self.room = room
        self.given = given
        # Tune would ask for the state of one that is called `searcher`.
        self.algorithm: Searcher = watch.sweep.search_alg
        # The packs so far, by id.
        self.packs: dict[str, Pack] = {}
        # How often it was asked, and the runs of which it has not heard, by the names by
        # which it knows them.
        self._asked = 0
        self._untold: dict[str, str] = {}
        # The packs that no trial has yet, and those of the trials that run.
        self._queue: list[Pack] = []
        self._open: dict[str, Pack] = {}
        metric, mode = watch.goal
        # What a searcher was told when it was made is not told again.
        told = bool(getattr(self.algorithm, "metric", None))
        goal = (None, None) if told else (metric, mode)
        if not self.algorithm.set_search_properties(*goal, dict(watch.sweep.space)):
            raise ValueError(
                f"search_alg has a search space of its own, so it does not take that of sweep "
                f"'{watch.sweep.name}'; make {type(self.algorithm).__name__}(...) without one"
            )

    def suggest(self, trial_id: str) -> Any:
        """Return the configuration of a trial: its pack.

        It is None if results are awaited, and a text if no run is to follow.
        """
        if self.watch.ends_early:
            return Searcher.FINISHED
        answer: Any = None
        if not self._open or self.watch.options.is_one_by_one:
            # Now it is known which packs could not be carried out as a whole.
            for pack in self.watch.unfinished:
                self._queue += pack.halves(self.watch.ended)
            self.watch.unfinished.clear()
            if not self._queue:
                self._tell()
                answer = self._ask()
                # Those that ended in an earlier attempt are told at once.
                while not self._queue and self._tell():
                    answer = self._ask()
        if not self._queue:
            return None if self._open else answer
        pack = self._open[trial_id] = self._queue.pop(0)
        self.packs[pack.id] = pack
        dataset = self.datasets[pack.runs[0].data.source_key]
        return {PACK_KEY: self.given(pack, dataset)}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Take note of the end of a trial: its runs are in the ledger by the next `suggest`."""
        del self._open[trial_id]

    def _tell(self) -> int:
        """Tell the algorithm what the runs have reported last that have ended.

        Returns:
            How many these are.
        """
        before = len(self._untold)
        going_on = {cell.id for pack in self._open.values() for cell in pack.runs}
        for name, run_id in list(self._untold.items()):
            cells = self.watch.entries[run_id].cells
            if going_on.intersection(cells):
                continue
            ends = [self.watch.ended.get(cell) for cell in cells]
            done = [end for end in ends if end and end.status.decided]
            if len(done) < len(ends):
                self.algorithm.on_trial_complete(name, error=True)
            else:
                result = _mean_metrics([end.metrics for end in done])
                self.algorithm.on_trial_complete(name, result=result)
            del self._untold[name]
        return before - len(self._untold)

    def _ask(self) -> Any:
        """Ask the algorithm for runs, and put their packs into the queue.

        Returns:
            None if the algorithm waits for results, and a text if it has no more to ask for.
        """
        several = getattr(self.algorithm, "max_concurrent", AT_ONCE)
        most = 1 if self.watch.options.is_one_by_one else several
        runs: dict[str, list[Run]] = {}
        config: Any
        while len(runs) < most and self._asked < self.sweep.num_samples:
            name = f"{self._asked:05d}"
            config = self.algorithm.suggest(name)
            if not isinstance(config, Mapping):
                break
            self._asked += 1
            if (run := self._made(name, dict(config))) is not None:
                cells = [c for c in run.split() if not self.watch.is_decided(c.id)]
                if cells:
                    runs[run.id] = cells
        else:
            config = Searcher.FINISHED
        packs = packs_of(self.watch, runs.values(), self.room, self.datasets)
        # Each run counts as one, as those that are not asked for yet do.
        self._queue += [replace(pack, work=self._share(pack)) for pack in packs]
        return config

    def _share(self, pack: Pack) -> float:
        """Return how many runs a pack is, as those that are not asked for yet count as one."""
        return sum(
            1 / len(self.watch.entries[run_id].cells)
            for cell in pack.runs
            for run_id in self.watch.runs_of[cell.id]
        )

    def _made(self, name: str, config: dict[str, Any]) -> Run | None:
        """Return the run of a configuration; None if there is nothing to carry out."""
        run = wrong = None
        try:
            run = self.sweep.build(config)
            dataset_of(run, self.datasets)
        # The user's own function may raise anything.
        except (Exception, SystemExit) as error:
            wrong = error
        run_id = run.id if run else _id_of_failed(config)
        self._register(run_id, config, run)
        self._untold[name] = run_id
        if wrong is None:
            return run
        if not self.watch.is_decided(run_id):
            self.watch.refuse(failure(wrong, run_id, provenance()))
        return None

    def _register(self, run_id: str, config: dict[str, Any], run: Run | None) -> None:
        """Label a run by its configuration, and add it to the manifest."""
        if run_id in self.watch.entries:
            return
        stored = run.model_dump(mode="json") if run else {}
        entry = Entry(run_id=run_id, labels=labels_of(config), config=stored)
        self.watch.register(entry)
        with self.watch.recording():
            manifest = self.watch.store.manifest().extended([entry])
            try:
                if run is not None:
                    own = Measures.of([run])
                    agreed = own.quality == manifest.quality
                    quality = manifest.quality if agreed else LOSS
                    manifest = manifest.measuring(own.columns, quality)
            except ValueError as error:
                # The run is carried out all the same; only the meaning of its columns stays
                # unknown.
                self.watch.options.note(str(error))
            self.watch.store.write_manifest(manifest)


def _mean_metrics(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of what was reported of several cells, NaN where one has none."""
    names = dict.fromkeys(name for own in metrics for name in own)
    means = {
        n: float(np.mean([own.get(n, math.nan) for own in metrics])) for n in names
    }
    rounds = max((own.get("round", 0) for own in metrics), default=0)
    return {**means, "round": rounds}


def _id_of_failed(config: Mapping[str, Any]) -> str:
    """Return a name for a configuration of which no run can be made.

    Equal configurations have equal names.
    """
    text = json.dumps(
        {name: str(value) for name, value in config.items()}, sort_keys=True
    )
    return f"sample-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
