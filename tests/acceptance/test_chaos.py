"""Random parts of a sweep are killed at random times; its rows are those of an undisturbed one."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from helpers.chaos import Chaos, sweep, undisturbed
from helpers.environment import CHAOS

from raysafl.storage.store import Store


def test_a_sweep_whose_parts_are_killed_ends_with_the_rows_of_an_undisturbed_one(
    tmp_path: Path,
    pytestconfig: pytest.Config,
    record_property: Callable[[str, object], None],
) -> None:
    most, seed = (
        pytestconfig.getoption("--chaos"),
        pytestconfig.getoption("--chaos-seed"),
    )
    chaos, repeat = Chaos(seed), 0
    try:
        while chaos.kills.total() < most:
            assert repeat < most, f"a sweep or more ended without a kill: {chaos.kills}"
            folder = tmp_path / str(repeat)
            folder.mkdir()
            chaos.run(10 * repeat, folder / "chaos", most)
            expected = undisturbed(10 * repeat, folder / "reference")
            found = chaos.compare(Store(folder / "chaos"), expected)
            pd.testing.assert_frame_equal(found, expected)
            repeat += 1
    finally:
        chaos.clean()
        line = f"{chaos.summary()}; {repeat} sweeps of {len(sweep(0).runs)} runs"
        record_property(CHAOS, line)
    assert chaos.lost == chaos.doubled == 0
