"""Runs a sweep: checks what is asked for, and carries it out."""

from typing import TYPE_CHECKING

from raysafl.core.needs import need
from raysafl.sweep.attempt import Attempt
from raysafl.sweep.executor_choice import check_executor
from raysafl.sweep.grid import AS_RESULTS_COME
from raysafl.sweep.options import Options
from raysafl.sweep.outcome import Outcome
from raysafl.tracking.choice import Tracking

if TYPE_CHECKING:
    from raysafl.sweep.forecast import Forecast


class Runner(Options):
    """Carries out a sweep and writes the results to a folder.

    Runs that have ended are left out, unless they failed. So are replicates: what a run
    of more seeds or more rounds shares with one that the folder holds is reused.

    Args:
        sweep: the sweep.
        out: the folder or URI (`s3://...`); by default `results/<name>`, with the scale
            behind the name if it is not `paper`.
        hardware: what a trial runs on.
        address: the address of a running Ray cluster (`auto` for the one of this
            machine); by default Ray is started here.
        wait_nodes: how many living nodes the cluster at the address must have before the
            sweep starts. A cluster that has just been started is waited for up to ten
            minutes.
        executor: who carries out the runs: `here`, this process; `ray`, trials of Ray
            Tune with client actors; `auto` takes `here` if all of the work takes less
            time than Ray takes to start. Results do not depend on it.
        resume: whether to go on where an earlier attempt ended. If not, all is run
            again.
        stale: what becomes of runs whose results were computed before the code of their
            own classes was edited: `rerun`, `keep` or `fail`. An unfinished run goes on
            from no checkpoint of other code.
        only: axis to label, or to several as text, `"A,B"`: run only the runs that have
            these labels.
        shard: a text such as `3/8`: run only the third of eight parts of the sweep. Each
            run belongs to one part, by its id alone; `raysafl merge` puts the folders of
            all parts together.
        quiet: print neither progress nor the table and the place of the results.
        tracking_uri: the URI of MLflow; by default `$MLFLOW_TRACKING_URI`, or else a
            database beside the sweep.
        track: how much is logged to MLflow: none, summary, curves or auto.
        engine: how gradients are computed: auto, loop, vmap, linear, fused or graph.
        flush_seconds: the time between two checkpoints of a run: the most work that a
            crash loses. The 30 s of the default are up to five minutes if a pack's
            checkpoints take long to write, and these take a twentieth of the time.
        try_first: whether a cheap round is tried before anything is run or written, if
            there are components of the user's own classes.
        keep_states: whether the state in which each run ends is kept in `states/`, so
            that it can go on when more rounds are asked for. A state has the size of a
            checkpoint: the model, and what server and clients remember.
        command: the command that repeats this, for the manifest.
        console: where messages are printed.
        callbacks: callbacks of Tune's, such as its loggers for TensorBoard and W&B. What
            they write of a run is kept in the folder `logs` of the results.
        stop: when a run stops early, as Tune's `RunConfig(stop=)` takes it: a mapping
            from `round`, `test_accuracy` or another number that is reported to the
            value that it has to reach; a function of (trial id, result); or stoppers of
            Tune's. Stopped runs count as ended. A stopper that ends the whole sweep
            leaves the runs unfinished, and running the sweep again continues them.

    With `callbacks` or `stop`, as with a scheduler, every trial has one run instead of a
    pack of many, and every evaluated round is reported to Tune. A sweep of many small
    runs then takes much longer; its results are the same.
    """

    def run(self) -> Outcome:
        """Run the sweep, write its table and its report, and print where they are.

        Raises:
            ValueError: something is wrong with the sweep, its data, the folder, the
                hardware, the callbacks or the rules to stop; nothing was run.
            SweepBusyError: another process is writing to the folder.
            StorageError: the disk is full, or the object store is lost; running the
                sweep again goes on where it was.
        """
        self._check()
        try:
            outcome = Attempt(self).run()
        except KeyboardInterrupt:
            raise KeyboardInterrupt("running it again goes on where it was") from None
        if not self.quiet:
            outcome.print_to(self.console)
        return outcome

    def forecast(self) -> "Forecast":
        """Say what `run` would do: runs, packs, executor, a timed round. Write nothing.

        The data are loaded, and some rounds are timed, with classes of your own. A cluster whose
        address is given is asked what it has room for.

        Raises:
            ValueError: something is wrong with the sweep, its data or what is asked for;
                or a search algorithm asks for the runs, so that none is known before.
        """
        self._check()
        if self.sweep.is_searched:
            raise ValueError(
                f"sweep '{self.sweep.name}': {AS_RESULTS_COME}, so nothing can be said of "
                "them before it runs"
            )
        # Imported here, because it imports all that carries out runs.
        from raysafl.sweep.new_runs import forecast

        return forecast(Attempt(self))

    def _check(self) -> None:
        """Refuse what can be refused before the sweep is looked at."""
        check_executor(self)
        # Imported here, because Tune's import takes a second.
        if not isinstance(self.callbacks, list | tuple) or self.callbacks:
            from raysafl.sweep.on_ray.callbacks import check_callbacks

            check_callbacks(self.callbacks)
        if self.stop is not None:
            from raysafl.sweep.on_ray.stop_rules import rules_of

            rules_of(self.stop, self.sweep.reported)
        if Tracking(self.track) in (Tracking.SUMMARY, Tracking.CURVES):
            need("mlflow", f"track '{self.track}'")
        if (self.only or self.shard) and self.sweep.is_searched:
            raise ValueError(
                f"sweep '{self.sweep.name}': {AS_RESULTS_COME}, so no part of "
                "them can be chosen before (only, shard)"
            )
