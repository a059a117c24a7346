"""CUDA devices that are emulated on the CPU, so that tests can run the CUDA path without a GPU.

Inside `emulated_cuda()`, memory that was made with device="cuda", or computed from such
memory, is marked. Its tensors say that they are on cuda:0 (or another device), while
their numbers are computed on the CPU. What a GPU refuses is refused: operators with
operands on two devices, `.numpy()` of a tensor on a device, and gradients of recurrent
layers in evaluation mode. What costs time on a GPU is counted, see `Counts`. CUDA graphs
are recorded and replayed, see `RecordedGraph`. Streams belong to devices, and a first
product of matrices on one takes memory for good (`helpers.emulated_streams`).

How it works. torch's compiled code sees tensors on the CPU. A `TorchDispatchMode` sees
every operator below autograd and functorch, checks where its operands lie and marks its
results. A few Python methods, as `Tensor.to`, and the functions of `torch.cuda` are
replaced meanwhile (`helpers.emulated_cuda`).

What it does not show:
- Order between streams: everything is computed at once, in the order of the program. So
  a `wait_stream` that is missing is not noticed.
- Memory that is cached or in pieces: what is freed can be had again at once, by all.
- Pinned memory that is overwritten while it is still being uploaded.
- The kernels of a GPU themselves: their rounding, and which operators do not exist.
  Models are computed by the CPU's operators, an LSTM for example step by step.
"""

import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch

# torch imports it when a mode is first used. It must be imported before parts of torch
# are replaced, since it compares torch's functions.
import torch._dynamo
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
GIB = 2**30

# Operators that wait for the device because the size of their result depends on data.
SIZED_BY_DATA = {
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.bincount,
}
# Operators that wait for the device because they return a number.
COMPARED = {aten.equal, aten.allclose}
RETURN_NUMBERS = {aten._local_scalar_dense, *COMPARED}
# Operators whose new memory is not filled.
UNFILLED = {
    aten.empty,
    aten.empty_like,
    aten.empty_strided,
    aten.new_empty,
    aten.new_empty_strided,
    aten.empty_permuted,
}
# Operators that cuBLAS computes, which keeps a workspace for each stream. (torch 2.15 frees
# it again. Earlier versions do not.)
PRODUCTS = {
    getattr(aten, name)
    for name in ("mm", "bmm", "mv", "dot", "addmm", "addmv", "baddbmm", "addbmm")
}
WORKSPACE = 32 * 2**20
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}


class ForbiddenSync(AssertionError):
    """The host waited for the device in a block of `EmulatedCuda.no_sync`.

    It is no RuntimeError, so that code which handles torch's errors does not hide it.
    """


@dataclass
class Counts:
    """What happened on the device.

    Attributes:
        launches: operators that computed on the device, each as one, although a GPU
            may need several kernels for it (a convolution's backward pass, for
            example). Views and new memory that is not filled count nothing. A replay of
            a graph counts as one launch.
        nodes: operators inside the replays of graphs, counted in the same way.
        replays: replays of graphs.
        syncs: how often the host waited for the device.
        uploads: copies from the host to the device.
        upload_bytes: their bytes.
        downloads: copies from the device to the host, the numbers of `.item()` included.
        download_bytes: their bytes.
    """

    launches: int = 0
    nodes: int = 0
    replays: int = 0
    syncs: int = 0
    uploads: int = 0
    upload_bytes: int = 0
    downloads: int = 0
    download_bytes: int = 0

    def copy(self) -> "Counts":
        """Return these counts as they are now."""
        return Counts(**vars(self))

    def since(self, earlier: "Counts") -> "Counts":
        """Return what was counted after `earlier`."""
        return Counts(
            **{
                part.name: getattr(self, part.name) - getattr(earlier, part.name)
                for part in fields(self)
            }
        )


def plain(tensor: Tensor) -> Tensor:
    """Return the tensor inside functorch's wrappers of `vmap` and `grad`."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def tensors_in(part: Any) -> list[Tensor]:
    """Return the tensors in an operator's arguments, or in its results.

    torch's own `tree_leaves` returns the same. It takes most of the time of a test.
    """
    if isinstance(part, Tensor):
        return [part]
    if isinstance(part, dict):
        part = part.values()
    elif not isinstance(part, tuple | list):
        return []
    return [tensor for inner in part for tensor in tensors_in(inner)]


def each_mapped(change: Callable[[Any], Any], part: Any) -> Any:
    """Return an operator's arguments with every single value changed."""
    if isinstance(part, dict):
        return {name: each_mapped(change, value) for name, value in part.items()}
    if isinstance(part, tuple | list):
        return type(part)(each_mapped(change, value) for value in part)
    return change(part)


def storage_of(tensor: Tensor) -> torch.UntypedStorage | None:
    """Return the memory of a tensor; None if it has none (a sparse tensor, for example)."""
    try:
        return plain(tensor).untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


class Memory:
    """A set of storages, each on one of the devices, which forgets those that were freed.

    torch keeps the Python object of a storage for as long as the memory lives, so that
    its `id` names the memory.

    Attributes:
        bytes_on: the bytes on each device.
        peak_on: the most bytes that there were at a time on each device.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        self.bytes_on: Counter[int] = Counter()
        self.peak_on: Counter[int] = Counter()

    def __contains__(self, tensor: Tensor) -> bool:
        return self.index_of(tensor) is not None

    def index_of(self, tensor: Tensor) -> int | None:
        """Return the device on which a tensor lies; None if it is not in the set."""
        storage = storage_of(tensor)
        found = None if storage is None else self._found.get(id(storage))
        return None if found is None else found[1]

    @property
    def bytes(self) -> int:
        """The bytes on all devices."""
        return self.bytes_on.total()

    def add(self, tensor: Tensor, index: int = 0) -> bool:
        """Add the memory of a tensor; return whether it was not in the set before."""
        storage = storage_of(tensor)
        assert storage is not None
        key = id(storage)
        if key in self._found:
            return False
        size = storage.nbytes()

        def forget(_: Any) -> None:
            del self._found[key]
            self.bytes_on[index] -= size

        self._found[key] = (weakref.ref(storage, forget), index)
        self.grow(index, size)
        return True

    def grow(self, index: int, size: int) -> None:
        """Count more bytes on a device."""
        self.bytes_on[index] += size
        self.peak_on[index] = max(self.peak_on[index], self.bytes_on[index])


class Operand:
    """A tensor of a recorded operator: which memory it lies in, and where.

    Args:
        tensor: the tensor.
        is_kept: whether the graph keeps the memory alive, as it does with its own. The
            memory of others may be freed, which shows at the next replay.
    """

    def __init__(self, tensor: Tensor, is_kept: bool) -> None:
        self._storage = weakref.ref(tensor.untyped_storage())
        self._kept = tensor.untyped_storage() if is_kept else None
        self._dtype = tensor.dtype
        self._place = (tensor.storage_offset(), tensor.size(), tensor.stride())

    def tensor(self) -> Tensor:
        """Return a tensor on the memory.

        Raises:
            RuntimeError: the memory was freed. A GPU would read what lies there now.
        """
        storage = self._storage()
        if storage is None:
            raise RuntimeError("a recorded graph uses memory that was freed since")
        return torch.empty(0, dtype=self._dtype).set_(storage, *self._place)


@dataclass
class Node:
    """A recorded operator, with an `Operand` in place of each tensor."""

    operator: Any
    args: Any
    kwargs: Any
    results: list[Operand]

    def replay(self) -> None:
        """Run the operator again, and put its results where they were recorded."""
        args = each_mapped(_tensor_of, self.args)
        kwargs = each_mapped(_tensor_of, self.kwargs)
        out = self.operator(*args, **kwargs)
        for operand, result in zip(self.results, tensors_in(out), strict=True):
            recorded = operand.tensor()
            if recorded.data_ptr() != result.data_ptr():
                recorded.copy_(result)


def _tensor_of(part: Any) -> Any:
    return part.tensor() if isinstance(part, Operand) else part


class RecordedGraph:
    """In place of `torch.cuda.CUDAGraph`: operators with the memory that they use.

    While it is recorded, operators run, since their results' shapes are needed. But a
    GPU computes nothing meanwhile: so afterwards the memory that was there before holds
    again what it held, and the graph's own memory is filled with NaN (integers with -1).
    Waiting and copies between host and device are refused meanwhile, and end the recording,
    which then fails as a whole; CUDA would record copies of pinned memory, which the
    project does not use.

    What is recorded is what is launched on the stream that was current when the recording
    began. What is launched elsewhere meanwhile, on another device for example, is computed
    at once and is not in the graph.

    A replay runs the operators again on the same memory. What was a number of Python, or
    a tensor of the CPU without dimensions, is what it was at the recording. Memory that
    the graph did not allocate is not kept alive by it: a replay after it was freed, for
    which a GPU would read what lies there now, is an error here.

    Graphs of one pool share memory: a replay may write to the memory of the graphs that
    were recorded later in its pool, and fills theirs with NaN.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        self.device = EmulatedCuda.current()
        self.nodes: list[Node] = []
        self._own: dict[int, Tensor] = {}
        self._before: dict[int, tuple[torch.UntypedStorage, Tensor]] = {}
        self._pool: tuple[int, int] | None = None
        self._is_spoiled = False
        self.stream = (0, 0)
        # Whether an operation was refused, which ends a recording.
        self.has_failed = False

    def capture_begin(
        self,
        pool: tuple[int, int] | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        """Begin to record."""
        device = self.device
        assert device.recording is None, "another graph is being recorded"
        self._pool = pool or device.new_pool()
        self.stream = device.stream()
        device.recording = self
        device.recordings += 1

    def capture_end(self) -> None:
        """End the recording, of which nothing was computed.

        Raises:
            RuntimeError: an operation was refused meanwhile.
        """
        device = self.device
        device.recording = None
        with device.unseen():
            for storage, content in self._before.values():
                torch.empty(0, dtype=torch.uint8).set_(storage).copy_(content)
        self._before.clear()
        if self.has_failed:
            self.reset()
            raise RuntimeError(
                "CUDA error: operation failed due to a previous error during capture"
            )
        if not self.nodes:
            warnings.warn(
                "The CUDA Graph is empty. This usually means that the graph was attempted "
                "to be captured on wrong device or stream.",
                stacklevel=2,
            )
        self.spoil()
        device.pools[self.pool()].append(weakref.ref(self))

    def pool(self) -> tuple[int, int]:
        """Return the name of the memory that the graph may share with later ones."""
        assert self._pool is not None
        return self._pool

    def reset(self) -> None:
        """Forget the operators and free the memory."""
        self.nodes.clear()
        self._own.clear()

    def replay(self) -> None:
        """Run the recorded operators again."""
        device = self.device
        if device.recording is not None:
            raise RuntimeError("a graph cannot be replayed while one is recorded")
        graphs = [ref() for ref in device.pools[self.pool()]]
        for graph in graphs[graphs.index(self) + 1 :]:
            if graph is not None:
                graph.spoil()
        with device.unseen():
            for node in self.nodes:
                with device.generator(node.operator, self.stream[0]):
                    node.replay()
        self._is_spoiled = False
        device.counts.launches += 1
        device.counts.replays += 1
        device.counts.nodes += len(self.nodes)
        device.operators["replay"] += 1

    def spoil(self) -> None:
        """Fill the graph's own memory with values that show."""
        if self._is_spoiled:
            return
        self._is_spoiled = True
        with self.device.unseen():
            for tensor in self._own.values():
                _spoil(tensor)

    def save(self, written: list[Tensor]) -> None:
        """Keep what lies in memory of others that an operator will write to."""
        for tensor in written:
            storage = tensor.untyped_storage()
            if id(storage) not in self._own and id(storage) not in self._before:
                as_bytes = torch.empty(0, dtype=torch.uint8).set_(storage)
                self._before[id(storage)] = (storage, as_bytes.clone())

    def own(self, tensor: Tensor) -> None:
        """Keep memory that was allocated while the graph was recorded."""
        alias = torch.empty(0, dtype=tensor.dtype)
        alias.set_(
            tensor.untyped_storage(),
            tensor.storage_offset(),
            tensor.size(),
            tensor.stride(),
        )
        self._own[id(tensor.untyped_storage())] = alias

    def record(self, operator: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Add an operator that has run."""

        def operand(part: Any) -> Any:
            if not isinstance(part, Tensor):
                return part
            if part not in self.device.memory:
                return part.clone()
            return Operand(part, id(part.untyped_storage()) in self._own)

        args = each_mapped(operand, args)
        kwargs = each_mapped(operand, kwargs)
        results = [operand(part) for part in tensors_in(out)]
        self.nodes.append(Node(operator, args, kwargs, results))


def _spoil(tensor: Tensor) -> None:
    """Fill a tensor with NaN, or -1 if it holds integers, or True."""
    value: float = -1
    if tensor.is_floating_point() or tensor.is_complex():
        value = torch.nan
    tensor.fill_(True if tensor.dtype == torch.bool else value)


class EmulatedCuda(TorchDispatchMode):
    """The emulated devices; `helpers.emulated_cuda` puts them in place of torch's.

    Args:
        total_memory: bytes that may be allocated at the same time on each device.
        largest_allocation: bytes that one operator may allocate for one result.
        count: the number of devices.
        lack_ends_recordings: whether a recording in which memory runs out fails as one in
            which an operation is refused (pytorch issue 159594).

    Attributes:
        index: the current device.
        streams: the number of the current stream of each device; 0 is its default one.
        counts: what happened so far, on all devices.
        operators: how often each operator was launched.
        memory: the memory that lies on the devices.
        pinned: memory of the host that is pinned.
        recording: the graph that is being recorded.
        recordings: how many were begun.
    """

    _current: "EmulatedCuda | None" = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Spare torch's wrapper around each operator: nothing compiles here."""
        return False

    def __init__(
        self,
        total_memory: int = 80 * GIB,
        largest_allocation: int | None = None,
        count: int = 1,
        lack_ends_recordings: bool = False,
    ) -> None:
        super().__init__()
        self.total_memory = total_memory
        self.largest_allocation = largest_allocation
        self.fraction = 1.0
        self.count = count
        self.lack_ends_recordings = lack_ends_recordings
        self.index = 0
        self.streams: Counter[int] = Counter()
        # Where recordings are made that ask for no stream.
        self.default_capture_stream: Any = None
        self.counts = Counts()
        self.operators: Counter[str] = Counter()
        self.memory = Memory()
        self.pinned = Memory()
        self.recording: RecordedGraph | None = None
        self.recordings = 0
        self.pools: dict[tuple[int, int], list[weakref.ref[RecordedGraph]]] = {}
        seeded = torch.Generator().manual_seed(0).get_state()
        self.rng_states = [seeded.clone() for _ in range(count)]
        # Downloads that the host has not waited for: where they go, and what comes.
        self._arriving: list[tuple[Tensor, Tensor]] = []
        # The streams on which a product of matrices was computed.
        self._have_workspaces = set[tuple[int, int]]()
        self._is_unseen = False
        self._forbids_sync = False

    @classmethod
    def current(cls) -> "EmulatedCuda":
        """Return the device of the block."""
        assert cls._current is not None
        return cls._current

    # For tests.

    @contextmanager
    def counting(self) -> Iterator[Counts]:
        """Yield counts that hold, after the block, what happened in it."""
        before = self.counts.copy()
        found = Counts()
        yield found
        vars(found).update(vars(self.counts.since(before)))

    @contextmanager
    def no_sync(self, forbidden: bool = True) -> Iterator[None]:
        """Raise `ForbiddenSync` if the host waits for the device in the block."""
        before = self._forbids_sync
        self._forbids_sync = forbidden
        try:
            yield
        finally:
            self._forbids_sync = before

    # For the replaced parts of torch.

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Let operators pass uncounted and unchecked."""
        before = self._is_unseen
        self._is_unseen = True
        try:
            with torch.no_grad():
                yield
        finally:
            self._is_unseen = before

    @contextmanager
    def generator(self, operator: Any, index: int) -> Iterator[None]:
        """Let an operator that draws random numbers draw from a device's generator."""
        if torch.Tag.nondeterministic_seeded not in operator.tags:
            yield
            return
        host = torch.random.get_rng_state()
        torch.random.set_rng_state(self.rng_states[index])
        try:
            yield
        finally:
            self.rng_states[index] = torch.random.get_rng_state()
            torch.random.set_rng_state(host)

    def index_of(self, name: Any = None) -> int:
        """Return the number of a device by any of its names; None is the current one.

        Raises:
            RuntimeError: there is no such device.
        """
        device = torch.device("cuda" if name is None else name)
        index = self.index if device.index is None else device.index
        if device.type != "cuda" or index >= self.count:
            raise RuntimeError(f"CUDA error: invalid device ordinal ({device})")
        return index

    def stream(self, index: int | None = None) -> tuple[int, int]:
        """Return the current stream of a device, as the device and the stream's number."""
        index = self.index if index is None else index
        return index, self.streams[index]

    def recording_on(self, index: int) -> RecordedGraph | None:
        """Return the graph that records what is launched on a device."""
        graph = self.recording
        return graph if graph and graph.stream == self.stream(index) else None

    def refuse_if_recording(self, what: str) -> None:
        """Raise RuntimeError, and end the recording, if one is under way."""
        if self.recording is not None:
            self.recording.has_failed = True
            raise RuntimeError(
                f"CUDA error: operation not permitted when stream is capturing ({what})"
            )

    def new_pool(self) -> tuple[int, int]:
        """Return the name of a new pool of graphs' memory."""
        name = (0, len(self.pools) + 1)
        self.pools[name] = []
        return name

    def synchronize(self, *_: object) -> None:
        """Wait for the device."""
        self.wait("torch.cuda.synchronize")

    def wait(self, why: str) -> None:
        """Note that the host waits for the device; downloads have arrived then.

        Raises:
            RuntimeError: a graph is being recorded.
            ForbiddenSync: this is a block of `no_sync`.
        """
        self.refuse_if_recording(why)
        if self._forbids_sync:
            raise ForbiddenSync(f"the host waits for the device: {why}")
        self.counts.syncs += 1
        with self.unseen():
            for target, content in self._arriving:
                target.copy_(content)
        self._arriving.clear()

    def allocate(self, tensor: Tensor, index: int) -> None:
        """Mark the memory of a new tensor as a device's.

        Raises:
            torch.OutOfMemoryError: it is more than there may be.
        """
        if not self.memory.add(tensor, index):
            return
        size = tensor.untyped_storage().nbytes()
        limit = self.largest_allocation
        self._check_room(index, size, limit is not None and size > limit)

    def _check_room(self, index: int, size: int, is_too_large: bool = False) -> None:
        """Raise torch.OutOfMemoryError if a device is too full with what it has now."""
        room = self.total_memory * self.fraction
        if is_too_large or self.memory.bytes_on[index] > room:
            if self.recording is not None and self.lack_ends_recordings:
                self.recording.has_failed = True
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB."
            )

    def _take_workspace(self, index: int) -> None:
        """Take the memory that cuBLAS keeps for each stream, at its first product there."""
        if self.stream(index) not in self._have_workspaces:
            self.memory.grow(index, WORKSPACE)
            self._check_room(index, WORKSPACE)
            self._have_workspaces.add(self.stream(index))

    # The operators.

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operator as the device would."""
        kwargs = dict(kwargs or {})
        if self._is_unseen:
            return func(*args, **kwargs)
        if func is aten._to_copy.default and kwargs.get("device") is not None:
            return self._move(func, args[0], kwargs)
        if func is aten.copy_.default and self._is_move(*args[:2]):
            return self._move_into(func, *args, **kwargs)

        wanted = kwargs.get("device")
        if wanted is not None:
            kwargs["device"] = torch.device("cpu")
        if kwargs.pop("pin_memory", False):
            out = func(*args, **kwargs)
            self.pinned.add(out)
            return out
        operands = [*tensors_in(args), *tensors_in(kwargs)]
        found = [self.memory.index_of(part) for part in operands]
        index = next((i for i in found if i is not None), None)
        if wanted is not None and wanted.type == "cuda":
            index = self.index_of(wanted)
        if index is None:
            return func(*args, **kwargs)
        return self._compute(func, args, kwargs, operands, index)

    def _compute(
        self, func: Any, args: Any, kwargs: Any, operands: list[Tensor], index: int
    ) -> Any:
        """Run an operator on a device."""
        self._check_operands(func, args, operands)
        self._wait_if_needed(func, args, kwargs, operands)
        if func.overloadpacket in PRODUCTS:
            self._take_workspace(index)
        recording = self.recording_on(index)
        if recording is not None:
            recording.save(_written(func, args, kwargs))
        with self.generator(func, index):
            out = func(*args, **kwargs)

        known = {id(storage_of(part)) for part in operands}
        fresh = [part for part in tensors_in(out) if id(storage_of(part)) not in known]
        for part in fresh:
            self.allocate(part, index)
            if recording is not None:
                recording.own(part)
        if func.overloadpacket in UNFILLED:
            for part in fresh:
                _spoil(part)
        elif fresh or _computes(func) or func.overloadpacket in COMPARED:
            self.launch(func, args, kwargs, out, index)
        return out

    def launch(self, func: Any, args: Any, kwargs: Any, out: Any, index: int) -> None:
        """Count an operator on a device, or record it."""
        recording = self.recording_on(index)
        if recording is not None:
            recording.record(func, args, kwargs, out)
            return
        self.counts.launches += 1
        self.operators[str(func)] += 1

    def _check_operands(self, func: Any, args: Any, operands: list[Tensor]) -> None:
        """Refuse operands on two devices, as CUDA does.

        A tensor of the CPU without dimensions is read as a number by operators that go
        element by element. Indices may lie on the CPU, from where they are uploaded. Copies
        go from one device to another.
        """
        others = [part for part in operands if part not in self.memory]
        if func.overloadpacket in INDEXING and args[0] in self.memory:
            indices = [part for part in args[1] if part is not None]
            others = [part for part in others if all(part is not i for i in indices)]
            for index in indices:
                if index not in self.memory:
                    self._upload(index, non_blocking=False)
        if torch.Tag.pointwise in func.tags or func.overloadpacket in (
            aten.fill_,
            aten.index_put_,
            aten._index_put_impl_,
        ):
            others = [part for part in others if part.ndim > 0]
        there = [i for p in operands if (i := self.memory.index_of(p)) is not None]
        names = [f"cuda:{i}" for i in sorted(set(there))]
        if others and there:
            names.append("cpu")
        if len(names) > 1 and func is not aten.copy_.default:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two "
                f"devices, {' and '.join(names)}! ({func}: "
                f"{[(tuple(p.shape), str(p.device)) for p in operands]})"
            )

    def _wait_if_needed(
        self, func: Any, args: Any, kwargs: Any, operands: list[Tensor]
    ) -> None:
        """Wait for the device if an operator needs to know numbers that lie there."""
        packet = func.overloadpacket
        if packet in RETURN_NUMBERS:
            self._download_count(1 if packet in COMPARED else operands[0].nbytes)
            self.wait(str(func))
        elif packet in SIZED_BY_DATA or (
            packet is aten.repeat_interleave and kwargs.get("output_size") is None
        ):
            self.wait(str(func))
        elif packet in INDEXING:
            masks = [p for p in args[1] if p is not None and p.dtype is torch.bool]
            # With one number as the value, torch fills by the mask.
            is_fill = len(args) > 2 and args[2].numel() == 1
            if masks and not is_fill:
                self.wait(f"{func} by a mask")

    # Copies between host and device.

    def _is_move(self, target: Tensor, source: Tensor) -> bool:
        return (target in self.memory) != (source in self.memory)

    def _upload(self, source: Tensor, non_blocking: bool) -> None:
        """Count an upload."""
        self.refuse_if_recording("upload")
        self.counts.uploads += 1
        self.counts.upload_bytes += source.nbytes
        if not non_blocking:
            self.wait("an upload without non_blocking")
        elif source not in self.pinned:
            self.wait("an upload from memory that is not pinned")

    def _download_count(self, size: int) -> None:
        self.counts.downloads += 1
        self.counts.download_bytes += size

    def _download(self, target: Tensor, non_blocking: bool) -> None:
        """Count a download, and let it arrive when the host has waited for it."""
        self.refuse_if_recording("download")
        self._download_count(target.nbytes)
        if not non_blocking:
            self.wait("a download without non_blocking")
            return
        with self.unseen():
            self._arriving.append((target, target.clone()))
            _spoil(target)

    def _move(self, func: Any, source: Tensor, kwargs: Any) -> Tensor:
        """Copy a tensor to a device, or within one."""
        target = kwargs["device"]
        to_device = target.type == "cuda"
        from_device = source in self.memory
        kwargs["device"] = torch.device("cpu")
        non_blocking = kwargs.get("non_blocking", False)
        out: Tensor = func(source, **kwargs)
        if to_device and from_device:
            self.allocate(out, self.index_of(target))
            self.launch(func, (source,), kwargs, out, self.index_of(target))
        elif to_device:
            self._upload(source, non_blocking)
            self.allocate(out, self.index_of(target))
        elif from_device:
            if non_blocking:
                self.pinned.add(out)
            self._download(out, non_blocking)
        return out

    def _move_into(
        self, func: Any, target: Tensor, source: Tensor, non_blocking: bool = False
    ) -> Tensor:
        """Copy a tensor into one on another device."""
        if target in self.memory:
            self._upload(source, non_blocking)
            out: Tensor = func(target, source)
            return out
        func(target, source)
        self._download(target, non_blocking)
        return target


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Return the tensors that an operator writes to."""
    arguments = func._schema.arguments
    given = dict(zip([a.name for a in arguments], args, strict=False)) | kwargs
    written = [
        given[argument.name]
        for argument in arguments
        if argument.name in given
        and argument.alias_info is not None
        and argument.alias_info.is_write
    ]
    return tensors_in(written)


def _computes(func: Any) -> bool:
    """Return whether an operator writes to its operands (and not to their shapes)."""
    return (
        func._schema.is_mutable
        and torch.Tag.inplace_view not in func.tags
        and func.overloadpacket not in (aten.set_, aten.resize_)
    )
