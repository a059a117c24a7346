"""The client actors of a trial, and what happens when one of them dies.

Actors die of a lack of memory, with their node, or by a signal. A lost actor is started
anew, in the same bundle of the trial's placement group. Its calls are sent again: to
the new actor, or to another one that is ready earlier. A call is a pure function of its
arguments, so a loss does not change results.
"""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
)

from raysafl.core.work import WorkLostError
from raysafl.runtime.hardware import Hardware
from raysafl.storage.redaction import redacted

# What Ray raises when an actor was lost, rather than code in it.
LOST = (RayActorError, OutOfMemoryError, NodeDiedError, ObjectLostError)
# How often one call, or the start of one actor, is tried again.
RETRIES = 3
log = logging.getLogger(__name__)


class LostActorsError(WorkLostError):
    """Client actors died again and again."""


@dataclass
class Call:
    """One call of a method of an actor.

    Args:
        index: The index of the actor that is to be called; another may answer if it is
            lost.
        method: The method's name.
        arguments: The method's arguments.
        parts: The number of parts of the reply.
        actor: The handle of the actor that was called.
        reply: Ray's reference to the reply, or one for each part.
        losses: How often an actor was lost before it replied.
    """

    index: int
    method: str
    arguments: tuple[Any, ...]
    parts: int = 1
    actor: Any = None
    reply: Any = None
    losses: int = 0


class ActorPool:
    """A fixed number of actors, each with an index; lost ones are replaced.

    Args:
        actor_class: The class of the actors. It is called with a number of threads, and
            has a method `configure` with one argument.
        hardware: The number of actors, and the share of cores and GPUs that each has.
    """

    def __init__(self, actor_class: type, hardware: Hardware) -> None:
        self._remote: Any = ray.remote(actor_class).options(
            num_cpus=hardware.cpus, num_gpus=hardware.gpus
        )
        self._threads = max(1, int(hardware.cpus))
        self._actors: list[Any] = [
            self._remote.remote(self._threads) for _ in range(hardware.actors)
        ]
        self._setup: Any = None
        # By index: the reply to `configure` of each actor that is not known to be
        # ready.
        self._starting: dict[int, Any] = {}
        # By index: how often in a row the start of an actor has failed.
        self._failed_starts = Counter[int]()

    def __len__(self) -> int:
        return len(self._actors)

    @property
    def actors(self) -> list[Any]:
        """The handles of the present actors."""
        return list(self._actors)

    def configure(self, setup: Any) -> None:
        """Call `configure` of all actors without waiting for their replies.

        Actors that replace lost ones later get the same setup.
        """
        self._setup = setup
        self._failed_starts = Counter()
        self._starting = {
            index: actor.configure.remote(setup)
            for index, actor in enumerate(self._actors)
        }

    def ready(self) -> list[Any]:
        """Wait until all actors are configured.

        Returns:
            The replies of those to `configure` that were still awaited.

        Raises:
            LostActorsError: One of them died 4 times in a row.
        """
        replies = dict(self._starting)
        while self._starting:
            for index in list(self._starting):
                replies[index] = self._starting[index]
                self._is_ready(index, None)
        return [ray.get(reply) for reply in replies.values()]

    def send(self, index: int, method: str, *arguments: Any, parts: int = 1) -> Call:
        """Call a method of an actor, or of another one while it is being replaced.

        Args:
            index: The actor's index.
            method: The method's name.
            arguments: The method's arguments.
            parts: The number of parts of the reply, if it is a tuple. Ray puts what is
                larger than 100 KB into its object store, so several small parts travel
                faster than one large reply.
        """
        return self._send(Call(index, method, arguments, parts))

    def get(self, calls: Sequence[Call]) -> list[Any]:
        """Wait for the replies and return them in the order of the calls.

        Raises:
            LostActorsError: One of the calls lost its actor 4 times.
            Exception: What the method raised.
        """
        return [self._get(call) for call in calls]

    def kill(self) -> None:
        """End the actors' processes."""
        for actor in self._actors:
            ray.kill(actor)

    def _send(self, call: Call) -> Call:
        call.actor = self._actors[self._next_ready(call.index)]
        method = getattr(call.actor, call.method).options(num_returns=call.parts)
        call.reply = method.remote(*call.arguments)
        return call

    def _get(self, call: Call) -> Any:
        while True:
            try:
                return ray.get(call.reply)
            except LOST as error:
                call.losses += 1
                self._replace(call.actor, error)
                _pause_or_give_up(
                    call.losses, f"the client actor that was to {call.method}", error
                )
                self._send(call)

    def _next_ready(self, index: int) -> int:
        """Return the index of the first ready actor, searching from `index` on.

        If no actor is ready, wait for the one at `index`.
        """
        while True:
            for i in range(len(self)):
                candidate = (index + i) % len(self)
                if self._is_ready(candidate, 0):
                    return candidate
            self._is_ready(index, None)

    def _is_ready(self, index: int, timeout: float | None) -> bool:
        """Return whether an actor is configured, after at most `timeout` seconds.

        An actor that was lost is replaced, and is then not ready.
        """
        if index not in self._starting:
            return True
        reply = self._starting[index]
        if not ray.wait([reply], timeout=timeout)[0]:
            return False
        try:
            ray.get(reply)
        except LOST as error:
            self._failed_starts[index] += 1
            failures = self._failed_starts[index]
            _pause_or_give_up(failures, "a client actor that was being started", error)
            self._replace(self._actors[index], error)
            return False
        del self._starting[index]
        del self._failed_starts[index]
        return True

    def _replace(self, actor: Any, error: Exception) -> None:
        """Start another actor under the lost one's index.

        Several calls may notice the same loss. Only the first finds the actor's handle
        here.
        """
        for index, known in enumerate(self._actors):
            if known is actor:
                log.warning(
                    "client actor %d is lost, starting another: %s",
                    index,
                    _last_line(error),
                )
                # It may be alive and only out of reach.
                ray.kill(actor)
                self._actors[index] = self._remote.remote(self._threads)
                self._starting[index] = self._actors[index].configure.remote(
                    self._setup
                )


def _pause_or_give_up(losses: int, what: str, error: Exception) -> None:
    """Pause before the next try (0, 1, 3 seconds), or raise after too many losses.

    If the driver is gone, its actors are lost and the coordinator is about to be ended
    too. The pause lets that happen before the coordinator records a failure of the run.
    """
    if losses > RETRIES:
        raise LostActorsError(
            f"{what} was lost {losses} times: {_last_line(error)}"
        ) from error
    time.sleep(2 ** (losses - 1) - 1)


def _last_line(error: Exception) -> str:
    """Return the last line of Ray's message, which holds the cause."""
    lines = redacted(str(error)).strip().splitlines() or [type(error).__name__]
    return lines[-1].strip()
