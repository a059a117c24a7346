"""The emulated device says, refuses, counts and computes what a CUDA device does."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from helpers.emulated_cuda import Counts, EmulatedCuda, ForbiddenSync, emulated_cuda
from torch import Tensor, nn

CUDA = torch.device("cuda", 0)


@pytest.fixture
def device() -> Iterator[EmulatedCuda]:
    with emulated_cuda() as device:
        yield device


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, device="cuda")


# Where tensors lie.


MAKERS: dict[str, Callable[[], Tensor]] = {
    "zeros": lambda: torch.zeros(2, device="cuda"),
    "full": lambda: torch.full((2,), 1, device=CUDA),
    "arange": lambda: torch.arange(2, device="cuda:0"),
    "randn": lambda: torch.randn(2, device="cuda"),
    "tensor": lambda: torch.tensor([1.0, 2.0], device="cuda"),
    "as_tensor": lambda: torch.as_tensor(np.ones(2), device="cuda"),
    "zeros_like": lambda: torch.zeros_like(torch.ones(2), device="cuda"),
    "to": lambda: torch.ones(2).to("cuda"),
    "to with a type": lambda: torch.ones(2).to("cuda", torch.float64),
    "to another tensor": lambda: torch.ones(2).to(ones(1)),
    "cuda": lambda: torch.ones(2).cuda(),
    "sum": lambda: ones(2) + ones(2),
    "view": lambda: ones(2, 2)[1],
    "new_zeros": lambda: ones(1).new_zeros(2),
    "new_tensor": lambda: ones(1).new_tensor([1.0, 2.0]),
    "type": lambda: ones(2).double(),
    "out": lambda: torch.add(ones(2), 1, out=torch.empty(2, device="cuda")),
    "module": lambda: nn.Linear(2, 2).to("cuda").bias,
    "call of a module": lambda: nn.Linear(3, 2).cuda()(ones(1, 3))[0],
    "gradient": lambda: torch.autograd.grad(
        (x := ones(2).requires_grad_()).square().sum(), [x]
    )[0],
    "vmap": lambda: torch.func.vmap(lambda x: x * 2)(ones(2)),
    "vmap of grad": lambda: torch.func.vmap(torch.func.grad(lambda x: x**2))(ones(2)),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_is_made_on_the_device_says_so(
    device: EmulatedCuda, make: Callable[[], Tensor]
) -> None:
    tensor = make()
    assert tensor.is_cuda and not tensor.is_cpu
    assert tensor.device == CUDA and tensor.get_device() == 0
    assert tensor.shape == (2,)


def test_tensors_of_the_cpu_say_so_and_copies_from_the_device_too(
    device: EmulatedCuda,
) -> None:
    copied = ones(2).cpu()
    for tensor in (
        torch.ones(2),
        torch.tensor([1.0, 2.0]),
        copied,
        copied + 1,
        ones(2).to("cpu", torch.float64),
        torch.zeros_like(ones(2), device="cpu"),
        torch.from_numpy(copied.numpy()),
    ):
        assert tensor.device.type == "cpu" and not tensor.is_cuda
        assert len(tensor.numpy()) == 2


def test_inside_of_vmap_and_grad_tensors_say_where_they_lie(
    device: EmulatedCuda,
) -> None:
    seen = []

    def loss(x: Tensor) -> Tensor:
        seen.append((x.is_cuda, x.device))
        position = torch.arange(3, device=x.device)
        return (x * position).sum()

    g_TP = torch.func.vmap(torch.func.grad(loss))(ones(2, 3))
    assert seen == [(True, CUDA)]
    assert g_TP.tolist() == [[0, 1, 2]] * 2


def test_a_move_to_where_a_tensor_lies_copies_nothing(device: EmulatedCuda) -> None:
    x, host = ones(2), torch.ones(2)
    before = device.counts.copy()
    assert x.to("cuda") is x and x.cuda() is x and x.to(torch.float32) is x
    assert host.cpu() is host and host.to("cpu") is host
    assert device.counts == before


def test_memory_that_is_reused_is_not_taken_for_the_device(
    device: EmulatedCuda,
) -> None:
    for _ in range(200):
        assert ones(5).is_cuda
        assert not torch.ones(5).is_cuda
    assert device.memory.bytes == 0


def test_torch_is_as_before_after_the_block() -> None:
    had_device = torch.cuda.is_available()
    with emulated_cuda() as device:
        kept = ones(2)
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.cuda.is_available() == had_device
    assert not {"device", "is_cuda", "to", "numpy"} & set(vars(torch.Tensor))
    assert not torch.backends.cudnn.deterministic
    assert not torch.are_deterministic_algorithms_enabled()
    before = device.counts.copy()
    assert kept.device.type == "cpu" and (kept + 1).tolist() == [2, 2]
    assert device.counts == before


# What is refused.


MIXED: dict[str, Callable[[], object]] = {
    "sum": lambda: ones(3) + torch.ones(3),
    "number of the device": lambda: torch.ones(3) + ones(3).sum(),
    "product": lambda: ones(2, 3) @ torch.ones(3, 2),
    "stack": lambda: torch.stack([ones(3), torch.ones(3)]),
    "stack of numbers": lambda: torch.stack([ones(3).sum(), torch.tensor(1.0)]),
    "where": lambda: torch.where(torch.ones(3) > 0, ones(3), ones(3)),
    "gather": lambda: ones(3).gather(0, torch.tensor([0])),
    "index of the device": lambda: torch.ones(3)[torch.tensor([0], device="cuda")],
    "in place": lambda: ones(3).add_(torch.ones(3)),
    "out": lambda: torch.add(ones(3), ones(3), out=torch.ones(3)),
    "module": lambda: nn.Linear(3, 2)(ones(1, 3)),
    "cross-entropy": lambda: nn.functional.cross_entropy(
        ones(2, 3), torch.tensor([0, 1])
    ),
    "vmap": lambda: torch.func.vmap(torch.mul)(ones(3), torch.ones(3)),
}


@pytest.mark.parametrize("compute", MIXED.values(), ids=MIXED)
def test_operands_on_two_devices_are_refused(
    device: EmulatedCuda, compute: Callable[[], object]
) -> None:
    with pytest.raises(RuntimeError, match=r"same device.* cuda:0 and cpu"):
        compute()


def test_a_number_of_the_cpu_may_be_an_operand_of_an_elementwise_operator(
    device: EmulatedCuda,
) -> None:
    two = torch.tensor(2.0)
    assert (ones(2) * two).tolist() == [2, 2]
    assert ones(2).fill_(two).tolist() == [2, 2]
    assert torch.where(ones(2) > two, ones(2), two).tolist() == [2, 2]


def test_numpy_cannot_read_the_device(device: EmulatedCuda) -> None:
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        ones(2).numpy()
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        np.asarray(ones(2))
    with pytest.raises(RuntimeError, match="pinned"):
        ones(2).pin_memory()


# What is counted.


def test_the_counts_of_a_small_program_are_exact(device: EmulatedCuda) -> None:
    with device.counting() as counts:
        w_DC = torch.zeros(3, 2, device="cuda")  # launch 1
        x_BD = torch.ones(4, 3).pin_memory().to("cuda", non_blocking=True)  # 48 bytes
        y_B = torch.tensor([0, 1, 0, 1], device="cuda")  # 32 bytes, waits
        z_BC = x_BD @ w_DC  # launch 2
        log_BC = z_BC.log_softmax(1)  # launch 3
        loss_B = -log_BC.gather(1, y_B[:, None])[:, 0]  # launches 4 and 5
        empty = torch.empty_like(w_DC)
        empty.view(2, 3).copy_(w_DC.view(2, 3))  # launch 6
        w_DC[0] = 1  # launch 7
        loss = float(loss_B.sum())  # launch 8, waits for 4 bytes
        rows = loss_B.cpu()  # waits for 16 bytes
    assert loss == pytest.approx(4 * np.log(2)) and rows.shape == (4,)
    assert counts == Counts(
        launches=8,
        syncs=3,
        uploads=2,
        upload_bytes=48 + 32,
        downloads=2,
        download_bytes=4 + 16,
    )
    assert device.operators["aten.mm.default"] == 1


def test_what_is_computed_on_the_cpu_is_not_counted(device: EmulatedCuda) -> None:
    x = torch.ones(3)
    float((x + x)[x > 0].sum())
    assert device.counts == Counts()


def test_the_host_waits_for_a_copy_unless_memory_is_pinned_and_it_says_so(
    device: EmulatedCuda,
) -> None:
    pinned = torch.ones(3).pin_memory()
    assert pinned.is_pinned() and not torch.ones(3).is_pinned()
    with device.counting() as counts:
        x = pinned.to("cuda", non_blocking=True)
        x.copy_(pinned, non_blocking=True)
    assert (counts.uploads, counts.syncs) == (2, 0)
    with device.counting() as counts:
        pinned.to("cuda")
        torch.ones(3).to("cuda", non_blocking=True)
        x.copy_(torch.ones(3))
    assert (counts.uploads, counts.syncs) == (3, 3)


WAITING: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x[0].item(),
    "float": lambda x: float(x[0]),
    "bool": lambda x: bool(x[0] > 0),
    "if": lambda x: 1 if x.sum() else 0,
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "to another tensor": lambda x: x.to(torch.ones(1)),
    "copy to the host": lambda x: torch.ones(3).copy_(x),
    "tolist": lambda x: x.tolist(),
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: x.unique(),
    "bincount": lambda x: x.long().bincount(),
    "repeat_interleave": lambda x: x.repeat_interleave(x.long()),
    "mask": lambda x: x[x > 0],
    "values by a mask": lambda x: x.__setitem__(x > 0, x * 2),
    "indices of the host": lambda x: x[torch.tensor([0, 1])],
    "list of indices": lambda x: x[[0, 1]],
    "tensor": lambda x: torch.tensor([1.0], device="cuda"),
    "upload": lambda x: torch.ones(3).to("cuda"),
    "row from the host": lambda x: x.__setitem__(slice(0, 2), torch.ones(2)),
    "synchronize": lambda x: torch.cuda.synchronize(),
    "event": lambda x: torch.cuda.Event().synchronize(),
    "stream": lambda x: torch.cuda.current_stream().synchronize(),
}


@pytest.mark.parametrize("wait", WAITING.values(), ids=WAITING)
def test_waiting_for_the_device_is_counted_and_can_be_forbidden(
    device: EmulatedCuda, wait: Callable[[Tensor], object]
) -> None:
    x = ones(3)
    with device.counting() as counts:
        wait(x)
    assert counts.syncs == 1
    with device.no_sync(), pytest.raises(ForbiddenSync):
        wait(x)
    wait(x)


def test_filling_by_a_mask_and_masked_fill_do_not_wait(device: EmulatedCuda) -> None:
    x = ones(3)
    with device.no_sync():
        x[x > 0] = 2.0
        x.masked_fill_(x > 3, 0.0)
    assert x.tolist() == [2, 2, 2]


def test_a_download_that_was_not_waited_for_has_not_arrived(
    device: EmulatedCuda,
) -> None:
    x = ones(3)
    into = torch.zeros(3)
    with device.no_sync():
        found = x.to("cpu", non_blocking=True)
        into.copy_(x, non_blocking=True)
        x += 1
    assert found.isnan().all() and into.isnan().all()
    torch.cuda.synchronize()
    assert found.tolist() == into.tolist() == [1, 1, 1]


# Memory.


def test_allocated_memory_is_counted_and_new_memory_holds_nothing(
    device: EmulatedCuda,
) -> None:
    x = torch.empty(1000, device="cuda")
    assert x.isnan().all()
    for dtype in (torch.int64, torch.int32):
        new = torch.empty(2, dtype=dtype, device="cuda")
        assert new.tolist() == [-1, -1]
    assert torch.empty_like(x, dtype=torch.uint8).tolist() == [255] * 1000
    del new
    assert torch.cuda.memory_allocated() == 4000
    free, total = torch.cuda.mem_get_info()
    assert total - free == 4000
    assert total == torch.cuda.get_device_properties(0).total_memory
    part = x[:10]
    del x
    assert torch.cuda.memory_allocated() == 4000
    del part
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.max_memory_allocated() >= 4000
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0


def test_more_memory_than_there_is_is_refused_and_goes_back() -> None:
    with emulated_cuda(total_memory=10_000) as device:
        x = ones(2000)
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            x + 1
        assert device.memory.bytes == 8000
        x += 1
        del x
        ones(2400)
        torch.cuda.set_per_process_memory_fraction(0.5)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            ones(2400)


def test_running_out_of_memory_is_told_as_such_through_vmap_and_backward() -> None:
    with emulated_cuda(largest_allocation=400):
        x = ones(10, 10).requires_grad_()
        with pytest.raises(torch.OutOfMemoryError):
            torch.func.vmap(lambda row: torch.outer(row, row))(x)
        summed = x.sum(1).expand(20, 10).sum()
        torch.autograd.grad(summed, [x])
        wide = (x[0, :5, None] * torch.ones((), device="cuda").expand(5, 20)).sum()
        with pytest.raises(torch.OutOfMemoryError):
            torch.autograd.grad(wide.square() * x.repeat(2, 1).sum(), [x])


# Random numbers and precision.


def test_the_device_draws_from_a_generator_of_its_own(device: EmulatedCuda) -> None:
    host_before = torch.random.get_rng_state()
    before = torch.cuda.get_rng_state()
    first = torch.randn(3, device="cuda")
    assert not torch.equal(torch.cuda.get_rng_state(), before)
    assert torch.equal(torch.random.get_rng_state(), host_before)
    torch.cuda.set_rng_state(before)
    assert torch.equal(torch.randn(3, device="cuda"), first)
    torch.manual_seed(5)
    second = nn.functional.dropout(ones(9))
    torch.manual_seed(5)
    assert torch.equal(nn.functional.dropout(ones(9)), second)


def test_autocasting_for_cuda_computes_in_bfloat16(device: EmulatedCuda) -> None:
    with torch.autocast("cuda", torch.bfloat16):
        assert (ones(2, 2) @ ones(2, 2)).dtype == torch.bfloat16
