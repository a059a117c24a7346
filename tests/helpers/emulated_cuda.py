"""Put an emulated CUDA device in place of torch's, for the time of a test.

    with emulated_cuda() as device:
        x = torch.ones(3, device="cuda")
        assert x.is_cuda and device.counts.launches == 1

See `helpers.emulated_device` for what is emulated and what is not.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.emulated_device import (
    GIB,
    Counts,
    EmulatedCuda,
    ForbiddenSync,
    RecordedGraph,
    record_graph,
)
from raysafl.training.device import allow_tf32

__all__ = ["GIB", "Counts", "EmulatedCuda", "ForbiddenSync", "emulated_cuda"]

NAME = "Emulated GPU"
# The class of torch's compiled code that torch.Tensor extends.
BASE = torch._C.TensorBase


@contextmanager
def emulated_cuda(
    total_memory: int = 80 * GIB,
    largest_allocation: int | None = None,
    count: int = 1,
) -> Iterator[EmulatedCuda]:
    """Run a block on a machine with an emulated GPU; see `EmulatedCuda` for the arguments.

    It is for this thread. torch's settings are afterwards what they were before.
    """
    device = EmulatedCuda(total_memory, largest_allocation, count)
    with pytest.MonkeyPatch.context() as patch, _settings_restored():
        patch.setattr(EmulatedCuda, "_current", device)
        for name, method in TENSOR_METHODS.items():
            patch.setattr(torch.Tensor, name, method)
        _replace_factories(patch)
        _replace_cuda_functions(patch, device)
        with device:
            yield device


@contextmanager
def _settings_restored() -> Iterator[None]:
    """Restore what `raysafl.training.device` sets in torch and in the environment."""
    cudnn = torch.backends.cudnn
    cudnn_before = (cudnn.deterministic, cudnn.benchmark)
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory
    with pytest.MonkeyPatch.context() as patch:
        # So it is removed again if it is set inside.
        patch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        try:
            yield
        finally:
            allow_tf32(False)
            cudnn.deterministic, cudnn.benchmark = cudnn_before
            torch.use_deterministic_algorithms(is_deterministic, warn_only=warns_only)
            torch.utils.deterministic.fill_uninitialized_memory = fills


def _is_cuda(tensor: Tensor) -> bool:
    return tensor in EmulatedCuda.current().memory


def _device_of(tensor: Tensor) -> torch.device:
    if _is_cuda(tensor):
        return torch.device("cuda", 0)
    device: torch.device = BASE.device.__get__(tensor)
    return device


def _to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """In place of `Tensor.to`, whose compiled code believes that all is on the CPU."""
    if args and isinstance(args[0], Tensor):
        args = (args[0].device, args[0].dtype, *args[1:])
    copy = kwargs.pop("copy", False) or (len(args) > 3 and args[3])
    target, dtype, non_blocking, memory_format = torch._C._nn._parse_to(
        *args[:3], **kwargs
    )
    options: dict[str, Any] = {"non_blocking": non_blocking}
    if memory_format is not None:
        options["memory_format"] = memory_format
    if target is not None and (target.type == "cuda") != _is_cuda(tensor):
        name = "cuda:0" if target.type == "cuda" else target
        return BASE.to(tensor, name, dtype or tensor.dtype, copy=True, **options)
    if dtype is None and memory_format is None and not copy:
        return tensor
    return BASE.to(tensor, dtype or tensor.dtype, copy=copy, **options)


def _cuda(tensor: Tensor, device: Any = None, non_blocking: bool = False) -> Tensor:
    return _to(tensor, "cuda", non_blocking=non_blocking)


def _cpu(tensor: Tensor, memory_format: Any = None) -> Tensor:
    return _to(tensor, "cpu", memory_format=memory_format)


def _pin_memory(tensor: Tensor, device: Any = None) -> Tensor:
    if _is_cuda(tensor):
        raise RuntimeError("only memory of the CPU can be pinned, not that of cuda:0")
    pinned = EmulatedCuda.current().pinned
    if tensor in pinned:
        return tensor
    copied = tensor.clone()
    pinned.add(copied)
    return copied


def _numpy(tensor: Tensor, *, force: bool = False) -> Any:
    if _is_cuda(tensor) and not force:
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to "
            "copy the tensor to host memory first."
        )
    return BASE.numpy(_cpu(tensor), force=force)


def _new_tensor(tensor: Tensor, data: Any, **kwargs: Any) -> Tensor:
    target = kwargs.pop("device", None) or tensor.device
    kwargs.setdefault("dtype", tensor.dtype)
    return torch.tensor(data, **kwargs).to(target)


# What takes the place of the methods and properties of torch.Tensor.
TENSOR_METHODS: dict[str, Any] = {
    "to": _to,
    "cuda": _cuda,
    "cpu": _cpu,
    "pin_memory": _pin_memory,
    "is_pinned": lambda tensor, device=None: tensor in EmulatedCuda.current().pinned,
    "numpy": _numpy,
    "tolist": lambda tensor: BASE.tolist(_cpu(tensor)),
    "new_tensor": _new_tensor,
    "get_device": lambda tensor: 0 if _is_cuda(tensor) else -1,
    "record_stream": lambda tensor, stream: None,
    "device": property(_device_of),
    "is_cuda": property(_is_cuda),
    "is_cpu": property(lambda tensor: not _is_cuda(tensor)),
}


def _replace_factories(patch: pytest.MonkeyPatch) -> None:
    """Let the functions that read data of Python upload them, and `_like` obey.

    The other factories reach the device as operators.
    """

    def uploading(factory: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def replaced(*args: Any, **kwargs: Any) -> Tensor:
            target = kwargs.pop("device", None)
            tensor = factory(*args, **kwargs)
            return tensor if target is None else tensor.to(target)

        return replaced

    def like(factory: Callable[..., Tensor], plain: Any) -> Callable[..., Tensor]:
        def replaced(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            target = kwargs.get("device")
            if target is not None and torch.device(target).type == "cpu":
                kwargs.setdefault("dtype", tensor.dtype)
                return plain(tensor.shape, *args, **kwargs)
            return factory(tensor, *args, **kwargs)

        return replaced

    for name in ("tensor", "as_tensor", "asarray", "scalar_tensor"):
        patch.setattr(torch, name, uploading(getattr(torch, name)))
    for name in ("zeros", "ones", "empty", "full", "rand", "randn"):
        replaced = like(getattr(torch, f"{name}_like"), getattr(torch, name))
        patch.setattr(torch, f"{name}_like", replaced)


class _Stream:
    """A stream, in which everything is computed at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = 0
        self.device = torch.device("cuda", 0)

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        EmulatedCuda.current().wait("a stream's synchronize")


class _Event:
    """An event, which has always happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        return 0.0

    def synchronize(self) -> None:
        EmulatedCuda.current().wait("an event's synchronize")


@contextmanager
def _within(_: Any) -> Iterator[None]:
    """In place of `torch.cuda.stream` and `torch.cuda.device`."""
    yield


def _replace_cuda_functions(patch: pytest.MonkeyPatch, device: EmulatedCuda) -> None:
    """Replace the functions of `torch.cuda` that the project and torch call."""
    memory = device.memory
    properties = SimpleNamespace(
        name=NAME,
        total_memory=device.total_memory,
        major=9,
        minor=0,
        multi_processor_count=132,
    )

    def nothing(*_: Any, **__: Any) -> None:
        pass

    def manual_seed(seed: int) -> None:
        device.rng_state = torch.Generator().manual_seed(seed).get_state()

    def set_rng_state(state: Tensor, of: Any = "cuda") -> None:
        device.rng_state = state.clone()

    def reset_peak(_: Any = None) -> None:
        memory.peak = memory.bytes

    def set_fraction(fraction: float, of: Any = None) -> None:
        device.fraction = fraction

    def is_acceptable(_: Tensor) -> bool:
        """cuDNN is not at hand."""
        return False

    functions: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: device.count,
        "current_device": lambda: 0,
        "set_device": nothing,
        "get_device_name": lambda of=None: NAME,
        "get_device_properties": lambda of=None: properties,
        "get_device_capability": lambda of=None: (9, 0),
        "is_bf16_supported": lambda including_emulation=True: True,
        "mem_get_info": lambda of=None: (
            device.total_memory - memory.bytes,
            device.total_memory,
        ),
        "memory_allocated": lambda of=None: memory.bytes,
        "memory_reserved": lambda of=None: memory.bytes,
        "max_memory_allocated": lambda of=None: memory.peak,
        "max_memory_reserved": lambda of=None: memory.peak,
        "reset_peak_memory_stats": reset_peak,
        "set_per_process_memory_fraction": set_fraction,
        "empty_cache": nothing,
        "ipc_collect": nothing,
        "synchronize": device.synchronize,
        "Stream": _Stream,
        "Event": _Event,
        "stream": _within,
        "device": _within,
        "current_stream": lambda of=None: _Stream(),
        "default_stream": lambda of=None: _Stream(),
        "get_rng_state": lambda of="cuda": device.rng_state.clone(),
        "set_rng_state": set_rng_state,
        "manual_seed": manual_seed,
        "manual_seed_all": manual_seed,
        "CUDAGraph": RecordedGraph,
        "graph": record_graph,
        "graph_pool_handle": device.new_pool,
        "is_current_stream_capturing": lambda: device.recording is not None,
        # torch's compiled code calls it before it makes memory on the device.
        "_lazy_init": nothing,
    }
    for name, function in functions.items():
        patch.setattr(torch.cuda, name, function)
    patch.setattr(torch.backends.cudnn, "is_acceptable", is_acceptable)

    # Autocasting goes by the device that torch's compiled code sees.
    autocast = torch.amp.autocast_mode.autocast
    begin = autocast.__init__

    def begin_autocast(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        begin(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    patch.setattr(autocast, "__init__", begin_autocast)
