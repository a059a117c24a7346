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

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from raysafl.core.algorithm import Algorithm, ContinuedTraining, State
from raysafl.core.component import method_name
from raysafl.core.randomness import Keys
from raysafl.core.record import Record
from raysafl.core.work import Ints
from raysafl.simulation.columns import SPENT, Columns, finite_rows
from raysafl.simulation.devices import Devices
from raysafl.simulation.judging import (
    Steps,
    evaluate_clients,
    judge,
    measure_accuracy,
)
from raysafl.simulation.lifting import ClientRows, ClientTable, differences
from raysafl.simulation.parts import BYTES_PER_PARAMETER, TALLY, Part, RoundSoFar
from raysafl.simulation.replicate import Progress, Replicate
from raysafl.simulation.turns import Fork, checked_picks

LOWER_RATES = "lower the learning rates"


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
    def samples_RX(self) -> Ints:
        """How many samples clients hold; those of EVERYONE and SERVER are at the end."""
        return np.stack([member.samples for member in self.members])

    @property
    def num_parameters(self) -> int:
        """The number P of the model's parameters."""
        return self.columns.state.w_P.shape[1]

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
        yield from measure_accuracy(self, current)
        self._finish(current)
        rounds = self.round + 1
        if rounds % self.run.eval_every == 0 or rounds == self.run.rounds:
            yield from judge(self, current)
            yield from evaluate_clients(self, current)

    def end_round(self) -> dict[int, Record]:
        """Stand where the round has led, and let those leave for which it was the last one.

        Returns:
            The records of an evaluated round, by the places of replicates.
        """
        current = self._current
        columns = self.columns = current.after
        self.round += 1
        for part in current.parts:
            part.turn.remember(columns.clients, part.places)
        # The tensors of this round are not needed in the next one.
        current.parts = ()
        for place, own in current.of_clients.items():
            columns.reached[place] |= own.newcomers
            columns.progress[place].update(own.progress)
            if (clients := self.members[place].clients) is not None:
                clients.participations_N = clients.with_round(own.trainees)
        for place, why in current.diverged.items():
            self._leave(place)
            self.members[place].diverged = why
        if not current.records:
            return {}
        # What is counted begins anew.
        numbers_R = columns.numbers_R.copy()
        numbers_R["spent"] = np.zeros((), SPENT)
        self.columns = replace(columns, numbers_R=numbers_R, rounds=[])
        for place in current.records:
            if self.members[place].done:
                self._leave(place)
        return current.records

    def _leave(self, place: int) -> None:
        """Let a replicate leave the group, with copies of what it keeps."""
        standing = self.columns.standing(place, self.round)
        state = standing.state
        server = {name: own.clone() for name, own in state.server.items()}
        clients = state.clients
        if isinstance(clients, ClientRows):
            clients = clients.taken_out()
        standing.state = State(state.w_P.clone(), server, clients)
        self.members[place].stand(standing)

    def _pick(self) -> RoundSoFar:
        """Let the policy choose the participants of each replicate."""
        columns = self.columns
        keys = Keys(self.seeds_R, self.round)
        accuracies = [
            None if accuracy != accuracy else accuracy
            for accuracy in columns.numbers_R["train_accuracy"].tolist()
        ]
        policies, cohorts = checked_picks(
            self.policy, columns.policies, self.run.data.clients, keys, accuracies
        )
        numbers_R = columns.numbers_R.copy()
        after = replace(columns, policies=policies, numbers_R=numbers_R)
        current = RoundSoFar(cohorts, after, np.zeros(self.size, TALLY))
        if self.run.devices is not None:
            self._lose_clients(current, keys, self.run.devices)
        return current

    def _lose_clients(self, current: RoundSoFar, keys: Keys, devices: Devices) -> None:
        """Leave those in the cohorts that report in time."""
        cohorts = current.cohorts
        place_T = np.repeat(np.arange(self.size), cohorts.count_R)
        steps = []
        for place, i in zip(place_T.tolist(), cohorts.ids.tolist(), strict=True):
            member = self.members[place]
            before = self.columns.progress[place].get(i, Progress()).steps
            steps.append(member.local.num_steps(int(member.samples[i]), before))
        vector = self.num_parameters * BYTES_PER_PARAMETER
        seconds_T = devices.seconds(
            self.seeds_R[place_T], cohorts.ids, np.array(steps, np.int64), (vector,) * 2
        )
        current.cohorts, current.is_late_R = devices.reporting(cohorts, keys, seconds_T)

    def _train(self, current: RoundSoFar) -> Steps:
        """Answer the algorithm's requests until it has returned its new states."""
        count_R = current.cohorts.count_R
        first_R = np.cumsum(count_R) - count_R
        ready: list[tuple[Part, Any]] = []
        for count in sorted(set(count_R.tolist())):
            (rows,) = np.nonzero(count_R == count)
            ids_RM = current.cohorts.ids[first_R[rows, None] + np.arange(count)]
            ready.append((Part(self, current, rows, ids_RM), None))
        ended: list[Part] = []
        while ready:
            asking: list[Part] = []
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
        current.unite(ended)

    def _finish(self, current: RoundSoFar) -> None:
        """Count the round, and find those whose parameters are not finite."""
        after = current.after
        cohorts = current.cohorts
        tally_R = current.tally_R
        spent_R = after.numbers_R["spent"]
        trained_R = tally_R["client"].copy()
        after.rounds = [*after.rounds, (cohorts, trained_R)]
        spent_R["snapshots"] += cohorts.enforced_R & trained_R
        spent_R["server_rounds"] += tally_R["server"]
        if (devices := self.run.devices) is not None:
            # Where the server alone trains although clients report, it waits for none.
            has_asked_R = tally_R["seconds"] > 0
            is_late_R = current.is_late_R & (has_asked_R | (cohorts.count_R == 0))
            least_R = np.where(is_late_R, devices.deadline or 0.0, 0.0)
            spent_R["virtual_seconds"] += np.maximum(tally_R["seconds"], least_R)
        for place in np.flatnonzero(~finite_rows(after.state.w_P)).tolist():
            why = f" (last training loss {after.loss(place)}); {LOWER_RATES}"
            if self.members[place].is_users_own and not tally_R["not_finite"][place]:
                method = method_name(self.algorithm, Algorithm, "round")
                why = (
                    f", but the updates that {method} was sent are: look there for a "
                    "division by 0, a mean of no rows, a logarithm or a root"
                )
            current.diverged[place] = (
                f"round {self.round}: parameters are not finite{why}"
            )
