"""What Tune calls while it runs trials: what tells the `Watch`, and what is the user's.

The user's are callbacks, and rules by which runs stop early.
"""

import logging
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import ray
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.stopper import NoopStopper

from raysafl.cluster.hardware import Hardware
from raysafl.cluster.ray_session import resources_of_nodes
from raysafl.core.text import count, nearest
from raysafl.storage.manifest import run_name
from raysafl.sweep.news import News
from raysafl.sweep.on_ray.coordinator import NEWS
from raysafl.sweep.packs import PACK_KEY, Pack
from raysafl.sweep.watch import Watch

# Seconds without a running trial until it is said what trials wait for. On a busy machine
# starting one takes as long.
WAIT_SECONDS = 60.0
# The largest number of characters of a run's labels in the name of its folder.
MOST_CHARACTERS = 100
# The numbers by which `stop={...}` may stop a run, besides what it measures. The last three
# are Tune's: the reports, the rounds, and the seconds of this attempt.
COUNTS = ("round", "training_iteration", "timesteps_total", "time_total_s")
# Says after a report whether a run stops. Tune's stoppers have `stop_all` besides.
StopRule: TypeAlias = Callable[[str, dict[str, Any]], bool]
log = logging.getLogger(__name__)


class NotRestored:
    """What Tune pickles to restore it later, which raysafl never does: `nothing` in its place."""

    nothing: ClassVar[type]

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """Let Tune pickle an object that does nothing."""
        return self.nothing, ()


class WatchTrials(NotRestored, tune.Callback):
    """Tells a `Watch` of the trials, in the driver's process, where Tune calls its methods.

    They must not raise an error, as it would end the sweep.

    Args:
        watch: takes the news.
        packs: the packs of the trials, by id; a search algorithm adds to them.
        hardware: what a trial needs.
    """

    nothing = tune.Callback

    def __init__(
        self,
        watch: Watch,
        packs: Mapping[str, Pack],
        hardware: Hardware,
    ) -> None:
        self.watch = watch
        self.packs = packs
        self.hardware = hardware
        # When a trial was last seen to run; None once it is said that none does.
        self.last_ran: float | None = time.monotonic()

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Take note of a trial; put labels where Tune's loggers look for hyperparameters."""
        pack = self.pack_of(trial)
        self.watch.begin(pack)
        if self.watch.options.callbacks:
            labels = self.watch.labels_of(pack)
            trial.config = {**trial.config, **labels}
            trial.evaluated_params = labels

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Show once what trials wait for if none has run for a while; warn if none can run."""
        if any(trial.status == Trial.RUNNING for trial in trials):
            self.last_ran = time.monotonic()
        elif (
            self.last_ran is not None
            and time.monotonic() - self.last_ran > WAIT_SECONDS
        ):
            self.last_ran = None
            self.watch.display.enter(
                f"waiting until Ray starts a trial, which needs {self.hardware.describe()} "
                "(`ray status` shows what is free)"
            )
            try:
                self.hardware.check(resources_of_nodes())
            except ValueError as error:
                log.warning(
                    "no trial can run: %s, or add the node that was lost", error
                )

    def on_trial_result(
        self,
        iteration: int,
        trials: list[Trial],
        trial: Trial,
        result: dict[str, Any],
        **info: Any,
    ) -> None:
        """Take a report. Tune keeps it, so what is for the driver alone is taken out of it."""
        self.watch.take(result.pop(NEWS, News()), self.pack_of(trial))

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Take a trial that has ended, or that was stopped."""
        self.watch.complete(self.pack_of(trial))

    def on_trial_recover(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Say that a trial broke off, and what becomes of its runs."""
        pack = self.pack_of(trial)
        log.warning(
            "a trial broke off, perhaps as its process or its node was lost: %s will go on from "
            "the last checkpoint when there is room",
            count(len(pack.runs), "seed"),
        )
        left = [run for run in pack.runs if run.id not in self.watch.ended]
        content = ray.put(self.watch.given(pack.of(left or pack.runs)))
        given = replace(trial.config[PACK_KEY], content=content)
        trial.set_config({**trial.config, PACK_KEY: given})

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Take a trial whose process was lost again and again."""
        last = str(trial.get_pickled_error() or "its process was lost").strip()
        self.watch.lose(last.splitlines()[-1], self.pack_of(trial))

    def pack_of(self, trial: Trial) -> Pack:
        """Return the pack of a trial."""
        return self.packs[trial.config[PACK_KEY].id]

    def name(self, trial: Trial) -> str:
        """Name a trial by its run's labels."""
        labels = self.watch.labels_of(self.pack_of(trial))
        return run_name(labels, str(trial.trial_id))

    def folder(self, trial: Trial) -> str:
        """Name the folder of a trial, the same whenever its run goes on."""
        text = re.sub(r"[^\w=,.+-]+", "_", self.name(trial).replace(", ", ","))
        key = trial.config[PACK_KEY].id[:6]
        return f"{text[:MOST_CHARACTERS].lstrip('.')}_{key}"


class HaltTrials(NotRestored, tune.Stopper):
    """Ends the sweep when it cannot go on or is not to, and runs when the rules say so.

    Tune asks it after every report.

    Args:
        watch: says whether results can still be written.
        rules: the user's. Where one of them ends the whole sweep, no run counts as
            stopped: each has a checkpoint of its last report.
    """

    nothing = NoopStopper

    def __init__(self, watch: Watch, rules: Sequence[StopRule] = ()) -> None:
        self.watch = watch
        self.rules = rules

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Whether one of the user's rules stops this run."""
        # Each is asked, as a rule may count the reports.
        return any([rule(trial_id, result) for rule in self.rules])

    def stop_all(self) -> bool:
        """Whether the sweep is to end before its runs do."""
        rules = [rule for rule in self.rules if hasattr(rule, "stop_all")]
        if not self.watch.ends_early and any(rule.stop_all() for rule in rules):
            log.warning("`stop` ends the sweep: the same command goes on where it was")
            self.watch.interrupt()
        return self.watch.ends_early


def check_callbacks(callbacks: Any) -> None:
    """Refuse what is no list of callbacks of Tune's."""
    of_tune = tune.Callback
    if isinstance(callbacks, of_tune) or not all(
        isinstance(one, of_tune) for one in callbacks
    ):
        raise ValueError(
            f"callbacks is {callbacks!r}; give a list of Tune's callbacks, such as "
            "[ray.tune.logger.TBXLoggerCallback()]"
        )


def keep_logs(written: Path, logs: Path) -> None:
    """Copy the files that callbacks have written of trials out of Tune's folder.

    Args:
        written: Tune's folder of an experiment. It has a folder for each trial.
        logs: the folder that gets them.
    """
    for trial in written.iterdir() if written.is_dir() else ():
        if trial.is_dir() and any(trial.iterdir()):
            shutil.copytree(trial, logs / trial.name, dirs_exist_ok=True)


def rules_of(stop: Any, measured: Sequence[str] | None = None) -> list[StopRule]:
    """Return the rules that `Runner(stop=)` stands for.

    Args:
        stop: a mapping from the name of a number to the value at which a run stops; a
            function of (trial id, result) that returns whether it stops; a stopper of
            Tune's, or a list of them; or None.
        measured: the columns that the runs report; None if they are not known.

    Raises:
        ValueError: it is something else, or names a number that no run reports.
    """
    if stop is None:
        return []
    if isinstance(stop, Mapping):
        numbers = [*(measured or stop), *COUNTS]
        for name in stop:
            if name not in numbers:
                raise ValueError(
                    f"stop names '{name}', which no run reports: {nearest(name, numbers)}"
                )
        limits = dict(stop)

        def has_reached(trial_id: str, result: Mapping[str, Any]) -> bool:
            return any(result.get(name, 0) >= own for name, own in limits.items())

        return [has_reached] if limits else []
    if isinstance(stop, list | tuple):
        return [rule for one in stop for rule in rules_of(one, measured)]
    if isinstance(stop, type) or not callable(stop):
        raise ValueError(
            f"stop is {stop!r}; give a mapping such as {{'test_accuracy': 0.9}}, a function "
            "of (trial id, result), or an object of a class of ray.tune.stopper"
        )
    return [stop]
