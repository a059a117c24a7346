"""The prediction of docs/scale.md, against sums by hand on numbers that are made up."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from benchmarks import prediction


def axis(points: Sequence[int], **of: Callable[[int], float]) -> dict[str, Any]:
    """An axis of three processes a point, which agree."""
    taken = [[{name: f(x) for name, f in of.items()}] * 3 for x in points]
    return {"points": list(points), "taken": taken}


SCALING = {
    # 1 ms a run and round; 1 MiB a run beyond 400 and 500 MiB.
    "packs": axis(
        [1, 8, 64, 512],
        seconds=lambda n: n / 1000,
        memory=lambda n: 400 + n,
        actor=lambda n: 500 + n,
        header=lambda n: 500,
        parameters=lambda n: 7850,
    ),
    "at-once": axis([1, 2, 3, 4], seconds=lambda n: 0.75 + 0.25 * n),
    "reports": axis([1, 100, 1000], processor=lambda n: 5 + 0.002 * n),
    "trials": axis(
        [1, 10, 100, 1000],
        processor=lambda n: 10 + 0.01 * n,
        sync=lambda n: 1 + 0.004 * n,
        database=lambda n: 3000 * n,
        bytes=lambda n: 1200 * n,
        row=lambda n: 300,
    ),
}
CPU = {
    "s1": {"seconds": {"bare": [120.0, 60.0, 240.0]}},
    "report_s": 20.0,
    "trials": {"runs": 10_000},
}


def test_a_sweep_is_predicted_as_counted_by_hand() -> None:
    measured = prediction.Measured.of(SCALING, CPU)
    found = prediction.predict(prediction.SMALL, measured)
    # 100,000 runs by 512 trials in four packs each: 48.8.
    assert found["runs of a pack"] == found["cells of a pack"] == 49
    assert found["packs"] == 2041
    # 49 runs of 1,000 rounds of 1 ms, a quarter slower beside a neighbour.
    assert found["time of a pack"] == pytest.approx(49 * 1.25)
    assert found["the rounds of all packs"] == pytest.approx(2041 * 61.25 / 512)
    # Ten of 1,000 rounds are evaluated.
    assert found["messages"] == pytest.approx(2041 * 1000 * 2.02)
    cell = 2.01 * 4 * 7850 + 40 * 10 + 500
    assert found["bytes of a round of a pack"] == pytest.approx(49 * cell)
    # 1.5 MB of vectors are too large for the parts of a message.
    stored = 70_000 * 792 + 32 * 2 * 49 * 4 * 7850
    assert found["object store of a node"] == stored
    memory = 32 * (400 + 49 + 500 + 49) * 2**20
    assert found["memory of a node"] == pytest.approx(memory)
    rate = found["bytes of checkpoints a second, to the driver"]
    assert rate == pytest.approx(512 * 49 * 4 * 7850 / 30)
    reports = 2041 * 61.25 / 2
    driver = reports * 0.002 + 100_000 * 0.01
    assert found["processor time of the driver"] == pytest.approx(driver)
    assert found["time of MLflow (summaries)"] == pytest.approx(400)
    assert found["time of the report"] == pytest.approx(200)

    table8 = prediction.predict(prediction.TABLE8, measured)
    assert table8["time of a run"] == 120 * 2 / 24
    assert table8["cells of a pack"] == 49 * 5
    assert table8["memory of the report"] == 100_000 * 5 * 150 * 300 * 2
