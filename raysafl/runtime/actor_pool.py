"""The client actors of a trial, which may die: out of memory, a lost node, kill -9.

A lost actor is made anew in its place of the trial's placement group. What it was asked is asked
again of another actor that is up, or of the new one if there is no other. A call is a pure
function of its arguments and keeps its own share of the work, so a loss does not change results.
"""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError, RayActorError

from raysafl.runtime.hardware import Hardware

LOST = (RayActorError, OutOfMemoryError, NodeDiedError, ObjectLostError)
RETRIES = 3  # of one call, and of one place's start
log = logging.getLogger(__name__)


class LostActorsError(RuntimeError):
    """Client actors died again and again."""


@dataclass
class Call:
    """What was asked of the actor in a place, and where the answer will be."""

    place: int
    method: str
    arguments: tuple[Any, ...]
    parts: int = 1
    actor: Any = None
    reply: Any = None
    losses: int = 0


class Fleet:
    """`hardware.actors` actors of a class with a method `configure`; inside a trial they land in
    its placement group. `body` is called with the number of threads.
    """

    def __init__(self, body: type, hardware: Hardware) -> None:
        self._remote: Any = ray.remote(body).options(num_cpus=hardware.cpus, num_gpus=hardware.gpus)
        self._threads = max(1, int(hardware.cpus))
        self._actors: list[Any] = [
            self._remote.remote(self._threads) for _ in range(hardware.actors)
        ]
        self._setup: tuple[Any, ...] = ()
        self._starting: dict[int, Any] = {}  # place: the reply of its `configure`, until it came
        self._failed = Counter[int]()  # starts that failed in a row, by place

    def __len__(self) -> int:
        return len(self._actors)

    @property
    def actors(self) -> list[Any]:
        """The handles as they are now."""
        return list(self._actors)

    def configure(self, *setup: Any) -> None:
        """Begin to call `configure` of all actors, and of each that will replace one."""
        self._setup, self._failed = setup, Counter()
        self._starting = {i: a.configure.remote(*setup) for i, a in enumerate(self._actors)}

    def expect(self, *setup: Any) -> None:
        """What actors that replace others will be configured with from now on."""
        self._setup = setup

    def ready(self) -> list[Any]:
        """Wait for all actors; their replies to `configure`, where they were still awaited.

        Raises:
            LostActorsError: one of them died 4 times in a row.
        """
        replies = dict(self._starting)
        while self._starting:
            for place in list(self._starting):
                replies[place] = self._starting[place]
                self._ready(place, None)
        return [ray.get(reply) for reply in replies.values()]

    def send(self, place: int, method: str, *arguments: Any, parts: int = 1) -> Call:
        """Ask the actor in a place, or another one while that is being replaced.

        A reply in `parts` (a tuple of so many) travels faster if each is below 100 KB: Ray puts
        what is larger into its object store.
        """
        return self._send(Call(place, method, arguments, parts))

    def get(self, calls: Sequence[Call]) -> list[Any]:
        """The replies, in the order given. What the body raised is raised here.

        Raises:
            LostActorsError: one of the calls lost its actor 4 times.
        """
        return [self._get(call) for call in calls]

    def kill(self) -> None:
        """Let the actors go."""
        for actor in self._actors:
            ray.kill(actor)

    def _send(self, call: Call) -> Call:
        call.actor = self._actors[self._up(call.place)]
        method = getattr(call.actor, call.method).options(num_returns=call.parts)
        call.reply = method.remote(*call.arguments)
        return call

    def _get(self, call: Call) -> Any:
        while True:
            try:
                return ray.get(call.reply)
            except LOST as error:
                call.losses += 1
                _bound(call.losses, f"the client actor that was to {call.method}", error)
                self._replace(call.actor, error)
                self._send(call)

    def _up(self, place: int) -> int:
        """This place if its actor is ready, else the next that is; else wait for this one."""
        while True:
            for i in range(len(self)):
                if self._ready((place + i) % len(self), 0):
                    return (place + i) % len(self)
            self._ready(place, None)

    def _ready(self, place: int, timeout: float | None) -> bool:
        """Whether the actor of a place is configured, after waiting for it so long."""
        if place not in self._starting:
            return True
        reply = self._starting[place]
        if not ray.wait([reply], timeout=timeout)[0]:
            return False
        try:
            ray.get(reply)
        except LOST as error:
            self._failed[place] += 1
            _bound(self._failed[place], "a client actor that was being started", error)
            self._replace(self._actors[place], error)
            return False
        del self._starting[place], self._failed[place]
        return True

    def _replace(self, actor: Any, error: Exception) -> None:
        """Start another actor in its place, unless that was done when another call noticed."""
        for place, known in enumerate(self._actors):
            if known is actor:
                log.warning("client actor %d is lost, starting another: %s", place, _reason(error))
                ray.kill(actor)  # it may only be out of reach
                self._actors[place] = self._remote.remote(self._threads)
                self._starting[place] = self._actors[place].configure.remote(*self._setup)


def _bound(losses: int, what: str, error: Exception) -> None:
    """Give up, or wait before the next try: 0, 1, 3 seconds.

    The pause also lets a coordinator whose driver is gone, and its actors with it, die before it
    records a failure that is none.
    """
    if losses > RETRIES:
        raise LostActorsError(f"{what} was lost {losses} times: {_reason(error)}") from error
    time.sleep(2 ** (losses - 1) - 1)


def _reason(error: Exception) -> str:
    """The last line of Ray's message, which holds the cause."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
