"""Checks of what a policy's `pick` and an algorithm's `round` hand to the simulation.

The methods are often the user's own. A mistake in them is told in a sentence that names
the class and the line, says what was returned, and what to return instead. A check
takes some microseconds for each replicate and round.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from torch import Tensor

from raysafl.core.algorithm import (
    Algorithm,
    ContinuedTraining,
    Request,
    Round,
    State,
    TrainMean,
)
from raysafl.core.component import Component, method_name, users_parts
from raysafl.core.participation import Cohort, Cohorts, Participation
from raysafl.core.problem import EVERYONE
from raysafl.core.randomness import Keys
from raysafl.core.text import in_brief

REQUEST = "yield fl.Train(...) or fl.TrainMean(...) for at least one client"


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
            what = f"the cohort holds client {i}, which does not exist"
            _refuse(policy, must, round, what)
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


def checked_round(algorithm: Algorithm, generator: Any, round: int) -> Round:
    """Return the generator that an algorithm's `round` returned.

    Raises:
        ValueError: it is no generator, since the method has no `yield`.
    """
    if not isinstance(generator, Generator):
        must = (
            "be a generator: it yields fl.Train(...) or fl.TrainMean(...), is sent the "
            "update, and returns the new State"
        )
        what = f"it returned {in_brief(generator)} without a yield"
        _refuse(algorithm, must, round, what)
    return generator


def checked_request(
    algorithm: Algorithm,
    request: Any,
    num_parameters: int,
    num_clients: int,
    round: int,
    cohort: Sequence[int],
) -> Request:
    """Return what an algorithm's round yielded, with Python's integers as ids.

    Args:
        algorithm: the algorithm.
        request: what its round yielded.
        num_parameters: the number P of the model's parameters.
        num_clients: the number of all clients.
        round: the number of the round.
        cohort: the clients that participate in this round.

    Raises:
        ValueError: it is no request; it names no client, or one that does not exist or
            does not participate; it holds a tensor of a wrong shape, or asks for training
            that goes on.
    """
    if not isinstance(request, Request):
        _refuse(algorithm, REQUEST, round, f"it yielded {in_brief(request)}")
    checked_ids(algorithm, request.ids, num_clients, round)
    ids = [int(i) for i in request.ids]
    # SERVER and EVERYONE, which are below 0, can always be asked.
    if absent := sorted({i for i in ids if i >= 0}.difference(cohort)):
        what = (
            f"it asked for {in_brief(absent)}, who are not among them. The run's "
            "participation selects the cohort: give it a policy that selects these clients, "
            "or ask EVERYONE, which is the data of all clients in one place"
        )
        _refuse(algorithm, "train clients of the cohort, its `ids`", round, what)
    if isinstance(request.local, ContinuedTraining):
        what = (
            "local is ContinuedTraining, with which only the run's own clients go on; leave "
            "local out for them, or give request.local.begun_anew(), which keeps nothing"
        )
        _refuse(algorithm, REQUEST, round, what)
    if wrong := _wrong_shape("w_P", request.w_P, num_parameters):
        _refuse(algorithm, REQUEST, round, wrong)
    shape_of_rows = (len(ids), num_parameters)
    for name, shape in (
        ("offset_MP", shape_of_rows),
        ("w_MP", shape_of_rows),
        ("weight_M", (len(ids),)),
    ):
        tensor = getattr(request, name, None)
        if tensor is not None and (wrong := _wrong_shape(name, tensor, *shape)):
            what = f"{wrong}, with one row or number per id"
            _refuse(algorithm, REQUEST, round, what)
    weight_M = request.weight_M if isinstance(request, TrainMean) else None
    if weight_M is not None and not (
        (weight_M >= 0).all() and 0 < weight_M.double().sum() < math.inf
    ):
        what = (
            f"weight_M is {in_brief(weight_M)}, but must be finite numbers of at least 0, "
            "not all of them 0"
        )
        _refuse(algorithm, REQUEST, round, what)
    checked: Request = replace(request, ids=ids)
    return checked


def checked_ids(algorithm: Algorithm, ids: Any, num_clients: int, round: int) -> None:
    """Check that an algorithm's round asks for clients, and for some that exist.

    Raises:
        ValueError: there are no ids, or one of them is no client's.
    """
    if not len(ids):
        _refuse(algorithm, REQUEST, round, "it gave no ids")
    for i in (min(ids), max(ids)):
        if not EVERYONE <= i < num_clients:
            what = f"it asked for client {i}, but ids go from 0 to {num_clients - 1}"
            _refuse(algorithm, "ask for clients that exist", round, what)


def checked_state(
    algorithm: Algorithm,
    state: Any,
    num_parameters: int,
    round: int | None,
    ids: Sequence[int] = (),
) -> State:
    """Return the state that an algorithm returned.

    Args:
        algorithm: the algorithm.
        state: what it returned.
        num_parameters: the number P of the model's parameters.
        round: the number of the round; None: the state is that of `init`.
        ids: the cohort, whose vectors are looked at.

    Raises:
        ValueError: it is no `State`, its w_P has another shape than [P], what is
            kept are no tensors, or a client's is no vector [P].
    """
    must = "return a State, for example replace(state, w_P=...)"
    if not isinstance(state, State):
        _refuse(algorithm, must, round, f"it returned {in_brief(state)}")
    if wrong := _wrong_shape("w_P of its State", state.w_P, num_parameters):
        _refuse(algorithm, must, round, wrong)
    for name, kept in (("server", state.server), ("clients", state.clients)):
        if not isinstance(kept, Mapping):
            what = f"{name} of its State is {in_brief(kept)}, but must be a dictionary"
            _refuse(algorithm, must, round, what)
    for key, tensor in state.server.items():
        if not isinstance(tensor, Tensor):
            what = f"server[{key!r}] is {in_brief(tensor)}, but must be a tensor"
            _refuse(algorithm, must, round, what)
    for i in state.clients.keys() & ids:
        if wrong := _wrong_shape(f"clients[{i}]", state.clients[i], num_parameters):
            what = f"{wrong}; what is smaller can be a row of a tensor in server"
            _refuse(algorithm, must, round, what)
    return state


def refuse_no_request(algorithm: Algorithm, round: int) -> NoReturn:
    """Say that a round returned before it yielded any request.

    Raises:
        ValueError: always.
    """
    what = "it returned without a yield, so no client would have trained"
    _refuse(algorithm, REQUEST, round, what)


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
