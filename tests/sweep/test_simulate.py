"""One run in this process: the rows of a sweep, without Ray, with the user's own traceback."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import ray
from helpers.here import run_in_process

from raysafl import FedAvg, PerClient, Run, Validation, simulate
from raysafl.algorithms import Key
from raysafl.core.algorithm import Algorithm, Round, State
from raysafl.objectives import Classification
from raysafl.runtime.in_process import Worker
from raysafl.storage.store import Store
from raysafl.sweep.definition import smoke


def test_a_smoke_run_keeps_the_test_samples_by_which_clients_are_judged(
    tiny: Run,
) -> None:
    full = tiny.replace({"data.validation": Validation(server=0.1), "rounds": 12})
    judged = full.replace(eval_clients=PerClient(every=12))
    assert smoke(judged).data == judged.data
    assert smoke(full).data != full.data


class Talking(Algorithm):
    """FedAvg that prints the number of its round, and fails in the third."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        print(f"round {key.round}")
        if key.round == 2:
            raise RuntimeError("a user's mistake")
        return (yield from FedAvg().round(state, ids, key))


class Exploding(Algorithm):
    """Makes parameters that are not finite in its second round."""

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        new = yield from FedAvg().round(state, ids, key)
        return State(new.w_P * float("inf")) if key.round == 1 else new


@pytest.mark.parametrize(
    "change",
    [{}, {"eval_every": 3}, {"objective": Classification(label_smoothing=0.2)}],
    ids=["plain", "every third round", "another objective"],
)
def test_the_rows_are_those_that_a_sweep_writes(
    change: dict[str, Any],
    tiny: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = tiny.replace(change)
    store = Store(tmp_path / "s")
    store.create()
    data = run.data.load()
    work = Worker(run.cells, data, run.model, objective=run.objective)
    run_in_process(run, store, work)

    def no_ray(*_: object, **__: object) -> None:
        raise AssertionError("Ray is not to be started")

    monkeypatch.setattr(ray, "init", no_ray)
    rounds = simulate(run)
    written = store.rounds().sort_values(["replicate", "round"], ignore_index=True)
    expected = written.drop(columns=["run_id", "seconds"])
    pd.testing.assert_frame_equal(rounds.drop(columns="seconds"), expected)
    assert list(rounds.columns) == [c for c in written.columns if c != "run_id"]
    assert rounds["seconds"].gt(0).all()


def test_what_the_user_s_code_prints_and_raises_is_seen_where_it_happens(
    tiny: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeError, match="a user's mistake") as raised:
        simulate(tiny.replace(algorithm=Talking(), replicates=1))
    assert raised.traceback[-1].path == Path(__file__)
    assert capsys.readouterr().out.splitlines() == ["round 0", "round 1", "round 2"]


def test_a_replicate_that_diverges_is_named_and_keeps_its_rows_before(
    tiny: Run,
) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        rounds = simulate(tiny.replace(algorithm=Exploding()))
    said = [str(warning.message).partition(":")[0] for warning in warned]
    assert said == ["replicate 0 diverged", "replicate 1 diverged"]
    assert warned[0].filename == __file__
    assert rounds["round"].tolist() == [0, 0]
