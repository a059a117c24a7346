"""Carrying out a run in this process, with a folder but without a `Runner` around it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from raysafl import Run, Sweep
from raysafl.core.work import Work
from raysafl.storage.manifest import Entry
from raysafl.storage.store import Store
from raysafl.sweep.code import CodeDigests
from raysafl.sweep.news import GivenPack, News, Terms
from raysafl.sweep.open_pack import OpenPack
from raysafl.sweep.packs import Pack


def session_of(
    runs: Sequence[Run], work: Work, store: Store | None = None, **terms: Any
) -> OpenPack:
    """The cells of some runs, from where the checkpoints in a folder have left them.

    Args:
        runs: the runs.
        work: trains and evaluates their cells, in their order.
        store: the folder; None for the first round.
        terms: those of the pack.
    """
    cells = [cell for run in runs for cell in run.split()]
    digests = CodeDigests()
    code = {cell.id: digests.of_run(cell) for cell in cells}
    files = store.files("open") if store else []
    found = [store.checkpoint(file) for file in files] if store else []
    checkpoints = [checkpoint for checkpoint in found if checkpoint is not None]
    given = GivenPack(Pack(tuple(cells)), code, checkpoints)
    common = Terms(**{"commit": "", "package": "", "report_seconds": 2.0, **terms})
    opened = OpenPack(given, common, lambda runs: (work, "cpu", "loop"))
    opened.begin()
    return opened


def write(news: News, store: Store, runs: Sequence[Run]) -> None:
    """Write what the news of a session say, as the driver does."""
    pack = Pack(tuple(cell for run in runs for cell in run.split())).id
    if news.ends:
        store.take(news.ends, news.rows, news.clients, news.models, news.states)
    if news.checkpoint:
        store.save(pack, news.checkpoint)
    if news.done:
        store.drop_checkpoint(pack)


def run_in_process(run: Run, store: Store, work: Work, **terms: Any) -> str:
    """Carry out a run, as the reference that packs, trials and commands are compared with.

    Returns:
        Why its checkpoint was not used; empty if there was none, or it was used.
    """
    session = session_of([run], work, store, **terms)
    session.advance(np.inf)
    news = session.news()
    write(news, store, [run])
    _add_to_manifest(run, store)
    return news.begun_anew


def _add_to_manifest(run: Run, store: Store) -> None:
    """Let the manifest have a run, by whose ids its results are read."""
    if not store.file("manifest.json").is_file():
        store.write_manifest(Sweep("made", [run]).manifest())
    entry = Entry(run_id=run.id, labels={}, config=run.model_dump(mode="json"))
    store.write_manifest(store.manifest().extended([entry]))


def interrupt_in_process(
    run: Run, store: Store, work: Work, seconds: float = 0.0
) -> None:
    """Carry out the first rounds of a run, and leave its checkpoint."""
    store.create()
    session = session_of([run], work, store)
    session.advance(seconds)
    write(session.news(at_once=True), store, [run])
