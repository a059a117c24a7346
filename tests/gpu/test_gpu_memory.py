"""The memory of a real GPU: it does not grow from pack to pack, and it may run out."""

from collections.abc import Callable, Iterator

import pytest
import torch
from helpers.big_stack import assert_close, big_tasks, big_trainer
from helpers.small_runs import play, small_run

from raysafl.training.resident import Resident


@pytest.mark.parametrize("shares", [True, False], ids=["one Resident", "new ones"])
@pytest.mark.parametrize(
    ("model", "engine"), [("logistic", "linear"), ("CNN", "graph")]
)
def test_fifty_packs_hold_no_more_memory_than_five(
    model: str, engine: str, shares: bool
) -> None:
    run = small_run(model).replace(rounds=1)
    dataset = run.data.load()
    kept = Resident() if shares else None
    held = []
    for _ in range(50):
        play(run, "cuda", engine, dataset, kept)
        held.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    assert len(set(held[4:])) == 1, held


@pytest.fixture
def leave() -> Iterator[Callable[[float], None]]:
    """A function that leaves this process so many bytes more than torch holds."""

    def leave_bytes(more: float) -> None:
        torch.cuda.empty_cache()
        _, total = torch.cuda.mem_get_info()
        share = (torch.cuda.memory_reserved() + more) / total
        torch.cuda.set_per_process_memory_fraction(share)

    yield leave_bytes
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


@pytest.mark.parametrize("engine", ["vmap", "graph"])
def test_a_stack_that_does_not_fit_is_halved_and_trained_all_the_same(
    engine: str, leave: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    tasks = big_tasks(64)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    big_trainer("cuda", engine).train(tasks)
    needed = torch.cuda.max_memory_allocated() - before
    assert "clients stacked" not in caplog.text
    leave(0.75 * needed)
    assert_close(big_trainer("cuda", engine).train(tasks), tasks)
    assert "clients stacked" in caplog.text


@pytest.mark.parametrize("engine", ["vmap", "graph"])
def test_a_task_that_does_not_fit_alone_says_what_to_change(
    engine: str, leave: Callable[[float], None]
) -> None:
    trainer = big_trainer("cuda", engine)
    assert trainer.evaluator.most_models >= 1  # What stacks are sized by is known now.
    leave(2**20)
    # Its start may lack room, or what its mini-batch needs.
    with pytest.raises(MemoryError, match=r"out of memory: .*fewer processes for one"):
        trainer.train(big_tasks(1))
