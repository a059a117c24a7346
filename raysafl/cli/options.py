"""The options of the commands that carry out runs, each written once.

`Runner` and `Hardware` say in full what they mean. Neither is imported here, so that
`raysafl --help` is fast.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysafl.sweep.choices import ExecutorName, Stale
from raysafl.tracking.choice import Tracking

if TYPE_CHECKING:
    from raysafl.cluster.hardware import Hardware

# How options are written whose name alone does not say it: switches without a `--no-...`.
WRITTEN = {
    "dry_run": ("--dry-run",),
    "try_first": ("--try/--no-try",),
    "quiet": ("--quiet", "-q"),
    "autoscale": ("--autoscale",),
    "keep_states": ("--keep-states",),
}


@dataclass(frozen=True)
class SweepOptions:
    """What is asked for on the command line when runs are carried out.

    The names are those of `Runner` and `Hardware`. The help of a command shows what
    stands here of each, in these groups.

    Which runs:
        scale: Size of the runs: paper (the full size), smoke, or one that the file defines.
        only: AXIS=LABEL: only the runs with this label on this axis, or with one of
            A,B,...; may be repeated for other axes.
        shard: I/N: only the runs of the I-th of N parts of the sweep, counted from 1, as
            the tasks of `sbatch --array=1-N` are; `raysafl merge` joins the parts.
        resume: Go on where an earlier attempt ended, or with --no-resume run all anew.
        stale: What becomes of runs that were computed before you edited the code of their
            classes: all are run again (rerun); those that have ended keep their results,
            and the others begin anew (keep); or the command ends with an error (fail).

    Before and during the sweep:
        dry_run: Say what would be run, in what packs, for how long, and what would be
            reused. Some rounds are timed for this, with your own classes; nothing is
            written.
        try_first: Try a cheap round of your own classes before anything is run, or do not.
        quiet: Show no progress.

    Where, and how many at once:
        executor: Who carries out the runs: this process (here), trials on Ray (ray), or
            Ray only if the work takes longer than Ray takes to start, or GPUs, several
            actors or trials, a scheduler or a cluster are asked for (auto).
        address: Address of a Ray cluster; 'auto' for the one on this machine.
        wait_nodes: Start when the Ray cluster at --address has so many living nodes; wait
            for them up to ten minutes.
        actors: Number of client actors of each trial.
        cpus: Number of CPUs of each client actor.
        gpus: GPU of each client actor: 0, 1, 0.5, 0.25, ...; auto uses all GPUs.
        trials: Maximum number of trials at the same time; by default as many as fit.
        pack: Maximum number of runs that are carried out together; auto chooses by work
            and memory, 256 at most.
        autoscale: Do not check that a trial fits the present nodes: the cluster adds nodes
            on demand.
        engine: How gradients are computed: auto, loop, vmap, linear, fused or graph.

    What is kept:
        out: Folder or URI (s3://...) of the results; by default results/<sweep>, or
            results/<sweep>-<scale> if the scale is not paper.
        keep_states: Keep the state in which each run ends, so that it can go on when you
            ask for more rounds.
        track: How much MLflow gets: nothing (none); parameters and final statistics of
            each run (summary); also curves of at most 100 points a metric (curves); or
            curves if the sweep has at most 200 runs, otherwise summaries (auto).
        tracking_uri: MLflow's server or database.
    """

    scale: str = "paper"
    only: list[str] | None = None
    shard: str | None = None
    resume: bool = True
    stale: Stale = Stale.FAIL
    dry_run: bool = False
    try_first: bool = True
    quiet: bool = False
    executor: ExecutorName = ExecutorName.AUTO
    address: str | None = None
    wait_nodes: int = 0
    actors: int = 1
    cpus: float = 1.0
    gpus: str = "auto"
    trials: int | None = None
    pack: str = "auto"
    autoscale: bool = False
    engine: str = "auto"
    out: str | None = None
    keep_states: bool = False
    track: Tracking = Tracking.AUTO
    tracking_uri: str | None = None

    def hardware(self) -> "Hardware":
        """Return what a trial runs on.

        Raises:
            ValueError: there is no such hardware.
        """
        from raysafl.cluster.hardware import Hardware

        asked = {name: getattr(self, name) for name in Hardware.model_fields}
        if self.pack.isdecimal():
            asked["pack"] = int(self.pack)
        return Hardware(**asked)

    def labels(self) -> dict[str, str]:
        """Return the labels that `--only` names, by their axes.

        Raises:
            ValueError: one is not of the form `AXIS=LABEL`, or an axis is named twice.
        """
        labels: dict[str, str] = {}
        for text in self.only or ():
            axis, equals, label = text.partition("=")
            if not equals:
                raise ValueError(f"--only takes AXIS=LABEL, not '{text}'")
            if axis in labels:
                raise ValueError(
                    f"--only is given more than once for '{axis}'; give one"
                )
            labels[axis] = label
        return labels


def grouped_help() -> dict[str, tuple[str, str]]:
    """Return the group of each option, and what the help says of it, by its name."""
    meanings: dict[str, tuple[str, str]] = {}
    group = name = ""
    for line in (inspect.getdoc(SweepOptions) or "").splitlines():
        indent = len(line) - len(line.lstrip())
        text = line.strip()
        if indent == 0:
            group = text.removesuffix(":")
        elif indent == 4:
            name, _, text = text.partition(": ")
            meanings[name] = (group, text)
        else:
            meanings[name] = (group, f"{meanings[name][1]} {text}")
    return meanings


def takes_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options of `SweepOptions`, or all if none is named.

    Its parameter `options` is a `SweepOptions`, in which others have their defaults.
    """
    chosen = [one for one in fields(SweepOptions) if not names or one.name in names]
    help_of = grouped_help()
    added = []
    for one in chosen:
        group, meaning = help_of[one.name]
        written = WRITTEN.get(one.name, ())
        option = typer.Option(*written, help=meaning, rich_help_panel=group)
        added.append(
            inspect.Parameter(
                one.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=one.default,
                annotation=Annotated[one.type, option],
            )
        )

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def call(**given: Any) -> None:
            asked = {one.name: given.pop(one.name) for one in chosen}
            command(**given, options=SweepOptions(**asked))

        signature = inspect.signature(command)
        others = [p for p in signature.parameters.values() if p.name != "options"]
        # typer reads the signature to know a command's options.
        vars(call)["__signature__"] = signature.replace(parameters=[*others, *added])
        return call

    return with_options
