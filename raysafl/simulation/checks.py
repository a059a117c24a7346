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
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.algorithm import (
    Algorithm,
    ContinuedTraining,
    Request,
    Round,
    State,
    TrainMean,
)
from raysafl.core.participation import Cohort, Participation
from raysafl.core.problem import EVERYONE
from raysafl.core.text import in_brief
from raysafl.core.users_parts import method_name, users_parts


def checked_pick(
    policy: Participation, picked: Any, num_clients: int, round: int
) -> tuple[Any, Cohort]:
    """Return the state and the cohort that a policy picked, with plain integers as ids.

    Args:
        policy: the policy.
        picked: what its `pick` returned.
        num_clients: the number of all clients.
        round: the number of the round.

    Raises:
        ValueError: it is no pair of a state and a cohort; the cohort names a client
            twice or one that does not exist; or checkpoints cannot hold the state of a
            policy of the user's own, which is looked at in rounds 0, 1, 2, 4, 8, ...
    """

    def refuse(what: str) -> NoReturn:
        raise ValueError(
            f"{method_name(policy, Participation, 'pick')} must return (state, "
            "Cohort(ids)), where ids names each client that comes once, by "
            f"whole numbers from 0 to {num_clients - 1}; in round {round} {what}"
        )

    if not (
        isinstance(picked, tuple | list)
        and len(picked) == 2
        and isinstance(picked[1], Cohort)
    ):
        refuse(f"it returned {in_brief(picked)}")
    state, cohort = picked
    # To look at the state of a million clients takes longer than to pick some.
    if round & (round - 1) == 0 and users_parts(policy, Participation):
        _check_json(policy, state)
    if type(cohort.enforced) is not bool:
        cohort = replace(cohort, enforced=bool(cohort.enforced))
    if _are_plain_ids(cohort.ids, num_clients):
        return state, cohort

    ids = _integers(cohort.ids)
    if ids is None:
        refuse(f"the ids are {in_brief(cohort.ids)}")
    outside = ids[(ids < 0) | (ids >= num_clients)]
    if len(outside):
        refuse(f"the cohort holds client {outside[0]}, which does not exist")
    if len(np.unique(ids)) < len(ids):
        refuse(f"the cohort holds a client twice: {in_brief(ids.tolist())}")
    return state, replace(cohort, ids=ids.tolist())


def _are_plain_ids(ids: Any, num_clients: int) -> bool:
    """Return whether ids are what almost every policy returns, by a fast check.

    That is a list of Python's integers in ascending order, each once.
    """
    return (
        type(ids) is list
        and set(map(type, ids)) <= {int}
        and ids == sorted(set(ids))
        and (not ids or (ids[0] >= 0 and ids[-1] < num_clients))
    )


def _integers(ids: Any) -> NDArray[np.int64] | None:
    """Return ids (a list, an array, a tensor) as an array; None if they are no ids."""
    try:
        array = np.asarray(ids)
    except (TypeError, ValueError):
        return None
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        return None
    return array.astype(np.int64)


def _check_json(policy: Participation, state: Any) -> None:
    if not _is_json(state):
        raise ValueError(
            f"{method_name(policy, Participation, 'pick')} must return a state of plain "
            "numbers, texts, lists and dictionaries whose keys are texts, because "
            "checkpoints hold it as JSON; turn arrays into lists by .tolist(), and a "
            f"number that is a key into text by str(i). It returned {in_brief(state)}"
        )


def _is_json(value: Any) -> bool:
    """Return whether JSON gives a value back as it is; tuples become lists."""
    if isinstance(value, dict):
        return all(type(key) is str and _is_json(own) for key, own in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    return value is None or isinstance(value, bool | int | float | str)


def checked_round(algorithm: Algorithm, generator: Any, round: int) -> Round:
    """Return the generator that an algorithm's `round` returned.

    Raises:
        ValueError: it is no generator, since the method has no `yield`.
    """
    if not isinstance(generator, Generator):
        raise ValueError(
            f"{_round_of(algorithm)} must be a generator: it yields fl.Train(...) or "
            "fl.TrainMean(...), is sent the update, and returns the new State; it has "
            f"no yield, and in round {round} it returned {in_brief(generator)}"
        )
    return generator


def checked_request(
    algorithm: Algorithm,
    request: Any,
    num_parameters: int,
    num_clients: int,
    round: int,
    cohort: Sequence[int],
) -> Request:
    """Return what an algorithm's round yielded, if it is a request that can be met.

    Its ids are Python's integers.

    Args:
        algorithm: the algorithm.
        request: what its round yielded.
        num_parameters: the number P of the model's parameters.
        num_clients: the number of all clients.
        round: the number of the round.
        cohort: the clients that have come in this round.

    Raises:
        ValueError: it is no request, names no client, or one that does not exist or has
            not come, holds a tensor of a wrong shape, or asks for training that goes on.
    """

    def refuse(what: str) -> NoReturn:
        raise ValueError(
            f"{_round_of(algorithm)} must yield fl.Train(...) or fl.TrainMean(...) "
            f"for at least one client; in round {round} {what}"
        )

    if not isinstance(request, Request):
        refuse(f"it yielded {in_brief(request)}")
    if not len(request.ids):
        refuse(f"it yielded {type(request).__name__} with no ids")
    checked_ids(algorithm, request.ids, num_clients, round)
    ids = [int(i) for i in request.ids]
    # SERVER and EVERYONE, which are below 0, can always be asked.
    if absent := sorted({i for i in ids if i >= 0}.difference(cohort)):
        raise ValueError(
            f"{_round_of(algorithm)} must train clients that have come, its `ids`; in "
            f"round {round} it asked for {in_brief(absent)}, who have not. The run's "
            "participation decides who comes: give it a policy that lets them come, or ask "
            "EVERYONE, which is the data of all clients in one place"
        )
    if isinstance(request.local, ContinuedTraining):
        refuse(
            "local is ContinuedTraining, with which only the run's own clients go on; leave "
            "local out for them, or give request.local.begun_anew(), which keeps nothing"
        )
    weight_M = request.weight_M if isinstance(request, TrainMean) else None
    if weight_M is not None:
        if not (_has_shape(weight_M, (len(request.ids),)) and _are_weights(weight_M)):
            refuse(
                f"weight_M is {in_brief(weight_M)}, but must be a tensor of one finite "
                "number of at least 0 per id, not all of them 0"
            )

    rows = (len(request.ids), num_parameters)
    shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
        "w_P": (request.w_P, (num_parameters,)),
        "offset_MP": (request.offset_MP, rows),
        "w_MP": (request.w_MP, rows),
    }
    for name, (tensor, shape) in shapes.items():
        optional = name != "w_P" and tensor is None
        if not optional and not _has_shape(tensor, shape):
            refuse(
                f"{name} is {in_brief(tensor)}, but must be a tensor of shape "
                f"{list(shape)}{'' if name == 'w_P' else ', with one row per id'}"
            )
    checked: Request = replace(request, ids=ids)
    return checked


def checked_ids(algorithm: Algorithm, ids: Any, num_clients: int, round: int) -> None:
    """Check that an algorithm's round asks for clients that exist.

    Raises:
        ValueError: there are no ids, or one of them is no client's.
    """
    if not len(ids):
        raise ValueError(
            f"{_round_of(algorithm)} must ask for at least one client; in round {round} "
            "it gave no ids"
        )
    for i in (min(ids), max(ids)):
        if not EVERYONE <= i < num_clients:
            raise ValueError(
                f"{_round_of(algorithm)} must ask for clients that exist; in round "
                f"{round} it asked for client {i}, but ids go from 0 to "
                f"{num_clients - 1}"
            )


def checked_state(
    algorithm: Algorithm,
    state: Any,
    num_parameters: int,
    when: str,
    ids: Sequence[int] = (),
) -> State:
    """Return the state that an algorithm returned.

    Args:
        algorithm: the algorithm.
        state: what it returned.
        num_parameters: the number P of the model's parameters.
        when: "init", or the round as "round 3".
        ids: the clients that came, whose vectors are looked at.

    Raises:
        ValueError: it is no `State`, its w_P has another shape than [P], what is
            kept are no tensors, or a client's is no vector [P].
    """

    def refuse(what: str) -> NoReturn:
        method = "init" if when == "init" else "round"
        # No other error was the cause: that the round has ended is told by StopIteration.
        raise ValueError(
            f"{method_name(algorithm, Algorithm, method)} must return a State, for "
            f"example replace(state, w_P=...); in {when} {what}"
        ) from None

    if not isinstance(state, State):
        refuse(f"it returned {in_brief(state)}")
    if not _has_shape(state.w_P, (num_parameters,)):
        refuse(
            f"w_P of its State is {in_brief(state.w_P)}, but must be a tensor of shape "
            f"[{num_parameters}], as before the round"
        )
    for name, kept in (("server", state.server), ("clients", state.clients)):
        if not isinstance(kept, Mapping):
            refuse(f"{name} of its State is {in_brief(kept)}, but must be a dictionary")
    named = {f"server[{name!r}]": value for name, value in state.server.items()}
    named |= {f"clients[{i}]": state.clients[i] for i in ids if i in state.clients}
    for name, value in named.items():
        if not isinstance(value, Tensor):
            refuse(f"{name} is {in_brief(value)}, but must be a tensor")
        if name.startswith("clients") and not _has_shape(value, (num_parameters,)):
            refuse(
                f"{name} is {in_brief(value)}, but must be a vector of shape "
                f"[{num_parameters}]; what is smaller can be a row of a tensor in server"
            )
    return state


def refuse_no_request(algorithm: Algorithm, round: int) -> NoReturn:
    """Say that a round returned before it yielded any request.

    Raises:
        ValueError: always.
    """
    raise ValueError(
        f"{_round_of(algorithm)} must yield fl.Train(...) or fl.TrainMean(...) at least "
        f"once before it returns; in round {round} it returned without a yield, so "
        "nobody would have trained"
    ) from None


def _round_of(algorithm: Algorithm) -> str:
    return method_name(algorithm, Algorithm, "round")


def _are_weights(weight_M: Tensor) -> bool:
    """Return whether all numbers are finite and at least 0, and one is above 0."""
    total = float(weight_M.double().sum())
    return bool((weight_M >= 0).all()) and 0 < total < math.inf


def _has_shape(tensor: Any, shape: tuple[int, ...]) -> bool:
    return isinstance(tensor, Tensor) and tensor.shape == shape
