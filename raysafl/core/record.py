"""One row of a run's results: to which cell it belongs, and what each of its columns means.

A cell is one configuration with one seed. A run of R replicates is R cells, and its own id
is that of the first one. So a run that is given more seeds keeps its id and its cells.

This is the only file that lists the columns that every run has. The Parquet schema, the
totals in `runs.parquet`, the curves in MLflow, `raysafl list` and the table in
docs/results.md are derived from it.

A run may have further columns: the metrics of its objective, and what it measures on
validation data and clients. `Run.columns` declares them, the manifest stores the
declarations, and what derives from the columns above derives from these as well.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal, get_type_hints

Type = Literal[
    "string",
    "int32",
    "int64",
    "float64",
    "list of bool",
    "list of lists of int32",
    "list of float64",
]
# The column of the time on the clients' devices, which only runs with `devices` have.
VIRTUAL_SECONDS = "virtual_seconds"
# The names of other further columns begin with what was measured on.
FURTHER_NAME = re.compile(rf"(test|val|train|clients)_[a-z0-9_]+|{VIRTUAL_SECONDS}")
# The fields of a run's configuration that say which cells it has.
REPLICATES = "replicates"
SEED = "seed"


def cell_ids(config: Mapping[str, Any]) -> list[str]:
    """Return the ids of a run's cells, in the order of its replicates.

    An id is the first 12 hexadecimal digits of a SHA-256 of the configuration, without
    `replicates` and `seed`, and of the cell's seed.

    Args:
        config: the run's configuration as JSON values.

    Example:
        >>> three = cell_ids({"rounds": 20, "replicates": 3, "seed": 7})
        >>> three[1:] == cell_ids({"rounds": 20, "replicates": 2, "seed": 8})
        True
    """
    common = {
        name: value for name, value in config.items() if name not in (REPLICATES, SEED)
    }
    text = json.dumps(common, sort_keys=True, separators=(",", ":"))
    shared = hashlib.sha256(text.encode())
    first = config.get(SEED, 0)
    found = []
    for seed in range(first, first + config.get(REPLICATES, 1)):
        own = shared.copy()
        own.update(str(seed).encode())
        found.append(own.hexdigest()[:12])
    return found


class Summary(StrEnum):
    """How a column's values are combined into numbers that describe the whole run."""

    # Identifies the row and is never combined.
    KEY = "key"
    # A measured value, such as an accuracy: averaged over replicates.
    MEAN = "mean"
    # A count since the replicate's previous row: summed over rounds.
    SUM = "sum"
    # Each row's value stands for itself.
    NONE = "none"


@dataclass(frozen=True)
class ColumnDescription:
    """What is known about one column of the rows.

    Args:
        type: the name of the column's type in Parquet.
        meaning: what a value is, with its unit, as one phrase.
        summary: how the values are combined over rounds and replicates.
        total: what the sum over a run is; given for columns with `Summary.SUM` only.
        is_fraction: whether a value is a fraction in [0, 1], shown in per cent.
        higher_is_better: whether a higher value is better than a lower one.
    """

    type: Type
    meaning: str
    summary: Summary = Summary.NONE
    total: str = ""
    is_fraction: bool = False
    higher_is_better: bool = True

    def __post_init__(self) -> None:
        assert bool(self.total) == (self.summary is Summary.SUM)

    @property
    def is_scalar(self) -> bool:
        """Whether a value is one number that is averaged over replicates."""
        return self.summary is Summary.MEAN and self.type == "float64"


@dataclass
class Record:
    """The results of one evaluated round of one replicate.

    It is not frozen because its round fills it in step by step: the measures of clients
    come last, and the time when all replicates are done.

    To add a column, add a field here and have the simulation fill it.
    """

    # The number of the replicate in its simulation: no column, as rows belong to cells.
    replicate: int
    seed: Annotated[
        int,
        ColumnDescription(
            "int64", "the run's seed plus the replicate's number", Summary.KEY
        ),
    ]
    round: Annotated[
        int, ColumnDescription("int32", "number of the round, from 0", Summary.KEY)
    ]
    kind: Annotated[
        str,
        ColumnDescription(
            "string",
            "who trained in the round: client, server, client+server, central (on all "
            "clients' data in one place) or nobody",
        ),
    ]
    cohorts: Annotated[
        list[list[int]],
        ColumnDescription(
            "list of lists of int32",
            "the cohorts of all rounds after the replicate's previous row, up to and "
            "including this round. A cohort is a list of client ids: the clients that the"
            " policy picked or, with `devices`, those of them that reported",
        ),
    ]
    enforced: Annotated[
        list[bool],
        ColumnDescription(
            "list of bool",
            "whether each of these rounds was enforced; under uniform or full "
            "participation all of them are",
        ),
    ]
    trained: Annotated[
        list[bool],
        ColumnDescription(
            "list of bool",
            "whether clients trained in each of these rounds: not if the cohort was empty "
            "or only the server trained",
        ),
    ]
    test_accuracy: Annotated[
        float | None,
        ColumnDescription(
            "float64",
            "test accuracy of the global model after the round, a fraction in [0, 1]; "
            "empty if the objective has no accuracy",
            Summary.MEAN,
            is_fraction=True,
        ),
    ]
    test_loss: Annotated[
        float,
        ColumnDescription(
            "float64",
            "mean test loss of the global model after the round",
            Summary.MEAN,
            higher_is_better=False,
        ),
    ]
    train_accuracy: Annotated[
        float | None,
        ColumnDescription(
            "float64",
            "mean training accuracy in the latest round in which clients trained, over "
            "their samples, measured while they trained; with `Snapshot(adapt=...)`, the "
            "accuracy by which the probability changes; empty if the objective has no "
            "accuracy",
            Summary.MEAN,
            is_fraction=True,
        ),
    ]
    train_loss: Annotated[
        float | None,
        ColumnDescription(
            "float64",
            "mean training loss in the latest round in which clients trained, over their "
            "samples",
            Summary.MEAN,
            higher_is_better=False,
        ),
    ]
    enforce_prob: Annotated[
        float | None,
        ColumnDescription(
            "float64",
            "probability with which this round was enforced (FAST's q); empty for every "
            "policy but `Snapshot`",
            Summary.MEAN,
        ),
    ]
    snapshots: Annotated[
        int,
        ColumnDescription(
            "int32",
            "enforced rounds in which clients trained, since the replicate's previous "
            "row; under uniform or full participation these are all rounds in which "
            "clients trained",
            Summary.SUM,
            total="enforced rounds of the run",
        ),
    ]
    server_rounds: Annotated[
        int,
        ColumnDescription(
            "int32",
            "rounds in which the server trained, since the replicate's previous row",
            Summary.SUM,
            total="rounds in which the server trained",
        ),
    ]
    steps: Annotated[
        int,
        ColumnDescription(
            "int64",
            "local steps of clients and server since the replicate's previous row; a "
            "mini-batch on which a client computes a loss for a selection counts as a step",
            Summary.SUM,
            total="local steps of clients and server",
        ),
    ]
    bytes_down: Annotated[
        int,
        ColumnDescription(
            "int64",
            "bytes sent to clients since the replicate's previous row: 4 per parameter, "
            "and, if the server shares samples with clients, these samples once for each "
            "client",
            Summary.SUM,
            total="bytes sent to clients",
        ),
    ]
    bytes_up: Annotated[
        int,
        ColumnDescription(
            "int64",
            "bytes received from clients since the replicate's previous row: 4 per "
            "parameter, unless the algorithm declares that its updates are smaller",
            Summary.SUM,
            total="bytes received from clients",
        ),
    ]
    seconds: Annotated[
        float,
        ColumnDescription(
            "float64",
            "wall time since the replicate's previous row. If replicates are trained "
            "together, in a pack, each has an equal share of the pack's time",
        ),
    ]
    # Every other column by its name, such as `test_f1`; `Run.columns` declares them.
    metrics: Mapping[str, float | list[float]] = field(default_factory=dict)


COLUMNS: Mapping[str, ColumnDescription] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Record, include_extras=True).items()
    # `replicate` is no column, and `metrics` holds the further ones.
    if name not in ("replicate", "metrics")
}


def further_column(
    meaning: str,
    is_fraction: bool = False,
    higher_is_better: bool = True,
    is_list: bool = False,
) -> ColumnDescription:
    """Declare a further column: a measured number, or a list of them.

    Args:
        meaning: what a value is, as one phrase.
        is_fraction: whether a value is a fraction in [0, 1], shown in per cent.
        higher_is_better: whether a higher value is better than a lower one.
        is_list: whether a value is a list of numbers, which has no statistics.
    """
    return ColumnDescription(
        type="list of float64" if is_list else "float64",
        meaning=meaning,
        summary=Summary.NONE if is_list else Summary.MEAN,
        is_fraction=is_fraction,
        higher_is_better=higher_is_better,
    )


def columns_with(summary: Summary) -> list[str]:
    """Return the names of the columns that are combined in this way, in order."""
    return [name for name, column in COLUMNS.items() if column.summary is summary]
