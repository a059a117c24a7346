"""Parts of a sweep: each run belongs to one of them, by its id alone."""

from itertools import chain
from pathlib import Path

import pytest
from helpers.sweeps_here import go

from raysafl import FSL, Run, Runner, Sweep
from raysafl.quickstart import SWEEP
from raysafl.sweep.attempt import Attempt


def chosen(sweep: Sweep, shard: str) -> list[str]:
    """The ids of the runs that belong to a part of a sweep."""
    return Attempt(Runner(sweep, shard=shard)).chosen


@pytest.mark.parametrize("parts", [1, 2, 100])
def test_each_run_belongs_to_one_part_whatever_else_is_in_the_sweep(parts: int) -> None:
    runs = SWEEP.labelled()
    shards = [f"{part}/{parts}" for part in range(1, parts + 1)]
    found = [chosen(SWEEP, shard) for shard in shards]
    assert sorted(chain(*found)) == sorted(run.id for run in runs.values())
    few = Sweep(
        "few", [run for run in runs.values() if not isinstance(run.algorithm, FSL)]
    )
    for shard, ids in zip(shards, found, strict=True):
        assert set(chosen(few, shard)) == {*ids} & {
            run.id for run in few.labelled().values()
        }


@pytest.mark.parametrize("shard", ["0/8", "9/8", "3", "a/b", "1/0", "-1/8"])
def test_a_part_that_is_not_there_is_refused(tiny: Run, shard: str) -> None:
    with pytest.raises(ValueError, match="--shard"):
        Runner(Sweep("mine", [tiny]), shard=shard)


def test_a_part_without_runs_ends_well_and_names_all_runs(
    tiny: Run, tmp_path: Path
) -> None:
    sweep = Sweep("mine", [tiny])
    (empty,) = [shard for shard in ("1/2", "2/2") if not chosen(sweep, shard)]
    outcome, _ = go(sweep, tmp_path / "s", shard=empty)
    assert outcome.ok and not outcome.store.ledger()
    assert [entry.run_id for entry in outcome.manifest.entries] == [tiny.id]


def test_nodes_are_waited_for_only_where_a_cluster_is_named(tiny: Run) -> None:
    with pytest.raises(ValueError, match="give its address"):
        Runner(Sweep("mine", [tiny]), wait_nodes=2)
