"""Simulates one run in this process, without Ray and without files."""

import warnings
from typing import TYPE_CHECKING

from rich.progress import track

from raysafl.core.record import Record
from raysafl.simulation.run import Run
from raysafl.storage.rows import of_owners, sorted_rows, table_of
from raysafl.sweep.hosting import simulation_of, torch_threads
from raysafl.sweep.measures import check_run
from raysafl.sweep.prepare import prepare

if TYPE_CHECKING:
    import pandas as pd


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
    check_run(run, "the first argument of simulate")
    (dataset,) = prepare([run], engine).values()
    with torch_threads(threads):
        simulation = simulation_of(run, dataset, engine, device)
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
