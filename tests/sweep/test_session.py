"""One run in this process: whose checkpoint it continues from."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
from helpers.here import run_in_process

from raysafl import LocalTraining, Run
from raysafl.runtime.in_process import Worker
from raysafl.storage.store import Store
from raysafl.sweep.session import Session


def work(run: Run) -> Worker:
    return Worker(run.cells, run.data.load(), run.model)


def interrupted(run: Run, store: Store) -> Path:
    """The checkpoint of a run that was interrupted after its first rounds."""
    store.create()
    session = Session([run], store, work(run), {})
    session.advance(0.0)
    session.flush()
    path = store.path / "checkpoints" / f"{run.id}.safetensors"
    assert path.is_file()
    return path


def test_a_checkpoint_of_another_run_is_not_used_and_it_is_told_which_and_whose(
    tiny: Run, tmp_path: Path
) -> None:
    other = tiny.replace(local=LocalTraining(lr=0.9, batch_size=32, epochs=1))
    theirs = interrupted(other, Store(tmp_path / "theirs"))
    store = Store(tmp_path / "ours")
    ours = interrupted(tiny, store)
    shutil.copy(theirs, ours)
    told = run_in_process(tiny, store, work(tiny))
    assert "so the run begins anew" in told
    assert str(ours) in told and f"belongs to run {other.id}" in told
    assert tiny.id in told
    reference = Store(tmp_path / "reference")
    reference.create()
    run_in_process(tiny, reference, work(tiny))
    pd.testing.assert_frame_equal(
        store.rounds().drop(columns="seconds"),
        reference.rounds().drop(columns="seconds"),
    )


def test_a_damaged_checkpoint_is_named_and_the_run_begins_anew(
    tiny: Run, tmp_path: Path
) -> None:
    store = Store(tmp_path / "ours")
    checkpoint = interrupted(tiny, store)
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    session = Session([tiny], store, work(tiny), {})
    told = session.begun_anew
    assert "so the run begins anew" in told and str(checkpoint) in told
    assert session.open[tiny.id].simulation.round == 0 and not store.parts()
    # The driver is told at the next report, when the run may have ended.
    assert session.advance(np.inf) and session.begun_anew == told
