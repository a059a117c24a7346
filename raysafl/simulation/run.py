"""The configuration of a run: data, model, algorithm, policy, and when it stops."""

import json
import math
from functools import lru_cache
from typing import Literal

from pydantic import Field, SerializeAsAny, model_validator

from raysafl.core.algorithm import Algorithm, ContinuedTraining, LocalTraining
from raysafl.core.component import Component
from raysafl.core.objective import (
    UNKNOWN_OUTPUTS,
    Metric,
    Objective,
    hits_of,
    measures_of,
    metric_columns,
)
from raysafl.core.participation import Participation
from raysafl.core.problem import Dataset, FederatedData, Model
from raysafl.core.record import VIRTUAL_SECONDS, ColumnDescription, cell_ids
from raysafl.core.text import nearest
from raysafl.core.work import Cell
from raysafl.objectives import PLAIN
from raysafl.simulation.devices import COLUMN, Devices
from raysafl.simulation.per_client import PerClient


class Patience(Component):
    """A replicate stops when a metric has not improved for some rounds.

    With v(t) the metric after evaluated round t and b the best value so far, round t is
    an improvement if v(t) < b - min_delta (for a metric that should be high,
    v(t) > b + min_delta). A replicate stops after the first evaluated round that is at
    least `rounds` rounds after the last improvement. The first value is an improvement,
    and NaN is none. For a column `clients_*`, the evaluated rounds are those in which
    clients are evaluated (`PerClient.every`).

    Each replicate stops by itself; the run is finished when all have stopped. The
    ledger names the reason. Parameters stay as they were in the last round.

    Prechelt 1998 compares this and other criteria (docs/papers.md#early-stopping).

    Example:
        >>> patience = Patience(metric="test_loss", rounds=2)
        >>> patience.improves(0.5, best=0.6, higher_is_better=False)
        True
    """

    metric: str = Field(
        default="test_loss",
        description="the column of `rounds/` that should improve, such as test_loss",
    )
    rounds: int = Field(
        default=10, gt=0, description="rounds without improvement until the end"
    )
    min_delta: float = Field(
        default=0.0, ge=0, description="a smaller change is no improvement"
    )

    @property
    def is_of_clients(self) -> bool:
        """Whether the metric is measured only in rounds in which clients are evaluated."""
        return self.metric.startswith("clients_")

    def improves(
        self, value: float, best: float | None, higher_is_better: bool
    ) -> bool:
        """Return whether a value is an improvement over the best one so far.

        Args:
            value: The new value.
            best: The best one; None before the first.
            higher_is_better: Whether the metric should be high.
        """
        if math.isnan(value):
            return False
        if best is None:
            return True
        gain = value - best if higher_is_better else best - value
        return gain > self.min_delta


class Run(Component):
    """A whole configuration, from which all results follow.

    A run has R replicates, which differ in their seeds only: replicate r has the seed
    `seed + r`. Its data say which of them share a partition: all, or every D-th with
    `Federation(partition_seeds=D)`, so that R = 64 and D = 32 are 32 partitions with two
    seeds each. Hardware is no part of a run: results do not depend on the number of
    actors, and on the kind of device only in their last digits. Each replicate has an id, a
    hash of the configuration and of its seed; the run's `id` is that of the first one.

    Raises:
        ValueError: The policy cannot serve the number of clients, the algorithm trains
            on server data and there are none, the policy goes by the training accuracy
            and the objective has none, or some partitions have more replicates than others.

    Example:
        >>> import raysafl as fl
        >>> run = fl.Run(
        ...     data=fl.Federation(partition=fl.ClassesPerClient(p=2)),
        ...     model=fl.Logistic(),
        ...     algorithm=fl.FedAvg(),
        ...     participation=fl.Uniform(m=5),
        ...     local=fl.LocalTraining(lr=0.1, batch_size=16, epochs=1),
        ...     rounds=20,
        ...     replicates=3,
        ...     seed=7,
        ... )
        >>> run.seeds
        [7, 8, 9]
        >>> fl.Run.from_json(run.to_json()).id == run.id
        True
    """

    data: SerializeAsAny[FederatedData] = Field(
        description="the dataset, and how it is split among clients and server"
    )
    model: SerializeAsAny[Model] = Field(description="the model that is trained")
    algorithm: SerializeAsAny[Algorithm] = Field(
        description="the rule by which the server uses its clients' updates"
    )
    participation: SerializeAsAny[Participation] = Field(
        description="the policy that chooses the clients of each round"
    )
    local: SerializeAsAny[LocalTraining] = Field(
        description="how clients train on their own data"
    )
    rounds: int = Field(gt=0, description="number of communication rounds")
    replicates: int = Field(
        default=1,
        gt=0,
        description="number R of replicates, each with a seed of its own",
    )
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="seed of the first replicate"
    )
    eval_every: int = Field(
        default=1,
        gt=0,
        description="number of rounds from one evaluation on the test set to the next; "
        "the last round is always evaluated",
    )
    objective: SerializeAsAny[Objective] = Field(
        default=PLAIN,
        description="what the model is trained for, and by what it is judged",
    )
    patience: Patience | None = Field(
        default=None,
        description="when a replicate stops before the last round; None: never",
    )

    eval_clients: PerClient | None = Field(
        default=None,
        description="whether and how often the model is evaluated by each client, beside "
        "the evaluation on the whole test set",
    )

    devices: Devices | None = Field(
        default=None,
        # Runs without it keep the ids that they had before there was this field.
        exclude_if=lambda devices: devices is None,
        description="the clients' devices, which say how long rounds take and who reports "
        "in time; None: all clients report, and rounds have no virtual seconds",
    )

    keep: Literal["last", "best", "best_val"] | None = Field(
        default=None,
        description="which model of each replicate is written to models/ when the run "
        "ends, for raysafl.load_model: that of the last round, or the first that was best "
        "on the test set or on the validation samples; None: no model",
    )

    @model_validator(mode="after")
    def _fits(self) -> "Run":
        if self.seed + self.replicates > 2**63:
            raise ValueError(
                f"seed + replicates is {self.seed + self.replicates}, but seeds go up to "
                "2^63 - 1; give a smaller seed"
            )
        self.participation.check(self.data.clients)
        for part in self.components():
            if isinstance(part, LocalTraining):
                part.check(self.rounds)
            elif isinstance(part, Algorithm):
                part.check(self.participation, self.data.clients)
        if self.patience is not None:
            self.higher_is_better(self.patience.metric)
        if self.algorithm.uses_server_data and not self.data.has_server_data:
            raise ValueError(
                f"{type(self.algorithm).__name__} trains on server data, but "
                "data.server is None; give it, for example data.server=IidServer(n0=1000)"
            )
        if self.participation.uses_accuracy and not self._has_accuracy():
            raise ValueError(
                f"{type(self.participation).__name__} goes by the training accuracy, but "
                f"{type(self.objective).__name__} measures none; take a policy that does "
                "not (for Snapshot, every=... or snapshot_prob=...), or an objective with "
                "accuracy, such as Classification()"
            )
        if (self.kept_by or self.eval_clients) and self.quality.is_list:
            raise ValueError(
                f"keep='best', keep='best_val' and eval_clients go by a number, and the "
                f"metric '{self.objective.metric}' of {type(self.objective).__name__} is a "
                "list; let its `metric` be another one"
            )
        if self.eval_clients is not None:
            self.eval_clients.check(
                self.rounds, self.eval_every, self.replicates, self.data.clients
            )
            # This refuses statistics over clients that cannot be columns.
            self.eval_clients.columns(self.objective)
        return self

    @model_validator(mode="after")
    def _partitions_have_equally_many_replicates(self) -> "Run":
        seeds = self.partition_seeds
        distinct = len(set(seeds))
        if len({seeds.count(seed) for seed in set(seeds)}) > 1:
            raise ValueError(
                f"{self.replicates} replicates cannot be divided evenly among {distinct} "
                f"partitions; let replicates be a multiple of {distinct}, or change "
                "data.partition_seeds"
            )
        return self

    @model_validator(mode="after")
    def _has_a_device_for_each_client(self) -> "Run":
        for name, own in self.devices or ():
            if isinstance(own, list) and len(own) != self.data.clients:
                raise ValueError(
                    f"devices.{name} has {len(own)} entries for N = {self.data.clients} "
                    "clients; give one for each, or a single number for all"
                )
        return self

    @model_validator(mode="after")
    def _goes_on_where_that_can_be(self) -> "Run":
        parts = (p for p in self.components() if isinstance(p, ContinuedTraining))
        if any(part is not self.local for part in parts):
            raise ValueError(
                "ContinuedTraining is for the clients of a run, as its `local`; inside an "
                "algorithm give LocalTraining(...), which keeps nothing"
            )
        goes_on = isinstance(self.local, ContinuedTraining) and self.local.steps
        if self.participation.goes_by_passes and not goes_on:
            raise ValueError(
                f"{type(self.participation).__name__} goes by the accuracy of passes that "
                "last several rounds; give local=ContinuedTraining(steps=...), or another "
                'accuracy, such as "local"'
            )
        return self

    @model_validator(mode="after")
    def _keeps_a_model_that_can_be_chosen(self) -> "Run":
        if self.keep == "best_val" and not self.data.has_validation:
            raise ValueError(
                "keep='best_val' chooses by the validation samples, but there are none; "
                "give them, for example data.validation=Validation(server=0.1), or take "
                "keep='best', which chooses by the test set"
            )
        return self

    def _has_accuracy(self) -> bool:
        return hits_of(self.objective, UNKNOWN_OUTPUTS) is not None

    @property
    def id(self) -> str:
        """The id of the run's first cell; a run of more replicates has the same."""
        return self.cell_ids[0]

    @property
    def cell_ids(self) -> list[str]:
        """The id of each replicate: a hash of the configuration and of its seed."""
        return list(_ids_of(_Itself(self)))

    def split(self) -> "list[Run]":
        """Return the replicates as runs of one seed each."""
        if self.replicates == 1:
            return [self]
        return [
            self.model_copy(update={"replicates": 1, "seed": seed})
            for seed in self.seeds
        ]

    @property
    def seeds(self) -> list[int]:
        """The seed of each replicate."""
        return [self.seed + r for r in range(self.replicates)]

    @property
    def partition_seeds(self) -> list[int]:
        """The seed of each replicate's partition."""
        return [self.data.split_seed(seed) for seed in self.seeds]

    @property
    def cells(self) -> list[Cell]:
        """The cell of each replicate: its data and its seed."""
        return [Cell(self.data, seed) for seed in self.seeds]

    def higher_is_better(self, column: str) -> bool:
        """Return whether a column of the results is better the higher it is.

        Raises:
            ValueError: The run measures no such column, or it is a list of numbers.
        """
        columns = self.columns()
        # Time is spent, and does not improve.
        columns.pop(VIRTUAL_SECONDS, None)
        known = {
            name: declared.higher_is_better
            for name, declared in columns.items()
            if declared.is_scalar
        }
        known["train_loss"] = False
        if self._has_accuracy():
            known["train_accuracy"] = True
        if column not in known:
            unasked = column.startswith("clients_") and self.eval_clients is None
            hint = "; statistics over clients need eval_clients" if unasked else ""
            raise ValueError(
                f"the run measures no single number '{column}': "
                f"{nearest(column, known)}{hint}"
            )
        return known[column]

    def columns(self, num_outputs: int | None = None) -> dict[str, ColumnDescription]:
        """Declare the columns of the results that the run measures, by their names.

        Besides those of `Record.metrics`, these are `test_loss` and, if the objective
        has an accuracy, `test_accuracy`. A run with validation samples measures the
        same of them: `val_loss`, `val_accuracy` and so on.

        Args:
            num_outputs: What `objective.num_outputs(dataset)` returns. If it is None,
                it is taken to be 2, so of columns that belong to one class each, those
                of classes 0 and 1 are declared.
        """
        found = metric_columns(self.objective, num_outputs)
        if self.data.has_validation:
            found |= metric_columns(
                self.objective, num_outputs, "val", "the validation samples"
            )
        if self.eval_clients is not None:
            found |= self.eval_clients.columns(self.objective)
        if self.devices is not None:
            found[VIRTUAL_SECONDS] = COLUMN
        return found

    def policy_on(self, dataset: Dataset) -> Participation:
        """Return the policy for the clients of the first replicate.

        Args:
            dataset: What `data.load()` returns.

        Raises:
            ValueError: The policy names a client that does not exist.
        """
        return self.participation.for_clients(
            lambda: self.data.client_names(dataset, self.data.split(dataset, self.seed))
        )

    @property
    def quality(self) -> Metric:
        """The metric that stands for the model's quality."""
        return measures_of(self.objective, UNKNOWN_OUTPUTS)[self.objective.metric]

    @property
    def kept_by(self) -> str:
        """The column by which a kept model is chosen; empty if none is chosen by one."""
        prefix = {"best": "test_", "best_val": "val_"}.get(self.keep or "")
        return f"{prefix}{self.objective.metric}" if prefix else ""


class _Itself:
    """A run as a key: equal to the same object alone, which never changes.

    To compare runs, or to hash them, takes as long as what is looked up.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    def __hash__(self) -> int:
        return id(self.run)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.run is other.run


# Of each run of a sweep the ids are asked for some twenty times.
@lru_cache(maxsize=32_768)
def _ids_of(itself: _Itself) -> list[str]:
    return cell_ids(json.loads(itself.run.to_json()))
