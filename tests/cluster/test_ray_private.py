"""Ray's private parts: they exist, are restored, and their absence is said."""

import logging
import os
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from helpers.patience import PATIENCE
from ray._private import node, ray_constants, services, utils

from raysafl.cluster import ray_private

STARTS = ("start_log_monitor", "start_monitor")


@pytest.fixture(autouse=True)
def _forget_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_private, "_warned", set())


def test_a_local_ray_is_kept_on_loopback_and_lean_only_inside_the_block(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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
    assert not caplog.records


def test_trials_have_no_settings_of_their_own_inside_the_block(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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
    assert not caplog.records
    monkeypatch.delattr(class_cache, "ENV_VARS_TO_PROPAGATE")
    with caplog.at_level(logging.WARNING), ray_private.trials_without_settings():
        assert "has no class_cache.ENV_VARS_TO_PROPAGATE" in caplog.text


def test_a_ray_that_cannot_be_kept_on_loopback_is_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(ray_constants, "ENABLE_RAY_CLUSTER")
    with pytest.raises(
        ValueError, match=r"cannot keep Ray .* on loopback.*give --address"
    ):
        with ray_private.lean_local_ray():
            pass


@pytest.mark.parametrize("start", STARTS)
def test_a_process_that_cannot_be_left_out_is_said_once(
    start: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(node.Node, start)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with ray_private.lean_local_ray():
                assert not hasattr(node.Node, start)
    assert caplog.text.count(f"has no Node.{start}") == 1


def test_the_head_of_a_cluster_is_where_ray_looks_for_it() -> None:
    assert ray_private.head_address("192.0.2.7:6379") == ("192.0.2.7", 6379)
    assert ray_private.head_address("ray://192.0.2.7:10001") is None


def test_what_accepts_no_connections_is_refused_at_once() -> None:
    from raysafl.cluster.ray_session import _connecting_once

    with socket.socket() as bound:  # bound, but not listening
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(OSError, match="nothing accepts connections at"):
            with _connecting_once(address):
                pass


@pytest.mark.parametrize("part", ["canonicalize_bootstrap_address", "extract_ip_port"])
def test_without_the_look_up_ray_finds_the_cluster_by_itself(
    part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(services, part)
    with caplog.at_level(logging.WARNING):
        assert ray_private.head_address("192.0.2.7:6379") is None
    assert "has no services." in caplog.text


def test_the_histories_of_a_trial_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    from ray.tune.experiment import Trial

    trial = Trial("none", stub=True)
    trial.run_metadata.update_metric("accuracy", 0.5)
    assert trial.metric_analysis and trial.metric_n_steps
    ray_private.forget_metric_history(trial)
    assert trial.metric_analysis == trial.metric_n_steps == {}
    assert not caplog.records


@pytest.mark.parametrize(
    "trial", [SimpleNamespace(), SimpleNamespace(run_metadata=object())]
)
def test_a_trial_without_histories_is_left_as_it_is(
    trial: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        ray_private.forget_metric_history(trial)
    assert "metric_analysis" in caplog.text and "metric_n_steps" in caplog.text


def test_a_module_that_ray_does_not_have_is_found_missing() -> None:
    assert ray_private._find("ray._private.no_such_module", "part") is None


def test_the_programs_own_handler_of_sigterm_stays_though_ray_sets_others() -> None:
    def own(*_: object) -> None:
        pass

    before = signal.signal(signal.SIGTERM, own)
    try:
        with ray_private.kept_sigterm():
            utils.set_sigterm_handler(lambda *_: None)
            assert signal.getsignal(signal.SIGTERM) is own
            # As Ray's C++ part does.
            signal.signal(signal.SIGTERM, lambda *_: None)
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.acceptance
def test_sigterm_while_ray_runs_gives_the_programs_own_end_without_a_stack_trace() -> (
    None
):
    program = """
import os, signal
from raysafl.cli.signals import end_at_once
from raysafl.cluster.ray_session import ray_session
end_at_once()
with ray_session(None):
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 143
    assert "Stopped by SIGTERM." in done.stdout
    assert "*** SIGTERM received" not in done.stdout
