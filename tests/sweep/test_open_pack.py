"""A pack that has begun: what it says of its cells, of errors, and from where it goes on."""

import io
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from raysafl import Run
from raysafl.runtime.in_process import Worker
from raysafl.storage.checkpoint import Checkpoint
from raysafl.storage.ledger import Status
from raysafl.sweep.news import GivenPack, News, Terms
from raysafl.sweep.open_pack import Hosted, OpenPack
from raysafl.sweep.packs import Pack


def hosted(runs: Sequence[Run]) -> Hosted:
    cells = [cell for run in runs for cell in run.cells]
    work = Worker(cells, runs[0].data.load(), runs[0].model)
    return work, *work.describe()


def opened(
    *cells: Run, host: object = hosted, package: str = "", **given: object
) -> OpenPack:
    terms = Terms(commit="", package=package, report_seconds=0.0)
    content = GivenPack(Pack(cells), {cell.id: {} for cell in cells}, **given)  # type: ignore[arg-type]
    return OpenPack(content, terms, host)  # type: ignore[arg-type]


def rows_of(news: Sequence[News]) -> pd.DataFrame:
    rows = pd.concat([own.rows.to_pandas() for own in news if own.ends])
    rows = rows.drop(columns="seconds").sort_values(["cell", "round"])
    return rows.reset_index(drop=True)


def where(pack: OpenPack) -> News:
    return pack.news(at_once=True)


def to_the_end(pack: OpenPack) -> list[News]:
    told = [pack.report()]
    while not told[-1].done:
        told.append(pack.report())
    return told


def test_a_pack_that_is_paused_goes_on_in_another_process_with_the_same_rows(
    tiny: Run,
) -> None:
    first = opened(*tiny.split())
    first.report()
    paused = where(first)
    assert paused.checkpoint and set(paused.saved) == set(tiny.cell_ids)
    # Of two checkpoints, the newer one is farther.
    again = opened(*tiny.split())
    again.report()
    again.report()
    files = (paused.checkpoint, where(again).checkpoint)
    checkpoints = [Checkpoint.read(io.BytesIO(file)) for file in files]
    rest = to_the_end(opened(*tiny.split(), checkpoints=checkpoints))
    assert [news.round for news in rest[:-1]] == [3]
    whole = rows_of(to_the_end(opened(*tiny.split())))
    pd.testing.assert_frame_equal(rows_of(rest), whole)


def test_a_pack_that_cannot_be_hosted_is_to_be_halved_and_a_single_cell_fails(
    tiny: Run,
) -> None:
    def host(runs: object) -> Hosted:
        raise SystemExit("no room")

    one, other = tiny.split()
    both = opened(one, other, host=host).report()
    assert both.done and both.halve and not both.ends
    alone = opened(one, host=host).report()
    (end,) = alone.ends
    assert alone.done and not alone.halve and end.cell == one.id
    assert end.status is Status.FAILED and "no room" in end.reason


def test_an_error_that_ends_the_process_leaves_nothing_of_the_round_that_it_cuts(
    tiny: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = opened(*tiny.split())
    pack.report()

    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pack.lockstep, "advance", cut)
    with pytest.raises(KeyboardInterrupt):
        pack.report()
    assert pack.lockstep is None and not pack.open


def test_a_machine_with_another_raysafl_computes_nothing_and_ends_the_sweep(
    tiny: Run,
) -> None:
    def host(runs: object) -> Hosted:
        raise AssertionError("no client may be hosted")

    news = opened(tiny.split()[0], host=host, package="0" * 64).report()
    assert news.done and "another raysafl" in news.lost and not news.ends
    assert np.isnan(news.metrics["test_accuracy"])
