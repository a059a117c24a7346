"""Put emulated CUDA devices in place of torch's, for the time of a test.

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
)
from helpers.emulated_streams import (
    Event,
    Stream,
    current_stream,
    default_stream,
    on_device,
    on_stream,
    record_graph,
)
from helpers.precision import precision_restored

__all__ = ["GIB", "Counts", "EmulatedCuda", "ForbiddenSync", "emulated_cuda"]

NAME = "Emulated GPU"
# The class of torch's compiled code that torch.Tensor extends.
BASE = torch._C.TensorBase


@contextmanager
def emulated_cuda(
    total_memory: int = 80 * GIB,
    largest_allocation: int | None = None,
    count: int = 1,
    lack_ends_recordings: bool = False,
) -> Iterator[EmulatedCuda]:
    """Run a block on a machine with emulated GPUs; see `EmulatedCuda` for the arguments.

    It is for this thread. torch's settings are afterwards what they were before.
    """
    device = EmulatedCuda(total_memory, largest_allocation, count, lack_ends_recordings)
    with pytest.MonkeyPatch.context() as patch, _settings_restored():
        patch.setattr(EmulatedCuda, "_current", device)
        for name, method in TENSOR_METHODS.items():
            patch.setattr(torch.Tensor, name, method)
        _replace_factories(patch)
        _replace_cuda_functions(patch, device)
        _replace_recurrent(patch)
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
    with pytest.MonkeyPatch.context() as patch, precision_restored():
        # So it is removed again if it is set inside.
        patch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        try:
            yield
        finally:
            cudnn.deterministic, cudnn.benchmark = cudnn_before
            torch.use_deterministic_algorithms(is_deterministic, warn_only=warns_only)
            torch.utils.deterministic.fill_uninitialized_memory = fills


def _is_cuda(tensor: Tensor) -> bool:
    return tensor in EmulatedCuda.current().memory


def _device_of(tensor: Tensor) -> torch.device:
    index = EmulatedCuda.current().memory.index_of(tensor)
    if index is not None:
        return torch.device("cuda", index)
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
    if target is not None and target.type == "cuda":
        target = torch.device("cuda", EmulatedCuda.current().index_of(target))
    if target is not None and target != _device_of(tensor):
        return BASE.to(tensor, target, dtype or tensor.dtype, copy=True, **options)
    if dtype is None and memory_format is None and not copy:
        return tensor
    return BASE.to(tensor, dtype or tensor.dtype, copy=copy, **options)


def _cuda(tensor: Tensor, device: Any = None, non_blocking: bool = False) -> Tensor:
    index = EmulatedCuda.current().index_of(device)
    return _to(tensor, f"cuda:{index}", non_blocking=non_blocking)


def _cpu(tensor: Tensor, memory_format: Any = None) -> Tensor:
    return _to(tensor, "cpu", memory_format=memory_format)


def _pin_memory(tensor: Tensor, device: Any = None) -> Tensor:
    if _is_cuda(tensor):
        raise RuntimeError("only memory of the CPU can be pinned, not that of a GPU")
    pinned = EmulatedCuda.current().pinned
    if tensor in pinned:
        return tensor
    copied = tensor.clone()
    pinned.add(copied)
    return copied


def _numpy(tensor: Tensor, *, force: bool = False) -> Any:
    if _is_cuda(tensor) and not force:
        raise TypeError(
            f"can't convert {tensor.device} device type tensor to numpy. Use Tensor.cpu() to "
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
    "get_device": lambda tensor: _device_of(tensor).index if _is_cuda(tensor) else -1,
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


def _replace_cuda_functions(patch: pytest.MonkeyPatch, device: EmulatedCuda) -> None:
    """Replace the functions of `torch.cuda` that the project and torch call."""

    def nothing(*_: Any, **__: Any) -> None:
        pass

    def set_device(of: Any) -> None:
        device.index = device.index_of(of)

    def is_acceptable(_: Tensor) -> bool:
        """cuDNN is not at hand."""
        return False

    functions: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: device.count,
        "current_device": lambda: device.index,
        "set_device": set_device,
        "get_device_name": lambda of=None: NAME,
        "get_device_capability": lambda of=None: (9, 0),
        "is_bf16_supported": lambda including_emulation=True: True,
        **_memory_functions(device),
        "empty_cache": nothing,
        "ipc_collect": nothing,
        "synchronize": device.synchronize,
        "Stream": Stream,
        "Event": Event,
        "stream": on_stream,
        "device": on_device,
        "current_stream": current_stream,
        "default_stream": default_stream,
        **_random_functions(device),
        "CUDAGraph": RecordedGraph,
        "graph": record_graph,
        "graph_pool_handle": device.new_pool,
        "is_current_stream_capturing": lambda: (
            device.recording_on(device.index) is not None
        ),
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


def _memory_functions(device: EmulatedCuda) -> dict[str, Any]:
    """Return what takes the place of the functions that tell of memory."""
    memory = device.memory
    properties = SimpleNamespace(
        name=NAME,
        total_memory=device.total_memory,
        major=9,
        minor=0,
        multi_processor_count=132,
    )

    def get_properties(of: Any = None) -> SimpleNamespace:
        device.index_of(of)
        return properties

    def bytes_on(of: Any = None) -> int:
        return memory.bytes_on[device.index_of(of)]

    def peak_on(of: Any = None) -> int:
        return memory.peak_on[device.index_of(of)]

    def reset_peak(of: Any = None) -> None:
        memory.peak_on[device.index_of(of)] = bytes_on(of)

    def set_fraction(fraction: float, of: Any = None) -> None:
        device.fraction = fraction

    return {
        "get_device_properties": get_properties,
        "mem_get_info": lambda of=None: (
            device.total_memory - bytes_on(of),
            device.total_memory,
        ),
        "memory_allocated": bytes_on,
        "memory_reserved": bytes_on,
        "max_memory_allocated": peak_on,
        "max_memory_reserved": peak_on,
        "reset_peak_memory_stats": reset_peak,
        "set_per_process_memory_fraction": set_fraction,
    }


def _random_functions(device: EmulatedCuda) -> dict[str, Any]:
    """Return what takes the place of the functions for the devices' generators."""
    states = device.rng_states

    def manual_seed(seed: int) -> None:
        states[device.index] = torch.Generator().manual_seed(seed).get_state()

    def manual_seed_all(seed: int) -> None:
        states[:] = [torch.Generator().manual_seed(seed).get_state() for _ in states]

    def set_rng_state(state: Tensor, of: Any = "cuda") -> None:
        states[device.index_of(of)] = state.clone()

    return {
        "get_rng_state": lambda of="cuda": states[device.index_of(of)].clone(),
        "set_rng_state": set_rng_state,
        "manual_seed": manual_seed,
        "manual_seed_all": manual_seed_all,
    }


def _replace_recurrent(patch: pytest.MonkeyPatch) -> None:
    """Refuse the gradients of recurrent layers in evaluation mode, as cuDNN does.

    What cuDNN needs for them it keeps in training mode only.
    """

    def refusing(compute: Callable[..., Any]) -> Callable[..., Any]:
        def computed(*args: Any) -> Any:
            found = compute(*args)
            # The weights, whether there are biases, the number of layers, and the share
            # that is dropped stand before whether this is training.
            weights = next(i for i, part in enumerate(args) if isinstance(part, list))
            is_by_cudnn = _is_cuda(args[0]) and torch.backends.cudnn.enabled
            if is_by_cudnn and not args[weights + 4]:
                for part in found:
                    if part.requires_grad:
                        part.register_hook(_refuse_backward)
            return found

        return computed

    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        patch.setattr(torch._VF, name, refusing(getattr(torch._VF, name)))


def _refuse_backward(_: Tensor) -> None:
    raise RuntimeError("cudnn RNN backward can only be called in training mode")
