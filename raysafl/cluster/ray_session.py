"""Starting, joining and leaving Ray."""

import gc
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import ray

from raysafl.cluster.gpus import num_gpus
from raysafl.cluster.hardware import usable_cores
from raysafl.cluster.ray_private import (
    CONNECT_SECONDS,
    environment,
    lean_local_ray,
    trials_without_settings,
)

# Seconds that a cluster's head node has to answer the first connection.
CONNECT_TIMEOUT_SECONDS = 10
# Seconds that a cluster has to come up, if its nodes are waited for.
WAIT_SECONDS = 600.0
# Seconds between two looks whether it is up.
LOOK_SECONDS = 0.5


class NoClusterError(ValueError):
    """No Ray cluster answers at an address, or too few of its nodes live."""


@contextmanager
def ray_session(
    address: str | None, preload: str = "", wait_nodes: int = 0
) -> Iterator[None]:
    """Provide Ray for the block: use a running Ray, join a cluster, or start one here.

    A Ray that ran before the block is left running. A Ray that the block started, or a
    connection that it made, is closed at the end.

    Args:
        address: the cluster's address, such as "auto" or "host:port"; None starts a Ray
            on this machine that listens on loopback only.
        preload: the name of a module that the workers of a Ray that is started here
            import before they are needed.
        wait_nodes: how many living nodes the cluster at the address must have before the
            block begins. A cluster that is not up is waited for only if this is not 0.

    Raises:
        ValueError: no cluster answers at the address, or too few of its nodes live after
            `WAIT_SECONDS`, or this version of Ray cannot be kept on loopback.
    """
    deadline = time.monotonic() + (WAIT_SECONDS if wait_nodes else 0.0)
    if ray.is_initialized():
        _again_until(deadline, partial(_check_nodes, wait_nodes))
        yield
        return
    try:
        _again_until(deadline, partial(_start, address, preload))
        _again_until(deadline, partial(_check_nodes, wait_nodes))
        with nullcontext() if address else trials_without_settings():
            yield
    finally:
        # Ctrl-C may have come when Ray had started in part.
        _shut_down()


def _again_until(deadline: float, act: Callable[[], None]) -> None:
    """Do something again and again until it raises no NoClusterError, or to the deadline."""
    while True:
        try:
            act()
            return
        except NoClusterError:
            if time.monotonic() > deadline:
                raise
        time.sleep(LOOK_SECONDS)


def _check_nodes(wanted: int) -> None:
    """Check that so many nodes of the running Ray live.

    Raises:
        NoClusterError: there are fewer.
    """
    if wanted and (living := len(resources_of_nodes())) < wanted:
        raise NoClusterError(
            f"the Ray cluster has {living} of the {wanted} nodes that are waited for "
            f"(--wait-nodes) after {WAIT_SECONDS:g} s; the output of `ray start` on the "
            "others says why they have not come"
        )


def _start(address: str | None, preload: str) -> None:
    """Join the cluster at the address, or start a Ray here if there is none.

    Ray counts the cores of the machine or the container, so it is told where this process
    may use fewer. It counts GPUs by their driver, so it is told how many torch can use.
    """
    cores = usable_cores()
    is_told = address is None and cores < (os.cpu_count() or 1)
    at_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        with (
            _connecting_once(address) if address else lean_local_ray(preload),
            nullcontext() if address else _interrupted_later(),
        ):
            ray.init(
                address=address or "local",
                num_cpus=cores if is_told else None,
                num_gpus=None if address else num_gpus(),
                include_dashboard=None if address else False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    except OSError as error:
        if not address:
            raise ValueError(
                f"Ray cannot start here: {error}. It keeps a token in ~/.ray and its other "
                "files in /tmp/ray. Where these cannot be written, set RAY_AUTH_TOKEN_PATH "
                "and RAY_TMPDIR to places that can, or give executor='here' (--executor here)"
            ) from error
        raise NoClusterError(
            f"cannot connect to a Ray cluster at '{address}' ({error}). Is it up "
            "(`ray status`)? If ~/.ray/auth_token exists where it was started, it "
            "asks for that token: set RAY_AUTH_MODE=token here, or start it with "
            "RAY_AUTH_MODE=disabled"
        ) from error
    finally:
        # Ray sets a handler of its own, at which runs would not be saved. Python lets only
        # the main thread set one.
        is_main = threading.current_thread() is threading.main_thread()
        if callable(at_sigterm) and is_main:
            signal.signal(signal.SIGTERM, at_sigterm)


def resources_of_nodes() -> list[dict[str, float]]:
    """Return the resources of each live node of the running Ray, by Ray's names."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


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
def _interrupted_later() -> Iterator[None]:
    """Let Ctrl-C wait until the block has ended.

    Where it comes while Ray starts, Ray ends the process at its next start, and a notebook
    with it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def _connecting_once(address: str) -> Iterator[None]:
    """Let Ray try once to connect, instead of 20 times over some minutes.

    If something listens at the address but is no Ray, that one attempt takes some 40 s.

    Args:
        address: "auto", "host:port" or "ray://host:port"; only the second names the
            head node to which Ray connects, and is tried before.

    Raises:
        OSError: nothing accepts connections at the address.
        ValueError: the address is of none of these forms.
    """
    if address != "auto" and "://" not in address:
        host, _, port = address.rpartition(":")
        if not (host and port.isdecimal()):
            raise ValueError(
                f"the address '{address}' is neither auto nor of the form host:port"
            )
        try:
            socket.create_connection(
                (host.strip("[]"), int(port)), CONNECT_TIMEOUT_SECONDS
            ).close()
        except (OSError, OverflowError) as error:
            raise OSError(f"nothing accepts connections there: {error}") from error
    with environment(**{CONNECT_SECONDS: "1"}):
        yield
