"""Real servers on loopback for the tests: an S3 store (moto), and a line to it that can be cut."""

import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def free_port() -> int:
    """A port on which nothing listens, from 21,000 to 31,999.

    The kernel gives those of 32,768 and up, and Ray's workers those of 10,002 to 19,999, to
    whoever asks next: one of them could be taken again before a server listens there.
    """
    while True:
        port = random.SystemRandom().randrange(21_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextmanager
def process(
    *command: str, url: str, env: dict[str, str] | None = None
) -> Iterator[int]:
    """A server in a process group of its own, answering at `url`; killed with the block."""
    server = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, **(env or {})},
    )
    try:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and server.poll() is None:
            with suppress(OSError):
                urllib.request.urlopen(url, timeout=5).close()
                break
            time.sleep(0.1)
        assert server.poll() is None, "the server did not start"
        yield server.pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, 9)
        server.wait()


@contextmanager
def s3() -> Iterator[str]:
    """An S3 store with an empty bucket named `bucket`; its URL."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with process(*command, url=f"{url}/moto-api/"):
        urllib.request.urlopen(
            urllib.request.Request(f"{url}/bucket", method="PUT")
        ).close()
        yield url


class Line:
    """A TCP line to a server. It stands still after `limit` bytes towards it; `None`: never."""

    def __init__(self, port: int, limit: int | None = None) -> None:
        self.target, self.limit, self.sent = port, limit, 0
        self.still, self._open = threading.Event(), list[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Cut it. A reset, as moto takes a head that ends in the middle for a whole request."""
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        self._accepting.join()
        self._listener.close()
        for end in self._open:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
                self._open += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # it may have been cut before this thread began
            forth = source.getsockname()[1] == self.port
            while content := source.recv(4096):
                if (
                    forth
                    and self.limit is not None
                    and self.sent + len(content) > self.limit
                ):
                    sink.sendall(content[: max(0, self.limit - self.sent)])
                    self.sent = self.limit
                    self.still.set()
                    return  # keeps both ends open: whoever waits, waits
                self.sent += len(content) if forth else 0
                sink.sendall(content)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
