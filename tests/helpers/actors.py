"""Deaths of Ray actors."""

import os
import signal
from typing import Any

import pytest


def kill_actor(actor: Any) -> None:
    """Kill its process; Ray starts another."""
    import ray

    os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)


def end_actor(actor: Any) -> None:
    """End it for good, and wait for that: `ray.kill` only asks, it may finish a round before."""
    import ray

    ray.kill(actor)
    with pytest.raises(ray.exceptions.RayActorError):
        while True:
            ray.get(actor.__ray_ready__.remote())
