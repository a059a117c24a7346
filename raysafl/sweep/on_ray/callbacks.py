"""The user's callbacks of Tune: what they see of a sweep, and the files that they write."""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ray import tune
from ray.tune.experiment import Trial

from raysafl.storage.manifest import Label, run_name
from raysafl.sweep.packs import PACK_KEY

# The largest number of characters of a run's labels in the name of its folder.
MOST_CHARACTERS = 100


class NotRestored:
    """What Tune pickles to restore it later, which raysafl never does: `nothing` in its place."""

    nothing: ClassVar[type]

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """Let Tune pickle an object that does nothing."""
        return self.nothing, ()


class Shown(tune.Callback):
    """What the user's callbacks see of the trials of a sweep: its runs, by their labels.

    It stands before them in the list of callbacks.

    Args:
        labels: the labels of the one run of each pack, by the id of the pack; a search
            algorithm adds to them.
    """

    def __init__(self, labels: Mapping[str, Mapping[str, Label]]) -> None:
        self.labels = labels

    def of(self, trial: Trial) -> dict[str, Any]:
        """Return the labels of a trial's run."""
        return dict(self.labels[trial.config[PACK_KEY].id])

    def name(self, trial: Trial) -> str:
        """Name a trial by its run's labels."""
        return run_name(self.of(trial), str(trial.trial_id))

    def folder(self, trial: Trial) -> str:
        """Name the folder of a trial, the same whenever its run goes on."""
        text = re.sub(r"[^\w=,.+-]+", "_", self.name(trial).replace(", ", ","))
        key = trial.config[PACK_KEY].id[:6]
        return f"{text[:MOST_CHARACTERS].lstrip('.')}_{key}"

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Put the labels where Tune's loggers look for hyperparameters."""
        labels = self.of(trial)
        trial.config = {**trial.config, **labels}
        trial.evaluated_params = labels


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
