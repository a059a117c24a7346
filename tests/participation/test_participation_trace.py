"""Traces of availability: read, checked before anything runs, and part of a run's id."""

from pathlib import Path

import pandas as pd
import pytest

from raysafl import Key, Participation, Run, Trace
from raysafl.participation.trace import intervals

# client 0 in rounds 0-2, 1 in 1-3, 2 in 3 and (two rows that overlap) 4-6
ROWS = [(0, 0, 3), (1, 1, 4), (2, 3, 4), (2, 4, 6), (2, 5, 7)]
THERE = [[0], [0, 1], [0, 1], [1, 2], [2], [2], [2]]


def table(rows: list[tuple[float, ...]], *names: str) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(names or ("client", "start", "end")))


def csv(folder: Path, rows: list[tuple[float, ...]], *names: str) -> str:
    table(rows, *names).to_csv(folder / "trace.csv", index=False)
    return str(folder / "trace.csv")


def there(policy: Participation, rounds: int, clients: int = 3) -> list[list[int]]:
    policy.check(clients)
    return [policy.pick(None, clients, Key(0, t), None)[1].ids for t in range(rounds)]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_whoever_has_an_interval_comes_and_the_trace_repeats(
    tmp_path: Path, kind: str
) -> None:
    frame, file = (
        table(list(reversed(ROWS))).assign(city="x"),
        tmp_path / f"trace.{kind}",
    )
    frame.to_csv(file) if kind == "csv" else frame.to_parquet(file)
    assert there(Trace(file=str(file)), 17) == (THERE * 3)[:17]


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
    intervals.cache_clear()  # as in another process
    with pytest.raises(ValueError, match="has changed: its SHA-256 is"):
        Run.from_json(run.to_json())


def test_the_file_can_be_an_axis(tmp_path: Path, tiny: Run) -> None:
    first = tiny.replace(
        participation=Trace(file=csv(tmp_path, [(i, 0, 5) for i in range(10)]))
    )
    table([(3, 0, 4)]).to_csv(tmp_path / "other.csv", index=False)
    other = Trace(file=str(tmp_path / "other.csv"))
    assert first.replace({"participation.file": other.file}).participation == other


@pytest.mark.parametrize(
    ("rows", "names", "told"),
    [
        ([(0, 0, 2), (3, 0, 2)], (), "unknown clients [3]; ids go from 0 to 2"),
        ([(0, 0, 2), (-1, 0, 2)], (), "unknown clients [-1]"),
        (
            [(0, 0, 2), (1, -1, 2)],
            (),
            "row 1: an interval starts before round 0: client = 1",
        ),
        ([(0, 3, 2)], (), "row 0: an interval ends before it has begun"),
        ([(0, 2, 2)], (), "row 0: an interval ends before it has begun"),
        ([(0, 0.5, 2)], (), "row 0: client, start and end must be whole numbers"),
        ([(0, 0, float("nan"))], (), "must be whole numbers"),
        ([], (), "has no intervals"),
        ([(0, 0, 2)], ("client", "begin", "end"), "has no column 'start'"),
        (
            [(0, 0, 2)],
            ("clients", "start", "end"),
            "no column 'client': did you mean 'clients'?",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_trace_is_refused_before_anything_runs(
    tmp_path: Path, rows: list[tuple[float, ...]], names: tuple[str, ...], told: str
) -> None:
    policy = Trace(file=csv(tmp_path, rows, *names))
    with pytest.raises(ValueError) as caught:
        policy.check(3)
    assert told in str(caught.value)


def test_a_missing_or_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"nowhere\.csv cannot be read .*client, start, end"
    ):
        Trace(file=str(tmp_path / "nowhere.csv"))
    for name in ("a.parquet", "b.csv"):
        file = tmp_path / name
        file.write_bytes(b"" if name == "b.csv" else b"no parquet")
        with pytest.raises(ValueError, match="is no CSV or Parquet table"):
            Trace(file=str(file)).check(3)
