"""Ray's private parts: they exist, are restored, and their absence is refused."""

import os
import signal
import socket

import pytest
from ray._private import node, ray_constants

from raysafl.cluster import ray_private

STARTS = ("start_log_monitor", "start_monitor")


def test_a_local_ray_is_kept_on_loopback_and_lean_only_inside_the_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(ray_private.PRELOADED_MODULES, raising=False)
    before = [
        ray_constants.ENABLE_RAY_CLUSTER,
        *(getattr(node.Node, s) for s in STARTS),
    ]
    with pytest.raises(KeyError), ray_private.lean_local_ray("json.tool"):
        assert ray_constants.ENABLE_RAY_CLUSTER is False
        assert [getattr(node.Node, s)() for s in STARTS] == [None, None]
        assert os.environ[ray_private.PRELOADED_MODULES] == "json.tool"
        raise KeyError
    after = [ray_constants.ENABLE_RAY_CLUSTER, *(getattr(node.Node, s) for s in STARTS)]
    assert after == before and ray_private.PRELOADED_MODULES not in os.environ


def test_trials_have_no_settings_of_their_own_inside_the_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray.tune.execution import class_cache

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    # The Ray that other tests of this process may have started has taken it out.
    before = {"AWS_SECRET_ACCESS_KEY"}
    monkeypatch.setattr(class_cache, "ENV_VARS_TO_PROPAGATE", before)
    monkeypatch.setattr(class_cache, "DEFAULT_ENV_VARS", {"PL_DISABLE_FORK": "1"})

    def settings() -> str:
        cache = class_cache._ActorClassCache()
        return str(cache.get(type("A", (), {}))._default_options["runtime_env"])

    with ray_private.trials_without_settings():
        assert "hunter2" not in settings() and "PL_DISABLE_FORK" not in settings()
    assert "hunter2" in settings() and "PL_DISABLE_FORK" in settings()
    assert class_cache.ENV_VARS_TO_PROPAGATE is before


@pytest.mark.parametrize(
    ("owner", "name"), [(ray_constants, "ENABLE_RAY_CLUSTER"), (node.Node, STARTS[0])]
)
def test_a_ray_that_lacks_a_part_is_not_started(
    owner: object, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(owner, name)
    with pytest.raises(ValueError, match=rf"has no {name}: .* give its address"):
        with ray_private.lean_local_ray():
            pass


def test_what_accepts_no_connections_is_refused_at_once() -> None:
    from raysafl.cluster.ray_session import _connecting_once

    with socket.socket() as bound:  # bound, but not listening
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(OSError, match="nothing accepts connections"):
            with _connecting_once(address):
                pass


def test_ctrl_c_while_a_ray_starts_here_waits_until_it_has_started() -> None:
    """Ray ends the process at its next start if it is interrupted while it makes its worker."""
    from raysafl.cluster.ray_session import _interrupted_later

    ended = False
    with pytest.raises(KeyboardInterrupt), _interrupted_later():
        signal.raise_signal(signal.SIGINT)
        ended = True
    assert ended and signal.getsignal(signal.SIGINT) is signal.default_int_handler
