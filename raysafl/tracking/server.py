"""`raysafl ui`: MLflow's own server on the right database, for this machine only."""

import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlencode

from raysafl.core.needs import need
from raysafl.storage.mlflow_view import MODE, read_view
from raysafl.storage.redaction import redacted
from raysafl.storage.store import Store, find_sweeps
from raysafl.tracking.client import artifacts, database, default_uri

LOOPBACK = ("127.0.0.1", "localhost", "::1")
# The address at which a server that listens on all interfaces answers on this machine.
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
# Seconds to wait until the server answers; it takes 20 on a busy machine.
PATIENCE = 120.0
# Seconds that it gets to end.
PATIENCE_AT_THE_END = 10.0
# One worker without the job queue takes 0.4 GiB in 2 processes instead of 2.3 GiB in
# 16.
ENVIRONMENT = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def serve(
    path: Path, host: str = "127.0.0.1", port: int = 5000, browser: bool = False
) -> None:
    """Show the results of sweeps in MLflow until Ctrl-C, and print the addresses of its pages.

    Args:
        path: the folder of a sweep, or one that holds sweeps.
        host: the address to listen on.
        port: the port; if it is taken, a free one is used.
        browser: whether the page is opened in the user's browser.

    Raises:
        ValueError: there is no database yet, the address cannot be used, or MLflow is
            not installed.
        RuntimeError: the server did not start; the message has the end of its log.
    """
    need("mlflow", "`raysafl ui`")
    sweeps = find_sweeps(path)
    is_sweep = [store.path for store in sweeps] == [path]
    uri = default_uri(path.resolve().parent if is_sweep else path)
    if uri.startswith(("http://", "https://")):
        note = "a server of its own, named by MLFLOW_TRACKING_URI"
        _show_pages(uri.rstrip("/"), uri, sweeps, note, browser)
        return
    file = database(uri)
    if file and not file.is_file():
        raise ValueError(
            f"no MLflow database at {file} yet: `raysafl run` makes it, "
            f"and `raysafl sync {path}` makes it from results"
        )
    free_port = _free_port(host, port)
    try:
        with server(uri, host, free_port) as (process, url):
            if free_port != port:
                print(f"port {port} is taken, {free_port} is free")
            if host not in LOOPBACK:
                print(
                    f"listening on {host}: whoever reaches this machine can read and delete these "
                    "runs. Names of this machine need MLFLOW_SERVER_ALLOWED_HOSTS"
                )
            _show_pages(url, uri, sweeps, "Ctrl-C stops it", browser)
            process.wait()
    except KeyboardInterrupt:
        print("MLflow UI stopped", flush=True)


def _show_pages(
    url: str, uri: str, sweeps: Sequence[Store], note: str, browser: bool
) -> None:
    """Print the addresses of the pages that show sweeps, and open the first on demand.

    Args:
        url: the URL of MLflow's server.
        uri: MLflow's URI.
        sweeps: the folders of the sweeps.
        note: what is said of the server.
        browser: whether the page is opened in the user's browser.
    """
    views = {store.path.name: view for store in sweeps if (view := read_view(store))}
    pages = {name: url + view.page for name, view in views.items() if view.uri == uri}
    elsewhere = {name: view.uri for name, view in views.items() if view.uri != uri}
    first = f"{url}/#/experiments?{urlencode(MODE)}"
    if len(pages) == 1:
        (first,) = pages.values()
    print(f"MLflow UI: {first} ({note})", flush=True)
    for name, page in pages.items() if len(pages) > 1 else ():
        print(f"  {name}: {page}", flush=True)
    for name, other in elsewhere.items():
        print(f"  {name}: logged to {other}", flush=True)
    if browser and not webbrowser.open(first):
        print("no browser could be opened; open the address in one", flush=True)


@contextmanager
def server(
    uri: str, host: str, port: int
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run MLflow's server for as long as the block runs, then end it with all its children.

    Args:
        uri: MLflow's URI.
        host: the address to listen on.
        port: the port.

    Yields:
        The process of the server, which answers, and its URL.

    Raises:
        RuntimeError: it does not start, or ends on its own; the message has the end of
            its log.
    """
    name = ANYWHERE.get(host, host)
    url = f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            _command(uri, host, port),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=ENVIRONMENT | os.environ | {"MLFLOW_BACKEND_STORE_URI": uri},
            start_new_session=True,
        )
        try:
            _wait(process, url)
            yield process, url
            if process.poll() is not None:
                raise RuntimeError("the MLflow server ended by itself")
        except RuntimeError as error:
            log.seek(0)
            said = redacted(log.read().decode(errors="replace"))
            raise RuntimeError(f"{error}:\n{said[-2000:].strip()}") from None
        finally:
            _end_group(process)


def _command(uri: str, host: str, port: int) -> list[str]:
    """Return the command that starts MLflow's server."""
    # This is where artifacts lie of experiments that were made through a server.
    destination = artifacts(uri)
    command = [sys.executable, "-m", "mlflow", "server", "--host", host]
    command += ["--port", str(port), "--workers", "1"]
    command += ["--uvicorn-opts", "--log-level warning"]
    return command + (["--artifacts-destination", destination] if destination else [])


def _free_port(host: str, wanted: int) -> int:
    """Return a port if it is free, otherwise another one that is."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, wanted))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ValueError(
                    f"cannot listen on {host}:{wanted}: {error.strerror}"
                ) from error
            probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the server with its children, which may outlive the process that was started."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(PATIENCE_AT_THE_END)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    """Wait until the server answers, without using a proxy that the environment names."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError("the MLflow server did not start")
        # An HTTP error and a connection that is refused are OSErrors.
        with suppress(OSError):
            opener.open(f"{url}/health", timeout=5).close()
            return
        time.sleep(0.2)
    raise RuntimeError(f"the MLflow server did not answer in {PATIENCE:g} s")
