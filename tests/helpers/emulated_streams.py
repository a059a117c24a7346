"""Streams of the emulated devices: to which device each belongs, and what records on which.

Everything is computed at once, whatever the stream. But a stream belongs to the device
on which it was made, a recording holds what is launched on its stream, and a product of
matrices takes memory for each stream (`EmulatedCuda`).
"""

import itertools
from typing import Any

import torch

from helpers.emulated_device import EmulatedCuda, RecordedGraph

NUMBERS = itertools.count(1)


class Stream:
    """In place of `torch.cuda.Stream`: a new stream of a device, by default the current one.

    torch has 32 for each device, and gives the first again after the last. This has more.
    """

    def __init__(
        self, device: Any = None, priority: int = 0, number: int | None = None
    ) -> None:
        index = EmulatedCuda.current().index_of(device)
        self.device = torch.device("cuda", index)
        self.cuda_stream = next(NUMBERS) if number is None else number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self._name == other._name

    def __hash__(self) -> int:
        return hash(self._name)

    @property
    def _name(self) -> tuple[int, int]:
        return self.device.index, self.cuda_stream

    def wait_stream(self, stream: Any) -> None:
        """Do nothing: what the other stream was asked for is done."""

    def wait_event(self, event: Any) -> None:
        """Do nothing: it has happened."""

    def record_event(self, event: Any = None) -> Any:
        """Return the event, which has happened."""
        return event or Event()

    def query(self) -> bool:
        """Return that all is done."""
        return True

    def synchronize(self) -> None:
        """Wait for the device."""
        EmulatedCuda.current().wait("a stream's synchronize")


class Event:
    """In place of `torch.cuda.Event`: an event, which has always happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        """Do nothing: everything before it is done."""

    def wait(self, stream: Any = None) -> None:
        """Do nothing: it has happened."""

    def query(self) -> bool:
        """Return that it has happened."""
        return True

    def elapsed_time(self, end: Any) -> float:
        """Return no time."""
        return 0.0

    def synchronize(self) -> None:
        """Wait for the device."""
        EmulatedCuda.current().wait("an event's synchronize")


def current_stream(of: Any = None) -> Stream:
    """Return the current stream of a device."""
    index, number = EmulatedCuda.current().stream(EmulatedCuda.current().index_of(of))
    return Stream(index, number=number)


def default_stream(of: Any = None) -> Stream:
    """Return the stream of a device that is current as long as none is asked for."""
    return Stream(of, number=0)


class on_device:
    """In place of `torch.cuda.device`, the context manager that makes a device current."""

    def __init__(self, device: Any) -> None:
        emulated = EmulatedCuda.current()
        is_none = device is None or device == -1
        self._index = emulated.index if is_none else emulated.index_of(device)
        self._before = self._index

    def __enter__(self) -> None:
        emulated = EmulatedCuda.current()
        self._before, emulated.index = emulated.index, self._index

    def __exit__(self, *_: object) -> None:
        EmulatedCuda.current().index = self._before


class on_stream:
    """In place of `torch.cuda.stream`: makes a stream current, and its device too."""

    def __init__(self, stream: Stream | None) -> None:
        self._stream = current_stream() if stream is None else stream
        self._device = on_device(self._stream.device)
        self._before = 0

    def __enter__(self) -> None:
        self._device.__enter__()
        streams, (index, number) = EmulatedCuda.current().streams, self._stream._name
        self._before, streams[index] = streams[index], number

    def __exit__(self, *_: object) -> None:
        EmulatedCuda.current().streams[self._stream.device.index] = self._before
        self._device.__exit__()


class record_graph:
    """In place of `torch.cuda.graph`, the context manager that records.

    Without a stream it takes one that is made once, on the device of the first recording.
    It then records what is launched there, and nothing of any other device. Here, "once"
    is once in a block of `emulated_cuda`, which stands for a process.
    """

    def __init__(
        self,
        cuda_graph: RecordedGraph,
        pool: tuple[int, int] | None = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        self._graph = cuda_graph
        self._pool = pool
        device = cuda_graph.device
        if stream is None and device.default_capture_stream is None:
            device.default_capture_stream = Stream()
        self._on_stream = on_stream(stream or device.default_capture_stream)

    def __enter__(self) -> None:
        # torch waits here too. It does so once a graph, so that it is never forbidden.
        with self._graph.device.no_sync(False):
            self._graph.device.wait("the beginning of a recording")
        self._on_stream.__enter__()
        self._graph.capture_begin(self._pool)

    def __exit__(self, *_: object) -> None:
        try:
            self._graph.capture_end()
        finally:
            self._on_stream.__exit__()
