"""Runs that advance together equal the same runs alone, whatever becomes of the others."""

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import pytest
import torch
from helpers.packs import (
    alone,
    assert_same,
    different,
    mixed,
    simulations,
    together,
    worker_of,
)
from torch import Tensor, nn

from raysafl import CNN, MLP, FedAvg, LocalTraining, Logistic, Model, Run, Uniform
from raysafl.algorithms import Key
from raysafl.core.algorithm import MeanUpdate, Round, State, TrainMean, Update
from raysafl.core.work import Evaluation, Summed, TooLargeError, Training, WorkLostError
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Lockstep


@pytest.mark.parametrize(
    ("engine", "model"),
    [
        ("fused", Logistic()),
        ("linear", Logistic()),
        ("loop", MLP(hidden=[8])),
        pytest.param("vmap", MLP(hidden=[8]), marks=pytest.mark.acceptance),
        ("vmap", CNN(channels=[3], hidden=8)),
    ],
)
def test_runs_that_differ_in_all_they_can_equal_themselves_alone(
    tiny: Run, engine: str, model: Model
) -> None:
    runs = different(tiny, model)
    lockstep = Lockstep[str](worker_of(runs, engine))
    results, failed = together(runs, lockstep)
    assert not failed and lockstep.most is None and not lockstep.most_reason
    for name, run in runs.items():
        assert_same(results[name], alone(run, engine))


def num_cells(asked: Sequence[Training] | Sequence[Evaluation]) -> int:
    """How many cells requests are about."""
    return sum(len(one.cells_R) for one in asked)


class Counted(Worker):
    """Notes which cells it is asked for together."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asked: list[tuple[str, int]] = []

    def train(self, asked: Sequence[Training]) -> list[Update | MeanUpdate]:
        self.asked.append(("train", num_cells(asked)))
        return super().train(asked)

    def sums(self, asked: Sequence[Evaluation]) -> list[list[Summed]]:
        self.asked.append(("sums", num_cells(asked)))
        return super().sums(asked)


def test_what_all_runs_ask_for_in_a_round_is_asked_for_once(tiny: Run) -> None:
    runs = mixed(tiny, Logistic())
    work = worker_of(runs, "fused", Counted)
    Lockstep(work).advance(simulations(runs, work))
    # Sixteen cells, of which four are evaluated later. Two follow an adaptive policy: their
    # training accuracy is measured together with the scores of the other ten.
    assert work.asked == [("train", 16), ("sums", 12), ("sums", 2)]


class BadPolicy(Uniform):
    """Fails in round 2."""

    def pick(self, state: Any, num_clients: int, key: Key, accuracy: Any) -> Any:
        """Leave the program."""
        if key.round == 2:
            sys.exit("my policy ends here")
        return super().pick(state, num_clients, key, accuracy)


class BadAlgorithm(FedAvg):
    """Fails when it has been sent its update in round 1."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Divide by zero."""
        update = yield TrainMean(state.w_P, ids)
        assert key.round == 0 or 1 / 0
        return State(state.w_P - update.delta_P)


class Stubborn(nn.Module):
    """A linear layer that refuses large logits."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x.flatten(1))
        if logits.abs().max() > 1e3:
            raise ValueError("my model refuses such logits")
        return logits


class BadModel(Model):
    """Builds a `Stubborn` module."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build it."""
        return Stubborn(torch.Size(input_shape).numel(), num_classes)


@pytest.fixture
def unequal(tiny: Run) -> dict[str, Run]:
    """Runs of which three fail, each in its own way, and three do not."""
    run = tiny.replace(model=BadModel(), rounds=4)
    fast = LocalTraining(lr=1e4, batch_size=32, epochs=1)
    return {
        "policy": run.replace(participation=BadPolicy(m=2)),
        "good": run,
        "algorithm": run.replace(algorithm=BadAlgorithm()),
        "model": run.replace(local=fast),
        "short": run.replace(rounds=1, seed=7),
        "other": run.replace({"data.partition.p": 3, "seed": 9}),
    }


def test_a_run_that_fails_in_its_own_code_leaves_the_others_as_they_are(
    unequal: dict[str, Run],
) -> None:
    lockstep = Lockstep[str](worker_of(unequal, "loop"))
    results, failed = together(unequal, lockstep)
    assert {name: type(error) for name, error in failed.items()} == {
        "policy": SystemExit,
        "algorithm": ZeroDivisionError,
        "model": ValueError,
    }
    assert str(failed["model"]) == "my model refuses such logits"
    assert lockstep.most is None
    for name in ("good", "short", "other"):
        assert_same(results[name], alone(unequal[name], "loop"))
    # What was recorded before the failure stays, as if the run had been alone.
    rows = results["policy"][0]
    assert [row["round"] for row in rows] == [0, 0, 1, 1]


ERRORS = [
    MemoryError("no room"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    WorkLostError("the client actor that was to train was lost 4 times"),
]


class Cramped(Counted):
    """Has no memory for more than `room` cells."""

    room = 4
    error: Exception = ERRORS[0]
    # Cells that are too large by themselves.
    huge: Sequence[int] = ()

    def train(self, asked: Sequence[Training]) -> list[Update | MeanUpdate]:
        trained = super().train(asked)
        cells = {cell for one in asked for cell in one.cells_R.tolist()}
        if len(cells) > self.room or cells & {*self.huge}:
            raise self.error
        return trained


def numbers_of(runs: dict[str, Run], name: str) -> range:
    """Return the numbers of a run's cells in a worker of all runs."""
    before = list(runs)[: list(runs).index(name)]
    first = sum(runs[own].replicates for own in before)
    return range(first, first + runs[name].replicates)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_request_that_is_too_large_is_halved_for_good_and_said(
    tiny: Run, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cramped, "error", error)
    runs = mixed(tiny, Logistic())
    lockstep = Lockstep[str](worker_of(runs, "fused", Cramped))
    results, failed = together(runs, lockstep)
    assert not failed and lockstep.most in (2, 3, 4)
    assert lockstep.most_reason.startswith(
        f"replicates are computed at most {lockstep.most} at a time, because "
    )
    assert lockstep.most_reason.endswith(f" were too many for the machine: {error}")
    # Once it is known, nothing too large is asked for again.
    asked = [cells for kind, cells in lockstep.work.asked if kind == "train"]
    assert max(asked[:6]) > 4 and max(asked[6:]) <= 4
    for name, run in runs.items():
        assert_same(results[name], alone(run, "fused"))


@pytest.mark.parametrize("error", [ERRORS[0], TooLargeError("out of memory: a client")])
def test_a_run_that_is_too_large_by_itself_fails_and_the_others_do_not(
    tiny: Run, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = mixed(tiny, Logistic())
    is_known = isinstance(error, TooLargeError)
    monkeypatch.setattr(Cramped, "error", error)
    monkeypatch.setattr(Cramped, "room", 100 if is_known else 4)
    monkeypatch.setattr(Cramped, "huge", numbers_of(runs, "shared"))
    lockstep = Lockstep[str](worker_of(runs, "fused", Cramped))
    results, failed = together(runs, lockstep)
    assert list(failed) == ["shared"] and failed["shared"] is error
    # One that says that it is too large by itself does not make the others smaller.
    assert (lockstep.most is None and not lockstep.most_reason) == is_known
    for name in runs.keys() - failed:
        assert_same(results[name], alone(runs[name], "fused"))


class FailsOnce(Worker):
    """Fails the first time that it evaluates several cells."""

    has_failed = False

    def sums(self, asked: Sequence[Evaluation]) -> list[list[Summed]]:
        if num_cells(asked) > 1 and not self.has_failed:
            self.has_failed = True
            raise KeyError("once")
        return super().sums(asked)


def test_a_round_that_is_taken_again_counts_nothing_twice_and_forgets_nothing(
    tiny: Run,
) -> None:
    runs = {"shared": mixed(tiny, Logistic())["shared"]}
    work = worker_of(runs, "fused", FailsOnce)
    results, failed = together(runs, Lockstep[str](work))
    assert not failed and work.has_failed and runs["shared"].data.share
    assert_same(results["shared"], alone(runs["shared"], "fused"))


def test_a_run_that_has_failed_fails_again_if_it_is_asked_again(tiny: Run) -> None:
    run = tiny.replace(algorithm=BadAlgorithm(), replicates=1)
    (simulation,) = simulations({"bad": run}, worker_of({"bad": run})).values()
    simulation.step()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            simulation.step()


class Broken(Worker):
    """Evaluates nothing that is not of its first two cells."""

    def sums(self, asked: Sequence[Evaluation]) -> list[list[Summed]]:
        if any((one.cells_R > 1).any() for one in asked):
            self.refuse()
        return super().sums(asked)

    def refuse(self) -> NoReturn:
        """Say so."""
        raise KeyError("no such cell")


def test_evaluations_that_fail_are_told_to_the_runs_that_asked_for_them(
    tiny: Run,
) -> None:
    runs = {str(seed): tiny.replace(seed=seed, rounds=2) for seed in range(5)}
    results, failed = together(runs, Lockstep[str](worker_of(runs, "fused", Broken)))
    assert list(failed) == ["1", "2", "3", "4"]
    assert {type(error) for error in failed.values()} == {KeyError}
    assert_same(results["0"], alone(runs["0"], "fused"))
