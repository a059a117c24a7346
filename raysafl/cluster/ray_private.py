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
            "that constraints.txt names, or start a Ray yourself and give its address"
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


def is_own_exit(error: BaseException) -> bool:
    """Whether Ray itself raised a SystemExit, to end one of its processes."""
    return hasattr(error, "ray_terminate_msg")


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
