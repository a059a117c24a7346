"""The program of a local step, computed on the CPU, against training on a CPU."""

import pytest
import torch
from helpers.tasks import Dropping, Task, columns
from test_trainer import BASE, HELD, KINDS, PRECISE, TOLERANCE, tasks, trainer

from raysafl import CNN, MLP, LocalTraining, Logistic, Model
from raysafl.algorithms import Update
from raysafl.training import local_step
from raysafl.training.gpu_training import GpuMemory, GpuTraining, program_width
from raysafl.training.inputs import Held
from raysafl.training.resident import Resident
from raysafl.training.trainer import LocalTrainer

GIB = 2**30


def program_of(local: LocalTrainer, total: int = GIB) -> GpuTraining:
    """What would train on a GPU of this memory, on a CPU."""
    memory = GpuMemory(total, 1000, local.model.num_parameters)
    return GpuTraining(local.engine, local.inputs, Resident(), memory)


def by_program(program: GpuTraining, asked: list[Task]) -> Update:
    """Train tasks by the program; return one row per task, in their order."""
    held = Held.of([HELD[task.client] for task in asked])
    rows: dict[int, list[torch.Tensor]] = {}
    with torch.no_grad():
        for stack, update in program.train_stacks(columns(asked), held):
            rows |= zip(stack.tolist(), zip(*update, strict=True), strict=True)
    of_all = zip(*(rows[i] for i in range(len(asked))), strict=True)
    return Update(*(torch.stack(column) for column in of_all))


def check_equal(local: LocalTrainer, asked: list[Task], precise: bool = True) -> None:
    """Check that the program gives what training on a CPU gives."""
    expected = local.train(asked)
    found = by_program(program_of(local), asked)
    tolerance = TOLERANCE if precise else PRECISE
    torch.testing.assert_close(found.delta_MP, expected.delta_MP, **tolerance)
    torch.testing.assert_close(found.loss_M, expected.loss_M, rtol=1e-5, atol=1e-6)
    assert torch.equal(found.steps_M, expected.steps_M)
    assert torch.equal(found.samples_M, expected.samples_M)
    assert torch.equal(found.rate_M, expected.rate_M)
    torch.testing.assert_close(
        found.accuracy_M, expected.accuracy_M, rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("engine", ["loop", "vmap", "graph", "linear"])
@pytest.mark.parametrize("sgd", [BASE, *KINDS], ids=repr)
@pytest.mark.parametrize(("prox", "offset"), [(0.0, False), (0.3, True)])
def test_the_program_trains_as_a_cpu_does(
    engine: str, sgd: LocalTraining, prox: float, offset: bool
) -> None:
    model = Logistic(zero_init=False) if engine == "linear" else MLP(hidden=[12])
    local = trainer(model, engine)
    asked = tasks(local.model, sgd, prox, offset)
    check_equal(local, asked, precise=sgd.optimizer != "adam")


@pytest.mark.parametrize("model", [CNN(channels=[4], hidden=8), Dropping()], ids=repr)
@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_the_program_trains_convolutions_and_dropout_as_a_cpu_does(
    model: Model, engine: str
) -> None:
    local = trainer(model, engine)
    check_equal(local, tasks(local.model, BASE))


def test_tasks_with_different_numbers_keep_their_own_in_one_stack() -> None:
    local = trainer(Logistic(zero_init=False), "linear")
    kinds = [
        BASE,
        BASE.replace(lr=0.3, epochs=1),
        BASE.replace(weight_decay=0.1, epochs=3),
        BASE.replace(epochs=None, steps=1),
    ]
    asked = [
        task._replace(local=kinds[i % 4], prox=0.1 * (i % 3))
        for i, task in enumerate(tasks(local.model, BASE, offset=True))
    ]
    asked[3] = asked[3]._replace(offset_P=None)
    check_equal(local, asked)


def test_trainings_longer_than_the_plan_on_the_device_go_on_with_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_step, "STEPS", 4)
    for model in (Logistic(zero_init=False), Dropping()):
        local = trainer(model, "linear" if isinstance(model, Logistic) else "vmap")
        sgd = LocalTraining(lr=0.01, batch_size=10, steps=11, optimizer="adam")
        check_equal(local, tasks(local.model, sgd), precise=False)


def test_a_finished_task_stays_where_it_is_even_if_it_has_diverged() -> None:
    """Where the parameters are huge, a step on absent samples has no finite gradient."""
    local = trainer(MLP(hidden=[12]), "vmap")
    short, long, *_ = tasks(local.model, BASE)
    # The last step of the first task throws it far away.
    far = LocalTraining(lr=1e30, batch_size=10, steps=1)
    asked = [
        short._replace(local=far),
        long._replace(local=BASE.replace(epochs=None, steps=6)),
    ]
    expected = local.train(asked)
    assert expected.delta_MP.isfinite().all()
    found = by_program(program_of(local), asked)
    torch.testing.assert_close(found.delta_MP, expected.delta_MP, **TOLERANCE)
    torch.testing.assert_close(found.loss_M, expected.loss_M)


def test_what_was_yielded_is_not_changed_by_the_next_stack() -> None:
    local = trainer(Logistic(zero_init=False), "linear")
    program = program_of(local, total=1)
    asked = tasks(local.model, BASE)
    held = Held.of([HELD[task.client] for task in asked])
    updates = []
    copies = []
    with torch.no_grad():
        for _, update in program.train_stacks(columns(asked), held):
            updates.append(update)
            copies.append([column.clone() for column in update])
    assert len(updates) == len(asked)
    for update, copy in zip(updates, copies, strict=True):
        assert all(map(torch.equal, update, copy))


def test_small_clients_of_many_sizes_share_a_few_widths() -> None:
    widths = {program_width(width, 50) for width in (*range(8, 50, 8), 50)}
    assert widths == {8, 16, 32, 50}
