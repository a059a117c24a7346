"""Actors that Ray starts again when they die.

Actors die of a lack of memory, with their node, or by a signal. Ray starts a lost actor
anew, in the same bundle of the trial's placement group, and sends it again what it had
not answered. So an actor may keep nothing that a call does not name.
"""

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import (
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
# Seconds that actors have to say where they are.
ANSWER_SECONDS = 20.0


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

    def __len__(self) -> int:
        return len(self.handles)

    def call(self, what: str, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call an actor for each share of a request, and wait for all replies.

        An actor that is late is waited for.

        Args:
            what: What they are to do: the name of the calls in Ray and in errors.
            shares: The arguments of each call.

        Returns:
            The replies, in the order of the shares.

        Raises:
            LostActorsError: A call lost its actor again and again.
            Exception: What `call` raised.
        """
        replies = [
            self.handles[k % len(self)].call.options(name=what).remote(*share)
            for k, share in enumerate(shares)
        ]
        try:
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
        ready, _ = ray.wait(asked, num_returns=len(asked), timeout=ANSWER_SECONDS)
        return list(ray.get(ready))

    def kill(self) -> None:
        """End the actors' processes."""
        for actor in self.handles:
            ray.kill(actor)
