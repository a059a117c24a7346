"""Several emulated devices, their streams, and what cuDNN refuses."""

from collections.abc import Callable, Iterator

import pytest
import torch
from helpers.emulated_cuda import EmulatedCuda, emulated_cuda
from helpers.emulated_device import WORKSPACE
from torch import Tensor, nn


@pytest.fixture
def device() -> Iterator[EmulatedCuda]:
    with emulated_cuda(count=2) as device:
        yield device


def ones(device: str, *shape: int) -> Tensor:
    return torch.ones(*shape, device=device)


# Devices.

MAKERS: dict[str, Callable[[str], Tensor]] = {
    "factory": lambda name: torch.zeros(2, device=name),
    "tensor": lambda name: torch.tensor([1.0, 2.0], device=name),
    "to": lambda name: torch.ones(2).to(name),
    "to from the other device": lambda name: ones("cuda:0", 2).to(name),
    "like": lambda name: torch.ones_like(ones("cuda:0", 2), device=name),
    "sum": lambda name: ones(name, 2) + ones(name, 2),
    "module": lambda name: nn.Linear(2, 2).to(name)(ones(name, 2)),
    "new_zeros": lambda name: ones("cuda:0", 1).new_zeros(2, device=name),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_tensor_knows_on_which_device_it_lies(
    device: EmulatedCuda, make: Callable[[str], Tensor]
) -> None:
    named = make("cuda:1")
    with torch.cuda.device(1):
        current = make("cuda")
    for tensor in (named, current):
        assert tensor.device == torch.device("cuda", 1) and tensor.get_device() == 1
    assert make("cuda").device == torch.device("cuda", 0)


def test_the_current_device_is_that_of_the_block_or_the_one_that_was_set(
    device: EmulatedCuda,
) -> None:
    assert torch.cuda.current_device() == 0
    with torch.cuda.device(1):
        assert torch.cuda.current_device() == 1
        assert torch.ones(1).cuda().get_device() == 1
        with torch.cuda.device(None), torch.cuda.device(torch.device("cuda:0")):
            assert torch.cuda.current_device() == 0
    assert torch.cuda.current_device() == 0
    torch.cuda.set_device(1)
    assert torch.cuda.current_device() == 1
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.set_device(2)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.get_device_properties(2)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(1, device="cuda:2")


MIXED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "sum": torch.add,
    "number": lambda x, y: x + y.sum(),
    "product": torch.dot,
    "index": lambda x, y: x.index_select(0, y.long()),
    "stack": lambda x, y: torch.stack([x, y]),
}


@pytest.mark.parametrize("compute", MIXED.values(), ids=MIXED)
def test_operands_on_two_gpus_are_refused(
    device: EmulatedCuda, compute: Callable[[Tensor, Tensor], object]
) -> None:
    with pytest.raises(RuntimeError, match=r"same device.* cuda:0 and cuda:1"):
        compute(ones("cuda:0", 3), ones("cuda:1", 3))


def test_copies_go_from_one_gpu_to_another_without_the_host(
    device: EmulatedCuda,
) -> None:
    x = torch.arange(3.0, device="cuda:0")
    into = torch.zeros(3, device="cuda:1")
    with device.counting() as counts:
        there = x.to("cuda:1")
        into.copy_(x)
        assert there.to("cuda:1") is there
    assert (counts.uploads, counts.downloads, counts.syncs) == (0, 0, 0)
    assert there.tolist() == into.tolist() == [0, 1, 2]


def test_each_device_has_its_own_memory_and_generator(device: EmulatedCuda) -> None:
    x = torch.empty(1000, device="cuda:1")
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.memory_allocated(1) == torch.cuda.max_memory_allocated(1) == 4000
    free, total = torch.cuda.mem_get_info(1)
    assert total - free == 4000
    del x
    assert torch.cuda.memory_allocated(1) == 0

    first = torch.cuda.get_rng_state(0)
    torch.randn(3, device="cuda:1")
    assert torch.equal(torch.cuda.get_rng_state(0), first)
    assert not torch.equal(torch.cuda.get_rng_state(1), first)


def test_a_full_device_leaves_room_on_the_other() -> None:
    with emulated_cuda(total_memory=10_000, count=2):
        full = ones("cuda:0", 2000)
        with pytest.raises(torch.OutOfMemoryError):
            ones("cuda:0", 2000)
        other = ones("cuda:1", 2000)
        assert float(other.sum()) == float(full.sum()) == 2000


# Streams.


def test_a_stream_belongs_to_the_device_that_was_current_or_named(
    device: EmulatedCuda,
) -> None:
    with torch.cuda.device(1):
        second = torch.cuda.Stream()
        assert torch.cuda.current_stream() == torch.cuda.default_stream(1)
    assert second.device == torch.cuda.Stream(1).device == torch.device("cuda", 1)
    with torch.cuda.stream(second):
        assert torch.cuda.current_device() == 1
        assert torch.cuda.current_stream() == second
        assert torch.cuda.current_stream(0) == torch.cuda.default_stream(0)
    assert torch.cuda.current_device() == 0
    assert torch.cuda.current_stream(1) == torch.cuda.default_stream(1) != second


def test_the_first_product_on_a_stream_takes_a_workspace_for_good(
    device: EmulatedCuda,
) -> None:
    def product(name: str = "cuda:0") -> None:
        x = ones(name, 2, 2)
        x @ x

    ones("cuda:0", 2) + 1
    assert torch.cuda.memory_allocated() == 0
    product()
    product()
    assert torch.cuda.memory_allocated() == WORKSPACE
    side = torch.cuda.Stream()
    for stream in (side, side, torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            product()
            # The other device's current stream is its default one.
            product("cuda:1")
    assert torch.cuda.memory_allocated(0) == 3 * WORKSPACE
    assert torch.cuda.memory_allocated(1) == WORKSPACE


def test_a_recording_without_a_stream_records_nothing_of_another_device_than_the_first(
    device: EmulatedCuda,
) -> None:
    def recorded(x: Tensor, stream: torch.cuda.Stream | None) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            x.mul_(2)
        return graph

    x = ones("cuda:0", 3)
    recorded(x, None).replay()
    assert x.tolist() == [2, 2, 2]
    with torch.cuda.device(1):
        y = ones("cuda:1", 3)
        with pytest.warns(UserWarning, match="wrong device or stream"):
            graph = recorded(y, None)
        graph.replay()
        # It was computed at once, and is not computed again.
        assert y.tolist() == [2, 2, 2]
        recorded(y, torch.cuda.Stream()).replay()
        assert y.tolist() == [4, 4, 4]


# Recurrent layers.

RECURRENT = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "RNN": nn.RNN,
    "RNN of ReLUs": lambda *sizes: nn.RNN(*sizes, nonlinearity="relu"),
}


@pytest.mark.parametrize("make", RECURRENT.values(), ids=RECURRENT)
@pytest.mark.parametrize("packs", [False, True])
def test_gradients_of_recurrent_layers_are_refused_in_evaluation_mode(
    device: EmulatedCuda, make: Callable[..., nn.RNNBase], packs: bool
) -> None:
    def backward(layer: nn.RNNBase, name: str) -> None:
        x: object = ones(name, 4, 3)[:, None]
        if packs:
            x = nn.utils.rnn.PackedSequence(ones(name, 4, 3), torch.ones(4).long())
        out, _ = layer(x)
        (out.data if packs else out).sum().backward()

    layer = make(3, 2).to("cuda")
    backward(layer, "cuda")
    layer.eval()
    with pytest.raises(RuntimeError, match="only be called in training mode"):
        backward(layer, "cuda")
    with torch.backends.cudnn.flags(enabled=False):
        backward(layer, "cuda")
    with torch.no_grad():
        layer(ones("cuda", 4, 1, 3))
    backward(make(3, 2).eval(), "cpu")
