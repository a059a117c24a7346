"""The rows of a run in the table `clients/`, from what its simulation knows."""

import numpy as np
import pyarrow as pa

from raysafl.simulation.per_client import ClientHistory
from raysafl.simulation.simulation import Simulation
from raysafl.storage.client_tables import CLIENTS


def client_rows(simulation: Simulation) -> pa.Table:
    """Return one row for each replicate, round in which clients were evaluated, and client.

    There are none unless the run evaluates clients one by one.
    """
    tables = [CLIENTS.empty_table()]
    sizes = zip(simulation.replicates, simulation.client_sizes, strict=False)
    for r, (replicate, (samples, test_samples)) in enumerate(sizes):
        history = replicate.clients
        if history is None or not history.rounds:
            continue
        clients = len(history.participations_N)
        rounds = len(history.rounds)
        measured = dict(
            zip(
                ClientHistory.COLUMNS,
                np.concatenate(history.tables, axis=1),
                strict=True,
            )
        )
        # A value that was not measured is NaN there, and missing in the table.
        measured_or_none = {
            name: pa.array(values, from_pandas=True)
            for name, values in measured.items()
        }
        columns = {
            "run_id": pa.repeat(simulation.run.id, rounds * clients),
            "replicate": np.full(rounds * clients, r),
            "seed": np.full(rounds * clients, replicate.seed),
            "round": np.repeat(history.rounds, clients),
            "client": np.tile(np.arange(clients), rounds),
            "samples": np.tile(samples, rounds),
            "test_samples": np.tile(test_samples, rounds),
            **measured_or_none,
        }
        table = pa.table({name: columns[name] for name in CLIENTS.names})
        tables.append(table.cast(CLIENTS))
    return pa.concat_tables(tables)
