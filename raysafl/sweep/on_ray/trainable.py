"""A run as a trainable of Ray Tune, for a plain `tune.Tuner`."""

from typing import TYPE_CHECKING

from raysafl.core.needs import need
from raysafl.simulation.run import Run
from raysafl.sweep.code import ship_user_code
from raysafl.sweep.measures import check_run
from raysafl.sweep.prepare import prepare

if TYPE_CHECKING:
    from ray import tune


def trainable(base: Run, *, engine: str = "auto") -> "type[tune.Trainable]":
    """Return a trainable with which a plain `tune.Tuner` tunes the fields of a run.

    The configuration that Tune gives a trial names fields by dotted paths, and the
    trial's run is `base.replace(config)`. All clients are simulated in the trial's own
    process. Every evaluated round is reported: its number `round` from 1, and the means
    over replicates of `test_loss`, of the objective's metric (`test_accuracy` for
    classes) and of the other numbers that are measured on test or validation data. If
    all replicates diverge, the last report has NaN instead.

    With `reuse_actors` a trial takes over the process of one that has ended; without it, each
    starts a process, which imports torch for some seconds.

    A trial has one CPU unless `tune.with_resources` gives it more; torch uses as many
    threads, and the GPU if it has one. Schedulers that pause a trial, and trials that
    are started again after a failure, go on from Tune's checkpoint. A schedule that
    changes the configuration of a trial that has begun, as population based training
    does, is refused: it would be another run.

    Nothing is stored but what Tune stores. `Sweep` and `Runner` also write rows, tables
    and a report, train many runs in one trial, and continue after a crash.

    Example:
        >>> import raysafl as fl
        >>> from ray import tune
        >>> from raysafl.quickstart import BASE
        >>> tuner = tune.Tuner(
        ...     fl.trainable(BASE),
        ...     param_space={"local.lr": tune.loguniform(0.01, 1)},
        ...     tune_config=tune.TuneConfig(
        ...         metric="test_accuracy", mode="max", num_samples=8, reuse_actors=True
        ...     ),
        ... )

    Args:
        base: the run whose fields are tuned.
        engine: how gradients are computed: auto, loop, vmap, linear, fused or graph.

    Raises:
        ValueError: a file is missing, a part of the run does not fit the data, or Ray is
            not installed.
    """
    need("ray", "fl.trainable")
    # Imported here, because whoever does not call this may have no Ray.
    from ray import tune

    from raysafl.sweep.on_ray.run_trainable import RunTrainable

    check_run(base, "the first argument of trainable")
    ship_user_code(base.components())
    (dataset,) = prepare([base], engine).values()
    made: type[tune.Trainable] = tune.with_parameters(
        RunTrainable, base=base, dataset=dataset, engine=engine
    )
    return made
