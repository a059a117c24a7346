"""Runs that are computed in the process that asks for it: one of them, or those of a pack.

`simulate` and `trainable` are for a run without a sweep, and need no folder.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from raysafl.core.needs import need
from raysafl.core.problem import Dataset
from raysafl.core.record import Record
from raysafl.runtime.in_process import Worker
from raysafl.simulation.run import Run
from raysafl.simulation.simulation import Simulation
from raysafl.storage.rows import of_owners, sorted_rows, table_of
from raysafl.sweep.measures import check_run
from raysafl.sweep.prepare import prepare
from raysafl.training.resident import Resident

if TYPE_CHECKING:
    import pandas as pd
    from ray import tune


def simulate(
    run: Run,
    *,
    engine: str = "auto",
    device: str = "cpu",
    threads: int = 1,
    progress: bool = False,
) -> "pd.DataFrame":
    """Carry out a run in this process, and return a row for each evaluated round.

    Neither Ray nor a folder is used. All of the run's code is called from here, so a
    debugger stops in it, what it prints is seen, and an error has its whole traceback.
    The rows are those that a sweep writes for the run into `rounds/`, but for the
    column `seconds`: to the bit, if a sweep's actors have the same engine, device and
    threads.

    Example:
        >>> import raysafl as fl
        >>> from raysafl.quickstart import BASE
        >>> rounds = fl.simulate(BASE.replace(rounds=3, replicates=2))
        >>> rounds[["replicate", "round", "kind"]].values.tolist()[2:4]
        [[0, 2, 'client'], [1, 0, 'client']]
        >>> rounds.groupby("round").test_accuracy.mean().shape
        (3,)

    Args:
        run: the run.
        engine: how gradients are computed: auto, loop, vmap, linear, fused or graph.
        device: the torch device that trains and evaluates.
        threads: the number of threads that torch uses. A client actor of a sweep has as
            many as it has CPUs, by default one.
        progress: whether a progress bar is shown.

    Returns:
        A row for each replicate and evaluated round, sorted by both, with the columns
        of `rounds/` but for `run_id`. A replicate that diverges has none from that round
        on: no row at all, if it is round 0.

    Raises:
        ValueError: a file is missing, or a part of the run does not fit the data.

    Warns:
        UserWarning: a replicate diverged.
    """
    # Imported here, because the processes of Ray show no bar.
    from rich.progress import track

    check_run(run, "the first argument of simulate")
    (dataset,) = prepare([run], engine).values()
    with torch_threads(threads):
        simulation = Simulation(run, worker_of([run], dataset, engine, device))
        rounds = range(run.rounds)
        records: list[Record] = []
        for _ in track(rounds, "Rounds", disable=not progress):
            if simulation.done:
                break
            records += simulation.step()
    for number, replicate in enumerate(simulation.replicates):
        if replicate.diverged:
            warnings.warn(
                f"replicate {number} diverged: {replicate.diverged}", stacklevel=2
            )
    cells = run.cell_ids
    table = table_of([cells[record.replicate] for record in records], records)
    rows = sorted_rows(of_owners(table, {run.id: cells}))
    frame: pd.DataFrame = rows.drop_columns(["run_id"]).to_pandas()
    return frame


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

    from raysafl.sweep.code import ship_user_code
    from raysafl.sweep.on_ray.run_trainable import RunTrainable

    check_run(base, "the first argument of trainable")
    ship_user_code(base.components())
    (dataset,) = prepare([base], engine).values()
    made: type[tune.Trainable] = tune.with_parameters(
        RunTrainable, base=base, dataset=dataset, engine=engine
    )
    return made


def worker_of(
    runs: Sequence[Run],
    dataset: Dataset,
    engine: str = "auto",
    device: str = "cpu",
    resident: Resident | None = None,
    device_share: float = 1.0,
) -> Worker:
    """Host the cells of runs in this process.

    Args:
        runs: runs with one dataset, model, objective and batch size.
        dataset: the dataset.
        engine: the engine's name, or "auto".
        device: the torch device that trains and evaluates.
        resident: what is on the device already; None if nothing is.
        device_share: the part of a GPU's memory that this process may take.
    """
    first = runs[0]
    return Worker(
        [cell for run in runs for cell in run.cells],
        dataset,
        first.model,
        device,
        engine,
        first.objective,
        resident,
        device_share,
    )


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Let torch use a number of threads for as long as the block runs.

    On a busy machine each product waits for the slowest of its threads, which have no
    core of their own: steps of small networks take several times as long with two.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
