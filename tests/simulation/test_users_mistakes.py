"""Mistakes in the user's own classes are told in a sentence that names class and line."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.checkpoints import dump, restore
from helpers.mistakes import LINES, MISTAKES, algorithm, load, place, policy
from helpers.packs import play, worker_of

from raysafl import Run, Uniform
from raysafl.algorithms import Key
from raysafl.core.participation import Cohort
from raysafl.core.record import Record
from raysafl.simulation.simulation import Simulation
from raysafl.simulation.turns import checked_pick


def only_run(folder: Path, code: str, changes: str) -> Run:
    (run,) = load(folder, code, changes).labelled().values()
    return run


def played(run: Run) -> list[Record]:
    """All records of a run in this process, whose states can be saved."""
    simulation, records = play(run, worker_of({"": run}, "loop"))
    dump(simulation)
    return records


# What is inside one of raysafl's own algorithms is told apart by the trial before a sweep only.
DIRECT = [name for name in MISTAKES if "inside" not in name]


@pytest.mark.parametrize("name", DIRECT)
def test_a_mistake_is_told_with_the_class_the_line_and_what_to_do_instead(
    name: str, tmp_path: Path
) -> None:
    code, changes, method, sentence = MISTAKES[name]
    with pytest.raises(ValueError, match=re.escape(sentence)) as error:
        played(only_run(tmp_path, code, changes))
    if method:
        expected = f"{method} ({place(code, LINES[method])}) "
        assert str(error.value).startswith(expected)


@pytest.mark.parametrize(
    "ids",
    [
        "np.array([1, 2])",
        "list(np.array([1, 2]))",
        "np.array([1, 2], np.uint8)",
        "torch.tensor([1, 2])",
        "(1, 2)",
    ],
)
def test_ids_of_numpy_are_taken_as_the_plain_numbers_that_they_are(
    ids: str, tmp_path: Path
) -> None:
    by_array = only_run(
        tmp_path, policy(f"return state, Cohort({ids})"), "participation=Mine()"
    )
    by_list = only_run(
        tmp_path, policy("return state, Cohort([1, 2])"), "participation=Mine()"
    )
    (given, *_), (plain, *_) = played(by_array), played(by_list)
    assert given.cohorts == plain.cohorts == [[1, 2]]
    assert {type(i) for i in given.cohorts[0]} == {int}
    assert given.test_loss == plain.test_loss


def test_ids_in_another_order_stay_in_that_order(tmp_path: Path) -> None:
    run = only_run(
        tmp_path, policy("return state, Cohort([7, 2])"), "participation=Mine()"
    )
    assert {tuple(record.cohorts[0]) for record in played(run)} == {(7, 2)}


def test_a_state_that_is_plain_in_the_first_round_only_is_refused_later(
    tmp_path: Path,
) -> None:
    code = policy("return (key.round or None) and {2}, Cohort([0])")
    with pytest.raises(ValueError, match=r"return a state of .* it returned \{2\}"):
        played(only_run(tmp_path, code, "participation=Mine()"))


def test_what_numpy_gives_in_cohorts_and_requests_can_be_saved(tmp_path: Path) -> None:
    code = algorithm(
        "update = yield TrainMean(state.w_P, np.array(ids))",
        "return replace(state, w_P=state.w_P - update.delta_P)",
    ) + policy("return state, Cohort([1, 2], enforced=np.arange(3)[0] < 1)").replace(
        "class Mine", "class Chance"
    )
    shared = "Federation(dataset=BASE.data.dataset, clients=10, share=0.5, "
    shared += "partition=BASE.data.partition, server=IidServer(n0=50))"
    changes = "{'algorithm': Mine(), 'participation': Chance(), 'eval_every': 3, "
    changes += f"'data': {shared}}}"
    run = only_run(tmp_path, code, changes)
    work = worker_of({"": run}, "loop")
    first, second = Simulation(run, work), Simulation(run, work)
    first.step()
    restore(second, dump(first))
    assert second.replicates[0].standing.reached == {1, 2}
    assert second.replicates[0].standing.counts.enforced == [True]


def test_what_an_algorithm_keeps_has_the_same_order_after_an_interruption(
    tmp_path: Path,
) -> None:
    """The algorithm adds over its clients, so its sums depend on their order."""
    code = algorithm(
        "update = yield Train(state.w_P, ids)",
        "clients = {**dict(zip(ids, update.delta_MP)), **state.clients}",
        "total_P = sum(row_P / (i + 1) for i, row_P in clients.items())",
        "server = {'a/b': total_P, 'c': state.w_P}",
        "w_P = state.w_P - total_P / len(clients)",
        "return replace(state, w_P=w_P, clients=clients, server=server)",
    )
    changes = "algorithm=Mine(), participation=Uniform(m=3), rounds=8, replicates=1"
    run = only_run(tmp_path, code, changes)
    work = worker_of({"": run}, "loop")
    first, second = Simulation(run, work), Simulation(run, work)
    for _ in range(5):
        first.step()
    restore(second, dump(first))
    for _ in range(3):
        first.step()
        second.step()
    (whole,), (resumed,) = first.replicates, second.replicates
    assert list(whole.state.clients) == list(resumed.state.clients)
    assert list(resumed.state.server) == ["a/b", "c"]
    assert torch.equal(whole.state.w_P, resumed.state.w_P)


def test_a_correct_class_passes_all_checks(tmp_path: Path) -> None:
    code = algorithm(
        "update = yield Train(state.w_P, ids, offset_MP=torch.zeros(len(ids), 650))",
        "update = yield TrainMean(state.w_P, ids)",
        "return replace(state, w_P=state.w_P - update.delta_P)",
    )
    assert len(played(only_run(tmp_path, code, "algorithm=Mine()"))) == 6


@pytest.mark.parametrize(
    ("step", "lr", "advice"),
    [
        ("1.0", 1e38, "lower the learning rates"),
        ("(float('nan') if key.round else 1.0)", 0.1, "look there for a division by 0"),
    ],
)
def test_a_replicate_that_diverges_is_told_whether_the_rates_or_the_algorithm_did_it(
    step: str, lr: float, advice: str, tmp_path: Path
) -> None:
    code = algorithm(
        "update = yield TrainMean(state.w_P, ids)",
        f"return replace(state, w_P=state.w_P - {step} * update.delta_P)",
    )
    changes = f"{{'algorithm': Mine(), 'local.lr': {lr}}}"
    run = only_run(tmp_path, code, changes)
    simulation, _ = play(run, worker_of({"": run}, "loop"))
    for own in simulation.replicates:
        assert own.diverged.startswith("round ")
        assert advice in own.diverged
        assert ("lower the learning rates" in own.diverged) == (lr > 1)


def test_a_plain_cohort_is_taken_as_it_is_without_a_copy() -> None:
    policy = Uniform(m=1000)
    picked = policy.pick(None, 10**6, Key(0, 0), None)
    state, cohort = checked_pick(policy, picked, 10**6, 0)
    assert cohort.ids is picked[1].ids and state is None


def test_floats_rows_sets_and_texts_are_no_cohort() -> None:
    for ids in (np.array([1.0]), [[1, 2]], {1, 2}, "12"):
        with pytest.raises(ValueError, match="must return"):
            checked_pick(Uniform(m=1), (None, Cohort(ids)), 10, 1)  # type: ignore[arg-type]
