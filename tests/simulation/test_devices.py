"""Virtual seconds of rounds, and who reports in time, against values by hand."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.four_clients import FOUR
from helpers.lifted import assert_equal_to_themselves_alone
from helpers.matrix import ALGORITHMS
from helpers.packs import play
from hypothesis import given
from hypothesis import strategies as st

import raysafl as fl
from raysafl.algorithms import SCAFFOLD, Compressed, FedAvg, KnowsLocalTraining, TopK
from raysafl.core.algorithm import State
from raysafl.core.participation import Cohorts
from raysafl.core.randomness import Key, Keys
from raysafl.core.record import Record
from raysafl.participation import Bernoulli, Full
from raysafl.training import ContinuedTraining

# A vector of the model has 20 parameters, 80 bytes. Clients 0 and 1, who participate, hold 4
# and 2 samples, which are 2 steps and 1 step. So client 0 takes 80 / 40 + 2 * 1 + 80 / 20 = 8
# seconds, and client 1 takes 80 / 80 + 1 * 10 + 80 / 20 = 15.
KNOWN = fl.Devices(
    step_seconds=[1, 10, 1, 1],
    bytes_down_per_second=[40, 80, 40, 40],
    bytes_up_per_second=20,
)
# Client 0 participates in every round, and client 1 in rounds 0 and 2.
RUN = FOUR.replace(eval_clients=None, replicates=1)


def seconds(records: list[Record]) -> list[Any]:
    """The virtual seconds of each row."""
    return [record.metrics["virtual_seconds"] for record in records]


def cohorts(records: list[Record]) -> list[list[int]]:
    """The cohort of each round."""
    return [ids for record in records for ids in record.cohorts]


def test_a_round_takes_the_time_of_its_slowest_client() -> None:
    _, records = play(RUN.replace(devices=KNOWN))
    assert seconds(records) == [15, 8, 15, 8]
    _, seldom = play(RUN.replace(devices=KNOWN, eval_every=3))
    assert seconds(seldom) == [15 + 8 + 15, 8]


def test_a_client_after_the_deadline_is_no_part_of_the_cohort() -> None:
    own, records = play(RUN.replace(devices=KNOWN.replace(deadline=10)))
    assert cohorts(records) == [[0]] * 4
    assert seconds(records) == [10, 8, 10, 8]
    alone, _ = play(RUN.replace(participation=Only(ids=[0])))
    assert torch.equal(own.replicates[0].state.w_P, alone.replicates[0].state.w_P)
    _, exact = play(RUN.replace(devices=KNOWN.replace(deadline=15)))
    assert cohorts(exact) == [[0, 1], [0], [0, 1], [0]]


def test_the_server_takes_the_first_reports_and_waits_no_longer() -> None:
    _, records = play(RUN.replace(devices=KNOWN.replace(report=1, deadline=20)))
    assert cohorts(records) == [[0]] * 4 and seconds(records) == [8] * 4
    # It cannot wait for more than participate, and of equal ones takes the first.
    _, two = play(RUN.replace(devices=KNOWN.replace(report=2)))
    assert cohorts(two) == [[0, 1], [0], [0, 1], [0]]
    assert seconds(two) == [15, 8, 15, 8]
    tied = RUN.replace(
        participation=Only(ids=[3, 2, 0]), devices=fl.Devices(step_seconds=1, report=2)
    )
    assert cohorts(play(tied)[1]) == [[3, 2]] * 4


def test_a_round_without_participants_takes_the_deadline_or_nothing() -> None:
    own, records = play(RUN.replace(devices=KNOWN.replace(deadline=5)))
    assert cohorts(records) == [[]] * 4 and seconds(records) == [5] * 4
    assert {record.kind for record in records} == {"nobody"}
    assert not own.replicates[0].state.w_P.any()
    nobody = RUN.replace(participation=Only(ids=[]))
    late = nobody.replace(devices=KNOWN.replace(deadline=7))
    assert seconds(play(late)[1]) == [7] * 4
    assert seconds(play(nobody.replace(devices=KNOWN))[1]) == [0] * 4


def test_extra_vectors_take_time_but_make_nobody_late() -> None:
    # SCAFFOLD sends two vectors each way: 160 / 40 + 2 + 160 / 20 = 14 seconds.
    once = RUN.replace(algorithm=SCAFFOLD(), devices=KNOWN.replace(deadline=8))
    _, records = play(once)
    assert cohorts(records) == [[0]] * 4
    assert seconds(records) == [14] * 4
    # Of 20 parameters, 2 values and their places are sent.
    few = Compressed(inner=FedAvg(), compression=TopK(fraction=0.1))
    _, compressed = play(RUN.replace(algorithm=few, devices=KNOWN))
    sent = compressed[1].bytes_up
    assert sent < 80 and compressed[1].cohorts == [[0]]
    assert seconds(compressed)[1] == 80 / 40 + 2 + sent / 20


def test_the_requests_of_a_round_are_added() -> None:
    class Twice(fl.Algorithm):
        def round(self, state: State, ids: Any, key: Key) -> Any:
            local = fl.LocalTraining(lr=0.1, batch_size=1, steps=5)
            yield fl.Train(state.w_P, ids, local=local)
            update = yield fl.Train(state.w_P, ids[:1])
            return State(state.w_P - update.delta_MP[0])

    _, records = play(RUN.replace(algorithm=Twice(), devices=KNOWN))
    # 2 + 5 + 4 and 1 + 50 + 4 seconds; then client 0 alone.
    assert seconds(records) == [55 + 8, 11 + 8, 55 + 8, 11 + 8]
    late = KNOWN.replace(deadline=10)
    _, records = play(RUN.replace(algorithm=Twice(), devices=late))
    assert seconds(records) == [11 + 8] * 4


def test_the_server_alone_waits_for_no_client(tiny: fl.Run) -> None:
    slow = fl.Devices(step_seconds=[1] * 5 + [100] * 5, deadline=50)
    run = tiny.replace(algorithm=fl.SAFARI(client_prob=0.5), devices=slow, rounds=12)
    _, records = play(run)
    found = {record.kind: set() for record in records}
    for record in records:
        found[record.kind].add(record.metrics["virtual_seconds"])
    assert found["server"] == {0.0}
    assert max(found["client"]) == 50 and 0 < min(found["client"]) < 50


def test_a_server_that_asks_for_losses_alone_waits_for_late_clients(
    tiny: fl.Run,
) -> None:
    class Asking(KnowsLocalTraining):
        def round(self, state: State, ids: Any, key: Key) -> Any:
            yield from self.losses(state.w_P, ids, 1)
            return state

    slow = fl.Devices(step_seconds=[1] * 5 + [100] * 5, deadline=50)
    run = tiny.replace(algorithm=Asking(), devices=slow, participation=Full())
    _, records = play(run)
    assert {record.kind for record in records} == {"nobody"}
    assert {record.metrics["virtual_seconds"] for record in records} == {50.0}


def test_training_that_goes_on_takes_the_steps_that_are_left() -> None:
    # Client 0 has 4 samples: 4 steps a pass, of which 3 and then 1 are taken.
    local = ContinuedTraining(
        lr=0.1, batch_size=1, steps=3, momentum=0.9, keep_optimizer=True
    )
    alone = RUN.replace(participation=Only(ids=[0]), local=local)
    _, records = play(alone.replace(devices=fl.Devices(step_seconds=2)))
    assert seconds(records) == [6, 2, 6, 2]
    _, late = play(alone.replace(devices=fl.Devices(step_seconds=2, deadline=5)))
    # It never takes its first 3 steps in time.
    assert cohorts(late) == [[]] * 4


class Only(fl.Participation):
    """The same clients participate in each round."""

    ids: list[int]

    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, fl.Cohort]:
        """Return these clients."""
        return state, fl.Cohort(list(self.ids))


def test_devices_that_lose_nobody_change_no_other_number(tiny: fl.Run) -> None:
    plain, records = play(tiny)
    timed, with_seconds = play(tiny.replace(devices=fl.Devices(step_seconds=1)))
    assert len(records) == len(with_seconds) > 0
    for one, other in zip(records, with_seconds, strict=True):
        found = {**asdict(other), "seconds": one.seconds}
        assert found["metrics"].pop("virtual_seconds") > 0
        assert found == asdict(one)
    assert torch.equal(plain.replicates[1].state.w_P, timed.replicates[1].state.w_P)


def test_runs_without_devices_keep_their_ids(tiny: fl.Run) -> None:
    assert "devices" not in tiny.to_json()
    timed = tiny.replace(devices=fl.Devices(step_seconds=[1.0] * 10))
    assert timed.id != tiny.id and timed.replace(devices=None).id == tiny.id
    assert fl.Run.from_json(timed.to_json()) == timed
    assert "virtual_seconds" in timed.columns()
    assert "virtual_seconds" not in (tiny.columns())


DRAWN = fl.Devices(
    step_seconds=0.1,
    bytes_up_per_second=1e4,
    spread=0.8,
    dropout=0.2,
    deadline=1.5,
    report=3,
)


def test_packs_equal_their_runs_alone(tiny: fl.Run) -> None:
    continued = ContinuedTraining(lr=0.05, batch_size=8, steps=3, momentum=0.9)
    users = {}
    for i, algorithm in enumerate([*ALGORITHMS, fl.SAFARI(client_prob=0.5)]):
        run = tiny.replace(
            {
                "algorithm": algorithm,
                "participation": Bernoulli(rate=0.5, at_least_one=False),
                "local": continued if i % 3 == 0 else tiny.local,
                "devices": DRAWN if i % 4 else None,
                "rounds": 5,
                "eval_every": 3,
                "replicates": 1,
            }
        )
        users |= {f"{i} {s}": run.replace(seed=s) for s in range(3)}
    assert_equal_to_themselves_alone(users)


def test_clients_drop_out_with_their_probability_anew_in_each_round() -> None:
    devices = fl.Devices(step_seconds=1, dropout=0.3, deadline=9)
    N, rounds = 400, 30
    left_TN = np.zeros((rounds, N))
    for t in range(rounds):
        ids = np.arange(N)
        picked = Cohorts(ids, np.array([N]), np.zeros(1, bool), np.full(1, np.nan))
        keys = Keys(np.array([5], np.uint64), t)
        found, is_late_R = devices.reporting(picked, keys, np.ones(N))
        left_TN[t, found.ids] = 1
        assert is_late_R.tolist() == [True]
    sigma = math.sqrt(0.3 * 0.7 / left_TN.size)
    assert abs(left_TN.mean() - 0.7) < 4 * sigma
    # Each pair of rounds, and of neighbours, is as often alike as independent ones are.
    alike = 0.7**2 + 0.3**2
    for one, other in ((left_TN[1:], left_TN[:-1]), (left_TN[:, 1:], left_TN[:, :-1])):
        found = (one == other).mean()
        assert abs(found - alike) < 4 * math.sqrt(alike * (1 - alike) / one.size)


def test_numbers_of_clients_are_lognormal_and_depend_on_seed_and_client_alone() -> None:
    devices = fl.Devices(step_seconds=2, spread=0.5)

    def times(seed: int, clients: list[int]) -> Any:
        ones = np.ones(len(clients), int)
        seeds = np.full(len(clients), seed, np.uint64)
        return devices.seconds(seeds, np.array(clients), ones, (0, 0))

    everybody = list(range(3000))
    z = np.log(times(1, everybody) / 2) / 0.5
    assert abs(z.mean()) < 4 / math.sqrt(len(z))
    assert abs(z.std() - 1) < 4 / math.sqrt(2 * len(z))
    assert times(1, [77, 5]).tolist() == times(1, everybody)[[77, 5]].tolist()
    assert times(2, [77]) != times(1, [77])


@given(st.data())
def test_who_reports_is_as_one_cohort_after_another(data: st.DataObject) -> None:
    times = st.sampled_from([1.0, 2.0, 3.0, 4.0])
    groups = data.draw(st.lists(st.lists(times, max_size=6), min_size=1, max_size=4))
    deadline = data.draw(st.none() | st.sampled_from([0.5, 2.0, 3.0]))
    report = data.draw(st.none() | st.integers(1, 4))
    devices = fl.Devices(step_seconds=1, deadline=deadline, report=report)
    R = len(groups)
    ids = [list(range(10, 10 + len(group))) for group in groups]
    picked = Cohorts(
        np.array([i for own in ids for i in own], np.int64),
        np.array([len(group) for group in groups]),
        np.zeros(R, bool),
        np.full(R, np.nan),
    )
    keys = Keys(np.arange(R, dtype=np.uint64), 0)
    seconds_T = np.array([t for group in groups for t in group])
    found, is_late_R = devices.reporting(picked, keys, seconds_T)
    for r, group in enumerate(groups):
        in_time = [
            i for i, t in zip(ids[r], group, strict=True) if t <= (deadline or 9)
        ]
        first = sorted(in_time, key=lambda i: group[i - 10])[: report or 99]
        assert found.lists()[r] == sorted(first)
        wanted = min(report or 99, len(group))
        assert is_late_R[r] == (len(first) < wanted or not group)


def test_a_table_gives_each_client_its_numbers(tmp_path: Path) -> None:
    frame = pd.DataFrame({"client": [2, 0, 1], "step_seconds": [3.0, 1.0, 2.0]})
    frame.to_csv(tmp_path / "devices.csv", index=False)
    frame.to_parquet(tmp_path / "devices.parquet")
    for name in ("devices.csv", "devices.parquet"):
        found = fl.Devices.from_table(tmp_path / name, deadline=9)
        assert found == fl.Devices(step_seconds=[1.0, 2.0, 3.0], deadline=9)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("client,step_seconds\n0,1\n2,1\n", "each id from 0 to 1 once"),
        ("step_seconds\n1\n", "is no CSV or Parquet table with a column 'client'"),
        ("client,step_second\n0,1\n", "did you mean 'step_seconds'"),
        ("client,step_seconds\n0,-1\n", "greater than 0"),
        ("client,step_seconds\n0,1\n1,\n", "finite number"),
        ("client,deadline\n0,1\n", r"has the columns \['deadline'\], which"),
    ],
)
def test_a_wrong_table_is_refused(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "devices.csv").write_text(content)
    with pytest.raises(ValueError, match=words):
        fl.Devices.from_table(tmp_path / "devices.csv", deadline=2)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "step_seconds: Field required"),
        ({"step_seconds": 0}, "greater than 0"),
        ({"step_seconds": 1, "dropout": 0.1}, "dropout=0.1 needs a deadline"),
        ({"step_seconds": 1, "dropout": 1, "deadline": 1}, "less than 1"),
        ({"step_seconds": [1.0] * 9}, "has 9 entries for N = 10 clients"),
        ({"step_seconds": 1, "report": 0}, "greater than 0"),
        ({"step_seconds": 1, "spread": 1000}, "less than or equal to 10"),
    ],
)
def test_devices_that_do_not_fit_are_refused(
    fields: dict[str, Any], words: str, tiny: fl.Run
) -> None:
    with pytest.raises(ValueError, match=words):
        tiny.replace(devices=fl.Devices(**fields))
