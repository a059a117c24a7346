"""Starting, joining and leaving Ray."""

import gc
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import NoReturn

import psutil
import ray

from raysafl.cluster.gpus import num_gpus
from raysafl.cluster.hardware import usable_cores
from raysafl.cluster.ray_private import (
    CONNECT_SECONDS,
    environment,
    head_address,
    kept_sigterm,
    lean_local_ray,
    trials_without_settings,
)

# Seconds that a cluster's head node has to answer the first connection.
CONNECT_TIMEOUT_SECONDS = 10
# The parts of a Ray without which it ends: its head, and what starts processes on a node.
OWN_PARTS = ("gcs_server", "raylet")
# Seconds between two looks whether Ray is still there.
LOOK_SECONDS = 2.0
# Seconds without an answer until the head of a cluster counts as lost. Ray itself waits for
# 60, as it may be started again.
PATIENCE_SECONDS = 40.0
# Seconds that the trials then have to save where they are.
SAVE_SECONDS = 8.0
# As for a mistake of the user: something outside of raysafl has to be mended.
LOST_EXIT_CODE = 2


@contextmanager
def ray_session(address: str | None, preload: str = "") -> Iterator[None]:
    """Provide Ray for the block: use a running Ray, join a cluster, or start one here.

    A Ray that ran before the block is left running. A Ray that the block started, or a
    connection that it made, is closed at the end.

    Args:
        address: the cluster's address, such as "auto" or "host:port"; None starts a Ray
            on this machine that listens on loopback only.
        preload: the name of a module that the workers of a Ray that is started here
            import before they are needed.

    Raises:
        ValueError: no cluster answers at the address, or this version of Ray cannot be
            kept on loopback.
    """
    if ray.is_initialized():
        yield
        return
    try:
        _start(address, preload)
        with nullcontext() if address else trials_without_settings():
            yield
    finally:
        # Ctrl-C may have come when Ray had started in part.
        _shut_down()


def _start(address: str | None, preload: str) -> None:
    """Join the cluster at the address, or start a Ray here if there is none.

    Ray counts the cores of the machine or the container, so it is told where this process
    may use fewer. It counts GPUs by their driver, so it is told how many torch can use.
    """
    cores = usable_cores()
    is_told = address is None and cores < (os.cpu_count() or 1)
    try:
        with (
            kept_sigterm(),
            _connecting_once(address) if address else lean_local_ray(preload),
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
                "and RAY_TMPDIR to places that can, or give --executor here"
            ) from error
        raise ValueError(
            f"cannot connect to a Ray cluster at '{address}' ({error}). Is it up "
            "(`ray status`)? If ~/.ray/auth_token exists where it was started, it "
            "asks for that token: set RAY_AUTH_MODE=token here, or start it with "
            "RAY_AUTH_MODE=disabled"
        ) from error


@contextmanager
def watched_ray(stop: Callable[[], None]) -> Iterator[None]:
    """End this process with a message if Ray is lost: its head, or a part of it started here.

    Without it nothing can go on: calls of Ray do not return any more, and a minute later
    Ray ends the process by itself, without a word that helps. It is ended here as if it
    had been killed, and Ray's processes with it.

    Args:
        stop: is called from a thread when Ray is lost, so that the trials save where
            they are. They have `SAVE_SECONDS` for it.
    """
    address = str(ray.get_runtime_context().gcs_address)
    below = psutil.Process().children(recursive=True)
    # Nobody will start the parts of a Ray again that this process has started.
    parts = {}
    for process in below:
        # It may have ended meanwhile.
        with suppress(psutil.Error):
            if (name := process.name()) in OWN_PARTS:
                parts[process] = name
    over = threading.Event()

    def watch() -> None:
        answered = time.monotonic()
        while not over.wait(LOOK_SECONDS):
            ended = [name for process, name in parts.items() if not _is_alive(process)]
            if parts or _accepts(address):
                answered = time.monotonic()
            if ended or time.monotonic() - answered > PATIENCE_SECONDS:
                why = _why_lost(address, *ended[:1])
                print(f"Error: {why}", file=sys.stderr, flush=True)
                stop()
                # Without a raylet, Tune gives its trials up, and the block ends.
                if not over.wait(SAVE_SECONDS):
                    _end_with(below)
                return

    # Ray Client's head may not be reached from here: there is nothing to watch then.
    if parts or _accepts(address):
        threading.Thread(target=watch, name="head", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _is_alive(process: psutil.Process) -> bool:
    """Whether a process has not ended."""
    with suppress(psutil.Error):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _end_with(others: Iterable[psutil.Process]) -> NoReturn:
    """End this process, some others and all below it, without waiting for anything.

    Args:
        others: processes that may have lost their parent, and are not below any more.
    """
    for process in [*others, *psutil.Process().children(recursive=True)]:
        with suppress(psutil.Error):
            process.kill()
    os._exit(LOST_EXIT_CODE)


def _accepts(address: str) -> bool:
    """Whether something accepts connections at host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), LOOK_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def _why_lost(address: str, part: str = "") -> str:
    """Say that the head is lost, or a part of a Ray that was started here, and what to do."""
    if part:
        return (
            f"Ray's own process {part} has ended, and without it no run can go on. Perhaps "
            "memory ran out (`dmesg` tells), or somebody ended it. The same command goes on "
            "where it was"
        )
    return (
        f"the head of the Ray cluster, {address}, does not answer any more, and without it "
        "no run can go on. Start it again, or see that it can be reached (`ray status`). "
        "Then the same command goes on where it was"
    )


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
