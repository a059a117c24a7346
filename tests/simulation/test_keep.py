"""Which model a run keeps, whatever interrupts it."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.here import interrupt_in_process, run_in_process, session_of, write
from helpers.packs import play, worker_of
from torch import Tensor

from raysafl import Patience, Run, Validation
from raysafl.core.work import Evaluation, GroupSums, Summed
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Simulation
from raysafl.storage.store import Store

NAN = math.nan


class Scripted(Worker):
    """Gives the scores of a list, one evaluation after the other."""

    script: Iterator[float]

    def sums(self, asked: Sequence[Evaluation]) -> list[list[Summed]]:
        """Return the next accuracy, and a loss of 1, for all cells."""
        one_sample = GroupSums(np.array([1]), np.array([[next(self.script), 1.0]]))
        return [[dict.fromkeys(rows, one_sample) for rows in one.over] for one in asked]


def kept_after(run: Run, *script: float) -> tuple[Simulation, list[Tensor]]:
    """A run that is told these accuracies, and its parameters after each round."""
    work = Scripted(run.cells, run.data.load(), run.model)
    work.script = iter(script)
    simulation = Simulation(run, work)
    after = []
    while not simulation.done:
        simulation.step()
        after.append(simulation.replicates[0].state.w_P.clone())
    return simulation, after


def test_of_equally_good_models_the_first_is_kept(tiny: Run) -> None:
    run = tiny.replace(keep="best", replicates=1)
    simulation, after = kept_after(run, 0.1, 0.4, 0.3, 0.4)
    kept = simulation.kept()[0]
    assert (kept.round, kept.value) == (1, 0.4)
    assert torch.equal(kept.w_P, after[1])


def test_a_model_whose_value_is_nan_is_never_the_best(tiny: Run) -> None:
    run = tiny.replace(keep="best", replicates=1)
    simulation, _ = kept_after(run, NAN, 0.2, NAN, 0.1)
    assert simulation.kept()[0].round == 1
    simulation, _ = kept_after(run, NAN, NAN, NAN, NAN)
    assert simulation.kept() == {}


def test_the_last_model_is_that_of_the_last_round(tiny: Run) -> None:
    simulation, after = kept_after(tiny.replace(keep="last"), 0.4, 0.3, 0.2, 0.1)
    kept = simulation.kept()
    assert list(kept) == [0, 1] and kept[0].round == 3
    assert torch.equal(kept[0].w_P, after[-1])


def test_a_replicate_that_stops_early_keeps_the_model_of_its_last_round(
    tiny: Run,
) -> None:
    patient = Patience(metric="test_accuracy", rounds=2)
    run = tiny.replace(keep="last", patience=patient, rounds=9, replicates=1)
    simulation, after = kept_after(run, 0.1, 0.4, 0.3, 0.2, 0.9)
    kept = simulation.kept()[0]
    assert kept.round == 3 == len(after) - 1
    assert torch.equal(kept.w_P, after[3])


def test_a_replicate_that_diverges_has_the_best_model_before_and_no_last_one(
    tiny: Run,
) -> None:
    for keep, found in (("last", []), ("best", [0])):
        simulation, _ = kept_after(
            tiny.replace(replicates=1, keep=keep), 0.4, 0.3, 0.2, 0.1
        )
        simulation.replicates[0].diverged = "its parameters are not finite"
        assert list(simulation.kept()) == found


def test_the_best_by_validation_goes_by_the_validation_samples(tiny: Run) -> None:
    run = tiny.replace({"data.validation": Validation(clients=0.2)}, keep="best_val")
    assert run.kept_by == "val_accuracy"
    simulation, records = play(run)
    assert list(simulation.kept()) == [0, 1]
    for r, kept in simulation.kept().items():
        own = [one.metrics["val_accuracy"] for one in records if one.replicate == r]
        assert kept.value == max(own) and kept.round == own.index(max(own))


def test_the_best_by_validation_needs_validation_samples(tiny: Run) -> None:
    with pytest.raises(ValueError, match="keep='best_val' chooses by the validation"):
        tiny.replace(keep="best_val")


def test_packs_and_interruptions_do_not_change_a_file_of_models(
    tiny: Run, tmp_path: Path
) -> None:
    run = tiny.replace(keep="best")
    other = run.replace(seed=9)
    alone, store, pack = (Store(tmp_path / name) for name in ("alone", "cut", "pack"))
    run_in_process(run, alone, worker_of({"": run}))
    interrupt_in_process(run, store, worker_of({"": run}))
    assert not store.files("models")
    run_in_process(run, store, worker_of({"": run}))
    together = Worker([*other.cells, *run.cells], run.data.load(), run.model)
    session = session_of([other, run], together)
    session.advance(math.inf)
    write(session.news(), pack, [other, run])
    for cell in run.cell_ids:
        expected = alone.model(cell).read_bytes()
        assert store.model(cell).read_bytes() == expected
        assert pack.model(cell).read_bytes() == expected
    assert len(pack.files("models")) == 4
