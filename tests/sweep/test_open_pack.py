"""A pack that has begun: who may carry it out."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from helpers.patience import PATIENCE

from raysafl import Run
from raysafl.runtime.in_process import Worker
from raysafl.storage.store import Store
from raysafl.sweep.open_pack import Hosted, OpenPack, Terms
from raysafl.sweep.packs import Pack
from raysafl.sweep.session import is_interrupt


def test_a_second_attempt_at_a_pack_waits_for_the_first_and_takes_over_what_it_ended(
    tiny: Run, tmp_path: Path
) -> None:
    store, pack = Store(tmp_path / "s"), Pack((tiny,))
    store.create()
    hosted = list[str]()

    def host(runs: object) -> Hosted:
        hosted.append("again")
        work = Worker(tiny.cells, tiny.data.load(), tiny.model)
        return Hosted(work, "cpu", work.trainer.engine_name)

    def attempt(report_seconds: float = np.inf) -> OpenPack:
        terms = Terms(store.path, commit="", report_seconds=report_seconds)
        return OpenPack(pack, {tiny.id: {}}, terms, host, is_interrupt)

    first = attempt(report_seconds=0.0)
    assert not first.advance().done
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(attempt().advance)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.2)
        while not (news := first.advance()).done:
            pass
        assert news.done and [end.run_id for end in news.ends] == [tiny.id]
        taken = second.result(timeout=PATIENCE)
    assert taken.done and [end.run_id for end in taken.ends] == [tiny.id]
    assert hosted == ["again"]
