"""What a person asks for who runs a sweep."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from raysafl.cluster.hardware import Hardware
from raysafl.core.text import in_brief
from raysafl.storage.manifest import Label
from raysafl.storage.paths import parse_location
from raysafl.storage.redaction import refuse_password
from raysafl.storage.store import Store
from raysafl.sweep.choices import FLUSH_SECONDS, ExecutorName, Stale
from raysafl.sweep.definition import Sweep
from raysafl.sweep.progress import plain_console
from raysafl.sweep.shard import parse_shard
from raysafl.tracking.choice import Tracking

if TYPE_CHECKING:
    from ray import tune

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
class Options:
    """What is asked for; `raysafl.sweep.runner.Runner` says what each field is."""

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
            parse_shard(self.shard)
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

    def note(self, message: str) -> None:
        """Print a message, unless nothing is to be printed."""
        if not self.quiet:
            self.say(message)

    def say(self, message: str) -> None:
        """Print a message that must not be missed."""
        self.console.print(message, style="yellow", markup=False, soft_wrap=True)


def command_of_script() -> str:
    """Return the command that started this script; empty in a notebook or a module."""
    main = sys.modules["__main__"]
    file = str(getattr(main, "__file__", ""))
    if not file.endswith(".py") or getattr(main, "__spec__", None) is not None:
        return ""
    return shlex.join(["python", os.path.relpath(file), *sys.argv[1:]])
