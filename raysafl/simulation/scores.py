"""What sums over named rows say of a model: its scores, and how it serves each client.

The machine returns sums (`raysafl.core.work.Evaluation`), and what they mean is said
here, by functions of arrays. A new way to judge a model is the names of the rows that it
needs, and a function of their sums.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from raysafl.core.means import weighted_sums
from raysafl.core.objective import Measures, Objective, Value
from raysafl.core.work import (
    CLASSES,
    OWN,
    TEST,
    VALIDATION,
    ClientTests,
    Floats,
    GroupSums,
    Ints,
    Rows,
)

# What the names of columns begin with, by the rows that are measured.
PREFIX_OF = {TEST: "test", VALIDATION: "val"}


class ClientScores(NamedTuple):
    """How well a model serves each client.

    Args:
        quality_N: The value of the objective's `metric` on each client's test samples.
        loss_N: The mean loss on them.
        absent: The value of that metric on the test samples of the classes that clients
            hold, but none that has trained so far; None if there is no such class, or
            if samples have no class.
    """

    quality_N: Floats
    loss_N: Floats
    absent: float | None


def scores(measures: Measures, found: Mapping[Rows, GroupSums]) -> dict[str, Value]:
    """Return what was measured on the test set and on validation samples, by columns."""
    return {
        f"{prefix}_{name}": value
        for rows, prefix in PREFIX_OF.items()
        if rows in found
        for name, value in measures.values(
            found[rows].sums_Gn[0], int(found[rows].size_G[0])
        ).items()
    }


def train_accuracy(measures: Measures, objective: Objective, found: GroupSums) -> float:
    """Return the accuracy (in [0, 1]) on training samples.

    Raises:
        ValueError: The objective has no accuracy.
    """
    if "accuracy" not in measures.metrics:
        raise ValueError(
            f"{type(objective).__name__} has no accuracy, which the policy of this run "
            "asks for; take a policy that does not go by it"
        )
    return measures.value("accuracy", found.sums_Gn[0], int(found.size_G[0]))


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
) -> ClientScores:
    """Return how well a model serves each client.

    Args:
        measures: What is measured.
        metric: The metric by which clients are compared.
        tests: By which test samples each client is judged.
        trained_N: Whether each client has trained so far.
        found: The sums over the `rows_of_clients`.
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
    return ClientScores(
        values_of(measures, metric, sums_Nn, tests.tests_N),
        values_of(measures, "loss", sums_Nn, tests.tests_N),
        absent,
    )


def values_of(
    measures: Measures, metric: str, sums_Nn: Floats, tests_N: Ints
) -> Floats:
    """Return the value of a metric for each client; NaN for one without test samples."""
    return np.array(
        [
            measures.value(metric, sums_n, int(count))
            for sums_n, count in zip(sums_Nn, tests_N, strict=True)
        ]
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
