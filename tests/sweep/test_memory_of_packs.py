"""What packs are formed by, the estimated memory of a run, against what a run takes."""

import itertools
import json
import os
import subprocess
import sys

import pytest

ALGORITHMS = ("FedAvg", "SCAFFOLD", "FedProx", "FedAvgM")
# The heap has holes, so peaks vary by a tenth from one process to the next.
MOST, LEAST = 1.3, 0.65
# Of two algorithms, each with two engines and two cohorts: which of the eight are measured.
HALF = (True, False, False, True, False, True, True, False)


@pytest.mark.acceptance
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("model", "algorithms", "cohorts"),
    [
        ("mlp", ALGORITHMS, (2, 8)),
        ("cnn", ALGORITHMS, (2, 8)),
    ],
)
def test_large_models_take_about_the_memory_that_is_estimated(
    model: str, algorithms: tuple[str, ...], cohorts: tuple[int, ...]
) -> None:
    # Each two of algorithm, engine and cohort meet, in half of all combinations.
    every = itertools.product([model], algorithms, ("vmap", "loop"), cohorts)
    asked = [one for i, one in enumerate(every) if HALF[i % len(HALF)]]
    answer = subprocess.run(
        [sys.executable, "-m", "helpers.peak_memory", json.dumps(asked)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    told = [json.loads(line) for line in answer.splitlines()]
    found = {
        one: round(its["peak"] / its["estimate"], 2)
        for one, its in zip(asked, told, strict=True)
    }
    wrong = {one: ratio for one, ratio in found.items() if not LEAST < ratio < MOST}
    assert not wrong
