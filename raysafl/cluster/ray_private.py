"""The only file that touches private parts of Ray and of Ray Tune.

Ray offers no public setting for what is changed here, and a new release may rename any
of these parts. So each use first checks that the part exists. If it does not, the
function either does without it and logs a warning, or it refuses with a ValueError
where doing without would be unsafe. What is changed is restored when the block ends.

`pyproject.toml` bounds Ray's version for the sake of this file; raise the bound after
`tests/cluster/test_ray_private.py` passes with the new release.
"""

import importlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

LOG = logging.getLogger(__name__)

# Settings that Ray reads from the environment but does not document. A Ray that does
# not know one ignores it, so they need no check.
PRELOADED_MODULES = "RAY_preload_python_modules"
CONNECT_SECONDS = "RAY_gcs_server_port_wait_time_s"

_warned: set[str] = set()


@contextmanager
def lean_local_ray(preload: str = "") -> Iterator[None]:
    """Keep a Ray that the block starts on loopback, and without needless processes.

    By itself, Ray listens on loopback only on macOS and Windows; here it does on Linux
    too. This Ray also starts no process that forwards the workers' output to the driver,
    none that watches for new nodes (1 % of a core together), and no server of its
    dashboard (0.6 core seconds, for which `ray.init` waits): a sweep on one machine
    needs none of them.

    Ray starts one worker a core in advance, which the first actors become. While the
    driver is still getting ready, these workers import a module, which takes them some
    seconds.

    Args:
        preload: the name of the module that every worker imports when it starts.

    Raises:
        ValueError: this version of Ray has no such switch for loopback. It would accept
            connections, and so code, from the network.
    """
    constants = _find("ray._private.ray_constants")
    if not hasattr(constants, "ENABLE_RAY_CLUSTER"):
        raise ValueError(
            f"raysafl cannot keep Ray {_version()} on loopback: this version of "
            "Ray has no ray_constants.ENABLE_RAY_CLUSTER. Install the version of Ray "
            "that constraints.txt names, or start a Ray yourself and give --address"
        )
    node = _find("ray._private.node", "Node")
    with ExitStack() as changes:
        changes.enter_context(_replaced(constants, "ENABLE_RAY_CLUSTER", False))
        for start in ("start_log_monitor", "start_monitor", "start_api_server"):
            if hasattr(node, start):
                changes.enter_context(_replaced(node, start, _do_nothing))
            else:
                _warn_once(
                    f"Node.{start}", "Ray starts a process that a sweep does not need"
                )
        modules = os.environ.get(PRELOADED_MODULES, preload)
        changes.enter_context(environment(**{PRELOADED_MODULES: modules}))
        yield


@contextmanager
def trials_without_settings() -> Iterator[None]:
    """Let Tune give its trials no environment variables as settings of their own.

    The processes of a Ray that this one started have its environment in any case. Ray
    would log the settings, AWS's credentials among them. And a process with settings of
    its own is a new one, so the workers that were started in advance would be in vain.
    """
    cache = _find("ray.tune.execution.class_cache")
    with ExitStack() as changes:
        for name in ("DEFAULT_ENV_VARS", "ENV_VARS_TO_PROPAGATE"):
            if hasattr(cache, name):
                changes.enter_context(_replaced(cache, name, {}))
            else:
                _warn_once(
                    f"class_cache.{name}",
                    "a sweep starts some seconds later, and Ray may write AWS's "
                    "credentials to its logs",
                )
        yield


@contextmanager
def kept_sigterm() -> Iterator[None]:
    """Keep the program's own handler of SIGTERM while Ray starts in the block.

    Ray replaces it twice. First it sets a handler in Python that ends the process with
    exit code 15; this is prevented. Then its C++ part sets one below Python, which
    prints a stack trace and can crash before it calls Python's; so the program's
    handler is set again at the end of the block. A program that has no handler of its
    own, or that starts Ray in another thread than the main one, gets Ray's.
    """
    utils = _find("ray._private.utils")
    own = signal.getsignal(signal.SIGTERM)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if own in (signal.SIG_DFL, None) or not in_main_thread:
        yield
        return
    try:
        with ExitStack() as changes:
            if hasattr(utils, "set_sigterm_handler"):
                changes.enter_context(
                    _replaced(utils, "set_sigterm_handler", _do_nothing)
                )
            yield
    finally:
        signal.signal(signal.SIGTERM, own)


def is_own_exit(error: BaseException) -> bool:
    """Whether Ray itself raised a SystemExit, to end one of its processes."""
    return hasattr(error, "ray_terminate_msg")


def head_address(address: str) -> tuple[str, int] | None:
    """Return the host and port where Ray would look for a cluster's head node.

    Ray looks up "auto", and turns loopback into this machine's address.

    Args:
        address: what the user gave as --address: "auto", "host:port" or
            "ray://host:port".

    Returns:
        None if Ray would not connect to a head node by host and port (Ray Client's
        "ray://", or no cluster to be found), or if this version of Ray cannot tell.

    Raises:
        ConnectionError: the address is "auto", and no cluster is known on this machine.
        ValueError: the address is not of the form host:port.
    """
    if "://" in address:
        return None
    canonicalize = _find("ray._private.services", "canonicalize_bootstrap_address")
    host_and_port = _find("ray._private.services", "extract_ip_port")
    if canonicalize is None or host_and_port is None:
        _warn_once(
            "services.canonicalize_bootstrap_address or extract_ip_port",
            "if nothing listens at the address, Ray says so only after some minutes",
        )
        return None
    bootstrap = canonicalize(address)
    if bootstrap is None:
        return None
    host, port = host_and_port(bootstrap)
    return host, port


def forget_metric_history(trial: Any) -> None:
    """Drop the metric histories that Tune keeps of a `ray.tune.experiment.Trial`.

    They take 20 kB a trial until the sweep ends, and nothing reads them: Parquet has
    the metrics.
    """
    metadata = getattr(trial, "run_metadata", None)
    for name in ("metric_analysis", "metric_n_steps"):
        if hasattr(metadata, name):
            setattr(metadata, name, {})
        else:
            _warn_once(
                f"Trial.run_metadata.{name}",
                "the driver's memory grows by 20 kB a trial",
            )


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables inside the block, and restore only these afterwards.

    The rest of the environment is left alone, because other threads may change it
    meanwhile.
    """
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


def _version() -> str:
    """Return Ray's version, or nothing if it is not installed."""
    return str(_find("ray", "__version__") or "")


def _find(module: str, name: str | None = None) -> Any:
    """Return a module of Ray, or an attribute of it; None if Ray does not have it."""
    try:
        found = importlib.import_module(module)
    except ImportError:
        return None
    return getattr(found, name, None) if name else found


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute that exists, and restore it when the block ends."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    """Stand in for a function of Ray whose effect is not wanted."""


def _warn_once(part: str, consequence: str) -> None:
    """Log that this Ray lacks a private part, once a process."""
    if part not in _warned:
        _warned.add(part)
        LOG.warning("Ray %s has no %s: %s", _version(), part, consequence)
