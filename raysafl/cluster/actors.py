"""Actors that Ray starts again when they die.

Actors die of a lack of memory, with their node, or by a signal. Ray starts a lost actor
anew, in the same bundle of the trial's placement group, and sends it again what it had
not answered. So an actor may keep nothing that a call does not name.
"""

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import (
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
)

from raysafl.cluster.hardware import Hardware
from raysafl.core.work import WorkLostError

# What Ray raises when an actor was lost, rather than code in it.
LOST = (RayActorError, OutOfMemoryError, NodeDiedError, ObjectLostError)
# How often Ray tries a call again whose actor was lost.
RETRIES = 3
# Seconds in which actors have to answer before anybody looks who is late.
LATE_SECONDS = 20.0
# An actor is late if it takes so many times longer than that, and than the first answer.
LATE_TIMES = 4
log = logging.getLogger(__name__)


class LostActorsError(WorkLostError):
    """Client actors died again and again."""


class Actors:
    """A fixed number of actors, any of which can carry out any call.

    Args:
        kind: The class of the actors. It is called with a number of threads, and its
            method `call` is a pure function of its arguments. Its method `machine` says
            where it is, and with which raysafl.
        hardware: The number of actors, and the share of cores and GPUs that each has.
    """

    def __init__(self, kind: type, hardware: Hardware) -> None:
        remote: Any = ray.remote(kind).options(
            num_cpus=hardware.cpus,
            num_gpus=hardware.gpu_share,
            max_restarts=-1,
            max_task_retries=RETRIES,
        )
        threads = max(1, int(hardware.cpus))
        self.handles = [remote.remote(threads) for _ in range(hardware.actors)]
        # By the index of an actor that was late: a call that it has not answered.
        self._late: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.handles)

    def call(self, what: str, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call an actor for each share of a request, and wait for all replies.

        What a late actor was to do is given to another one as well, and the earlier
        reply counts. So a node that is lost, and that no other can replace, or a process
        that is stopped, does not hold up the others. A late actor gets nothing else
        until it has answered.

        Args:
            what: What they are to do: the name of the calls in Ray and in errors.
            shares: The arguments of each call.

        Returns:
            The replies, in the order of the shares.

        Raises:
            LostActorsError: A call lost its actor again and again.
            Exception: What `call` raised.
        """
        self._late = {i: r for i, r in self._late.items() if not _is_answered(r)}
        present = [i for i in range(len(self)) if i not in self._late]
        # If all are late, there is nobody else to ask.
        present = present or list(range(len(self)))
        asked = [present[k % len(present)] for k in range(len(shares))]
        sent = zip(asked, shares, strict=True)
        replies = [self._send(i, what, share) for i, share in sent]
        try:
            if len(self) > 1:
                with suppress(GetTimeoutError):
                    return list(ray.get(replies, timeout=LATE_SECONDS))
                self._ask_others(asked, what, shares, replies)
            return list(ray.get(replies))
        except LOST as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise LostActorsError(
                f"the client actor that was to {what} was lost, and so it was in "
                f"{RETRIES} further tries: its process was killed, perhaps because memory "
                f"ran out (`dmesg` tells), or its node was lost. {lines[-1].strip()}"
            ) from error

    def machines(self) -> list[tuple[str, str]]:
        """Return what the method `machine` of each actor says that answers in time."""
        asked = [actor.machine.remote() for actor in self.handles]
        ready, _ = ray.wait(asked, num_returns=len(asked), timeout=LATE_SECONDS)
        return list(ray.get(ready))

    def kill(self) -> None:
        """End the actors' processes."""
        for actor in self.handles:
            ray.kill(actor)

    def _send(self, index: int, what: str, share: tuple[Any, ...]) -> Any:
        return self.handles[index].call.options(name=what).remote(*share)

    def _ask_others(
        self,
        asked: list[int],
        what: str,
        shares: Sequence[tuple[Any, ...]],
        replies: list[Any],
    ) -> None:
        """Have others do what late actors were to do; the earlier reply takes the place.

        Args:
            asked: The index of the actor that was asked for each share.
            what: What they are to do.
            shares: The arguments of each call.
            replies: Ray's references to the replies, which are changed.
        """
        begin = time.monotonic() - LATE_SECONDS
        if len(replies) > 1:
            ray.wait(replies)
        patience = (LATE_TIMES - 1) * (time.monotonic() - begin)
        _, missing = ray.wait(replies, num_returns=len(replies), timeout=patience)
        late = [k for k, reply in enumerate(replies) if reply in missing]
        others = sorted({*range(len(self))} - {asked[k] for k in late} - {*self._late})
        if not others:
            return
        # Who is asked as well.
        second = {k: others[n % len(others)] for n, k in enumerate(late)}
        again = {k: self._send(index, what, shares[k]) for k, index in second.items()}
        for k in late:
            (earlier,), (later,) = ray.wait([replies[k], again[k]])
            self._late[asked[k] if later is replies[k] else second[k]] = later
            log.warning(
                "client actor %d is late: another one has its work too", asked[k]
            )
            replies[k] = earlier


def _is_answered(reply: Any) -> bool:
    return bool(ray.wait([reply], timeout=0)[0])
