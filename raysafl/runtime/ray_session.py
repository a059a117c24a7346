"""ray_session."""

import gc
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import ray
import ray.cloudpickle
from ray._private import services

from raysafl.runtime import Hardware


@contextmanager
def ray_session(address: str | None) -> Iterator[None]:
    """Ray, for as long as the block runs: one that runs already, a cluster's, or our own."""
    if ray.is_initialized():
        yield
        return
    try:
        with _one_try(address) if address else _own():
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
            f"cannot connect to a Ray cluster at '{address}' ({error}). Is it up (`ray status`)? "
            "If ~/.ray/auth_token exists where it was started, it asks for that token: set "
            "RAY_AUTH_MODE=token here, or start it with RAY_AUTH_MODE=disabled"
        ) from error
    try:
        yield
    finally:
        gc.collect()  # object references that Tune left: Ray ends the process (exit code 1) if
        collects = gc.isenabled()
        gc.disable()  # another thread, the tracker's say, frees one in the middle of its shutdown
        try:
            ray.shutdown()
        finally:
            if collects:
                gc.enable()


def check(hardware: Hardware) -> None:
    """Raise ValueError if a trial would not fit the machines of the Ray that runs."""
    hardware.check([node["Resources"] for node in ray.nodes() if node["Alive"]])


@contextmanager
def _own() -> Iterator[None]:
    """A Ray of our own listens on loopback only, as Ray does by itself on macOS and Windows, and
    is lean: it starts no worker before one is asked for, which would stay idle at 1 % of a core,
    nor what sends workers' output to the driver or watches for new nodes, 1 % together.
    """
    spare, node = "RAY_prestart_worker_first_driver", "ray._private.node.Node"
    with (
        patch("ray._private.ray_constants.ENABLE_RAY_CLUSTER", False, create=True),
        patch(f"{node}.start_log_monitor", lambda *_, **__: None, create=True),
        patch(f"{node}.start_monitor", lambda *_, **__: None, create=True),
        environment(**{spare: os.environ.get(spare, "0")}),
    ):
        yield


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set some variables, and put back only these: other threads may set others meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _one_try(address: str) -> Iterator[None]:
    """Let Ray try to connect once: some 40 s if what is there is no Ray. Else it tries 20 times.

    Raises:
        OSError: nothing accepts connections there.
    """
    # what Ray makes of it: "auto" is looked up, loopback becomes this machine's address
    where = services.canonicalize_bootstrap_address(address) if "://" not in address else None
    if where is None:
        yield
        return
    try:
        socket.create_connection(services.extract_ip_port(where), timeout=10).close()
    except OSError as error:
        raise OSError(f"nothing accepts connections at {where}: {error}") from error
    with environment(RAY_gcs_server_port_wait_time_s="1"):
        yield
