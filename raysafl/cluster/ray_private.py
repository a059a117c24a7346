"""The only file that touches private parts of Ray and of Ray Tune.

Ray offers no public setting for what is changed here, and a new release may rename any
of these parts: a Ray that lacks one is refused. What is changed is restored when the block
ends.

`pyproject.toml` bounds Ray's version for the sake of this file; raise the bound after
`tests/cluster/test_ray_private.py` passes with the new release.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import ray
from ray._private import node, ray_constants

# Settings that Ray reads from the environment but does not document. A Ray that does
# not know one ignores it, so they need no check.
PRELOADED_MODULES = "RAY_preload_python_modules"
CONNECT_SECONDS = "RAY_gcs_server_port_wait_time_s"


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
        ValueError: this version of Ray lacks one of these parts. Without the switch for
            loopback it would accept connections, and so code, from the network.
    """
    modules = os.environ.get(PRELOADED_MODULES, preload)
    starts = ("start_log_monitor", "start_monitor", "start_api_server")
    changes = [(node.Node, start, _do_nothing) for start in starts]
    with (
        _replaced((ray_constants, "ENABLE_RAY_CLUSTER", False), *changes),
        environment(**{PRELOADED_MODULES: modules}),
    ):
        yield


@contextmanager
def trials_without_settings() -> Iterator[None]:
    """Let Tune give its trials no environment variables as settings of their own.

    The processes of a Ray that this one started have its environment in any case. Ray
    would log the settings, AWS's credentials among them. And a process with settings of
    its own is a new one, so the workers that were started in advance would be in vain.

    Raises:
        ValueError: this version of Ray lacks one of these parts.
    """
    # Imported here, because Tune's import takes a second.
    from ray.tune.execution import class_cache

    names = ("DEFAULT_ENV_VARS", "ENV_VARS_TO_PROPAGATE")
    with _replaced(*((class_cache, name, {}) for name in names)):
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


@contextmanager
def _replaced(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Set attributes of Ray, and restore them when the block ends.

    Args:
        changes: what has an attribute, its name, and its value in the block.

    Raises:
        ValueError: there is none of this name.
    """
    with ExitStack() as restored:
        for owner, name, value in changes:
            if not hasattr(owner, name):
                raise ValueError(
                    f"raysafl does not know Ray {ray.__version__}, of which {owner.__name__} "
                    f"has no {name}: install the version that constraints.txt names, or start "
                    "a Ray yourself and give its address"
                )
            restored.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    """Stand in for a function of Ray whose effect is not wanted."""
