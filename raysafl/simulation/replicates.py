"""Replicates that take their rounds together, and how a round proceeds.

All replicates of a group are at the same round of runs that are alike but for their seeds and
for numbers. Where they stand is held as columns: an array or a matrix with an entry or a row
for each. So a round costs Python about as much for a thousand replicates as for one. Where an
algorithm cannot be run for all of them at once (`raysafl.simulation.lifting`), or a group has
one replicate, each has a generator of its own, and all else is the same.

A round (`Replicates._round`) is one generator, which is read from top to bottom:

1. The participation policy picks the cohort of each replicate. With `Run.devices`, those
   are left of it that report in time.
2. The algorithm's round is started, once for all replicates whose cohorts are equally large.
   It is a generator, too. It yields a request, `Train` or `TrainMean`, which becomes a task
   for each client, and is sent the update. This repeats until it returns the new state. Where
   it branches on a draw, the replicates are divided for the rest of the round. Without
   participants, only an algorithm that acts without clients is started, and the state of
   any other stays as it was.
3. If the policy wants it, the training accuracy of the new parameters is measured.
4. A replicate whose parameters are no longer finite has diverged, and stops.
5. If the round is due to be evaluated, the test scores complete the `Record` of each
   replicate, which becomes a row of the results. One whose scores have not improved for too
   long stops (`Run.patience`).
6. If the run evaluates clients one by one and the round is due for that, what
   `raysafl.simulation.per_client` measures completes the records.

What the machine is to compute, a round yields as a list of requests (`raysafl.core.work`), and
it is sent the answers. Whoever advances rounds may merge the requests of many groups;
`raysafl.simulation.simulation.Lockstep` does. The columns change when the round has ended, and
not before. So a round that could not be carried out can be taken again, in other groups.
"""

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.algorithm import (
    NOTHING_KEPT,
    Algorithm,
    AskLosses,
    ContinuedTraining,
    CountSamples,
    MeanUpdate,
    Request,
    State,
    TrainMean,
    Update,
)
from raysafl.core.component import method_name
from raysafl.core.means import relative_weights, weighted_sums
from raysafl.core.objective import Measures, Value
from raysafl.core.participation import Cohort, Cohorts, Participation
from raysafl.core.problem import EVERYONE, SERVER
from raysafl.core.randomness import Key, Keys
from raysafl.core.record import Record
from raysafl.core.work import (
    TEST,
    VALIDATION,
    Evaluation,
    Floats,
    GroupSums,
    Ints,
    Rows,
    Training,
    WorkRequest,
)
from raysafl.simulation.devices import Devices
from raysafl.simulation.lifting import (
    ClientRows,
    ClientTable,
    Lifted,
    LiftedClients,
    differences,
    some_of,
)
from raysafl.simulation.per_client import (
    PERSONAL_CALL,
    ClientHistory,
    client_scores,
    rows_of_clients,
    rows_of_each_client,
    served_columns,
)
from raysafl.simulation.replicate import Counts, Progress, Replicate, Standing
from raysafl.simulation.turns import (
    Fork,
    Separate,
    Turn,
    alone,
    checked_picks,
    structure,
)

LOWER_RATES = "lower the learning rates"
# What the names of columns begin with, by the rows that are measured.
PREFIX_OF = {TEST: "test", VALIDATION: "val"}
# Parameters are sent as float32.
BYTES_PER_PARAMETER = 4
# How many parameters of clients' own models are in memory at a time at most, unless one
# client of each replicate has more.
MOST_NUMBERS = 2**25
# Who may train, as `Record.kind` names them, in the order of the rows of `_Round.trained_3R`.
KINDS = ("central", "client", "server")
CENTRAL, CLIENT, BY_SERVER = range(len(KINDS))
# The counts of `Counts` that are columns, in the order of the rows of `Columns.spent_5R`.
SPENT = ("snapshots", "server_rounds", "steps", "bytes_down", "bytes_up")
SNAPSHOTS, SERVER_ROUNDS, STEPS, DOWN, UP = range(len(SPENT))

Flags: TypeAlias = NDArray[np.bool_]
Steps: TypeAlias = Generator[Sequence[WorkRequest], Any, None]
"""A round, or a part of it: yields requests, and is sent the list of their answers."""


class Apart(Exception):
    """Replicates cannot take this round together, though they may take the next one."""


@dataclass
class Columns:
    """Where the replicates of a group stand between two rounds.

    Args:
        w_RP: The parameters.
        server: What the servers keep; each tensor has an axis of replicates.
        clients: The vectors of each replicate's clients.
        policies: The state of each replicate's policy.
        has_trained_R: Whether any client has trained.
        accuracy_R: `Standing.train_accuracy`; NaN if there is none.
        loss_R: `Standing.train_loss`; NaN if there is none.
        cohorts: The participants of each round since the last record.
        trained: Whether clients trained in each of these rounds, [R] each.
        spent_5R: The numbers `SPENT` since the last record.
        virtual_R: `Counts.virtual_seconds` of each.
        reached: `Standing.reached` of each.
        progress: `Standing.progress` of each.
    """

    w_RP: Tensor
    server: dict[str, Tensor]
    clients: list[Mapping[int, Tensor]]
    policies: list[Any]
    has_trained_R: Flags
    accuracy_R: Floats
    loss_R: Floats
    cohorts: list[Cohorts]
    trained: list[Flags]
    spent_5R: Ints
    virtual_R: Floats
    reached: list[set[int]]
    progress: list[dict[int, Progress]]

    @classmethod
    def of(cls, standings: Sequence[Standing]) -> "Columns":
        """Return where some replicates stand, all of them at one round."""
        first = standings[0].state
        states = [own.state for own in standings]
        counts = [own.counts for own in standings]
        return cls(
            w_RP=torch.stack([state.w_P for state in states]),
            server={
                name: torch.stack([state.server[name] for state in states])
                for name in first.server
            },
            clients=[state.clients for state in states],
            policies=[own.policy for own in standings],
            has_trained_R=np.array([own.train_loss is not None for own in standings]),
            accuracy_R=_or_nan(own.train_accuracy for own in standings),
            loss_R=_or_nan(own.train_loss for own in standings),
            cohorts=[
                Cohorts.of([Cohort(own.cohorts[t], own.enforced[t]) for own in counts])
                for t in range(len(counts[0].cohorts))
            ],
            trained=[
                np.array([own.trained[t] for own in counts])
                for t in range(len(counts[0].trained))
            ],
            spent_5R=np.array(
                [[getattr(own, name) for own in counts] for name in SPENT], np.int64
            ),
            virtual_R=np.array([own.virtual_seconds for own in counts]),
            reached=[own.reached for own in standings],
            progress=[own.progress for own in standings],
        )

    def with_others(self, **others: Any) -> "Columns":
        """Return these columns with others in place of some; faster than `replace`."""
        columns = Columns.__new__(Columns)
        columns.__dict__ = {**vars(self), **others}
        columns.__dict__.pop("counts", None)
        return columns

    def accuracy(self, place: int) -> float | None:
        """Return `Standing.train_accuracy` of a replicate."""
        value = float(self.accuracy_R[place])
        return None if math.isnan(value) else value

    def loss(self, place: int) -> float | None:
        """Return `Standing.train_loss` of a replicate."""
        return float(self.loss_R[place]) if self.has_trained_R[place] else None

    @cached_property
    def counts(self) -> list[Counts]:
        """Who took part, and what each replicate has spent, since its last record."""
        lists = [cohorts.lists() for cohorts in self.cohorts]
        enforced = [cohorts.enforced_R.tolist() for cohorts in self.cohorts]
        trained = [trained_R.tolist() for trained_R in self.trained]
        spent = zip(*self.spent_5R.tolist(), self.virtual_R.tolist(), strict=True)
        return [
            Counts(
                [own[place] for own in lists],
                [own[place] for own in enforced],
                [own[place] for own in trained],
                *of_one,
            )
            for place, of_one in enumerate(spent)
        ]


class Replicates:
    """A group of replicates; see the module's docstring.

    Args:
        members: The replicates, which join the group.
        table: Where the vectors of clients are, if one generator takes all rounds.
        is_lifted: Whether it does; otherwise each replicate has a generator of its own.

    Attributes:
        members: The replicates.
        round: The number of the next round.
        columns: Where they stand.
        requests: What the round that they take asks for; nothing if it has ended.
        is_left: Whether a replicate takes part no more, so that others form a new group.
    """

    def __init__(
        self, members: Sequence[Replicate], table: ClientTable, is_lifted: bool
    ) -> None:
        self.members = members
        self.is_left = False
        first = members[0]
        self.run = first.run
        self.work = first.work
        self.policy = first.participation
        self.round = first.round
        self.size = len(members)
        self.is_lifted = is_lifted
        self.cells_R = np.array([member.cell for member in members])
        self.seeds_R = np.array([member.seed for member in members], np.uint64)
        # The distinct local trainings, and which of them each member has.
        of_members = [own.local.to_json() for own in members]
        distinct = dict(zip(of_members, (own.local for own in members), strict=True))
        self.locals = list(distinct.values())
        self.local_R = np.array(list(map(list(distinct).index, of_members)))
        self.is_users_own = any(member.is_users_own for member in members)
        self.goes_on = isinstance(first.local, ContinuedTraining)
        self.algorithm = first.algorithm
        self.algorithm_columns = differences([own.algorithm for own in members])
        # The rows of the dataset on which they are evaluated.
        self.evaluated_on = (
            [TEST, VALIDATION] if self.run.data.has_validation else [TEST]
        )
        self.columns = Columns.of([member.standing for member in members])
        self.columns.clients = [self._kept(own, table) for own in self.columns.clients]
        self.requests: Sequence[Any] = ()
        for place, member in enumerate(members):
            member.join(self, place)

    def _kept(
        self, clients: Mapping[int, Tensor], table: ClientTable
    ) -> Mapping[int, Tensor]:
        """Return the vectors of a replicate's clients as this group keeps them."""
        if self.is_lifted:
            is_there = isinstance(clients, ClientRows) and clients.table is table
            return clients if is_there else ClientRows(table, clients)
        return clients.taken_out() if isinstance(clients, ClientRows) else clients

    @cached_property
    def samples_RX(self) -> Tensor:
        """How many samples clients hold; those of EVERYONE and SERVER are at the end."""
        return torch.stack([member.samples for member in self.members])

    def standing(self, place: int) -> Standing:
        """Return where a replicate stands."""
        columns = self.columns
        server = {name: own[place] for name, own in columns.server.items()}
        return Standing(
            state=State(columns.w_RP[place], server, columns.clients[place]),
            policy=columns.policies[place],
            round=self.round,
            train_accuracy=columns.accuracy(place),
            train_loss=columns.loss(place),
            counts=columns.counts[place],
            reached=columns.reached[place],
            progress=columns.progress[place],
        )

    def go_on(self, answers: list[Any] | None) -> None:
        """Take the round as far as its next `requests`, or to its end.

        Args:
            answers: Those to the requests; None begins a round.
        """
        if answers is None:
            self._steps = self._round()
        try:
            self.requests = self._steps.send(answers)
        except StopIteration:
            self.requests = ()

    def _round(self) -> Steps:
        """Take a round, as the module's docstring describes."""
        current = self._current = self._pick()
        yield from self._train(current)
        yield from self._measure_accuracy(current)
        self._finish(current)
        alive = [place for place in range(self.size) if place not in current.diverged]
        if alive and self._is_evaluated():
            sums = yield from self._sums(
                current.after, alive, [self.evaluated_on] * len(alive)
            )
            self._judge(current, dict(zip(alive, sums, strict=True)))
            yield from self._evaluate_clients(current)

    def end_round(self) -> dict[int, Record]:
        """Stand where the round has led, and let those leave for which it was the last one.

        Returns:
            The records of an evaluated round, by the places of replicates.
        """
        current = self._current
        columns = self.columns = current.after
        self.round += 1
        for clients in current.remembered:
            clients.write()
        for place, rounds_N in current.participations.items():
            self._clients(place).participations_N = rounds_N
        for place, progress in current.progress.items():
            columns.progress[place].update(progress)
        for place, why in current.diverged.items():
            self._leave(place)
            self.members[place].diverged = why
        if not current.records:
            return {}
        # What is counted begins anew.
        self.columns = columns.with_others(
            cohorts=[],
            trained=[],
            spent_5R=np.zeros_like(columns.spent_5R),
            virtual_R=np.zeros_like(columns.virtual_R),
        )
        for place in current.records:
            if self.members[place].done:
                self._leave(place)
        return current.records

    def _leave(self, place: int) -> None:
        """Let a replicate leave the group, with copies of what it keeps."""
        standing = self.standing(place)
        state = standing.state
        server = {name: own.clone() for name, own in state.server.items()}
        clients = state.clients
        if isinstance(clients, ClientRows):
            clients = clients.taken_out()
        standing.state = State(state.w_P.clone(), server, clients)
        self.members[place].stand(standing)

    def _is_evaluated(self) -> bool:
        rounds = self.round + 1
        return rounds % self.run.eval_every == 0 or rounds == self.run.rounds

    def _clients(self, place: int) -> ClientHistory:
        """Return what a replicate knows of its clients, in a run that evaluates them."""
        history = self.members[place].clients
        assert history is not None
        return history

    def parameters(self, columns: Columns, places: Sequence[int]) -> Tensor:
        """Return parameters of some replicates, in float32, which nobody changes in place.

        An algorithm of the user's own may do so with those in its state.
        """
        w_RP = columns.w_RP.float()
        if len(places) < self.size:
            return w_RP[torch.tensor(places)]
        return w_RP.clone() if self.is_users_own else w_RP

    def _sums(
        self, columns: Columns, places: Sequence[int], over: Sequence[Sequence[Rows]]
    ) -> Generator[Sequence[WorkRequest], list[Any], list[dict[Rows, GroupSums]]]:
        """Have the new parameters of some replicates evaluated on named rows."""
        w_RP = self.parameters(columns, places)
        (found,) = yield [Evaluation(self.cells_R[places], w_RP, over)]
        sums: list[dict[Rows, GroupSums]] = found
        return sums

    def _pick(self) -> "_Round":
        """Let the policy choose the participants of each replicate."""
        columns = self.columns
        accuracies = [
            None if accuracy != accuracy else accuracy
            for accuracy in columns.accuracy_R.tolist()
        ]
        keys = Keys(self.seeds_R, self.round)
        policies, cohorts = checked_picks(
            self.policy, columns.policies, self.run.data.clients, keys, accuracies
        )
        after = columns.with_others(
            policies=policies,
            has_trained_R=columns.has_trained_R.copy(),
            accuracy_R=columns.accuracy_R.copy(),
            loss_R=columns.loss_R.copy(),
            spent_5R=columns.spent_5R.copy(),
            reached=list(columns.reached),
            clients=list(columns.clients),
        )
        trained_3R = np.zeros((len(KINDS), self.size), bool)
        current = _Round(cohorts, after, trained_3R, np.zeros(self.size))
        if self.run.devices is not None:
            self._lose_clients(current, keys, self.run.devices)
        return current

    def _lose_clients(self, current: "_Round", keys: Keys, devices: Devices) -> None:
        """Leave those in the cohorts that report in time."""
        cohorts = current.cohorts
        place_T = np.repeat(np.arange(self.size), cohorts.count_R)
        steps = []
        for place, i in zip(place_T.tolist(), cohorts.ids.tolist(), strict=True):
            member = self.members[place]
            before = self.columns.progress[place].get(i, Progress()).steps
            steps.append(member.local.num_steps(int(member.samples[i]), before))
        vector = self.columns.w_RP.shape[1] * BYTES_PER_PARAMETER
        seconds_T = devices.seconds(
            self.seeds_R[place_T], cohorts.ids, np.array(steps, np.int64), (vector,) * 2
        )
        current.cohorts, current.is_late_R = devices.reporting(cohorts, keys, seconds_T)

    def _train(self, current: "_Round") -> Steps:
        """Answer the algorithm's requests until it has returned its new states."""
        count_R = current.cohorts.count_R
        first_R = np.cumsum(count_R) - count_R
        ready: list[tuple[_Part, Any]] = []
        for count in sorted(set(count_R.tolist())):
            (rows,) = np.nonzero(count_R == count)
            ids_RM = current.cohorts.ids[first_R[rows, None] + np.arange(count)]
            ready.append((_Part(self, current, rows, ids_RM), None))
        ended: list[_Part] = []
        while ready:
            asking: list[_Part] = []
            while ready:
                part, answer = ready.pop()
                try:
                    request = part.go_on(answer)
                except Fork as fork:
                    ways = (part.some(fork.mask_R), part.some(~fork.mask_R))
                    ready += [(way, None) for way in ways]
                    continue
                (ended if request is None else asking).append(part)
            if asking:
                answers = yield [part.training() for part in asking]
                ready = list(zip(asking, answers, strict=True))
        self._unite(current, ended)

    def _unite(self, current: "_Round", parts: Sequence["_Part"]) -> None:
        """Make the group's new columns of those of its parts.

        Raises:
            Apart: They do not fit together.
        """
        after = current.after
        states = [part.turn.after for part in parts]
        if len(parts) == 1:
            (state,) = states
            after.w_RP = state.w_P
            after.server = dict(state.server)
        else:
            if len({structure(_first(state)) for state in states}) > 1:
                raise Apart("the states of the replicates have become different")
            rows = np.concatenate([part.rows for part in parts])
            order = torch.from_numpy(np.argsort(rows))
            after.w_RP = torch.cat([state.w_P for state in states])[order]
            after.server = {
                name: torch.cat([state.server[name] for state in states])[order]
                for name in states[0].server
            }
        for part, state in zip(parts, states, strict=True):
            if isinstance(state.clients, LiftedClients):
                current.remembered.append(state.clients)
            if isinstance(part.turn, Separate):
                for place, clients in zip(
                    part.rows.tolist(), part.turn.clients, strict=True
                ):
                    after.clients[place] = clients

    def _measure_accuracy(self, current: "_Round") -> Steps:
        """Note the training accuracy that the policy wants; see `Participation`."""
        if self.policy.goes_by_passes:
            for place, accuracy in current.accuracy_of_passes.items():
                current.after.accuracy_R[place] = accuracy
        if type(self.policy).measured_on is Participation.measured_on:
            return
        lists = map(self.policy.measured_on, current.cohorts.lists())
        measured = {place: ids for place, ids in enumerate(lists) if ids}
        if not measured:
            return
        if "accuracy" not in self.work.measures.metrics:
            raise ValueError(
                f"{type(self.run.objective).__name__} has no accuracy, for which "
                f"{type(self.policy).__name__}.measured_on asks; let it return None"
            )
        rows = [Rows("train", tuple(ids)) for ids in measured.values()]
        found = yield from self._sums(
            current.after, list(measured), [[own] for own in rows]
        )
        for place, own, sums in zip(measured, rows, found, strict=True):
            (size,), (sums_n,) = sums[own]
            accuracy = self.work.measures.value("accuracy", sums_n, int(size))
            current.after.accuracy_R[place] = accuracy

    def _finish(self, current: "_Round") -> None:
        """Count the round, and find those whose parameters are not finite."""
        after = current.after
        cohorts = current.cohorts
        trained_R = current.trained_3R[CLIENT]
        after.cohorts = [*after.cohorts, cohorts]
        after.trained = [*after.trained, trained_R]
        after.spent_5R[SNAPSHOTS] += cohorts.enforced_R & trained_R
        after.spent_5R[SERVER_ROUNDS] += current.trained_3R[BY_SERVER]
        if (devices := self.run.devices) is not None:
            # Where the server alone trains although clients report, it waits for none.
            has_asked_R = current.virtual_R > 0
            is_late_R = current.is_late_R & (has_asked_R | (cohorts.count_R == 0))
            least_R = np.where(is_late_R, devices.deadline or 0.0, 0.0)
            after.virtual_R = after.virtual_R + np.maximum(current.virtual_R, least_R)
        if self.run.eval_clients is not None:
            self._count_participations(current)
        for place in np.flatnonzero(~finite_rows(after.w_RP)).tolist():
            why = f" (last training loss {after.loss(place)}); {LOWER_RATES}"
            if self.members[place].is_users_own and place not in current.not_finite:
                method = method_name(self.algorithm, Algorithm, "round")
                why = (
                    f", but the updates that {method} was sent are: look there for a "
                    "division by 0, a mean of no rows, a logarithm or a root"
                )
            current.diverged[place] = (
                f"round {self.round}: parameters are not finite{why}"
            )

    def _count_participations(self, current: "_Round") -> None:
        """Count in how many rounds each client has trained, this one included."""
        everyone = np.arange(self.run.data.clients)
        for place in range(self.size):
            ids = current.trainees.get(place, set())
            rounds_N = self._clients(place).participations_N.copy()
            # In centralised training all clients train.
            rounds_N[everyone if EVERYONE in ids else [i for i in ids if i >= 0]] += 1
            current.participations[place] = rounds_N

    def _judge(
        self, current: "_Round", sums_of: Mapping[int, dict[Rows, GroupSums]]
    ) -> None:
        """Judge replicates by what was measured of them, and make their records."""
        after = current.after
        probs = current.cohorts.enforce_prob_R.tolist()
        for place, sums in sums_of.items():
            measured: dict[str, Value | None] = {
                "train_accuracy": after.accuracy(place),
                "train_loss": after.loss(place),
                **scores(self.work.measures, sums),
            }
            member = self.members[place]
            member.keep_if_best(measured, self.round, after.w_RP[place])
            member.stop_without_improvement(measured, self.round)
            kinds = compress(KINDS, current.trained_3R[:, place])
            current.records[place] = member.record(
                self.round,
                "+".join(kinds) or "nobody",
                after.counts[place],
                None if math.isnan(probs[place]) else probs[place],
                measured,
            )

    def _evaluate_clients(self, current: "_Round") -> Steps:
        """Complete records by the evaluation of clients, if the round is due for it.

        The last round of a replicate is always due, also if it stops here.
        """
        asked = self.run.eval_clients
        if asked is None:
            return
        records = current.records
        is_due = asked.is_due(self.round, self.run.rounds)
        tests = {
            place: own
            for place in records
            if (own := self.members[place].client_tests) is not None
            and (is_due or self.members[place].stopped)
        }
        if not tests:
            return
        places = list(tests)
        over = [rows_of_clients(own) for own in tests.values()]
        found = yield from self._sums(current.after, places, over)
        personal: Sequence[Floats | None] = [None] * len(places)
        if asked.personal_steps:
            rows = [rows_of_each_client(own) for own in tests.values()]
            personal = yield from self._personal_sums(
                current, places, rows, asked.personal_steps
            )
        objective = self.run.objective
        for place, sums, personal_Nn in zip(places, found, personal, strict=True):
            rounds_N = current.participations[place]
            served = client_scores(
                self.work.measures,
                objective.metric,
                tests[place],
                rounds_N > 0,
                sums,
                personal_Nn,
            )
            columns = served_columns(objective, rounds_N, served)
            self._clients(place).add(self.round, rounds_N, served)
            self.members[place].stop_without_improvement(
                {
                    "train_accuracy": records[place].train_accuracy,
                    "train_loss": records[place].train_loss,
                    **columns,
                },
                self.round,
                of_clients=True,
            )
            records[place].metrics = {**records[place].metrics, **columns}

    def _personal_sums(
        self,
        current: "_Round",
        places: Sequence[int],
        rows: Sequence[Sequence[tuple[Rows, Floats]]],
        steps: int,
    ) -> Generator[Sequence[WorkRequest], Any, list[Floats]]:
        """Train clients' own models, from the new parameters, and have them evaluated.

        Only the models of some clients are in memory at a time.

        Args:
            current: The round.
            places: The places of R replicates.
            rows: For each of them the `rows_of_each_client`.
            steps: The number of local steps.

        Returns:
            For each replicate the weighted sums [N, n] of all measures over the rows of
            each client.
        """
        w_RP = self.parameters(current.after, places)
        locals = [local.begun_anew(epochs=None, steps=steps) for local in self.locals]
        size = max(1, MOST_NUMBERS // w_RP.numel())
        sums: list[list[Floats]] = [[] for _ in places]
        for first in range(0, self.run.data.clients, size):
            clients = range(first, min(first + size, self.run.data.clients))
            training = Training(
                cells_R=self.cells_R[places],
                seeds_R=self.seeds_R[places],
                round=self.round,
                call=PERSONAL_CALL,
                clients_RM=np.broadcast_to(clients, (len(places), len(clients))),
                w=w_RP,
                locals=locals,
                local_R=self.local_R[places],
            )
            (update,) = yield [training]
            w_RMP = w_RP.unsqueeze(1) - update.delta_MP
            over = [own[i] for own in rows for i in clients]
            cells = self.cells_R[places].repeat(len(clients))
            names = [[name] for name, _ in over]
            (found,) = yield [Evaluation(cells, w_RMP.flatten(0, 1), names)]
            for k, ((name, weight_1G), of_model) in enumerate(
                zip(over, found, strict=True)
            ):
                own_1n = weighted_sums(weight_1G, of_model[name].sums_Gn)
                sums[k // len(clients)].append(own_1n)
        return [np.concatenate(own) for own in sums]


@dataclass
class _Round:
    """A round of a group so far.

    Args:
        cohorts: The clients that take part.
        after: Where the group will stand.
        trained_3R: Which of `KINDS` have trained.
        virtual_R: How long the clients' devices have taken, if the run has some.
        records: The records of an evaluated round, by the places of replicates.
        diverged: Why replicates stop, by their places.
        remembered: What replicates remember of clients from this round on.
        participations: In how many rounds each client has trained, this one included, of
            replicates whose clients are evaluated one by one, by their places.
        trainees: Who has trained in this round, by the places of replicates.
        progress: How far clients are that have trained in this round, by the replicate's
            place and the id.
        accuracy_of_passes: See `Participation.goes_by_passes`, by the places of replicates.
        not_finite: The places of those that were sent an update that is not finite.
        is_late_R: Whether fewer clients report than the server waits for, likewise.
    """

    cohorts: Cohorts
    after: Columns
    trained_3R: Flags
    virtual_R: Floats
    records: dict[int, Record] = field(default_factory=dict)
    diverged: dict[int, str] = field(default_factory=dict)
    remembered: list[LiftedClients] = field(default_factory=list)
    participations: dict[int, Ints] = field(default_factory=dict)
    trainees: dict[int, set[int]] = field(default_factory=dict)
    progress: dict[int, dict[int, Progress]] = field(default_factory=dict)
    accuracy_of_passes: dict[int, float] = field(default_factory=dict)
    not_finite: set[int] = field(default_factory=set)
    is_late_R: Any = False

    def begin_again(self, columns: Columns, places: Ints) -> None:
        """Forget what was counted in this round of some replicates, which stood there."""
        self.trained_3R[:, places] = False
        self.virtual_R[places] = 0.0
        after = self.after
        after.spent_5R[:, places] = columns.spent_5R[:, places]
        after.has_trained_R[places] = columns.has_trained_R[places]
        after.accuracy_R[places] = columns.accuracy_R[places]
        after.loss_R[places] = columns.loss_R[places]
        for place in places.tolist():
            after.reached[place] = columns.reached[place]
            self.not_finite.discard(place)
            for of_places in (self.trainees, self.progress, self.accuracy_of_passes):
                cast("dict[int, Any]", of_places).pop(place, None)


class _Part:
    """The replicates of a group whose round one generator takes.

    Args:
        group: The group.
        current: Its round.
        rows: Their places in it.
        ids_RM: Their cohorts.
        turn: The round of the algorithm; None: it begins.
        calls: The number of requests for training that were carried out.
    """

    def __init__(
        self,
        group: Replicates,
        current: _Round,
        rows: Ints,
        ids_RM: Ints,
        turn: Turn | None = None,
        calls: int = 0,
    ) -> None:
        self.group = group
        self.current = current
        self.rows = rows
        # The same as an index, which costs less if it is all of them.
        is_whole = len(rows) == group.size
        self.index: Any = slice(None) if is_whole else rows
        self.ids_RM = ids_RM
        self.turn = turn or self._begun()
        self.request: Request | None = None
        self.calls = calls

    def some(self, mask_R: Flags) -> "_Part":
        """Return some of the replicates as a part of their own, after a fork."""
        turn = self.turn.some(mask_R)
        rows = self.rows[mask_R]
        if turn is None and self.calls:
            self.current.begin_again(self.group.columns, rows)
        calls = 0 if turn is None else self.calls
        return _Part(self.group, self.current, rows, self.ids_RM[mask_R], turn, calls)

    def _begun(self) -> Turn:
        """Begin the algorithm's round."""
        group = self.group
        columns = group.columns
        index = torch.from_numpy(self.rows)

        def chosen(tensor_R: Tensor) -> Tensor:
            if len(self.rows) < group.size:
                return tensor_R[index]
            # An algorithm of the user's own may change its state in place.
            has_copy = group.is_users_own and group.size > 1
            return tensor_R.clone() if has_copy else tensor_R

        w_RP = chosen(columns.w_RP)
        server = {name: chosen(own) for name, own in columns.server.items()}
        if not group.is_lifted:
            return Separate(
                [
                    alone(
                        group.members[place].algorithm,
                        State(
                            w_RP[r],
                            {name: own[r] for name, own in server.items()},
                            columns.clients[place],
                        ),
                        self.ids_RM[r].tolist(),
                        Key(int(group.seeds_R[place]), group.round),
                        group.run.data.clients,
                    )
                    for r, place in enumerate(self.rows.tolist())
                ]
            )
        owners = [columns.clients[place] for place in self.rows.tolist()]
        clients = LiftedClients(cast("list[ClientRows]", owners))
        state = State(w_RP, server, clients)
        return Lifted(
            group.algorithm,
            some_of(group.algorithm_columns, index),
            state,
            self.ids_RM,
            Keys(group.seeds_R[self.rows], group.round),
            group.is_users_own,
        )

    def go_on(self, update: Update | MeanUpdate | None) -> Request | None:
        """Give the algorithm an answer, and return its next request; None at the end."""
        request = self.turn.send(None if update is None else self._answer(update))
        while isinstance(request, CountSamples):
            ids_RM = torch.from_numpy(self.turn.ids().copy())
            samples_RX = self.group.samples_RX[torch.from_numpy(self.rows)]
            # EVERYONE and SERVER, which are below 0, stand at the end.
            index_RM = torch.where(ids_RM < 0, ids_RM + samples_RX.shape[1], ids_RM)
            request = self.turn.send(samples_RX.gather(1, index_RM))
        self.request = request
        return request

    def training(self) -> Training:
        """Return what the machine is asked for where the algorithm asks for training."""
        request = self.request
        assert request is not None
        group = self.group
        turn = self.turn
        self.calls += 1
        ids_RM = turn.ids()
        locals = group.locals
        local_R = group.local_R[self.rows]
        if request.local is not None:
            locals = [local.over(group.run.rounds) for local in turn.locals()]
            local_R = np.arange(len(local_R)) % len(locals)
        start = turn.column("w_P" if request.w_MP is None else "w_MP")
        assert start is not None
        before_RM = None
        moments_RMVP = None
        if self._goes_on(request):
            before_RM, moments_RMVP = self._kept(ids_RM)
        weight_RM = turn.column("weight_M")
        offset_RMP = turn.column("offset_MP")
        return Training(
            cells_R=group.cells_R[self.index],
            seeds_R=group.seeds_R[self.index],
            round=group.round,
            call=self.calls,
            clients_RM=ids_RM,
            w=start.float(),
            locals=locals,
            local_R=local_R,
            offset_RMP=None if offset_RMP is None else offset_RMP.float(),
            prox_R=turn.prox(),
            # If a request names one client, its row is the mean.
            averaged=isinstance(request, TrainMean) and ids_RM.shape[1] > 1,
            weight_RM=None
            if weight_RM is None
            else relative_weights(weight_RM).numpy(),
            before_RM=before_RM,
            moments_RMVP=moments_RMVP,
        )

    def _answer(self, update: Update | MeanUpdate) -> Update | MeanUpdate:
        """Return the answer to the request, and count what it has cost."""
        request = self.request
        assert request is not None
        if isinstance(request, TrainMean) and isinstance(update, Update):
            update = MeanUpdate(update.delta_MP[:, 0], *update[1:])
        ids_RM = self.turn.ids()
        if self.group.is_users_own:
            finite_R = finite_rows(update[0].flatten(1))
            self.current.not_finite |= set(self.rows[~finite_R].tolist())
        if (devices := self.group.run.devices) is not None:
            seconds_T = devices.seconds(
                self.group.seeds_R[self.rows].repeat(ids_RM.shape[1]),
                np.maximum(ids_RM, 0).ravel(),
                update.steps_M.numpy().ravel(),
                self._bytes_of(request),
            )
            # EVERYONE and SERVER, which are below 0, have no devices.
            seconds_RM = np.where(ids_RM < 0, 0.0, seconds_T.reshape(ids_RM.shape))
            self.current.virtual_R[self.index] += seconds_RM.max(1)
        if self._goes_on(request):
            self._note_progress(ids_RM, update)
        self._count(request, ids_RM, update)
        return update._replace(moments_MVP=NOTHING_KEPT.expand(len(self.rows), 0, 0, 0))

    def _bytes_of(self, request: Request) -> tuple[int, int]:
        """Return the bytes that each client of a request is sent, and that it sends."""
        vector = self.group.columns.w_RP.shape[1] * BYTES_PER_PARAMETER
        update = vector if request.up_bytes is None else int(request.up_bytes)
        return vector * (1 + request.extra_down), update + vector * request.extra_up

    def _goes_on(self, request: Request) -> bool:
        """Whether clients go on where their last training has ended."""
        return request.local is None and self.group.goes_on

    def _progress(self, place: int, client: int) -> Progress | None:
        """Return how far a client is; None if it has never trained."""
        now = self.current.progress.get(place, {})
        return now.get(client) or self.group.columns.progress[place].get(client)

    def _kept(self, ids_RM: Ints) -> tuple[Ints, Tensor | None]:
        """Return how many steps clients have taken, and what they keep."""
        zero_P = torch.zeros(self.group.columns.w_RP.shape[1])
        num_moments = self.group.locals[0].num_moments
        newcomer = Progress(moments=(zero_P,) * num_moments)
        cohort = [
            self._progress(place, i) or newcomer
            for place, ids_M in zip(self.rows.tolist(), ids_RM.tolist(), strict=True)
            for i in ids_M
        ]
        before_RM = np.array([own.steps for own in cohort]).reshape(ids_RM.shape)
        if not num_moments:
            return before_RM, None
        moments = torch.stack([vector_P for own in cohort for vector_P in own.moments])
        return before_RM, moments.view(*ids_RM.shape, num_moments, len(zero_P))

    def _note_progress(self, ids_RM: Ints, update: Update | MeanUpdate) -> None:
        """Note how far clients are, and what they keep."""
        columns = (ids_RM, update.steps_M, update.samples_M, update.accuracy_M)
        for r, (place, *rows) in enumerate(
            zip(self.rows.tolist(), *(own.tolist() for own in columns), strict=True)
        ):
            member = self.group.members[place]
            running = []
            for m, (i, steps, seen, accuracy) in enumerate(zip(*rows, strict=True)):
                before = self._progress(place, i) or Progress()
                size = int(member.samples[i])
                if before.steps % member.local.batches_per_pass(size) == 0:
                    before = before._replace(hits=0.0, seen=0)
                own = Progress(
                    before.steps + steps,
                    before.hits + accuracy * seen,
                    before.seen + seen,
                    # A view would keep all of the answer in memory.
                    tuple(vector_P.clone() for vector_P in update.moments_MVP[r, m]),
                )
                self.current.progress.setdefault(place, {})[i] = own
                running.append(own.hits / own.seen)
            self.current.accuracy_of_passes[place] = sum(running) / len(running)

    def _count(
        self, request: Request, ids_RM: Ints, update: Update | MeanUpdate
    ) -> None:
        """Count steps and traffic, and note the training accuracy and loss.

        Only clients' training moves bytes; training on the server's data leaves the
        training accuracy and loss as they were. A client is sent the server's samples
        that it shares once, in the round in which it first trains.
        """
        index = self.index
        after = self.current.after
        down, up = self._bytes_of(request)
        # SERVER and EVERYONE are negative, and move no bytes. All replicates ask the same.
        ids_M = ids_RM[0]
        clients = int((ids_M >= 0).sum())
        if not isinstance(request, AskLosses):
            trained = (EVERYONE in ids_M, clients > 0, SERVER in ids_M)
            self.current.trained_3R[:, index] |= np.array(trained)[:, None]
        spent_5R = after.spent_5R
        spent_5R[STEPS, index] += update.steps_M.sum(1).numpy()
        spent_5R[DOWN, index] += clients * down
        spent_5R[UP, index] += clients * up
        if self.group.members[0].shared_bytes:
            for place, ids in zip(self.rows.tolist(), ids_RM.tolist(), strict=True):
                newcomers = {i for i in ids if i >= 0} - after.reached[place]
                shared_bytes = self.group.members[place].shared_bytes
                spent_5R[DOWN, place] += len(newcomers) * shared_bytes
                after.reached[place] = after.reached[place] | newcomers
        if self.group.run.eval_clients is not None and not isinstance(
            request, AskLosses
        ):
            for place, ids in zip(self.rows.tolist(), ids_RM.tolist(), strict=True):
                self.current.trainees.setdefault(place, set()).update(ids)
        # The server's samples do not count.
        seen_RM = update.samples_M * torch.from_numpy(ids_RM != SERVER)
        seen_R = seen_RM.sum(1).numpy()
        if not seen_R[0]:
            return
        after.has_trained_R[index] = True
        # The server's numbers may be infinite, and 0 times infinity is NaN.
        is_seen_RM = seen_RM > 0
        hits_RM = torch.where(is_seen_RM, update.accuracy_M * seen_RM, 0)
        losses_RM = torch.where(is_seen_RM, update.loss_M * seen_RM, 0)
        # It is NaN if the objective has no accuracy.
        after.accuracy_R[index] = hits_RM.sum(1).numpy() / seen_R
        after.loss_R[index] = losses_RM.sum(1).numpy() / seen_R


def _first(state: State) -> State:
    """Return the first replicate's state, of states with an axis of replicates."""
    server = {name: own[0] for name, own in state.server.items()}
    return State(state.w_P[0], server)


def finite_rows(row_RP: Tensor) -> Flags:
    """Return whether all numbers of each row are finite.

    If the sum is finite, every number is; summing takes a tenth of the time of
    looking at each. The sum of finite numbers may overflow, and only then each is
    looked at.
    """
    finite_R: Flags = np.isfinite(row_RP.sum(1).numpy())
    for r in () if finite_R.all() else np.flatnonzero(~finite_R).tolist():
        finite_R[r] = bool(row_RP[r].isfinite().all())
    return finite_R


def _or_nan(values: Iterable[float | None]) -> Floats:
    """Return numbers as an array, NaN where there is none."""
    return np.array([math.nan if own is None else own for own in values])


def scores(measures: Measures, found: Mapping[Rows, GroupSums]) -> dict[str, Value]:
    """Return what was measured on the test set and on validation samples, by columns."""
    return {
        f"{PREFIX_OF[rows]}_{name}": value
        for rows, (size_G, sums_Gn) in found.items()
        for name, value in measures.values(sums_Gn[0], int(size_G[0])).items()
    }
