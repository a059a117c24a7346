"""MLflow servers that refuse, stall or lie: the results are complete, and one message says so."""

import http.server
import io
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from raysafl import Run, Runner, Sweep
from raysafl.storage.verify import verify

# What a server answers to every request; None if it never answers.
ANSWERS = {"empty": b"{}", "page": b"<html></html>", "list": b"[1]", "stalls": None}


@pytest.fixture
def uri(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server that gives the answer `request.param`, or refuses."""
    if request.param == "refuses":
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            yield f"http://127.0.0.1:{unused.getsockname()[1]}"
        return
    body = ANSWERS[request.param]
    over = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            if body is None:
                over.wait()
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("uri", ["refuses", *ANSWERS], indirect=True)
def test_a_tracker_that_does_not_do_its_work_costs_no_row_and_is_told_once(
    uri: str, tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    text = io.StringIO()
    outcome = Runner(
        Sweep("s", [tiny]),
        tmp_path / "s",
        executor="here",
        tracking_uri=uri,
        console=Console(file=text, width=400),
    ).run()
    assert outcome.ok
    assert len(outcome.store.rounds()) == tiny.rounds * tiny.replicates
    assert verify(outcome.store) == []
    said = text.getvalue()
    assert said.count(f"MLflow at {uri} failed") == 1 and "raysafl sync" in said
