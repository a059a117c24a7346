"""Rounds of an algorithm, a generator for each replicate, and what users' methods hand over.

A group of replicates takes a round by a `Turn`. Where one generator cannot stand for all of
them (`raysafl.simulation.lifting`), it is `Separate`: a generator for each, which may do
whatever Python can. What it yields and returns, and what a policy's `pick` returns, may be the
user's own. So it is checked: a mistake is told in a sentence that names the class and the line,
says what was given, and what to give instead. A check takes some microseconds for each
replicate and round.
"""

from abc import abstractmethod
from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.algorithm import (
    Algorithm,
    ContinuedTraining,
    CountSamples,
    LocalTraining,
    Request,
    Round,
    State,
)
from raysafl.core.component import Component, method_name, users_parts
from raysafl.core.participation import Cohort, Cohorts, Participation
from raysafl.core.problem import EVERYONE, SERVER
from raysafl.core.randomness import Key, Keys
from raysafl.core.text import in_brief
from raysafl.core.work import Floats, Ints

REQUEST = "yield fl.Train(...) or fl.TrainMean(...) for at least one client"


class Fork(BaseException):
    """Replicates go different ways from here.

    Args:
        mask_R: Which of them go the one way.
    """

    def __init__(self, mask_R: NDArray[np.bool_]) -> None:
        super().__init__()
        self.mask_R = mask_R


class Turn:
    """A round of an algorithm, of the replicates of a group or of some of them.

    Attributes:
        after: The state that the round has returned, with an axis of replicates in all of its
            tensors. What it remembers of clients, `remember` takes over.
    """

    after: State

    @abstractmethod
    def send(self, answer: Any) -> Request | CountSamples | None:
        """Go on with an answer, and return the next request; None at the end.

        A request stands for those of all replicates, which the other methods return.

        Args:
            answer: None at first; else the answer, with an axis of replicates.

        Raises:
            Fork: The replicates go different ways from here.
        """

    @abstractmethod
    def some(self, mask_R: NDArray[np.bool_]) -> "Turn | None":
        """Return the turn of some replicates after a fork; None: they begin anew."""

    @abstractmethod
    def ids(self) -> Ints:
        """Return the clients [R, M] that the request names."""

    @abstractmethod
    def column(self, name: str) -> Tensor | None:
        """Return a tensor of the request with an axis of replicates, if there is one."""

    @abstractmethod
    def prox(self) -> Floats | None:
        """Return the request's `prox` for each replicate; None if it is 0."""

    @abstractmethod
    def locals(self) -> Sequence[LocalTraining]:
        """Return the local trainings of the request: one for all, or one for each."""

    @abstractmethod
    def remember(self, clients: list[Mapping[int, Tensor]], places: Ints) -> None:
        """Take over what the round has remembered of clients, once it has ended.

        Args:
            clients: The vectors of the clients of each replicate of a group.
            places: The places of those that have taken this turn.
        """


def alone(
    algorithm: Algorithm, state: State, ids: list[int], key: Key, num_clients: int
) -> Round:
    """Take a round of one replicate, which may do whatever Python can.

    Args:
        algorithm: The algorithm.
        state: Its state.
        ids: The cohort.
        key: The source of randomness.
        num_clients: The number of all clients.

    Raises:
        ValueError: What the algorithm yields or returns cannot be used, or it returns before
            it yields a request.
    """
    turn = algorithm.turn(state, ids, key)
    if not isinstance(turn, Generator):
        must = (
            "be a generator: it yields fl.Train(...) or fl.TrainMean(...), is sent the "
            "update, and returns the new State"
        )
        what = f"it returned {in_brief(turn)} without a yield"
        _refuse(algorithm, must, key.round, what)
    size = len(state.w_P)
    answer: Any = None
    has_asked = False
    while True:
        try:
            request = turn.send(answer)
        except StopIteration as end:
            if ids and not has_asked:
                what = "it returned without a yield, so no client would have trained"
                _refuse(algorithm, REQUEST, key.round, what)
            return checked_state(algorithm, end.value, size, key.round, ids)
        request = _checked(algorithm, request, size, key.round, ids, num_clients)
        has_asked |= isinstance(request, Request)
        answer = yield request


class Separate(Turn):
    """The rounds of some replicates, each by a generator of its own.

    Where they ask for different things, they are divided.

    Args:
        turns: The round of each replicate, see `alone`.
    """

    def __init__(self, turns: Sequence[Round]) -> None:
        self.turns = turns
        # What was asked for last by each replicate, or returned.
        self._requests: Sequence[Any] = ()
        self._has_divided = False

    def send(self, answer: Any) -> Request | CountSamples | None:
        """Go on with an answer; see `Turn`."""
        if not self._has_divided:
            answers = _answers(answer, len(self.turns))
            self._requests = list(map(_sent, self.turns, answers))
        self._has_divided = False
        first: Request | CountSamples | State = self._requests[0]
        if len(self.turns) > 1:
            kinds = list(map(_kind, self._requests))
            mask_R = np.array([kind == kinds[0] for kind in kinds])
            if not mask_R.all():
                raise Fork(mask_R)
        if not isinstance(first, State):
            return first
        self.after = stacked(self._requests)
        return None

    def some(self, mask_R: NDArray[np.bool_]) -> "Separate":
        """Return those of some replicates, which ask for what they have asked for."""
        chosen = np.flatnonzero(mask_R).tolist()
        part = Separate([self.turns[r] for r in chosen])
        part._requests = [self._requests[r] for r in chosen]
        part._has_divided = True
        return part

    def ids(self) -> Ints:
        """Return the clients that the requests name, [R, M]."""
        return np.array([request.ids for request in self._requests], np.int64)

    def column(self, name: str) -> Tensor | None:
        """Return a tensor of the requests, [R, ...], if there is one."""
        tensors: list[Any] = [getattr(own, name, None) for own in self._requests]
        return None if tensors[0] is None else torch.stack(tensors)

    def prox(self) -> Floats | None:
        """Return the requests' `prox`; None if all are 0."""
        prox_R = np.array([request.prox for request in self._requests], np.float64)
        return prox_R if prox_R.any() else None

    def locals(self) -> Sequence[LocalTraining]:
        """Return the local trainings of the requests: one for all, or one for each."""
        locals = [request.local for request in self._requests]
        is_one = all(local is locals[0] for local in locals)
        return locals[:1] if is_one else locals

    def remember(self, clients: list[Mapping[int, Tensor]], places: Ints) -> None:
        """Take over the `clients` of each state that was returned."""
        for place, state in zip(places.tolist(), self._requests, strict=True):
            clients[place] = state.clients


def stacked(states: Sequence[State]) -> State:
    """Return states of one structure as one with an axis of replicates, without clients."""
    server = {
        name: torch.stack([state.server[name] for state in states])
        for name in states[0].server
    }
    return State(torch.stack([state.w_P for state in states]), server)


def replicate_state(state_R: State, r: int, clients: Mapping[int, Tensor]) -> State:
    """Return the state of one replicate of those that are `stacked`, with its clients."""
    server = {name: own[r] for name, own in state_R.server.items()}
    return State(state_R.w_P[r], server, clients)


def structure(state: State) -> Hashable:
    """Return what is equal for states of replicates that can be in one group."""
    shapes = ((name, own.dtype, own.shape) for name, own in state.server.items())
    return state.w_P.dtype, tuple(shapes)


def _sent(turn: Round, answer: Any) -> Request | CountSamples | State:
    """Return the next request of a round, or the state that it returns."""
    try:
        return turn.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _answers(answer: Any, size: int) -> Sequence[Any]:
    """Return the answer for each replicate."""
    if answer is None:
        return [None] * size
    if isinstance(answer, Tensor):
        return answer.unbind()
    # The moments, which are the last column, are for the simulation.
    columns = [column_R.unbind() for column_R in answer[:-1]]
    return [type(answer)(*own) for own in zip(*columns, strict=True)]


def _kind(request: Request | CountSamples | State) -> Hashable:
    """Return what is equal for requests that can be one, or for rounds that have ended."""
    if isinstance(request, State):
        return structure(request)
    # Whether these are clients, or the server, or everyone.
    owners = tuple(min(i, 0) for i in request.ids)
    if isinstance(request, CountSamples):
        return CountSamples, owners
    tensors = (request.offset_MP, request.w_MP, getattr(request, "weight_M", None))
    traffic = (request.extra_up, request.extra_down, request.up_bytes)
    is_given = (*(own is None for own in tensors), request.local is None)
    return type(request), owners, is_given, traffic


def checked_pick(
    policy: Participation, picked: Any, num_clients: int, round: int
) -> tuple[Any, Cohort]:
    """Return the state and the cohort that a policy picked, with plain integers as ids.

    The state of a policy of the user's own is looked at in rounds 0, 1, 2, 4, 8, ...: to
    look at the state of a million clients takes longer than to pick some.

    Raises:
        ValueError: it is no pair of a state and a cohort; the cohort names a client
            twice or one that does not exist; or checkpoints cannot hold the state.
    """
    must = (
        "return (state, Cohort(ids)), where ids names each participating client once, by "
        f"whole numbers from 0 to {num_clients - 1}"
    )
    match picked:
        case (state, Cohort() as cohort):
            pass
        case _:
            _refuse(policy, must, round, f"it returned {in_brief(picked)}")
    is_looked_at = round & (round - 1) == 0 and users_parts(policy, Participation)
    if is_looked_at and not _is_json(state):
        must = (
            "return a state of plain numbers, texts, lists and dictionaries whose keys "
            "are texts, because checkpoints hold it as JSON (.tolist() makes lists of "
            "arrays, and str(i) makes a key of a number)"
        )
        _refuse(policy, must, round, f"it returned {in_brief(state)}")
    ids = cohort.ids
    # Almost every policy returns Python's integers, which are taken as they are.
    if type(ids) is not list or not set(map(type, ids)) <= {int}:
        array = np.asarray(ids)
        if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
            _refuse(policy, must, round, f"the ids are {in_brief(ids)}")
        ids = array.astype(np.int64).tolist()
    for i in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= i < num_clients:
            _refuse(
                policy,
                must,
                round,
                f"the cohort holds client {i}, which does not exist",
            )
    if len(set(ids)) < len(ids):
        what = f"the cohort holds a client twice: {in_brief(ids)}"
        _refuse(policy, must, round, what)
    return state, replace(cohort, ids=ids, enforced=bool(cohort.enforced))


def checked_picks(
    policy: Participation,
    states: Sequence[Any],
    num_clients: int,
    keys: Keys,
    accuracies: Sequence[float | None],
) -> tuple[list[Any], Cohorts]:
    """Return what a policy picks for several replicates, see `Participation.pick_all`.

    A policy that does not pick for all of them at once is asked for one after another, and
    what it picks is checked.

    Raises:
        ValueError: what it picked for a replicate is no cohort.
    """
    together = policy.pick_all(states, num_clients, keys, accuracies)
    if together is not None:
        return together
    after: list[Any] = []
    cohorts: list[Cohort] = []
    for state, key, accuracy in zip(states, keys.each(), accuracies, strict=True):
        picked = policy.pick(state, num_clients, key, accuracy)
        new, cohort = checked_pick(policy, picked, num_clients, keys.round)
        after.append(new)
        cohorts.append(cohort)
    return after, Cohorts.of(cohorts)


def _checked(
    algorithm: Algorithm,
    request: Any,
    size: int,
    round: int,
    cohort: Sequence[int],
    num_clients: int,
) -> Any:
    """Return what an algorithm's round yielded, with Python's integers as ids.

    Args:
        algorithm: The algorithm.
        request: What its round yielded.
        size: The number P of the model's parameters.
        round: The number of the round.
        cohort: The clients that participate in this round.
        num_clients: The number of all clients, whose samples can be counted.

    Raises:
        ValueError: It is no request, it names no client or one that cannot be asked, or a
            part of it is wrong.
    """
    if not isinstance(request, Request | CountSamples):
        _refuse(algorithm, REQUEST, round, f"it yielded {in_brief(request)}")
    try:
        ids = [int(i) for i in request.ids]
    except (TypeError, ValueError):
        ids = []
    if not ids:
        _refuse(algorithm, REQUEST, round, f"its ids are {in_brief(request.ids)}")
    # SERVER and EVERYONE can always be asked.
    is_count = isinstance(request, CountSamples)
    allowed = range(EVERYONE, num_clients) if is_count else {EVERYONE, SERVER, *cohort}
    if others := sorted({i for i in ids if i not in allowed}):
        what = (
            f"it asked for {in_brief(others)}, which do not exist"
            if is_count
            else f"it asked for {in_brief(others)}, who are not among them. The run's "
            "participation selects the cohort: give it a policy that selects these clients, "
            "or ask EVERYONE, which is the data of all clients in one place"
        )
        must = "train clients of the cohort, its `ids`"
        if is_count:
            must = f"count the samples of clients from 0 to {num_clients - 1}"
        _refuse(algorithm, must, round, what)
    request = replace(request, ids=ids)
    if is_count:
        return request
    weight_M = getattr(request, "weight_M", None)
    weight_1M = weight_M.unsqueeze(0) if isinstance(weight_M, Tensor) else weight_M
    if what := wrong_part(request, size, weight_1M):
        _refuse(algorithm, REQUEST, round, what)
    return request


def wrong_part(request: Request, size: int, weight_RM: Tensor | None) -> str:
    """Say which part of a request cannot be used; an empty text if all of them can.

    Args:
        request: The request.
        size: The number P of the model's parameters.
        weight_RM: The weights, with an axis of replicates, if there are any.
    """
    rows = len(request.ids)
    for name, shape in (("w_P", ()), ("offset_MP", (rows,)), ("w_MP", (rows,))):
        tensor = getattr(request, name)
        if tensor is not None or name == "w_P":
            if wrong := _wrong_shape(name, tensor, *shape, size):
                return wrong
    if isinstance(request.local, ContinuedTraining):
        return (
            "local is ContinuedTraining, with which only the run's own clients go on; leave "
            "local out for them, or give request.local.begun_anew(), which keeps nothing"
        )
    if weight_RM is None:
        return ""
    given = getattr(request, "weight_M", None)
    if not isinstance(given, Tensor) or weight_RM.shape[1:] != (rows,):
        return _wrong_shape("weight_M", given, rows)
    total_R = weight_RM.double().sum(1)
    if (weight_RM >= 0).all() and ((total_R > 0) & total_R.isfinite()).all():
        return ""
    what = "but must be finite numbers of at least 0, not all of them 0"
    return f"weight_M is {in_brief(given)}, {what}"


def checked_state(
    algorithm: Algorithm,
    state: Any,
    num_parameters: int,
    round: int | None,
    ids: Sequence[int] = (),
) -> State:
    """Return the state that an algorithm returned.

    Args:
        algorithm: The algorithm.
        state: What it returned.
        num_parameters: The number P of the model's parameters.
        round: The number of the round; None: the state is that of `init`.
        ids: The cohort, whose vectors are looked at.

    Raises:
        ValueError: It is no `State`, its w_P has another shape than [P], what is
            kept are no tensors, or a client's is no vector [P].
    """
    if not isinstance(state, State):
        what = f"it returned {in_brief(state)}"
    else:
        what = _wrong_shape("w_P of its State", state.w_P, num_parameters)
        for name, kept in (("server", state.server), ("clients", state.clients)):
            if not isinstance(kept, Mapping):
                what = (
                    f"{name} of its State is {in_brief(kept)}, but must be a dictionary"
                )
    if not what:
        for key, tensor in state.server.items():
            if not isinstance(tensor, Tensor):
                what = f"server[{key!r}] is {in_brief(tensor)}, but must be a tensor"
        for i in state.clients.keys() & ids:
            if wrong := _wrong_shape(f"clients[{i}]", state.clients[i], num_parameters):
                what = f"{wrong}; what is smaller can be a row of a tensor in server"
    if what:
        must = "return a State, for example replace(state, w_P=...)"
        _refuse(algorithm, must, round, what)
    checked: State = state
    return checked


def _refuse(component: Component, must: str, round: int | None, what: str) -> NoReturn:
    """Name a method of an algorithm or a policy, what it must do, and what it did."""
    if isinstance(component, Participation):
        name = method_name(component, Participation, "pick")
    else:
        method = "init" if round is None else "round"
        name = method_name(component, Algorithm, method)
    when = "init" if round is None else f"round {round}"
    # No other error was the cause: that a round has ended is told by StopIteration.
    raise ValueError(f"{name} must {must}; in {when} {what}") from None


def _is_json(value: Any) -> bool:
    """Return whether JSON gives a value back as it is; tuples become lists."""
    if isinstance(value, dict):
        return all(type(key) is str and _is_json(part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    return value is None or isinstance(value, bool | int | float | str)


def _wrong_shape(name: str, value: Any, *shape: int) -> str:
    """Say that a value is no tensor of a shape; an empty text if it is one."""
    if isinstance(value, Tensor) and value.shape == shape:
        return ""
    return f"{name} is {in_brief(value)}, but must be a tensor of shape {[*shape]}"
