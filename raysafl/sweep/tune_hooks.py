"""What a user passes through to Tune: callbacks, rules that stop runs, and what they see."""

import re
import shutil
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.result import TIME_TOTAL_S, TIMESTEPS_TOTAL
from ray.tune.stopper import FunctionStopper

from raysafl.core.text import nearest
from raysafl.storage.manifest import Label
from raysafl.storage.paths import local_folder
from raysafl.storage.store import Store
from raysafl.sweep.definition import sample_key
from raysafl.sweep.packs import PACK_KEY
from raysafl.sweep.progress import run_name

# The numbers by which `stop={...}` may stop a run, besides what it measures.
COUNTS = ("round", "training_iteration", TIMESTEPS_TOTAL, TIME_TOTAL_S)
# The largest number of characters of a run's labels in the name of its folder.
MOST_CHARACTERS = 100
LOGS = "logs"


class Threshold(tune.Stopper):
    """Stops a run when one of its numbers reaches a value, as a `stop` mapping of Tune does.

    Args:
        limits: the value by the name of each number.
    """

    def __init__(self, limits: Mapping[str, float]) -> None:
        self.limits = dict(limits)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Whether one of the numbers has reached its value."""
        return any(result.get(name, 0) >= value for name, value in self.limits.items())

    def stop_all(self) -> bool:
        """Never end the whole sweep."""
        return False


class Shown(tune.Callback):
    """What the user's callbacks see of the trials of a sweep: its runs, by their labels.

    It stands before them in the list of callbacks.

    Args:
        labels: the labels of the one run of each pack, by the id of the pack. A trial
            that is sampled has its labels in its configuration.
    """

    def __init__(self, labels: Mapping[str, Mapping[str, Label]]) -> None:
        self.labels = {pack_id: dict(own) for pack_id, own in labels.items()}

    def of(self, trial: Trial) -> dict[str, Any]:
        """Return the labels of a trial's run."""
        if PACK_KEY in trial.config:
            return self.labels.get(trial.config[PACK_KEY], {})
        return dict(trial.config)

    def name(self, trial: Trial) -> str:
        """Name a trial by its run's labels."""
        return run_name(self.of(trial), str(trial.trial_id))

    def folder(self, trial: Trial) -> str:
        """Name the folder of a trial, the same whenever its run goes on."""
        text = re.sub(r"[^\w=,.+-]+", "_", self.name(trial).replace(", ", ","))
        key = str(trial.config.get(PACK_KEY, "")) or sample_key(trial.config)
        key = key.removeprefix("sample-")[:6]
        return f"{text[:MOST_CHARACTERS].lstrip('.')}_{key}"

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Put the labels where Tune's loggers look for hyperparameters."""
        labels = self.of(trial)
        trial.config = {**trial.config, **labels}
        trial.evaluated_params = labels


def check_callbacks(callbacks: Any) -> list[tune.Callback]:
    """Return the callbacks as a list.

    Raises:
        ValueError: one of them is no callback of Tune's.
    """
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise ValueError(f"callbacks is {callbacks!r}; give a list of Tune's callbacks")
    for callback in callbacks:
        if isinstance(callback, type):
            name = callback.__name__
            raise ValueError(
                f"callbacks has the class {name}; give an object: {name}()"
            )
        if not isinstance(callback, tune.Callback):
            raise ValueError(
                f"callbacks has {callback!r}, which is no ray.tune.Callback; give objects "
                "such as ray.tune.logger.TBXLoggerCallback()"
            )
    return list(callbacks)


def stoppers_of(stop: Any, measured: Sequence[str] | None = None) -> list[tune.Stopper]:
    """Return the stoppers that Tune would make of its `stop`.

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
        for name, value in stop.items():
            numbers = [*(measured or []), *COUNTS]
            if measured is not None and name not in numbers:
                raise ValueError(
                    f"stop names '{name}', which no run reports: {nearest(name, numbers)}"
                )
            if not isinstance(value, Real):
                raise ValueError(f"stop['{name}'] is {value!r}; give a number")
        return [Threshold(stop)] if stop else []
    if isinstance(stop, tune.Stopper):
        return [stop]
    if isinstance(stop, list | tuple):
        return [stopper for one in stop for stopper in stoppers_of(one, measured)]
    if isinstance(stop, type) or not callable(stop):
        raise ValueError(
            f"stop is {stop!r}; give a mapping such as {{'test_accuracy': 0.9}}, a function "
            "of (trial id, result), or an object of a class of ray.tune.stopper"
        )
    return [FunctionStopper(stop)]


def logs_folder(store: Store) -> Path:
    """Return the folder where the files lie that callbacks have written of each run."""
    return local_folder(store.path) / LOGS


def keep_logs(written: Path, logs: Path) -> None:
    """Move the files that callbacks have written of trials out of Tune's folder.

    Args:
        written: Tune's folder of an experiment. It has a folder for each trial.
        logs: the folder that gets them.
    """
    for trial in written.iterdir() if written.is_dir() else ():
        if trial.is_dir() and any(trial.iterdir()):
            shutil.copytree(trial, logs / trial.name, dirs_exist_ok=True)
