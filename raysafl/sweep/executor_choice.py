"""Who carries out a sweep: this process, or trials on Ray."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from raysafl.core.needs import is_installed, need
from raysafl.core.text import nearest
from raysafl.sweep.choices import ExecutorName
from raysafl.sweep.options import Options

if TYPE_CHECKING:
    from raysafl.sweep.execution import Executor

# The seconds that Ray and the processes of the first trial take to start and to end on
# two cores.
STARTING_RAY_SECONDS = 8.0


def check_executor(options: Options) -> None:
    """Refuse what this process cannot do, if it is to carry out the sweep.

    Raises:
        ValueError: it is, and something is asked for that only Ray has; or Ray is needed,
            and not installed; or there is no such executor.
    """
    if options.executor not in list(ExecutorName):
        given = str(options.executor)
        raise ValueError(
            f"there is no executor '{given}': {nearest(given, list(ExecutorName))}"
        )
    needs = _only_ray(options)
    if options.executor == ExecutorName.HERE and needs:
        raise ValueError(
            f"executor 'here' carries out a sweep in this process, but {needs}; leave "
            "that out, or take executor 'ray'"
        )
    if options.executor == ExecutorName.RAY:
        need("ray", "executor 'ray'")
    elif needs:
        need("ray", f"this sweep ({needs})")
    _check_gpus(options)


def _check_gpus(options: Options) -> None:
    """Refuse GPUs that are asked for if this machine is to train, and torch sees none.

    Raises:
        ValueError: so it is.
    """
    if not options.hardware.gpu_share:
        return
    # Imported here, because most sweeps ask for none.
    from raysafl.cluster.gpus import are_logical, in_words, why_unseen

    here = options.executor == ExecutorName.HERE
    elsewhere = options.address is not None or ray_runs() or are_logical()
    if (here or not elsewhere) and (why := why_unseen()):
        raise ValueError(
            f"the sweep asks for {in_words(options.hardware.gpu_share)}, but torch "
            f"{torch.__version__} sees no CUDA device ({why}); `raysafl doctor` says "
            "more, and gpus=0 (--gpus 0) trains on the CPU"
        )


def ray_runs() -> bool:
    """Whether this program has started Ray, or joined a cluster."""
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def choose_executor(options: Options, seconds: Callable[[], float]) -> "Executor":
    """Return who carries out the runs, and say so unless it was asked for.

    Args:
        options: what was asked for.
        seconds: see `choose`.
    """
    name, why = choose(options, seconds)
    if options.executor == ExecutorName.AUTO and not options.quiet:
        where = "in this process" if name is ExecutorName.HERE else "on Ray"
        options.console.print(f"Runs {where}: {why}", soft_wrap=True)
    # Each is imported where it is needed: Ray and Tune take seconds.
    if name is ExecutorName.HERE:
        from raysafl.cluster.gpus import num_gpus, used_note
        from raysafl.sweep.here import Here

        hardware = options.hardware.where_there_are(count := num_gpus())
        if note := used_note(hardware, 1, count):
            options.note(note)
        return Here(hardware)
    from raysafl.sweep.on_ray.tuning import OnRay

    return OnRay(options.hardware, options.address, options.note, options.wait_nodes)


def choose(options: Options, seconds: Callable[[], float]) -> tuple[ExecutorName, str]:
    """Return the name of who carries out the sweep, and why.

    Args:
        options: what was asked for.
        seconds: returns about how long the work takes on one core. It is called only if
            the choice depends on it.
    """
    if options.executor != ExecutorName.AUTO:
        return ExecutorName(options.executor), "it was asked for"
    if not is_installed("ray"):
        return ExecutorName.HERE, "Ray is not installed"
    if why := _only_ray(options) or _better_on_ray(options):
        return ExecutorName.RAY, why
    # No number: it is estimated without any measurement, and grows more wrong with the work.
    than = "than Ray takes to start, by a rough estimate"
    if seconds() < STARTING_RAY_SECONDS:
        return ExecutorName.HERE, f"the work takes less time {than}"
    return ExecutorName.RAY, f"the work takes longer {than}"


def _only_ray(options: Options) -> str:
    """Say what is asked for that only Ray has; empty if nothing is."""
    hardware = options.hardware
    if options.address is not None:
        return f"the address '{options.address}' of a cluster is given"
    if hardware.actors > 1:
        return f"{hardware.actors} client actors are asked for"
    if hardware.autoscale:
        return "a cluster that adds nodes is asked for"
    if options.sweep.scheduler is not None:
        return "Tune's scheduler compares trials that run at the same time"
    if options.sweep.is_searched:
        return "the search algorithm is Tune's"
    if options.callbacks:
        return "callbacks of Tune's are given"
    if options.stop:
        return "`stop` is a rule of Tune's"
    if (hardware.trials or 1) > 1:
        return f"{hardware.trials} trials at once are asked for"
    return ""


def _better_on_ray(options: Options) -> str:
    """Say what is asked for that Ray is meant for; empty if nothing is."""
    if options.hardware.gpu_share:
        return "GPUs are asked for"
    if ray_runs():
        return "this program has started Ray"
    return ""
