"""A round of a group of replicates so far, and the parts that one generator each takes.

All replicates of a part ask for the same at the same time. A part makes a `Training` of what
its algorithm asks for, hands the algorithm the answer, and counts what that has cost.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.algorithm import (
    AskLosses,
    CountSamples,
    MeanUpdate,
    Request,
    State,
    TrainMean,
    Update,
)
from raysafl.core.means import relative_weights
from raysafl.core.participation import Cohorts
from raysafl.core.problem import EVERYONE, SERVER
from raysafl.core.randomness import Keys
from raysafl.core.record import Record
from raysafl.core.work import Ints, Training
from raysafl.simulation.columns import Columns, Flags, finite_rows
from raysafl.simulation.lifting import ClientRows, Lifted, LiftedClients, some_of
from raysafl.simulation.replicate import Progress
from raysafl.simulation.turns import Separate, Turn, alone, replicate_state, structure

if TYPE_CHECKING:
    from raysafl.simulation.replicates import Replicates

# Parameters are sent as float32.
BYTES_PER_PARAMETER = 4
# Who may train, as `Record.kind` names them.
KINDS = ("central", "client", "server")
# What a round counts of each replicate: which of `KINDS` have trained, whether it was sent an
# update that is not finite, and how long the clients' devices have taken.
TALLY = np.dtype(
    [*((name, np.bool_) for name in (*KINDS, "not_finite")), ("seconds", np.float64)],
    align=True,
)


@dataclass
class OfClients:
    """What a round notes of a replicate's clients, where that is wanted.

    Args:
        trainees: Who has trained.
        newcomers: Who has been sent the server's samples, and had not been before.
        progress: How far those are that have trained, if training goes on.
        pass_accuracy: See `Participation.goes_by_passes`.
    """

    trainees: set[int] = field(default_factory=set)
    newcomers: set[int] = field(default_factory=set)
    progress: dict[int, Progress] = field(default_factory=dict)
    pass_accuracy: float | None = None


@dataclass
class RoundSoFar:
    """A round of a group so far.

    Args:
        cohorts: The clients that take part.
        after: Where the group will stand.
        tally_R: The `TALLY`.
        is_late_R: Whether fewer clients report than the server waits for.
        of_clients: What is noted of clients, by the places of replicates.
        records: The records of an evaluated round, by the places of replicates.
        diverged: Why replicates stop, by their places.
        parts: Its parts, once all of them have ended.
    """

    cohorts: Cohorts
    after: Columns
    tally_R: NDArray[Any]
    is_late_R: Any = False
    of_clients: dict[int, OfClients] = field(
        default_factory=lambda: defaultdict(OfClients)
    )
    records: dict[int, Record] = field(default_factory=dict)
    diverged: dict[int, str] = field(default_factory=dict)
    parts: Sequence["Part"] = ()

    def begin_again(self, before: Columns, places: Ints) -> None:
        """Forget what was counted of some replicates, which stood there before the round."""
        self.tally_R[places] = np.zeros((), TALLY)
        self.after.numbers_R[places] = before.numbers_R[places]
        for place in places.tolist():
            self.of_clients.pop(place, None)

    def unite(self, parts: Sequence["Part"]) -> None:
        """Make of the states of all parts, which have ended, those after the round.

        Raises:
            ValueError: They do not fit together, though they may after the next round.
        """
        self.parts = parts
        first, *others = states = [part.turn.after for part in parts]
        self.after.state = first
        if not others:
            return
        if len({structure(replicate_state(state, 0, {})) for state in states}) > 1:
            raise ValueError("the states of the replicates have become different")

        def joined(tensors: Sequence[Tensor]) -> Tensor:
            whole = tensors[0].new_empty(len(self.tally_R), *tensors[0].shape[1:])
            for part, own in zip(parts, tensors, strict=True):
                whole[torch.from_numpy(part.places)] = own
            return whole

        self.after.state = State(
            joined([state.w_P for state in states]),
            {
                name: joined([state.server[name] for state in states])
                for name in first.server
            },
        )


class Part:
    """The replicates of a group whose round one generator takes.

    Args:
        group: The group.
        current: Its round.
        places: Their places in it.
        ids_RM: Their cohorts.
        turn: The round of the algorithm; None: it begins.
        calls: The number of requests for training that were carried out.
    """

    def __init__(
        self,
        group: "Replicates",
        current: RoundSoFar,
        places: Ints,
        ids_RM: Ints,
        turn: Turn | None = None,
        calls: int = 0,
    ) -> None:
        self.group = group
        self.current = current
        self.places = places
        # The same as an index, which costs less if it is all of them.
        self.index: Any = slice(None) if len(places) == group.size else places
        self.ids_RM = ids_RM
        self.turn = turn or self._begun()
        self.calls = calls
        self.request: Request | None = None
        # Whom the request names.
        self.asked_RM: Ints = ids_RM

    def some(self, mask_R: Flags) -> "Part":
        """Return some of the replicates as a part of their own, after a fork."""
        turn = self.turn.some(mask_R)
        places = self.places[mask_R]
        if turn is None and self.calls:
            self.current.begin_again(self.group.columns, places)
        calls = 0 if turn is None else self.calls
        return Part(self.group, self.current, places, self.ids_RM[mask_R], turn, calls)

    def _begun(self) -> Turn:
        """Begin the algorithm's round."""
        group = self.group
        columns = group.columns
        # An algorithm of the user's own may change its state in place.
        is_copied = group.is_users_own and group.size > 1

        def chosen(tensor_R: Tensor) -> Tensor:
            own_R = tensor_R[self.index]
            return own_R.clone() if is_copied else own_R

        server = {name: chosen(own) for name, own in columns.state.server.items()}
        w_RP = chosen(columns.state.w_P)
        places = self.places.tolist()
        clients = [columns.clients[place] for place in places]
        keys = Keys(group.seeds_R[self.index], group.round)
        if group.is_lifted:
            return Lifted(
                group.algorithm,
                some_of(group.algorithm_columns, torch.from_numpy(self.places)),
                State(w_RP, server, LiftedClients(cast("list[ClientRows]", clients))),
                self.ids_RM,
                keys,
                group.is_users_own,
            )
        state_R = State(w_RP, server)
        return Separate(
            [
                alone(
                    group.members[place].algorithm,
                    replicate_state(state_R, r, clients[r]),
                    self.ids_RM[r].tolist(),
                    key,
                    group.run.data.clients,
                )
                for r, (place, key) in enumerate(zip(places, keys.each(), strict=True))
            ]
        )

    def go_on(self, update: Update | MeanUpdate | None) -> Request | None:
        """Give the algorithm an answer, and return its next request; None at the end."""
        if update is not None:
            self._count(update)
        request = self.turn.send(update)
        while isinstance(request, CountSamples):
            # EVERYONE and SERVER, which are below 0, stand at the end.
            index = (self.places[:, None], self.turn.ids())
            request = self.turn.send(torch.from_numpy(self.group.samples_RX[index]))
        self.request = request
        return request

    def training(self) -> Training:
        """Return what the machine is asked for where the algorithm asks for training."""
        request = self.request
        assert request is not None
        group = self.group
        turn = self.turn
        self.calls += 1
        ids_RM = self.asked_RM = turn.ids()
        locals = group.locals
        local_R = group.local_R[self.index]
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
            averaged=isinstance(request, TrainMean),
            weight_RM=None
            if weight_RM is None
            else relative_weights(weight_RM).numpy(),
            before_RM=before_RM,
            moments_RMVP=moments_RMVP,
        )

    def _goes_on(self, request: Request) -> bool:
        """Whether clients go on where their last training has ended."""
        return request.local is None and self.group.goes_on

    def _progress(self, place: int, client: int) -> Progress | None:
        """Return how far a client is; None if it has never trained."""
        now = self.current.of_clients[place].progress
        return now.get(client) or self.group.columns.progress[place].get(client)

    def _kept(self, ids_RM: Ints) -> tuple[Ints, Tensor | None]:
        """Return how many steps clients have taken, and what they keep."""
        zero_P = torch.zeros(self.group.num_parameters)
        num_moments = self.group.locals[0].num_moments
        newcomer = Progress(moments=(zero_P,) * num_moments)
        cohort = [
            self._progress(place, i) or newcomer
            for place, ids_M in zip(self.places.tolist(), ids_RM.tolist(), strict=True)
            for i in ids_M
        ]
        before_RM = np.array([own.steps for own in cohort]).reshape(ids_RM.shape)
        if not num_moments:
            return before_RM, None
        moments = torch.stack([vector_P for own in cohort for vector_P in own.moments])
        return before_RM, moments.view(*ids_RM.shape, num_moments, len(zero_P))

    def _count(self, update: Update | MeanUpdate) -> None:
        """Count what an answer has cost, and note the training accuracy and loss.

        Only clients' training moves bytes; training on the server's data leaves the
        training accuracy and loss as they were.
        """
        request = self.request
        assert request is not None
        index = self.index
        ids_RM = self.asked_RM
        tally_R = self.current.tally_R
        if self.group.is_users_own:
            tally_R["not_finite"][index] |= ~finite_rows(update[0].flatten(1))
        if self._goes_on(request):
            self._note_progress(ids_RM, update)
        self._note_clients(request, ids_RM)

        numbers_R = self.current.after.numbers_R
        spent_R = numbers_R["spent"]
        # EVERYONE and SERVER have the same places in the requests of all replicates.
        ids = ids_RM[0].tolist()
        everyone = ids.count(EVERYONE)
        server = ids.count(SERVER)
        clients = len(ids) - everyone - server
        if not isinstance(request, AskLosses):
            for kind in compress(KINDS, (everyone, clients, server)):
                tally_R[kind][index] = True
        spent_R["steps"][index] += update.steps_M.numpy().sum(1)
        vector = self.group.num_parameters * BYTES_PER_PARAMETER
        down = vector * (1 + request.extra_down)
        up = vector if request.up_bytes is None else int(request.up_bytes)
        up += vector * request.extra_up
        spent_R["bytes_down"][index] += clients * down
        spent_R["bytes_up"][index] += clients * up
        if (devices := self.group.run.devices) is not None:
            seconds_T = devices.seconds(
                self.group.seeds_R[index].repeat(len(ids)),
                np.maximum(ids_RM, 0).ravel(),
                update.steps_M.numpy().ravel(),
                (down, up),
            )
            # EVERYONE and SERVER, which are below 0, have no devices.
            seconds_RM = np.where(ids_RM < 0, 0.0, seconds_T.reshape(ids_RM.shape))
            tally_R["seconds"][index] += seconds_RM.max(1)

        if server == len(ids):
            return
        seen_RM = update.samples_M
        columns = {
            # It is NaN if the objective has no accuracy.
            "train_accuracy": update.accuracy_M,
            "train_loss": update.loss_M,
        }
        if server:
            # The server's samples do not count. Its numbers may be infinite, and 0 times
            # infinity is NaN.
            is_seen_M = torch.from_numpy(ids_RM[0] != SERVER)
            seen_RM = seen_RM * is_seen_M
            columns = {n: own.where(is_seen_M, 0.0) for n, own in columns.items()}
        seen_R = seen_RM.sum(1)
        numbers_R["has_trained"][index] = True
        for name, value_RM in columns.items():
            numbers_R[name][index] = ((value_RM * seen_RM).sum(1) / seen_R).numpy()

    def _note_clients(self, request: Request, ids_RM: Ints) -> None:
        """Note who has trained, and who is sent the server's samples that it shares.

        A client is sent them once, in the round in which it first trains.
        """
        group = self.group
        is_noted = group.run.eval_clients is not None
        is_noted &= not isinstance(request, AskLosses)
        if not is_noted and not group.members[0].shared_bytes:
            return
        spent_R = self.current.after.numbers_R["spent"]
        for place, ids in zip(self.places.tolist(), ids_RM.tolist(), strict=True):
            of_clients = self.current.of_clients[place]
            if is_noted:
                of_clients.trainees.update(ids)
            if shared_bytes := group.members[place].shared_bytes:
                known = group.columns.reached[place] | of_clients.newcomers
                newcomers = {i for i in ids if i >= 0} - known
                spent_R["bytes_down"][place] += len(newcomers) * shared_bytes
                of_clients.newcomers |= newcomers

    def _note_progress(self, ids_RM: Ints, update: Update | MeanUpdate) -> None:
        """Note how far clients are, and what they keep."""
        columns = (ids_RM, update.steps_M, update.samples_M, update.accuracy_M)
        for r, (place, *rows) in enumerate(
            zip(self.places.tolist(), *(own.tolist() for own in columns), strict=True)
        ):
            member = self.group.members[place]
            of_clients = self.current.of_clients[place]
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
                of_clients.progress[i] = own
                running.append(own.hits / own.seen)
            of_clients.pass_accuracy = sum(running) / len(running)
