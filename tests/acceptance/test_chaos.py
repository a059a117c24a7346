"""Random parts of a sweep are killed at random times; its rows are those of an undisturbed one."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from helpers.chaos import Chaos, sweep, undisturbed
from helpers.environment import CHAOS

from raysafl.storage.store import Store
from raysafl.storage.verify import verify


# Without Ray rounds are quicker, so that there are more in which to kill.
@pytest.mark.parametrize(("executor", "rounds"), [("here", 1000), ("ray", 200)])
def test_a_study_whose_parts_are_killed_while_it_grows_has_the_rows_of_an_undisturbed_one(
    executor: str,
    rounds: int,
    tmp_path: Path,
    pytestconfig: pytest.Config,
    record_property: Callable[[str, object], None],
) -> None:
    most, first = map(pytestconfig.getoption, ("--chaos", "--chaos-seed"))
    # Without Ray there is one kind of part to kill.
    most = most if executor == "ray" else most // 2
    # How many seeds and rounds the study has at first, and to how many it then grows.
    growth = [(1, rounds), (2, 2 * rounds)]
    chaos, seed = Chaos(first, executor), 0
    try:
        while chaos.kills.total() < most:
            assert seed < 10 * most, (
                f"a study or more ended without a kill: {chaos.kills}"
            )
            folder = tmp_path / str(seed)
            folder.mkdir()
            for left, extent in zip((2, 1), growth, strict=True):
                share = -(-(most - chaos.kills.total()) // left)
                chaos.run(folder / "chaos", chaos.kills.total() + share, seed, *extent)
            expected = undisturbed(folder / "reference", seed, *growth[-1])
            store = Store(folder / "chaos")
            pd.testing.assert_frame_equal(chaos.compare(store, expected), expected)
            assert verify(store) == []
            seed += 10
    finally:
        chaos.clean()
        line = f"{executor}: {chaos.summary()}; {seed // 10} studies of {len(sweep(0).runs)} runs"
        record_property(CHAOS, line)
    assert chaos.lost == chaos.doubled == 0
