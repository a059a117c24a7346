"""Parts of a sweep: each run belongs to one of them, by its id alone."""

from pathlib import Path

import pytest

from raysafl import Run, Runner, Sweep
from raysafl.quickstart import SWEEP
from raysafl.sweep.shard import in_shard
from raysafl.tracking.choice import Tracking


@pytest.mark.parametrize("parts", [1, 2, 3, 8, 100])
def test_each_run_belongs_to_one_part_whatever_else_is_in_the_sweep(parts: int) -> None:
    ids = [run.id for run in SWEEP.labelled().values()]
    shards = [f"{part}/{parts}" for part in range(1, parts + 1)]
    assert sorted(i for shard in shards for i in in_shard(ids, shard)) == sorted(ids)
    for shard in shards:
        assert [i for i in ids if in_shard([i], shard)] == in_shard(ids, shard)


@pytest.mark.parametrize("shard", ["0/8", "9/8", "3", "a/b", "1/0", "-1/8"])
def test_a_part_that_is_not_there_is_refused(tiny: Run, shard: str) -> None:
    with pytest.raises(ValueError, match="--shard"):
        Runner(Sweep("mine", [tiny]), shard=shard)


def test_a_part_without_runs_ends_well_and_names_all_runs(
    tiny: Run, tmp_path: Path
) -> None:
    sweep = Sweep("mine", [tiny])
    (empty,) = [s for s in ("1/2", "2/2") if not in_shard([tiny.id], s)]
    outcome = Runner(
        sweep,
        tmp_path / "s",
        executor="here",
        track=Tracking.NONE,
        quiet=True,
        shard=empty,
    ).run()
    assert outcome.ok
    assert [entry.run_id for entry in outcome.manifest.entries] == [tiny.id]
    assert not outcome.store.ledger()


def test_nodes_are_waited_for_only_where_a_cluster_is_named(tiny: Run) -> None:
    with pytest.raises(ValueError, match="give its address"):
        Runner(Sweep("mine", [tiny]), wait_nodes=2)
