"""What is measured of a group's new parameters in a round, and what follows from it."""

import math
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from raysafl.core.means import weighted_sums
from raysafl.core.objective import Measures, Value
from raysafl.core.participation import Participation
from raysafl.core.work import (
    TEST,
    VALIDATION,
    Evaluation,
    Floats,
    GroupSums,
    Rows,
    Training,
    WorkRequest,
)
from raysafl.simulation.parts import KINDS, RoundSoFar
from raysafl.simulation.per_client import (
    PERSONAL_CALL,
    client_scores,
    rows_of_clients,
    rows_of_each_client,
    served_columns,
)

if TYPE_CHECKING:
    from raysafl.simulation.replicates import Replicates

# What the names of columns begin with, by the rows that are measured.
PREFIX_OF = {TEST: "test", VALIDATION: "val"}
# How many parameters of clients' own models are in memory at a time at most, unless one
# client of each replicate has more.
MOST_NUMBERS = 2**25

Found: TypeAlias = Mapping[Rows, GroupSums]
Steps: TypeAlias = Generator[Sequence[WorkRequest], Any, None]
"""A round, or a part of it: yields requests, and is sent the list of their answers."""


def measure_accuracy(group: "Replicates", current: RoundSoFar) -> Steps:
    """Note the training accuracy that the policy wants; see `Participation`."""
    policy = group.policy
    accuracy_R = current.after.numbers_R["train_accuracy"]
    if policy.goes_by_passes:
        for place, own in current.of_clients.items():
            if own.pass_accuracy is not None:
                accuracy_R[place] = own.pass_accuracy
    if type(policy).measured_on is Participation.measured_on:
        return
    lists = map(policy.measured_on, current.cohorts.lists())
    measured = {
        place: Rows("train", tuple(ids)) for place, ids in enumerate(lists) if ids
    }
    if not measured:
        return
    measures = group.work.measures
    if "accuracy" not in measures.metrics:
        raise ValueError(
            f"{type(group.run.objective).__name__} has no accuracy, for which "
            f"{type(policy).__name__}.measured_on asks; let it return None"
        )
    over = [[rows] for rows in measured.values()]
    found = yield from _sums(group, current, list(measured), over)
    for (place, rows), sums in zip(measured.items(), found, strict=True):
        (size,), (sums_n,) = sums[rows]
        accuracy_R[place] = measures.value("accuracy", sums_n, int(size))


def judge(group: "Replicates", current: RoundSoFar) -> Steps:
    """Judge the replicates that have not diverged, and make their records."""
    places = [place for place in range(group.size) if place not in current.diverged]
    if not places:
        return
    rows = [TEST, VALIDATION] if group.run.data.has_validation else [TEST]
    found = yield from _sums(group, current, places, [rows] * len(places))
    after = current.after
    probs = current.cohorts.enforce_prob_R.tolist()
    for place, sums in zip(places, found, strict=True):
        measured: dict[str, Value | None] = {
            "train_accuracy": after.accuracy(place),
            "train_loss": after.loss(place),
            **scores(group.work.measures, sums),
        }
        member = group.members[place]
        member.keep_if_best(measured, group.round, after.state.w_P[place])
        member.stop_without_improvement(measured, group.round)
        kinds = [kind for kind in KINDS if current.tally_R[kind][place]]
        current.records[place] = member.record(
            group.round,
            "+".join(kinds) or "nobody",
            after.counts[place],
            None if math.isnan(probs[place]) else probs[place],
            measured,
        )


def scores(measures: Measures, found: Found) -> dict[str, Value]:
    """Return what was measured on the test set and on validation samples, by columns."""
    return {
        f"{PREFIX_OF[rows]}_{name}": value
        for rows, (size_G, sums_Gn) in found.items()
        for name, value in measures.values(sums_Gn[0], int(size_G[0])).items()
    }


def evaluate_clients(group: "Replicates", current: RoundSoFar) -> Steps:
    """Complete records by the evaluation of clients, if the round is due for it.

    The last round of a replicate is always due, also if it stops here.
    """
    asked = group.run.eval_clients
    if asked is None:
        return
    records = current.records
    is_due = asked.is_due(group.round, group.run.rounds)
    tests = {
        place: own
        for place in records
        if (own := group.members[place].client_tests) is not None
        and (is_due or group.members[place].stopped)
    }
    if not tests:
        return
    places = list(tests)
    over = [rows_of_clients(own) for own in tests.values()]
    found = yield from _sums(group, current, places, over)
    personal: Sequence[Floats | None] = [None] * len(places)
    if asked.personal_steps:
        rows = [rows_of_each_client(own) for own in tests.values()]
        steps = asked.personal_steps
        personal = yield from _personal_sums(group, current, places, rows, steps)
    objective = group.run.objective
    for place, sums, personal_Nn in zip(places, found, personal, strict=True):
        member = group.members[place]
        assert member.clients is not None
        rounds_N = member.clients.with_round(current.of_clients[place].trainees)
        served = client_scores(
            group.work.measures,
            objective.metric,
            tests[place],
            rounds_N > 0,
            sums,
            personal_Nn,
        )
        columns = served_columns(objective, rounds_N, served)
        member.clients.add(group.round, rounds_N, served)
        member.stop_without_improvement(
            {
                "train_accuracy": records[place].train_accuracy,
                "train_loss": records[place].train_loss,
                **columns,
            },
            group.round,
            of_clients=True,
        )
        records[place].metrics = {**records[place].metrics, **columns}


def _new_parameters(
    group: "Replicates", current: RoundSoFar, places: Sequence[int]
) -> Tensor:
    """Return new parameters of some replicates, in float32, which nobody changes in place.

    An algorithm of the user's own may do so with those in its state.
    """
    w_RP = current.after.state.w_P.float()
    if len(places) < group.size:
        return w_RP[torch.tensor(places)]
    return w_RP.clone() if group.is_users_own else w_RP


def _sums(
    group: "Replicates",
    current: RoundSoFar,
    places: Sequence[int],
    over: Sequence[Sequence[Rows]],
) -> Generator[Sequence[WorkRequest], Any, list[Found]]:
    """Have the new parameters of some replicates evaluated on named rows."""
    w_RP = _new_parameters(group, current, places)
    (found,) = yield [Evaluation(group.cells_R[places], w_RP, over)]
    sums: list[Found] = found
    return sums


def _personal_sums(
    group: "Replicates",
    current: RoundSoFar,
    places: Sequence[int],
    rows: Sequence[Sequence[tuple[Rows, Floats]]],
    steps: int,
) -> Generator[Sequence[WorkRequest], Any, list[Floats]]:
    """Train clients' own models, from the new parameters, and have them evaluated.

    Only the models of some clients are in memory at a time.

    Args:
        group: The group.
        current: Its round.
        places: The places of R replicates.
        rows: For each of them the `rows_of_each_client`.
        steps: The number of local steps.

    Returns:
        For each replicate the weighted sums [N, n] of all measures over the rows of
        each client.
    """
    w_RP = _new_parameters(group, current, places)
    locals = [local.begun_anew(epochs=None, steps=steps) for local in group.locals]
    size = max(1, MOST_NUMBERS // w_RP.numel())
    sums: list[list[Floats]] = [[] for _ in places]
    for first in range(0, group.run.data.clients, size):
        clients = range(first, min(first + size, group.run.data.clients))
        training = Training(
            cells_R=group.cells_R[places],
            seeds_R=group.seeds_R[places],
            round=group.round,
            call=PERSONAL_CALL,
            clients_RM=np.broadcast_to(clients, (len(places), len(clients))),
            w=w_RP,
            locals=locals,
            local_R=group.local_R[places],
        )
        (update,) = yield [training]
        w_RMP = w_RP.unsqueeze(1) - update.delta_MP
        over = [own[i] for own in rows for i in clients]
        cells = group.cells_R[places].repeat(len(clients))
        names = [[name] for name, _ in over]
        (found,) = yield [Evaluation(cells, w_RMP.flatten(0, 1), names)]
        for k, ((name, weight_1G), of_model) in enumerate(
            zip(over, found, strict=True)
        ):
            own_1n = weighted_sums(weight_1G, of_model[name].sums_Gn)
            sums[k // len(clients)].append(own_1n)
    return [np.concatenate(own) for own in sums]
