"""Packs change no result: runs together equal runs alone, also after kills and mistakes."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from helpers.chaos import CLOCK, KEY, Chaos, rows
from helpers.environment import CHAOS
from helpers.many_runs import command, many, sweep_of
from helpers.matrix import ALGORITHMS, policies

from raysafl import FedAvg, Hardware, Run, Runner, Sweep
from raysafl.algorithms import Key
from raysafl.core.algorithm import Algorithm, Round, State
from raysafl.core.record import Record
from raysafl.quickstart import SWEEP as QUICKSTART
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Simulation
from raysafl.storage.ledger import Status
from raysafl.storage.rows import of_owners, table_of
from raysafl.storage.store import Store
from raysafl.storage.verify import verify

# Runs of a pack, and client actors of a trial; 0 for this process.
SIZES = [(1, 2), (3, 0), (64, 0)]


class FailsInRound7(Algorithm):
    """Plain averaging with a mistake in round 7."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        if key.round == 7:
            raise RuntimeError("a mistake in round 7")
        return (yield from FedAvg().round(state, ids, key))


class Explodes(Algorithm):
    """The parameters become infinite in round 5."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        state = yield from FedAvg().round(state, ids, key)
        factor = float("inf") if key.round == 5 else 1.0
        return State(state.w_P * factor, state.server, state.clients)


def alone(runs: Sequence[Run], engine: str = "fused") -> pd.DataFrame:
    """The rows of runs of one dataset, each computed by itself in this process."""
    dataset = runs[0].data.load()
    tables = []
    for run in runs:
        work = Worker(run.cells, dataset, run.model, engine=engine)
        simulation = Simulation(run, work)
        records = list[Record]()
        while not simulation.done:
            records += simulation.step()
        cells = [run.cell_ids[record.replicate] for record in records]
        tables.append(table_of(cells, records))
    owners = {run.id: run.cell_ids for run in runs}
    frame = of_owners(pa.concat_tables(tables), owners).to_pandas().drop(columns=CLOCK)
    return frame.sort_values(KEY).reset_index(drop=True)


def together(
    sweep: Sweep, out: Path, pack: int, actors: int, engine: str = "auto"
) -> Store:
    """A sweep whose packs have at most `pack` runs, on Ray or (0 actors) in this process."""
    hardware = Hardware(pack=pack)
    if actors:
        hardware = Hardware(pack=pack, actors=actors, cpus=0.5, trials=2 // actors)
    runner = Runner(
        sweep,
        out=out,
        hardware=hardware,
        executor="ray" if actors else "here",
        engine=engine,
        quiet=True,
        track="none",
    )
    runner.run()
    return runner.store


@pytest.mark.usefixtures("ray_local")
@pytest.mark.parametrize(("pack", "actors"), SIZES)
def test_the_quickstart_in_packs_of_any_size_has_the_rows_of_its_runs_alone(
    pack: int, actors: int, tmp_path: Path
) -> None:
    runs = [run.replace(rounds=20) for run in QUICKSTART.labelled().values()]
    # On Ray, each pack of one run is a trial, which takes a second to begin.
    runs = runs[::3] if actors else runs
    expected = alone(runs)
    found = rows(together(sweep_of(runs), tmp_path / "s", pack, actors))
    pd.testing.assert_frame_equal(found, expected)


@pytest.mark.usefixtures("ray_local")
@pytest.mark.parametrize("engine", ["fused", "linear", "loop"])
def test_every_algorithm_under_every_policy_has_equal_rows_in_a_pack_with_all_others(
    engine: str, tiny: Run, tmp_path: Path
) -> None:
    """An engine sees tasks and no policies, so one engine has all policies, others some."""
    some = list(policies(tmp_path).values())[:: 1 if engine == "fused" else 8]
    runs = {
        run.id: run
        for policy in some
        for algorithm in ALGORITHMS
        for run in [
            tiny.replace(algorithm=algorithm, participation=policy, replicates=1)
        ]
    }
    expected = alone(list(runs.values()), engine)
    for pack, actors in [(64, 0), (3, 2 if engine == "fused" else 0)]:
        chosen = list(runs.values()) if pack > 3 else list(runs.values())[::19]
        out = tmp_path / f"{pack}-{actors}"
        found = rows(together(sweep_of(chosen), out, pack, actors, engine))
        due = expected[expected["run_id"].isin([run.id for run in chosen])]
        pd.testing.assert_frame_equal(found, due.reset_index(drop=True))


@pytest.mark.usefixtures("ray_local")
def test_of_a_pack_of_64_one_run_fails_one_diverges_one_ends_early_and_61_notice_nothing(
    tiny: Run, tmp_path: Path
) -> None:
    base = tiny.replace(rounds=12, replicates=1)
    good = [base.replace(seed=10 * k) for k in range(61)]
    odd = [
        base.replace(algorithm=FailsInRound7()),
        base.replace(algorithm=Explodes()),
        base.replace(rounds=3),
    ]
    runs = [*good[:20], odd[0], *good[20:30], odd[1], *good[30:], odd[2]]
    store = together(sweep_of(runs), tmp_path / "s", 64, 1)
    ledger = store.ledger()
    expected_status = [Status.FAILED, Status.DIVERGED, Status.FINISHED]
    assert [ledger[run.id].status for run in odd] == expected_status
    assert "a mistake in round 7" in ledger[odd[0].id].reason
    assert "round 5" in ledger[odd[1].id].reason
    assert all(ledger[run.id].status is Status.FINISHED for run in good)

    found = rows(store)
    of_good = found[found["run_id"].isin([run.id for run in good])]
    expected = alone(good)
    pd.testing.assert_frame_equal(of_good.reset_index(drop=True), expected)
    rounds = found.groupby("run_id")["round"].agg(["min", "max"])
    assert rounds.loc[odd[0].id].tolist() == [0, 6]
    assert rounds.loc[odd[1].id].tolist() == [0, 4]
    assert rounds.loc[odd[2].id].tolist() == [0, 2]


def test_a_sweep_of_many_small_runs_that_is_killed_ten_times_loses_and_doubles_none(
    tmp_path: Path,
    pytestconfig: pytest.Config,
    record_property: Callable[[str, object], None],
) -> None:
    """Driver, coordinators, client actors and the node are killed at seeded moments."""
    count = pytestconfig.getoption("--many")
    if not count:
        pytest.skip("takes minutes: ask for it by --many 10000")
    out = tmp_path / "s"
    chaos = Chaos(seed=1)
    try:
        chaos.repeat(command(count, out, pack=64), out, most=10)
    finally:
        chaos.clean()
    runs = list(many(count).labelled().values())
    expected = alone(runs)
    store = Store(out)
    found = chaos.compare(store, expected)
    pd.testing.assert_frame_equal(found, expected)
    assert chaos.lost == chaos.doubled == 0
    assert verify(store) == []
    files = [file for file in out.rglob("*") if file.is_file()]
    record_property(
        CHAOS, f"{count} runs in packs: {chaos.summary()}; {len(files)} files"
    )
    assert len(files) < 300
