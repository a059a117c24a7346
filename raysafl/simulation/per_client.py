"""Per-client accuracy: how good a run's model is for each single client.

Every few rounds, the global model is evaluated on test samples of each client, or on sums over
classes that stand for them. If the run asks for it, so is each client's personal model, which
begins at the global one and takes a few local steps. This gives rows of the table `clients/`,
one for each client, and the columns `clients_*` of the round's record, which `served` defines.

Nothing of the training depends on it: the trainings of personal models draw from random
streams of their own.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raysafl.core.component import Component
from raysafl.core.means import weighted_sums
from raysafl.core.objective import (
    UNKNOWN_OUTPUTS,
    Measures,
    Objective,
    client_statistics_of,
    measure_clients,
    measures_of,
)
from raysafl.core.problem import EVERYONE
from raysafl.core.record import ColumnDescription, further_column
from raysafl.core.work import (
    CLASSES,
    OWN,
    ClientTests,
    Floats,
    GroupSums,
    Rows,
    TestsOn,
)

# The number that the trainings of personal models have among the requests of a round.
# Those of the algorithm are counted from 1.
PERSONAL_CALL = 0
# The largest number of rows in a run's table: they are in memory and in checkpoints.
MOST_ROWS = 2_000_000


class ClientScores(NamedTuple):
    """How well a model serves each client.

    Args:
        quality_N: The value of the objective's `metric` on each client's test samples.
        loss_N: The mean loss on them.
        absent: The value of that metric on the test samples of the classes that clients
            hold, but none that has trained so far; None if there is no such class, or
            if samples have no class.
        personal_N: The value of that metric of each client's personal model on the client's
            test samples; None if there are no such models.
    """

    quality_N: Floats
    loss_N: Floats
    absent: float | None
    personal_N: Floats | None


class PerClient(Component):
    """Evaluate the model by each client, every few rounds and after the last one.

    A client is judged by test samples of its own, in one of two senses:

    - `on="labels"`: test samples that are drawn to match its label mix. The
      expectation over such a draw is computed, which has no noise:

          quality_i = sum over classes c of p_ic * (accuracy on the test samples of c),

      with p_ic the share of class c in the client's own training samples. (Samples
      that the server shares do not count, and classes without test samples are left
      out.) For other metrics than the accuracy, the sums over the test samples of class
      c are weighted accordingly. One evaluation of the test set serves all clients.
    - `on="own"`: samples that belong to the client. These are the samples that
      `Federation(own_tests=0.2)` holds out of its training samples, if it does.
      Otherwise they are the test samples of its users, where the dataset names the user
      of each test sample and no two clients have training samples of the same user (as
      under the partitions `ByUser` and `ByColumn`). A client without such samples is judged
      by none: its entries are empty, and the statistics over clients leave it out.
      Validation samples are never used, since they serve to choose settings.

    Raises:
        ValueError: A field is out of range.

    Example:
        >>> import raysafl as fl
        >>> from raysafl.quickstart import BASE
        >>> run = BASE.replace(eval_clients=fl.PerClient(every=5, personal_steps=3))
        >>> [round for round in range(12) if run.eval_clients.is_due(round, rounds=12)]
        [4, 9, 11]
    """

    every: int = Field(
        default=10,
        gt=0,
        description="number of rounds from one evaluation of the clients to the next, a "
        "multiple of `eval_every`; the last round is always evaluated",
    )
    on: TestsOn = Field(
        default="labels",
        description="whether a client is judged by test samples that match its label mix "
        "(labels), or by test samples of its own (own)",
    )
    personal_steps: int = Field(
        default=0,
        ge=0,
        description="number of local steps from the global model to each client's "
        "personal model, which is evaluated on the same samples; 0: there is none",
    )

    def is_due(self, round: int, rounds: int) -> bool:
        """Return whether clients are evaluated after a round, counted from 0."""
        return (round + 1) % self.every == 0 or round + 1 == rounds

    def check(
        self, rounds: int, eval_every: int, replicates: int, clients: int
    ) -> None:
        """Refuse what does not fit the other fields of a run.

        Raises:
            ValueError: Clients would be evaluated in rounds without a row, or the table
                would have too many rows.
        """
        if self.every % eval_every and self.every < rounds:
            least = max(1, round(self.every / eval_every)) * eval_every
            raise ValueError(
                f"eval_clients.every={self.every} is no multiple of "
                f"eval_every={eval_every}, and only evaluated rounds have a row; give "
                f"every={least}, or another eval_every"
            )
        rows = -(-rounds // self.every) * replicates * clients
        if rows > MOST_ROWS:
            raise ValueError(
                f"eval_clients.every={self.every} would give a table with {rows:,} rows "
                f"({clients:,} clients, {replicates} replicates, {rounds:,} rounds); at "
                f"most {MOST_ROWS:,} are allowed: give a larger `every`"
            )

    def columns(self, objective: Objective) -> dict[str, ColumnDescription]:
        """Declare the columns of `rounds/` that the evaluation of clients fills.

        Raises:
            ValueError: A statistic of the objective's has the name of one of ours.
        """
        name = objective.metric
        metric = measures_of(objective, UNKNOWN_OUTPUTS)[name]
        columns = {
            f"clients_{statistic}_{name}": further_column(
                text.format(name),
                metric.is_fraction,
                # A spread between clients is better if it is small.
                metric.higher_is_better and statistic != "std",
            )
            for statistic, text in MEANINGS.items()
            if "personal" not in statistic or self.personal_steps
        }
        for column, declared in client_statistics_of(objective).items():
            if column in columns:
                raise ValueError(
                    f"{type(objective).__name__}.client_statistics would fill the column "
                    f"'{column}', which every run with eval_clients has; give the "
                    "statistic another name"
                )
            columns[column] = further_column(
                declared.meaning, declared.is_fraction, declared.higher_is_better
            )
        return columns


# Statistic -> its meaning, with {} for the name of the metric.
MEANINGS = {
    "mean": "{} on each client's test samples, mean over all clients",
    "std": "{} on each client's test samples, standard deviation over all clients",
    "weighted": "{} on each client's test samples, mean over all clients weighted by the "
    "number of rounds in which they have trained",
    "never": "{} on each client's test samples, mean over the clients that have not "
    "trained so far",
    "rarest10": "{} on each client's test samples, mean over the tenth of the clients that "
    "have trained in the fewest rounds",
    "worst10": "{} on each client's test samples, mean over the tenth of the clients for "
    "which it is worst",
    "absent_classes": "{} on the test samples of classes that clients hold, but none that "
    "has trained so far",
    "mean_personal": "{} of each client's personal model on the client's test samples, "
    "mean over all clients",
    "never_personal": "{} of each client's personal model on the client's test samples, "
    "mean over the clients that have not trained so far",
}


def served(
    participations_N: NDArray[np.int64],
    quality_N: Floats,
    higher_is_better: bool = True,
    personal_N: Floats | None = None,
    absent: float | None = None,
) -> dict[str, float]:
    """Compute the statistics over clients of one evaluation, by the names of `MEANINGS`.

    A tenth of N clients is ceil(N / 10) of them. Where clients that have trained equally
    often would share the last places among the rarest tenth, each of them counts with
    the same weight. That is the mean over all ways to break the tie.

    Args:
        participations_N: In how many rounds each client has trained.
        quality_N: The metric of the global model on each client's test samples; NaN for
            a client without any, which is left out. At least one client has some.
        higher_is_better: Whether a higher metric is better.
        personal_N: The metric of each client's personal model, if there are any.
        absent: The metric on the classes that only clients hold which never trained.

    Returns:
        The statistics that exist.

    Example:
        >>> found = served(np.array([0, 1, 3, 4]), np.array([0.25, 0.5, 0.5, 1.0]))
        >>> found["never"], found["weighted"], found["worst10"]
        (0.25, 0.75, 0.25)
    """
    judged_N = is_judged(quality_N)
    participations_N = participations_N[judged_N]
    quality_N = quality_N[judged_N]
    if personal_N is not None:
        personal_N = personal_N[judged_N]
    tenth = -(-len(participations_N) // 10)
    never_N = participations_N == 0
    worst_first_N = np.sort(quality_N if higher_is_better else -quality_N)
    worst = float(worst_first_N[:tenth].mean())
    statistics = {
        "mean": float(quality_N.mean()),
        "std": float(quality_N.std()),
        "rarest10": _mean(quality_N, _rarest(participations_N, tenth)),
        "worst10": worst if higher_is_better else -worst,
    }
    if participations_N.any():
        statistics["weighted"] = _mean(quality_N, participations_N.astype(np.float64))
    if never_N.any():
        statistics["never"] = float(quality_N[never_N].mean())
    if absent is not None:
        statistics["absent_classes"] = absent
    if personal_N is not None:
        statistics["mean_personal"] = float(personal_N.mean())
        if never_N.any():
            statistics["never_personal"] = float(personal_N[never_N].mean())
    return statistics


def served_columns(
    objective: Objective,
    participations_N: NDArray[np.int64],
    scores: ClientScores,
) -> dict[str, float]:
    """Compute the columns `clients_*` of a record.

    Args:
        objective: The run's objective, by whose metric clients are compared.
        participations_N: In how many rounds each client has trained.
        scores: How models serve each client.
    """
    name = objective.metric
    statistics = served(
        participations_N,
        scores.quality_N,
        measures_of(objective, UNKNOWN_OUTPUTS)[name].higher_is_better,
        scores.personal_N,
        scores.absent,
    )
    judged_N = scores.quality_N[is_judged(scores.quality_N)]
    return {
        f"clients_{statistic}_{name}": value for statistic, value in statistics.items()
    } | measure_clients(objective, judged_N)


def is_judged(quality_N: Floats) -> NDArray[np.bool_]:
    """Return whether each client has a value, [N]; all of them, if none has."""
    judged_N = ~np.isnan(quality_N)
    return judged_N | ~judged_N.any()


def _mean(values_N: Floats, weight_N: Floats) -> float:
    return float((values_N * weight_N).sum() / weight_N.sum())


def _rarest(participations_N: NDArray[np.int64], count: int) -> Floats:
    """Return with which weight each client belongs to those that have trained least."""
    last = np.sort(participations_N)[count - 1]
    fewer_N = participations_N < last
    tied_N = participations_N == last
    share = (count - fewer_N.sum()) / tied_N.sum()
    weight_N: Floats = fewer_N + tied_N * share
    return weight_N


@dataclass
class ClientHistory:
    """What a replicate knows of its clients: how often each trained, and all evaluations.

    Args:
        participations_N: In how many rounds each client has trained.
        rounds: The rounds in which clients were evaluated.
        tables: For each of these rounds the `COLUMNS` of all clients, [4, N].
    """

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "participations",
        "quality",
        "loss",
        "personal_quality",
    )
    participations_N: NDArray[np.int64]
    rounds: list[int] = field(default_factory=list)
    tables: list[Floats] = field(default_factory=list)

    def with_round(self, trainees: Collection[int]) -> NDArray[np.int64]:
        """Return in how many rounds each client has trained, with one more of some of them."""
        rounds_N = self.participations_N.copy()
        # In centralised training all clients train.
        is_everyone = EVERYONE in trainees
        rounds_N[slice(None) if is_everyone else [i for i in trainees if i >= 0]] += 1
        return rounds_N

    def add(
        self, round: int, participations_N: NDArray[np.int64], scores: ClientScores
    ) -> None:
        """Add an evaluation, with the participations up to it; see `participations_N`.

        Without personal models, theirs is NaN.
        """
        quality_N, loss_N, _, personal_N = scores
        if personal_N is None:
            personal_N = np.full(len(quality_N), np.nan)
        self.rounds.append(round)
        self.tables.append(np.stack([participations_N, quality_N, loss_N, personal_N]))


def rows_of_clients(tests: ClientTests) -> list[Rows]:
    """Return the rows by which a model is judged for each client.

    Where samples have classes, these are among them, whatever clients are judged by: they
    show how classes fare that only absent clients hold.
    """
    classes = [] if tests.labels_NC is None else [CLASSES]
    return classes + ([OWN] if tests.on == "own" else [])


def client_scores(
    measures: Measures,
    metric: str,
    tests: ClientTests,
    trained_N: NDArray[np.bool_],
    found: Mapping[Rows, GroupSums],
    personal_Nn: Floats | None,
) -> ClientScores:
    """Return how well a model serves each client.

    Args:
        measures: What is measured.
        metric: The metric by which clients are compared.
        tests: By which test samples each client is judged.
        trained_N: Whether each client has trained so far.
        found: The sums over the `rows_of_clients`.
        personal_Nn: The sums of all measures of clients' own models, if there are any.
    """
    if tests.on == "own":
        sums_Nn = found[OWN].sums_Gn
    else:
        sums_Nn = weighted_sums(class_weights(tests), found[CLASSES].sums_Gn)
    absent = None
    if tests.labels_NC is not None and tests.sizes_C is not None:
        held_NC = tests.labels_NC > 0
        absent_C = held_NC.any(0) & ~held_NC[trained_N].any(0) & (tests.sizes_C > 0)
        if absent_C.any():
            weight_1C = absent_C[None].astype(np.float64)
            (sums_n,) = weighted_sums(weight_1C, found[CLASSES].sums_Gn)
            count = int(tests.sizes_C[absent_C].sum())
            absent = measures.value(metric, sums_n, count)

    def values_of(name: str, sums_Nn: Floats) -> Floats:
        # It is NaN for a client without test samples.
        pairs = zip(sums_Nn, tests.tests_N.tolist(), strict=True)
        return np.array([measures.value(name, *pair) for pair in pairs])

    return ClientScores(
        values_of(metric, sums_Nn),
        values_of("loss", sums_Nn),
        absent,
        None if personal_Nn is None else values_of(metric, personal_Nn),
    )


def class_weights(tests: ClientTests) -> Floats:
    """Return how much a test sample of each class counts for each client, [N, C].

    The m test samples of a client's classes count as m samples that match its labels:
    those of class c, which are n_c, together count as m times the share of c in its own
    samples.

    Args:
        tests: How many samples of each class the clients hold, and how many there are
            in the test set.
    """
    assert tests.labels_NC is not None and tests.sizes_C is not None
    usable_NC = tests.labels_NC * (tests.sizes_C > 0)
    share_NC = usable_NC / np.maximum(usable_NC.sum(1), 1)[:, None]
    weight_NC: Floats = tests.tests_N[:, None] * share_NC / np.maximum(tests.sizes_C, 1)
    return weight_NC


def rows_of_each_client(tests: ClientTests) -> list[tuple[Rows, Floats]]:
    """Return for each client the rows that judge its own model, and their weights [1, G]."""
    if tests.on == "own":
        one = np.ones((1, 1))
        return [(OWN._replace(groups=(i,)), one) for i in range(len(tests.tests_N))]
    found = []
    for weight_C in class_weights(tests):
        (classes,) = np.nonzero(weight_C)
        rows = CLASSES._replace(groups=tuple(classes.tolist()))
        found.append((rows, weight_C[None, classes]))
    return found
