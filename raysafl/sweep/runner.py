"""Runs a sweep: what is asked for, which is checked, and how it is carried out."""

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from raysafl.cluster.hardware import Hardware
from raysafl.core.needs import need
from raysafl.core.text import in_brief, nearest
from raysafl.storage.manifest import Label
from raysafl.storage.paths import parse_location
from raysafl.storage.redaction import refuse_password
from raysafl.storage.store import Store
from raysafl.sweep.choices import FLUSH_SECONDS, ExecutorName, Stale
from raysafl.sweep.definition import Sweep
from raysafl.sweep.grid import AS_RESULTS_COME
from raysafl.sweep.outcome import Outcome
from raysafl.sweep.progress import plain_console
from raysafl.tracking.choice import Tracking

if TYPE_CHECKING:
    from ray import tune

    from raysafl.sweep.forecast import Forecast

# What arguments may be, and what a message calls it.
SWITCH = (bool, "True or False")
TAKEN = {
    "out": (str | Path | None, "a folder or a URI as text, or a Path"),
    "hardware": (Hardware, "a Hardware, such as Hardware(actors=2)"),
    **dict.fromkeys(("address", "tracking_uri"), (str | None, "text")),
    **dict.fromkeys(("resume", "quiet", "try_first", "keep_states"), SWITCH),
    "shard": (str | None, "text such as '3/8'"),
    "wait_nodes": (int, "a number of nodes"),
    "only": (Mapping, "a mapping from axis to label, such as {'n0': 20}"),
    "flush_seconds": (int | float, "a number of seconds"),
}


@dataclass(frozen=True)
class Runner:
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

    sweep: Sweep
    out: str | Path | None = None
    hardware: Hardware = field(default_factory=Hardware)
    address: str | None = None
    wait_nodes: int = 0
    executor: ExecutorName | str = ExecutorName.AUTO
    resume: bool = True
    stale: Stale = Stale.FAIL
    only: Mapping[str, Label] = field(default_factory=dict)
    shard: str | None = None
    quiet: bool = False
    tracking_uri: str | None = None
    track: Tracking = Tracking.AUTO
    engine: str = "auto"
    flush_seconds: float = FLUSH_SECONDS
    try_first: bool = True
    keep_states: bool = False
    command: str = ""
    console: Console = field(default_factory=plain_console, repr=False)
    callbacks: "Sequence[tune.Callback]" = ()
    stop: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.sweep, Sweep):
            raise ValueError(
                f"a Runner takes a Sweep, not a {type(self.sweep).__name__}: one of "
                "fl.grid(run, {'rounds': [50, 100]}), or fl.Sweep('name', runs=[run])"
            )
        for name, (kind, what) in TAKEN.items():
            if not isinstance(value := getattr(self, name), kind):
                raise ValueError(f"{name} is {in_brief(value)}; give {what}")
        if self.shard is not None:
            part_of(self.shard)
        if self.wait_nodes and self.address is None:
            raise ValueError(
                f"wait_nodes={self.wait_nodes} (--wait-nodes) waits for the nodes of a running "
                "Ray cluster; give its address, too (address, --address)"
            )
        uris = [self.tracking_uri, self.address]
        if self.track != Tracking.NONE:
            uris.append(os.environ.get("MLFLOW_TRACKING_URI"))
        for uri in filter(None, uris):
            refuse_password(uri)

    @property
    def store(self) -> Store:
        """The folder of the results."""
        suffix = "" if self.sweep.scale == "paper" else f"-{self.sweep.scale}"
        return Store(parse_location(self.out or f"results/{self.sweep.name}{suffix}"))

    @property
    def is_one_by_one(self) -> bool:
        """Whether each pack has one run, of which every evaluated round is reported.

        Schedulers, callbacks and rules to stop know runs, and no packs.
        """
        return bool(self.sweep.scheduler or self.callbacks or self.stop)

    @property
    def only_ray(self) -> str:
        """What is asked for that only Ray has, as a clause; empty if nothing is."""
        sweep = self.sweep
        hardware = self.hardware
        trials = hardware.trials or 1
        asked = {
            f"the address '{self.address}' of a cluster is given": self.address
            is not None,
            f"{hardware.actors} client actors are asked for": hardware.actors > 1,
            "a cluster that adds nodes is asked for": hardware.autoscale,
            "Tune's scheduler compares trials that run at the same time": sweep.scheduler,
            "the search algorithm is Tune's": sweep.is_searched,
            "callbacks of Tune's are given": self.callbacks,
            "`stop` is a rule of Tune's": self.stop,
            f"{trials} trials at once are asked for": trials > 1,
        }
        return next((clause for clause, is_asked in asked.items() if is_asked), "")

    def note(self, message: str) -> None:
        """Print a message, unless nothing is to be printed."""
        if not self.quiet:
            self.say(message)

    def say(self, message: str) -> None:
        """Print a message that must not be missed."""
        self.console.print(message, style="yellow", markup=False, soft_wrap=True)

    def run(self) -> Outcome:
        """Run the sweep, write its table and its report, and print where they are.

        Raises:
            ValueError: something is wrong with the sweep, its data, the folder, the
                hardware, the callbacks or the rules to stop; nothing was run.
            SweepBusyError: another process is writing to the folder.
            StorageError: the disk is full, or the object store is lost; running the
                sweep again goes on where it was.
        """
        # Imported here, as it takes a Runner.
        from raysafl.sweep.attempt import Attempt

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
        from raysafl.sweep.attempt import Attempt
        from raysafl.sweep.new_runs import forecast

        return forecast(Attempt(self))

    def _check(self) -> None:
        """Refuse what can be refused before the sweep is looked at."""
        if self.executor not in list(ExecutorName):
            given = str(self.executor)
            raise ValueError(
                f"there is no executor '{given}': {nearest(given, list(ExecutorName))}"
            )
        needs = self.only_ray
        if self.executor == ExecutorName.HERE and needs:
            raise ValueError(
                f"executor 'here' carries out a sweep in this process, but {needs}; leave "
                "that out, or take executor 'ray'"
            )
        if self.executor == ExecutorName.RAY:
            need("ray", "executor 'ray'")
        elif needs:
            need("ray", f"this sweep ({needs})")
        if self.hardware.gpu_share:
            self._check_gpus()
        # Imported here, because Tune's import takes a second.
        if not isinstance(self.callbacks, list | tuple) or self.callbacks:
            from raysafl.sweep.on_ray.watching import check_callbacks

            check_callbacks(self.callbacks)
        if self.stop is not None:
            from raysafl.sweep.on_ray.watching import rules_of

            rules_of(self.stop, self.sweep.reported)
        if Tracking(self.track) in (Tracking.SUMMARY, Tracking.CURVES):
            need("mlflow", f"track '{self.track}'")
        if (self.only or self.shard) and self.sweep.is_searched:
            raise ValueError(
                f"sweep '{self.sweep.name}': {AS_RESULTS_COME}, so no part of "
                "them can be chosen before (only, shard)"
            )

    def _check_gpus(self) -> None:
        """Refuse GPUs that are asked for if this machine is to train, and torch sees none."""
        # Imported here, because most sweeps ask for none.
        from raysafl.cluster.gpus import are_logical, in_words, why_unseen

        here = self.executor == ExecutorName.HERE
        elsewhere = self.address is not None or ray_runs() or are_logical()
        if (here or not elsewhere) and (why := why_unseen()):
            raise ValueError(
                f"the sweep asks for {in_words(self.hardware.gpu_share)}, but torch "
                f"{torch.__version__} sees no CUDA device ({why}); `raysafl doctor` says "
                "more, and gpus=0 (--gpus 0) trains on the CPU"
            )


def ray_runs() -> bool:
    """Whether this program has started Ray, or joined a cluster."""
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def part_of(shard: str) -> tuple[int, int]:
    """Return which part is meant by a text such as `3/8`, and how many parts there are.

    A run belongs to the part with the number, from 1, that its id as a hexadecimal number
    leaves modulo the number of parts. So it belongs to one part whatever else is in the
    sweep, and parts have about equally many runs.

    Raises:
        ValueError: it is not of this form, or there is no such part.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    part, parts = map(int, match.groups()) if match else (0, 0)
    if not 1 <= part <= parts:
        raise ValueError(
            "shard (--shard) takes a part, counted from 1, and the number of parts, such as "
            f"3/8, not '{shard}'; a job array of 8 tasks is --array=1-8"
        )
    return part, parts


def command_of_script() -> str:
    """Return the command that started this script; empty in a notebook or a module."""
    main = sys.modules["__main__"]
    file = str(getattr(main, "__file__", ""))
    if not file.endswith(".py") or getattr(main, "__spec__", None) is not None:
        return ""
    return shlex.join(["python", os.path.relpath(file), *sys.argv[1:]])
