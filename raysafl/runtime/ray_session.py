"""Starting, joining and leaving Ray."""

import gc
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from raysafl.runtime import Hardware
from raysafl.runtime.ray_private import (
    CONNECT_SECONDS,
    environment,
    head_address,
    lean_local_ray,
)

# Seconds that a cluster's head node has to answer the first connection.
CONNECT_TIMEOUT_SECONDS = 10


@contextmanager
def ray_session(address: str | None) -> Iterator[None]:
    """Provide Ray for the block: use a running Ray, join a cluster, or start one here.

    A Ray that ran before the block is left running. A Ray that the block started, or a
    connection that it made, is closed at the end.

    Args:
        address: the cluster's address, such as "auto" or "host:port"; None starts a Ray
            on this machine that listens on loopback only.

    Raises:
        ValueError: no cluster answers at the address, or this version of Ray cannot be
            kept on loopback.
    """
    if ray.is_initialized():
        yield
        return
    try:
        with _connecting_once(address) if address else lean_local_ray():
            ray.init(
                address=address or "local",
                include_dashboard=None if address else False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    except OSError as error:
        if not address:
            raise
        raise ValueError(
            f"cannot connect to a Ray cluster at '{address}' ({error}). Is it up "
            "(`ray status`)? If ~/.ray/auth_token exists where it was started, it "
            "asks for that token: set RAY_AUTH_MODE=token here, or start it with "
            "RAY_AUTH_MODE=disabled"
        ) from error
    try:
        yield
    finally:
        _shut_down()


def check_fits(hardware: Hardware) -> None:
    """Check that a trial fits the machines of the running Ray.

    Raises:
        ValueError: the machines have too few cores or GPUs for one trial, which would
            wait for ever.
    """
    alive = [node for node in ray.nodes() if node["Alive"]]
    hardware.check([node["Resources"] for node in alive])


def _shut_down() -> None:
    """Disconnect from Ray without freeing an object reference during the shutdown.

    Ray ends the process (exit code 1) if another thread, such as the tracker's, frees a
    reference in the middle of `ray.shutdown`. So the references that Tune left are
    freed first, and the garbage collector is off until Ray is down.
    """
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        ray.shutdown()
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _connecting_once(address: str) -> Iterator[None]:
    """Let Ray try once to connect, instead of 20 times over some minutes.

    If something listens at the address but is no Ray, that one attempt takes some 40 s.

    Raises:
        OSError: nothing accepts connections at the address.
    """
    head = head_address(address)
    if head is None:
        yield
        return
    try:
        socket.create_connection(head, timeout=CONNECT_TIMEOUT_SECONDS).close()
    except OSError as error:
        host, port = head
        raise OSError(
            f"nothing accepts connections at {host}:{port}: {error}"
        ) from error
    with environment(**{CONNECT_SECONDS: "1"}):
        yield
