"""Traces of availability: read, checked before anything runs, and part of a run's id."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.refused import refused

import raysafl as fl
from raysafl import Participation, Run, Snapshot, Uniform
from raysafl.algorithms import Key
from raysafl.participation import Trace
from raysafl.participation.trace import intervals
from raysafl.sweep.prepare import prepare

# client 0 in rounds 0-2, 1 in 1-3, 2 in 3 and (two rows that overlap) 4-6
ROWS = [(0, 0, 3), (1, 1, 4), (2, 3, 4), (2, 4, 6), (2, 5, 7)]
THERE = [[0], [0, 1], [0, 1], [1, 2], [2], [2], [2]]


def table(rows: list[tuple[Any, ...]], *names: str) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(names or ("client", "start", "end")))


def csv(folder: Path, rows: list[tuple[Any, ...]], *names: str) -> str:
    table(rows, *names).to_csv(folder / "trace.csv", index=False)
    return str(folder / "trace.csv")


def there(policy: Participation, rounds: int, clients: int = 3) -> list[list[int]]:
    policy.check(clients)
    return [policy.pick(None, clients, Key(0, t), None)[1].ids for t in range(rounds)]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_whoever_has_an_interval_comes_and_the_trace_repeats(
    tmp_path: Path, kind: str
) -> None:
    frame = table(list(reversed(ROWS))).assign(city="x")
    file = tmp_path / f"trace.{kind}"
    frame.to_csv(file) if kind == "csv" else frame.to_parquet(file)
    assert there(Trace(file=str(file)), 17) == (THERE * 3)[:17]


def test_a_log_in_seconds_tells_who_is_there_when_a_round_begins(
    tmp_path: Path,
) -> None:
    origin = 1_700_000_030.5
    log = [(0, 0, 60), (1, 59.5, 120.25), (2, 61, 119), (0, 150, 400), (3, 180, 180.1)]
    rows = [(i, origin + start, origin + end) for i, start, end in log]
    policy = Trace(file=csv(tmp_path, rows[::-1]), round_seconds=60)
    expected = [
        [i for i in range(4) if any(i == j and s <= 60 * t < e for j, s, e in log)]
        for t in range(7)
    ]
    assert expected == [[0], [1], [1], [0, 3], [0], [0], [0]]
    assert there(policy, 10, clients=4) == (expected * 2)[:10]
    # As rounds, these numbers would be refused.
    with pytest.raises(ValueError, match=r"whole numbers \(any numbers with"):
        policy.replace(round_seconds=None).check(4)


@pytest.mark.parametrize(
    "row",
    [
        (1, 30.5, 30.2),
        (1, 5, 5),
        (1, float("nan"), 9),
        (1, 3, float("inf")),
        (0.5, 3, 9),
        (0, "2024-03-01 10:00", "2024-03-01 11:00"),
    ],
)
def test_a_wrong_log_in_seconds_is_refused(
    tmp_path: Path, row: tuple[Any, ...]
) -> None:
    policy = Trace(file=csv(tmp_path, [(0, -7, 99), row]), round_seconds=60)
    with pytest.raises(ValueError, match=r"row 1, has client = "):
        policy.check(3)
    with pytest.raises(ValueError, match="round_seconds"):
        Trace(file=policy.file, round_seconds=0)


def test_with_m_at_most_m_come(tmp_path: Path) -> None:
    seen = there(Trace(file=csv(tmp_path, ROWS), m=1), 70)
    assert all(len(ids) == 1 for ids in seen)
    assert all(ids[0] in THERE[t % 7] for t, ids in enumerate(seen))
    assert {ids[0] for ids in seen[1::7]} == {0, 1}


def test_the_content_of_the_file_is_part_of_the_id(tmp_path: Path, tiny: Run) -> None:
    file = csv(tmp_path, [(i, 0, 5) for i in range(10)])
    run = tiny.replace(participation=Trace(file=file))
    assert Run.from_json(run.to_json()) == run
    assert run.id == tiny.replace(participation=Trace(file=file)).id
    csv(tmp_path, [(i, 0, 6) for i in range(10)])
    assert run.id != tiny.replace(participation=Trace(file=file)).id
    in_seconds = Trace(file=file, round_seconds=0.5)
    assert Participation.from_json(in_seconds.to_json()) == in_seconds
    assert in_seconds.digest() != in_seconds.replace(round_seconds=None).digest()
    intervals.cache_clear()  # as in another process
    with pytest.raises(ValueError, match="has changed: its SHA-256 is"):
        Run.from_json(run.to_json())


@pytest.mark.parametrize(
    ("rows", "names", "told"),
    [
        ([(0, 0, 2), (3, 0, 2)], (), "unknown clients [3]; ids go from 0 to 2"),
        ([(0, 0, 2), (-1, 0, 2)], (), "unknown clients [-1]"),
        ([(0, 0, 2), (1, -1, 2)], (), "row 1, has client = 1, start = -1, end = 2"),
        ([(0, 3, 2)], (), "0 <= start < end"),
        ([(0, 2, 2)], (), "0 <= start < end"),
        ([(0, 0.5, 2)], (), "must be whole numbers"),
        ([("Bern", 0, 2), (None, 0, 2)], (), "row 1, has client = nan"),
        ([(0, 0, float("nan"))], (), "must be whole numbers"),
        ([], (), "has no intervals"),
        ([(0, 0, 2)], ("client", "begin", "end"), "the columns client, start, end"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_trace_is_refused_before_anything_runs(
    tmp_path: Path, rows: list[tuple[Any, ...]], names: tuple[str, ...], told: str
) -> None:
    policy = Trace(file=csv(tmp_path, rows, *names))
    assert told in refused(policy.check, 3)


def test_a_missing_or_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.csv cannot be read .*client"):
        Trace(file=str(tmp_path / "nowhere.csv"))
    for name in ("a.parquet", "b.csv"):
        file = tmp_path / name
        file.write_bytes(b"" if name == "b.csv" else b"no parquet")
        with pytest.raises(ValueError, match=r"cannot be read .* CSV or Parquet"):
            Trace(file=str(file)).check(3)


NAMED = [("Genf", 0, 1), ("Bern", 1, 3), ("Basel", 2, 3)]


def hospitals(tiny: Run, policy: Participation, *cities: str) -> Run:
    """A run whose clients are hospitals, each with samples to train on and to test."""
    city = np.repeat(cities or ("Basel", "Bern", "Genf"), 12)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=len(city)), "city": city})
    frame["ill"] = np.arange(len(city)) % 2
    frame["split"] = np.where(np.arange(len(city)) % 6 < 4, "train", "test")
    source = fl.from_pandas(frame, label="ill", client="city", split="split")
    count = len(set(city))
    data = fl.Federation(
        dataset=source, clients=count, partition=fl.ByColumn(column="city")
    )
    return tiny.replace(
        data=data, algorithm=fl.FedAvg(), participation=policy, rounds=3, eval_every=1
    )


def came(run: Run) -> list[list[str]]:
    """The names of the clients that came in each round of the first replicate."""
    dataset = run.data.load()
    names = run.data.client_names(dataset, run.data.split(dataset, run.seed))
    rows = fl.simulate(run).query("replicate == 0")
    return [[names[i] for i in came] for came in rows["cohorts"].explode()]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_trace_may_name_clients_and_follows_the_name_where_the_ids_shift(
    tmp_path: Path, tiny: Run, kind: str
) -> None:
    frame, file = table(NAMED), tmp_path / f"trace.{kind}"
    frame.to_csv(file) if kind == "csv" else frame.to_parquet(file)
    expected = [["Genf"], ["Bern"], ["Basel", "Bern"]]
    run = hospitals(tiny, Trace(file=str(file)))
    assert came(run) == expected
    more = hospitals(tiny, run.participation, "Aarau", "Basel", "Bern", "Genf")
    assert came(more) == expected
    assert Run.from_json(run.to_json()) == run


def test_names_that_look_like_numbers_are_names_where_they_are_text(
    tmp_path: Path, tiny: Run
) -> None:
    file = tmp_path / "trace.parquet"
    table([("2021", 0, 1), ("2020", 1, 3)]).to_parquet(file)
    run = hospitals(tiny, Trace(file=str(file)), "2020", "2021")
    assert came(run) == [["2021"], ["2020"], ["2020"]]
    other = csv(tmp_path, [("2021", 0, 1)])
    with pytest.raises(ValueError, match=r"clients \[2021\]; ids .* must be text"):
        hospitals(tiny, Trace(file=other), "2020", "2021")


def test_a_trace_of_names_inside_another_policy_is_told_them_too(
    tmp_path: Path, tiny: Run
) -> None:
    trace = Trace(file=csv(tmp_path, NAMED))
    policy = Snapshot(base=trace, uniform=Uniform(m=3), every=3)
    run = hospitals(tiny, policy)
    assert came(run) == [["Basel", "Bern", "Genf"], ["Bern"], ["Basel", "Bern"]]


def test_users_are_named_by_their_numbers(tmp_path: Path, tiny: Run) -> None:
    data = fl.Federation(
        dataset=fl.data.Synthetic(users=9), clients=5, partition=fl.data.ByUser()
    )
    dataset = data.load()
    names = data.client_names(dataset, data.split(dataset, 0))
    assert dataset.train.users is not None
    most = np.sort(np.argsort(-np.bincount(dataset.train.users), kind="stable")[:5])
    assert names == tuple(f"user {user}" for user in most)
    trace = Trace(file=csv(tmp_path, [(names[4], 0, 1), (names[2], 1, 2)]))
    run = tiny.replace(data=data, algorithm=fl.FedAvg(), participation=trace, rounds=2)
    assert came(run.replace(eval_every=1)) == [[names[4]], [names[2]]]


@pytest.mark.parametrize(
    ("client", "told"),
    [
        ("Benr", "which is no client with training samples: did you mean "),
        ("Bern", "take data.partition=ByColumn"),
    ],
)
def test_a_name_that_the_data_do_not_know_is_refused_before_anything_runs(
    tmp_path: Path, tiny: Run, client: str, told: str
) -> None:
    run = hospitals(tiny, Trace(file=csv(tmp_path, [(client, 0, 1)])))
    if client == "Bern":
        run = run.replace({"data.partition": fl.Iid()})
    with pytest.raises(ValueError, match=told):
        prepare([run])
