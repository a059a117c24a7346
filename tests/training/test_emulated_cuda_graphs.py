"""Graphs on the emulated device are recorded, not computed, and then replayed."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers.emulated_cuda import EmulatedCuda, emulated_cuda
from torch import Tensor


@pytest.fixture
def device() -> Iterator[EmulatedCuda]:
    with emulated_cuda() as device:
        yield device


def recorded(compute: Callable[[], Tensor], pool: object = None) -> tuple[Any, Tensor]:
    """The graph of some operators, and their result."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        out = compute()
    return graph, out


def test_a_recording_computes_nothing(device: EmulatedCuda) -> None:
    x = torch.ones(3, device="cuda")
    count = torch.zeros(3, dtype=torch.int64, device="cuda")
    before = device.counts.copy()

    def compute() -> Tensor:
        x.mul_(5)
        count.add_(1)
        return x * 2

    _, out = recorded(compute)
    since = device.counts.since(before)
    assert (since.launches, since.nodes, since.syncs) == (0, 0, 1)
    assert out.isnan().all()
    assert x.tolist() == [1, 1, 1] and count.tolist() == [0, 0, 0]


def test_a_replay_computes_again_on_the_same_memory(device: EmulatedCuda) -> None:
    x = torch.ones(3, device="cuda")
    graph, out = recorded(lambda: x.mul_(5)[:2] * 2)
    before = device.counts.copy()
    graph.replay()
    since = device.counts.since(before)
    assert (since.launches, since.nodes, since.replays) == (1, 2, 1)
    assert since.syncs == since.uploads == since.downloads == 0
    assert out.tolist() == [10, 10]
    graph.replay()
    assert out.tolist() == [50, 50] and x.tolist() == [25, 25, 25]
    x.fill_(1)
    graph.replay()
    assert out.tolist() == [10, 10]


def test_a_replay_repeats_gradients_under_vmap(device: EmulatedCuda) -> None:
    def loss(w_P: Tensor, x_P: Tensor) -> Tensor:
        position = torch.arange(3, device=w_P.device)
        return (w_P.square() * x_P * position).sum()

    gradients = torch.func.vmap(torch.func.grad(loss))
    w_TP = torch.ones(2, 3, device="cuda")
    x_TP = torch.ones(2, 3, device="cuda")
    graph, g_TP = recorded(lambda: gradients(w_TP, x_TP))
    for factor in (1, 3):
        w_TP.fill_(factor)
        x_TP.copy_(torch.tensor([[1.0], [2.0]]).expand(2, 3))
        graph.replay()
        assert g_TP.tolist() == [
            [0, 2 * factor, 4 * factor],
            [0, 4 * factor, 8 * factor],
        ]


def test_a_replay_repeats_a_backward_pass(device: EmulatedCuda) -> None:
    x = torch.ones(3, device="cuda", requires_grad=True)
    graph, g = recorded(lambda: torch.autograd.grad(x.pow(3).sum(), [x])[0])
    with torch.no_grad():
        x.fill_(2)
    graph.replay()
    assert g.tolist() == [12, 12, 12]


def test_numbers_of_the_host_are_what_they_were_at_the_recording(
    device: EmulatedCuda,
) -> None:
    x = torch.ones(3, device="cuda")
    rate = 0.5
    of_host = torch.tensor(4.0)
    graph, out = recorded(lambda: x * rate + of_host)
    rate = 100.0
    of_host.fill_(100)
    graph.replay()
    assert out.tolist() == [4.5] * 3


def test_memory_that_was_replaced_is_not_read(device: EmulatedCuda) -> None:
    x = old = torch.ones(3, device="cuda")
    graph, out = recorded(lambda: x * 2)
    x = torch.full((3,), 7.0, device="cuda")
    graph.replay()
    assert out.tolist() == [2, 2, 2] and old is not x


def test_memory_that_was_freed_is_noticed(device: EmulatedCuda) -> None:
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(3, device="cuda")
    with torch.cuda.graph(graph):
        x * 2
    del x
    with pytest.raises(RuntimeError, match="memory that was freed"):
        graph.replay()


def test_a_graph_keeps_the_memory_that_it_allocated(device: EmulatedCuda) -> None:
    x = torch.ones(3, device="cuda")

    def compute() -> Tensor:
        state = torch.zeros(3, device="cuda")
        return (state + x) * 2

    graph, out = recorded(compute)
    graph.replay()
    assert out.tolist() == [2, 2, 2]
    assert device.memory.bytes == 4 * 12
    del graph, out
    assert device.memory.bytes == 12


REFUSED: dict[str, Callable[[Tensor], object]] = {
    "number": lambda x: x[0].item(),
    "mask": lambda x: x[x > 0],
    "download": lambda x: x.cpu(),
    "download that is not waited for": lambda x: x.to("cpu", non_blocking=True),
    "upload": lambda x: torch.ones(3).to("cuda"),
    "upload of pinned memory": lambda x: (
        torch.ones(3).pin_memory().to("cuda", non_blocking=True)
    ),
    "tensor": lambda x: torch.tensor([1.0], device="cuda"),
    "synchronize": lambda x: torch.cuda.synchronize(),
}


@pytest.mark.parametrize("act", REFUSED.values(), ids=REFUSED)
def test_waiting_and_copies_are_refused_while_recording(
    device: EmulatedCuda, act: Callable[[Tensor], object]
) -> None:
    x = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="previous error during capture") as caught:
        recorded(lambda: act(x))
    assert "stream is capturing" in str(caught.value.__context__)
    assert not torch.cuda.is_current_stream_capturing()
    assert (x + 1).tolist() == [2, 2, 2]


def test_a_recording_that_failed_cannot_be_replayed_and_others_can_be_made(
    device: EmulatedCuda,
) -> None:
    x = torch.ones(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(RuntimeError, match="previous error"),
        torch.cuda.graph(graph),
    ):
        x.mul_(5)
        x.cpu()
    assert x.tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="not in list"):
        graph.replay()
    other, _ = recorded(lambda: x.mul_(3))
    other.replay()
    assert x.tolist() == [3, 3, 3]
    assert device.recordings == 2


@pytest.mark.parametrize("ends", [False, True])
def test_memory_that_runs_out_while_recording_may_be_told_as_a_failed_recording(
    ends: bool,
) -> None:
    with emulated_cuda(largest_allocation=100, lack_ends_recordings=ends) as device:
        x = torch.ones(3, device="cuda")
        with pytest.raises(RuntimeError) as caught:
            recorded(lambda: (x * 2).repeat(10))
        lack = caught.value.__context__ if ends else caught.value
        assert isinstance(lack, torch.OutOfMemoryError)
        assert isinstance(caught.value, torch.OutOfMemoryError) != ends
        del caught, lack
        assert device.memory.bytes == 12


def test_random_numbers_differ_from_replay_to_replay(device: EmulatedCuda) -> None:
    graph, out = recorded(lambda: torch.rand(5, device="cuda"))
    graph.replay()
    first = out.clone()
    graph.replay()
    assert not torch.equal(out, first)


def test_a_replay_spoils_what_was_recorded_later_in_its_pool(
    device: EmulatedCuda,
) -> None:
    x = torch.ones(3, device="cuda")
    first, first_out = recorded(lambda: x * 2)
    second, second_out = recorded(lambda: x * 3, pool=first.pool())
    other, other_out = recorded(lambda: x * 4)
    for graph in (other, second, first):
        graph.replay()
    assert second_out.isnan().all()
    second.replay()
    assert first_out.tolist() == [2, 2, 2]
    assert second_out.tolist() == [3, 3, 3]
    assert other_out.tolist() == [4, 4, 4]
